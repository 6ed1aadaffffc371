"""A party as its own file describes it: its table, what it agrees to, its settings of each method.

``node/partyfile.py`` reads the file; every method is given what stands here, whether the party is
simulated, in this process, or answers a driver from its site.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from pydantic import BaseModel, Field, model_validator

from dovetail import data as dd
from dovetail.alignment import (
    Aligned,
    KeyResponder,
    Keys,
    MatchKey,
    Overlap,
    Reading,
    Responder,
    Workers,
    align,
    align_by_keys,
    count_by_keys,
    count_overlap,
    key_values,
    match_key,
)
from dovetail.alignment.limits import MAX_ALIGNMENTS, Limits, default_max_ids
from dovetail.alignment.proofs import CHECKED
from dovetail.cluster import computing_at
from dovetail.errors import ConfigError
from dovetail.methods.limits import Limits as RowLimits
from dovetail.methods.limits import SealedLimits, names_samples
from dovetail.methods.section import check_run_id
from dovetail.network import Engine, Message
from dovetail.network.addresses import check_driver
from dovetail.network.checkpoint import REQUESTS
from dovetail.network.quota import Quota
from dovetail.settings.encode import Encode
from dovetail.settings.labels import Label, with_task
from dovetail.settings.section import PartyName, Section

S = TypeVar("S", bound=BaseModel)


class PartySection(Section):
    """Whose table it is, where it is, and which columns mean what."""

    name: PartyName  # unique among the parties
    table: str  # .csv, .parquet, SELECT, URL of a database or lake, .npz, folder of images
    query: str | None = None  # for a database URL
    folders: tuple[str, ...] = ()  # other folders whose tables a SELECT may open
    # Pictures of the table's samples, beside it: .npz, or a folder of files named by id. HyFEM.
    images: str | None = None
    # the column that names each sample, or several that do so together; a folder's "file"
    id: str | tuple[str, ...]
    # the column to predict, or several as a list, or { time = COLUMN, event = COLUMN }, or
    # { count = COLUMN, exposure = COLUMN }; its owner drives. Of a folder of images: "folder"
    label: Label | None = None
    # what the label is (docs/tasks.md); a label of several columns says it by itself
    task: dd.Kind = "classification"
    columns: tuple[str, ...] = ("*",)  # which columns to use, as globs; a leading - removes
    blocks: dict[str, tuple[str, ...]] | None = None  # block -> columns; instead of columns
    categorical: tuple[str, ...] = ()  # numeric columns that are codes, as globs
    max_categories: int = Field(default=100, ge=1)  # more than so many: the rarest are pooled
    encode: dict[str, Encode] = Field(default_factory=dict)  # column -> how it is read
    lowercase_ids: bool = False  # compare ids without regard to case
    # Match keys in place of an id, tried in order: columns, or functions of columns such as
    # "sounds(surname)"; all parties list the same (docs/alignment.md).
    match: tuple[tuple[str, ...], ...] = ()
    match_columns: dict[str, str] = Field(default_factory=dict)  # what keys call it -> own column
    # whether 03/07/1980 is the third of July or the seventh of March
    match_dates: Literal["day-first", "month-first"] = "day-first"
    # country of telephone numbers without a country code, such as "GB"
    match_region: str | None = None
    # column with the true identity, to measure how well match keys work
    match_truth: str | None = None
    # column with the day at which a row is to be predicted: inspect warns of later dates, and no
    # model learns from it
    index_date: str | None = None
    # The party's own Ray cluster, for blinding ids, encoding texts and pictures, fitting learners
    # and multiplying ciphertexts: "auto", HOST:PORT or ray://HOST:PORT; none: this machine.
    compute: str | None = None
    # A list of revoked certificates (CRL) that must be there; else crl.pem beside the certificate,
    # where there is one.
    revoked: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _task_of_label(cls, values: Any) -> Any:
        return with_task(values)

    @model_validator(mode="after")
    def _columns_or_blocks(self) -> PartySection:
        if self.blocks is not None and self.columns != ("*",):
            raise ValueError("give columns or blocks, not both")
        if self.query is not None and not dd.is_database_url(self.table):
            raise ValueError("query is for a database URL; write the SELECT as table instead")
        return self

    @model_validator(mode="after")
    def _keys(self) -> PartySection:
        try:
            keys = self.match_keys()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        called = {name for key in keys for name in key.columns}
        for name in self.match_columns:
            if name not in called:
                raise ValueError(
                    f"match_columns names {name!r}, which no key of match has; they have "
                    f"{', '.join(sorted(called)) or 'none'}"
                )
        return self

    def match_keys(self) -> tuple[MatchKey, ...]:
        """The keys that stand in for an id.

        Raises:
            ConfigError: one that cannot be.
        """
        return tuple(map(match_key, self.match))

    def matching(self) -> dict[str, str]:
        """What keys call a column -> the column."""
        every = (name for key in self.match_keys() for name in key.columns)
        return {name: self.match_columns.get(name, name) for name in every}


@dataclass(frozen=True)
class Algorithm:
    """What a party can be asked for: what its side says of itself, for its policy to read.

    Attributes:
        policy: its name in a policy.
        messages: the wire names that it comes in.
        goes_on, predicts: as of ``Party``.
        begins: wire names of the messages with which training begins.
        samples: whether its messages name samples whose number and uses the policy limits.
        few: wire name -> how often such a message is answered in one run; see ``handles``.
    """

    policy: str
    messages: tuple[str, ...]
    goes_on: bool = True
    begins: tuple[str, ...] = ()
    samples: bool = False
    few: Mapping[str, int] = field(default_factory=dict)
    predicts: bool = False


def algorithm(policy: str, *sides: Any, also: tuple[type[Message], ...] = ()) -> Algorithm:
    """What a party can be asked for whose side is one of these classes.

    Args:
        policy: its name in a policy.
        sides: classes that have ``accepts``; a ``Party`` says more.
        also: messages that it answers besides.
    """
    accepts = dict.fromkeys([*(kind for side in sides for kind in side.accepts), *also])
    return Algorithm(
        policy,
        tuple(kind.wire_name() for kind in accepts),
        goes_on=all(getattr(side, "goes_on", True) for side in sides),
        begins=tuple(kind.wire_name() for side in sides for kind in getattr(side, "begins", ())),
        samples=any(names_samples(kind) for kind in accepts),
        few={
            kind.wire_name(): most
            for side in sides
            for kind, most in getattr(side, "few", {}).items()
        },
        predicts=any(getattr(side, "predicts", False) for side in sides),
    )


class PrivacySection(Section):
    """What one of its samples may cost in one run, towards one driver."""

    epsilon: float = Field(gt=0, allow_inf_nan=False)  # of one row, towards one driver
    delta: float = Field(default=1e-5, gt=0, lt=1)  # of that epsilon


#: Algorithms whose releases of rows are noised and counted, or say nothing of rows.
_COUNTED = ("align", "apfed", "tvfl", "fedoptimus", "chfl", "hyfem", "survival")


class PolicySection(Section):
    """What the party agrees to."""

    # What it takes part in; "apfed" is APFed-R and -C. "tvfl" (the classic baseline) sends codes of
    # its rows; of "chfl", "hyfem" and "fedoptimus" the coordinator sets the settings.
    algorithms: tuple[str, ...] = ("align", "apfed")
    drivers: tuple[str, ...] | None = None  # names that may drive; None: any
    # names of messages, such as "apfed.Codes"; None: all of its algorithms. Save and Restore, which
    # keep a state at the party's own site, are always answered.
    messages: tuple[str, ...] | None = None
    # the largest message that is read, in MiB
    max_message_mb: float = Field(default=256, gt=0, le=4096, allow_inf_nan=False)
    max_rows: int = Field(
        default=100_000, ge=1
    )  # most rows in one message; vectors of weights have none
    min_rows: int = Field(default=16, ge=1)  # least different samples in a message
    max_uses: int = Field(default=1000, ge=1)  # answers about one sample in one run
    max_begins: int = Field(default=1, ge=1)  # how often one run may start
    # most rows in a message that brings codes; nearly equal codes, which could read columns, are
    # refused, too
    max_codes: int = Field(default=1024, ge=1)
    max_runs_per_day: int = Field(default=200, ge=1)  # of a driver; baselines, seeds, trials count
    # memory for networks of all runs of a driver together, in MiB
    max_memory_mb: float = Field(default=2048, gt=0, allow_inf_nan=False)
    # disk for what is saved of one driver's runs together, in MiB; the oldest go first
    max_disk_mb: float = Field(default=4096, gt=0, allow_inf_nan=False)
    # what an alignment may find out: which ids are shared, or how many
    align_modes: tuple[Literal["intersection", "cardinality"], ...] = (
        "intersection",
        "cardinality",
    )
    min_ids: int = Field(default=0, ge=0)  # smallest set of ids to compare with
    # ids that a driver may compare in 24 hours; None: 5 times its own and 10,000
    max_ids: int | None = Field(default=None, ge=1)
    max_alignments: int = Field(default=MAX_ALIGNMENTS, ge=0)  # of a driver in 24 hours
    # count runs, ids and alignments of all drivers together, not of each
    together: bool = False
    check_places: int = Field(
        default=CHECKED, ge=1
    )  # rows that a driver claims to share and must prove
    # "signed": runs only of proposals that all of their parties have signed (dovetail review).
    approval: Literal["policy", "signed"] = "policy"
    # what APFed-S may give about each row
    sealed: SealedLimits = SealedLimits()
    privacy: PrivacySection | None = None  # what one sample may cost in a run; None: nothing counts

    @model_validator(mode="after")
    def _is_counted(self) -> PolicySection:
        others = [name for name in self.algorithms if name not in _COUNTED]
        if self.privacy is not None and others:
            raise ValueError(
                f"privacy is a budget of epsilon, and what {others[0]!r} sends is not counted; "
                f"take it out of algorithms, which then may have {', '.join(_COUNTED)}"
            )
        return self

    @property
    def limits(self) -> RowLimits:
        """How often, and about how many samples at a time, it answers in a run."""
        return RowLimits(self.min_rows, self.max_uses, self.max_begins, self.max_codes)

    def counted(self, driver: str) -> str:
        """Whose numbers of APFed-S are counted together: a driver's, or "" of all."""
        return "" if self.together else driver

    @property
    def max_message_bytes(self) -> int:
        return int(self.max_message_mb * 2**20)


