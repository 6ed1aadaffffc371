"""The scene of a run: its method says which party holds what; and a run that is listened to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from dovetail import methods
from dovetail.audit.tape import Tape
from dovetail.data import PartyData, TableEncoder
from dovetail.errors import ConfigError
from dovetail.methods.facets.audited import Audited, Scene, flat, names_of
from dovetail.methods.outcome import Outcome
from dovetail.methods.training import Training, VariantRun
from dovetail.models import Model
from dovetail.network.inprocess import overheard


def audited_of(variant: str) -> Audited | None:
    """Facet of a variant's method for audits; None: it has none."""
    return methods.method_of(variant).audited


def scene_of(setup: Training) -> Scene:
    """Scene of a run: which party has what.

    Raises:
        ConfigError: a method that the audit does not know the messages of.
    """
    audited = audited_of(setup.method)
    if audited is None:
        known = ", ".join(name for name, each in methods.every().items() if each.audited)
        raise ConfigError(
            f"the audit does not know the messages of {setup.method!r}: its method has no "
            f"``audited`` (docs/own-method.md); it audits {known}"
        )
    return audited.scene(setup)


@dataclass(frozen=True, eq=False)
class Heard:
    """A variant that was trained, and listened to.

    Attributes:
        scene: when training is over.
        tape: what was heard.
        outcome: the results.
        played: the variant, where it asks others.
    """

    scene: Scene
    tape: Tape
    outcome: Outcome
    played: VariantRun | None


def heard(task: Training, scene: Scene, variant: str, seed: int) -> Heard:
    """A variant, trained and listened to; what crossed encrypted is read by who could."""
    tape, played = Tape(scene.reading, scene.num_samples()), None
    with overheard(tape):
        if task.kind.variant(variant).has_rounds:
            played = task.played(variant, seed, _nobody)
            if (audited := audited_of(task.method)) is not None:
                tape.add(audited.decrypted(played.driver))
            outcome = played.outcome(seed, _nobody)
        else:
            outcome = task.train(variant, seed, _nobody)
    return Heard(_encoded(scene, outcome.models), tape, outcome, played)


def _nobody(variant: str, total: int, line: dict[str, Any]) -> None:
    """Called with epochs."""


def _encoded(scene: Scene, models: Mapping[str, Model]) -> Scene:
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
