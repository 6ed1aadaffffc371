"""Tables that an owner and a partner share, as ``benchmarks.unseen`` splits them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import _results, newcomer
from benchmarks.tables.registry import WORTH_LABELS
from dovetail.data import Dataset
from dovetail.methods.base import Loaded
from dovetail.runs.partitions import Columns
from dovetail.runs.runfile import load_run
from dovetail.runs.setup import pooled_parts, read_pooled, with_labels

ROOT = Path(__file__).parents[1]
TABLES = [
    "australian",
    "bands",
    "contraceptive",
    "crx",
    "german",
    "magic",
    "mammographic",
    "marketing",
    "phoneme",
    "pima",
    "ring",
    "saheart",
    "satimage",
    "segment",
    "spambase",
    "texture",
    "twonorm",
    "vehicle",
]
#: What share of the training rows the partner knows, by draw.
KNOWN = (0.5, 0.8, 1.0)
MOST_ROWS = 5000
#: Labels of a table with a rare class, and how many of these are of it.
RARE_LABELS, RARE = 100, (5, 10)
#: Tables of the rivals' own papers that can be had -> what ``benchmarks.newcomer`` calls them.
OWN = {"breast cancer": "breast", "UCI credit": "credit"}

#: Makes a split of a table, labels and a draw; None of too few rows.
Source = Callable[[str, Any, int], "Split | None"]


def frame_of(folder: Path, name: str) -> pd.DataFrame:
    """All rows: features c0, c1, ..., and the label as ``y``."""
    path = next(folder.rglob(f"{name}.dat"), None)
    if path is None:
        raise SystemExit(f"no {name}.dat below {folder}: see --help for where it comes from")
    frame = pd.read_csv(
        path, header=None, skipinitialspace=True, comment="@", na_values=["?", "<null>"]
    )
    frame.columns = [*(f"c{index}" for index in range(frame.shape[1] - 1)), "y"]
    frame["y"] = "class " + frame["y"].astype(str).str.strip()
    return frame


@dataclass(frozen=True, eq=False)
class Split:
    """A table as it is halved.

    Attributes:
        columns, others: the owner's, and the partner's.
        classes: of which two rows or more are labelled.
        train, taught: rows to learn from, with every label, and with those that the owner knows.
        test: rows that nobody trains on.
        known: share of ``train`` that the partner knows.
    """

    columns: list[str]
    others: list[str]
    classes: list[str]
    train: pd.DataFrame
    taught: pd.DataFrame
    test: pd.DataFrame
    known: float
    draw: int

    def lacking(self) -> pd.Index:
        """Rows of ``train`` that the partner lacks."""
        order = np.random.default_rng(self.draw).permutation(len(self.train))
        return self.train.index[order[int(self.known * len(self.train)) :]]


def of_keel(folder: Path) -> Source:
    """Splits of the tables below a folder."""
    return lambda table, labels, draw: halved(frame_of(folder, table), labels, draw)


def of_rare(folder: Path) -> Source:
    """The same, of 100 labels so many of the rarer class; None of more classes than two."""
    return lambda table, labels, draw: thinned(frame_of(folder, table), labels, draw)


def of_papers(table: str, labels: int, draw: int) -> Split | None:
    """A split of one of ``OWN``."""
    return halved(newcomer.frame_of(OWN[table]), labels, draw)


def halved(frame: pd.DataFrame, labels: int, draw: int) -> Split | None:
    """Half of the columns, drawn, are the owner's; None of too few rows."""
    frame, columns = drawn(frame, [draw, labels])
    num_test = int(0.4 * len(frame))
    test, train = frame.iloc[:num_test], frame.iloc[num_test:]
    if len(train) < 1.3 * labels:
        return None
    known = train["y"].iloc[:labels].value_counts()
    classes = sorted(known.index[known >= 2])
    test = test[test["y"].isin(classes)]
    taught = train.copy()
    taught.loc[taught.index[labels:], "y"] = None
    taught.loc[~taught["y"].isin(classes), "y"] = None
    return Split(
        columns, others_of(frame, columns), classes, train, taught, test, KNOWN[draw], draw
    )


