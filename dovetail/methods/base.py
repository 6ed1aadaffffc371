"""What a method is to everything else: its settings, its parties' sides, what drives it.

A method's folder has its paper (``methods/chfl/__init__.py``), what its run trains
(``stages.py``), and how both files, the run's and a party's, set it up (``wiring.py``). No other
room names a method.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from pydantic import BaseModel
from torch import Tensor

from dovetail import data as dd
from dovetail.alignment.limits import Guard
from dovetail.errors import ConfigError
from dovetail.methods.outcome import Setup
from dovetail.methods.party import Algorithm, Site
from dovetail.models import Model, Secret
from dovetail.models.owners import Bottom
from dovetail.network import Engine, Message, Precision, State
from dovetail.network.checkpoint import StatefulParty
from dovetail.privacy import SecretSums

S = TypeVar("S", bound=BaseModel)

# --- Whoever watches ---------------------------------------------------------------------------


class Points(Protocol):
    """A bar that moves."""

    def points(self, done: int, total: int) -> None:
        """So many points of so many are done."""


class Epochs(Protocol):
    """A bar for each stage of a run."""

    def epoch(self, stage: str, total: int, line: Mapping[str, Any]) -> None:
        """One epoch or round of a stage is done."""


class Waiting(Protocol):
    """Who is here and who is missing."""

    def changed(self, here: Iterable[str], missing: Iterable[str]) -> None:
        """Called at once, and whenever somebody comes or goes."""


class Talk:
    """Tells whoever watches; this one tells nobody."""

    def say(self, text: str) -> None:
        """One line that belongs to the work as it goes on."""

    def warn(self, text: str) -> None:
        """One line that is told even where nobody watches the work."""

    def points(self, title: str) -> AbstractContextManager[Points]:
        """A bar for an alignment, while the context is open."""
        return nullcontext(_Silent())

    def epochs(self, title: str) -> AbstractContextManager[Epochs]:
        """Bars for the stages of one seed, while the context is open."""
        return nullcontext(_Silent())

    def waiting(self, place: str) -> AbstractContextManager[Waiting]:
        """Who is waited for at this place, while the context is open."""
        return nullcontext(_Silent())


class _Silent:
    def points(self, done: int, total: int) -> None: ...
    def epoch(self, stage: str, total: int, line: Mapping[str, Any]) -> None: ...
    def changed(self, here: Iterable[str], missing: Iterable[str]) -> None: ...


#: Tells nobody.
SILENT = Talk()

# --- A party's side of a run -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Asked:
    """A run that a driver begins.

    Attributes:
        device: where the party computes.
        rows_S: its rows of the samples that it shares with the driver; raises AlignmentError where
            it has none of the alignment that the run is of.
        keep: saves what the party can use, and says how it scores on its own test rows.
        kept: id of a run -> the folder where ``keep`` saved what came of it.
        run: its id.
        aligned: a folder for rows of alignments that this driver carries between parties.
        secret: what its home mixes into random numbers of this run; another whenever it begins.
        guard: counts alignments that this driver carries.
        sums: names of those it sums with (None: anybody who is certified) -> its side of the run's
            secret sums.
    """

    device: torch.device
    rows_S: Callable[[], Tensor]
    keep: Callable[[Model | Bottom, Mapping[str, float]], None]
    kept: Callable[[str], Path]
    run: str
    aligned: Path
    secret: Secret
    guard: Guard
    sums: Callable[[Collection[str] | None], SecretSums]


class Maker(Protocol):
    """Makes a party's side of a run."""

    def __call__(self, asked: Asked, /) -> Callable[[], StatefulParty]:
        """What makes it afresh, each time it is called.

        Raises:
            AlignmentError: it has no rows of the run's alignment.
        """


class Finishing:
    """A party whose model is kept as soon as training is over.

    Args:
        party: what answers.
        finish: the message after which its model is whole.
        keep: called then.
    """

    def __init__(
        self, party: StatefulParty, finish: type[Message], keep: Callable[[], None]
    ) -> None:
        self.accepts = party.accepts
        self._party = party
        self._finish = finish
        self._keep = keep

    def handle(self, message: Message) -> Message:
        answer = self._party.handle(message)
        if isinstance(message, self._finish):
            self._keep()
        return answer

    def state(self) -> State:
        return self._party.state()

    def restore(self, state: State) -> None:
        self._party.restore(state)


# --- What a method sees of a run ---------------------------------------------------------------


class EngineKeys(Protocol):
    """[engine] of a run file, as methods need it."""

    @property
    def kind(self) -> str: ...
    @property
    def precision(self) -> Precision: ...


class PartitionKeys(Protocol):
    """[data.partition] of a run file, as methods need it."""

    @property
    def kind(self) -> str: ...
    def party_names(self) -> tuple[str, ...]: ...
    def active_party(self) -> str | None: ...


