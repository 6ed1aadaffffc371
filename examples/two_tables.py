"""Two CSV files of two parties who know different things about partly the same patients.

    python examples/two_tables.py

Deals scikit-learn's breast cancer set (569 real patients, built in) out: a clinic sees how cells
look and knows the diagnosis of 120 of its patients, a laboratory measures how large they are and
which shape they have. Each has patients whom the other has not, and rows in an order of its own.
Writes clinic.csv, lab.csv, and new-patients.csv: patients who come to the clinic later, whom the
laboratory does not know.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

NUM_NEW = 100
NUM_DIAGNOSED = 120
SHARE_CLINIC, SHARE_LAB = 0.85, 0.95

#: What the clinic sees; all else is the laboratory's.
LOOKS = ("texture", "smoothness", "symmetry", "fractal dimension")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(), help="folder [this one]")
    parser.add_argument("--seed", type=int, default=1, help="who is where [1]")
    given = parser.parse_args()

    patients = load_breast_cancer()
    names = [str(name) for name in patients.feature_names]
    rng = np.random.default_rng(given.seed)
    numbers = [f"P-{number:05d}" for number in rng.choice(10**5, len(patients.data), replace=False)]
    shuffled = rng.permutation(len(patients.data))
    new, known = shuffled[:NUM_NEW], shuffled[NUM_NEW:]

    def write(name: str, rows: Sequence[int], columns: Sequence[int], *, diagnosed: int) -> None:
        header = ["patient", *(names[c] for c in columns), *(["diagnosis"] if diagnosed else [])]
        given.out.mkdir(parents=True, exist_ok=True)
        with (given.out / name).open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(header)
            for index, row in enumerate(rows):
                known = patients.target_names[patients.target[row]] if index < diagnosed else ""
                diagnosis = [known] if diagnosed else []
                table.writerow(
                    [numbers[row], *(patients.data[row, c] for c in columns), *diagnosis]
                )
        print(f"{given.out / name}: {len(rows)} patients, {', '.join(header[1:4])}, ...")

    looks = [names.index(f"mean {what}") for what in LOOKS]
    sizes = [index for index, name in enumerate(names) if not name.endswith(LOOKS)]
    at_clinic = rng.permutation(known)[: int(SHARE_CLINIC * len(known))]
    at_lab = rng.permutation(known)[: int(SHARE_LAB * len(known))]
    write("clinic.csv", at_clinic, looks, diagnosed=NUM_DIAGNOSED)
    write("lab.csv", at_lab, sizes, diagnosed=0)
    write("new-patients.csv", new, looks, diagnosed=0)


if __name__ == "__main__":
    main()
