"""Made-up patients as an OMOP CDM: PERSON, VISIT_OCCURRENCE, CONDITION_OCCURRENCE, MEASUREMENT and
DRUG_EXPOSURE as Parquet, with the columns that hospital.toml reads.

    python examples/omop/make_cdm.py north --patients 2000 --seed 1
    python examples/omop/make_cdm.py south --patients 2000 --seed 2 --first 5001

Who has more of a long-term blood sugar (HbA1c) above 7 % and more admissions in the year before the
first diagnosis of diabetes comes back to hospital more often in the half year after it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from dovetail.data import write_table

#: Concepts of OMOP's vocabularies.
DIABETES, HBA1C, METFORMIN, INPATIENT = 201826, 3004410, 1503297, 9201


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--patients", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=1, help="person_id of the first patient")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name, columns in tables(asked.patients, np.random.default_rng(asked.seed)).items():
        columns["person_id"] = columns["person_id"] + asked.first - 1
        write_table(asked.folder / f"{name}.parquet", columns)


def tables(num: int, rng: np.random.Generator) -> dict[str, dict[str, np.ndarray]]:
    """Table -> its columns; a seventh of the patients has no diagnosis of diabetes."""
    person = np.arange(1, num + 1)
    sick = person % 7 != 0
    diagnosed = np.datetime64("2022-01-01") + rng.integers(0, 600, num)
    sugar = rng.normal(6.8, 1.2, num).clip(4)
    admitted = rng.poisson(np.where(sugar > 7, 1.5, 0.5))
    risk = 1 / (1 + np.exp(-(1.2 * (sugar - 7) + 0.8 * (admitted - 1))))
    returns = rng.random(num) < risk

    before = np.repeat(person, admitted)
    visits = diagnosed[before - 1] - rng.integers(1, 700, len(before))  # some out of the window
    after = person[returns]
    back = diagnosed[returns] + rng.integers(1, 180, len(after))
    measured = np.repeat(person, 3)
    drugs = np.repeat(person, rng.poisson(1.0, num))
    return {
        "person": {
            "person_id": person,
            "gender_concept_id": np.where(rng.random(num) < 0.5, 8507, 8532),
            "year_of_birth": rng.integers(1935, 1995, num),
        },
        "condition_occurrence": {
            "person_id": person[sick],
            "condition_concept_id": np.full(sick.sum(), DIABETES),
            "condition_start_date": diagnosed[sick],
        },
        "visit_occurrence": {
            "person_id": np.concatenate([before, after]),
            "visit_concept_id": np.full(len(before) + len(after), INPATIENT),
            "visit_start_date": np.concatenate([visits, back]),
        },
        "measurement": {
            "person_id": measured,
            "measurement_concept_id": np.full(len(measured), HBA1C),
            "measurement_date": diagnosed[measured - 1] + rng.integers(-500, 200, len(measured)),
            "value_as_number": sugar[measured - 1] + rng.normal(0, 0.3, len(measured)),
        },
        "drug_exposure": {
            "person_id": drugs,
            "drug_concept_id": np.full(len(drugs), METFORMIN),
            "drug_exposure_start_date": diagnosed[drugs - 1] + rng.integers(-300, 300, len(drugs)),
        },
    }


if __name__ == "__main__":
    main()
