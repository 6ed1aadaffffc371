"""How often a copy of a table raises an alarm: one drawn as training was, and shifted ones.

``DOVETAIL_DATA=... python -m benchmarks.drift [--draws 200]`` keeps half of each table's rows as
training's, and draws tables of 250 and 1,000 rows from the other half.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from benchmarks._results import write
from benchmarks.export import DATA, TABLES
from dovetail import data as dd
from dovetail.data.frames import table_from_frame
from dovetail.models.watching import drift

#: Table -> a number and a category that are shifted.
SHIFTED = {
    "adult": ("age", "workclass"),
    "credit": ("LIMIT_BAL", None),
    "bank": ("age", "job"),
    "covertype": ("Elevation", None),
}


def shifts(number: str, category: str | None) -> Mapping[str, Callable[[pd.DataFrame], Any]]:
    """What is done to a copy, by its name."""

    def moved(deviations: float) -> Callable[[pd.DataFrame], Any]:
        return lambda rows: rows.assign(**{number: rows[number] + deviations * rows[number].std()})

    def emptied(rows: pd.DataFrame) -> Any:
        return rows.assign(**{number: rows[number].where(np.arange(len(rows)) % 5 > 0)})

    shifted = {
        "none": lambda rows: rows,
        f"{number} + 0.5 deviations": moved(0.5),
        f"{number} + 1 deviation": moved(1.0),
        f"a fifth of {number} missing": emptied,
    }
    if category is not None:

        def one_word(rows: pd.DataFrame) -> Any:
            common = rows[category].mode()[0]
            return rows.assign(
                **{category: rows[category].where(np.arange(len(rows)) % 2 > 0, common)}
            )

        shifted[f"half of {category} the commonest"] = one_word
    return shifted


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=200)
    draws = parser.parse_args().draws
    lines = []
    for name, (number, category) in SHIFTED.items():
        file, label, _, left_out = TABLES[name]
        frame = pd.read_parquet(DATA / f"{file}.parquet").drop(columns=[label, *left_out])
        frame = frame.sample(min(20_000, len(frame)), random_state=0)
        train, rest = frame.iloc[: len(frame) // 2], frame.iloc[len(frame) // 2 :]
        encoder = dd.TableEncoder.fit(table_from_frame(train), list(frame.columns), party="p")
        for size in (250, 1000):
            for what, shift in shifts(number, category).items():
                alarms = 0
                for draw in range(draws):
                    rows = shift(rest.sample(size, random_state=draw))
                    drifts = drift([encoder], table_from_frame(rows))
                    alarms += any(each.alarms for each in drifts)
                lines.append(
                    {
                        "table": name,
                        "columns": len(frame.columns),
                        "rows": size,
                        "shift": what,
                        "tables that alarm": f"{alarms} of {draws}",
                    }
                )
    write("drift", "How often a copy of a table raises an alarm", lines)


if __name__ == "__main__":
    main()
