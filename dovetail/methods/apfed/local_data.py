"""Data of a partner and the label owner of APFed, from their files or from a partition.

A partner's site makes its side of every method of an active party; the label owner's is what the
driver is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from dovetail.data import Alignment, Classification, Input, PartyData, SharedRows, Task
from dovetail.errors import ConfigError
from dovetail.federated import Local, Party
from dovetail.methods import apfed, vertical
from dovetail.methods.apfed import distil, sealed
from dovetail.methods.apfed.numbers import NumbersGiven
from dovetail.methods.base import Site
from dovetail.methods.limits import NO_LIMITS, Limits
from dovetail.methods.released import released_columns
from dovetail.methods.section import encoder_spec
from dovetail.methods.settings.apfed import ApfedSection, PassiveFields
from dovetail.methods.settings.shared import SealedLimits
from dovetail.models import Secret, derive_seed
from dovetail.models.learners import LEARNERS, Learner, hold_out
from dovetail.models.learners.in_context import InContext
from dovetail.settings.models import OptimizerConfig
from dovetail.settings.privacy import Once, Release
from dovetail.settings.section import narrowed

#: A partner's side, as its messages are called: of APFed-R and -C, of classic vertical learning,
#: of APFed-D and of APFed-S.
Side = Literal["apfed", "vertical", "distil", "sealed"]


@dataclass(frozen=True, eq=False)
class PartnerData:
    """A partner's own settings and rows, and what it answers messages with.

    Attributes:
        config: its section: of its own file, or as the run file has it.
        limits: of its policy.
        shared: its rows by shared sample; None until it is aligned.
        test: its test rows by shared sample; None if it has none.
        input: how raw columns become its rows, if they do.
        side: what it takes part in.
        sealed_limits: what it gives of each row in APFed-S; None: no policy says.
        given: how much it has given; None: nobody counts over runs.
        from_file: its network and rate are its own in comparisons too, as a party file's are; else
            classic vertical learning has all alike, as in the paper's comparison.
    """

    config: PassiveFields
    limits: Limits = NO_LIMITS
    shared: SharedRows | None = None
    test: SharedRows | None = None
    input: Input | None = None
    side: Side = "apfed"
    sealed_limits: SealedLimits | None = None
    given: NumbersGiven | None = None
    from_file: bool = False

    def with_loss(self, loss: Literal["reconstruction", "contrastive"]) -> PartnerData:
        """The partner's data, helping with this loss."""
        return replace(self, config=self.config.model_copy(update={"loss": loss}))

    def alike(self, section: ApfedSection) -> PartnerData:
        """The partner's data, trained as the active party is: as in the paper's comparison."""
        fields = narrowed(section, OptimizerConfig).model_dump()
        alike = PassiveFields(**fields, codes=self.config.codes, encoder=section.encoder)
        return replace(self, config=alike)

    @property
    def rows(self) -> SharedRows:
        """Rows of the partner by shared sample.

        Raises:
            ConfigError: it is not aligned yet.
        """
        if self.shared is None:
            raise ConfigError("a party takes part with aligned rows only; align first")
        return self.shared

    def party(self, local: Local) -> Party:
        """Party of a run that has these data."""
        return _SIDES[self.side](self, local)


def _is_guarded(local_data: PartnerData, local: Local) -> bool:
    """Whether answers may not be exact: at a site whoever asks may ask what it likes."""
    return local.lasting is not None and not local_data.config.exact


def _passive(local_data: PartnerData, local: Local) -> Party:
    once = _once(local_data, local, local_data.config.gradients)
    rows, _ = _released(local_data, local, once)
    return apfed.Passive(rows, local_data.config, encoder_spec(local_data.config.encoder), local)


def _member(local_data: PartnerData, local: Local) -> Party:
    config = local_data.config
    rows, test = _released(local_data, local, _once(local_data, local, config.codes))
    encoder = encoder_spec(config.encoder)
    return vertical.Member(rows, test, config, encoder, local, codes=config.codes)


def _once(local_data: PartnerData, local: Local, noised: Release | None) -> Once | None:
    """How columns are released once in place of themselves; None: answers are of them."""
    once = local_data.config.release
    if once is None and noised is None and _is_guarded(local_data, local):
        once = Once()
    return once


def _released(
    local_data: PartnerData, local: Local, once: Once | None
) -> tuple[SharedRows, SharedRows | None]:
    """Rows that train, and test rows, as answers may know them."""
    rows, test = local_data.rows, local_data.test
    if once is None:
        return rows, test
    x, release = released_columns(rows.x, once, rows.party, local.lasting)
    local.released_once("columns", "the active party", release.report())
    if test is not None:
        same = test.x is rows.x
        tested = x if same else released_columns(test.x, once, test.party, local.lasting)[0]
        test = replace(test, x=tested)
    return replace(rows, x=x), test


