"""Do the defaults learn: each method on five tables, nothing set but what is required.

    python -m benchmarks.defaults [--methods chfl] [--tables adult] [--set chfl.rounds=20] [--table]
    python -m benchmarks.defaults --draw 11 [--methods fedoptimus] [--set fedoptimus.members=1]

One line a method and table goes to ``results/defaults.jsonl``; what stands there is not run again.
AUC in % of two classes, accuracy in % of more, on test rows, mean of the parties that predict;
beside it the best learner (``dovetail.models.learners.Best``) of the same columns and rows in one
place: for FedOptimus all columns and labels, for the others each party's own; and the commonest
class. Large tables give 3,000 rows to train on, and test on 3,000.

With ``--draw`` no test row is read: 3,000 training rows are drawn anew to train on, and up to 4,000
of the others judge (of small tables three quarters, and the fourth). What defaults were chosen by
is in ``results/defaults_choice.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail import data as dd
from dovetail.data import Regression
from dovetail.files import merge
from dovetail.files import override as parsed
from dovetail.methods.base import Loaded
from dovetail.models.learners import Best, Rows, hard_targets, make_folds
from dovetail.runs.one_seed import run as run_variants
from dovetail.runs.runfile import DataSection, check_run
from dovetail.runs.setup import Given, load_data, read_pooled, setup

RESULTS = Path(__file__).parent / "results" / "defaults.jsonl"
CHOICE = RESULTS.with_name("defaults_choice.jsonl")
ROWS = 3000
JUDGING = 4000

METHODS = ("apfed-r", "apfed-c", "apfed-d", "chfl", "hyfem", "fedoptimus")

#: Where a table comes from, its test rows, and its columns at two parties.
TABLES: Mapping[str, tuple[dict[str, Any], dict[str, list[str]]]] = {
    "adult": (
        {"source": "adult", "label": "income", "split_column": "split"},
        {
            "bank": ["age", "sex", "race", "marital*", "relationship", "capital-*", "native*"],
            "employer": ["workclass", "education*", "occupation", "hours-per-week", "fnlwgt"],
        },
    ),
    "bank marketing": (
        {"source": "bank_marketing", "label": "y", "test": 0.3},
        {
            "bank": ["age", "job", "marital", "education", "default", "balance", "housing", "loan"],
            "calls": ["contact", "day", "month", "duration", "campaign", "p*"],
        },
    ),
    "covertype": (
        {"source": "covertype_kaggle", "label": "Cover_Type", "test": 0.3},
        {
            "terrain": ["Elevation", "Aspect", "Slope", "Hillshade_*", "Wilderness_*"],
            "distances": ["Horizontal_*", "Vertical_*", "Soil_*"],
        },
    ),
    "digits": (
        {"source": "digits", "label": "digit", "test": 0.3},
        {"upper": ["pixel_[0-3]_*"], "lower": ["pixel_[4-7]_*"]},
    ),
    "handwritten": (
        {"source": "handwritten_views", "label": "label", "id": "id", "test": 0.3},
        {"zernike": ["zer_*"], "pixels": ["pix_*"]},
    ),
}


def partition(method: str, parties: Mapping[str, list[str]]) -> dict[str, Any]:
    """How the method's kind of federation deals a table out."""
    names = list(parties)
    match method:
        case "chfl":
            return {"kind": "common-unique", "parties": 3, "common": 0.5}
        case "hyfem":  # a party of each block, and one that has both
            return {
                "kind": "blocks",
                "blocks": dict(parties),
                "disjoint": True,
                "assignment": [
                    {"party": "both", "blocks": names, "classes": [], "rows": 1 / 3},
                    {"party": "first", "blocks": names[:1], "classes": [], "rows": 1 / 3},
                    {"party": "second", "blocks": names[1:], "classes": [], "rows": 1 / 3},
                ],
            }
        case "fedoptimus":
            return {"kind": "owners", "data_owners": dict(parties), "label_owners": 2}
    return {"kind": "columns", "parties": dict(parties), "active": names[0]}


def read(name: str, draw: int | None = None) -> tuple[dict[str, Any], Given]:
    """A table's section of a run file, and its rows: those that train, and those that judge."""
    keys, parties = TABLES[name]
    section = DataSection(**keys, partition=partition("apfed-c", parties))  # type: ignore[arg-type]
    train, test = read_pooled(section)
    if test is None:
        assert section.test is not None
        train, test = dd.split(train, test=section.test, seed=0, stratify=True)
    if draw is None:
        parts = [at_most(ROWS, each, seed=0) for each in (train, test)]
    else:
        share = 0.25 if train.num_rows <= 2 * ROWS else ROWS / train.num_rows
        one, other = dd.split(train, test=share, seed=draw, stratify=True)
        fit, judging = (one, other) if share == 0.25 else (other, one)
        parts = [fit, at_most(JUDGING, judging, seed=draw)]
    kept = {key: value for key, value in keys.items() if key not in ("test", "split_column")}
    return kept, Given("the benchmark", pooled=(parts[0], parts[1]))


def at_most(rows: int, table: dd.Dataset, *, seed: int) -> dd.Dataset:
    """So many rows of a table, or all."""
    return (
        table if table.num_rows <= rows else dd.subset(table, rows=rows, seed=seed, stratify=True)
    )


def score(outputs: Tensor, classes: Tensor) -> float:
    """AUC or accuracy in %."""
    from sklearn.metrics import roc_auc_score

    if outputs.shape[1] == 2:
        margin = outputs[:, 1] - outputs[:, 0]
        return 100 * float(roc_auc_score(classes.numpy(), margin.numpy()))
    return 100 * float((outputs.argmax(dim=1) == classes).double().mean())


