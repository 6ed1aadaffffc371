"""What a partner's events are worth: counts alone, and all that ``[party.events]`` makes of them.

    python -m benchmarks.events CDNOW_master.txt [--draws 1]

CDNOW_master.txt (Fader & Hardie) has 69,659 purchases of 23,570 customers; the package lifetimes
ships it. A shop knows the first purchase of each, and of 300 whether they buy again in 1998;
the partner has all purchases of 1997. The second table is made up: payments
whose sums of the last month and whose category, not their number, say who leaves.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

import dovetail as dt
from benchmarks import _results
from dovetail.api.reading import gather
from dovetail.data import Table

DAY = "1998-01-01"
PEOPLE, LABELS = 2000, 300


def purchases(path: Path, rng: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame]:
    """People with a column of their own and a label, and their events until the day."""
    events = pd.read_csv(path, sep=r"\s+", skiprows=1, names=["customer", "day", "cds", "dollars"])
    events["day"] = pd.to_datetime(events["day"].astype(str), format="%Y%m%d")
    later = set(events.loc[events["day"] >= DAY, "customer"])
    first = events.sort_values("day", kind="stable").groupby("customer", as_index=False).first()
    people = first.sample(2 * PEOPLE, random_state=int(rng.integers(1 << 30)))
    own = pd.DataFrame({"customer": people["customer"], "first_dollars": people["dollars"]})
    own["y"] = own["customer"].isin(later).astype(int)
    before = events["day"] < DAY
    return own, events[before & events["customer"].isin(own["customer"])]


def payments(rng: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The same, made up: as many payments of all, of which those of who leaves shrink."""
    num = 2 * PEOPLE
    leaves, age = rng.random(num) < 0.3, rng.normal(size=num)
    who = rng.integers(0, num, 12 * num)
    days = rng.integers(1, 366, len(who))
    fading = np.where(leaves[who] & (days <= 30), -0.7, 0.0)
    amount = np.exp(rng.normal(size=num)[who] + fading + 0.5 * rng.normal(size=len(who)))
    web = rng.random(len(who)) < np.where(leaves[who], 0.35, 0.5)
    events = pd.DataFrame(
        {
            "customer": who,
            "day": pd.Timestamp(DAY) - pd.to_timedelta(days, "D"),
            "amount": amount.round(2),
            "kind": np.where(web, "web", "shop"),
        }
    )
    own = pd.DataFrame({"customer": np.arange(num), "age": age + 0.3 * leaves, "y": leaves * 1})
    return own, events


def measured(
    what: str, own: pd.DataFrame, events: pd.DataFrame, draw: int
) -> Iterator[dict[str, Any]]:
    """A row for each of what the partner's events become."""
    train, test = own.iloc[:PEOPLE].copy(), own.iloc[PEOPLE:]
    train["y"] = train["y"].where(np.arange(PEOPLE) < LABELS)
    owner = dt.Party("owner", train, id="customer", label="y")
    for name, columns in (("counts alone", ("count_*",)), ("all columns", ("*",))):
        partner = dt.Party(
            "shop",
            events,
            id="customer",
            columns=columns,
            events={"per": "customer", "time": "day", "before": DAY, "windows": (30, 365)},
        )
        run = dt.fit(dt.APFed(), [owner, partner], test=0, quiet=True)
        held = partner.site.table
        ids = {str(each): row for row, each in enumerate(held.ids.tolist())}
        assert isinstance(held.x, Table)
        rows = [ids[str(each)] for each in test["customer"] if str(each) in ids]
        seen = test[test["customer"].astype(str).isin(ids)]
        made = pd.DataFrame({each: held.x.column(each).values[rows] for each in partner.columns})
        joined = seen.drop(columns="y").reset_index(drop=True).join(made)
        path = run.folder / "test.parquet"
        joined.to_parquet(path, index=False)
        given = gather(run.folder / "models" / "joint", path, allow_unseen=True)
        together = given.model.outputs(given.x).softmax(dim=1)[:, 1].numpy()
        alone = run.models["owner"].predict_proba(seen.drop(columns="y"))[:, 1]
        yield {
            "table": what,
            "draw": draw,
            "partner's columns": name,
            "solo": float(roc_auc_score(seen["y"], alone)),
            "joint": float(roc_auc_score(seen["y"], together)),
            "test rows": len(seen),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cdnow", type=Path, help="CDNOW_master.txt")
    parser.add_argument("--draws", type=int, default=1)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for draw in range(given.draws):
        for what, own, events in (
            ("CDNOW", *purchases(given.cdnow, np.random.default_rng(draw))),
            ("made-up payments", *payments(np.random.default_rng(draw))),
        ):
            rows += measured(what, own, events, draw)
            print(rows[-2:], flush=True)
    _results.write("events", "What a partner's events are worth", rows)


if __name__ == "__main__":
    main()
