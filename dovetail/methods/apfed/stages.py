"""APFed as a run trains it, beside the rulers of the paper's Table 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from dovetail.data import (
    Alignment,
    Classification,
    Federation,
    ImageInput,
    Partitioned,
    PartyData,
    SharedRows,
)
from dovetail.errors import ConfigError
from dovetail.methods import apfed, vertical
from dovetail.methods.apfed import distil
from dovetail.methods.apfed.distilling import ALONE, Distilling, train_alone, train_distilled
from dovetail.methods.apfed.gone import GONE, train_gone
from dovetail.methods.apfed.home import PartnerHome
from dovetail.methods.apfed.sections import Stage
from dovetail.methods.apfed.stacks import Config as DistilTeacher
from dovetail.methods.limits import NO_LIMITS, Limited
from dovetail.methods.loop import Party
from dovetail.methods.outcome import (
    Deciding,
    Observer,
    Outcome,
    about_decision,
    is_due,
    score_party,
    told,
)
from dovetail.models import EncoderSpec, Head, OptimizerConfig, Secret, derive_seed
from dovetail.models.decisions import Decided
from dovetail.models.learners import make_folds
from dovetail.models.learners.distil import DistilConfig
from dovetail.network import Checkpoint, Engine, InProcess, Precision
from dovetail.network.checkpoint import StatefulParty

_LOSSES: Mapping[str, Literal["reconstruction", "contrastive"] | None] = {
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


#: Of the labelled rows, one in so many chooses a threshold and a calibration.
_HOLD_OUT_ONE_IN = 5


@dataclass(frozen=True, kw_only=True)
class ApfedSetup:
    """Everything a run of APFed is a function of, but the seed.

    Attributes:
        method: what the run is about; its model is kept.
        data: training and test federation; with ``connect`` the active party's data are enough.
        active: the party that has labels.
        config: its settings.
        encoder, head: its networks; rulers use the same.
        passives: what the other parties have; not used with ``connect``.
        own_networks: in "tvfl" too, partners use the network and rate of their own settings, as
            party files demand; else those of the active party, as in the paper's comparison.
        alignment, test_alignment: rows by shared sample, of each federation; left out, ids are
            compared in the clear. With ``connect`` the partners' rows may be any number of 0 or
            more that says "elsewhere", and -1 where they have none; samples are numbered alike
            in both.
        rulers: what to train beside it.
        evaluate_every: epochs between scores on the test rows; 0 scores after the last only.
        device: where every party of this process computes.
        connect: stage -> what reaches the partners, who live elsewhere; None: they are made here,
            from ``data`` and ``passives``.
        secret: of the home that drives; None in simulation.
        precision: how float32 tensors travel between parties made here.
        teacher: the joint model of "apfed-d".
        students: what learns from it, and what is learned alone beside it.
        deciding: what mistakes cost; a threshold is chosen on a fifth of the labelled rows, which
            then train nobody ("apfed-d" has held-out rows anyway).
    """

    method: Stage
    data: Partitioned
    active: str
    config: apfed.Config
    encoder: EncoderSpec
    head: Head
    passives: Mapping[str, PartnerHome]
    own_networks: bool = False
    alignment: Alignment | None = None
    test_alignment: Alignment | None = None
    rulers: tuple[Stage, ...] = ()
    evaluate_every: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    connect: Callable[[str], Engine] | None = None
    secret: Secret | None = None
    precision: Precision = "float32"
    teacher: DistilTeacher = field(default_factory=DistilTeacher)
    students: DistilConfig = field(default_factory=DistilConfig)
    deciding: Deciding = field(default_factory=Deciding)

    def __post_init__(self) -> None:
        if self.connect is None:
            return
        if self.alignment is None or (self.data.test is not None and self.test_alignment is None):
            raise ConfigError(
                "partners live elsewhere, so their ids are not here to compare: give alignment, "
                "and test_alignment where there are test rows"
            )
        for stage in ("pooled", *GONE):
            if stage in (self.method, *self.rulers):
                raise ConfigError(f"{stage!r} needs everybody's columns here; leave it out")

    def align(self) -> Alignment:
        """Rows by shared training sample."""
        return self.alignment or self.data.train.align(self.active)

    def align_test(self) -> Alignment | None:
        """Rows by shared test sample, where there are test rows."""
        if self.data.test is None:
            return None
        return self.test_alignment or self.data.test.align(self.active)

    def train(
        self, stage: str, seed: int, observe: Observer, checkpoint: Checkpoint | None = None
    ) -> Outcome:
        """Train one stage, and score it at the party that has labels."""
        checkpoint = checkpoint or Checkpoint.none()
        if stage in ALONE:
            return train_alone(_distilling(self, seed, aligned=False), stage, observe)
        if stage == "apfed-d":
            return _train_distilled(self, seed, observe, checkpoint)
        if stage in GONE:
            work = _distilling(self, seed, aligned=True)
            return train_gone(work, stage, self.data.train, self.data.test, observe)
        train = _train_vertical if stage == "tvfl" else _train_active
        return train(self, stage, seed, observe, checkpoint)


def _train_active(
    setup: ApfedSetup, stage: str, seed: int, observe: Observer, checkpoint: Checkpoint
) -> Outcome:
    """APFed, or the active party without partners: alone, or with everybody's columns."""
    train, test = setup.data.train, setup.data.test
    data, test_data = train[setup.active], None if test is None else test[setup.active]
    alignment: Alignment | None = None
    engine: Engine = InProcess({}, driver=setup.active)
    made: dict[str, apfed.Passive] = {}
    if stage in _LOSSES:
        alignment = setup.align()

        def make() -> Mapping[str, StatefulParty]:
            made.update(_passives(setup, stage, setup.align()))
            return made

        engine = _engine(setup, stage, checkpoint, make)
    elif stage == "pooled":
        data = pool(setup.data, train, setup.active, setup.align())
        test_alignment = setup.align_test()
        if test is not None and test_alignment is not None:
            test_data = pool(setup.data, test, setup.active, test_alignment)
    if stage not in _LOSSES and setup.config.overlap == "common":
        data = _on_common_rows(setup, data)
    held_out = torch.empty(0, dtype=torch.int64)
    labels = data.labels
    if setup.deciding.needs_rows:
        data, held_out = _held_out(setup, data, seed)
    active = apfed.Active(
        data,
        alignment,
        setup.data.task,
        setup.config,
        seed=seed,
        encoder=setup.encoder,
        head=setup.head,
        device=setup.device,
        secret=setup.secret,
    )

    outcome = Outcome()
    for epoch in apfed.train(active, engine, checkpoint):
        line = epoch.line()
        if test_data is not None and _is_due(setup, epoch.number):
            assert test_data.labels is not None
            outputs = active.model().outputs(test_data.joined())
            line |= told({setup.active: _score(setup, stage, outputs, test_data.labels)})
        line |= epoch.left_out()
        spent = _spent(active, made)
        if spent:
            line |= {"epsilon": max(each["epsilon"] for each in spent)}
        observe(stage, setup.config.epochs, line)
    decision = None
    if setup.deciding.needs_rows:
        assert labels is not None
        outputs = active.model().outputs(data.joined()[held_out])
        decision = setup.deciding.decision(setup.data.task, outputs, labels[held_out])
    if test_data is not None:
        assert test_data.labels is not None
        outputs = active.model().outputs(test_data.joined())
        last = _score(setup, stage, outputs, test_data.labels, last=True, decision=decision)
        outcome.scores[stage] = {setup.active: last}
    if active.best.epoch:
        outcome.about["best epoch"] = active.best.epoch
    outcome.ledger = engine.ledger
    if spent := _spent(active, made):
        outcome.about["epsilon"] = spent
    if stage != "pooled":
        model = active.model()
        about = {**model.about, "method": stage, "label": setup.data.label}
        about |= about_decision(decision)
        if active.solo is not None:
            about["private"] = active.solo.told()
        inputs = {block: setup.data.inputs[setup.active] for block in model.shapes}
        outcome.models[setup.active] = replace(model, inputs=inputs, about=about)
    return outcome


