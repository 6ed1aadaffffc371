"""Curves and Cox regression where columns, parties or coordinators are not as one would like."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from sksurv import datasets
from sksurv.compare import compare_survival
from sksurv.linear_model import CoxPHSurvivalAnalysis
from sksurv.util import Surv

import dovetail as dt
from dovetail.companions.survival import cox
from dovetail.companions.survival.local_data import Times
from dovetail.companions.survival.section import MemberSection
from dovetail.companions.survival.survival import (
    Begin,
    Counted,
    Description,
    GiveKey,
    GiveShare,
    Ready,
)
from dovetail.data.frames import table_from_frame
from dovetail.errors import ConfigError, DataError, MessageError, PartyError, TrainingError
from dovetail.federated import Local
from dovetail.privacy import from_fixed, total

LABEL = {"time": "days", "event": "died"}
ANY = {"min_events": 0}


def people(rows: int = 300, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 9, size=rows)
    days = np.ceil(rng.exponential(40 * np.exp(-0.05 * (age - 60))))
    end = np.ceil(rng.uniform(5, 80, size=rows))
    return pd.DataFrame(
        {
            "patient": np.arange(rows), "age": age, "arm": np.where(age > 60, "a", "b"),
            "days": np.minimum(days, end), "died": (days <= end).astype(int),
        }
    )  # fmt: skip


def parties(frame: pd.DataFrame, **settings: Any) -> list[dt.Party]:
    return [
        dt.Party(f"p{each}", frame.iloc[each::3], id="patient", label=LABEL, **settings)
        for each in range(3)
    ]


@pytest.mark.parametrize(
    ("name", "columns", "group"),
    [
        ("flchain", ["age", "kappa", "lambda", "creatinine"], "sex"),  # far from normal
        ("gbsg2", ["age", "pnodes", "progrec", "estrec", "tsize"], "horTh"),
    ],
)
def test_real_sets_give_what_all_rows_in_one_place_give(
    name: str, columns: list[str], group: str
) -> None:
    x, y = getattr(datasets, f"load_{name}")()
    event, time = y.dtype.names
    frame = x[columns].astype(float).assign(
        days=y[time].astype(float), died=y[event].astype(int), arm=x[group].astype(str)
    )  # fmt: skip
    frame = frame[frame["days"] > 0].dropna().reset_index(names="patient")
    truth = Surv.from_arrays(frame["died"] == 1, frame["days"])
    pooled = CoxPHSurvivalAnalysis(alpha=0, ties="breslow", tol=1e-12).fit(frame[columns], truth)
    times = np.unique(frame["days"]).tolist()
    found = dt.cox(parties(frame, survival=ANY), columns, times=times).to_pandas()
    np.testing.assert_allclose(found["coefficient"], pooled.coef_, rtol=1e-5)
    curves = dt.kaplan_meier(parties(frame, survival=ANY), group="arm", times=times, least=1)
    assert curves.log_rank is not None
    chi2, _ = compare_survival(truth, frame["arm"])
    assert curves.log_rank["chi2"] == pytest.approx(chi2, rel=1e-6)


@pytest.mark.parametrize(("factor", "offset"), [(1e-12, 0), (1e7, 0), (1, 1e9), (-1e-3, 5e4)])
def test_a_column_s_unit_does_not_matter(factor: float, offset: float) -> None:
    frame = people()
    frame["moved"] = frame["age"] * factor + offset
    plain, moved = (dt.cox(parties(frame), each).rows[0] for each in ("age", "moved"))
    assert moved["p"] == pytest.approx(plain["p"], rel=1e-3)
    assert moved["coefficient"] * factor == pytest.approx(plain["coefficient"], rel=1e-4)


def test_a_value_far_from_all_others_does_not_stop_it() -> None:
    frame = people()
    frame.loc[3, "age"] = 6e5
    assert np.isfinite(dt.cox(parties(frame), ["age"]).rows[0]["p"])


def test_what_no_regression_can_be_made_of_is_said() -> None:
    frame = people().assign(same=1e9)
    with pytest.raises(ConfigError, match="'same' is the same in all rows"):
        dt.cox(parties(frame), "same")
    with pytest.raises(TrainingError, match="no event has come by the last time"):
        dt.cox(parties(frame.assign(died=0), survival=ANY), "age", times=[10, 20])
    with pytest.raises(ConfigError, match="differ and are 32 at most"):
        dt.cox(parties(frame), ["age", "age"])
    with pytest.raises(ConfigError, match="times rise from above 0"):
        dt.kaplan_meier(parties(frame), times=[10, float("inf")])
    frame.loc[3, "days"] = np.inf
    with pytest.raises(DataError, match="without end, such as inf"):
        dt.kaplan_meier(parties(frame))


# --- A party's own file --------------------------------------------------------------------------


def test_a_party_s_file_says_which_columns_and_times_runs_may_ask_for() -> None:
    frame = people()
    only = parties(frame, survival={"columns": ["arm"], "times": [10, 40, 80]})
    assert dt.kaplan_meier(only, group="arm", times=[10, 40]).log_rank
    with pytest.raises(PartyError, match="does not let runs ask for column 'age'"):
        dt.cox(only, ["age"], times=[10, 40])
    with pytest.raises(PartyError, match="times of its own file only; give times among 10, 40, 80"):
        dt.kaplan_meier(only, times=[10, 41])
    with pytest.raises(PartyError, match="times of its own file only"):
        dt.kaplan_meier(only)


# --- A coordinator that asks for too much --------------------------------------------------------


def side(name: str = "p0", rows: int = 60, seed: int = 0) -> cox.Member:
    frame = people(rows, seed)
    signed_N = np.where(frame["died"] == 1, frame["days"], -frame["days"])
    x = table_from_frame(frame[["age"]].assign(sex=np.arange(rows) % 2.0))
    return cox.Member(Times(name, signed_N, x, MemberSection(), 16, "days"), Local(name))


def begin(*times: float) -> Begin:
    times_K = torch.tensor(times, dtype=torch.float64)
    return Begin(0, "", ("all",), times_K, secure=True, private="")


@pytest.fixture
def member() -> cox.Member:
    member = side()
    member.handle(begin(20.0, 90.0))
    return member


def step(beta: list[float], /, number: int = 1, **changed: list[float]) -> cox.Step:
    vectors = {"centre": [60.0, 0.5], "scale": [9.0, 0.5], "beta": beta} | changed
    return cox.Step(
        number, "risk", *(torch.tensor(each, dtype=torch.float64) for each in vectors.values())
    )


def test_columns_are_named_once_a_run(member: cox.Member) -> None:
    with pytest.raises(PartyError, match="before columns were named"):
        member.handle(step([0.0, 0.0]))
    for columns in ((), ("age", "age"), tuple(map(str, range(99)))):
        with pytest.raises(PartyError, match="no, repeated or over 32 columns"):
            member.handle(cox.Columns(columns))
    told = member.handle(cox.Columns(("age", "sex")))
    assert isinstance(told, cox.Sizes)
    assert told.size_F.tolist() == [2, 0]  # of a root mean square of 61, of 0.7
    assert told.spread_F.tolist() == [1, 0]
    # Rows that lack one column more would be the difference of two sums.
    with pytest.raises(PartyError, match="the same columns in all of a run"):
        member.handle(cox.Columns(("age",)))
    for wrong in ({"beta": [0.0]}, {"centre": [0.0] * 3}, {"scale": [float("nan"), 1.0]}):
        with pytest.raises(MessageError):
            member.handle(step([0.0, 0.0], **wrong))


@pytest.mark.parametrize(
    "asked",
    [
        step([40.0, 0.0]),  # the oldest row alone
        step([800.0, 0.0]),  # without end
        step([1.0, 0.0], scale=[1e-3, 1.0]),
        step([0.0, 0.0], scale=[0.0, 1.0]),
        step([0.0, 0.0], centre=[1e300, 0.0]),
    ],
)
def test_no_sum_leaves_in_which_one_row_outweighs_all_others(
    member: cox.Member, asked: cox.Step
) -> None:
    member.handle(cox.Columns(("age", "sex")))
    good = member.handle(step([0.1, 0.1]))
    before_P = member.counts_P
    refused = member.handle(asked)
    assert isinstance(good, cox.Summed)
    assert good.fits
    assert isinstance(refused, cox.Summed)
    assert not refused.fits
    assert member.counts_P is before_P


@pytest.mark.parametrize("lies", [False, True])
def test_intervals_told_differently_to_each_party_give_noise(lies: bool) -> None:
    """Two whose intervals all end before their rows would add nothing to the third's."""
    members = {f"p{each}": side(f"p{each}", 120, each) for each in range(3)}
    for name, each in members.items():
        each.handle(begin(1e-3, 2e-3, 3e-3) if lies and name != "p0" else begin(20.0, 40.0, 90.0))
        each.handle(cox.Columns(("age", "sex")))
        each.handle(step([0.0, 0.0]))
    keys = {name: each.handle(GiveKey(1)) for name, each in members.items()}
    ask = GiveShare(
        1, (1 / 3,) * 3, tuple(members), torch.stack([key.key for key in keys.values()]),
        torch.empty(0, dtype=torch.uint8), (0, 0, 0),
    )  # fmt: skip
    masked = [each.handle(ask).masked_P for each in members.values()]
    events_K = 3 * from_fixed(total(masked))[:3]
    if lies:
        assert not torch.allclose(events_K, members["p0"].counts_P[:3].float(), atol=1e3)
    else:
        assert events_K.round().sum() == sum(each.counts_P[:3].sum() for each in members.values())


