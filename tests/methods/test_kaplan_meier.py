"""Curves and the log-rank test over parties: those of all rows in one place, and no party's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sksurv.compare import compare_survival
from sksurv.linear_model import CoxPHSurvivalAnalysis
from sksurv.nonparametric import kaplan_meier_estimator
from sksurv.util import Surv
from typer.testing import CliRunner

import dovetail as dt
from dovetail.alignment.times import agree_times, offered_ends
from dovetail.cli.main import app
from dovetail.companions.survival.kaplan_meier import Counts, counts
from dovetail.errors import ConfigError, DovetailError, PartyError, TrainingError
from dovetail.methods import method_of
from dovetail.node.partyfile import open_site

LABEL = {"time": "days", "event": "died"}
EXACT = {"min_events": 0}


def people(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    arm = rng.integers(0, 2, size=rows)
    days = np.ceil(rng.exponential(30 * (1 + arm)))
    end = np.ceil(rng.uniform(5, 60, size=rows))
    return pd.DataFrame(
        {
            "patient": np.arange(rows),
            "arm": np.where(arm, "new", "old"),
            "days": np.minimum(days, end),
            "died": (days <= end).astype(int),
        }
    )


def parties(frame: pd.DataFrame, count: int = 3, **settings: Any) -> list[dt.Party]:
    """Rows split unevenly, so that no two parties have as many."""
    cuts = np.linspace(0, 1, count + 1)[1:-1] ** 1.5 * len(frame)
    return [
        dt.Party(f"p{index}", frame.iloc[rows], id="patient", label=LABEL, **settings)
        for index, rows in enumerate(np.split(np.arange(len(frame)), cuts.astype(int)))
    ]


@pytest.mark.parametrize("secure", [True, False])
def test_curves_and_test_of_parties_are_those_of_all_rows_in_one_place(secure: bool) -> None:
    frame = people()
    times = np.unique(frame["days"])
    curves = dt.kaplan_meier(
        parties(frame, survival={**EXACT, "secure": secure}),
        group="arm",
        times=times.tolist(),
        least=1,
        secure=secure,
    )
    table = curves.to_pandas()
    for arm, rows in frame.groupby("arm"):
        at, share, limits = kaplan_meier_estimator(
            rows["died"] == 1, rows["days"], conf_type="log-log"
        )
        mine = table[(table["group"] == arm) & table["time"].isin(at)]
        np.testing.assert_allclose(mine["survival"], share, atol=1e-12)
        seen = (share > 0) & (share < 1)
        np.testing.assert_allclose(mine["low"][seen], limits[0][seen], atol=1e-9)
        np.testing.assert_allclose(mine["high"][seen], limits[1][seen], atol=1e-9)
    truth = Surv.from_arrays(frame["died"] == 1, frame["days"])
    chi2, p = compare_survival(truth, frame["arm"])
    assert curves.log_rank is not None
    assert curves.log_rank["chi2"] == pytest.approx(chi2, rel=1e-9)
    assert curves.log_rank["p"] == pytest.approx(p, rel=1e-9)


def test_a_grid_is_the_estimator_of_times_rounded_up_to_it() -> None:
    frame = people()
    curves = dt.kaplan_meier(parties(frame, survival=EXACT), times=[10, 20, 40, 80], least=1)
    rounded = np.array([10.0, 20.0, 40.0, 80.0])[np.searchsorted([10, 20, 40, 80], frame["days"])]
    _, share = kaplan_meier_estimator(frame["died"] == 1, rounded)
    np.testing.assert_allclose(curves.to_pandas()["survival"][: len(share)], share, atol=1e-12)


def test_no_times_are_agreed_by_quantiles_of_all_events() -> None:
    frame = people()
    curves = dt.kaplan_meier(parties(frame))
    table = curves.to_pandas()
    smallest = min(
        int(part["died"].sum()) for part in (frame.iloc[: int(400 * (1 / 3) ** 1.5)], frame)
    )
    assert 2 <= len(table) <= smallest // 5
    assert table["events"].min() >= 5
    assert table["at_risk"].iloc[0] == 400
    offered = {
        party.name: offered_ends(party.site.table.required_labels.values, 5).tolist()
        for party in parties(frame)
    }
    agreed = agree_times(offered, min(map(len, offered.values())))
    assert set(table["time"]) <= set(agreed)


def test_intervals_with_few_are_joined_until_none_has_few() -> None:
    made = Counts(
        ("a",),
        np.array([1.0, 2.0, 3.0, 4.0, 5.0]),
        np.array([[6, 2, 1, 4, 1]]),
        np.array([[0, 0, 0, 0, 0]]),
        np.array([3]),
    )
    joined = made.merged(5)
    assert joined.times_K.tolist() == [1.0, 5.0]
    assert joined.events_GK.tolist() == [[6, 8]]
    assert joined.at_risk.tolist() == [[17, 11]]


def test_the_coordinator_gets_no_party_s_counts() -> None:
    """What it gets is groups, ends, keys and masked shares."""
    frame = people()
    run = dt.fit(
        dt.Method("kaplan-meier", times=[10.0, 60.0]), parties(frame), test=None, quiet=True
    )
    sent = [json.loads(line) for line in (run.folder / "ledger.jsonl").read_text().splitlines()]
    assert {line["message"] for line in sent if line["to"] == "coordinator"} == {
        "survival.Description",
        "survival.Ready",
        "survival.PublicKey",
        "survival.Share",
    }


def test_noise_is_counted_and_said() -> None:
    frame = people()
    private = {"noise": 4.0}
    curves = dt.kaplan_meier(
        parties(frame, survival=EXACT), times=[10, 20, 40, 80], private=private, seed=3
    )
    exact = dt.kaplan_meier(parties(frame, survival=EXACT), times=[10, 20, 40, 80], least=1)
    noise = np.array(
        [a["events"] - b["events"] for a, b in zip(curves.rows, exact.rows, strict=True)]
    )
    assert 0 < np.abs(noise).max() < 4 * 4 * np.sqrt(3)
    assert any("noise of deviation 6.93" in note for note in curves.notes)
    assert sum("epsilon 1.99" in note for note in curves.notes) == 3
    with pytest.raises(PartyError, match=r"costs epsilon = 1\.99, and 1 is allowed"):
        dt.kaplan_meier(
            parties(frame, survival=EXACT), times=[10], private={"noise": 4.0, "epsilon": 1.0}
        )


@pytest.mark.parametrize(
    ("settings", "asked", "words"),
    [
        ({}, {"times": list(range(1, 60))}, r"counts in at most \d+ intervals .*min_events = 5"),
        ({}, {"secure": False}, "has its counts summed in secret only"),
        ({}, {"group": "ward"}, "has no column 'ward' to group by"),
        ({}, {"group": "days"}, "has no column 'days' to group by"),
        ({"min_events": 300}, {}, r"has \d+ events, and tells of 300 or more"),
        ({"private": {"noise": 2.0}}, {}, "tells no quantiles without any: give times"),
    ],
)
def test_a_party_refuses_what_its_file_does_not_allow(
    settings: dict[str, Any], asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(PartyError, match=words):
        dt.kaplan_meier(parties(people(), survival=settings), **asked)


def test_small_groups_two_parties_and_other_labels_are_refused() -> None:
    frame = people()
    with pytest.raises(ConfigError, match="by 3 parties or more, and there are 2"):
        dt.kaplan_meier(parties(frame, 2))
    few = frame.assign(arm=np.where(frame["patient"] % 40 == 0, "rare", frame["arm"]))
    policy = {"algorithms": ["survival"], "min_rows": 16}  # which is the default over a network
    with pytest.raises(PartyError, match="fewer rows of a value of arm with a time than the 16"):
        dt.kaplan_meier(parties(few, policy=policy), group="arm")
    numbers = [
        dt.Party(f"p{i}", frame[["patient", "days", "arm"]], id="patient", label="arm")
        for i in range(3)
    ]
    with pytest.raises(DovetailError, match="curves are of times to an event"):
        dt.kaplan_meier(numbers)


def test_the_command_prints_draws_and_keeps(tmp_path: Path) -> None:
    frame = people()
    files = []
    for index, rows in enumerate(np.split(np.arange(400), [100, 220])):
        frame.iloc[rows].to_csv(tmp_path / f"p{index}.csv", index=False)
        (tmp_path / f"p{index}.toml").write_text(
            f'[party]\nname = "p{index}"\ntable = "p{index}.csv"\nid = "patient"\n'
            'label = { time = "days", event = "died" }\n'
            '[policy]\nalgorithms = ["survival"]\n'
        )
        files.append(f"p{index}.toml")
    (tmp_path / "run.toml").write_text(
        f'method = "kaplan-meier"\nparties = {json.dumps(files)}\n[survival]\ngroup = "arm"\n'
    )
    out = tmp_path / "out"
    words = ["survival", str(tmp_path / "run.toml"), "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "log-rank: chi square" in done.output
    assert "median of arm = new" in done.output
    table = pd.read_csv(out / "curves.csv")
    assert list(table.columns[:5]) == ["group", "time", "at_risk", "events", "censored"]
    assert (out / "curves.svg").read_text().count("<path") == 2
    done = CliRunner().invoke(app, ["train", str(tmp_path / "run.toml")])
    assert "trains nothing; run `dovetail survival" in str(done.exception)
    refusing = (tmp_path / "p1.toml").read_text().replace("survival", "align")
    (tmp_path / "p1.toml").write_text(refusing)
    done = CliRunner().invoke(app, [*words, "--overwrite"])
    assert isinstance(done.exception, ConfigError)
    assert "refuses 'survival': its policy allows align" in str(done.exception)


def curvature(frame: pd.DataFrame, coefficients: np.ndarray) -> np.ndarray:
    """Of each column the log likelihood's second derivative, less, by differences of Breslow's
    formula; columns hardly go together here, so its inverse root is the standard error."""
    x, days = frame[["age", "dose"]].to_numpy(), frame["days"].to_numpy()

    def likelihood(beta: np.ndarray) -> float:
        risks = x @ beta
        came = np.flatnonzero(frame["died"] == 1)
        return float(sum(risks[i] - np.log(np.exp(risks[days >= days[i]]).sum()) for i in came))

    at, found = likelihood(coefficients), []
    for step in np.diag([1e-3, 1e-2]):
        beside = likelihood(coefficients + step) + likelihood(coefficients - step)
        found.append((2 * at - beside) / step.max() ** 2)
    return np.array(found)


@pytest.mark.parametrize("secure", [True, False])
def test_cox_regression_of_parties_is_that_of_all_rows_in_one_place(secure: bool) -> None:
    rng = np.random.default_rng(4)
    frame = people().assign(age=rng.normal(60, 9, 400), dose=rng.normal(size=400))
    sooner = np.exp(0.05 * (frame["age"] - 60) + 0.4 * frame["dose"])
    frame["days"] = np.ceil(frame["days"] / sooner)
    found = dt.cox(
        parties(frame, survival={**EXACT, "secure": secure}),
        ["age", "dose"],
        times=np.unique(frame["days"]).tolist(),
        least=1,
        secure=secure,
    )
    truth = Surv.from_arrays(frame["died"] == 1, frame["days"])
    pooled = CoxPHSurvivalAnalysis(alpha=0, ties="breslow", tol=1e-12)
    pooled.fit(frame[["age", "dose"]], truth)
    table = found.to_pandas()
    np.testing.assert_allclose(table["coefficient"], pooled.coef_, rtol=1e-5)
    mean = pd.DataFrame([found.baseline["at"]])
    steps = pooled.predict_cumulative_hazard_function(mean)[0]
    assert found.baseline["times"] == steps.x.tolist()
    np.testing.assert_allclose(found.baseline["hazards"], steps(steps.x), rtol=1e-4)
    assert (table["p"] < 0.01).all()
    np.testing.assert_allclose(table["error"], curvature(frame, pooled.coef_) ** -0.5, rtol=0.05)


def test_cox_regression_says_what_it_cannot_do() -> None:
    frame = people().assign(age=range(400), twice=range(0, 800, 2), same=1)
    with pytest.raises(TrainingError, match="functions of each other"):
        dt.cox(parties(frame), ["age", "twice"])
    with pytest.raises(ConfigError, match="'same' is the same in all rows"):
        dt.cox(parties(frame), ["age", "same"])
    with pytest.raises(PartyError, match="has no column 'arm' of numbers"):
        dt.cox(parties(frame), ["arm"])
    with pytest.raises(PartyError, match="sums of Cox regression have none"):
        dt.cox(parties(frame, survival={"private": {"noise": 2.0}}), ["age"], times=[10, 40])


def test_a_row_adds_one_to_one_cell() -> None:
    signed, groups = np.array([5.0, -5.0, 7.0, -9.0, 3.0]), np.array([0, 0, 1, 1, -1])
    assert counts(signed, groups, 2, np.array([5.0, 8.0])).tolist() == [
        [1, 0, 1, 0, 0],
        [0, 1, 0, 0, 1],
    ]


def test_a_party_that_joins_is_told_what_its_file_lets_be_counted(tmp_path: Path) -> None:
    rows = "\n".join(f"{patient},{patient + 5},{patient % 2}" for patient in range(30))
    (tmp_path / "north.csv").write_text(f"patient,days,died\n{rows}\n")
    (tmp_path / "north.toml").write_text(
        '[party]\nname = "north"\ntable = "north.csv"\nid = "patient"\n'
        'label = { time = "days", event = "died" }\n[survival]\nmin_events = 7\n'
    )
    site, proposed = open_site(tmp_path / "north.toml"), method_of("kaplan-meier").proposed
    (line,) = proposed.describe(site, {"survival"})
    assert line.endswith("summed in secret, at most one interval for 7 events")
    assert not [*proposed.describe(site, {"chfl"})]
