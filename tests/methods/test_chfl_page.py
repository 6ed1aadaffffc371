"""The page of CHFL is Algorithm 2, and a run's layers with their defaults are the page."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dovetail.data import Classification, PartyData, table_from_arrays
from dovetail.federated import Local, train
from dovetail.methods import METHODS, chfl
from dovetail.methods.chfl import layers
from dovetail.methods.chfl.local_data import ChflData
from dovetail.methods.method import protocols
from dovetail.models import Column, ColumnsSpec, RandomStream, generator
from dovetail.network import Checkpoint, InProcess
from dovetail.network.checkpoint import algorithm_of

TASK = Classification((0, 1, 2))
COMMON = ("age", "dose")
CONFIG = chfl.Config(widths=(8, 4), rounds=3, local_epochs=2, batch_size=8, learning_rate=0.01)
SEED = 5


def data_of(index: int, num_rows: int, num_private: int) -> ChflData:
    rng = np.random.default_rng([3, index])
    x = rng.normal(size=(num_rows, 2 + num_private))
    labels = torch.from_numpy((x[:, 0] > 0).astype(int) + (x.sum(axis=1) > 0.4))
    names = (*COMMON, *(f"private {index}.{i}" for i in range(num_private)))
    table = table_from_arrays(f"t{index}", dict(zip(names, x.T, strict=True)))
    data = PartyData(f"p{index}", np.arange(num_rows), labels=labels, tables={"columns": table})
    return ChflData(data, TASK, COMMON)


DATA = [data_of(1, 21, 3), data_of(2, 33, 2), data_of(3, 18, 1)]


def algorithm_2(rows: dict[str, tuple[Tensor, Tensor, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Party -> the weights that it ends with, by the paper's lines and nothing of Dovetail's loop.

    Args:
        rows: party -> (N, F) common features, (N, U) private features, (N,) labels.
    """
    with RandomStream(SEED, "common column"):
        theta = Column.build(2, CONFIG.widths, 3)
    towers, optimizers, orders = {}, {}, {}
    for name, (_, x_u, _) in rows.items():
        private = tuple(range(2, 2 + x_u.shape[1]))
        spec = ColumnsSpec((0, 1), private, CONFIG.widths, 3, CONFIG.mu)
        with RandomStream(SEED, name, "unique column"):
            towers[name] = spec.join_columns(copy.deepcopy(theta), spec.build_unique())
        private_weights = towers[name].unique.parameters()
        optimizers[name] = torch.optim.Adam(private_weights, CONFIG.learning_rate, fused=True)
        orders[name] = generator(SEED, name, "batches")
    for _ in range(CONFIG.rounds):  # line 2
        sums = {name: torch.zeros_like(w).double() for name, w in theta.state_dict().items()}
        for name, (x_c, x_u, y) in rows.items():  # line 3
            common, tower = towers[name].common, towers[name]
            common.load_state_dict(theta.state_dict())  # line 11
            adam = torch.optim.Adam(common.parameters(), CONFIG.learning_rate, fused=True)
            for _ in range(CONFIG.local_epochs):  # line 12
                for batch in torch.randperm(len(y), generator=orders[name]).split(8):  # line 13
                    adam.zero_grad()
                    cross_entropy(common(x_c[batch]), y[batch]).backward()
                    adam.step()  # line 14
                    z_c = [z.detach() for z in common.outputs(x_c[batch])]
                    optimizers[name].zero_grad()
                    cross_entropy(tower.joint(x_u[batch], z_c), y[batch]).backward()
                    optimizers[name].step()  # lines 15 and 16
            for key, weights in common.state_dict().items():
                sums[key] += weights.double() * (1 / len(rows))
        theta.load_state_dict({key: total.float() for key, total in sums.items()})  # line 7
    for tower in towers.values():
        tower.common.load_state_dict(theta.state_dict())
    return {name: tower.state_dict() for name, tower in towers.items()}


def trained(page, config, *, checkpoint: Checkpoint | None = None, stop: int | None = None):
    """Members of a whole run by these two classes, or of its first rounds."""
    members = {
        local_data.name: page.Member(local_data, Local(local_data.name)) for local_data in DATA
    }
    parties = members if checkpoint is None else checkpoint.hosting(members)
    rounds = train(
        page.Coordinator(config, seed=SEED), InProcess(parties, driver="hub"), checkpoint
    )
    for done in rounds:
        if done.number == stop:
            break
    rounds.close()
    return members


def encoded(members) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    return {name: (each.x_common, each.x_unique, each.labels) for name, each in members.items()}


def assert_equal(members, expected: dict[str, dict[str, Tensor]]) -> None:
    for name, weights in expected.items():
        weights_there = members[name].columns.state_dict()
        assert weights_there.keys() == weights.keys()
        for key, value in weights.items():
            torch.testing.assert_close(weights_there[key], value, msg=f"{name} {key}")


def test_the_page_is_algorithm_2_bit_for_bit() -> None:
    members = trained(chfl, CONFIG)
    assert_equal(members, algorithm_2(encoded(members)))


def test_a_run_with_no_layer_on_is_the_page_bit_for_bit() -> None:
    members = trained(layers, layers.Config(**CONFIG.model_dump()))
    assert_equal(members, algorithm_2(encoded(members)))


def test_the_page_resumes_bit_for_bit(tmp_path) -> None:
    trained(chfl, CONFIG, checkpoint=Checkpoint(tmp_path), stop=2)
    members = trained(chfl, CONFIG, checkpoint=Checkpoint(tmp_path))
    assert_equal(members, algorithm_2(encoded(members)))


def test_a_member_is_not_made_without_its_context() -> None:
    with pytest.raises(TypeError, match="Member is made with its context"):
        chfl.Member(DATA[0], None)


def test_private_rows_of_one_party_change_nothing_of_another() -> None:
    expected = trained(chfl, CONFIG)
    table = DATA[0].table
    shuffled = np.random.default_rng(0).normal(size=len(DATA[0].rows))
    arrays = {name: table.column(name).values for name in table.names}
    changed = table_from_arrays("t1", {**arrays, "private 1.0": shuffled})
    other = replace(DATA[0], train=replace(DATA[0].train, tables={"columns": changed}))
    members = {
        local_data.name: chfl.Member(local_data, Local(local_data.name))
        for local_data in (other, *DATA[1:])
    }
    list(train(chfl.Coordinator(CONFIG, seed=SEED), InProcess(members, driver="hub")))
    assert_equal(members, {name: expected[name].columns.state_dict() for name in ("p2", "p3")})


def test_a_coordinator_saves_its_members_under_the_name_that_their_policies_know() -> None:
    for coordinator in (chfl.Coordinator, layers.Coordinator):
        saved_as = algorithm_of(coordinator(layers.Config(), seed=0))
        assert saved_as in protocols(METHODS["chfl"])
