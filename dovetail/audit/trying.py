"""A small grid of defences: what each costs, what each leaves to be learned.

Each cell trains the run with one setting changed, is audited with linear attackers, and is scored
on labelled rows that were held out of its training: what is recommended is not chosen on test rows,
whose scores stand beside it. Beside them stands what the label owner would have without anybody:
the best model alone, of the same rows. Of several seeds a cell is the mean.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from dovetail.audit.attack import Settings, attack
from dovetail.audit.scenes import scene_of
from dovetail.audit.tape import Tape
from dovetail.audit.verdict import (
    HIGH_FROM,
    LOW_FROM,
    VERDICTS,
    Finding,
    Verdict,
    over_seeds,
    worst_of,
)
from dovetail.data import Classification, PartyData
from dovetail.errors import ConfigError
from dovetail.experiment.runfile import RunFile
from dovetail.experiment.setup import load_data, setup
from dovetail.methods.apfed.home import PartnerHome
from dovetail.methods.apfed.stacks import Once
from dovetail.methods.apfed.stages import active_config, label_home, partner_homes
from dovetail.methods.base import SILENT, Talk
from dovetail.methods.method import Training
from dovetail.models.metrics import score
from dovetail.models.randomness import generator
from dovetail.network.inprocess import overheard
from dovetail.privacy import PrivateSteps, Release

#: Of the labelled rows, the share that a cell is scored on and not trained on.
HELD_OUT = 0.2

#: What a limit of this name lets through.
LIMITS: Mapping[str, float] = {"none": LOW_FROM, "low": HIGH_FROM}


@dataclass(frozen=True)
class Defence:
    """One cell of the grid: what is set at the label owner, and at each partner.

    Attributes:
        name: as it is told.
        active: fields of ``apfed.Config``.
        gradients: how partners' gradients leave; its ``clip`` is in multiples of a row's median
            length in the run as it is.
        guarantee: what is guaranteed, in words; "" for nothing.
        once: of APFed-D, how partners' columns leave once; None: gradients are exchanged.
    """

    name: str
    active: Mapping[str, Any]
    gradients: Release | None = None
    guarantee: str = ""
    once: Once | None = None


_COUNTED = "epsilon is counted; it covers what releases of a sample's own row say"

_NOISE = {z: Release(clip=1.0, noise=z) for z in (0.25, 0.5, 1.0, 2.0)}

DEFENCES = (
    Defence("as it is", {}),
    Defence("projection to 8", {"projection": 8}),
    Defence("projection to 2", {"projection": 2}),
    Defence("top 10 % of each code and gradient", {"codes": Release(keep=0.1)}, Release(keep=0.1)),
    Defence("signs of codes and gradients", {"codes": Release(sign=True)}, Release(sign=True)),
    Defence("decorrelated codes", {"decorrelate": 1.0}),
    *(Defence(f"codes of a class apart, {w:g}", {"spread": w}) for w in (0.3, 1.0)),
    *(
        Defence(f"noise {z:g} on codes and gradients", {"codes": each}, each, _COUNTED)
        for z, each in _NOISE.items()
    ),
    Defence("label DP, epsilon 2", {"label_epsilon": 2.0}, None, "labels: epsilon 2 a run"),
    Defence(
        "label DP, epsilon 2, learned prior",
        {"label_epsilon": 2.0, "label_stages": 2},
        None,
        "labels: epsilon 2 a run",
    ),
    Defence(
        "noise 1 on codes and gradients, DP-SGD at noise 4",
        {"codes": _NOISE[1.0], "private": PrivateSteps(noise=4.0)},
        _NOISE[1.0],
        _COUNTED + "; the model: epsilon counted with that of codes",
    ),
    Defence(
        "projection to 8, noise 0.5",
        {"projection": 8, "codes": _NOISE[0.5]},
        _NOISE[0.5],
        _COUNTED,
    ),
    Defence(
        "projection to 8, noise 1, label DP 2",
        {"projection": 8, "codes": _NOISE[1.0], "label_epsilon": 2.0},
        _NOISE[1.0],
        _COUNTED + "; labels: epsilon 2 a run",
    ),
    Defence("no messages: lambda = 0", {"trade_off": 0.0}),
)

_LABELS_STAY = "no label leaves"

#: Of APFed-D: labels by randomised response before partners are taught, or columns once.
DEFENCES_D = (
    Defence("as it is", {}),
    *(
        Defence(f"label DP, epsilon {e:g}", {"label_epsilon": e}, None, f"labels: epsilon {e:g}")
        for e in (0.5, 2.0)
    ),
    Defence(
        "label DP, epsilon 2, learned prior",
        {"label_epsilon": 2.0, "label_stages": 2},
        None,
        "labels: epsilon 2",
    ),
    *(
        Defence(
            f"columns once, {width} wide, noise {noise:g}",
            {},
            None,
            f"{_LABELS_STAY}; {_COUNTED}" if noise else _LABELS_STAY,
            Once(width=width, noise=noise),
        )
        for width, noise in ((4, 0.0), (1, 0.5), (1, 0.75), (1, 1.0), (2, 0.5), (2, 0.75),
                             (4, 0.25), (4, 0.5), (4, 1.0), (8, 0.5))
    ),
)  # fmt: skip

#: What the cell is called that trains without anybody.
BEST_ALONE = "the best model alone"


@dataclass(frozen=True)
class Cell:
    """What one defence costs and leaves.

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
    """

    stage: str
    cells: Sequence[Cell]
    limit: Verdict
    recommended: str | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def try_defences(
    run: RunFile,
    seeds: Sequence[int],
    *,
    limit: Verdict = "low",
    defences: Sequence[Defence] | None = None,
    talk: Talk = SILENT,
) -> Tried:
    """Train and audit each cell, of each seed.

    Raises:
        ConfigError: a run of another method, or of party files.
    """
    started = time.perf_counter()
    if not run.method.startswith("apfed") or run.data is None:
        raise ConfigError(
            f"--try is for simulated runs of apfed, apfed-r, apfed-c and apfed-d, whose defences "
            f"are settings; this run is of {run.method!r}"
        )
    if defences is None:
        defences = DEFENCES_D if run.method == "apfed-d" else DEFENCES
    loaded = load_data(run, talk=talk)
    drawn: dict[str, list[_Drawn]] = {}
    for seed in seeds:
        task = setup(run, seed, loaded)
        assert isinstance(task, Training)
        task, held = _hold_out(task, seed)
        lengths = 1.0
        for place, defence in enumerate(defences):
            talk.say(f"{run.method}, seed {seed}: {defence.name}")
            each, median = _draw(task, run.method, seed, defence, lengths, held)
            lengths = median if place == 0 else lengths
            drawn.setdefault(defence.name, []).append(each)
        talk.say(f"{run.method}, seed {seed}: {BEST_ALONE}")
        each, _ = _draw(task, "best-alone", seed, Defence(BEST_ALONE, {}), lengths, held)
        drawn.setdefault(BEST_ALONE, []).append(each)
    told = {each.name: each.guarantee for each in defences}
    cells = [_mean_cell(name, told.get(name, ""), each) for name, each in drawn.items()]
    seconds = time.perf_counter() - started
    return Tried(run.method, cells, limit, recommend(cells, limit), seconds)


def recommend(cells: Sequence[Cell], limit: Verdict) -> str | None:
    """The best on held-out rows of those within the limit, one that sends nothing left out."""
    within = [
        cell
        for cell in cells
        if VERDICTS.index(cell.verdict) <= VERDICTS.index(limit) and cell.advantage
    ]
    return max(within, key=lambda cell: cell.held_out).name if within else None


def _hold_out(task: Training, seed: int) -> tuple[Training, PartyData]:
    """The run without the labels of some rows, and these rows with them."""
    home = label_home(task)
    labelled = home.train.labelled_rows()
    rng = generator(seed, home.name, "held out of the grid")
    drawn = labelled[torch.randperm(len(labelled), generator=rng)]
    held = drawn[: max(1, round(HELD_OUT * len(drawn)))]
    homes = {**task.homes, home.name: home.without_labels_on(held)}
    return replace(task, homes=homes), home.train.take(held)


@dataclass(frozen=True)
class _Drawn:
    """One cell of one seed."""

    held_out: float
    test: Mapping[str, float]
    findings: Sequence[Finding]
    epsilon: float | None


def _draw(
    task: Training, stage: str, seed: int, defence: Defence, length: float, held: PartyData
) -> tuple[_Drawn, float]:
    """One cell of one seed, and the median length of a partner's gradient of one row."""
    gradients = defence.gradients
    if gradients is not None and gradients.clip is not None:
        gradients = gradients.model_copy(update={"clip": gradients.clip * length})

    def protected(own: PartnerHome) -> PartnerHome:
        config = own.config.model_copy(update={"gradients": gradients})
        teaching = own.distil.model_copy(update={"release": defence.once})
        return replace(own, config=config, distil=teaching)

    exchange = "gradients" if defence.once is None else "released"
    teaching = task.settings.distil.model_copy(update={"exchange": exchange})
    changed = replace(
        task,
        settings=task.settings.model_copy(update={**defence.active, "distil": teaching}),
        homes={
            **task.homes,
            **{name: protected(own) for name, own in partner_homes(task).items()},
        },
    )
    scene = scene_of(changed, changed.loaded.data)
    tape = Tape(scene.reading, scene.num_samples())
    with overheard(tape):
        outcome = changed.train(stage, seed, lambda *_: None)
    sends = stage == "apfed-d" or any(True for _ in _weights(changed))
    findings = attack(stage, scene, tape, outcome.models, Settings(network=False))
    home = label_home(task)
    model = outcome.models[home.name]
    assert held.labels is not None
    told = score(home.task, model.outputs(held.joined()), held.labels)
    first = "accuracy" if isinstance(home.task, Classification) else "r2"
    spent = [each["epsilon"] for each in outcome.about.get("epsilon", ())]
    drawn = _Drawn(
        float(told["auc" if "auc" in told else first]),
        dict(outcome.scores.get(stage, {}).get(home.name, {})),
        [each for each in findings if sends or each.channel == "model"],
        max(spent) if spent else None,
    )
    lengths = [
        float(torch.linalg.vector_norm(table.last, dim=1).median())
        for channel, table in tape.tables.items()
        if channel.what == "gradients"
    ]
    return drawn, max(lengths, default=1.0) or 1.0


