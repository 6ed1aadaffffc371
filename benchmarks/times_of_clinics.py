"""Times to an event that three clinics have, each of its own patients: CHFL and HyFEM.

    python -m benchmarks.times_of_clinics [--splits 5]

Sets and test rows are those of ``benchmarks.survival``. The columns of its clinic are at all three;
of the others each clinic lacks every third. Training rows are dealt at random, a third each (of
flchain 600 in all). Every model is judged by all test rows, with the columns that its clinic has,
and a line has the mean over clinics. ``own`` and ``alone`` are scikit-survival's best and
Dovetail's best local model of a clinic's rows, both chosen by cross-validation; ``pooled`` and
``all`` the same of all rows and columns in one place. All else is the default, and nothing is
chosen on test rows. Finished splits are kept in
results/times_of_clinics_runs.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import warnings
from typing import Any

import numpy as np

import dovetail as dt
from benchmarks import _results
from benchmarks.survival import CASES, EVENT, SPLITS, TIME, beside, pooled, split

RESULTS = _results.FOLDER / "times_of_clinics_runs.jsonl"
CLINICS = 3
#: Rows that train, where a set has more.
MOST = 600
METHODS = ("common", "chfl", "hyfem")
COLUMNS = {
    "own": "scikit-survival's best, own rows",
    "alone": "best local",
    "common": "FedAvg, common columns",
    "chfl": "CHFL",
    "hyfem": "HyFEM",
    "pooled": "pooled",
    "all": "scikit-survival's best, pooled",
}


def cell(case: str, split_number: int) -> dict[str, Any]:
    """One split of a set."""
    started = time.perf_counter()
    frame, _, test = split(case, split_number)
    features = [column for column in frame if column not in (TIME, EVENT)]
    common = [column for column in features if column in CASES[case].clinic]
    others = [column for column in features if column not in common]
    rng = np.random.default_rng(split_number)
    known = rng.permutation(np.setdiff1d(np.arange(len(frame)), test))[:MOST]
    clinics = [
        ([*common, *(name for j, name in enumerate(others) if j % CLINICS != clinic)], rows)
        for clinic, rows in enumerate(np.array_split(known, CLINICS))
    ]
    scores: dict[str, Any] = {
        "own": [beside(frame, columns, rows, test)[0] for columns, rows in clinics],
        "alone": [pooled(frame, columns, rows, test, split_number) for columns, rows in clinics],
    }
    for method in METHODS:
        parties = []
        for clinic, (columns, rows) in enumerate(clinics):
            blocks = {"common": common, **{name: [name] for name in columns if name in others}}
            named: dict[str, Any] = {"blocks": blocks} if method == "hyfem" else {}
            held = frame.iloc[rows][[*columns, TIME, EVENT]].assign(patient=rows)
            label = {"time": TIME, "event": EVENT}
            parties.append(dt.Party(f"clinic-{clinic}", held, id="patient", label=label, **named))
        run = dt.fit(dt.Method(method), parties, test=None, seeds=[split_number], quiet=True)
        judged = frame.iloc[test]
        scores[method] = [
            run.models[each.name].score(judged, allow_unseen=True)["c_index"] for each in parties
        ]
    line: dict[str, Any] = {"rows": len(frame), "train": len(known)}
    line |= {name: statistics.fmean(of_clinics) for name, of_clinics in scores.items()}
    line |= {"of_clinics": scores}
    line["pooled"] = pooled(frame, features, known, test, split_number)
    line["all"], line["all_model"] = beside(frame, features, known, test)
    return {**line, "seconds": time.perf_counter() - started}


def summary(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and spread over a set's splits, two or more."""
    rows: list[dict[str, Any]] = []
    for case in CASES:
        cells = [line for line in lines if line["case"] == case]
        row: dict[str, Any] = {
            "set": f"{case}, {cells[0]['train']} of {cells[0]['rows']}",
            "splits": len(cells),
        }
        for key, title in COLUMNS.items():
            values = [line[key] for line in cells]
            row[title] = f"{statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f}"
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--splits", type=int, default=SPLITS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    wanted = (
        {"case": case, "split_number": number}
        for number, case in itertools.product(range(given.splits), CASES)
    )
    rows = summary(_results.resumed(RESULTS, wanted, cell))
    _results.write("times_of_clinics", "Harrell's C of times that three clinics have", rows)


if __name__ == "__main__":
    main()
