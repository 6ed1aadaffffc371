"""The driver's side of a command whose partners are elsewhere: listen, wait, align, connect.

A driver is the party with labels, or, where every party has them, a coordinator without data.

bank.toml                       its own party file
bank.site/                      what it keeps, as dovetail join does at its partners
    aligned/bank.safetensors    its row of each sample, and which partner has which
    ledger.jsonl                what left it, and for whom
    driver.log
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

from dovetail import alignment as psi
from dovetail import data as dd
from dovetail.alignment import stored
from dovetail.errors import AlignmentError, ConfigError, MessageError, PartyError
from dovetail.federated import federation
from dovetail.methods.base import SILENT, Progress, Site
from dovetail.models import derive_key
from dovetail.network import Engine, calls, checkpoint, connection, credentials, renewal, stream
from dovetail.network.certificates import certificate_name, make_folder
from dovetail.network.heads import Tell, Told
from dovetail.network.ledger import LedgerFile
from dovetail.network.sessions import Lines
from dovetail.node.agreements import Plan, Seen, Show
from dovetail.node.engines import ElsewhereSection
from dovetail.node.proposal import Proposal, Signature, agreed_run
from dovetail.node.record import Account, read_account, write_record
from dovetail.node.site_folder import SiteFolder, logged, site_folder_of, site_secret
from dovetail.node.warnings import Warned

#: Seconds from one look at who is here to the next.
TICK_S = 0.1


#: Seconds of waiting after which it is told where to look; TLS ends before a name is known here.
HINT_S = 20.0

_HINT = (
    "still waiting: if dovetail join runs there, its terminal says why it does not get through; a "
    "driver's name that is spelled otherwise is seen there alone"
)

#: TLS ends before a name is known here.
_STRANGER = (
    "{address} dials in again and again and gets no further than TLS: if it is a partner, its "
    "certificate or ca.pem is of another authority than this side's; hand over the folder that "
    "dovetail certificates made here, or sign its request (dovetail certificates NAME --sign)"
)

#: How often an alignment begins at most, whose partner was started again in the middle.
ALIGN_TRIES = 3

#: Seconds that a partner is given at the end to say where its ledger stands.
HEADS_TIMEOUT_S = 5.0

#: The run of what driver and partners tell each other of their ledgers.
LEDGERS = "ledgers"

_log = logging.getLogger(__name__)

#: (driver's name, its ledger) -> its lines to the partners, as long as the context is open.
Reach = Callable[[str, LedgerFile], AbstractContextManager[Lines]]


class Listener:
    """Whoever drives, and its lines to the partners, which are open while the context is.

    Args:
        name: its own; the one in its certificate.
        site_folder: the folder that it keeps.
        section: who takes part, and how long they are waited for.
        reach: opens the lines.
        talk: told who is waited for, lost, and back.
        wait_s: how long to wait for another process to leave the folder.

    Attributes:
        sites: its own party file and table by its name, if it has one.
        site_folder: where its site is.

    Raises:
        ConfigError: an address where it cannot listen, when the context is entered.
    """

    def __init__(
        self,
        name: str,
        site_folder: Path,
        section: ElsewhereSection,
        reach: Reach,
        *,
        talk: Progress = SILENT,
        wait_s: float = 0.0,
    ) -> None:
        self.name = name
        self.sites: Mapping[str, Site] = {}
        self.partners = section.partners
        self.site_folder = site_folder
        self._section = section
        self._talk = talk
        self._reach = reach
        self._wait_s = wait_s
        self._stack = ExitStack()
        self._run: tuple[str, ...] = ()
        self._waited = False
        self._told = False  # since anything else was asked
        self._agreed: tuple[Proposal, Mapping[str, Signature]] | None = None
        self._plan: Plan | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for site in self.sites.values():
                stack.enter_context(site.computing())
            stack.enter_context(SiteFolder(self.site_folder, wait_s=self._wait_s))
            stack.enter_context(logged(self.site_folder / "driver.log"))
            stack.enter_context(Warned(_WARNING, self._talk.warn))
            ledger = stack.enter_context(LedgerFile(self.site_folder / "ledger.jsonl", self.name))
            self._lines = stack.enter_context(self._reach(self.name, ledger))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.exchange_heads()
        finally:
            self._stack.close()

    def exchange_heads(self) -> dict[str, Account]:
        """Send partners that are here the head of its ledger, and hear where theirs do.

        Gives what each says of the runs that it took part in, where a proposal was agreed on.
        """
        if not self._waited or self._told:
            return {}
        here = self._lines.connected
        engine = self._engine(LEDGERS, here)
        self._told = True
        replies = engine.ask(dict.fromkeys(here, Tell()), Told, timeout_s=HEADS_TIMEOUT_S)
        for failure in replies.failures.values():
            _log.warning("the end of its ledger is not known: %s", failure)
        accounts = {}
        for party, reply in replies.items():
            try:
                account = read_account(reply.account, party)
            except MessageError as error:
                _log.warning("%s", error)
                continue
            if account is not None:
                accounts[party] = account
        return accounts

    def samples(self) -> str:
        """SHA-256 of the ids of its own samples that a run is of; "" of one without data."""
        return ""

    def record(self, folder: Path, run: str, accounts: Mapping[str, Account]) -> None:
        """Write a run's record into its folder, when all else is there.

        Raises:
            OSError: it cannot be written.
        """
        heads = {} if self._lines.heads is None else self._lines.heads.last(self.partners)
        write_record(
            folder,
            run=run,
            driver=self.name,
            parties=self.partners,
            proposal="" if self._agreed is None else self._agreed[0].name,
            heads=heads,
            accounts=accounts,
            samples=self.samples(),
            identity=self._lines.identity,
        )

    def secret(self) -> bytes:
        """Secret that its site mixes into the random numbers of its runs."""
        return site_secret(self.site_folder)

    def wait(self) -> None:
        """Wait until all partners are here; from then on it learns when one is lost, or back.

        Raises:
            NetworkError: some did not come in time.
        """
        if self._waited:
            return
        section = self._section
        with _hinted(self._lines, self._talk), self._talk.waiting(section.where) as waiting:
            self._lines.wait(section.wait_s, waiting)
        self._stack.enter_context(_watched(self._lines, self._talk))
        self._waited = True
        if self._agreed is not None:
            proposal, signatures = self._agreed
            self._show(Show(proposal.text, tuple(each.text for each in signatures.values())))
        if self._plan is not None:
            self._show(self._plan)

    def _show(self, message: Show | Plan) -> None:
        """Have all partners see what is about to run.

        Raises:
            PartyError: one that refuses it.
        """
        engine = self._engine("proposals")
        engine.ask(dict.fromkeys(self.partners, message), Seen).or_raise()

    def heads(self) -> dict[str, dict[str, Any]]:
        """Where its ledger stands, and what partners have sent of theirs: lines and hash."""
        heads = self._lines.heads
        return {} if heads is None else heads.report((self.name, *self.partners))

    def planned(self, plan: Plan) -> None:
        """Ask partners for what the run needs: refusals come before ids are compared."""
        self._plan = plan

    def agreed(self, proposal: Proposal, signatures: Mapping[str, Signature]) -> None:
        """Note that later runs are of this proposal, which partners are shown first."""
        self._agreed = proposal, signatures

    def _engine(self, run: str, parties: Sequence[str] | None = None) -> Engine:
        """Engine that reaches these partners in a run, or all."""
        section, self._told = self._section, False
        return self._lines.engine(
            run if self._agreed is None else agreed_run(run, self._agreed[0].name),
            parties=parties,
            precision=section.precision,
            grace_s=section.grace_s,
            wait_s=section.wait_s,
            timeout_s=section.timeout_s,
        )


class Coordinator(Listener):
    """A driver that has no data: its name and folder are its own.

    Attributes:
        alignment: name of the one that it carried between its parties, which its runs train on;
            "" where samples need not be aligned.

    Raises:
        ConfigError: its own name among the partners; else as of ``Listener``.
    """

    def __init__(
        self,
        section: ElsewhereSection,
        site_folder: Path,
        reach: Reach,
        *,
        talk: Progress = SILENT,
        wait_s: float = 0.0,
    ) -> None:
        name = coordinator_name(section)
        self.alignment = ""
        super().__init__(name, site_folder, section, reach, talk=talk, wait_s=wait_s)

    def begin(self, seed: int, run: str) -> str:
        """From here on ``connect`` reaches the partners in this run of this seed; its whole id.

        Raises:
            AlignmentError: the run began on another alignment.
        """
        aligned, slash, fresh = run.rpartition("/")
        if slash and aligned != self.alignment:
            raise AlignmentError(
                f"the run began on alignment {aligned!r}, and the parties have aligned again since "
                f"({self.alignment!r}); start anew with --overwrite"
            )
        run = stored.training_run(self.alignment, fresh) if self.alignment else fresh
        self._run = (run, f"seed-{seed}")
        return run

    def print(self, text: str) -> None:
        """Report to whoever watches."""
        self._talk.print(text)

    def carry(self, run: str) -> Engine:
        """Engine that reaches the partners while they align by way of this driver."""
        return self._engine(run)

    def connect(self, variant: str) -> Engine:
        """Engine that reaches the partners in one variant of the run that was started."""
        run, seed = self._run
        return self._engine(f"{run}/{variant}/{seed}")


class Driver(Listener):
    """The party that drives, and its lines to the others.

    Args:
        site: its own party file and table.
        section: who takes part, and how long they are waited for.
        reach: opens the lines.
        talk: told who is waited for, lost, and back.

    Raises:
        ConfigError: its own name among the partners; else as of ``Listener``.
    """

    def __init__(
        self,
        site: Site,
        section: ElsewhereSection,
        reach: Reach,
        *,
        talk: Progress = SILENT,
        wait_s: float = 0.0,
    ) -> None:
        check_partners(site, section)
        self.site = replace(site, secret=partial(site_secret, site_folder_of(site.path)))
        self._stored: stored.StoredRows | None = None
        super().__init__(
            site.name,
            site_folder_of(site.path),
            section,
            reach,
            talk=talk,
            wait_s=wait_s,
        )
        self.sites = {site.name: self.site}

    def secret(self) -> bytes:
        """The site's, mixed with the ids: of another table rows lie in other orders."""
        return derive_key(super().secret(), "table", self._table)

    @cached_property
    def _table(self) -> str:
        return stored.digest(self.site.table.ids)

    def samples(self) -> str:
        """SHA-256 of the ids of its own samples that a run is of."""
        ids = self.site.table.ids
        if self._stored is None:
            return stored.digest(ids)
        local_S = self._stored.rows_S
        return stored.digest(ids[local_S[local_S >= 0].numpy()])

    def align(self, *, workers: int = 1) -> psi.Aligned:
        """Align with all partners, and keep the result; each partner keeps its own rows.

        A partner that was started again in the middle has lost its secret: all begin again.
        """
        self.wait()
        with psi.Workers(workers) as shared:
            for left in reversed(range(ALIGN_TRIES)):
                run, before = secrets.token_hex(8), self._num_connections()
                try:
                    with self._talk.points("aligning") as bar:
                        aligned = self.site.align(self._engine(run), workers=shared, progress=bar)
                    break
                except PartyError as failure:
                    now = self._num_connections()
                    if not left or before == now or failure.party not in self._lines.connected:
                        raise _not_aligned(failure) from None
                    self._talk.warn(f"{failure}: aligning anew")
        rows = aligned.alignment.rows
        self._stored = stored.StoredRows(
            self.site.name,
            run,
            rows[self.site.name],
            stored.digest(self.site.table.ids),
            self.site.name,
            {name: rows[name] >= 0 for name in self.partners},
        )
        make_folder(self.stored_path.parent)
        stored.save_rows(self.stored_path, self._stored)
        return aligned

    def count(self, *, workers: int = 1) -> dict[str, psi.Overlap]:
        """How many rows each partner has and shares; nobody learns which."""
        self.wait()
        with psi.Workers(workers) as shared, self._talk.points("counting") as bar:
            engine = self._engine(secrets.token_hex(8))
            return self.site.count(engine, workers=shared, progress=bar)

    def _num_connections(self) -> dict[str, int]:
        """Partner -> how many there were of its processes and lines."""
        return {name: link.num_connections for name, link in self._lines.links.items()}

    @property
    def stored_path(self) -> Path:
        """Where it keeps its own part of an alignment."""
        return self.site_folder / "aligned" / f"{certificate_name(self.site.name)}.safetensors"

    def alignment(self) -> dd.Alignment:
        """Alignment that ``dovetail align`` left here, or one made now; of this run's partners.

        Raises:
            AlignmentError: what it left is of another table, or not of all partners.
            PartyError: a partner does not align.
        """
        if not self.stored_path.exists():
            self.align()
        else:  # a table that changed is told before anyone is waited for
            self._stored = stored.load_rows(self.stored_path, self.site.name, self.site.table.ids)
            self._plan = None  # no ids are compared, so what refuses the plan refuses the run
        assert self._stored is not None
        known = self._stored.alignment()
        missing = [name for name in self.partners if name not in known.rows]
        if missing:
            raise AlignmentError(
                f"{self.site.name!r} is aligned with {', '.join(map(repr, self._stored.partners))} "
                f"and not with {', '.join(map(repr, missing))}; align again with all of them "
                "(dovetail align RUN)"
            )
        self.wait()
        return dd.Alignment({name: known.rows[name] for name in (self.site.name, *self.partners)})

    def begin(self, seed: int, run: str) -> str:
        """From here on ``connect`` reaches the partners in this run of this seed; its whole id.

        Args:
            seed: the run's.
            run: its id as a run folder keeps it: new for a run that starts, with the alignment in
                front for one that is resumed.

        Raises:
            AlignmentError: the run began on another alignment.
        """
        assert self._stored is not None
        aligned, slash, fresh = run.rpartition("/")
        if slash and aligned != self._stored.run:
            raise AlignmentError(
                f"the run began on alignment {stored.alignment_of(run)!r}, and {self.site.name!r} "
                f"has aligned again since ({self._stored.run!r}); start anew with --overwrite"
            )
        self._run = (f"seed-{seed}", fresh)
        return f"{self._stored.run}/{fresh}"

    def connect(self, variant: str) -> Engine:
        """Engine that reaches the partners in one variant of the run that was started."""
        assert self._stored is not None
        return self._engine(stored.training_run(self._stored.run, variant, *self._run))