def _distil_partner(local_data: PartnerData, local: Local) -> Party:
    config = local_data.config.distil
    if config.release is None and _is_guarded(local_data, local):
        config = config.model_copy(update={"release": local_data.config.release or Once()})
    return distil.Partner(local_data.rows, local_data.test, config, local, input=local_data.input)


def _sealed_partner(local_data: PartnerData, local: Local) -> Party:
    return sealed.Partner(
        local_data.rows,
        local_data.test,
        local,
        local_data.sealed_limits,
        given=local_data.given,
        input=local_data.input,
        pictures=local_data.config.pictures,
    )


_SIDES: Mapping[Side, Callable[[PartnerData, Local], Party]] = {
    "apfed": _passive,
    "vertical": _member,
    "distil": _distil_partner,
    "sealed": _sealed_partner,
}


def labels_of(data: PartyData) -> Tensor:
    """Labels of rows of the label owner.

    Raises:
        ConfigError: it has none.
    """
    if data.labels is None:
        raise ConfigError(f"party {data.name!r} has no labels; the party that drives has them")
    return data.labels


@dataclass(frozen=True, eq=False, kw_only=True)
class LabelOwnerData:
    """Data of the active party.

    Attributes:
        train, test: its rows; some of those that train may lack a label.
        task: what it predicts.
        label: the label's name.
        input: how raw columns become its rows, if they do.
        alignment, test_alignment: its rows with its partners'; of the test rows None where there
            are none, or no variant asks about them. Partners' rows may be any number of 0 or more
            that says "elsewhere", and -1 where they have none; samples are numbered alike in both.
        secret: of the site; None in simulation.
        learners: name -> what learns from its own columns.
    """

    train: PartyData
    test: PartyData | None
    task: Task
    label: str
    input: Input | None
    alignment: Alignment
    test_alignment: Alignment | None
    secret: Secret | None = None
    learners: Mapping[str, Learner] = field(default_factory=lambda: LEARNERS)

    @property
    def name(self) -> str:
        """The party's."""
        return self.train.name

    @property
    def has_columns(self) -> bool:
        """Whether it has columns; a server may have labels alone (APFed, section 2)."""
        return self.train.joined().shape[1] > 0

    @property
    def tested(self) -> PartyData:
        """Test rows of the label owner.

        Raises:
            ConfigError: it has none.
        """
        if self.test is None:
            raise ConfigError(f"party {self.name!r} has no test rows; give test = 0.25")
        return self.test

    def among(self, partners: Collection[str]) -> LabelOwnerData:
        """The label owner's data, aligned with these partners only."""

        def of(alignment: Alignment) -> Alignment:
            kept = {self.name, *partners}
            return Alignment({n: rows for n, rows in alignment.rows.items() if n in kept})

        tested = self.test_alignment
        return replace(
            self,
            alignment=of(self.alignment),
            test_alignment=None if tested is None else of(tested),
        )

    def on_common_rows(self) -> LabelOwnerData:
        """The label owner's data with labels only on rows that all parties share: the set I."""
        alignment = self.alignment
        rows = alignment.rows[self.name][alignment.shared(*alignment.rows)]
        labelled = self.train.labelled_rows()
        return replace(self, train=self.train.with_labels_on(labelled[torch.isin(labelled, rows)]))

    def held_out(self, seed: int) -> Tensor:
        """The labelled rows that choose a threshold and a calibration."""
        labelled = self.train.labelled_rows()
        return hold_out(
            labelled,
            labels_of(self.train)[labelled],
            seed=derive_seed(seed, self.name, "threshold"),
            regression=not isinstance(self.task, Classification),
        )[1]

    def without_labels_on(self, rows: Tensor) -> LabelOwnerData:
        """The label owner's data without the labels of these rows."""
        labelled = self.train.labelled_rows()
        kept = labelled[~torch.isin(labelled, rows)]
        return replace(self, train=self.train.with_labels_on(kept))


def learners_of(site: Site | None) -> Mapping[str, Learner]:
    """Learners of a label owner's columns; its own file may name one more."""
    named = None if site is None else site.party.tabicl
    if named is None:
        return LEARNERS
    taught = InContext(Path(named.weights), named.weights_licence)
    return {**LEARNERS, taught.name: taught}
