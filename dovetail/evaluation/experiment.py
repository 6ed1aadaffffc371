"""One simulated run: a method, and the rulers beside it, on the same rows and seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from dovetail.algorithms import apfed, vertical
from dovetail.data import (
    Alignment,
    Federation,
    ImageInput,
    Partitioned,
    PartyData,
    SharedRows,
)
from dovetail.errors import ConfigError, TrainingError
from dovetail.evaluation.metrics import score
from dovetail.models import EncoderSpec, Head, Model
from dovetail.network import InProcess, Ledger

#: What can be trained. "apfed" has passive parties as they are set up; "apfed-r" and "apfed-c" give
#: all of them the reconstruction or the contrastive loss. "alone" is the active party without
#: partners, "pooled" has everybody's columns in one place, "tvfl" is classic vertical learning,
#: scored with partners present and gone.
Stage = Literal["apfed", "apfed-r", "apfed-c", "alone", "pooled", "tvfl"]

_LOSSES: Mapping[Stage, Literal["reconstruction", "contrastive"] | None] = {
    "apfed": None,
    "apfed-r": "reconstruction",
    "apfed-c": "contrastive",
}

#: Rulers as the paper's Table 2 names them, from what stands in for the partners.
SUBSTITUTES: Mapping[vertical.Substitute, str] = {
    "zeros": "tvfl-0",
    "average": "tvfl-a",
    "random": "tvfl-r",
}


@dataclass(frozen=True)
class PassiveSetup:
    """A simulated passive party: its config and its network."""

    config: apfed.PassiveConfig
    network: EncoderSpec


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Everything a run is a function of, but the seed.

    Attributes:
        method: what the run is about; its models are kept.
        data: training and test federation.
        active: the party that has labels.
        config: its settings.
        encoder, head: its networks; rulers use the same.
        passives: the other parties' settings.
        own_networks: in "tvfl" too, partners use the network and rate of their own settings, as
            party files demand; else those of the active party, as in the paper's comparison.
        alignment, test_alignment: rows by shared sample, of each federation; left out, ids are
            compared in the clear.
        rulers: what to train beside it.
        evaluate_every: epochs between scores on the test rows; 0 scores after the last only.
        device: where every party computes.
    """

    method: Stage
    data: Partitioned
    active: str
    config: apfed.Config
    encoder: EncoderSpec
    head: Head
    passives: Mapping[str, PassiveSetup]
    own_networks: bool = False
    alignment: Alignment | None = None
    test_alignment: Alignment | None = None
    rulers: tuple[Stage, ...] = ()
    evaluate_every: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def align(self) -> Alignment:
        """Rows by shared training sample."""
        return self.alignment or self.data.train.align(self.active)

    def align_test(self) -> Alignment | None:
        """Rows by shared test sample, where there are test rows."""
        if self.data.test is None:
            return None
        return self.test_alignment or self.data.test.align(self.active)


@dataclass
class Outcome:
    """What one stage of a run gave.

    Attributes:
        scores: name -> scores of the party with labels on the test rows. The name is the stage's;
            "tvfl" scores also its substitutes.
        seconds: wall time of training.
        ledger: what left each party.
        missed: party -> what it was left out of: "steps", "of" and "first" (why).
        model: what the party with labels can use alone, where there is such a thing.
    """

    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    ledger: Ledger = field(default_factory=Ledger)
    missed: dict[str, dict[str, Any]] = field(default_factory=dict)
    model: Model | None = None


#: Told of each epoch: stage, epochs in all, and the line for ``metrics.jsonl``.
Observer = Callable[[str, int, dict[str, Any]], None]


def run(setup: Setup, seed: int, observe: Observer) -> Iterator[tuple[Stage, Outcome]]:
    """Train the method, then each ruler; gives each as it is done."""
    for stage in dict.fromkeys((setup.method, *setup.rulers)):
        outcome = Outcome()
        if stage == "tvfl":
            _train_vertical(setup, seed, observe, outcome)
        else:
            _train_active(stage, setup, seed, observe, outcome)
        yield stage, outcome


