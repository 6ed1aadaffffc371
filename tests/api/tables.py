"""DataFrames of patients: two of the same, one with a label; and one with times to an event."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import dovetail as dt

#: So small that a run takes a second.
SMALL: dict[str, Any] = {"epochs": 2, "encoder": (8,), "head": (8,), "steps_per_epoch": 4}


def clinic_and_lab(num_rows: int = 120) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The clinic's table, and the lab's, of three quarters of its patients in another order."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(num_rows, 2))
    clinic = pd.DataFrame(
        {
            "patient": [f"p{row}" for row in range(num_rows)],
            "age": rng.integers(20, 90, num_rows),
            "pressure": hidden[:, 0] + rng.normal(size=num_rows),
            "ward": pd.Categorical(rng.choice(["north", "south"], num_rows)),
            "seen": pd.Timestamp("2024-01-01")
            + pd.to_timedelta(rng.integers(0, 90, num_rows), "D"),
            "ill": np.where(hidden.sum(axis=1) > 0, "yes", "no"),
        }
    )
    clinic.loc[::9, "pressure"] = np.nan
    lab = pd.DataFrame(
        {
            "patient": clinic["patient"],
            "marker": hidden[:, 1] + rng.normal(size=num_rows) / 4,
            "tube": rng.integers(0, 5, num_rows),
        }
    ).sample(frac=0.75, random_state=1)
    return clinic, lab


def parties(clinic: Any, lab: Any) -> list[dt.Party]:
    """Both as parties."""
    return [
        dt.Party("clinic", clinic, id="patient", label="ill"),
        dt.Party("lab", lab, id="patient", apfed={"encoder": (8,)}),
    ]


def people(rows: int, seed: int = 0) -> pd.DataFrame:
    """Patients with a time to an event, of which age, blood and heart say something."""
    rng = np.random.default_rng(seed)
    age, blood, heart = rng.normal(size=(3, rows))
    days = np.exp(5 - age - 0.5 * blood - 0.5 * heart) * rng.exponential(size=rows)
    end = rng.uniform(50, 600, size=rows)
    return pd.DataFrame(
        {
            "patient": np.arange(rows), "age": age, "blood": blood, "heart": heart,
            "days": np.minimum(days, end).round(2) + 0.01, "died": (days <= end).astype(int),
        }
    )  # fmt: skip
