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
from dovetail.methods.apfed.home import LabelHome
from dovetail.methods.apfed.stages import label_home
from dovetail.methods.chfl import layers as chfl
from dovetail.methods.fedoptimus.stages import Columns, Labels, columns_in, labels_in
from dovetail.methods.fedoptimus.stages import Home as OwnerHome
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
        case Training() if any(isinstance(each, LabelHome) for each in setup.homes.values()):
            return _apfed(setup)
        case Training() if all(isinstance(each, Columns | Labels) for each in setup.homes.values()):
            return _fedoptimus(setup.homes)
        case Training() if all(isinstance(each, chfl.Home) for each in setup.homes.values()):
            return _chfl(setup.homes)
        case Training() if all(isinstance(each, hyfem.Home) for each in setup.homes.values()):
            return _hyfem(setup.homes, data)
    raise ConfigError(
        f"the audit does not know the messages of {setup.method!r}, a method of your own; it "
        "audits apfed, tvfl, fedoptimus, chfl and hyfem"
    )


def _apfed(setup: Training) -> Scene:
    home, data = label_home(setup), setup.loaded.data
    parties = {**data.train.parties, home.name: home.train}
    candidates: dict[str, tuple[PartyData, PartyData]] = {}
    if home.test is not None:
        candidates[home.name] = home.train.take(home.train.labelled_rows()), home.test
    holdings = {name: holding(own, data.inputs.get(name)) for name, own in parties.items()}
    return Scene(home.task, holdings, {"": home.alignment.rows}, readings.Apfed(), candidates)


def _fedoptimus(homes: Mapping[str, OwnerHome]) -> Scene:
    parties: dict[str, Holding] = {}
    columns, labels = columns_in(homes), labels_in(homes)
    orders: dict[str, dict[str, Tensor]] = {name: {} for name in labels}
    for name, own in columns.items():
        first = next(iter(own.shared.values()))
        parties[name] = Holding(flat(first.x), names_of(own.input, first.x))
        for owner, shared in own.shared.items():
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


def _chfl(homes: Mapping[str, chfl.Home]) -> Scene:
    """Its columns are encoded when training begins: see ``encoded``."""
    candidates: dict[str, tuple[PartyData, PartyData]] = {}
    for name, home in homes.items():
        if home.test is not None and home.test.labels is not None:
            candidates[name] = home.train.take(home.train.labelled_rows()), home.test
    parties = {name: Holding(None, (), home.train.labels) for name, home in homes.items()}
    task = next(iter(homes.values())).task
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


def _hyfem(homes: Mapping[str, hyfem.Home], data: Partitioned) -> Scene:
    inputs = data.block_inputs if isinstance(data, Blocks) else {}
    parties: dict[str, Holding] = {}
    candidates: dict[str, tuple[PartyData, PartyData]] = {}
    for name, own in homes.items():
        if own.train.tables:
            parties[name] = Holding(None)
            continue
        columns: list[str] = []
        for block, x in own.train.blocks.items():
            given = names_of(inputs.get(block), x)
            columns += [f"{block}: {column}" for column in given]
        x = torch.cat([flat(each) for each in own.train.blocks.values()], dim=1).nan_to_num(0.0)
        parties[name] = Holding(x, tuple(columns), own.train.labels)
        if own.test is not None and own.test.labels is not None:
            candidates[name] = own.train.take(own.train.labelled_rows()), own.test
    return Scene(data.task, parties, {}, readings.Hyfem(), candidates)
