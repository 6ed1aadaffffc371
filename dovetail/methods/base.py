"""Context of a method: a party's site and policy, a run and its file, who drives and who watches.

``node/partyfile.py`` reads a party's file: its table, what it agrees to, its settings of each
method. Every method is given what stands here, whether the party is simulated, in this process, or
answers a driver from its site.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, Unpack

import numpy as np
from pydantic import BaseModel
from torch import Tensor

from dovetail import alignment
from dovetail import data as dd
from dovetail.alignment.stored import digest
from dovetail.cluster import computing_at
from dovetail.data.wording import toml_text
from dovetail.errors import ConfigError
from dovetail.federated import Local
from dovetail.methods.limits import names_samples
from dovetail.methods.section import check_run_id
from dovetail.methods.settings.party import PartySection, PolicySection
from dovetail.models import Model, Secret, derive_key
from dovetail.models.owners import Bottom
from dovetail.network import Engine, Message
from dovetail.network.checkpoint import REQUESTS, StatefulParty
from dovetail.network.quota import Quota
from dovetail.settings.models import Calibrate, ClassWeights, Threshold, ThresholdSettings
from dovetail.settings.section import Precision


@dataclass(frozen=True)
class Algorithm:
    """Description of a party's side, for its policy to read.

    Attributes:
        policy: its name in a policy.
        messages: the wire names that it comes in.
        goes_on, predicts: as of ``Party``.
        starts: wire names of the messages with which training starts.
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
    """Description of a party whose side is one of these classes.

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


class Header(Protocol):
    """Header of a message, which is read before anything else of it."""

    @property
    def type(self) -> str:
        """Wire name of the message."""

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
        from dovetail.network.addresses import check_driver  # and certificates, 8 MB

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
        path: the file; what it names is relative to it, and its site is beside it.
        party: whose table it is.
        policy: what it agrees to.
        sections: method -> the party's settings of it.
        table: its rows.
        where: what errors call it: the file, or what made it from Python.
        secret: of its folder, where others are elsewhere; None in simulation.
    """

    path: Path
    party: PartySection
    policy: Policy
    sections: Mapping[str, BaseModel]
    table: dd.PartyTable
    where: str
    secret: Secret | None = None

    @property
    def name(self) -> str:
        return self.party.name

    @property
    def key(self) -> bytes | None:
        """Of draws that follow its labels, the same in all runs of this table; None in simulation.

        Partners see which rows were drawn, and would compute labels from a seed that they know.
        """
        if self.secret is None:
            return None
        return derive_key(self.secret(), "split", digest(self.table.ids), num_bytes=32)

    def split_seed(self, purpose: str) -> dd.Seed:
        """Seed of a split that keeps the classes' shares."""
        key = self.key
        if key is None:
            return 0
        return np.frombuffer(derive_key(key, purpose, num_bytes=32), "<u4")

    def settings(self, method: str, kind: type[S]) -> S:
        """The party's settings of a method, which are of this kind."""
        section = self.sections[method]
        assert isinstance(section, kind)
        return section

    def computing(self) -> AbstractContextManager[None]:
        """While open, its heavy parts are computed on its own cluster, where it has one."""
        return computing_at(self.party.compute, f"{self.where}: party.compute")

    def fit_input(self, table: dd.PartyTable | None = None) -> dd.Input:
        """Encoder that turns its raw rows into network inputs, fitted on these rows of it (or on
        all)."""
        return (table or self.table).fit_input(
            categorical=self.party.categorical, max_categories=self.party.max_categories
        )

    def responder(self, workers: alignment.Workers | None = None) -> alignment.Responder:
        """Responder of an alignment, with what its policy agrees to.

        Raises:
            AlignmentError: ids that cannot be compared.
        """
        policy = self.policy.section
        agreed: dict[str, Any] = {
            "modes": policy.align_modes,
            "min_ids": policy.min_ids,
            "max_ids": self.max_ids,
            "checked": policy.check_places,
            "workers": workers,
        }
        if self.party.match:
            return alignment.KeyResponder(self.name, self.match_values(), **agreed)
        return alignment.Responder(self.name, self.table.ids, id_as=self.party.id_as, **agreed)

    def match_values(self) -> alignment.Keys:
        """Every row's match keys, in the order in which they are tried.

        Raises:
            ConfigError: a library that is missing.
        """
        reading = alignment.MatchFormats(self.party.match_dates, self.party.match_region)
        columns = self.table.matching
        return alignment.Keys(
            alignment.key_values(key, columns, reading) for key in self.party.match_keys()
        )

    def compared(self, parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray | alignment.Keys]:
        """Part -> what its rows are compared by: their ids, or their match keys.

        Raises:
            ConfigError: a library that is missing.
        """
        if self.party.match:
            keys = self.match_values()
            return {part: keys.of(rows) for part, rows in parts.items()}
        return {part: self.table.ids[rows] for part, rows in parts.items()}

    def align(self, engine: Engine, **pace: Unpack[alignment.Pace]) -> alignment.Aligned:
        """Alignment that the party starts: by ids, or by match keys.

        Raises:
            AlignmentError: ids that cannot be compared.
            PartyError: a partner refused, or did not follow the protocol.
        """
        if self.party.match:
            return alignment.align_by_keys(engine, self.match_values(), **pace)
        return alignment.align(engine, self.table.ids, id_as=self.party.id_as, **pace)

    def count(self, engine: Engine, **pace: Unpack[alignment.Pace]) -> dict[str, alignment.Overlap]:
        """How many rows each partner has and shares, by ids or by match keys; nobody learns which.

        Raises:
            AlignmentError: ids that cannot be compared.
            PartyError: a partner refused, or did not follow the protocol.
        """
        if self.party.match:
            return alignment.count_by_keys(engine, self.match_values(), **pace)
        return alignment.count_overlap(engine, self.table.ids, id_as=self.party.id_as, **pace)

    @property
    def max_ids(self) -> int:
        """The most ids that a driver may compare with its own in a day."""
        max_ids = self.policy.section.max_ids
        return alignment.default_max_ids(self.table.num_rows) if max_ids is None else max_ids

    def alignments(self, quota: Quota, print_line: Callable[[str], None]) -> alignment.Alignments:
        """Counter of alignments, in its site."""
        policy = self.policy.section
        return alignment.Alignments(
            quota,
            max_alignments=policy.max_alignments,
            max_ids=self.max_ids,
            print_line=print_line,
            together=policy.together,
        )

    def check_policy(self, algorithm: str, driver: str) -> None:
        """Refuse what the party's file does not allow, where the party is in this process.

        Raises:
            ConfigError: naming the party, what was asked and what it allows.
        """
        try:
            self.policy.check(algorithm, driver)
        except ConfigError as refusal:
            policy = self.policy.section
            lines = []  # all that it takes, not one line after the other
            if algorithm not in policy.algorithms:
                lines.append(f"algorithms = {toml_text([*policy.algorithms, algorithm])}")
            if policy.drivers is not None and driver not in policy.drivers:
                lines.append(f"drivers = {toml_text([*policy.drivers, driver])}")
            raise ConfigError(
                f"party {self.name!r} {refusal} ({self.where}); its owner may write below "
                f"[policy]: {' and '.join(lines)}"
            ) from None


