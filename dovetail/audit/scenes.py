"""The scene of a run: its method says who has what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from dovetail import methods
from dovetail.data import PartyData, TableEncoder
from dovetail.errors import ConfigError
from dovetail.methods.facets.audited import Audited
from dovetail.methods.facets.scene import Scene, flat, names_of
from dovetail.methods.outcome import Setup
from dovetail.methods.training import Training
from dovetail.models import Model


def audited_of(variant: str) -> Audited | None:
    """What its method says of it to an audit; None: nothing."""
    return methods.method_of(variant).audited


def scene_of(setup: Setup) -> Scene:
    """Who has what in a run.

    Raises:
        ConfigError: a method that the audit does not know the messages of.
    """
    audited = audited_of(setup.method)
    if audited is None or not isinstance(setup, Training):
        known = ", ".join(name for name, each in methods.every().items() if each.audited)
        raise ConfigError(
            f"the audit does not know the messages of {setup.method!r}: its method has no "
            f"``audited`` (docs/own-method.md); it audits {known}"
        )
    return audited.scene(setup)


def encoded(scene: Scene, models: Mapping[str, Model]) -> Scene:
    """The scene when training is over: raw columns as the parties' models read them."""
    parties, candidates = dict(scene.parties), dict(scene.candidates)
    for name, (inside, outside) in scene.candidates.items():
        model = models.get(name)
        if model is None or not inside.tables:
            continue
        inside, outside = _read_by(model, inside), _read_by(model, outside)
        candidates[name] = inside, outside
        x = torch.cat([flat(each) for each in inside.blocks.values()], dim=1).nan_to_num(0.0)
        columns = tuple(
            column
            for block, each in inside.blocks.items()
            for column in names_of(model.inputs.get(block), each)
        )
        parties[name] = replace(parties[name], x_NF=x, columns=columns, labels_N=inside.labels)
    return replace(scene, parties=parties, candidates=candidates)


def _read_by(model: Model, data: PartyData) -> PartyData:
    """These rows with raw blocks encoded by the model's inputs."""
    blocks = dict(data.blocks)
    for name, table in data.tables.items():
        given = model.inputs[name]
        assert isinstance(given, TableEncoder)
        blocks[name] = given.transform(table, allow_unseen=True)
    return replace(data, blocks=blocks, tables={})
