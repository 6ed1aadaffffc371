"""A newcomer's ten tables, five random splits of their columns each, beside models anyone writes.

    pip download --no-deps causaldata statsmodels    # unpacked into TABLES, for four of the tables
    python -m benchmarks.newcomer [--tables TABLES] [--only wine-1,...] [--fresh]

One party has some columns and few labels, a helper the other columns for most of the same samples.
Dovetail trains its default, APFed-S. Beside it stand LightGBM (60 trees of 7 leaves) and
logistic or ridge regression (imputed, scaled, one-hot, penalty by cross-validation) on the party's
own columns, and the best local model that Dovetail itself chooses. All learn from all of the
party's labels and are scored on the same rows, which nobody trained on; intervals are of 400
bootstrap resamples of these. A cell is a process of its own. Finished cells are kept in
results/newcomer.jsonl, so that a run that was stopped goes on.

nhefs (causaldata) asks who died by 1992 of what was known in 1971; fair (statsmodels) who had an
affair; anes96 (statsmodels) who voted for Dole; lymph is UCI's lymphography, its two classes of
more than four rows. These are read from the folder ``--tables``; credit, marketing and jannis,
which stands in for the newcomer's vehicles, from ``DOVETAIL_DATA``. A table that is absent is named
and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks import _results

RESAMPLES = 400


@dataclass(frozen=True)
class Case:
    """A table and how it is split.

    Attributes:
        rows: of both parties, before the helper lacks some.
        labels: rows whose label the owner knows.
        test: rows that nobody trains on, at most.
        known: share of the owner's samples that the helper knows.
        name_part: what the names of the owner's columns have in common; None: half of them, drawn.
        regression: whether the label is a number.
    """

    rows: int
    labels: int
    test: int
    known: float = 0.9
    name_part: str | None = None
    regression: bool = False


CASES = {
    "credit": Case(6000, 1200, 20_000, 0.8),
    "marketing": Case(4000, 1000, 10_000, 0.8),
    "jannis": Case(600, 200, 10_000, 0.8),
    "wine": Case(124, 48, 54),
    "breast": Case(398, 100, 171, name_part="error"),
    "diabetes": Case(309, 120, 133, regression=True),
    "nhefs": Case(1000, 250, 629),
    "fair": Case(3000, 400, 3366),
    "anes96": Case(560, 150, 384),
    "lymph": Case(92, 40, 50),
}
DRAWS = (1, 2, 3, 4, 5)
FILES = {
    "credit": ("default_credit", "default.payment.next.month", ["ID"]),
    "marketing": ("bank_marketing", "y", []),
    "jannis": ("jannis", "class", ["split"]),
}


#: Of nhefs: ids, what is known only later, and what says who died.
LATER = ["seqn", "id", "yrdth", "modth", "dadth", "censored", "older"]
LATER += ["wt82", "wt82_71", "smkintensity82_71", "hightax82"]
LATER += ["price82", "tax82", "price71_82", "tax71_82"]


def _nhefs(path: Path) -> pd.DataFrame:
    frame = pd.read_stata(path, convert_categoricals=False).drop(columns=LATER)
    return frame.rename(columns={"death": "y"})


def _fair(path: Path) -> pd.DataFrame:
    frame = pd.read_csv(path)
    return frame.assign(y=frame.pop("affairs") > 0)


def _anes96(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, sep="\t", quotechar="'").rename(columns={"vote": "y"})


def _lymph(path: Path) -> pd.DataFrame:
    frame = pd.read_csv(path)
    if "class" not in frame:  # UCI's own file has no header; its first column is the class
        frame = pd.read_csv(path, header=None).rename(columns={0: "class"}).rename(columns=str)
    coded = (
        frame.drop(columns="class").astype("category").apply(lambda one: "code " + one.astype(str))
    )
    return coded.assign(y=frame["class"])[frame["class"].isin([2, 3])]


#: Table -> its file below ``--tables``, and how that is read.
PACKAGED: dict[str, tuple[str, Callable[[Path], pd.DataFrame]]] = {
    "nhefs": ("nhefs.dta", _nhefs),
    "fair": ("fair.csv", _fair),
    "anes96": ("anes96.csv", _anes96),
    "lymph": ("lymphography.data", _lymph),
}


def path_of(name: str, tables: Path | None) -> Path | None:
    """The file of a table that scikit-learn does not bring; None if it is absent."""
    if name in PACKAGED:
        return next(tables.rglob(PACKAGED[name][0]), None) if tables is not None else None
    path = Path(os.environ.get("DOVETAIL_DATA", "")) / f"{FILES[name][0]}.parquet"
    return path if path.is_file() else None


def absent(name: str, tables: Path | None) -> bool:
    """Whether a table is neither given nor of scikit-learn."""
    return name in PACKAGED | FILES and path_of(name, tables) is None


def frame_of(name: str, tables: Path | None = None) -> pd.DataFrame:
    """All rows, with the label as ``y`` and a number for each sample as ``id``."""
    path = path_of(name, tables) if name in PACKAGED | FILES else None
    if name in PACKAGED:
        assert path is not None
        frame = PACKAGED[name][1](path)
    elif name in FILES:
        _, label, dropped = FILES[name]
        frame = pd.read_parquet(path).drop(columns=dropped)
        frame = frame.rename(columns={label: "y"})
    else:
        from sklearn import datasets

        loader = {"breast": "breast_cancer"}.get(name, name)
        frame = getattr(datasets, f"load_{loader}")(as_frame=True).frame
        frame = frame.rename(columns={"target": "y"})
    frame = frame.reset_index(drop=True)
    frame["id"] = np.arange(len(frame))
    if not CASES[name].regression:
        frame["y"] = "class " + frame["y"].astype(str)
    return frame


def split(
    name: str, deal: int, tables: Path | None = None
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, list[str]]:
    """The owner's table, the helper's, the test rows with all columns, and the owner's columns."""
    case, frame = CASES[name], frame_of(name, tables)
    rng = np.random.default_rng([deal, *name.encode()])
    features = [column for column in frame if column not in ("id", "y")]
    if case.name_part is not None:
        columns = [column for column in features if case.name_part in column]
    else:
        columns = sorted(rng.choice(features, len(features) // 2, replace=False).tolist())
    order = rng.permutation(len(frame))
    train, test = frame.iloc[order[: case.rows]], frame.iloc[order[case.rows :][: case.test]]
    owner = train[["id", *columns, "y"]].copy()
    unlabelled = owner.index[case.labels :]
    owner.loc[unlabelled, "y"] = None if not case.regression else np.nan
    helper = train[["id", *(column for column in features if column not in columns)]]
    helper = helper.sample(frac=case.known, random_state=deal)
    return owner, helper, test, columns


def by_anyone(
    kind: str, train: pd.DataFrame, test: pd.DataFrame, columns: list[str], *, regression: bool
) -> np.ndarray:
    """(N, C) probabilities, or (N,) values, of the model that anyone would write."""
    import lightgbm
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegressionCV, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    x, y, new = train[columns].copy(), train["y"], test[columns].copy()
    if kind == "lightgbm":
        for column in x.select_dtypes(exclude="number"):
            x[column] = x[column].astype("category")
            new[column] = pd.Categorical(new[column], categories=x[column].cat.categories)
        model = lightgbm.LGBMRegressor if regression else lightgbm.LGBMClassifier
        fitted = model(n_estimators=60, num_leaves=7, learning_rate=0.05, n_jobs=1, verbose=-1)
        fitted.fit(x, y)
    else:
        encoded = make_column_transformer(
            (
                make_pipeline(SimpleImputer(), StandardScaler()),
                make_column_selector(dtype_include="number"),
            ),
            (
                OneHotEncoder(handle_unknown="ignore"),
                make_column_selector(dtype_exclude="number"),
            ),
        )
        linear = (
            RidgeCV(np.logspace(-3, 3, 13)) if regression else LogisticRegressionCV(max_iter=2000)
        )
        fitted = make_pipeline(encoded, linear).fit(x, y)
    return np.asarray(fitted.predict(new) if regression else fitted.predict_proba(new))


def measure(predictions: np.ndarray, truth: np.ndarray) -> float:
    """AUC of two classes, mean one-against-rest AUC of more, R² of numbers."""
    from sklearn.metrics import r2_score, roc_auc_score

    if predictions.ndim == 1:
        return float(r2_score(truth, predictions))
    if len(np.unique(truth)) < predictions.shape[1]:
        return float("nan")
    if predictions.shape[1] == 2:
        return float(roc_auc_score(truth, predictions[:, 1]))
    return float(
        roc_auc_score(
            truth, predictions / predictions.sum(axis=1, keepdims=True), multi_class="ovr"
        )
    )


def cell(name: str, deal: int, tables: Path | None = None) -> dict[str, Any]:
    """Train and score one split."""
    import dovetail as dt
    from dovetail.api.reading import gather
    from dovetail.data import Classification

    case = CASES[name]
    owner, helper, test, columns = split(name, deal, tables)
    classes = sorted(owner["y"].dropna().unique()) if not case.regression else []
    truth = test["y"].to_numpy()
    if classes:
        truth = np.array([classes.index(value) for value in truth])
    parties = [
        dt.Party(
            "own",
            owner,
            id="id",
            label="y",
            task="regression" if case.regression else "classification",
        ),
        dt.Party("helper", helper, id="id"),
    ]
    expected = dt.inspect(parties).expected
    labelled = owner.dropna(subset="y")
    predictions = {
        kind: by_anyone(kind, labelled, test, columns, regression=case.regression)
        for kind in ("lightgbm", "linear")
    }

    def predicted(model: Any, x: Any) -> np.ndarray:
        outputs = model.outputs(x)
        if isinstance(model.task, Classification):
            return np.asarray(outputs.double().softmax(dim=1).numpy())
        return np.asarray(outputs[:, 0].double().numpy() * model.task.scale + model.task.mean)

    started = time.perf_counter()
    method = dt.APFed()
    run = dt.fit(method, parties, test=None, quiet=True)
    seconds = time.perf_counter() - started
    local = dt.fit("best-alone", parties, test=None, quiet=True).models["own"]
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "test.parquet"
        test.drop(columns="y").to_parquet(rows, index=False)
        for what, model in (("solo", run.models["own"]), ("local", local)):
            x = model.predictions(rows, allow_unseen=True)
            predictions[what] = (
                x.values if case.regression else np.asarray(x.probabilities, np.float64)
            )
        given = gather(run.folder / "models" / "joint", rows, allow_unseen=True)
        predictions["joint"] = predicted(given.model, given.x)
    rng = np.random.default_rng(0)
    draws = [rng.integers(0, len(truth), len(truth)) for _ in range(RESAMPLES)]
    drawn = {
        what: np.array([measure(each[rows], truth[rows]) for rows in draws])
        for what, each in predictions.items()
    }
    scores = {what: measure(each, truth) for what, each in predictions.items()}
    better = max(("lightgbm", "linear"), key=lambda what: scores[what])

    def between(values: np.ndarray) -> list[float]:
        return [float(each) for each in np.nanquantile(values, [0.025, 0.975])]

    help_ = scores["joint"] - scores["local"]
    share, share_interval = None, None
    if between(drawn["joint"] - drawn["local"])[0] > 0:
        share = (scores["solo"] - scores["local"]) / help_
        gain = drawn["solo"] - drawn["local"]
        share_interval = between(gain / (drawn["joint"] - drawn["local"]))
    sent = sum(each["sent"] for each in run.result["bytes"].values())
    return {
        "cell": f"{name}-{deal}",
        "score": "r2" if case.regression else "auc",
        "labels": len(labelled),
        # Of the rarest class: what a score of few rows hangs on.
        "positives": int(labelled["y"].value_counts().min()) if classes else None,
        "test rows": len(test),
        "test positives": int(test["y"].value_counts().min()) if classes else None,
        **scores,
        "solo less better": scores["solo"] - scores[better],
        "interval": between(drawn["solo"] - drawn[better]),
        "joint less local interval": between(drawn["joint"] - drawn["local"]),
        "solo less local interval": between(drawn["solo"] - drawn["local"]),
        "share kept": share,
        "share interval": share_interval,
        "gate kept local": not run.result["distilled"]["pays"],
        "expected": None if expected is None else vars(expected),
        "seconds": seconds,
        "MB": sent / 1e6,
        "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "load": os.getloadavg()[0],
    }


def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the Markdown table has of each cell."""

    def interval(values: list[float] | None, digits: int = 3) -> str:
        return "" if values is None else f"{values[0]:.{digits}f} to {values[1]:.{digits}f}"

    def counts(rows: int, positives: int | None) -> str:
        return str(rows) if positives is None else f"{rows}, {positives}"

    return [
        {
            "cell": row["cell"],
            "score": row["score"],
            "labels, of the rarest class": counts(row["labels"], row["positives"]),
            "test rows": counts(row["test rows"], row["test positives"]),
            "LR": row["linear"],
            "LightGBM": row["lightgbm"],
            "best local": row["local"],
            "solo": row["solo"],
            "joint": row["joint"],
            "solo less the better of LR and LightGBM": f"{row['solo less better']:+.3f}",
            "95 % interval": interval(row["interval"]),
            "below by more than its interval": "yes" if row["interval"][1] < 0 else "no",
            "share of the gain kept": "not estimable"
            if row["share kept"] is None
            else f"{row['share kept']:.0%} ({interval(row['share interval'], 2)})",
            "kept its local model": "yes" if row["gate kept local"] else "no",
            "seconds": f"{row['seconds']:.0f}",
            "MB": f"{row['MB']:.0f}",
            "peak MiB": f"{row['peak MiB']:.0f}",
        }
        for row in rows
    ]


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each table, and one for all: means over draws, in points of AUC or R²."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["cell"].rpartition("-")[0], []).append(row)
    groups["all"] = rows
    lines = []
    for table, group in groups.items():
        local, better, joint = (
            100 * np.array(each)
            for each in (
                [row["solo"] - row["local"] for row in group],
                [row["solo less better"] for row in group],
                [row["joint"] - row["local"] for row in group],
            )
        )
        below = sum(row["interval"][1] < 0 for row in group)
        lines.append(
            {
                "table": table,
                "draws": len(group),
                **{
                    title: f"{np.mean([row[what] for row in group]):.3f}"
                    for title, what in (("LR", "linear"), ("LightGBM", "lightgbm"))
                },
                **{
                    what: f"{np.mean([row[what] for row in group]):.3f}"
                    for what in ("local", "solo", "joint")
                },
                "solo less local, points": f"{local.mean():+.1f} ({local.min():+.1f} to "
                f"{local.max():+.1f})",
                "solo less the better of LR and LightGBM": f"{better.mean():+.1f} "
                f"({better.min():+.1f} to {better.max():+.1f})",
                "joint less local": f"{joint.mean():+.1f}",
                "above the better": f"{sum(better > 0)} of {len(group)}",
                "below by more than the interval": below,
            }
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=Path, help="the folder of nhefs.dta, fair.csv, ...")
    parser.add_argument("--only", help="cells, such as wine-1,breast-2")
    parser.add_argument("--fresh", action="store_true", help="train finished cells again")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell is not None:
        warnings.filterwarnings("ignore")
        name, _, deal = given.cell.rpartition("-")
        torch.manual_seed(0)
        print(json.dumps(cell(name, int(deal), given.tables)))
        return
    path = _results.FOLDER / "newcomer.jsonl"
    done: dict[str, dict[str, Any]] = {}
    if path.exists() and not given.fresh:
        done = {row["cell"]: row for row in map(json.loads, path.read_text().splitlines())}
    gone = [name for name in CASES if absent(name, given.tables)]
    if gone:
        print(f"left out, not at hand: {', '.join(gone)} (--help says where they come from)")
    wanted = [f"{name}-{deal}" for deal in DRAWS for name in CASES]
    for key in wanted if given.only is None else given.only.split(","):
        if key in done or key.rpartition("-")[0] in gone:
            continue
        command = [sys.executable, "-m", "benchmarks.newcomer", "--cell", key]
        command += ["--tables", str(given.tables)] if given.tables else []
        finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        done[key] = {**_results.machine(), **json.loads(finished.stdout.splitlines()[-1])}
        lines = (json.dumps(done[each]) + "\n" for each in wanted if each in done)
        path.write_text("".join(lines))
        print(key, f"solo {done[key]['solo']:.3f}, joint {done[key]['joint']:.3f}", flush=True)
    rows = [done[f"{name}-{deal}"] for name in CASES for deal in DRAWS if f"{name}-{deal}" in done]
    about = ", ".join(f"{key} {value}" for key, value in _results.machine().items())
    page = f"# A newcomer's tables\n\n`python -m benchmarks.newcomer`; {about}.\n\n"
    text = page + _results.markdown(summary(rows)) + "\n" + _results.markdown(shown(rows))
    (_results.FOLDER / "newcomer.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