def _spent(
    driver: apfed.Active | vertical.Owner, parties: Mapping[str, Party]
) -> list[dict[str, Any]]:
    """What noised releases have cost so far: of each sender to each receiver, where any is."""
    sides: list[apfed.Active | vertical.Owner | Party] = [driver, *parties.values()]
    return [{"from": side.name, **each} for side in sides for each in side.spent()]


def _engine(
    setup: ApfedSetup,
    stage: str,
    checkpoint: Checkpoint,
    make: Callable[[], Mapping[str, StatefulParty]],
) -> Engine:
    """What reaches the partners of a stage: elsewhere, or made here."""
    if setup.connect is not None:
        return setup.connect(stage)
    parties = checkpoint.hosting(_limited(setup, make()))
    return InProcess(parties, driver=setup.active, precision=setup.precision)


def _limited(
    setup: ApfedSetup, parties: Mapping[str, StatefulParty]
) -> Mapping[str, StatefulParty]:
    """These parties, where they have party files with what their policies answer."""
    return {
        name: party
        if (limits := setup.passives[name].limits) == NO_LIMITS
        else Limited(party, limits)
        for name, party in parties.items()
    }


def _on_common_rows(setup: ApfedSetup, data: PartyData) -> PartyData:
    """The active party's data with labels only on rows that all parties share: the set I."""
    alignment = setup.align()
    rows = alignment.rows[setup.active][alignment.shared(*alignment.rows)]
    labelled = data.labelled_rows()
    return data.with_labels_on(labelled[torch.isin(labelled, rows)])