def _train_active(
    stage: Stage, setup: Setup, seed: int, observe: Observer, outcome: Outcome
) -> None:
    """APFed, or the active party without partners: alone, or with everybody's columns."""
    train, test = setup.data.train, setup.data.test
    data, test_data = train[setup.active], None if test is None else test[setup.active]
    alignment, engine = None, InProcess({}, driver=setup.active)
    if stage in _LOSSES:
        alignment = setup.align()
        engine = InProcess(_passives(stage, setup, alignment), driver=setup.active)
    elif stage == "pooled":
        data = pool(setup.data, train, setup.active, setup.align())
        test_alignment = setup.align_test()
        if test is not None and test_alignment is not None:
            test_data = pool(setup.data, test, setup.active, test_alignment)
    if stage not in _LOSSES and setup.config.overlap == "common":
        data = _on_common_rows(setup, data)
    active = apfed.Active(
        data,
        alignment,
        setup.data.task,
        setup.config,
        seed=seed,
        encoder=setup.encoder,
        head=setup.head,
        device=setup.device,
    )
    num_steps = 0
    for epoch in apfed.train(active, engine):
        num_steps += epoch.num_steps
        outcome.seconds += epoch.seconds
        for party, steps in epoch.missed.items():
            entry = outcome.missed.setdefault(party, {"steps": 0, "first": epoch.reasons[party]})
            entry["steps"] += steps
        line: dict[str, Any] = {
            "epoch": epoch.number,
            "loss": epoch.loss,
            "seconds": epoch.seconds,
        }
        if test_data is not None and _is_due(setup, epoch.number):
            assert test_data.labels is not None
            outputs = active.model().outputs(test_data.joined())
            outcome.scores[stage] = _score(setup, stage, outputs, test_data.labels)
            line |= outcome.scores[stage]
        if epoch.missed:
            line |= {"missed": dict(epoch.missed), "reasons": dict(epoch.reasons)}
        observe(stage, setup.config.epochs, line)
    for entry in outcome.missed.values():
        entry["of"] = num_steps
    outcome.ledger = engine.ledger
    if stage != "pooled":
        model = active.model()
        about = {**model.about, "method": stage, "label": setup.data.label}
        outcome.model = replace(model, input=setup.data.inputs[setup.active], about=about)


def _on_common_rows(setup: Setup, data: PartyData) -> PartyData:
    """The active party's data with labels only on rows that all parties share: the set I."""
    alignment = setup.align()
    rows = alignment.rows[setup.active][alignment.shared(*alignment.rows)]
    labelled = data.labelled_rows()
    return data.with_labels_on(labelled[torch.isin(labelled, rows)])


def _passives(stage: Stage, setup: Setup, alignment: Alignment) -> dict[str, apfed.Passive]:
    loss = _LOSSES[stage]
    return {
        name: apfed.Passive(
            SharedRows(name, setup.data.train[name].joined(), alignment.rows[name]),
            passive.config.model_copy(update={"loss": loss} if loss else None),
            passive.network,
            device=setup.device,
        )
        for name, passive in setup.passives.items()
    }


def _is_due(setup: Setup, epoch: int) -> bool:
    last = epoch == setup.config.epochs
    return last or (setup.evaluate_every > 0 and epoch % setup.evaluate_every == 0)


