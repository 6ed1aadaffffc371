"""Agreements of a party: the proposals it knows, who signed them, and what was run on them.

    shop.site/proposals/NAME/
        proposal.json          what was proposed, NAME being its SHA-256
        said.PARTY.json        what each party said of it, with proof

    shop.site/site.sqlite, ``agreed``: which runs began on it, when, and on which samples

With ``policy.approval = "signed"`` a site answers a run only if all parties of its proposal have
signed, this one included. The driver shows their signatures when it comes (``Show``); each is
checked against the authority that this party believes, so the driver cannot sign for anybody.

What a party can check of a run is what reaches it: who drives, what it is asked for, the variant
and the seed in the run's id, the settings of a first message, its own number of rows, and how often
a run starts. Settings that stay with the driver (APFed's rate, say) are the driver's word: it
signed them, its ledger and this party's name the same proposal, and an auditor can hold it to that.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from cryptography import x509

from dovetail.alignment.stored import is_predicting
from dovetail.errors import ConfigError, MessageError
from dovetail.network import Message
from dovetail.network.certificates import Revocations, make_folder
from dovetail.network.quota import Count, Quota
from dovetail.network.retry import write_text
from dovetail.node.proposal import (
    Proposal,
    Signature,
    parse_proposal,
    parse_signature,
)

#: Proposals that a site keeps for one that was never run; the oldest go.
KEPT_PROPOSALS = 100

_PROPOSAL = "proposal.json"
_SIGNATURE = "said."

#: What is known of a run that began.
_COLUMNS = ("time", "driver", "run", "variant", "samples", "salt")

_log = logging.getLogger(__name__)


class Show(Message):
    """Driver -> party: the proposal that I am about to run, and what everybody says of it."""

    proposal: str
    signatures: tuple[str, ...]


class Seen(Message):
    """Party -> driver: I know it, and shall answer runs of it."""


class Plan(Message):
    """Driver -> party: what I shall ask for, before any id is compared."""

    policies: tuple[str, ...]  # as policies name it
    runs: int  # that begin, at least
    numbers: int  # of a row that are asked for first, at least


@dataclass(frozen=True)
class Approved:
    """A run that may be answered.

    Attributes:
        proposal: what it is of; None: of none, and the party's policy asks for none.
        variant: what is trained in it; "" of an alignment or a prediction.
    """

    proposal: Proposal | None
    variant: str

    def checks(self, begins: tuple[str, ...]) -> Callable[[Message], None]:
        """Refuses a first message, one of these, with settings that were not agreed on."""

        def check(message: Message) -> None:
            settings = getattr(message, "settings", None)
            begins_now = message.wire_name() in begins and isinstance(settings, str)
            if begins_now and self.proposal is not None:
                self.proposal.check_settings(self.variant, str(settings))

        return check


class Agreements:
    """The proposals that a party's site keeps.

    Args:
        site_folder: the party's folder.
        party: its name.
        authorities: who may have issued the certificates of those who sign; none: anybody.
        required: whether its policy answers only what all have signed.
        num_rows: of its table.
        revocations: which certificates no longer count, as it is now; None: all do.
        quota: of the site; None: opened when it is asked.

    Raises:
        ConfigError: signatures are asked for, and no authority says whose they are.
    """

    def __init__(
        self,
        site_folder: Path,
        party: str,
        authorities: tuple[x509.Certificate, ...],
        *,
        required: bool,
        num_rows: int,
        revocations: Callable[[], Revocations] | None = None,
        quota: Quota | None = None,
    ) -> None:
        if required and not authorities:
            raise ConfigError(
                'approval = "signed" needs an authority that says who signs: put ca.pem beside the '
                "party's certificate"
            )
        self._revocations = revocations
        self._site_folder = site_folder
        self._folder = site_folder / "proposals"
        self._given = quota
        self._party = party
        self._authorities = authorities
        self._required = required
        self._num_rows = num_rows

    @cached_property
    def _quota(self) -> Quota:
        return self._given or Quota(self._site_folder)

    # --- What is kept ---------------------------------------------------------------------------

    def known(self) -> list[Proposal]:
        """All proposals that are kept, the newest first."""
        proposals = []
        for path in self._folder.glob(f"*/{_PROPOSAL}"):
            try:
                proposals.append(parse_proposal(path.read_text(encoding="utf-8"), where=str(path)))
            except (ConfigError, OSError) as error:
                _log.warning("%s: %s", path, error)
        return sorted(proposals, key=lambda each: each.created, reverse=True)

    def signatures(self, proposal: str) -> dict[str, Signature]:
        """Party -> what it says of this proposal, of those that are kept."""
        signatures = {}
        for path in self._folder.joinpath(proposal).glob(f"{_SIGNATURE}*.json"):
            signature = parse_signature(path.read_text(encoding="utf-8"), where=str(path))
            signatures[signature.party] = signature
        return signatures

    def used(self, proposal: str) -> list[dict[str, str]]:
        """The runs that began on this proposal."""
        sql = f"SELECT {', '.join(_COLUMNS)} FROM agreed WHERE proposal = ? ORDER BY rowid"
        return [dict(zip(_COLUMNS, row, strict=True)) for row in self._quota.read(sql, proposal)]

    def keep(self, proposal: Proposal, signatures: Mapping[str, Signature]) -> None:
        """Write down a proposal and what parties say of it; a party's later word counts.

        Raises:
            MessageError: a signature that is none.
            ConfigError: it cannot be written, or a site that knows too many.
        """
        for signature in signatures.values():
            if signature.proposal != proposal.name or signature.party not in proposal.signers:
                raise MessageError(
                    f"what {signature.party!r} signed is not the proposal {proposal.name[:12]}"
                )
        folder = self._folder / proposal.name
        before = self.signatures(proposal.name)
        for party, signature in signatures.items():
            self._check(proposal, signature, is_new=before.get(party) != signature)
        if not folder.exists() and len(list(self._folder.glob("*"))) >= KEPT_PROPOSALS:
            self._drop_unused(proposal.driver)
        try:
            make_folder(folder)
            write_text(folder / _PROPOSAL, proposal.text)
            known = self.signatures(proposal.name)
            for party, signature in signatures.items():
                if party not in known or known[party].time < signature.time:
                    write_text(folder / f"{_SIGNATURE}{party}.json", signature.text)
        except OSError as error:
            _log.error("%s: %s", folder, error)
            raise ConfigError(
                "it cannot write down what was proposed; see its log, and show it again"
            ) from None

    def _check(self, proposal: Proposal, signature: Signature, *, is_new: bool) -> None:
        """Refuse what its party has not said.

        Raises:
            MessageError: naming the party, and what is wrong.
        """
        revocations = None if self._revocations is None else self._revocations()
        signature.check(proposal, self._authorities, is_new=is_new, revocations=revocations)

    def _drop_unused(self, driver: str) -> None:
        """Make room: the oldest proposal that was never run goes, of this driver's if there is one.

        One of which this party has said something stays until it ends: its driver may have kept a
        yes, and would show that again where the no that followed is forgotten.
        """
        now = datetime.now(UTC)
        loose = [
            each
            for each in self.known()
            if not self.used(each.name)
            and (now > each.expires or self._party not in self.signatures(each.name))
        ]
        if not loose:
            raise ConfigError(
                f"it keeps {KEPT_PROPOSALS} proposals that were run, or that its owner has signed "
                "or refused; its owner must archive some of proposals/ first"
            )
        of_driver = [each for each in loose if each.driver == driver]
        folder = self._folder / (of_driver or loose)[-1].name
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()

    # --- What is asked --------------------------------------------------------------------------

    def shown(self, message: Show, driver: str) -> Seen:
        """A driver shows what it is about to run.

        Raises:
            ConfigError: it is not its own proposal, or none for this party.
            MessageError: a signature that is none.
        """
        proposal = parse_proposal(message.proposal, where="what was shown")
        if proposal.driver != driver or self._party not in proposal.parties:
            raise ConfigError(
                f"refuses the proposal {proposal.name[:12]} of {proposal.driver!r} for "
                f"{', '.join(proposal.parties)}: {driver!r} shows it to {self._party!r}; "
                "propose the run anew, with all its parties"
            )
        signatures = [parse_signature(each, where="what was shown") for each in message.signatures]
        self.keep(proposal, {each.party: each for each in signatures})
        return Seen()

    def approve(
        self, run: str, agreed: str, policy: str, driver: str, *, samples: Callable[[], str]
    ) -> Approved:
        """Refuse a run that was not agreed on, or write down that it starts.

        Args:
            run: its id, without the proposal's name.
            agreed: the proposal's name; "" if the run is of none.
            policy: what the party is asked for, as policies name it.
            driver: who asks.
            samples: a digest of the samples that the run is of, "" where it is of none yet.

        Raises:
            ConfigError: what was agreed on, and what is asked.
        """
        if not agreed and not self._required:
            return Approved(None, "")
        if not agreed:
            raise ConfigError(
                'refuses a run that was not proposed: its policy has approval = "signed" (at '
                f"{driver!r}: dovetail propose RUN, then dovetail train RUN --proposal FILE)"
            )
        proposal, signatures = self._kept(agreed)
        short = agreed[:12]
        signature = signatures.get(self._party)
        if signature is not None and signature.decision == "refused":
            raise ConfigError(
                f"refuses the proposal {short}, as it has said: {signature.why}; propose another"
            )
        if self._required:
            missing = [
                party
                for party in proposal.signers
                if party not in signatures or signatures[party].decision != "signed"
            ]
            if missing:
                raise ConfigError(
                    f"refuses the proposal {short}: not signed by {', '.join(missing)} (dovetail "
                    "review FILE --party PARTY.toml at each, and its answer beside the driver's)"
                )
        if proposal.driver != driver:
            raise ConfigError(
                f"refuses {driver!r}: the proposal {short} is {proposal.driver!r}'s: propose one"
            )
        if datetime.now(UTC) > proposal.expires:
            raise ConfigError(
                f"refuses the proposal {short}: it ended on {proposal.expires:%Y-%m-%d %H:%M} UTC; "
                "propose the run anew"
            )
        if policy not in proposal.algorithms:
            raise ConfigError(
                f"refuses {policy!r}: the proposal {short} is of {', '.join(proposal.algorithms)}; "
                "propose the run anew"
            )
        if self._num_rows < proposal.least_rows:
            raise ConfigError(
                f"refuses the proposal {short}: it says that each party brings in "
                f"{proposal.least_rows:,} rows or more, and its table has fewer; "
                "propose the run anew with fewer"
            )
        variant = _variant(proposal, run)
        if variant is None and policy != "align" and not is_predicting(run):
            raise ConfigError(
                f"refuses the run {run!r}: the proposal {short} is of the variants "
                f"{', '.join(proposal.variants)} and the seeds "
                f"{', '.join(map(str, proposal.seeds))}; propose the run anew"
            )
        self._begin(proposal, run, variant or "", driver, samples)
        return Approved(proposal, variant or "")

    def _kept(self, name: str) -> tuple[Proposal, dict[str, Signature]]:
        path = self._folder / name / _PROPOSAL
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            raise ConfigError(
                f"refuses the proposal {name[:12]}, which it was not shown (at the driver: "
                "dovetail train RUN --proposal FILE)"
            ) from None
        proposal = parse_proposal(text, where=str(path))
        if proposal.name != name:
            raise ConfigError(f"its copy of the proposal {name[:12]} was changed; review it again")
        signatures = self.signatures(name)
        for signature in signatures.values():
            self._check(proposal, signature, is_new=False)
        return proposal, signatures

    def _begin(
        self, proposal: Proposal, run: str, variant: str, driver: str, samples: Callable[[], str]
    ) -> None:
        """Write down a run that starts, unless it is known.

        Raises:
            ConfigError: it began as often as was agreed on.
            QuotaError: it cannot be written down.
        """
        seed, now = _seed(run), f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        salt = secrets.token_hex(16)  # of the cohort that it tells the driver (record.py)

        def decide() -> Count:
            used = self.used(proposal.name)
            if any(each["run"] == run for each in used):
                return Count([])
            before = [
                each for each in used if each["variant"] == variant and _seed(each["run"]) == seed
            ]
            if variant and len(before) >= proposal.attempts:
                raise ConfigError(
                    f"refuses to begin {variant} {seed} again: the proposal {proposal.name[:12]} "
                    f"allows it {proposal.attempts} times; propose the run anew"
                )
            row = (proposal.name, now, driver, run, variant, samples(), salt)
            return Count([("INSERT INTO agreed VALUES (?, ?, ?, ?, ?, ?, ?)", [row])])

        self._quota.decide(decide)


class Reader:
    """Answers the driver that shows what it is about to run.

    Args:
        agreements: where a proposal is kept.
        driver: who asks.
        refuse: raises for what it would refuse of a plan.
    """

    accepts = (Show, Plan)

    def __init__(self, agreements: Agreements, driver: str, refuse: Callable[[Plan], None]) -> None:
        self._agreements, self._driver, self._refuse = agreements, driver, refuse

    def handle(self, message: Message) -> Message:
        if isinstance(message, Plan):
            self._refuse(message)
            return Seen()
        assert isinstance(message, Show)
        return self._agreements.shown(message, self._driver)


def _variant(proposal: Proposal, run: str) -> str | None:
    """The variant that a run's id names, if both it and the seed were agreed on."""
    parts = run.split("/")
    if _seed(run) not in {f"seed-{seed}" for seed in proposal.seeds}:
        return None
    return next((variant for variant in proposal.variants if variant in parts), None)


def _seed(run: str) -> str:
    return next((part for part in run.split("/") if part.startswith("seed-")), "")
