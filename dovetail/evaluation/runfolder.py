"""The folder of a run: settings, metrics, result, ledger and models, in files others can open."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import tomli_w

from dovetail.errors import ConfigError
from dovetail.evaluation.experiment import Outcome
from dovetail.evaluation.metrics import mean_and_spread


class RunFolder:
    """One seed's folder; a context that keeps ``metrics.jsonl`` open.

    ``run.toml`` is the run file as resolved, ``metrics.jsonl`` has a line per epoch as it ends,
    ``result.json`` is written last, so that a folder with it is a run that finished.
    """

    def __init__(self, path: Path, run: Mapping[str, Any], *, seed: int, method: str) -> None:
        self.path = path
        self._run = run
        self._seed = seed
        self._method = method
        self._stages: dict[str, dict[str, Any]] = {}
        self._scores: dict[str, dict[str, float]] = {}
        self._ledger: list[dict[str, Any]] = []

    def __enter__(self) -> RunFolder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # What an earlier run left here must not pass for this one's.
            for name in ("result.json", "ledger.jsonl"):
                (self.path / name).unlink(missing_ok=True)
            for model in self.path.glob("models/*/model.json"):
                shutil.rmtree(model.parent)
            write_text(self.path / "run.toml", tomli_w.dumps(self._run))
            self._metrics = (self.path / "metrics.jsonl").open("w")
        except OSError as error:
            raise ConfigError(
                f"cannot write the run folder {self.path}: {error.strerror}"
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._metrics.close()

    def epoch(self, stage: str, line: Mapping[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``."""
        self._metrics.write(json.dumps({"stage": stage, **line}) + "\n")
        self._metrics.flush()

    def stage(self, stage: str, outcome: Outcome) -> None:
        """Keep what a stage gave."""
        self._scores |= outcome.scores
        self._stages[stage] = {
            "seconds": outcome.seconds,
            "bytes": outcome.ledger.bytes_by_party(),
            "missed": outcome.missed,
        }
        self._ledger += [{"stage": stage, **line} for line in outcome.ledger.lines()]
        if stage == self._method and outcome.model is not None:
            outcome.model.save(self.path / "models" / outcome.model.party)

    def finish(self, active: str) -> dict[str, Any]:
        """Write ``ledger.jsonl`` and ``result.json``; gives the result."""
        lines = "".join(json.dumps(line) + "\n" for line in self._ledger)
        write_text(self.path / "ledger.jsonl", lines)
        method = self._method
        result = {
            "method": method,
            "seed": self._seed,
            "parties": {active: self._scores.get(method, {})},
            "rulers": {name: scores for name, scores in self._scores.items() if name != method},
            "seconds": self._stages[method]["seconds"],
            "bytes": self._stages[method]["bytes"],
            "missed": self._stages[method]["missed"],
            "stages": self._stages,
        }
        write_text(self.path / "result.json", json.dumps(result, indent=2) + "\n")
        return result


def summarise(results: list[dict[str, Any]]) -> dict[str, Any]:
    """One result over several seeds: every score's mean and spread."""
    first = results[0]
    return {
        "method": first["method"],
        "seeds": [result["seed"] for result in results],
        "parties": {
            name: mean_and_spread([result["parties"][name] for result in results])
            for name in first["parties"]
        },
        "rulers": {
            name: mean_and_spread([result["rulers"][name] for result in results])
            for name in first["rulers"]
        },
        "seconds": sum(result["seconds"] for result in results) / len(results),
        "bytes": first["bytes"],
        "missed": {str(result["seed"]): result["missed"] for result in results if result["missed"]},
    }


def finished(path: Path, run: Mapping[str, Any]) -> dict[str, Any] | None:
    """The result of a run of these settings that finished in this folder, or None."""
    try:
        settings = tomllib.loads((path / "run.toml").read_text(encoding="utf-8"))
        result = json.loads((path / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return result if settings == run and isinstance(result, dict) else None


def write_text(path: Path, text: str) -> None:
    """Write a file in UTF-8, whole or not at all."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)
