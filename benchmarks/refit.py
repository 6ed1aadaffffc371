"""What it costs to score a model: labels that test it, and whether the kept model learns from them.

    python -m benchmarks.refit [--tables TABLES] [--only nhefs,...]

Tables and splits are those of ``benchmarks.newcomer``, four draws each. ``dt.fit(dt.APFed(), ...)``
trains three times with the same labels: with ``test=None``, which scores nothing (``test=0`` is the
same); by default, where a quarter of the labelled rows scores the model and the kept one then
learns from them, too; and with ``refit=False``, where the kept model never sees that quarter. Each
kept model is scored on rows that nobody trained on: AUC.

Finished cells are kept in results/refit.jsonl, so that a run that was stopped goes on.
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

from benchmarks import _results
from benchmarks.newcomer import absent, measure, split

DRAWS = (1, 2, 3, 4)
TABLES = ("breast", "nhefs", "anes96", "fair", "marketing")
#: How a model is made -> settings of the method, and ``test``.
WAYS: dict[str, tuple[dict[str, Any], float | None]] = {
    "all": ({}, None),
    "default": ({}, 0.25),
    "held back": ({"refit": False}, 0.25),
}


def cell(tables: Path | None, table: str, draw: int) -> dict[str, Any]:
    """The kept model's AUC, made in each way."""
    import dovetail as dt

    owner, helper, test, columns = split(table, draw, tables)
    parties = [dt.Party("own", owner, id="id", label="y"), dt.Party("helper", helper, id="id")]
    truth = (test["y"] == max(owner["y"].dropna())).to_numpy()
    started, scores = time.perf_counter(), {}
    for way, (settings, share) in WAYS.items():
        run = dt.fit(dt.APFed(**settings), parties, test=share, quiet=True)
        made = run.models["own"].predictions(test[["id", *columns]], allow_unseen=True)
        scores[way] = measure(np.asarray(made.probabilities, float), truth)
    labels = int(owner["y"].notna().sum())
    return {"labels": labels, **scores, "seconds": time.perf_counter() - started}


def summary(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each table, and one for all: mean AUC, and points less than with all labels."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in cells:
        groups.setdefault(each["table"], []).append(each)
    groups["all"] = cells
    lines = []
    for table, group in groups.items():
        less = {
            way: 100 * np.array([each[way] - each["all"] for each in group])
            for way in ("default", "held back")
        }
        gain = less["default"] - less["held back"]
        lines.append(
            {
                "table": table,
                "draws": len(group),
                "labels": group[0]["labels"] if table != "all" else "",
                **{way: f"{np.mean([each[way] for each in group]):.3f}" for way in WAYS},
                **{f"{way} less all, points": f"{one.mean():+.1f}" for way, one in less.items()},
                "default less held back": f"{gain.mean():+.1f}",
                "from, to": f"{gain.min():+.1f}, {gain.max():+.1f}",
                "better": f"{int((gain > 0).sum())} of {len(group)}",
            }
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, help="the folder of nhefs.dta, fair.csv, ...")
    parser.add_argument("--only", help="tables, such as nhefs,breast")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    names = given.only.split(",") if given.only else TABLES
    gone = [name for name in names if absent(name, given.tables)]
    if gone:
        print(f"left out, not at hand: {', '.join(gone)} (benchmarks.newcomer --help)")
    wanted = (
        {"table": name, "draw": draw}
        for draw, name in itertools.product(DRAWS, names)
        if name not in gone
    )
    cells = _results.resumed(_results.FOLDER / "refit.jsonl", wanted, partial(cell, given.tables))
    text = "# What it costs to score a model\n\n`python -m benchmarks.refit`\n\n"
    text += _results.markdown(summary(cells))
    (_results.FOLDER / "refit.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
