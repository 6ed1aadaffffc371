"""A row that lacks a block of columns trains what it has, and is predicted from that."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from dovetail.data import Classification, PartyData, TableEncoder, table_from_arrays
from dovetail.federated import Local, train
from dovetail.methods import hyfem
from dovetail.models import Perceptron
from dovetail.models.blocks import BlocksSpec
from dovetail.network import InProcess
from dovetail.settings.privacy import PrivateSteps

SPEC = BlocksSpec(("age", "blood"), ((2,), (3,)), (Perceptron((4,)), Perceptron((5,))), (6,), 3)
TASK = Classification(("no", "yes", "perhaps"))


def rows(num_rows: int = 12) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    return {name: torch.randn(num_rows, *shape, generator=rng)
            for name, shape in zip(SPEC.blocks, SPEC.shapes, strict=True)}  # fmt: skip


@pytest.mark.parametrize("of", [0, 5], ids=["plain", "scaled"])
def test_a_row_that_lacks_a_block_is_said_from_the_others(of: int) -> None:
    torch.manual_seed(0)
    network = BlocksSpec(*SPEC.__dict__.values()).build()
    network.of = of
    x = rows()
    expected = network(x)
    without = network({"age": x["age"]})
    x["blood"][::2] = float("nan")
    outputs = network(x)
    torch.testing.assert_close(outputs[1::2], expected[1::2])
    torch.testing.assert_close(outputs[::2], without[::2])


def test_nothing_flows_back_into_the_extractor_of_a_block_that_a_row_lacks() -> None:
    torch.manual_seed(0)
    network = SPEC.build()
    x, labels = rows(), torch.arange(12) % 3
    lacking = {**x, "blood": x["blood"].clone()}
    lacking["blood"][::2] = float("nan")
    (cross_entropy(network(lacking), labels, reduction="sum")).backward()
    some = {name: block[1::2] for name, block in x.items()}
    alone = copy.deepcopy(network)
    alone.zero_grad()
    (cross_entropy(alone(some), labels[1::2], reduction="sum")).backward()
    for one, two in zip(
        network.extractors[1].parameters(), alone.extractors[1].parameters(), strict=True
    ):
        torch.testing.assert_close(one.grad, two.grad)
    assert all(each.grad.isfinite().all() for each in network.parameters())


def data_of(private: PrivateSteps | None = None) -> hyfem.HyfemData:
    rng = np.random.default_rng(0)
    years, pulse = rng.normal(40, 9, 60), rng.normal(70, 8, 60)
    pulse[::3] = np.nan
    ward = np.array(["east", "west"], dtype=object)[rng.integers(2, size=60)]
    ward[::3] = None
    pulse[1] = np.nan  # of this row the ward is known: it is filled
    tables = {
        "age": table_from_arrays("age", {"years": years}),
        "blood": table_from_arrays("blood", {"pulse": pulse, "ward": ward}),
    }
    labels = torch.from_numpy((years > 40).astype(np.int64) + (rng.random(60) > 0.8))
    return hyfem.HyfemData(
        PartyData("clinic", np.arange(60), labels=labels, tables=tables), TASK, (6,),
        private=private,
    )  # fmt: skip


def trained(private: PrivateSteps | None = None) -> hyfem.Member:
    member = hyfem.Member(data_of(private), Local("clinic"))
    settings = hyfem.Settings(rounds=2, local_steps=5, batch_size=16, mu_1=0.1, mu_2=0.1)
    server = hyfem.Coordinator(
        TASK, {"age": Perceptron((3,)), "blood": Perceptron((4,))}, settings, seed=0
    )
    list(train(server, InProcess({"clinic": member}, driver="server")))
    return member


def test_an_encoder_of_a_block_says_nothing_of_a_row_without_any_value() -> None:
    table = data_of().train.tables["blood"]
    plain = TableEncoder.fit(table, table.names, party="clinic")
    block = TableEncoder.from_json(plain.of_a_block().to_json())
    filled, lacking = plain.transform(table), block.transform(table)
    empty = torch.arange(60) % 3 == 0
    assert lacking[empty].isnan().all()
    assert torch.equal(lacking[~empty], filled[~empty])
    assert "may_lack" not in plain.to_json()


@pytest.mark.parametrize("private", [None, PrivateSteps(noise=1.0)], ids=["plain", "DP-SGD"])
def test_a_party_trains_on_rows_that_lack_a_block(private: PrivateSteps | None) -> None:
    member = trained(private)
    assert member.network.rows_lack
    assert all(each.isfinite().all() for each in member.network.parameters())


def test_a_table_with_empty_cells_is_predicted_as_one_without_the_columns(tmp_path: Path) -> None:
    model = trained().model()
    (tmp_path / "empty.csv").write_text("years,pulse,ward\n31,,\n52,,\n47,80,west\n")
    (tmp_path / "without.csv").write_text("years\n31\n52\n47\n")
    empty, without = (model.predictions(tmp_path / f"{name}.csv") for name in ("empty", "without"))
    np.testing.assert_allclose(empty.probabilities[:2], without.probabilities[:2], rtol=1e-6)
    assert abs(empty.probabilities[2] - without.probabilities[2]).max() > 1e-3


@pytest.mark.slow
def test_an_exported_model_says_the_same_of_rows_that_lack_a_block(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    from dovetail.companions.service.export import export

    model: Any = trained().model()
    export(model, tmp_path / "clinic.onnx")  # compared with the model on rows that lack a block
