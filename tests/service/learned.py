"""Small models of real learners on a small table with every kind of column."""

import numpy as np
import pandas as pd

from dovetail import data as dd
from dovetail.models import Model
from dovetail.models.learners.choice import best_of, fit_all, mean_of
from dovetail.models.learners.rows import Rows, first_fold_only, hard_targets, make_folds
from dovetail.models.losses import loss_of
from dovetail.models.raw import table_of


def clinic_table(num_rows: int, *, seed: int = 0) -> pd.DataFrame:
    """Numbers with gaps, categories with gaps, booleans, dates, and a label that follows them."""
    rng = np.random.default_rng(seed)
    age = rng.normal(50, 15, num_rows).round(1)
    job = rng.choice(["clerk", "cook", "nurse", "pilot"], num_rows)
    smoker = rng.random(num_rows) < 0.3
    admitted = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 700, num_rows), "D")
    risk = (age - 50) / 15 + 1.5 * smoker + (job == "pilot") + rng.normal(0, 0.5, num_rows)
    table = pd.DataFrame({"age": age, "job": job, "smoker": smoker, "admitted": admitted})
    table["ill"] = np.where(risk > 0.7, "yes", "no")
    table["cost"] = (1000 + 400 * risk).round(2)
    table.loc[rng.random(num_rows) < 0.1, "age"] = np.nan
    table.loc[rng.random(num_rows) < 0.1, "job"] = None
    return table


def fitted_model(table, learners, *, label="ill", regression=False, seed=0, weights=None) -> Model:
    """What these learners make of a table: one, or the mean of several."""
    if regression and label == "ill":
        label = "cost"
    read = table_of(table)
    labels = read.column(label)
    task = dd.fit_task(
        labels.values,
        labels.missing,
        kind="regression" if regression else "classification",
        label=label,
    )
    names = [name for name in read.names if name not in ("ill", "cost", label)]
    encoder = dd.TableEncoder.fit(read, names, party="clinic")
    y_N = dd.encode_labels(task, labels.values, labels.missing, label=label)
    targets_NC = hard_targets(y_N, task.num_outputs, regression=regression)
    folds_N = first_fold_only(make_folds(y_N, 3, seed=seed, regression=regression))
    rows = Rows(encoder.transform(read), targets_NC, folds_N, loss=loss_of(task))
    fitted = fit_all(learners, rows, seed=seed)
    chosen = (
        mean_of([*fitted.values()], rows, weights=weights)
        if len(fitted) > 1
        else best_of(fitted, rows)
    )
    return Model(
        "clinic",
        task,
        chosen.network.eval(),
        chosen.spec,
        {"columns": (encoder.num_features,)},
        {"columns": encoder},
        {"label": label, "learner": chosen.learner},
    )
