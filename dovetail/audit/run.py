"""An audit of a whole run: each seed and variant is trained again, listened to, and attacked."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dovetail.audit import malicious as steered
from dovetail.audit.attack import Settings, attack
from dovetail.audit.defence_search import Tried
from dovetail.audit.scenes import heard, scene_of
from dovetail.audit.verdict import THRESHOLDS, Finding, over_seeds, worst_of
from dovetail.cluster import LOCAL, Tasks
from dovetail.errors import ConfigError
from dovetail.methods.base import SILENT, Loaded, Progress
from dovetail.methods.facets.audited import MAX_ROWS
from dovetail.methods.outcome import mean_over
from dovetail.network.retry import write_text
from dovetail.runs.runfile import RunFile, resolved
from dovetail.runs.setup import load_data, setup, threads_for

#: What ``audit.json`` is.
FORMAT = "dovetail audit 1"

#: What an audit tries only where it is asked to.
STEERED = "a driver or a partner that breaks the protocol (gradients that are steered: --malicious)"

#: What no audit tries, told on every page of one.
NOT_TRIED = (
    "several partners who put together what each was shown",
    "what the alignment tells (docs/messages.md says what that is)",
    "knowledge from outside, such as public tables or a model of another source",
    "rows rebuilt by optimisation (DLG, TabLeak's ensembles); what is found is a lower bound",
)


@dataclass(eq=False)
class Audit:
    """Result of an audit.

    Attributes:
        run: the run's settings, as resolved.
        seeds, variants: what was trained again.
        findings: of each attack, over all seeds.
        scores: variant -> score name -> mean over seeds and parties.
        answered: variant -> message type -> how many were answered, of the first seed.
        seconds: how long it took.
        tried: what defences cost and leave, where that was asked for.
        malicious: whether peers that break the protocol were tried.
    """

    run: Mapping[str, Any]
    seeds: Sequence[int]
    variants: Sequence[str]
    findings: Sequence[Finding]
    scores: Mapping[str, Mapping[str, float]]
    answered: Mapping[str, Mapping[str, int]]
    seconds: float
    tried: Tried | None = None
    malicious: bool = False

    @property
    def not_tried(self) -> tuple[str, ...]:
        """Attacks that were not tried."""
        return NOT_TRIED if self.malicious else (STEERED, *NOT_TRIED)

    @property
    def verdict(self) -> str:
        """The strongest word among its findings."""
        return worst_of(self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            "thresholds": THRESHOLDS,
            "seeds": list(self.seeds),
            "variants": list(self.variants),
            "scores": {name: dict(each) for name, each in self.scores.items()},
            "findings": [each.to_json() for each in self.findings],
            "messages": {name: dict(each) for name, each in self.answered.items()},
            "not_tried": list(self.not_tried),
            "kept_rows": MAX_ROWS,
            "seconds": self.seconds,
            "run": dict(self.run),
            **({} if self.tried is None else {"tried": self.tried.to_json()}),
        }


def audit(
    run: RunFile,
    seeds: Sequence[int],
    *,
    variants: Sequence[str] = (),
    settings: Settings | None = None,
    malicious: bool = False,
    talk: Progress = SILENT,
    tasks: Tasks = LOCAL,
) -> Audit:
    """Train again, and attack what crosses.

    Args:
        run: what was trained; simulated, or party files that are all here.
        seeds: of the run.
        variants: the method and baselines to audit; () the method.
        settings: how attacks are made.
        malicious: try peers that break the protocol, too (``malicious.py``).
        tasks: where each variant of each seed is trained and attacked.

    Raises:
        ConfigError: a run whose partners are elsewhere, or a variant it does not have.
    """
    if run.engine.kind != "inprocess":
        raise ConfigError(
            f"the run's engine is {run.engine.kind!r}: an audit trains the run again with all "
            'parties in this process; with engine.kind = "inprocess" it takes tables of your own'
        )
    settings = settings or Settings()
    variants = tuple(variants) or (run.method,)
    unknown = [name for name in variants if name not in (run.method, *run.baselines)]
    if unknown:
        names = ", ".join((run.method, *run.baselines))
        raise ConfigError(f"the run has no variant {unknown[0]!r}; it has {names}")
    started = time.perf_counter()
    loaded = load_data(run, talk=talk)
    by_finding: dict[tuple[str, ...], list[Finding]] = {}
    scores: dict[str, list[dict[str, float]]] = {}
    answered: dict[str, dict[str, int]] = {}
    one = partial(_one, run, loaded, settings, malicious, talk if tasks.here else SILENT)
    asked = [(seed, variant) for seed in seeds for variant in variants]
    for variant, findings, score, messages in tasks.map(one, asked):
        for each in findings:
            by_finding.setdefault(each.key, []).append(each)
        scores.setdefault(variant, []).append(score)
        answered.setdefault(variant, messages)
    return Audit(
        resolved(run, seeds[0]),
        tuple(seeds),
        variants,
        [over_seeds(each) for each in by_finding.values()],
        {variant: _mean(each) for variant, each in scores.items()},
        answered,
        time.perf_counter() - started,
        malicious=malicious,
    )


def _one(
    run: RunFile,
    loaded: Loaded,
    settings: Settings,
    malicious: bool,
    talk: Progress,
    asked: tuple[int, str],
) -> tuple[str, list[Finding], dict[str, float], dict[str, int]]:
    """Findings of one variant and seed."""
    seed, variant = asked
    with threads_for(loaded), talk.points(f"audit of {variant}, seed {seed}") as points:
        task = setup(run, seed, loaded)
        record = heard(task, scene_of(task), variant, seed)
        outcome = record.outcome
        findings = attack(variant, record.scene, record.tape, outcome.models, settings, points)
        if malicious:
            findings += steered.malicious(task, record.scene, variant, seed, settings)
    score = mean_over(outcome.scores[variant]) if outcome.scores.get(variant) else {}
    return variant, findings, score, record.tape.answered


def _mean(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = [name for name in scores[0] if all(name in each for each in scores)]
    return {name: sum(each[name] for each in scores) / len(scores) for name in names}


def write_audit(audit: Audit, folder: Path) -> Path:
    """``audit.json`` in the run's folder; gives its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "audit.json"
    write_text(path, json.dumps(audit.to_json(), indent=2) + "\n")
    return path