def _train_vertical(setup: Setup, seed: int, observe: Observer, outcome: Outcome) -> None:
    """Classic vertical learning, scored with its partners present and with them gone."""
    train, test = setup.data.train, setup.data.test
    alignment, test_alignment = setup.align(), setup.align_test()
    config = vertical.Config(**setup.config.model_dump(include=set(vertical.Config.model_fields)))
    partners = [name for name in train.parties if name != setup.active]
    if not partners:
        raise ConfigError("the ruler 'tvfl' needs at least one party beside the active one")
    members = {
        name: vertical.Member(
            SharedRows(name, train[name].joined(), alignment.rows[name]),
            SharedRows(name, test[name].joined(), test_alignment.rows[name])
            if test is not None and test_alignment is not None
            else None,
            setup.passives[name].config if setup.own_networks else config,
            setup.passives[name].network if setup.own_networks else setup.encoder,
            device=setup.device,
        )
        for name in partners
    }
    engine = InProcess(members, driver=setup.active)
    owner = vertical.Owner(
        train[setup.active],
        alignment,
        setup.data.task,
        config,
        seed=seed,
        encoder=setup.encoder,
        head=setup.head,
        device=setup.device,
    )
    for epoch in vertical.train(owner, engine):
        outcome.seconds += epoch.seconds
        line = {"epoch": epoch.number, "loss": epoch.loss, "seconds": epoch.seconds}
        if test is not None and test_alignment is not None and _is_due(setup, epoch.number):
            together = _score_together(setup, owner, engine, test, test_alignment)
            if together is not None:
                outcome.scores["tvfl"] = together
                line |= together
        observe("tvfl", config.epochs, line)
    outcome.ledger = engine.ledger
    if test is not None:
        own = test[setup.active]
        assert own.labels is not None
        for substitute, outputs in vertical.predict_alone(owner, own.joined()).items():
            name = SUBSTITUTES[substitute]
            outcome.scores[name] = _score(setup, name, outputs, own.labels)


def _score_together(
    setup: Setup,
    owner: vertical.Owner,
    engine: InProcess,
    test: Federation,
    alignment: Alignment,
) -> dict[str, float] | None:
    """Scores with every partner present, on the test samples that all have; None if there is none.

    Where that is not every test row, "rows" says how many.
    """
    samples = alignment.shared(*alignment.rows)
    if not len(samples):
        return None
    # In the order of its own rows: samples are numbered at random in each alignment.
    samples = samples[alignment.rows[setup.active][samples].argsort()]
    # In the order of its rows: numbers of samples are random in each alignment, sums are not.
    samples = samples[alignment.rows[setup.active][samples].argsort()]
    rows = alignment.rows[setup.active][samples]
    own = test[setup.active]
    assert own.labels is not None
    outputs = vertical.predict(owner, engine, own.joined()[rows], samples)
    scores = _score(setup, "tvfl", outputs, own.labels[rows])
    return scores if len(rows) == own.num_rows else {**scores, "rows": len(rows)}


def _score(setup: Setup, what: str, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Scores on the test rows.

    Raises:
        TrainingError: outputs that are not finite: the last step of an epoch led astray.
    """
    num_lost = int((~outputs.isfinite().all(dim=1)).sum())
    if num_lost:
        raise TrainingError(
            f"party {setup.active!r}: after training {what!r} its outputs are not finite on "
            f"{num_lost} of {len(outputs)} test rows; lower the learning_rate "
            f"({setup.config.learning_rate})"
        )
    return score(setup.data.task, outputs, labels)


def pool(
    data: Partitioned, federation: Federation, active: str, alignment: Alignment | None = None
) -> PartyData:
    """Everybody's columns joined onto the active party's rows, as if one place held all.

    A party that lacks a row gives zeros for it: the mean of standardised columns. Rows are those
    that ``alignment`` names; left out, ids are compared in the clear.
    """
    alignment = alignment or federation.align(active)
    held = alignment.rows[active] >= 0
    own = federation[active].take(alignment.rows[active][held])
    parts: list[Tensor] = []
    for name, party in federation.parties.items():
        rows = alignment.rows[name][held]
        x = party.joined()
        part = x[rows.clamp(min=0)]
        part[rows < 0] = 0
        parts.append(part)
    return replace(own, blocks={"pooled": torch.cat(parts, dim=_join_axis(data, parts[0]))})


def _join_axis(data: Partitioned, part: Tensor) -> int:
    """The axis along which blocks lie side by side: columns, or the one that strips were cut."""
    first = next(iter(data.inputs.values()))
    if part.ndim == 4 and isinstance(first, ImageInput):
        return {"height": 2, "width": 3}[first.axis]
    return 1
