"""How often the forecast of ``inspect`` is right: expected gain beside the gain that was measured.

    python -m benchmarks.forecast

The forecast looks at the label owner's rows alone: does its score still rise with labels, and have
many shared rows none? It is set beside the gain of the solo model over the best local model that
is recorded of 25 settings (``results/bench/worth-sealed.jsonl``) and of the newcomer's
cells (``results/newcomer.jsonl``); a gain of a point or more counts. Nothing is trained but the
forecast's own linear models.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dovetail as dt
from benchmarks import _results
from dovetail.runs.expected_gain import Expected

RUNS = _results.FOLDER.parents[1] / "runs"

#: Points that count as a gain.
LEAST = 0.01


def worth_cells() -> Iterator[tuple[str, float, Expected | None]]:
    """(Cell, gain, forecast) of each setting of the table ``worth``."""
    cells: dict[str, list[dict[str, Any]]] = {}
    for line in (_results.FOLDER / "bench" / "worth-sealed.jsonl").read_text().splitlines():
        row = json.loads(line)
        cells.setdefault(row["cell"], []).append(row)
    for cell, rows in cells.items():
        gain = statistics.fmean(row["apfed"] - row["best-alone"] for row in rows)
        overrides = [rows[0]["set"]] if rows[0]["set"] else []
        found = dt.inspect(RUNS / rows[0]["run"], overrides=overrides, quiet=True)
        yield cell, gain, found.expected


def newcomer_cells() -> Iterator[tuple[str, float, Expected | None]]:
    """Name, gain and forecast of the newcomer's cells on record."""
    for line in (_results.FOLDER / "newcomer.jsonl").read_text().splitlines():
        row = json.loads(line)
        known = row["expected"]
        yield row["cell"], row["solo"] - row["local"], None if known is None else Expected(**known)


def main() -> None:
    rows = [
        {
            "cell": cell,
            "forecast": "none" if found is None else found.kind,
            "labels": None if found is None else found.labels,
            "unlabelled": None if found is None else found.unlabelled,
            "rise": None if found is None else round(found.at_all - found.at_half, 4),
            "spread": None if found is None else round(found.spread, 4),
            "gain": round(gain, 4),
            "gained": gain >= LEAST,
        }
        for cell, gain, found in (*worth_cells(), *newcomer_cells())
    ]
    _results.write("forecast", "The forecast of inspect, beside what was gained", rows)
    counted = Counter((row["forecast"], row["gained"]) for row in rows)
    for kind in dict.fromkeys(row["forecast"] for row in rows):
        right, of = counted[kind, True], counted[kind, True] + counted[kind, False]
        print(f"{kind}: a point or more in {right} of {of}")


if __name__ == "__main__":
    main()
