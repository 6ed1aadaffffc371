"""Small runs that were finished before; what is recorded of reading them again.

``python tests/golden/record.py --write finished`` makes them anew, of today's code: do so only
where a run folder of before can on purpose no longer be read.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import golden
from golden_cases import CASES, TABLES

RUNS = golden.HERE / "runs"

ROWS = "fedoptimus.selection.rows=12"

#: Run -> the case that it is of, and its settings.
FINISHED: dict[str, tuple[str, tuple[str, ...]]] = {
    "apfed": ("apfed-mixed", ('baselines=["alone", "tvfl"]',)),
    "apfed-seeds": ("apfed-mixed", ('baselines=["alone"]', "seeds=[0, 1]")),
    "apfed-strips": ("apfed-strips", ("baselines=[]",)),
    "chfl": ("chfl", ('baselines=["common"]', "chfl.rounds=2")),
    "hyfem": ("hyfem", ("baselines=[]", "hyfem.rounds=1")),
    "fedoptimus": (
        "fedoptimus",
        ("baselines=[]", "fedoptimus.epochs=1", "fedoptimus.selection.rows=12"),
    ),
    "parties-apfed": ("parties-apfed-mixed", ()),
}


def make(name: str, folder: Path) -> None:
    """Train one of them in this folder and keep its run folder."""
    case, settings = FINISHED[name]
    CASES[case].write(folder)
    given = [part for each in settings for part in ("--set", each)]
    code, _, err = golden.dovetail(folder, "train", "run.toml", "--out", name, "-q", *given)
    assert code == 0, err
    kept = RUNS / name
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder / name, kept)
    for file in kept.rglob("run.toml"):  # party files have absolute paths there
        file.write_text(file.read_text().replace(str(folder.resolve()), "/srv/federation"))


def read(name: str, folder: Path) -> dict[str, Any]:
    """Model -> what it predicts now, of its case's table, which is written into this folder."""
    CASES[FINISHED[name][0]].write(folder)
    (table,) = (each for each in TABLES if (folder / each).exists())
    return {
        path.parent.relative_to(RUNS).as_posix(): golden.predicted(folder, path.parent, table)
        for path in sorted((RUNS / name).rglob("model.json"))
    }