class Header(Protocol):
    """What the header of a message says before anything else of it is read."""

    @property
    def type(self) -> str:
        """Its wire name."""

    @property
    def run(self) -> str:
        """The run's id."""


#: The part before the dot of the messages with which a driver shows a proposal. They tell nothing
#: of a table, so any driver that may ask at all may show one.
PROPOSALS = "agreements"

#: Messages that any algorithm may come with: they save and restore a party's state at its site.
_OF_ANY = tuple(message.__qualname__ for message in REQUESTS)


@dataclass(frozen=True)
class Policy:
    """Decides what a party answers, from its file alone.

    A message cannot change it. No field of a message is a network, a loss, a rate or a table, but
    for ``Begin`` of CHFL, HyFEM and FedOptimus: what is learned together has the coordinator's
    settings, so a party must allow these by name (they are not among the defaults).

    Attributes:
        section: the party's choice.
        algorithms: the part of a message's wire name before the dot -> what it belongs to.
    """

    section: PolicySection
    algorithms: Mapping[str, Algorithm]

    def check(self, algorithm: str, driver: str) -> None:
        """Refuse an algorithm, or whoever asks for it.

        Raises:
            ConfigError: what was asked and what is allowed.
        """
        if algorithm not in self.section.algorithms:
            allowed = ", ".join(self.section.algorithms) or "nothing"
            raise ConfigError(f"refuses {algorithm!r}: its policy allows {allowed}")
        self.check_driver(driver)

    def check_driver(self, driver: str) -> None:
        """Refuse whoever asks.

        Raises:
            ConfigError: who asked and who may.
        """
        check_driver(self.section.drivers, driver)

    def admit(self, header: Header, driver: str) -> None:
        """Refuse a message before it is decoded.

        Raises:
            ConfigError: what was asked and what is allowed.
        """
        check_run_id(header.run)
        prefix, _, kind = header.type.partition(".")
        if prefix == PROPOSALS:
            self.check_driver(driver)
            return
        algorithm = self.algorithms.get(prefix)
        self.check(algorithm.policy if algorithm else prefix[:100], driver)
        if algorithm is not None and kind in _OF_ANY:
            return
        if algorithm is None or header.type not in algorithm.messages:
            raise ConfigError(f"refuses {header.type[:100]!r}: no such message is known here")
        if self.section.messages is not None and header.type not in self.section.messages:
            allowed = ", ".join(self.section.messages) or "nothing"
            raise ConfigError(f"refuses {header.type!r}: its policy allows {allowed}")