def _mean_cell(name: str, guarantee: str, drawn: Sequence[_Drawn]) -> Cell:
    """One cell of all seeds."""
    by_key: dict[tuple[str, ...], list[Finding]] = {}
    for each in drawn:
        for finding in each.findings:
            by_key.setdefault(finding.key, []).append(finding)
    found = [over_seeds(each) for each in by_key.values()]
    of_messages = [each for each in found if each.channel != "model"]
    spent = [each.epsilon for each in drawn if each.epsilon is not None]
    scores = [key for key, value in drawn[0].test.items() if isinstance(value, float)]
    return Cell(
        name,
        guarantee,
        sum(each.held_out for each in drawn) / len(drawn),
        {key: sum(each.test[key] for each in drawn) / len(drawn) for key in scores},
        _by_target(of_messages),
        max((each.advantage for each in of_messages), default=0.0),
        worst_of(of_messages),
        max(spent) if spent else None,
        max((each.advantage for each in found if each.channel == "model"), default=0.0),
    )


def _weights(task: Training) -> Iterator[str]:
    """Partners whose loss counts."""
    for name in partner_homes(task):
        if active_config(task).weight(name):
            yield name


def _by_target(findings: Sequence[Finding]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in findings:
        name = f"{each.target} from {each.channel}"
        found[name] = max(found.get(name, -1.0), each.advantage)
    return found