def thinned(frame: pd.DataFrame, positives: int, draw: int) -> Split | None:
    """The same of two classes, with so many of the rarer one per 100 rows that train."""
    frame, columns = drawn(frame, [draw, positives, RARE_LABELS])
    num_test = int(0.4 * len(frame))
    test, train = frame.iloc[:num_test], frame.iloc[num_test:]
    counts = train["y"].value_counts()
    if len(counts) != 2:
        return None
    rare = train.index[train["y"] == counts.index[-1]]
    common = train.index[train["y"] == counts.index[0]]
    share = positives / RARE_LABELS
    kept = max(positives, int(len(common) * share / (1 - share)))
    if len(common) < RARE_LABELS or len(rare) < kept:
        return None
    train = train.loc[sorted([*rare[:kept], *common])]
    labelled = [*rare[:positives], *common[: RARE_LABELS - positives]]
    taught = train.copy()
    taught["y"] = taught["y"].where(taught.index.isin(labelled), None)
    others = others_of(frame, columns)
    return Split(columns, others, sorted(counts.index), train, taught, test, KNOWN[draw], draw)


def drawn(frame: pd.DataFrame, seed: Sequence[int]) -> tuple[pd.DataFrame, list[str]]:
    """Rows in a drawn order, numbered, and half of the columns."""
    rng = np.random.default_rng(seed)
    frame = frame.iloc[rng.permutation(len(frame))[:MOST_ROWS]].reset_index(drop=True)
    frame["id"] = np.arange(len(frame))
    features = others_of(frame, [])
    return frame, sorted(rng.choice(features, len(features) // 2, replace=False).tolist())


def others_of(frame: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Columns besides these, ids and labels."""
    return [each for each in frame if each not in ("id", "y", *columns)]


#: The settings that defaults were chosen on: a cell of the run file, and its numbers of labels.
CHOSEN: list[tuple[str, int | str]] = [
    (name, labels or "all") for name, (_, counts) in WORTH_LABELS.items() for labels in counts
]


def cheapest(settings: list[tuple[str, int | str]]) -> list[tuple[str, int | str]]:
    """Settings by how long they took when results/bench/worth-sealed.jsonl was made."""
    lines = (_results.FOLDER / "bench" / "worth-sealed.jsonl").read_text().splitlines()
    seconds = {line["cell"]: line["seconds"] for line in map(json.loads, lines)}
    return sorted(settings, key=lambda each: seconds.get(f"worth-{each[0]}-{each[1]}", np.inf))


def of_chosen(table: str, labels: int | str, draw: int) -> Split:
    """The columns, test rows and labels of a run of runs/apfed/worth.toml, of seed ``draw``."""
    run = load_run(
        Path(f"{ROOT / 'runs' / 'apfed' / 'worth.toml'}:{table}"),
        recipe="sealed",
        overrides=() if labels == "all" else (f"data.labels={labels}",),
    )
    section = run.data
    assert section is not None
    assert isinstance(section.partition, Columns)
    parts = pooled_parts(section, read_pooled(section))
    data = section.partition.deal(*parts, section)
    if isinstance(labels, int):
        data = with_labels(Loaded(data, "owner"), labels, draw).data
    frames = [_frame(part, section.categorical) for part in parts]
    columns, others = (
        parts[0].table("columns").select(section.partition.parties[party])
        for party in ("owner", "partner")
    )
    train, test = frames
    test.index += len(train)
    test["id"] += len(train)
    labelled = data.train["owner"].labelled_rows().numpy()
    known = train["y"].iloc[labelled].value_counts()
    classes = sorted(known.index[known >= 2])
    taught = train.copy()
    taught["y"] = None
    taught.loc[taught.index[labelled], "y"] = train["y"].iloc[labelled]
    taught.loc[~train["y"].isin(classes), "y"] = None
    return Split(
        list(columns), list(others), classes, train, taught,
        test[test["y"].isin(classes)], 1.0, draw,
    )  # fmt: skip


def _frame(part: Dataset, categorical: Sequence[str]) -> pd.DataFrame:
    """All rows, with the label as ``y`` and a number for each sample as ``id``."""
    table = part.table("columns")
    codes = set(table.select(categorical)) if categorical else set()
    frame = pd.DataFrame({name: table.column(name).values for name in table.names})
    for name in codes:
        frame[name] = "code " + frame[name].astype(str)
    frame["y"] = ["class " + str(each) for each in part.labels.values]
    frame["id"] = np.arange(len(frame))
    return frame
