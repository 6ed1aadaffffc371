"""A driver makes up the codes that it sends: what a partner's answers then tell of its table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeCV
from torch import Tensor

from dovetail.alignment import psi
from dovetail.data import SharedRows
from dovetail.federated import Local
from dovetail.methods import apfed, vertical
from dovetail.methods.apfed.local_data import PartnerData
from dovetail.methods.facets.views import whitened
from dovetail.methods.limits import LimitError, Limits, Uses, asked_for, code_rank
from dovetail.methods.settings.apfed import PassiveFields
from dovetail.models import Perceptron
from dovetail.network import InProcess
from dovetail.settings.models import OptimizerConfig

#: How a passive party of the paper follows its gradients.
PAPER: dict[str, Any] = OptimizerConfig().model_dump()

IDS = [f"P-{number:04d}" for number in range(1500)]


def alike(samples: Tensor, width: int) -> apfed.Codes:
    code_1D = torch.ones(1, width) + torch.arange(width) / 10
    return apfed.Codes(samples, code_1D.repeat(len(samples), 1))


@pytest.mark.network
@pytest.mark.slow
def test_made_up_codes_are_refused_at_a_real_join_and_written_down(
    shop_that_joins: Callable[..., Any],
):
    """One code for all rows in one message was answered with a function of each row."""
    shop = shop_that_joins(IDS)
    aligned = psi.align(shop.engine("rows"), IDS)
    assert len(aligned.alignment.rows["bank"]) == len(IDS)
    engine = shop.engine("rows/apfed/seed-0")
    begin = apfed.Begin((8,), 8, 0)
    ready = engine.ask({"shop": begin}, apfed.Ready).or_raise()["shop"]
    assert ready.min_rows == 16
    everybody = torch.arange(len(IDS))
    many = apfed.Codes(everybody, torch.randn(len(IDS), 8))
    for asked, why in ((many, "policy.max_codes"), (alike(everybody[:100], 8), "all but alike")):
        replies = engine.ask({"shop": asked}, apfed.CodeGradient)
        assert why in replies.failures["shop"].cause
        assert any(why in line["why"] for line in shop.refused())
    usual = apfed.Codes(everybody[:64], torch.randn(64, 8))
    assert "shop" in engine.ask({"shop": usual}, apfed.CodeGradient)


def read(local_data: PartnerData, local: Local, x_NF: Tensor, *, known: int) -> float:
    """R2 of a partner's columns from 64 random codes about each row, 1024 rows a message."""
    rng = torch.Generator().manual_seed(0)
    engine = InProcess({"shop": local_data.party(local)}, driver="bank")
    engine.ask({"shop": apfed.Begin((8,), 8, 0)}, apfed.Ready).or_raise()
    base_MD = torch.randn(4, 8, generator=rng)
    gradients = []
    for _ in range(8):  # the least rank that is answered, and what it tells added up
        code_ND = base_MD[torch.arange(len(x_NF)) % 4]
        asked = apfed.Codes(torch.arange(len(x_NF)), code_ND)
        reply = engine.ask({"shop": asked}, apfed.CodeGradient).or_raise()["shop"]
        gradients.append(reply.gradient_BD)
    views = [whitened(torch.cat(gradients, dim=1)[each::4].numpy()) for each in range(4)]
    rows = [x_NF[each::4].numpy() for each in range(4)]
    shares = []
    for view, x in zip(views, rows, strict=True):
        ridge = RidgeCV(np.logspace(-8, 3, 23)).fit(view[:known], x[:known])
        left = ((ridge.predict(view[known:]) - x[known:]) ** 2).sum(axis=0)
        shares.append(1 - left / ((x[known:] - x[known:].mean(axis=0)) ** 2).sum(axis=0))
    return float(np.mean(shares))


def test_a_site_s_answers_are_of_what_it_released_once_and_no_more():
    """Codes of a higher rank pass; then noise that was drawn once bounds what answers tell."""
    x_NF = torch.randn(1000, 5, generator=torch.Generator().manual_seed(3))
    shared = SharedRows("shop", x_NF, torch.arange(len(x_NF)))
    shares = {}
    for exact in (True, False):
        config = PassiveFields(loss="reconstruction", exact=exact, encoder=(16, 8), **PAPER)
        local_data = PartnerData(config, shared=shared)
        local = Local("shop", secret=lambda: bytes(16), lasting=bytes(range(16)))
        shares[exact] = read(local_data, local, x_NF, known=60)
    assert shares[True] > 0.95
    assert shares[False] < 0.3