S = TypeVar("S", bound=BaseModel)

# --- Whoever watches ---------------------------------------------------------------------------


#: Moves a bar: so many points of so many are done.
Points = Callable[[int, int], None]

#: One epoch or round of a variant is done: the variant, of how many, and its line.
Epochs = Callable[[str, int, Mapping[str, Any]], None]

#: Who is here and who is missing, at once and whenever somebody comes or goes.
Waiting = Callable[[Iterable[str], Iterable[str]], None]


def _silent(*_: object) -> None:
    """Reports nothing."""


class Progress:
    """Reports to whoever watches; this one reports nothing."""

    def print(self, text: str) -> None:
        """Print a line that belongs to the work as it goes on."""

    def warn(self, text: str) -> None:
        """Print a line even if nobody watches the work."""

    def points(self, title: str) -> AbstractContextManager[Points]:
        """A bar for an alignment, while the context is open."""
        return nullcontext(_silent)

    def epochs(self, title: str) -> AbstractContextManager[Epochs]:
        """Bars for the variants of one seed, while the context is open."""
        return nullcontext(_silent)

    def waiting(self, address: str) -> AbstractContextManager[Waiting]:
        """Context that shows which parties are waited for at this place."""
        return nullcontext(_silent)


class ForwardedProgress(Progress):
    """Passes all on to who else watches.

    Args:
        shown: who else watches.
    """

    def __init__(self, shown: Progress) -> None:
        self._shown = shown

    def print(self, text: str) -> None:
        self._shown.print(text)

    def warn(self, text: str) -> None:
        self._shown.warn(text)

    def points(self, title: str) -> AbstractContextManager[Points]:
        return self._shown.points(title)

    def epochs(self, title: str) -> AbstractContextManager[Epochs]:
        return self._shown.epochs(title)

    def waiting(self, address: str) -> AbstractContextManager[Waiting]:
        return self._shown.waiting(address)