class DataKeys(Protocol):
    """[data] of a run file, as methods need it."""

    @property
    def partition(self) -> PartitionKeys: ...


class Run(Protocol):
    """A run file, as methods need it."""

    @property
    def method(self) -> str: ...
    @property
    def rulers(self) -> tuple[str, ...]: ...
    @property
    def evaluate_every(self) -> int: ...
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


class Driver(Protocol):
    """Whoever drives a run whose parties are elsewhere."""

    @property
    def sites(self) -> Mapping[str, Site]:
        """Its own party file and table by its name, if it has one."""

    def secret(self) -> bytes:
        """What its home mixes into random numbers."""

    def wait(self) -> None:
        """Wait until all partners are here."""

    def connect(self, stage: str) -> Engine:
        """What reaches the partners in one stage of the run."""


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
    def home(self) -> Path: ...
    def carry(self, run: str) -> Engine:
        """What reaches the partners while they align by way of this driver."""

    def say(self, text: str) -> None:
        """Tell whoever watches."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """The data of a run, the same for every seed.

    Attributes:
        data: training and test federation.
        active: the only party that has labels; None where several do.
        sites: party -> its own file and table; none in simulation.
        alignment, test_alignment: of party files; None in simulation, where ids are compared.
        connect: stage -> what reaches partners who are elsewhere; None where they are here.
        secret: of the home that drives; None where every party is in this process.
    """

    data: dd.Partitioned
    active: str | None
    sites: Mapping[str, Site] = field(default_factory=dict)
    alignment: dd.Alignment | None = None
    test_alignment: dd.Alignment | None = None
    connect: Callable[[str], Engine] | None = None
    secret: Secret | None = None


#: Training and test data, and how each is aligned, where that matters.
Parts = tuple[dd.Partitioned, dd.Alignment | None, dd.Alignment | None]

# --- A method ----------------------------------------------------------------------------------


class Method:
    """A method: what a run file and a party file say of it, and what makes its two sides.

    Attributes:
        name: its section of both files.
        Settings: the section of a run file; every key has a default.
        HomeSettings: the section of a party file, likewise; None: it has none.
        stages: what can be trained, the method and its rulers -> what a table calls it.
        scores: other names under which its stages are scored -> what a table calls them.
        partitions: the kinds of partition that it is simulated on.
        driven_by: who drives it over a network: the "active" party, or a "coordinator" without
            data; None: it is trained in one process only.
        algorithms: the part of its messages' wire names before the dot -> what a policy calls it.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[BaseModel]]
    HomeSettings: ClassVar[type[BaseModel] | None] = None
    stages: ClassVar[Mapping[str, str]]
    scores: ClassVar[Mapping[str, str]] = {}
    partitions: ClassVar[Collection[str]]
    driven_by: ClassVar[str | None] = None
    algorithms: ClassVar[Mapping[str, Algorithm]] = {}

    def check(self, run: Run, *, where: str) -> None:
        """Refuse what the sections' types allow and the method does not.

        Raises:
            ConfigError: naming the file and the section.
        """

    def check_home(self, section: Any) -> None:
        """Refuse what a party file's section allows and the method does not.

        Raises:
            ConfigError: what cannot be.
        """

    def resolved(self, run: Run) -> dict[str, Any]:
        """Its keys of the run file whose defaults the run file itself does not write out."""
        return {}

    def setup(self, run: Run, loaded: Loaded, device: torch.device) -> Setup:
        """Everything that one seed's run is a function of."""
        raise NotImplementedError(f"{type(self).__name__} has no setup")

    def load_sites(
        self, run: Run, sites: Mapping[str, Site], *, where: str, talk: Talk = SILENT
    ) -> Parts:
        """Party files: training and test data, and how each is aligned, where that matters.

        Raises:
            ConfigError: no party, a policy that refuses, or rows that cannot be learned from.
        """
        raise ConfigError(f"{where}: {run.method!r} is simulated only; give [data], not parties")

    def load_driver(self, run: Run, driver: Any, *, where: str) -> Parts:
        """What a driver has whose partners are elsewhere: as of ``load_sites``.

        Args:
            driver: an ``ActiveDriver`` or a ``CarryingDriver``, by ``driven_by``.
        """
        raise ConfigError(f"{where}: {run.method!r} is simulated only; leave [engine] out")

    def members(self, site: Site, allowed: Collection[str]) -> Mapping[str, Maker]:
        """Algorithm (a message's prefix) -> what makes a party's side of its runs.

        Of its own algorithms, those among ``allowed``. Mistakes in the table are told now.
        """
        return {}

    def describe(self, site: Site, agreed: Collection[str]) -> Iterable[str]:
        """Lines on what a party does that agrees to these algorithms, by their policy's names."""
        return ()
