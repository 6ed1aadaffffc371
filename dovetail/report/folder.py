"""Contents of run folders, read as they are: of a run that goes on, that was stopped, or that
finished.

Folders come from others: what does not fit is left out and noted, and nothing is run.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dovetail.audit.verdict import Finding, Verdict
from dovetail.errors import ConfigError
from dovetail.methods.outcome import number
from dovetail.models.metrics import SCORES
from dovetail.models.model_folders import JOINT
from dovetail.privacy import spent_text
from dovetail.runs.trials import Trial

B = TypeVar("B", bound=BaseModel)

#: Lines of ``metrics.jsonl`` and ``ledger.jsonl`` that are read of one folder.
MAX_LINES = 200_000


class _Read(BaseModel):
    """Something of a file; what is not named here is not needed."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)


class Missed(_Read):
    """Steps that a party was left out of."""

    steps: int | None = None
    rounds: int | None = None
    of: int = 0
    first: str = ""


class Bin(_Read):
    """Rows of about the same probability: what was predicted of them, and how many were so."""

    rows: int
    said: float
    was: float


class SurvivalCurves(_Read):
    """The share without an event: predicted, mean over the rows, and Kaplan and Meier's."""

    times: list[float]
    said: list[float]
    was: list[float]


class Horizon(_Read):
    """Groups of rows at one time, by their predicted share without an event."""

    time: float
    groups: list[Bin]


class Relied(_Read):
    """The columns that a model relies on most (``models/relied.py``): name, mean, and interval."""

    score: str
    rows: int
    of: int
    columns: list[tuple[str, float, float, float]]


class Judged(_Read):
    """A model on test rows (``models/metrics.py``)."""

    rows: int
    intervals: dict[str, tuple[float, float]] = {}
    classes: list[str | int] = []
    confusion: list[list[int]] = []
    reliability: list[Bin] = []
    threshold: float | None = None
    roc: list[tuple[float, float]] = []
    precision_recall: list[tuple[float, float]] = []
    curves: SurvivalCurves | None = None
    calibration: list[Horizon] = []
    labels: dict[str, dict[str, float]] = {}
    relied: Relied | None = None


class Done(_Read):
    """A variant that is done, as ``result.json`` and a checkpoint's ``outcome.json`` have it."""

    seconds: float = 0.0
    missed: dict[str, Missed] = {}
    scores: dict[str, dict[str, dict[str, float]]] = {}
    details: dict[str, dict[str, Judged]] = {}


class Recovered(_Read):
    """How much of the partners' help stays when they leave (``models/recovered.py``)."""

    score: str
    solo: float
    alone: float
    joint: float
    rows: float
    share: float | None = None
    interval: tuple[float, float] | None = None


class Spent(_Read):
    """Cost of noised releases (``privacy/release.py``)."""

    sender: str = Field(alias="from")
    receiver: str = Field(alias="to")
    what: str
    epsilon: float
    delta: float
    releases: int
    stopped: bool = False


class Result(_Read):
    """``result.json`` of one seed."""

    method: str
    seed: int
    variants: dict[str, Done]
    versions: dict[str, str] = {}
    shared: dict[str, int] = {}
    recovered: Recovered | None = None
    warnings: list[str] = []
    epsilon: list[Spent] = []


class _Summary(_Read):
    """``result.json`` of several seeds."""

    seeds: list[int]


class Tensor(_Read):
    name: str
    shape: list[int]
    dtype: str


class Sent(_Read):
    """A line of ``ledger.jsonl``."""

    variant: str = ""
    sender: str = Field(alias="from")
    receiver: str = Field(alias="to")
    message: str
    tensors: list[Tensor]
    count: int
    bytes: int
    epsilon: float | None = None  # of the sample that they cost most; None: not counted


class _Outcome(_Read):
    variant: Done
    ledger: list[Sent] = []


class AuditFile(_Read):
    """``audit.json``, as far as a report shows it."""

    verdict: Verdict
    thresholds: str = ""
    findings: list[Finding] = []


class Value(_Read):
    """A partner's value over seeds."""

    mean: float
    std: float = 0.0


class SearchFile(_Read):
    """``search.json``: what was tried before the run, on rows that judge."""

    metric: str
    best: int
    trials: list[Trial]
    judged_on: dict[str, list[Any]] = Field(default_factory=dict, alias="judged on")


class ValueFile(_Read):
    """``value.json``, which ``dovetail value`` writes."""

    by: str
    metric: str
    lower_is_better: bool = False
    seeds: list[int]
    partners: dict[str, dict[str, Value]]
    all: Value | None = None
    none: Value | None = None
    always: list[str] = []


