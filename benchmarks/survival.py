"""Time to an event on scikit-survival's own sets, columns split as clinics would have them.

    python -m benchmarks.survival [--only gbsg2,...] [--fresh]

A quarter of the rows tests, drawn by the number of the split, with as many events. Of so many of
the others (``labels``) the clinic knows how they went on; the other party has its columns of all.
Beside Dovetail stand scikit-survival's Coxnet (penalty by cross-validation), random survival forest
and gradient boosting, of which the one with the best cross-validated C on labelled rows is taken:
on the clinic's own columns, and on all columns in one place. ``pooled`` is Dovetail's best local
model on all columns. Nothing is chosen on test rows. Finished splits are kept in
results/survival.jsonl; the table of results/bench/survival.md is made of these.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks import _results

SPLITS = 5
RESULTS = _results.FOLDER / "survival.jsonl"
TIME, EVENT = "days", "died"
#: Of each method the settings that keep a joint model.
METHODS: dict[str, dict[str, Any]] = {"s": {}, "d": {"distil": {"exchange": "gradients"}}}
#: What a line has, and what a table calls it.
COLUMNS = {
    "own": "scikit-survival's best, own columns",
    "alone": "best local",
    "s": "solo, APFed-S",
    "d": "solo, APFed-D",
    "joint_s": "joint, S",
    "joint_d": "joint, D",
    "pooled": "pooled",
    "all": "scikit-survival's best, all columns",
}


@dataclass(frozen=True)
class Case:
    """A set and its split.

    Attributes:
        title: who has which columns.
        clinic: columns of the party that knows how it went on.
        left_out: columns that nobody has.
        labels: training rows of which the clinic knows how they went on; None: all.
    """

    title: str
    clinic: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    labels: int | None = None


CASES = {
    "gbsg2": Case(
        "breast cancer: oncology has age, menopause, therapy and tumour size; pathology has grade, "
        "nodes and receptors",
        ("age", "menostat", "horTh", "tsize"),
        labels=200,
    ),
    "whas500": Case(
        "heart attack: the ward has age, sex, body mass and vital signs; cardiology has rhythm, "
        "infarct, shock, history and stay",
        ("age", "gender", "bmi", "hr", "sysbp", "diasbp"),
        labels=150,
    ),
    "flchain": Case(
        "free light chains: the practice has age, sex and year; the laboratory the chains, "
        "creatinine and MGUS (the cause of death is left out)",
        ("age", "sex", "sample.yr"),
        ("chapter",),
        labels=300,
    ),
    "veterans": Case(
        "lung cancer: the ward has Karnofsky's score, treatment and earlier therapy; the registry "
        "has age, cell type and months since diagnosis",
        ("Karnofsky_score", "Treatment", "Prior_therapy"),
    ),
}


def read(name: str) -> pd.DataFrame:
    """A set with its label as ``TIME`` and ``EVENT``."""
    from sksurv import datasets

    load = {"veterans": "load_veterans_lung_cancer"}.get(name, f"load_{name}")
    x, y = getattr(datasets, load)()
    frame = x.drop(columns=list(CASES[name].left_out))
    for column in frame:
        if frame[column].dtype.kind not in "iuf":
            words = frame[column].astype(str)
            frame[column] = words.where(frame[column].notna(), None)
    event, when = y.dtype.names
    return frame.assign(**{TIME: y[when].astype(float), EVENT: y[event].astype(float)})


def split(name: str, number: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """The set, its rows with a label that train, and those that test."""
    from sklearn.model_selection import train_test_split

    frame = read(name)
    train, test = train_test_split(
        np.arange(len(frame)), test_size=0.25, random_state=number, stratify=frame[EVENT]
    )
    return frame, train[: CASES[name].labels], test


def beside(frame: pd.DataFrame, columns: list[str], known: np.ndarray, test: np.ndarray) -> Any:
    """C on test rows, and the name, of the estimator that cross-validation takes."""
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from sksurv.ensemble import GradientBoostingSurvivalAnalysis, RandomSurvivalForest
    from sksurv.linear_model import CoxnetSurvivalAnalysis
    from sksurv.util import Surv

    def encoded(model: Any) -> Any:
        columns = make_column_transformer(
            (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()),
             make_column_selector(dtype_include="number")),
            (OneHotEncoder(handle_unknown="ignore", drop="first", sparse_output=False),
             make_column_selector(dtype_exclude="number")),
        )  # fmt: skip
        return make_pipeline(columns, model)

    x = frame[columns].fillna(np.nan)
    y = Surv.from_arrays(frame[EVENT] == 1, np.maximum(frame[TIME], 0.5))
    folds = list(
        StratifiedKFold(4, shuffle=True, random_state=0).split(x.iloc[known], y["event"][known])
    )
    coxnet = encoded(CoxnetSurvivalAnalysis(l1_ratio=0.5))
    penalties = [[each] for each in np.logspace(-3, 0, 10)]
    models = {
        "Coxnet": GridSearchCV(coxnet, {"coxnetsurvivalanalysis__alphas": penalties}, cv=3),
        "forest": encoded(RandomSurvivalForest(50, min_samples_leaf=10, random_state=0)),
        "boosting": encoded(
            GradientBoostingSurvivalAnalysis(
                n_estimators=100, max_depth=2, subsample=0.5, random_state=0
            )
        ),
    }
    found = {
        each: float(np.nanmean(cross_val_score(model, x.iloc[known], y[known], cv=folds)))
        for each, model in models.items()
    }
    best = max(found, key=lambda each: found[each])
    return float(models[best].fit(x.iloc[known], y[known]).score(x.iloc[test], y[test])), best


def cell(name: str, number: int) -> dict[str, Any]:
    """One split of a set."""
    import dovetail as dt

    frame, known, test = split(name, number)
    case = CASES[name]
    features = [column for column in frame if column not in (TIME, EVENT)]
    clinic = [column for column in features if column in case.clinic]
    line: dict[str, Any] = {"set": name, "split": number, "rows": len(frame), "labels": len(known)}
    started = time.perf_counter()
    line["own"], line["own_model"] = beside(frame, clinic, known, test)
    line["all"], line["all_model"] = beside(frame, features, known, test)
    line["beside_seconds"] = time.perf_counter() - started
    dealt = frame.assign(part="train")
    dealt.loc[test, "part"] = "test"
    unknown = np.setdiff1d(np.arange(len(frame)), [*known, *test])
    dealt.loc[unknown, [TIME, EVENT]] = np.nan
    others = [column for column in features if column not in clinic]
    line["pooled"] = pooled(frame, features, known, test, number)
    data = dt.simulate(
        dealt,
        dt.Columns({"clinic": clinic, "other": others}, active="clinic"),
        label={"time": TIME, "event": EVENT},
        split_column="part",
    )
    for key, settings in METHODS.items():
        started = time.perf_counter()
        run = dt.fit(dt.Method(f"apfed-{key}", **settings), data, seeds=[number], quiet=True)
        scores = scores_of(run)
        line[key] = scores[f"apfed-{key}"]["c_index"]
        line["alone"] = scores["best-alone"]["c_index"]
        line[f"joint_{key}"] = scores["joint"]["c_index"]
        line[f"brier_{key}"] = scores[f"apfed-{key}"]["brier_integrated"]
        line["brier_alone"] = scores["best-alone"]["brier_integrated"]
        line[f"{key}_choice"] = run.result["distilled"]["choice"]
        line[f"{key}_seconds"] = time.perf_counter() - started
    return line


def pooled(
    frame: pd.DataFrame, columns: list[str], known: np.ndarray, test: np.ndarray, seed: int
) -> float:
    """C on test rows of the best local model of all columns in one place."""
    from dovetail.data import TableEncoder
    from dovetail.data.frames import table_from_frame
    from dovetail.data.survival import fit_survival
    from dovetail.models import survival
    from dovetail.models.learners import LEARNERS, Rows, best_of, fit_all, make_folds
    from dovetail.models.losses import loss_of, targets_of

    rows = table_from_frame(frame[columns])
    encoder = TableEncoder.fit(rows.take(known), columns, party="pooled")
    x_NF = encoder.transform(rows, allow_unseen=True)
    times = np.maximum(frame[TIME].to_numpy(), 0.5)
    labels = torch.from_numpy(np.where(frame[EVENT] == 1, times, -times).astype(np.float32))
    task = fit_survival(labels[known].numpy(), label="pooled")
    folds = make_folds(labels[known], 4, seed=seed, regression=True)
    learnt = Rows(x_NF[known], targets_of(task, labels[known]), folds, loss=loss_of(task))
    best = best_of(fit_all(list(LEARNERS.values()), learnt, seed=seed), learnt)
    return survival.score(task, best.outputs(x_NF[test]), labels[test])["c_index"]


def scores_of(run: Any) -> dict[str, dict[str, float]]:
    """Variant or baseline -> its scores."""
    result = run.result
    return {result["method"]: result["parties"]["clinic"], **result["baselines"]}


def table(lines: list[dict[str, Any]]) -> str:
    """Mean and spread over splits; the command under it made them."""
    rows = []
    for name in CASES:
        own = [line for line in lines if line["set"] == name]
        if not own:
            continue
        cells = {"set": f"{name}, {own[0]['labels']} of {own[0]['rows']}"}
        for key, title in COLUMNS.items():
            values = [line[key] for line in own]
            cells[title] = f"{statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f}"
        rows.append(cells)
    return _results.markdown(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="sets, by comma")
    parser.add_argument("--fresh", action="store_true", help="measure anew")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    names = arguments.only.split(",") if arguments.only else list(CASES)
    lines = []
    if RESULTS.is_file() and not arguments.fresh:
        lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    done = {(line["set"], line["split"]) for line in lines}
    for number in range(SPLITS):
        for name in names:
            if (name, number) in done:
                continue
            line = {**_results.machine(), **cell(name, number)}
            print(json.dumps(line), flush=True)
            lines.append(line)
            RESULTS.write_text("".join(json.dumps(each) + "\n" for each in lines))
    page = _results.FOLDER / "bench" / "survival.md"
    if all(sum(line["set"] == name for line in lines) == SPLITS for name in CASES):
        _results.insert(page, "sets", table(lines))
    print(table(lines))


if __name__ == "__main__":
    main()
