"""A small grid of defences: what each costs, what each leaves to be learned.

Each cell trains the run with one setting changed, is audited with linear attackers, and is scored
on labelled rows that were held out of its training: what is recommended is not chosen on test rows,
whose scores are beside it. Beside them stands what the label owner would have without anybody:
the best local model, of the same rows. Of several seeds a cell is the mean. A cell that does not
train, as a party refused or its numbers grew without bound, is reported and left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch

from dovetail import methods
from dovetail.audit.attack import Settings, attack
from dovetail.audit.scenes import audited_of, heard, scene_of
from dovetail.audit.verdict import (
    VERDICTS,
    Finding,
    Verdict,
    over_seeds,
    worst_of,
)
from dovetail.cluster import LOCAL, Tasks
from dovetail.data.wording import name_list
from dovetail.errors import ConfigError, DovetailError, NetworkError, TrainingError
from dovetail.methods.base import SILENT, Loaded, Progress
from dovetail.methods.facets.defences import Defence, Grid, Lengths
from dovetail.methods.outcome import mean_over
from dovetail.methods.training import Training
from dovetail.runs.runfile import RunFile
from dovetail.runs.setup import load_data, setup, threads_for

#: What the cell is called that trains without anybody.
BEST_ALONE = "the best local model"


@dataclass(frozen=True)
class DefenceCost:
    """Cost of one defence, and what attacks still find.

    Attributes:
        name, guarantee: the defence's.
        held_out: its score on held-out labelled rows; more is better.
        test: scores on the test rows.
        advantage: target and channel -> the largest advantage of an attack there.
        worst: the largest of all but of the model's own.
        verdict: of all but of the model's own.
        epsilon: the largest that was counted; None where nothing is.
        model: the largest advantage of membership from the solo model itself.
    """

    name: str
    guarantee: str
    held_out: float
    test: Mapping[str, float]
    advantage: Mapping[str, float]
    worst: float
    verdict: Verdict
    epsilon: float | None
    model: float = 0.0


@dataclass(frozen=True)
class Tried:
    """The grid, and what it recommends.

    Attributes:
        cells: in the order of ``DEFENCES``.
        limit: the verdict that none of the messages' attacks may exceed.
        recommended: the best on held-out rows within the limit; None: no cell is.
        seconds: how long it took.
        failed: defence -> why it did not train, in one seed at least; it is not among the cells.
    """

    variant: str
    cells: Sequence[DefenceCost]
    limit: Verdict
    recommended: str | None
    seconds: float
    failed: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def try_defences(
    run: RunFile,
    seeds: Sequence[int],
    *,
    limit: Verdict = "low",
    defences: Sequence[Defence] | None = None,
    talk: Progress = SILENT,
    tasks: Tasks = LOCAL,
) -> Tried:
    """Train and audit each cell, of each seed; the first alone, as others clip by its lengths.

    Raises:
        ConfigError: a run of another method, or of party files.
        TrainingError, NetworkError: the run as it is does not train.
    """
    started = time.perf_counter()
    loaded = load_data(run, talk=talk) if run.data is not None else None
    drawn: dict[str, list[_Drawn]] = {}
    guarantees: dict[str, str] = {}
    failed: dict[str, str] = {}
    for seed in seeds:
        audited = audited_of(run.method)
        if loaded is None or audited is None or run.method not in audited.tried:
            raise ConfigError(
                f"--try is for simulated runs of {_tried()}, whose defences are settings; this run "
                f"is of {run.method!r}" + (", of party files" if run.data is None else "")
            )
        task = setup(run, seed, loaded)
        grid = audited.grid(task)
        task, held = grid.hold_out(task, seed)
        lengths: Lengths = {"codes": 1.0, "gradients": 1.0}
        cells = grid.defences if defences is None else defences
        guarantees |= {each.name: each.guarantee for each in cells}
        told = partial(_told, talk, f"{run.method}, seed {seed}")
        for some in (cells[:1], [each for each in cells[1:] if each.name not in failed]):
            trained = tasks.map(partial(_try, task, loaded, seed, grid, held, lengths), told(some))
            for defence, result in zip(some, trained, strict=True):
                if not isinstance(result, tuple):
                    if defence is cells[0]:
                        raise result
                    talk.print(f"{defence.name} did not train: {result}")
                    failed[defence.name] = str(result)
                    continue
                each, median = result
                lengths = median if defence is cells[0] else lengths
                drawn.setdefault(defence.name, []).append(each)
        if grid.alone is not None:
            talk.print(f"{run.method}, seed {seed}: {BEST_ALONE}")
            each, _ = _draw(task, grid.alone, seed, grid, held)
            drawn.setdefault(BEST_ALONE, []).append(each)
    means = [
        _mean_cell(name, guarantees.get(name, ""), each)
        for name, each in drawn.items()
        if name not in failed
    ]
    seconds = time.perf_counter() - started
    return Tried(run.method, means, limit, recommend(means, limit), seconds, failed)


def _tried() -> str:
    """The variants whose defences can be tried."""
    audited = (each.audited for each in methods.every().values())
    return name_list([name for each in audited if each for name in each.tried], at_most=20)


def recommend(cells: Sequence[DefenceCost], limit: Verdict) -> str | None:
    """The best on held-out rows of those within the limit, one that sends nothing left out."""
    within = [
        cell
        for cell in cells
        if VERDICTS.index(cell.verdict) <= VERDICTS.index(limit) and cell.advantage
    ]
    return max(within, key=lambda cell: cell.held_out).name if within else None


@dataclass(frozen=True)
class _Drawn:
    """Cell of a defence and seed."""

    held_out: float
    test: Mapping[str, float]
    findings: Sequence[Finding]
    epsilon: float | None


def _told(talk: Progress, run: str, cells: Sequence[Defence]) -> Iterator[Defence]:
    """The cells; each is reported as it starts."""
    for each in cells:
        talk.print(f"{run}: {each.name}")
        yield each


def _try(
    task: Training,
    loaded: Loaded,
    seed: int,
    grid: Grid,
    held: Any,
    lengths: Lengths,
    defence: Defence,
) -> tuple[_Drawn, Lengths] | DovetailError:
    """Cell of one seed, and the lengths that others clip by; or the error that keeps it from
    training."""
    changed = grid.protected(task, defence, lengths)
    try:
        with threads_for(loaded):
            return _draw(changed, task.method, seed, grid, held)
    except (TrainingError, NetworkError) as error:
        return error


def _draw(task: Training, variant: str, seed: int, grid: Grid, held: Any) -> tuple[_Drawn, Lengths]:
    """Cell of one seed, and the median length of a row's codes and gradients."""
    record = heard(task, scene_of(task), variant, seed)
    outcome = record.outcome
    findings = attack(variant, record.scene, record.tape, outcome.models, Settings(network=False))
    sends = record.played is not None and grid.sends(task)
    spent = [each["epsilon"] for each in outcome.about.get("epsilon", ())]
    scores = outcome.scores.get(variant)
    drawn = _Drawn(
        grid.scored(task, record.played, outcome, held),
        mean_over(scores) if scores else {},
        [each for each in findings if sends or each.channel == "model"],
        max(spent) if spent else None,
    )
    lengths = {
        kind: max(
            [
                float(torch.linalg.vector_norm(table.last, dim=1).median())
                for channel, table in record.tape.tables.items()
                if channel.what == kind and channel.owner in task.party_data
            ],
            default=1.0,
        )
        or 1.0
        for kind in ("codes", "gradients")
    }
    return drawn, lengths