@dataclass
class Seed:
    """Folder of one seed.

    Attributes:
        path: the folder.
        seed: of the run.
        method: the variant that the run is about.
        settings: ``run.toml``.
        lines: variant -> its lines of ``metrics.jsonl`` that have a number, in order.
        chosen: variant -> what its search chose.
        done: variant -> what it gave, once it is done.
        sent: what left whom; of variants that are done.
        models: the parties that have a model here.
        bottoms: those whose model others need, to predict together.
        together: whether a model here predicts with partners while they are there.
        recovered: how much of their help stays when they leave, where the run says so.
        versions: package -> the version that trained, where the run says so.
        shared: partner -> how many of the label owner's rows it has, too.
        finished: whether ``result.json`` is there.
        notes: what is missing or damaged, a sentence each.
    """

    path: Path
    seed: int
    method: str
    settings: Mapping[str, Any]
    lines: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)
    done: dict[str, Done] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    models: tuple[str, ...] = ()
    bottoms: tuple[str, ...] = ()
    together: bool = False
    recovered: Recovered | None = None
    versions: dict[str, str] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    finished: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def variants(self) -> list[str]:
        """The method, then its baselines, then whatever else was trained."""
        baselines = self.settings.get("baselines", [])
        named = [self.method, *(baseline for baseline in baselines if isinstance(baseline, str))]
        return list(dict.fromkeys([*named, *self.done, *self.lines]))

    def scores(self) -> dict[str, dict[str, dict[str, float]]]:
        """Name -> party -> scores; of a variant that is not done, the last that were told.

        A party "" stands for all of them, where a line has no names.
        """
        by_variant: dict[str, dict[str, dict[str, float]]] = {}
        for variant in self.variants:
            if variant in self.done:
                by_variant |= self.done[variant].scores
                continue
            for line in reversed(self.lines.get(variant, [])):
                scores = scores_of(line)
                if scores:
                    parties = line.get("parties")
                    each = parties if isinstance(parties, dict) else {"": scores}
                    by_variant[variant] = {
                        str(name): scores_of(scores_here)
                        for name, scores_here in each.items()
                        if isinstance(scores_here, dict)
                    }
                    break
        return by_variant


def scores_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The scores in a line."""
    return {
        name: float(value)
        for name, value in line.items()
        if name in SCORES and isinstance(value, int | float) and math.isfinite(value)
    }


@dataclass
class Run:
    """A run: one seed, or several side by side.

    Attributes:
        name: what the page calls it.
        path: the folder.
        seeds: at least one.
        value: what partners were worth, where that was computed.
        audit: what its messages reveal, where that was tried.
        notes: what is missing or damaged, a sentence each.
    """

    name: str
    path: Path
    seeds: list[Seed]
    value: ValueFile | None = None
    search: SearchFile | None = None
    notes: list[str] = field(default_factory=list)
    audit: AuditFile | None = None

    @property
    def method(self) -> str:
        return self.seeds[0].method

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.seeds[0].settings


def read_run(path: Path, name: str | None = None) -> Run:
    """Contents of a run folder, finished or not.

    Args:
        path: the folder that ``dovetail train --out`` was told, or one seed's below it.
        name: what the page calls it; None: as the folder is called.

    Raises:
        ConfigError: no folder, or none of a run.
    """
    if not path.is_dir():
        raise ConfigError(f"there is no folder {path}; name a run folder, such as out/demo")
    notes: list[str] = []
    below = sorted(
        (each for each in path.glob("seed-*") if each.is_dir() and each.name[5:].isdigit()),
        key=lambda each: int(each.name[5:]),
    )
    summary = _read(_Summary, path / "result.json", notes) if below else None
    if below and (summary is not None or not (path / "run.toml").exists()):
        seeds = [_read_seed(each) for each in below]
        if summary is not None:
            seeds = [seed for seed in seeds if seed.seed in summary.seeds] or seeds
        else:
            seeds = _of_one_run(seeds, notes)
            notes.append(_unfinished(seeds))
    elif (path / "run.toml").exists():
        notes = []
        seeds = [_read_seed(path)]
        if not seeds[0].finished:
            notes.append(_unfinished(seeds))
    else:
        others = sorted(str(each.parent) for each in path.glob("*/run.toml"))[:5]
        raise ConfigError(
            f"{path} is no run folder: it has neither run.toml nor folders seed-0, seed-1, …; name "
            + (f"one of {', '.join(others)}" if others else "what dovetail train wrote")
        )
    for seed in seeds:
        notes += [note if len(seeds) == 1 else f"seed {seed.seed}: {note}" for note in seed.notes]
    value = _read(ValueFile, path / "value.json", notes)
    search = _read(SearchFile, path / "search.json", notes)
    audit = _read(AuditFile, path / "audit.json", notes)
    name = name or path.resolve().name
    return Run(name, path, seeds, value, search, [note for note in notes if note], audit)


def _read_seed(path: Path) -> Seed:
    """Contents of one seed's folder.

    Raises:
        ConfigError: ``run.toml`` is not there or no TOML, and there is no result either.
    """
    notes: list[str] = []
    settings = _settings(path, notes)
    result = _read(Result, path / "result.json", notes)
    method = result.method if result is not None else settings.get("method")
    if not isinstance(method, str):
        raise ConfigError(
            f"{path}: neither run.toml nor result.json says which method this run is about; it is "
            "no run folder, or it is damaged"
        )
    written_seed = settings.get("seed")
    seed = (
        result.seed if result is not None else written_seed if isinstance(written_seed, int) else 0
    )
    read = Seed(path, seed, method, settings, finished=result is not None, notes=notes)
    if result is not None:
        read.done, read.versions = result.variants, result.versions
        read.shared = result.shared
        read.recovered = result.recovered
        notes += result.warnings
        notes += [spent_text(each.model_dump(by_alias=True)) for each in result.epsilon]
    for line in _json_lines(path / "metrics.jsonl", notes):
        variant = line.get("variant")
        if not isinstance(variant, str):
            continue
        chosen = line.get("chosen")
        if isinstance(chosen, dict):
            read.chosen[variant] = chosen
        if number_of(line):
            read.lines.setdefault(variant, []).append(line)
    damaged = 0
    for line in _json_lines(path / "ledger.jsonl", notes):
        try:
            read.sent.append(Sent.model_validate(line))
        except ValidationError:
            damaged += 1
    if damaged:
        notes.append(f"{damaged} lines of ledger.jsonl are none of a ledger; they are left out")
    if result is None:
        for kept in sorted(path.glob("checkpoint/*/outcome.json")):
            outcome = _read(_Outcome, kept, notes)
            if outcome is not None:
                read.done[kept.parent.name] = outcome.variant
                read.sent += outcome.ledger
    read.models, read.bottoms = (
        tuple(sorted(each.parent.name for each in path.glob(f"models/*/{name}.json")))
        for name in ("model", "bottom")
    )
    if JOINT in read.models:  # partners' parts are for it alone
        read.models, read.bottoms = tuple(name for name in read.models if name != JOINT), ()
        read.together = True
    return read


def _settings(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads((path / "run.toml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append("run.toml is missing: no settings are shown")
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"run.toml cannot be read ({error}): no settings are shown")
    return {}


def _read(model: type[B], path: Path, notes: list[str]) -> B | None:
    """A JSON file as this model; None where there is none, or it does not fit."""
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        notes.append(f"{path.name} cannot be read ({error.strerror})")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        notes.append(f"{path.name} is damaged ({where}: {first['msg']}); it is left out")
    return None


def _json_lines(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines; one cut off at the end is being written."""
    try:
        with path.open("rb") as file:
            damaged = 0
            for index, raw in enumerate(file):
                if index == MAX_LINES:
                    notes.append(f"{path.name}: lines after {MAX_LINES:,} are not shown")
                    break
                try:
                    line = json.loads(raw, parse_int=_counted)
                except (ValueError, RecursionError):
                    line = None
                if isinstance(line, dict):
                    yield line
                elif raw.endswith(b"\n"):
                    damaged += 1
            if damaged:
                notes.append(f"{damaged} lines of {path.name} are no JSON; they are left out")
    except FileNotFoundError:
        return
    except OSError as error:
        notes.append(f"{path.name} cannot be read ({error.strerror})")


