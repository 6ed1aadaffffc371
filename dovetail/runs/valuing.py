"""Where a valuation is kept, and what it is of."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail.files import run_folder
from dovetail.node.partyfile import fingerprints
from dovetail.runs.runfile import RunFile, resolved
from dovetail.runs.shapley import JOINT_MEASURES, MEASURES

#: What does not change what a coalition scores.
_IDLE = ("seed", "baselines", "evaluate_every", "checkpoint_every", "min_participation", "engine")


def folders_of(path: Path, recipe: str | None) -> tuple[Path, Path, tuple[int, ...]]:
    """The run file, the run's folder, and its seeds where that is one of several."""
    if not path.is_dir():
        if (path.parent / "result.json").exists() or (path.parent / "metrics.jsonl").exists():
            return path, path.parent, ()  # the run file that a run folder holds
        return path, run_folder(path, recipe), ()
    if (path / "run.toml").exists():
        return path / "run.toml", path, ()
    files = sorted(path.glob("seed-*/run.toml"))
    if not files:
        raise ConfigError(f"{path} is no run folder: it has no run.toml; name a run file or folder")
    seeds = sorted(int(file.parent.name.removeprefix("seed-")) for file in files)
    return files[0], path, tuple(seeds)


def about(run: RunFile) -> str:
    """Distinguishes this run's coalitions from those of other settings or tables."""
    settings: dict[str, Any] = resolved(run, 0)
    for key in _IDLE:
        settings.pop(key, None)
    settings.pop("sha256", None)
    if run.parties is not None:
        settings["sha256"] = fingerprints(tuple(Path(file) for file in run.parties))
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_csv(path: Path, result: Mapping[str, Any]) -> None:
    """A line for each partner, the most worth first."""
    first = next(iter(result["partners"].values()))
    measures = [name for name in (*MEASURES, *JOINT_MEASURES) if name in first]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        names = [f"{name}{part}" for name in measures for part in ("", "_std", "_error")]
        writer.writerow(["partner", *names])
        for partner, values in result["partners"].items():
            cells = [values[name][part] for name in measures for part in ("mean", "std", "error")]
            writer.writerow([partner, *cells])