@dataclass(frozen=True, eq=False)
class Site:
    """A party file that was read, and its table.

    Attributes:
        path: the file; what it names is relative to it, and its site stands beside it.
        party: whose table it is.
        policy: what it agrees to.
        sections: method -> the party's settings of it.
        table: its rows.
        where: what errors call it: the file, or what made it from Python.
    """

    path: Path
    party: PartySection
    policy: Policy
    sections: Mapping[str, BaseModel]
    table: dd.PartyTable
    where: str

    @property
    def name(self) -> str:
        return self.party.name

    def settings(self, method: str, kind: type[S]) -> S:
        """The party's settings of a method, which are of this kind."""
        section = self.sections[method]
        assert isinstance(section, kind)
        return section

    def computing(self) -> AbstractContextManager[None]:
        """While open, its heavy parts are computed on its own cluster, where it has one."""
        return computing_at(self.party.compute, f"{self.where}: party.compute")

    def fit_input(self, table: dd.PartyTable | None = None) -> dd.Input:
        """What turns its raw rows into network inputs, fitted on these rows of it (or on all)."""
        return (table or self.table).fit_input(
            categorical=self.party.categorical, max_categories=self.party.max_categories
        )

    def responder(self, workers: Workers | None = None) -> Responder:
        """Its side of an alignment, with what its policy agrees to.

        Raises:
            AlignmentError: ids that cannot be compared.
        """
        policy = self.policy.section
        if self.party.match:
            return KeyResponder(
                self.name,
                self.match_values(),
                modes=policy.align_modes,
                min_ids=policy.min_ids,
                max_ids=self.max_ids,
                checked=policy.check_places,
                workers=workers,
            )
        return Responder(
            self.name,
            self.table.ids,
            lower=self.party.lowercase_ids,
            modes=policy.align_modes,
            min_ids=policy.min_ids,
            max_ids=self.max_ids,
            checked=policy.check_places,
            workers=workers,
        )

    def match_values(self) -> Keys:
        """Every row's match keys, in the order in which they are tried.

        Raises:
            ConfigError: a library that is missing.
        """
        reading = Reading(self.party.match_dates, self.party.match_region)
        columns = self.table.matching
        return Keys(key_values(key, columns, reading) for key in self.party.match_keys())

    def compared(self, parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray | Keys]:
        """Part -> what its rows are compared by: their ids, or their match keys.

        Raises:
            ConfigError: a library that is missing.
        """
        if self.party.match:
            keys = self.match_values()
            return {part: keys.of(rows) for part, rows in parts.items()}
        return {part: self.table.ids[rows] for part, rows in parts.items()}

    def align(
        self,
        engine: Engine,
        *,
        workers: Workers | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Aligned:
        """Its side of an alignment that it starts: by ids, or by match keys.

        Raises:
            AlignmentError: ids that cannot be compared.
            PartyError: a partner refused, or did not follow the protocol.
        """
        if self.party.match:
            return align_by_keys(engine, self.match_values(), workers=workers, progress=progress)
        return align(
            engine,
            self.table.ids,
            lower=self.party.lowercase_ids,
            workers=workers,
            progress=progress,
        )

    def count(
        self,
        engine: Engine,
        *,
        workers: Workers | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> dict[str, Overlap]:
        """How many rows each partner has and shares, by ids or by match keys; nobody learns which.

        Raises:
            AlignmentError: ids that cannot be compared.
            PartyError: a partner refused, or did not follow the protocol.
        """
        if self.party.match:
            return count_by_keys(engine, self.match_values(), workers=workers, progress=progress)
        return count_overlap(
            engine,
            self.table.ids,
            lower=self.party.lowercase_ids,
            workers=workers,
            progress=progress,
        )

    @property
    def max_ids(self) -> int:
        """The most ids that a driver may compare with its own in a day."""
        max_ids = self.policy.section.max_ids
        return default_max_ids(self.table.num_rows) if max_ids is None else max_ids

    def limits(self, quota: Quota, print_line: Callable[[str], None]) -> Limits:
        """What counts alignments, in its site."""
        policy = self.policy.section
        return Limits(
            quota,
            max_alignments=policy.max_alignments,
            max_ids=self.max_ids,
            print_line=print_line,
            together=policy.together,
        )

    def check_policy(self, algorithm: str, driver: str) -> None:
        """Refuse what the party's file does not allow, where the party is in this process.

        Who drives has its table then, so that APFed-S, the default, needs no name there.

        Raises:
            ConfigError: naming the party, what was asked and what it allows.
        """
        unnamed = "algorithms" not in self.policy.section.model_fields_set
        counted = self.policy.section.privacy is not None
        try:
            if algorithm == "apfed-s" and unnamed and not counted:
                self.policy.check_driver(driver)
            else:
                self.policy.check(algorithm, driver)
        except ConfigError as refusal:
            named = algorithm in self.policy.section.algorithms
            hint = (
                "" if named else f"; its owner may add {algorithm!r} to algorithms of its [policy]"
            )
            raise ConfigError(f"party {self.name!r} {refusal} ({self.where}){hint}") from None
