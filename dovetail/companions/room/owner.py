"""A data owner's room: what it is asked to agree to, who is connected, what has left it.

All that it does is done by what the commands do: ``dovetail review`` and ``dovetail join``.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dovetail.alignment.stored import load_rows
from dovetail.audit.measured import reported_of
from dovetail.companions.room.jobs import Job, Jobs
from dovetail.errors import ConfigError, DovetailError
from dovetail.methods import variants
from dovetail.methods.base import Site
from dovetail.network.certificates import certificate_name
from dovetail.network.ledger import files_of, verify
from dovetail.node.partyfile import algorithms, open_site
from dovetail.node.proposal import Proposal, Signature, parse_proposal
from dovetail.node.reviewing import Reviewer, changes
from dovetail.node.site_folder import is_used, site_folder_of, warnings_of
from dovetail.runs.proposing import review

#: Bytes of a proposal that is handed in, and of a log that is shown.
MAX_PROPOSAL, _SHOWN = 2**20, 6_000

#: Refusals that are shown, the newest.
_REFUSALS = 50

_log = logging.getLogger(__name__)

#: The job that serves drivers.
JOIN = "join"


@dataclass(frozen=True)
class Review:
    """A proposal, and what this party makes of it.

    Attributes:
        proposal: what is proposed.
        signatures: party -> what it has said.
        used: runs that began on it.
        against: why the party's file does not go with it; of one that is read.
        last: the driver's proposal before; None: there is none.
        changes: key, value then, value now.
        ours: what this party has said; None: nothing yet.
    """

    proposal: Proposal
    signatures: Mapping[str, Signature]
    used: list[dict[str, str]]
    against: list[str]
    last: Proposal | None
    changes: list[tuple[str, Any, Any]]
    ours: Signature | None

    @property
    def name(self) -> str:
        """The first of its hash, as commands show it."""
        return self.proposal.name[:12]


@dataclass(frozen=True)
class Left:
    """Messages that have left for one receiver.

    Attributes:
        receiver: whom it went to.
        messages, bytes: how often, and how much.
        last: when.
        epsilon: the most that it cost one sample; None: nothing of it was noised.
        algorithms: what it was asked for, as a policy calls it.
    """

    receiver: str
    messages: int
    bytes: int
    last: str
    epsilon: float | None
    algorithms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Told:
    """Answers to an officer's questions about one receiver, in sentences.

    Attributes:
        left: what its ledger counts.
        purposes: what it said that it wants, and until when.
        knows: what it knows now of this party's people.
    """

    left: Left
    purposes: list[str]
    knows: list[str]


class OwnerRoom:
    """Room of a data owner: one party's view of itself.

    Args:
        party_file: its file.
        drivers: what ``dovetail join --driver`` is given.
        certificates: their folder; None: beside the party file.
        site_folder: its site folder; None: beside the party file.

    Raises:
        ConfigError, DataError: a party file that cannot be read.
    """

    def __init__(
        self,
        party_file: Path,
        *,
        drivers: Iterable[str] = (),
        certificates: Path | None = None,
        site_folder: Path | None = None,
    ) -> None:
        self.party_file = party_file
        self.site: Site = open_site(party_file)
        self.site_folder = site_folder or site_folder_of(self.site.path)
        self._certificates = certificates
        self._drivers = tuple(drivers)
        self._looking = threading.Lock()
        self._verified: tuple[object, tuple[list[Left], str]] | None = None
        self.jobs = Jobs(self.site_folder, accepts=self._is_join)

    @property
    def title(self) -> str:
        return self.site.name

    @cached_property
    def reviewer(self) -> Reviewer:
        """Reads and answers proposals.

        Raises:
            ConfigError: no certificate to sign with.
        """
        return Reviewer.of(self.site, certificates=self._certificates, site_folder=self.site_folder)

    # --- What is shown --------------------------------------------------------------------------

    def warnings(self) -> list[str]:
        """Warnings about its certificate, with what to do."""
        return warnings_of(self.site)

    def told(self) -> list[Told]:
        """Sentences on who asked for what, and what it knows now."""
        return [
            Told(each, [*self._purposes(each.receiver)], [*self._knows(each)])
            for each in self.left()[0]
        ]

    def _purposes(self, driver: str) -> Iterator[str]:
        for each in self.proposals():
            if each.proposal.driver == driver and each.ours and each.ours.decision == "signed":
                yield f"{each.proposal.purpose} (until {each.proposal.expires:%Y-%m-%d})"

    def _knows(self, left: Left) -> Iterator[str]:
        if "align" in left.algorithms:
            shared = self._shared(left.receiver)
            number = "some" if shared is None else f"{shared:,}"
            yield (
                f"which of its ids are in your table, too: {number} of your "
                f"{self.site.table.num_rows:,} people"
            )
        for name in left.algorithms:
            if name != "align":
                shows = "; ".join(reported_of(name).shows) or "dovetail audit measures it"
                yield f"what messages of {_called(name)} reveal; our audits rate it: {shows}"

    def _shared(self, driver: str) -> int | None:
        """How many people it knows to be in both tables; None: nobody kept that."""
        path = self.site_folder / "aligned" / f"{certificate_name(driver)}.safetensors"
        try:
            rows_S = load_rows(path, self.site.name, self.site.table.ids).rows_S
        except DovetailError:
            return None
        return int((rows_S >= 0).sum())

    def agrees(self) -> list[str]:
        """Sentences on what its policy agrees to."""
        policy = self.site.policy.section
        drivers = "anybody with a certificate of the federation"
        if policy.drivers is not None:
            drivers = ", ".join(policy.drivers) or "nobody"
        names = [_called(name) for name in policy.algorithms]
        each_time = "each time you sign it" if policy.approval == "signed" else "without asking you"
        return [
            f"{drivers} may ask.",
            f"They may ask for {', '.join(names) or 'nothing'}; a run starts {each_time}.",
            f"No message is answered about fewer than {policy.min_rows:,} people."
            if policy.min_rows > 1
            else "Messages about a single person are answered, too.",
            f"In a day a driver may start {policy.max_runs_per_day:,} runs and look "
            f"{policy.max_alignments:,} times who is in both tables.",
        ]

    def policy(self) -> dict[str, str]:
        """Policy in the words of the party's file."""
        section = self.site.policy.section
        values = section.model_dump(mode="json", exclude_unset=True)
        return {key: json.dumps(value) for key, value in values.items()}

    def proposals(self) -> list[Review]:
        """All that its site keeps, the newest first."""
        try:
            agreements = self.reviewer.agreements
        except ConfigError:  # it has no certificate, and so none
            return []
        return [self._reviewed(each, read=False) for each in agreements.known()]

    def proposal(self, name: str) -> Review:
        """Review of a proposal against the party's policy, its table and the last proposal.

        Raises:
            ConfigError: it keeps none of that name.
        """
        for each in self.reviewer.agreements.known():
            if each.name.startswith(name) and len(name) >= 8:
                return self._reviewed(each, read=True)
        raise ConfigError(f"no proposal {name[:12]!r} is kept here")

    def _reviewed(self, proposal: Proposal, *, read: bool) -> Review:
        agreements = self.reviewer.agreements
        signatures = agreements.signatures(proposal.name)
        last = self.reviewer.last_before(proposal) if read else None
        return Review(
            proposal,
            signatures,
            agreements.used(proposal.name),
            review(proposal, self.site) if read else [],
            last,
            changes(last, proposal),
            signatures.get(self.site.name),
        )

    def left(self) -> tuple[list[Left], str]:
        """Messages that have left, by receiver; and why its ledger cannot be read, if it cannot.

        The whole ledger is verified, once for as long as its files stay as they are.
        """
        path = self.site_folder / "ledger.jsonl"
        if not path.exists():
            return [], ""
        try:
            about = [each.stat() for each in files_of(path)]
            stamp = [(each.st_ino, each.st_mtime_ns, each.st_size) for each in about]
        except (DovetailError, OSError) as error:
            return [], str(error)
        if self._verified is None or self._verified[0] != stamp:
            self._verified = stamp, _left(path)
        return self._verified[1]

    @property
    def budget(self) -> float | None:
        """The epsilon that its policy allows one sample in a run; None: it counts none."""
        privacy = self.site.policy.section.privacy
        return None if privacy is None else privacy.epsilon

    def refusals(self) -> list[dict[str, Any]]:
        """Refusals of the party, the newest first."""
        found = []
        for line in _last_lines(self.site_folder / "refusals.jsonl", _REFUSALS):
            try:
                found.append(dict(json.loads(line)))
            except ValueError:
                continue
        return found[::-1]

    def log(self) -> str:
        """The end of what ``dovetail join`` says, whoever started it."""
        lines = _last_lines(self.site_folder / "join.log", 40)
        return "\n".join(re.sub(r",\d+ INFO [\w.]+:", "", line) for line in lines)[-_SHOWN:]

    def serving(self) -> str:
        """Place where drivers are answered now: "room", "elsewhere" or "" for none."""
        job = self.jobs.of(JOIN)
        if job is not None and job.state in ("running", "stopping"):
            return "room"
        with self._looking:  # two pages at a time would take each other for somebody
            return "elsewhere" if is_used(self.site_folder) else ""

    def files(self) -> Iterator[Path]:
        """Files that change when anything that is shown does."""
        for name in ("ledger.jsonl", "refusals.jsonl", "join.log", "proposals"):
            yield self.site_folder / name
        yield from (self.site_folder / "proposals").glob("*")
        yield from self.jobs.logs()

    def state(self) -> object:
        """State of what is in no file."""
        return self.jobs.state()

    # --- What is done ---------------------------------------------------------------------------

    @property
    def can_serve(self) -> bool:
        """Whether it knows where a driver listens."""
        return bool(self._drivers)

    def serve(self) -> Job:
        """Answer drivers: ``dovetail join``.

        Raises:
            ConfigError: no driver was named, or it is answered already.
        """
        if not self._drivers:
            raise ConfigError(
                "this room was not told where a driver listens; start it with dovetail room "
                f"{self.party_file.name} --driver HOST:PORT"
            )
        if self.serving():
            raise ConfigError("drivers are answered already")
        return self.jobs.add(JOIN, self._arguments())

    def _arguments(self) -> list[str]:
        found = ["join", str(self.party_file.resolve()), "--site", str(self.site_folder.resolve())]
        for each in self._drivers:
            found += ["--driver", each]
        if self._certificates is not None:
            found += ["--certificates", str(self._certificates.resolve())]
        return found

    def _is_join(self, job: Job) -> bool:
        return job.name == JOIN and [*job.arguments] == self._arguments()

    def stop(self) -> None:
        """Answer nobody any more.

        Raises:
            ConfigError: another process answers, or nobody does.
        """
        if self.serving() == "elsewhere":
            raise ConfigError(
                "another dovetail join answers drivers; end it where it was started (Ctrl-C)"
            )
        self.jobs.stop(JOIN)

    def hand_in(self, text: str) -> Proposal:
        """Keep a proposal that came as a file.

        Raises:
            ConfigError: it is none, or not for this party.
        """
        if len(text.encode()) > MAX_PROPOSAL:
            raise ConfigError(f"a proposal has {MAX_PROPOSAL:,} bytes at most")
        proposal = parse_proposal(text, where="the file")
        if self.site.name not in proposal.parties:
            raise ConfigError(
                f"the proposal {proposal.name[:12]} is for {', '.join(proposal.parties)}, not for "
                f"{self.site.name!r}"
            )
        self.reviewer.agreements.keep(proposal, {})
        return proposal

    def answer(self, name: str, *, refuse: str | None) -> Signature:
        """Sign a proposal, or refuse it for a reason.

        Raises:
            ConfigError: no such proposal, one that its file does not go with, or no reason.
        """
        serving = self.proposal(name)
        if refuse is None and serving.against:
            raise ConfigError(
                f"{self.site.name!r} cannot sign it with {self.party_file.name}: "
                f"{'; '.join(serving.against)}. Change the party file if you agree to that and "
                "start the room again, or refuse"
            )
        if refuse is not None and not refuse.strip():
            raise ConfigError("say why you refuse; the driver reads it")
        others = dict(serving.signatures)
        others.pop(self.site.name, None)
        answer = self.reviewer.answer(serving.proposal, others, refuse=refuse)
        _log.info("proposal %s: %s", serving.name, answer.decision)
        return answer


