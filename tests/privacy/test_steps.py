"""DP-SGD: rows' own gradients, cut, summed, noised and counted."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.privacy import Stepping, epsilon
from dovetail.runs.runfile import check_run
from dovetail.runs.setup import load_data, setup
from dovetail.settings.privacy import PrivateSteps


def made() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    return network, 10 * torch.randn(9, 4), torch.randint(0, 3, (9,))


def loss(call: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(call(x), y, reduction="sum")


def stepping(**values: Any) -> Stepping:
    return Stepping(PrivateSteps(**values), "a", 20, torch.Generator().manual_seed(1))


def test_without_noise_the_step_is_the_mean_of_gradients_cut_row_by_row():
    network, x, y = made()
    weights = list(network.parameters())
    expected = [torch.zeros_like(w) for w in weights]
    for row in range(9):
        gradients = torch.autograd.grad(
            F.cross_entropy(network(x[row : row + 1]), y[row : row + 1]), weights
        )
        length = torch.stack([g.norm() for g in gradients]).norm()
        for total, g in zip(expected, gradients, strict=True):
            total += g * min(1.0, 0.5 / float(length)) / 9
    mean = stepping(clip=0.5, noise=1e-12).gradient(network, loss, torch.arange(9), x, y)
    assert float(mean) == pytest.approx(F.cross_entropy(network(x), y).item(), rel=1e-5)
    for weight, gradient in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-4, atol=1e-6)


def test_noise_has_the_stated_spread_and_visits_are_counted():
    network, x, y = made()
    party = stepping(clip=2.0, noise=3.0, epsilon=epsilon(40, 1.5, 1e-5))
    drawn = []
    for _ in range(40):
        party.gradient(network, loss, torch.arange(9), x, y)
        drawn += [torch.cat([w.grad.flatten() for w in network.parameters() if w.grad is not None])]
    spread = torch.stack(drawn).std(dim=0).mean()
    assert float(spread) == pytest.approx(2.0 * 3.0 / 9, rel=0.05)
    account = party.report()
    assert (account["releases"], account["stopped"]) == (40, False)
    assert account["epsilon"] == epsilon(40, 1.5, 1e-5)
    # Of a row that is never visited nothing is said.
    before = party.state()
    assert int(before["account"]["count"][9:].max()) == 0
    assert not party.allowed(1)
    assert party.report()["stopped"]


PARTITION = {"kind": "common-unique", "parties": 3, "common": 0.3}
BLOCKS = {
    "kind": "blocks",
    "blocks": {"mean": ["mean *"], "worst": ["worst *"]},
    "assignment": [
        {"party": "clinic", "blocks": ["mean", "worst"], "classes": [1, 2], "rows": 0.5},
        {"party": "lab", "blocks": ["mean"], "classes": [1, 2], "rows": 0.5},
    ],
    "disjoint": True,
}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["chfl", "hyfem"])
def test_a_run_that_stops_at_its_budget_ends_with_a_usable_model_and_says_why(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    private = {"clip": 1.0, "noise": 4.0, "epsilon": epsilon(3, 2.0, 1e-5), "delta": 1e-5}
    settings = {
        "chfl": {"widths": [8], "rounds": 6, "local_epochs": 1, "batch_size": 16},
        "hyfem": {"rounds": 6, "local_steps": 3, "widths": [8], "extractors": {"*": [8]}},
    }[method]
    run = check_run(
        {
            "method": method,
            "data": {
                "source": "breast-cancer", "test": 0.4,
                "partition": PARTITION if method == "chfl" else BLOCKS,
            },
            method: {**settings, "private": private},
        },
        where="test",
    )  # fmt: skip
    lines: list[dict[str, Any]] = []
    outcome = setup(run, 0, load_data(run)).train(
        method, 0, lambda *epsilons: lines.append(epsilons[2])
    )
    spent = outcome.about["epsilon"]
    assert len(spent) >= 2
    for each in spent:
        assert each["stopped"]
        assert 0 < each["epsilon"] <= private["epsilon"]
    epsilons = [line["epsilon"] for line in lines if "epsilon" in line]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] < epsilons[-1] == max(each["epsilon"] for each in spent)
    assert "is spent after" in caplog.text
    for scores in outcome.scores[method].values():
        assert math.isfinite(scores["log_loss"])