def test_a_party_that_ends_after_each_letter_goes_on(member: cox.Member) -> None:
    """Its columns, and what masks are bound to, are as before."""
    member.handle(cox.Columns(("age", "sex")))
    member.handle(step([0.1, 0.1]))
    again = side()
    again.restore(member.state())
    assert again.summed(1)[1] == member.summed(1)[1]
    assert torch.equal(again.summed(1)[0], member.summed(1)[0])
    for each in (again, member):
        each.handle(step([0.2, 0.1], 2))
    assert torch.equal(again.summed(2)[0], member.summed(2)[0])
    with pytest.raises(PartyError, match="the same columns in all of a run"):
        again.handle(cox.Columns(("age",)))


# --- A party that answers what cannot be ----------------------------------------------------------


def of_one(monkeypatch: pytest.MonkeyPatch, handler: str, answer: Any) -> None:
    """Party p1 answers so."""
    true = getattr(cox.Member, handler)

    def handle(self: cox.Member, ask: Any) -> Any:
        said = true(self, ask)
        return answer(said) if self.name == "p1" else said

    handle.__dict__.update(true.__dict__)
    handle.__annotations__ = dict(true.__annotations__)
    monkeypatch.setattr(cox.Member, handler, handle)


@pytest.mark.parametrize(
    ("handler", "answer", "words"),
    [
        ("describe", lambda said: Description(said.groups, -said.ends_Q), "do not rise from 0 on"),
        ("describe", lambda said: Description(said.groups, said.ends_Q[:0]), "offers no ends"),
        ("begin", lambda said: Ready(float("nan")), "its noise has deviation nan"),
        ("count", lambda said: Counted(said.counts_P - 9), "below 0 or not whole"),
        ("count", lambda said: Counted(said.counts_P + 0.3), "below 0 or not whole"),
    ],
)
def test_a_party_that_answers_what_is_none_is_named(
    monkeypatch: pytest.MonkeyPatch, handler: str, answer: Any, words: str
) -> None:
    made = parties(people(), survival={"secure": False})
    of_one(monkeypatch, handler, answer)
    with pytest.raises(PartyError, match=words) as raised:
        dt.kaplan_meier(made, secure=False)
    assert "'p1'" in str(raised.value)


def test_masked_counts_that_cannot_be_are_noticed_in_the_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true = cox.Member.begin

    def begin(self: cox.Member, ask: Begin) -> Ready:
        ready = true(self, ask)
        self.counts_P = self.counts_P - (500 if self.name == "p1" else 0)
        return ready

    begin.__dict__.update(true.__dict__)
    begin.__annotations__ = dict(true.__annotations__)
    monkeypatch.setattr(cox.Member, "begin", begin)
    with pytest.raises(TrainingError, match="a party sent what is none"):
        dt.kaplan_meier(parties(people()))


def test_names_of_groups_are_printed_as_they_are() -> None:
    frame = people()
    frame["arm"] = np.where(frame["arm"] == "a", "[/red]", "[bold]")
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(dt.kaplan_meier(parties(frame), group="arm"))
    shown = console.export_text()
    assert "[/red]" in shown
    assert "[bold]" in shown