def test_a_site_releases_its_columns_once_for_all_runs():
    x_NF = torch.randn(300, 4, generator=torch.Generator().manual_seed(3))
    shared = SharedRows("shop", x_NF, torch.arange(300))
    local_data = PartnerData(PassiveFields(encoder=(8, 4), **PAPER), shared=shared)

    def rows(lasting: bytes | None) -> Tensor:
        party = local_data.party(Local("shop", secret=lambda: bytes(16), lasting=lasting))
        assert isinstance(party, apfed.Passive)
        return party.shared.x

    assert torch.equal(rows(bytes(16)), rows(bytes(16)))
    assert not torch.equal(rows(bytes(16)), rows(bytes(range(16))))
    assert torch.equal(rows(None), x_NF)  # simulated
    (cost,) = local_data.party(Local("shop", lasting=bytes(16))).spent()
    assert cost["releases"] == 1


@pytest.mark.trained
def test_codes_of_classic_vertical_learning_are_of_what_a_site_released_once():
    """A driver asks for codes of all rows, in training and for predictions."""
    x_NF = torch.randn(600, 5, generator=torch.Generator().manual_seed(3))
    shared = SharedRows("shop", x_NF, torch.arange(len(x_NF)))
    found = {}
    for exact in (True, False):
        config = PassiveFields(exact=exact, encoder=(64, 32), **PAPER)
        local_data = PartnerData(config, shared=shared, test=shared, side="vertical")
        local = Local("shop", secret=lambda: bytes(16), lasting=bytes(range(16)))
        engine = InProcess({"shop": local_data.party(local)}, driver="bank")
        engine.ask({"shop": vertical.Open(0)}, vertical.Opened).or_raise()
        reported = []
        for test in (False, True):
            ask = vertical.Encode(torch.arange(len(x_NF)), training=False, test=test)
            reported.append(engine.ask({"shop": ask}, vertical.Codes).or_raise()["shop"].code_BD)
        assert torch.equal(*reported)  # drawn once for both
        ridge = RidgeCV(np.logspace(-8, 3, 23)).fit(reported[0][:100], x_NF[:100])
        left = ((ridge.predict(reported[0][100:]) - x_NF[100:].numpy()) ** 2).mean(axis=0)
        found[exact] = float(np.mean(1 - left / x_NF[100:].numpy().var(axis=0)))
    assert found[True] > 0.9
    assert found[False] < 0.3


def test_two_drivers_put_together_know_no_more_of_a_site_than_one():
    """The release is drawn once for all drivers and runs: a mean of both has the same noise."""
    x_NF = torch.randn(400, 5, generator=torch.Generator().manual_seed(3))
    shared = SharedRows("shop", x_NF, torch.arange(len(x_NF)))
    seen = []
    for run in range(2):  # each run of each driver draws other networks
        local_data = PartnerData(PassiveFields(encoder=(8,), **PAPER), shared=shared)
        local = Local("shop", secret=lambda run=run: bytes([run] * 16), lasting=bytes(range(16)))
        party = local_data.party(local)
        assert isinstance(party, apfed.Passive)
        seen.append(party.shared.x)
    assert torch.equal(*seen)


def test_a_rank_is_of_directions_and_honest_codes_have_more():
    rng = torch.Generator().manual_seed(0)
    one = torch.randn(1, 16, generator=rng)
    assert code_rank(one.repeat(100, 1)) == 0
    assert code_rank(one + torch.randn(100, 1, generator=rng) * one) <= 1
    encoder = Perceptron((32, 16)).encoder((3,))
    with torch.no_grad():
        assert code_rank(encoder(torch.randn(64, 3, generator=rng))) >= 3


def test_codes_of_low_rank_are_refused_where_a_policy_is_in_force():
    asked = asked_for(alike(torch.arange(50), 8))
    assert asked is not None
    Uses(Limits()).check(asked)  # simulated
    with pytest.raises(LimitError, match="differ in 0 directions"):
        Uses(Limits(max_codes=1024)).check(asked)
