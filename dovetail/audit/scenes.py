"""A scene from what a run is a function of, by method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from dovetail.audit import readings
from dovetail.audit.scene import Holding, Scene, flat, holding, names_of
from dovetail.data import Blocks, Partitioned, PartyData, TableEncoder
from dovetail.errors import ConfigError
from dovetail.methods import hyfem
from dovetail.methods.apfed.local_data import LabelOwnerData
from dovetail.methods.apfed.training_data import label_owner_data
from dovetail.methods.chfl import layers as chfl
from dovetail.methods.fedoptimus.variant_settings import (
    Columns,
    Labels,
    OwnerData,
    columns_in,
    labels_in,
)
from dovetail.methods.outcome import Setup
from dovetail.methods.training import Training
from dovetail.models import Model

TOGETHER = "the data owners together"


def scene_of(setup: Setup, data: Partitioned) -> Scene:
    """Who has what in a run; ``data`` as they were split or read.

    Raises:
        ConfigError: a method that the audit does not know the messages of.
    """
    match setup:
        case Training() if any(
            isinstance(each, LabelOwnerData) for each in setup.party_data.values()
        ):
            return _apfed(setup)
        case Training() if all(
            isinstance(each, Columns | Labels) for each in setup.party_data.values()
        ):
            return _fedoptimus(setup.party_data)
        case Training() if all(
            isinstance(each, chfl.ChflData) for each in setup.party_data.values()
        ):
            return _chfl(setup.party_data)
        case Training() if all(
            isinstance(each, hyfem.HyfemData) for each in setup.party_data.values()
        ):
            return _hyfem(setup.party_data, data)
    raise ConfigError(
        f"the audit does not know the messages of {setup.method!r}, a method of your own; it "
        "audits apfed, tvfl, fedoptimus, chfl and hyfem"
    )


def _apfed(setup: Training) -> Scene:
    local_data, data = label_owner_data(setup), setup.loaded.data
    parties = {**data.train.parties, local_data.name: local_data.train}
    candidates: dict[str, tuple[PartyData, PartyData]] = {}
    if local_data.test is not None:
        candidates[local_data.name] = (
            local_data.train.take(local_data.train.labelled_rows()),
            local_data.test,
        )
    holdings = {
        name: holding(party_data, data.inputs.get(name)) for name, party_data in parties.items()
    }
    return Scene(
        local_data.task, holdings, {"": local_data.alignment.rows}, readings.Apfed(), candidates
    )


def _fedoptimus(party_data: Mapping[str, OwnerData]) -> Scene:
    parties: dict[str, Holding] = {}
    columns, labels = columns_in(party_data), labels_in(party_data)
    orders: dict[str, dict[str, Tensor]] = {name: {} for name in labels}
    for name, columns_data in columns.items():
        first = next(iter(columns_data.shared.values()))
        parties[name] = Holding(flat(first.x), names_of(columns_data.input, first.x))
        for owner, shared in columns_data.shared.items():
            orders[owner][name] = shared.rows_S
    for owner, labelled in labels.items():
        parties[owner] = Holding(None, (), labelled.labels_S)
        orders[owner][owner] = torch.arange(len(labelled.labels_S))
    task = next(iter(labels.values())).task
    return _together(Scene(task, parties, orders, readings.FedOptimus()), list(columns))


def _together(scene: Scene, names: list[str]) -> Scene:
    """With all data owners as one, whose mean embedding a label owner sees.

    Of parties with files of their own, rows of one sample stand at different places; then the
    mean is not attacked.
    """
    held = [scene.parties[name] for name in names]
    for rows in scene.orders.values():
        if any(not torch.equal(rows[name], rows[names[0]]) for name in names):
            return scene
    x = torch.cat([each.x_NF for each in held if each.x_NF is not None], dim=1)
    columns = tuple(
        f"{name}: {column}"
        for name, each in zip(names, held, strict=True)
        for column in each.columns
    )
    orders = {owner: {**rows, TOGETHER: rows[names[0]]} for owner, rows in scene.orders.items()}
    return replace(scene, parties={**scene.parties, TOGETHER: Holding(x, columns)}, orders=orders)


def _chfl(party_data: Mapping[str, chfl.ChflData]) -> Scene:
    """Its columns are encoded when training begins: see ``encoded``."""
    candidates: dict[str, tuple[PartyData, PartyData]] = {}
    for name, local_data in party_data.items():
        if local_data.test is not None and local_data.test.labels is not None:
            candidates[name] = (
                local_data.train.take(local_data.train.labelled_rows()),
                local_data.test,
            )
    parties = {
        name: Holding(None, (), local_data.train.labels) for name, local_data in party_data.items()
    }
    task = next(iter(party_data.values())).task
    return Scene(task, parties, {}, readings.Chfl(), candidates)


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


def _hyfem(party_data: Mapping[str, hyfem.HyfemData], data: Partitioned) -> Scene:
    inputs = data.block_inputs if isinstance(data, Blocks) else {}
    parties: dict[str, Holding] = {}
    candidates: dict[str, tuple[PartyData, PartyData]] = {}
    for name, local in party_data.items():
        if local.train.tables:
            parties[name] = Holding(None)
            continue
        columns: list[str] = []
        for block, x in local.train.blocks.items():
            given = names_of(inputs.get(block), x)
            columns += [f"{block}: {column}" for column in given]
        x = torch.cat([flat(each) for each in local.train.blocks.values()], dim=1).nan_to_num(0.0)
        parties[name] = Holding(x, tuple(columns), local.train.labels)
        if local.test is not None and local.test.labels is not None:
            candidates[name] = local.train.take(local.train.labelled_rows()), local.test
    return Scene(data.task, parties, {}, readings.Hyfem(), candidates)
