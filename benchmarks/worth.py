"""Does a partner's help pay: best model alone, joint model, and the solo model distilled from it.

    python -m benchmarks.worth --seeds 0 1 2 [--only credit] [--table]

One line a table, number of labels and seed goes to ``results/worth.jsonl``; what stands there is
not run again. AUC in % of two classes, accuracy in % of more. Test rows judge and do nothing
else. Rows are one in all parties' tables; the label owner's labels are all but ``labels`` removed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor

from dovetail.data import datasets
from dovetail.data.preprocessing import TableEncoder
from dovetail.models.learners import LEARNERS, Fitted, best_of, make_folds
from dovetail.models.learners.distil import DistilConfig, Owner, choose_teacher, distil
from dovetail.models.learners.teacher import fit_teachers

#: What tells a line of the results from another.
KEYS = ("table", "labels", "seed", "variant")
RESULTS = Path(__file__).parent / "results" / "worth.jsonl"


@dataclass(frozen=True)
class Table:
    """Where it comes from, and which columns the label owner has."""

    source: str
    label: str
    owner: tuple[str, ...]
    partner: tuple[str, ...]
    labels: tuple[int | None, ...]
    categorical: tuple[str, ...] = ()
    split_column: str | None = None
    id: str | None = "id"
    test: float = 0.3


TABLES = {
    "adult": Table(
        "adult",
        "income",
        ("age", "sex", "race", "marital-status", "relationship", "capital-*", "native-country"),
        ("workclass", "education", "education-num", "occupation", "hours-per-week"),
        (100, 300, 1000, None),
        split_column="split",
        id=None,
    ),
    "credit": Table(
        "default_credit",
        "default.payment.next.month",
        ("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", "BILL_AMT*", "PAY_AMT*"),
        ("PAY_[0-6]",),
        (100, 300, 1000, 3000, None),
        categorical=("SEX", "EDUCATION", "MARRIAGE"),
        id="ID",
        test=0.25,
    ),
    "digits": Table(
        "digits",
        "digit",
        tuple(f"pixel_{row}_*" for row in range(4)),
        tuple(f"pixel_{row}_*" for row in range(4, 8)),
        (100, 300),
        id=None,
        test=797 / 1797,
    ),
    "zer|pix": Table("handwritten_views", "label", ("zer_*",), ("pix_*",), (100, 400)),
    "mor|pix+fou": Table("handwritten_views", "label", ("mor_*",), ("pix_*", "fou_*"), (100, 400)),
    "cub": Table("cub_views", "label", ("text_*",), ("image_*",), (60, 200)),
    "wikipedia": Table("wikipedia_views", "label", ("image_*",), ("text_*",), (200, 1000)),
    "landuse": Table("landuse21_views", "label", ("lbp_*",), ("phog_*", "gist_*"), (200, 800)),
    "leaves": Table(
        "leaves100_views", "label", ("shape_*",), ("margin_*", "texture_*"), (300, 900)
    ),
    "ccv": Table("ccv_views", "label", ("mfcc_*",), ("stip_*", "sift_*"), (300, 2000)),
}


@dataclass(frozen=True, eq=False)
class Cell:
    """One table with so many labels, encoded.

    Attributes:
        xs, test_xs: the owner's and the partner's features.
        classes: (R,) of training rows; (T,) of test rows.
        labelled: rows whose label the owner has.
    """

    xs: tuple[Tensor, Tensor]
    classes: Tensor
    labelled: np.ndarray
    test_xs: tuple[Tensor, Tensor]
    test_classes: Tensor
    num_classes: int


def load(name: str, labels: int | None, seed: int) -> Cell:
    """The rows of this seed."""
    table = TABLES[name]
    train, test = datasets.load(
        table.source,
        label=table.label,
        id=table.id,
        split_column=table.split_column,
    )
    if test is None:
        train, test = datasets.split(train, test=table.test, seed=seed, stratify=True)
    names, codes = np.unique(train.labels.values, return_inverse=True)
    test_codes = np.searchsorted(names, test.labels.values)
    labelled = np.arange(train.num_rows)
    if labels is not None:
        _, labelled = datasets.draw_rows(
            train.labels, labels, seed=seed, stratify=True, whose=f"rows of {name}"
        )
    encoders = [
        TableEncoder.fit(
            train.x,
            train.x.select(columns),
            categorical=[c for c in table.categorical if columns == table.owner],
            party=party,
        )
        for party, columns in (("owner", table.owner), ("partner", table.partner))
    ]
    return Cell(
        tuple(encoder.transform(train.x) for encoder in encoders),
        torch.from_numpy(codes),
        np.sort(labelled),
        tuple(encoder.transform(test.x, allow_unseen=True) for encoder in encoders),
        torch.from_numpy(test_codes),
        len(names),
    )


def score(probabilities: Tensor, classes: Tensor) -> float:
    """AUC or accuracy in %."""
    if probabilities.shape[1] == 2:
        return 100 * float(roc_auc_score(classes.numpy(), probabilities[:, 1].numpy()))
    return 100 * float((probabilities.argmax(dim=1) == classes).double().mean())


def run(name: str, labels: int | None, seed: int, variant: str = "") -> dict[str, Any]:
    """One cell's line.

    Args:
        name, labels, seed: which.
        variant: "" for all rows shared; "overlap" where the partner has 30 % of them; "noise" where
            his rows are another's, drawn at random.
    """
    cell = load(name, labels, seed)
    own_x, test_x = cell.xs[0], cell.test_xs[0]
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(own_x), generator=draw)
    aligned = torch.ones(len(own_x), dtype=torch.bool)
    if variant == "overlap":
        aligned[order[round(0.3 * len(order)) :]] = False
    partner_x = cell.xs[1][order] if variant == "noise" else cell.xs[1]
    folds = torch.full((len(own_x),), -1)
    folds[cell.labelled] = make_folds(cell.classes[cell.labelled], 4, seed=seed)
    targets = torch.nn.functional.one_hot(cell.classes, cell.num_classes).float()
    targets[folds < 0] = 0
    owner = Owner(own_x, targets, folds)
    took: dict[str, float] = {}
    line: dict[str, Any] = {"table": name, "labels": labels, "seed": seed, "variant": variant}

    def timed(what: str, do: Callable[[], Any]) -> Any:
        begun = time.perf_counter()
        done = do()
        took[what] = round(time.perf_counter() - begun, 1)
        return done

    rows = owner.labelled_rows()
    alone: dict[str, Fitted] = {}
    for learner in LEARNERS.values():
        alone[learner.name] = timed(
            learner.name, lambda learner=learner: learner.fit(rows, seed=seed, encode_on=own_x)
        )
        line[learner.name] = score(alone[learner.name].probabilities(test_x), cell.test_classes)
    best = best_of(alone, rows)
    line["alone"] = score(best.probabilities(test_x), cell.test_classes)
    line["alone is"] = best.learner
    line["alone losses"] = {n: f.settings["loss"] for n, f in alone.items()}

    xs = (own_x, partner_x)
    teachers = timed("teacher", lambda: fit_teachers(xs, owner, seed=seed, aligned=aligned))
    outputs = {n: each.fold_outputs(xs) for n, each in teachers.items()}
    for each in outputs.values():
        each[:, ~aligned] = torch.nan
    teacher = choose_teacher(outputs, owner)
    for n, each in teachers.items():
        line[f"joint {n}"] = score(each.probabilities(cell.test_xs), cell.test_classes)
    joint = torch.stack([each.probabilities(cell.test_xs) for each in teachers.values()]).mean(0)
    line["joint mean"] = score(joint, cell.test_classes)
    line["joint"] = line[f"joint {teacher.name}"]
    line["teacher"] = teacher.name

    done = timed("distil", lambda: distil(owner, teacher, best, DistilConfig(), seed=seed))
    line["solo"] = score(done.solo.probabilities(test_x), cell.test_classes)
    line["choice"] = done.choice
    if done.choice.endswith("+alone"):  # the students without the own model, to learn from
        with torch.inference_mode():
            students = done.solo.network.members[0](test_x)
        line["students alone"] = score(students.softmax(dim=1), cell.test_classes)
    line["losses"], line["students"] = done.losses, done.settings["students"]
    line["gain"], line["gain error"] = done.gain, done.standard_error
    line["teacher gain"] = done.settings["teacher_gain"]
    line["seconds"] = took
    return line


def cells() -> list[tuple[str, int | None]]:
    """Table and number of labels, in the order of the table; None stands for all."""
    return [(name, labels) for name, table in TABLES.items() for labels in table.labels]


def read() -> list[dict[str, Any]]:
    """The lines so far."""
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


def markdown(lines: Sequence[dict[str, Any]]) -> str:
    """Means over seeds, and half the 95 % interval of the paired gain over ``alone``."""
    text = [
        "| table | labels | seeds | linear | boosting | network | alone | joint | solo | gain "
        "| recovered | kept own |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, labels in cells():
        own = [line for line in lines if (line["table"], line["labels"]) == (name, labels)]
        if not own:
            continue

        def mean(what: str, own: list[dict[str, Any]] = own) -> float:
            return float(np.mean([line[what] for line in own]))

        gains = np.array([line["solo"] - line["alone"] for line in own])
        spread = ""  # of one seed there is none
        if len(gains) > 1:
            error = gains.std(ddof=1) / len(gains) ** 0.5
            spread = f" ± {stats.t.ppf(0.975, len(gains) - 1) * error:.1f}"
        help_ = mean("joint") - mean("alone")
        recovered = f"{100 * gains.mean() / help_:.0f} %" if help_ > 0.5 else "-"
        figures = " | ".join(
            f"{mean(what):.1f}"
            for what in ("linear", "boosting", "network", "alone", "joint", "solo")
        )
        kept = sum(line["choice"] == "alone" for line in own)
        text.append(
            f"| {name.replace('|', ' with ')} | {labels or 'all'} | {len(own)} | {figures} "
            f"| {gains.mean():+.1f}{spread} | {recovered} | {kept}/{len(own)} |"
        )
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--only", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--labels", type=int, nargs="+", help="only these; 0 for all")
    parser.add_argument("--table", action="store_true", help="print the table and end")
    parser.add_argument("--variant", default="", choices=["", "overlap", "noise"])
    parser.add_argument("--dry", action="store_true", help="print lines, keep none")
    asked = parser.parse_args()
    if asked.table:
        print(markdown([line for line in read() if line["variant"] == asked.variant]))
        return
    torch.set_num_threads(1)
    for seed in asked.seeds:
        # The long ones last.
        for name, labels in sorted(cells(), key=lambda cell: cell[1] is None):
            if name not in asked.only or (asked.labels and (labels or 0) not in asked.labels):
                continue
            done = {tuple(line[key] for key in KEYS) for line in read()}
            if (name, labels, seed, asked.variant) in done and not asked.dry:
                continue
            line = run(name, labels, seed, asked.variant)
            print(json.dumps(line), flush=True)
            if not asked.dry:
                with RESULTS.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
