"""Several rows a sample become one, of what was known before its day."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dovetail as dt
from dovetail.data import read_party_table
from dovetail.data.events import Events
from dovetail.data.frames import table_from_frame
from dovetail.errors import DataError
from dovetail.settings.events import EventsSection

CALLS = pd.DataFrame(
    {
        "customer": ["b", "a", "a", "a", "a", "b"],
        "day": pd.to_datetime(
            ["2026-01-05", "2026-01-10", "2026-01-20", "2025-06-01", "2026-02-01", "2026-03-01"]
        ),
        "index_date": pd.to_datetime(["2026-02-01"] * 6),
        "amount": [7.0, 1.0, 3.0, 100.0, 1e6, 1e6],
        "kind": ["web", "web", "shop", "shop", "fraud", "fraud"],
    }
)
SECTION = EventsSection(per="customer", time="day", before="index_date", windows=(30, 365))


def rows_of(frame: pd.DataFrame, section: EventsSection = SECTION) -> dict[str, list]:
    table = table_from_frame(frame)
    made = Events.of(section, table).by_sample(table)
    return {name: made.column(name).values.tolist() for name in made.names}


def test_windows_count_sum_and_share_what_lies_in_them() -> None:
    made = rows_of(CALLS)
    assert made["customer"] == ["a", "b"]
    assert made["count_30d"] == [2, 1]
    assert made["count_365d"] == [3, 1]
    assert made["amount_sum_30d"] == [4, 7]
    assert made["amount_mean_365d"] == [104 / 3, 7]
    assert made["amount_last"] == [3, 7]
    assert made["days_since_last"] == [12, 27]
    assert made["kind_shop_share_365d"] == [2 / 3, 0]


def test_no_event_of_the_day_or_later_counts() -> None:
    later = CALLS["day"] >= CALLS["index_date"]
    changed = CALLS.assign(amount=CALLS["amount"].where(~later, -5e9), kind="web")
    table = table_from_frame(CALLS)
    events = Events.of(SECTION, table)
    with_later = events.by_sample(table_from_frame(changed.where(later, CALLS)))
    without = events.by_sample(table)
    for name in without.names:
        assert with_later.column(name).values.tolist() == without.column(name).values.tolist()


def test_a_sample_whose_events_are_all_later_has_a_count_of_0() -> None:
    made = rows_of(CALLS.assign(index_date=pd.Timestamp("2020-01-01")))
    assert made["count_365d"] == [0, 0]
    assert made["amount_sum_30d"] == [0, 0]
    assert np.isnan(made["days_since_last"]).all()


def test_without_a_day_it_is_that_after_the_last_event() -> None:
    made = rows_of(CALLS, EventsSection(per="customer", time="day", windows=(30,)))
    assert made["days_since_last"] == [29, 1]
    assert rows_of(CALLS, SECTION.model_copy(update={"before": "2026-01-11"}))["count_30d"] == [
        1,
        1,
    ]


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (CALLS.assign(customer=[None, *"aaaab"]), "1 events have no 'customer'"),
        (CALLS.assign(index_date=CALLS["day"]), "'index_date' has several values of customer 'a'"),
        (CALLS.assign(day="soon"), "events.time names 'day', which has no dates"),
        (CALLS.drop(columns="day"), "no column 'day'"),
    ],
)
def test_events_that_cannot_be_counted_are_one_sentence(frame: pd.DataFrame, words: str) -> None:
    with pytest.raises(DataError, match=words):
        rows_of(frame)


def test_events_are_of_the_partys_id() -> None:
    with pytest.raises(DataError, match=r"events.per is the party's id, which is 'kind'"):
        read_party_table("shop", CALLS, id="kind", events=SECTION)


def test_many_events_give_what_pandas_gives() -> None:
    rng = np.random.default_rng(0)
    many = pd.DataFrame(
        {
            "customer": rng.integers(0, 300, 5000),
            "day": pd.Timestamp("2025-01-01") + pd.to_timedelta(rng.integers(0, 365, 5000), "D"),
            "amount": rng.lognormal(size=5000),
        }
    )
    section = EventsSection(per="customer", time="day", before="2025-12-01", windows=(90,))
    made = rows_of(many, section)
    day = pd.Timestamp("2025-12-01")
    inside = many[(many["day"] < day) & (many["day"] >= day - pd.Timedelta(90, "D"))]
    sums = inside.groupby("customer")["amount"].sum().reindex(made["customer"], fill_value=0)
    np.testing.assert_allclose(made["amount_sum_90d"], sums.to_numpy(), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("brief_learners")
def test_a_partner_of_events_helps_and_an_owner_of_events_predicts_from_raw_ones(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    people = np.arange(120)
    hidden = rng.normal(size=120)
    who = rng.integers(0, 120, 2000)
    events = pd.DataFrame(
        {
            "customer": who,
            "day": pd.Timestamp("2025-01-01") + pd.to_timedelta(rng.integers(0, 365, 2000), "D"),
            "amount": np.exp(hidden[who]) + rng.random(2000),
        }
    )
    labels = pd.DataFrame({"customer": people, "bought": (hidden > 0).astype(int)})
    own = events.merge(labels, on="customer")
    own.to_csv(tmp_path / "payments.csv", index=False)
    section = {"per": "customer", "time": "day", "windows": (365,)}
    owner = dt.Party(
        "bank", tmp_path / "payments.csv", id="customer", label="bought", events=section
    )
    assert owner.num_rows == len(set(who))
    assert set(owner.columns) == {
        "count_365d", "amount_sum_365d", "amount_mean_365d", "amount_last", "days_since_last",
    }  # fmt: skip
    partner = dt.Party("shop", events, id="customer", events=section)
    method = dt.APFed(distil={"students": ["linear"]})
    run = dt.fit(method, [owner, partner], test=0, quiet=True, out=tmp_path / "out")
    model = run.models["bank"]
    assert len(model.predict(events)) == len(set(who))
    saved = dt.load(tmp_path / "out/models/bank")
    one = saved.predict_proba(tmp_path / "payments.csv")
    assert np.array_equal(one, model.predict_proba(events))
    kept = json.loads((tmp_path / "out/models/bank/model.json").read_text())
    assert '"events"' in json.dumps(kept)
