"""Rivals are trained as their pages say, and predict by the owner's columns alone."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import _results, unseen
from benchmarks.rivals import apc_vfl, laser, mars, networks
from benchmarks.rivals.base import Given, Result
from benchmarks.rivals.networks import Rows
from benchmarks.rivals.registry import RIVALS


def table(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(rows, 5)), columns=list("abcde"))
    frame["kind"] = rng.choice(["x", "y"], rows)
    return frame.assign(y=np.where(frame["a"] + frame["d"] > 0, "no", "yes"))


@pytest.mark.filterwarnings("ignore")  # of models as anyone writes them
def test_a_partner_sends_its_codes_of_shared_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apc_vfl, "MOST_STEPS", 5)
    train, test = table(80, 0), table(30, 1)
    train.loc[40:, "y"] = None
    partner = train.loc[20:, ["c", "d", "e"]]
    given = Given(train, partner, test, test[["c", "d", "e"]], ["a", "b", "kind"])
    result = RIVALS["APC-VFL"](given, 0)
    assert result.num_bytes == 4 * len(partner) * 3  # float32, as wide as its columns
    assert result.messages == 1
    assert result.together is None
    assert result.alone.shape == (30, 2)
    assert np.allclose(result.alone.sum(axis=1), 1)


def test_an_encoder_comes_nearer_to_the_codes_that_it_imitates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apc_vfl, "MOST_STEPS", 200)
    x_NF = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    codes_ND = x_NF[:, :2].clone()
    codes_ND[50:] = torch.nan

    def distance(weight: float) -> float:
        encoder = apc_vfl.trained(x_NF, seed=0, taught=codes_ND, weight=weight)
        with torch.no_grad():
            return float((encoder(x_NF) - x_NF[:, :2]).square().mean())

    assert distance(10.0) < 0.5 * distance(0.0)


NETWORKS = ("LASER-VFL", "MARS-VFL")


def answers(rival: str, seed: int, there: pd.DataFrame | None = None) -> tuple[Result, np.ndarray]:
    """What a rival answers 200 rows of a toy table, and which are "yes"."""
    train, test = table(120, seed), table(200, 100 + seed)
    train.loc[100:, "y"] = None
    partner = train.loc[20:, ["c", "d", "e"]]
    asked = test[["c", "d", "e"]] if there is None else there
    given = Given(train, partner, test.drop(columns="y"), asked, ["a", "b", "kind"])
    result = RIVALS[rival](given, 0)
    return result, (test["y"] == "yes").to_numpy()


@pytest.mark.slow
@pytest.mark.parametrize("rival", NETWORKS)
def test_networks_learn_a_toy_table_and_more_of_it_with_the_partner(
    rival: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "MOST_STEPS", 150)
    for page in (laser, mars):  # one recipe: the second of each takes the fewest steps
        monkeypatch.setattr(page, "RECIPES", page.RECIPES[1:2])
    for seed in range(3):
        result, yes = answers(rival, seed)
        assert result.together is not None
        alone, both = (
            float(np.mean((each[:, 1] > 0.5) == yes)) for each in (result.alone, result.together)
        )
        assert alone > 0.65  # a alone says 3/4 of it, a and d all
        assert both > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("rival", NETWORKS)
def test_alone_does_not_read_the_partners_columns(
    rival: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "MOST_STEPS", 10)
    other = table(200, 7)[["c", "d", "e"]]
    (one, _), (two, _) = answers(rival, 0), answers(rival, 0, other)
    assert np.array_equal(one.alone, two.alone)
    assert not np.array_equal(np.asarray(one.together), np.asarray(two.together))


def test_laser_weighs_a_head_by_how_many_share_its_task() -> None:
    torch.manual_seed(0)
    pair = laser.Laser(laser.RECIPES[0], 3, 2, 2)
    x_NF, theirs_NG, y_N = torch.randn(6, 3), torch.randn(6, 2), torch.tensor([0, 1] * 3)
    entropy = torch.nn.functional.cross_entropy
    own, theirs = pair.encoders[0](x_NF), pair.encoders[1](theirs_NG)
    first, second = pair.heads
    both = entropy(first((own + theirs) / 2), y_N) + entropy(second((own + theirs) / 2), y_N)
    generator = torch.Generator()
    alone = entropy(first(own), y_N)
    missing = pair.loss(Rows(x_NF, theirs_NG, torch.zeros(6).bool(), y_N), generator)
    assert torch.allclose(missing, alone)
    shared = pair.loss(Rows(x_NF, theirs_NG, torch.ones(6).bool(), y_N), generator)
    assert torch.allclose(shared, alone + entropy(second(theirs), y_N) + both / 2)


def test_a_step_is_of_shared_rows_or_of_none() -> None:
    shared_N = torch.arange(50) % 3 > 0
    rows = Rows(torch.zeros(50, 1), torch.zeros(50, 1), shared_N, torch.zeros(50).long())
    for balanced in (False, True):
        recipe = networks.Recipe(4, "sgd", 0.1, 0.0, batch=8, balanced=balanced)
        steps = networks.batches(rows, recipe, torch.Generator().manual_seed(0))
        assert all(len(shared_N[step].unique()) == 1 for step in steps)
        assert sum(map(len, steps)) == 50


def test_predictions_that_agree_have_no_divergence() -> None:
    outputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert float(mars.divergence([outputs, outputs, outputs])) == pytest.approx(0, abs=1e-6)
    assert float(mars.divergence([outputs, -outputs, outputs])) > 0.01


def test_rivals_are_below_solo_and_joint_model_on_average_as_docs_say() -> None:
    cells, rivals = (
        [json.loads(line) for line in (_results.FOLDER / f"{name}.jsonl").read_text().splitlines()]
        for name in ("unseen", "unseen_rivals")
    )
    both = unseen.paired(cells, rivals)
    assert len(both) == len(rivals)
    for (rival, _), group in unseen.grouped(both, "rival", "labels").items():
        for theirs, ours in (("alone", "solo"), ("together", "joint")):
            gains = [each[theirs] - each[ours] for each in group if each[theirs] is not None]
            assert bool(gains) == (rival != "APC-VFL" or theirs == "alone")
            assert not gains or np.mean(gains) < 0
    assert {line["rival"] for line in unseen.lost(both)}  # "single tables they win"
    page = " ".join((_results.DOCS / "sealed.md").read_text().split())
    assert "are below the solo model on average, and with the partner below the joint one" in page
