"""A rival is trained as its page says: one message, own columns alone at prediction."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.rivals import apc_vfl


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
    result = apc_vfl.apc_vfl(train, partner, test, ["a", "b", "kind"])
    assert result.num_bytes == 4 * len(partner) * 3  # float32, as wide as its columns
    assert result.messages == 1
    assert result.probabilities.shape == (30, 2)
    assert np.allclose(result.probabilities.sum(axis=1), 1)


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