def _held_out(setup: ApfedSetup, data: PartyData, seed: int) -> tuple[PartyData, Tensor]:
    """The data with labels on four fifths of its labelled rows, and the rows of the others."""
    labelled = data.labelled_rows()
    assert data.labels is not None
    folds = make_folds(
        data.labels[labelled],
        min(_HOLD_OUT_ONE_IN, len(labelled)),
        seed=derive_seed(seed, data.name, "threshold"),
        regression=not isinstance(setup.data.task, Classification),
    )
    return data.with_labels_on(labelled[folds != 0]), labelled[folds == 0]


def _distilling(setup: ApfedSetup, seed: int, *, aligned: bool) -> Distilling:
    """The label owner's side of "apfed-d", or what it learns alone."""
    train, test = setup.data.train, setup.data.test
    return Distilling(
        train=train[setup.active],
        test=None if test is None else test[setup.active],
        task=setup.data.task,
        label=setup.data.label,
        input=setup.data.inputs.get(setup.active),
        alignment=setup.align() if aligned else None,
        test_alignment=setup.align_test() if aligned else None,
        config=setup.teacher,
        students=setup.students,
        seed=seed,
        secret=setup.secret,
        deciding=setup.deciding,
        label_epsilon=setup.config.label_epsilon,
        label_stages=setup.config.label_stages,
    )


def _train_distilled(
    setup: ApfedSetup, seed: int, observe: Observer, checkpoint: Checkpoint
) -> Outcome:
    """The teacher with its partners, and the student of the label owner."""
    partners: dict[str, distil.Partner] = {}

    def make() -> Mapping[str, StatefulParty]:
        partners.update(_partners(setup))
        return partners

    engine = _engine(setup, "apfed-d", checkpoint, make)
    work = _distilling(setup, seed, aligned=True)
    outcome = train_distilled(work, engine, observe, checkpoint)
    spent = [
        {"from": name, "to": setup.active, "what": "columns", **partner.released.told()}
        for name, partner in partners.items()
        if partner.released is not None and partner.released.once.noise
    ]
    if spent:
        outcome.about["epsilon"] = spent
    if outcome.joint is not None:  # those that are elsewhere keep their own at home
        outcome.bottoms = {
            name: partner.bottom_model()
            for name, partner in partners.items()
            if name in outcome.about["distilled"]["partners"]
        }
    return outcome


def _shared(setup: ApfedSetup, name: str) -> tuple[SharedRows, SharedRows | None]:
    """A partner's rows by shared sample: those that train, and those that test."""
    train, test, tested = setup.data.train, setup.data.test, setup.align_test()
    shared = SharedRows(name, train[name].joined(), setup.align().rows[name])
    if test is None or tested is None:
        return shared, None
    return shared, SharedRows(name, test[name].joined(), tested.rows[name])


def _partners(setup: ApfedSetup) -> dict[str, distil.Partner]:
    return {
        name: home.partner(*_shared(setup, name), input=setup.data.inputs.get(name))
        for name, home in setup.passives.items()
    }


def _passives(setup: ApfedSetup, stage: str, alignment: Alignment) -> dict[str, apfed.Passive]:
    loss = _LOSSES[stage]
    return {
        name: (home if loss is None else home.with_loss(loss)).passive(
            SharedRows(name, setup.data.train[name].joined(), alignment.rows[name]),
            device=setup.device,
        )
        for name, home in setup.passives.items()
    }