def in_one_place(loaded: Loaded, seed: int = 0) -> tuple[float, float]:
    """Score of the best learner, and of the commonest class: of each party that predicts, mean."""
    data = loaded.data
    assert not isinstance(data.task, Regression)
    if isinstance(data, dd.CommonUnique):
        data = data.encoded()
    scored = data.test
    assert scored is not None
    cells: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    if isinstance(data, dd.Owners):
        assert data.test_labels is not None
        pool = data.train[data.data_owners[0]].ids
        order = np.argsort(pool, kind="stable")
        x = torch.cat([data.train[name].joined() for name in data.data_owners], dim=1)
        test_x = torch.cat([scored[name].joined() for name in data.data_owners], dim=1)
        parts = [data.train[name] for name in data.label_owners]
        rows = np.concatenate([part.ids for part in parts])
        indices_of = torch.from_numpy(order[np.searchsorted(pool, rows, sorter=order)])
        labels = torch.cat([part.labels for part in parts if part.labels is not None])
        cells.append((x[indices_of], labels, test_x, data.test_labels))
    else:
        names = [loaded.active] if loaded.active else list(data.train.parties)
        for name in names:
            assert name is not None
            parties = [data.train[name]]
            if isinstance(data, dd.CommonUnique) and data.validation is not None:
                parties.append(data.validation[name])
            x = torch.cat([each.joined() for each in parties])
            labels = torch.cat([each.labels for each in parties if each.labels is not None])
            tested = scored[name]
            assert tested.labels is not None
            cells.append((x, labels, tested.joined(), tested.labels))
    best, majority = [], []
    for x, labels, test_x, test_labels in cells:
        num_classes = data.task.num_outputs
        folds = make_folds(labels, 4, seed=seed)
        rows_ = Rows(x, hard_targets(labels, num_classes, regression=False), folds)
        fitted = Best().fit(rows_, seed=seed)
        best.append(score(fitted.probabilities(test_x), test_labels))
        shares = torch.bincount(labels, minlength=num_classes).float()
        majority.append(score(shares.expand(len(test_labels), -1), test_labels))
    return float(np.mean(best)), float(np.mean(majority))


def run(
    method: str, table: str, overrides: Sequence[str] = (), draw: int | None = None
) -> dict[str, Any]:
    """One line of the results, or with a draw of the choice."""
    keys, given = read(table, draw)
    assert given.pooled is not None
    assert given.pooled[1] is not None
    values: dict[str, Any] = {
        "method": method,
        "evaluate_every": 0,
        "checkpoint_every": 0,
        "data": {**keys, "partition": partition(method, TABLES[table][1])},
    }
    shares = values["data"]["partition"].get("assignment")
    num_classes = len(np.unique(given.pooled[0].labels.values))
    for share in shares or ():
        share["classes"] = list(range(1, num_classes + 1))
    for override in overrides:
        values = merge(values, parsed(override))
    run_file = check_run(values, where="the benchmark")
    loaded = load_data(run_file, given=given)
    begun = time.perf_counter()
    (outcome,) = [done for _, done in run_variants(setup(run_file, 0, loaded), 0, lambda *_: None)]
    seconds = time.perf_counter() - begun
    scores = outcome.scores[method]
    key = (
        "auc"
        if all("auc" in party_scores for party_scores in scores.values()) and num_classes == 2
        else "accuracy"
    )
    party_scores = 100 * float(np.mean([each[key] for each in scores.values()]))
    if draw is not None:
        return {
            "method": method,
            "table": table,
            "draw": draw,
            "settings": list(overrides),
            "score": party_scores,
            "judged on": f"{given.pooled[1].num_rows} training rows that train nothing",
            "seconds": round(seconds, 1),
        }
    known = {(line["method"], line["table"]): line for line in lines()}
    before = known.get(("apfed-c" if method.startswith("apfed") else method, table))
    if before is not None:
        best, majority = before["best learner"], before["majority"]
    else:
        best, majority = in_one_place(loaded)
    return {
        "method": method,
        "table": table,
        "score": party_scores,
        "best learner": best,
        "majority": majority,
        "seconds": round(seconds, 1),
    }


def lines() -> list[dict[str, Any]]:
    """What was measured so far."""
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


def markdown(lines: Sequence[Mapping[str, Any]]) -> str:
    """A row for each table and method."""
    text = [
        "| table | method | score | best learner in one place | behind | majority | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for table in TABLES:
        for line in lines:
            if line["table"] == table:
                behind = line["best learner"] - line["score"]
                text.append(
                    f"| {table} | {line['method']} | {line['score']:.1f} "
                    f"| {line['best learner']:.1f} | {behind:+.1f} | {line['majority']:.1f} "
                    f"| {line['seconds']:.0f} |"
                )
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--set", action="append", default=[], help="key=value; keeps no line")
    parser.add_argument("--draw", type=int, help="judge by training rows, of this draw")
    parser.add_argument("--dry", action="store_true", help="print lines, keep none")
    parser.add_argument("--table", action="store_true", help="print the table and end")
    asked = parser.parse_args()
    if asked.table:
        print(markdown(lines()))
        return
    torch.set_num_threads(1)
    dry = asked.dry or bool(asked.set)
    for table in asked.tables:
        for method in asked.methods:
            done = {(line["method"], line["table"]) for line in lines()}
            if (method, table) in done and not dry and asked.draw is None:
                continue
            line = run(method, table, asked.set, asked.draw)
            print(json.dumps(line), flush=True)
            if asked.draw is not None or not dry:
                with (RESULTS if asked.draw is None else CHOICE).open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