def _called(algorithm: str) -> str:
    """An algorithm of a policy, as people call it."""
    if algorithm == "align":
        return "who is in both tables"
    return variants().get(algorithm, algorithm).partition(",")[0]


def _left(path: Path) -> tuple[list[Left], str]:
    """Messages that have left by a ledger, by receiver; or why it cannot be read."""
    try:
        lines = list(verify(path, keep=False).lines())
    except DovetailError as error:
        return [], str(error)
    found: dict[str, Left] = {}
    known = algorithms()
    for line in lines:
        name, before = line["to"], found.get(line["to"])
        asked = known.get(line["message"].partition(".")[0])
        costs = [cost for cost in (line.get("epsilon"), before and before.epsilon) if cost]
        found[name] = Left(
            name,
            line["count"] + (before.messages if before else 0),
            line["bytes"] + (before.bytes if before else 0),
            max(line["last"], before.last if before else ""),
            max(costs) if costs else None,
            tuple(
                dict.fromkeys(
                    [*(before.algorithms if before else ()), *([asked.policy] if asked else [])]
                )
            ),
        )
    return list(found.values()), ""


def _last_lines(path: Path, most: int) -> list[str]:
    """The last lines of a file that grows; none if it is not there."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 64 * 1024))
            return file.read().decode("utf-8", "replace").splitlines()[-most:]
    except OSError:
        return []