def _counted(digits: str) -> float:
    """A whole number; as one with a point where it is too large to count anything."""
    return int(digits) if len(digits) < 18 else float(digits)


def number_of(line: Mapping[str, Any]) -> int:
    """Which epoch or round a line is of; 0 for any other line."""
    try:
        return number(line)
    except (TypeError, ValueError, OverflowError):
        return 0


def _of_one_run(seeds: list[Seed], notes: list[str]) -> list[Seed]:
    """The seeds whose settings are those of the one that was started last."""
    latest = max(seeds, key=lambda seed: _begun(seed.path))

    def of(seed: Seed) -> dict[str, Any]:
        return {key: value for key, value in seed.settings.items() if key != "seed"}

    others = [seed for seed in seeds if of(seed) != of(latest)]
    if others:
        names = ", ".join(seed.path.name for seed in others)
        notes.append(f"{names}: of other settings than {latest.path.name}, and left out")
    return [seed for seed in seeds if of(seed) == of(latest)]


def _begun(path: Path) -> float:
    try:
        return (path / "run.toml").stat().st_mtime
    except OSError:
        return 0.0


def _unfinished(seeds: list[Seed]) -> str:
    """How far a run has come that has no result."""
    parts = []
    for seed in seeds:
        if seed.finished:
            continue
        begun = [variant for variant in seed.lines if variant not in seed.done]
        variants = [f"{variant} is done" for variant in seed.done]
        for variant in begun:
            line = seed.lines[variant][-1]
            unit = "epoch" if "epoch" in line else "round"
            variants.append(f"{variant} has come to {unit} {number_of(line)}")
        where = f"seed {seed.seed}: " if len(seeds) > 1 else ""
        parts.append(where + (", ".join(variants) or "nothing is trained yet"))
    if not parts:
        return "All seeds that are here finished, but the summary over them is missing."
    return f"This run has not finished: it still trains, or was stopped. {'; '.join(parts)}."
