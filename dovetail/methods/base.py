"""Context of a method: a run and its file, a party's site, who drives and who watches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel
from torch import Tensor

from dovetail import data as dd
from dovetail.alignment.limits import Alignments
from dovetail.federated import Local
from dovetail.methods.party import Site
from dovetail.models import Model, Secret
from dovetail.models.owners import Bottom
from dovetail.network import Engine
from dovetail.network.checkpoint import StatefulParty
from dovetail.network.quota import Quota
from dovetail.settings.models import Calibrate, ClassWeights, Threshold, ThresholdSettings
from dovetail.settings.section import Precision

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


class Passing(Progress):
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
    guard: Alignments


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