def _mean_cell(name: str, guarantee: str, drawn: Sequence[_Drawn]) -> DefenceCost:
    """Cell averaged over all seeds."""
    by_key: dict[tuple[str, ...], list[Finding]] = {}
    for each in drawn:
        for finding in each.findings:
            by_key.setdefault(finding.key, []).append(finding)
    means = [over_seeds(each) for each in by_key.values()]
    of_messages = [each for each in means if each.channel != "model"]
    spent = [each.epsilon for each in drawn if each.epsilon is not None]
    scores = [key for key, value in drawn[0].test.items() if isinstance(value, float)]
    return DefenceCost(
        name,
        guarantee,
        sum(each.held_out for each in drawn) / len(drawn),
        {key: sum(each.test[key] for each in drawn) / len(drawn) for key in scores},
        _by_target(of_messages),
        max((each.advantage for each in of_messages), default=0.0),
        worst_of(of_messages),
        max(spent) if spent else None,
        max((each.advantage for each in means if each.channel == "model"), default=0.0),
    )


def _by_target(findings: Sequence[Finding]) -> dict[str, float]:
    worst: dict[str, float] = {}
    for each in findings:
        name = f"{each.target} from {each.channel}"
        worst[name] = max(worst.get(name, -1.0), each.advantage)
    return worst
