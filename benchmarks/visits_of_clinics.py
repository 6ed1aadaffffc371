"""Counts that three clinics have, each of its own patients: CHFL and HyFEM.

    pip download --no-deps statsmodels==0.15.0
    python -m benchmarks.visits_of_clinics statsmodels-0.15.0-*.whl [--seeds 3]

Visits to a doctor in a year, of 20,190 rows of the RAND Health Insurance Experiment (in the public
domain; the file is in the wheel). Three clinics have 200 rows each: all have the insurance's
columns and the number of diseases, each lacks one of the four answers on health. Every
model is judged by the same 5,000 rows, with the columns of its clinic, and a line has the mean over
clinics. All else is the default, and nothing is chosen on test rows.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dovetail as dt
from benchmarks import _results

LABEL, SCORE = "mdvis", "poisson_deviance"
HEALTH = ("physlm", "hlthg", "hlthf", "hlthp")
CLINICS, ROWS, TESTED = 3, 200, 5000
WAYS = {
    "best-alone": "best local",
    "majority": "mean of a clinic's rows",
    "common": "FedAvg, common columns",
    "chfl": "CHFL",
    "hyfem": "HyFEM",
    "hyfem-last": 'HyFEM, `choose = "last"`: the paper\'s round',
    "pooled": "best, all 600 rows and columns",
}


def visits(wheel: Path) -> pd.DataFrame:
    """The table."""
    with zipfile.ZipFile(wheel) as archive:
        return pd.read_csv(
            io.BytesIO(archive.read("statsmodels/datasets/randhie/randhie.csv"))
        ).assign(row=lambda table: np.arange(len(table)))


def run_of(table: pd.DataFrame, seed: int) -> dict[str, Any]:
    """Way -> mean Poisson deviance over clinics, of one seed."""
    order = np.random.default_rng(seed).permutation(len(table))
    tested, known = table.iloc[order[:TESTED]], order[TESTED : TESTED + CLINICS * ROWS]
    common = [name for name in table if name not in (LABEL, "row", *HEALTH)]
    clinics = {
        f"clinic-{place}": table.iloc[rows].drop(columns=HEALTH[place])
        for place, rows in enumerate(np.array_split(known, CLINICS))
    }
    scores: dict[str, list[float]] = {way: [] for way in WAYS}

    def local(frame: pd.DataFrame, way: str, learners: Any = "best-alone") -> None:
        owner = dt.Party("clinic", frame, id="row", label=LABEL, task="counts")
        run = dt.fit(dt.Method(learners), [owner], test=None, seeds=[seed], quiet=True)
        scores[way].append(run.models["clinic"].score(tested)[SCORE])

    for frame in clinics.values():
        local(frame, "best-alone")
        mean = float(frame[LABEL].mean())
        y = tested[LABEL].to_numpy(float)
        logs = np.log(np.where(y > 0, y / mean, 1.0))
        scores["majority"].append(float((2 * (y * logs - y + mean)).mean()))
    for way in ("common", "chfl", "hyfem", "hyfem-last"):
        method, _, last = way.partition("-")
        settings = {"choose": "last"} if last else {}
        parties = []
        for name, frame in clinics.items():
            own = [each for each in HEALTH if each in frame]
            blocks = {"common": common, **{each: [each] for each in own}}
            more: dict[str, Any] = {"blocks": blocks} if method == "hyfem" else {}
            parties.append(dt.Party(name, frame, id="row", label=LABEL, task="counts", **more))
        run = dt.fit(dt.Method(method, **settings), parties, test=None, seeds=[seed], quiet=True)
        scores[way] = [run.models[name].score(tested)[SCORE] for name in clinics]
    local(table.iloc[known], "pooled")
    return {way: statistics.fmean(each) for way, each in scores.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    table, lines = visits(given.wheel), []
    for seed in range(given.seeds):
        started = time.perf_counter()
        lines.append(run_of(table, seed))
        print(lines[-1], round(time.perf_counter() - started, 1), flush=True)
    rows = [
        {
            "what": title,
            "deviance": round(statistics.fmean(line[way] for line in lines), 3),
            "lowest seed": round(min(line[way] for line in lines), 3),
            "highest seed": round(max(line[way] for line in lines), 3),
        }
        for way, title in WAYS.items()
    ]
    _results.write("visits_of_clinics", "Poisson deviance of visits that three clinics have", rows)


if __name__ == "__main__":
    main()
