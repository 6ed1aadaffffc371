"""A scene from what a run is a function of, by method."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dovetail.audit import readings
from dovetail.audit.scene import Holding, Scene, flat, holding, names_of
from dovetail.data import Partitioned, PartyData, Table
from dovetail.errors import ConfigError
from dovetail.methods import chfl
from dovetail.methods.apfed.stages import ApfedSetup
from dovetail.methods.chfl.stages import ChflSetup
from dovetail.methods.fedoptimus.stages import FedOptimusSetup
from dovetail.methods.hyfem.stages import HyfemSetup
from dovetail.methods.outcome import Setup

TOGETHER = "the data owners together"


def scene_of(setup: Setup, data: Partitioned) -> Scene:
    """Who has what in a run; ``data`` as they were dealt out or read.

    Raises:
        ConfigError: a method that the audit does not know the messages of.
    """
    match setup:
        case ApfedSetup():
            return _apfed(setup)
        case FedOptimusSetup():
            return _fedoptimus(setup)
        case ChflSetup():
            return _chfl(setup)
        case HyfemSetup():
            return _hyfem(setup, data)
    raise ConfigError(
        f"the audit does not know the messages of {setup.method!r}, a method of your own; it "
        "audits apfed, tvfl, fedoptimus, chfl and hyfem"
    )


def _apfed(setup: ApfedSetup) -> Scene:
    train, test = setup.data.train, setup.data.test
    parties = {
        name: holding(party, setup.data.inputs.get(name)) for name, party in train.parties.items()
    }
    candidates: dict[str, tuple[PartyData, PartyData]] = {}
    if test is not None:
        own = train[setup.active]
        candidates[setup.active] = own.take(own.labelled_rows()), test[setup.active]
    return Scene(setup.data.task, parties, {"": setup.align().rows}, readings.Apfed(), candidates)


def _fedoptimus(setup: FedOptimusSetup) -> Scene:
    parties: dict[str, Holding] = {}
    orders: dict[str, dict[str, Tensor]] = {name: {} for name in setup.labels}
    for name, columns in setup.columns.items():
        first = next(iter(columns.shared.values()))
        parties[name] = Holding(flat(first.x), names_of(columns.input, first.x))
        for owner, shared in columns.shared.items():
            orders[owner][name] = shared.rows_S
    for owner, labels in setup.labels.items():
        parties[owner] = Holding(None, (), labels.labels_S)
        orders[owner][owner] = torch.arange(len(labels.labels_S))
    return _together(Scene(setup.task, parties, orders, readings.FedOptimus()), setup)


def _together(scene: Scene, setup: FedOptimusSetup) -> Scene:
    """With all data owners as one, whose mean embedding a label owner sees.

    Of parties with files of their own, rows of one sample stand at different places; then the
    mean is not attacked.
    """
    names = list(setup.columns)
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


def _chfl(setup: ChflSetup) -> Scene:
    parties: dict[str, Holding] = {}
    candidates: dict[str, tuple[PartyData, PartyData]] = {}
    task = next(iter(setup.parties.values())).rows.task
    for name, own in setup.parties.items():
        rows = own.rows
        if not isinstance(rows, chfl.EncodedRows):
            parties[name] = Holding(None)  # encoded when training begins
            continue
        parties[name] = Holding(flat(rows.data.joined()), tuple(rows.features), rows.data.labels)
        if isinstance(own.test, Tensor) and own.test_labels is not None:
            out = replace(
                rows.data,
                ids=torch.arange(len(own.test)).numpy(),
                blocks={next(iter(rows.data.blocks)): own.test},
                labels=own.test_labels,
            )
            candidates[name] = rows.data.take(rows.data.labelled_rows()), out
        assert not isinstance(own.test, Table)
    return Scene(task, parties, {}, readings.Chfl(), candidates)


def _hyfem(setup: HyfemSetup, data: Partitioned) -> Scene:
    parties: dict[str, Holding] = {}
    candidates: dict[str, tuple[PartyData, PartyData]] = {}
    for name, own in setup.parties.items():
        if own.raw:
            parties[name] = Holding(None)
            continue
        columns: list[str] = []
        for block, x in own.train.blocks.items():
            given = names_of(setup.inputs.get(block), x)
            columns += [f"{block}: {column}" for column in given]
        x = torch.cat([flat(each) for each in own.train.blocks.values()], dim=1)
        parties[name] = Holding(x, tuple(columns), own.train.labels)
        if own.test is not None and own.test.labels is not None:
            candidates[name] = own.train.take(own.train.labelled_rows()), own.test
    return Scene(setup.task, parties, {}, readings.Hyfem(), candidates)