def _not_aligned(failure: PartyError) -> PartyError:
    """A failure of an alignment, with what to do."""
    first = "" if "dovetail join" in failure.cause else f"put that right at {failure.party!r}, "
    said = f"{failure.cause}, {first}then give this command again: nothing was aligned"
    return PartyError(failure.party, said)


def coordinator_name(section: ElsewhereSection) -> str:
    """Name of a driver without data.

    Raises:
        ConfigError: as one of the partners is.
    """
    name = section.name or "coordinator"
    if name in section.partners:
        raise ConfigError(
            f"partners names {name!r}, which is the driver itself; name the others only, or "
            "give the driver another engine.name"
        )
    return name


def check_partners(site: Site, section: ElsewhereSection) -> None:
    """Refuse a driver that is its own partner.

    Raises:
        ConfigError: naming it and its file.
    """
    if site.name in section.partners:
        raise ConfigError(
            f"partners names {site.name!r}, which is the driver itself ({site.where}); name the "
            "others only"
        )


# --- What is said ---------------------------------------------------------------------------------


@contextmanager
def _hinted(lines: Lines, talk: Progress) -> Iterator[None]:
    """Says who connects and is not let in, and in a while where to look."""
    ended = threading.Event()

    def look() -> None:
        until, told = time.monotonic() + HINT_S, set[str]()
        while not ended.wait(1.0):
            for address in lines.strangers():
                if address not in told:
                    told.add(address)
                    talk.warn(_STRANGER.format(address=address))
            if time.monotonic() > until:
                until = math.inf
                talk.warn(_HINT)

    threading.Thread(target=look, daemon=True, name="dovetail-hints").start()
    try:
        yield
    finally:
        ended.set()


@contextmanager
def _watched(lines: Lines, talk: Progress) -> Iterator[None]:
    """Says when a partner is lost, and when it is back; not what is missed meanwhile."""
    ended = threading.Event()

    def watch() -> None:
        lost_at: dict[str, float] = {}
        over = False
        while not over:
            over = ended.wait(TICK_S)  # the last look is after the end, for who came back just now
            here, now = lines.connected, time.monotonic()
            for name in lines.links:
                if name not in here and name not in lost_at and not over:
                    lost_at[name] = now
                    talk.warn(f"{time.strftime('%H:%M:%S')} lost {name!r}; it may come back")
                elif name in here and name in lost_at:
                    away_s = now - lost_at.pop(name)
                    talk.warn(f"{time.strftime('%H:%M:%S')} {name!r} is back after {away_s:.1f} s")

    thread = threading.Thread(target=watch, daemon=True, name="dovetail-watch")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


#: Whose warnings a driver's user is told.
_WARNING = (stream, connection, calls, checkpoint, federation, credentials, renewal)