#: Tells nobody.
SILENT = Progress()

# --- A party's side of a run -------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class Asked:
    """A run that a driver starts with a party at its site.

    Attributes:
        local: the party's context in this run, new each time.
        rows_S: its rows of the samples that it shares with the driver; raises AlignmentError where
            it has none of the alignment that the run is of.
        keep: saves what the party can use, and says how it scores on its own test rows; to be
            called when it has finished (``Party.finished``).
        kept: id of a run -> the folder where ``keep`` saved its result.
        run: its id.
        driver: who asks.
        quota: counts what is answered.
        aligned: a folder for rows of alignments that this driver carries between parties.
        guard: counts alignments that this driver carries.
    """

    local: Callable[[], Local]
    rows_S: Callable[[], Tensor]
    keep: Callable[[Model | Bottom, Mapping[str, float]], None]
    kept: Callable[[str], Path]
    run: str
    driver: str
    aligned: Path
    quota: Quota
    guard: alignment.Alignments


class Maker(Protocol):
    """Makes a party's side of a run."""

    def __call__(self, asked: Asked, /) -> Callable[[], StatefulParty]:
        """Factory that makes it afresh at each call.

        Raises:
            AlignmentError: it has no rows of the run's alignment.
        """


# --- What a method sees of a run ---------------------------------------------------------------


class EngineKeys(Protocol):
    """The keys of [engine] that methods need."""

    @property
    def kind(self) -> str: ...
    @property
    def elsewhere(self) -> bool: ...
    @property
    def precision(self) -> Precision: ...


class PartitionKeys(Protocol):
    """[data.partition] of a run file, as methods need it."""

    @property
    def kind(self) -> str: ...
    def party_names(self) -> tuple[str, ...]: ...
    def active_party(self) -> str | None: ...


class DataKeys(Protocol):
    """[data] of a run file, as methods and partitions need it."""

    @property
    def partition(self) -> PartitionKeys: ...
    @property
    def task(self) -> dd.Kind: ...
    @property
    def split_seed(self) -> int: ...
    @property
    def categorical(self) -> tuple[str, ...]: ...
    @property
    def max_categories(self) -> int: ...


class Run(Protocol):
    """A run file, as methods need it."""

    @property
    def method(self) -> str: ...
    @property
    def baselines(self) -> tuple[str, ...]: ...
    @property
    def evaluate_every(self) -> int: ...
    @property
    def class_weights(self) -> ClassWeights | None: ...
    @property
    def threshold(self) -> Threshold | None: ...
    @property
    def calibrate(self) -> Calibrate | None: ...
    @property
    def active(self) -> str | None: ...
    @property
    def test(self) -> float | None: ...
    @property
    def data(self) -> DataKeys | None: ...
    @property
    def engine(self) -> EngineKeys: ...
    @property
    def passive(self) -> Mapping[str, Any]: ...

    def settings(self, method: str, kind: type[S], /) -> S:
        """The run's settings of a method, which are of this kind."""