def _train_vertical(
    setup: ApfedSetup, stage: str, seed: int, observe: Observer, checkpoint: Checkpoint
) -> Outcome:
    """Classic vertical learning, scored with its partners present and with them gone."""
    test, test_alignment = setup.data.test, setup.align_test()
    config = vertical.Config(**setup.config.model_dump(include=set(vertical.Config.model_fields)))
    members: dict[str, vertical.Member] = {}

    def make() -> Mapping[str, StatefulParty]:
        members.update(_members(setup, config))
        return members

    engine = _engine(setup, stage, checkpoint, make)
    owner = vertical.Owner(
        setup.data.train[setup.active],
        setup.align(),
        setup.data.task,
        config,
        seed=seed,
        encoder=setup.encoder,
        head=setup.head,
        device=setup.device,
        secret=setup.secret,
    )

    outcome = Outcome()
    for epoch in vertical.train(owner, engine, checkpoint):
        line = epoch.line()
        if spent := _spent(owner, members):
            line |= {"epsilon": max(each["epsilon"] for each in spent)}
        if test is not None and test_alignment is not None and _is_due(setup, epoch.number):
            last = epoch.number == config.epochs
            together = _score_together(setup, owner, engine, test, test_alignment, last=last)
            if together is not None:
                scores = {setup.active: together}
                checkpoint.extra["scores"] = {stage: scores}
                line |= told(scores)
        observe(stage, config.epochs, line)
    if spent := _spent(owner, members):
        outcome.about["epsilon"] = spent
    # Kept with the state, for a stage that is resumed after its last epoch.
    outcome.scores |= checkpoint.extra.get("scores", {})
    outcome.ledger = engine.ledger
    if test is not None:
        own = test[setup.active]
        assert own.labels is not None
        for substitute, outputs in vertical.predict_alone(owner, own.joined()).items():
            name = SUBSTITUTES[substitute]
            said = _score(setup, name, outputs, own.labels, last=True)
            outcome.scores[name] = {setup.active: said}
    return outcome


def _members(setup: ApfedSetup, config: vertical.Config) -> dict[str, vertical.Member]:
    # As in the paper's comparison all are trained as the active party is, unless each has a file.
    alike = apfed.PassiveConfig(**config.model_dump(include=set(OptimizerConfig.model_fields)))
    homes = {
        name: setup.passives[name]
        if setup.own_networks
        else PartnerHome(
            alike.model_copy(update={"codes": setup.passives[name].config.codes}), setup.encoder
        )
        for name in setup.data.train.parties
        if name != setup.active
    }
    return {
        name: home.member(*_shared(setup, name), device=setup.device)
        for name, home in homes.items()
    }


def _score_together(
    setup: ApfedSetup,
    owner: vertical.Owner,
    engine: Engine,
    test: Federation,
    alignment: Alignment,
    *,
    last: bool,
) -> dict[str, Any] | None:
    """Scores with every partner present, on the test samples that all have; None if too few.

    Where that is not every test row, "rows" says how many.
    """
    samples = alignment.shared(*alignment.rows)
    if len(samples) < owner.min_rows:  # partners answer about no fewer
        return None
    # In the order of its own rows: samples are numbered at random in each alignment, sums are not.
    samples = samples[alignment.rows[setup.active][samples].argsort()]
    rows = alignment.rows[setup.active][samples]
    own = test[setup.active]
    assert own.labels is not None
    outputs = vertical.predict(owner, engine, own.joined()[rows], samples)
    scores = _score(setup, "tvfl", outputs, own.labels[rows], last=last)
    return scores if len(rows) == own.num_rows else {**scores, "rows": len(rows)}


def _score(
    setup: ApfedSetup,
    what: str,
    outputs: Tensor,
    labels: Tensor,
    *,
    last: bool = False,
    decision: Decided | None = None,
) -> dict[str, Any]:
    return score_party(
        setup.active,
        what,
        setup.data.task,
        outputs,
        labels,
        learning_rate=setup.config.learning_rate,
        last=last,
        decision=decision,
    )


def _is_due(setup: ApfedSetup, epoch: int) -> bool:
    return is_due(epoch, setup.config.epochs, setup.evaluate_every)


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