C = TypeVar("C", bound=BaseModel)


def weighed(config: C, run: Run) -> C:
    """Settings with the run's weights of classes, if it has any."""
    if run.class_weights is None:
        return config
    return config.model_copy(update={"loss_weights": run.class_weights})


def deciding(config: C, run: Run, *, judges: bool = False) -> C:
    """Settings with what each party is to decide on rows that it keeps out of training.

    Args:
        judges: they are kept out in any case, and judge.
    """
    if run.threshold is None and run.calibrate is None and not judges:
        return config
    decide = ThresholdSettings(threshold=run.threshold, calibrate=run.calibrate)
    return config.model_copy(update={"decide": decide})


class Driver(Protocol):
    """Whoever drives a run whose parties are elsewhere."""

    @property
    def sites(self) -> Mapping[str, Site]:
        """Sites of the driver: its party file and table by its name, if it has one."""

    def secret(self) -> bytes:
        """Secret that its site mixes into random numbers."""

    def wait(self) -> None:
        """Wait until all partners are here."""

    def connect(self, variant: str) -> Engine:
        """Engine that reaches the partners in one variant of the run."""


class ActiveDriver(Driver, Protocol):
    """The party with labels, which drives."""

    @property
    def site(self) -> Site: ...
    @property
    def partners(self) -> tuple[str, ...]: ...
    def alignment(self) -> dd.Alignment:
        """How it is aligned with this run's partners."""


class CarryingDriver(Driver, Protocol):
    """A coordinator without data, which carries alignments between parties."""

    alignment: str  # name of the one that its runs train on

    @property
    def site_folder(self) -> Path: ...
    def carry(self, run: str) -> Engine:
        """Engine that reaches the partners while they align by way of this driver."""

    def print(self, text: str) -> None:
        """Report to whoever watches."""


class Hosts(Protocol):
    """Has parties of this process answer elsewhere, or together with other processes."""

    def engine(self, kind: Callable[..., Engine], /) -> Callable[..., Engine]:
        """Factory of the engine that asks these parties, instead of one of this kind."""

    def __call__(
        self,
        parties: Mapping[str, Any],
        sides: Mapping[str, StatefulParty],
        variant: str,
        seed: int,
        /,
    ) -> tuple[Mapping[str, Any], Mapping[str, StatefulParty]]:
        """Parties, and what answers for each, of a variant -> the same from here on."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """The data of a run, the same for every seed.

    Attributes:
        data: training and test federation.
        active: the only party that has labels; None where several do.
        sites: party -> its own file and table; none in simulation.
        alignment, test_alignment: of party files; None in simulation, where ids are compared.
        connect: variant -> what reaches partners who are elsewhere; None where they are here.
        secret: of the site that drives; None where every party is in this process.
        hosts: has parties answer on a cluster, or in a group; None: in this process.
    """

    data: dd.Partitioned
    active: str | None = None
    sites: Mapping[str, Site] = field(default_factory=dict)
    alignment: dd.Alignment | None = None
    test_alignment: dd.Alignment | None = None
    connect: Callable[[str], Engine] | None = None
    secret: Secret | None = None
    hosts: Hosts | None = None

    @property
    def shared(self) -> dict[str, int]:
        """Partner -> how many of the label owner's rows it has, too; {} where no files are aligned
        with one label owner."""
        counts: dict[str, int] = {}
        for part in (self.alignment, self.test_alignment):
            if self.active is not None and part is not None:
                for name in part.rows.keys() - {self.active}:
                    counts[name] = counts.get(name, 0) + len(part.shared(self.active, name))
        return dict(sorted(counts.items()))
