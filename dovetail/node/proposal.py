"""Proposal of a run: one text that every party reads and signs before anything is asked of it.

    proposal.json          canonical JSON (RFC 8785); its SHA-256 is the proposal's name
    proposal.md            the same for people
    proposal.shop.json     what the shop says of it: signed, or refused and why

Two files with one byte of difference are two proposals. No code travels: what a run may do is what
its method does, with the settings that are in the proposal, so that it fits a page.

The name is part of the id of every message that belongs to the run (``agreed_run``), and so it is
in both sides' ledgers and in the models that come of it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

import rfc8785
from cryptography import x509
from pydantic import AwareDatetime, Field, ValidationError, field_validator

from dovetail.errors import ConfigError, MessageError
from dovetail.network.certificates import Revocations
from dovetail.network.renewal import Identity, check_proof
from dovetail.settings.section import PartyName, Section

S = TypeVar("S", bound=Section)

#: A larger file is no proposal: it must fit a page, and a message's header.
MAX_BYTES = 2**18

#: What is signed begins with this, so that no signature of anything else can pass for one.
_STATEMENT = b"dovetail signature 1\n"

#: How far the clocks of two parties may be apart.
_SKEW = timedelta(minutes=5)

_AGREED = re.compile(r"(.+)/agreed-([0-9a-f]{64})")

#: Settings that may take one of several values have a table with this key.
ONE_OF = "one_of"


class MessageType(Section):
    """A message that the run sends.

    Attributes:
        name: its wire name.
        fields: name -> kind of each field.
        about: who sends it to whom, and what for.
    """

    name: str
    fields: dict[str, str]
    about: str


class Proposal(Section):
    """A run that is proposed.

    Attributes:
        purpose: what it is for, in the driver's words.
        driver: who drives.
        parties: who takes part; the driver too, if it has data.
        method: what is trained.
        variants: the method, and the baselines that are trained beside it.
        seeds: each is trained once.
        attempts: how often each may be started, as what is stopped early must begin again.
        algorithms: what parties are asked for, as policies name it.
        messages: everything that crosses a boundary.
        least_rows: rows that every party is to bring in, at least.
        settings: the run file, but for addresses and files of the driver.
        stage_settings: variant -> the settings that its first message carries, if parties get
            any.
        models: who keeps which model.
        created, expires: when it was made, and until when it may be run.
        dovetail: the version it was made with.
    """

    format: Literal["dovetail proposal 1"] = "dovetail proposal 1"
    purpose: str = Field(min_length=1, max_length=4000)
    driver: PartyName
    parties: tuple[PartyName, ...] = Field(min_length=1)
    method: str
    variants: tuple[str, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    attempts: int = Field(default=3, ge=1)
    algorithms: tuple[str, ...]
    messages: tuple[MessageType, ...]
    least_rows: int = Field(default=1, ge=1)
    settings: dict[str, Any]
    stage_settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    models: str
    created: AwareDatetime
    expires: AwareDatetime
    dovetail: str

    @field_validator("stage_settings")
    @classmethod
    def _choices_are_lists(cls, variants: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for variant, settings in variants.items():
            for key, allowed in settings.items():
                if not isinstance(allowed, Mapping) or ONE_OF not in allowed:
                    continue
                values = allowed[ONE_OF]
                if len(allowed) > 1 or not (isinstance(values, list) and values):
                    raise ValueError(
                        f'{variant}.{key}: expected a value, or {{"{ONE_OF}": [values]}} alone '
                        f"with one value or more, got {json.dumps(allowed)[:100]}"
                    )
        return variants

    @property
    def signers(self) -> tuple[str, ...]:
        """Names of those who have to sign: all that take part, and whoever drives."""
        return tuple(dict.fromkeys((*self.parties, self.driver)))

    @property
    def text(self) -> str:
        """Canonical JSON."""
        return rfc8785.dumps(self.model_dump(mode="json")).decode()

    @property
    def name(self) -> str:
        """SHA-256 of the canonical JSON, 64 hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def check_settings(self, variant: str, settings: str) -> None:
        """Refuse settings of a variant's first message that are not those agreed on.

        Args:
            variant: what is started.
            settings: JSON, as messages carry it.

        Raises:
            ConfigError: naming the setting, what was agreed on and what came.
        """
        agreed = self.stage_settings.get(variant, {})
        came = json.loads(settings)
        for key in sorted(agreed.keys() | came.keys()):
            allowed = agreed.get(key)
            values = [allowed]
            if isinstance(allowed, Mapping) and ONE_OF in allowed:
                values = allowed[ONE_OF]
            if key not in agreed or key not in came or came[key] not in values:
                allowed_text = " or ".join(map(json.dumps, values)) if key in agreed else "nothing"
                got = json.dumps(came[key]) if key in came else "nothing"
                raise ConfigError(
                    f"refuses to begin {variant}: the proposal {self.name[:12]} that it signed "
                    f"says {key} = {allowed_text}, and it was told {got}; propose the run anew "
                    "(dovetail propose RUN)"
                )


class Signed(Section):
    """Statement that a party signs.

    Attributes:
        opening: what is signed starts with it, so that it cannot pass for anything else.
        proof: of ``identity.Certified``, base64: certificate and signature; "" where the party has
            no certificate.
    """

    opening: ClassVar[bytes]
    proof: str = Field(default="", max_length=20_000)

    @property
    def text(self) -> str:
        """Canonical JSON."""
        return rfc8785.dumps(self.model_dump(mode="json")).decode()

    @property
    def statement(self) -> bytes:
        """Bytes that are signed."""
        return self.opening + rfc8785.dumps(self.model_dump(mode="json", exclude={"proof"}))

    def signed(self, identity: Identity) -> Self:
        """The statement with a proof."""
        proof = base64.b64encode(identity.sign(self.statement)).decode()
        return self.model_copy(update={"proof": proof})


class Signature(Signed):
    """Answer of a party to a proposal.

    Attributes:
        proposal: its name.
        party: who says so.
        decision: whether it takes part.
        why: of a refusal.
        time: when it was signed.
    """

    opening: ClassVar[bytes] = _STATEMENT

    proposal: str = Field(pattern="[0-9a-f]{64}")
    party: PartyName
    decision: Literal["signed", "refused"]
    why: str = Field(default="", max_length=4000)
    time: AwareDatetime

    def check(
        self,
        proposal: Proposal,
        authorities: tuple[x509.Certificate, ...],
        *,
        is_new: bool = False,
        revocations: Revocations | None = None,
    ) -> None:
        """Refuse what this party has not said of a proposal; its certificate was valid then.

        Whoever has a key can write any time. So a certificate that is revoked never counts, and one
        that has expired signs nothing new: what is seen for the first time needs a certificate that
        is valid now, too.

        Args:
            proposal: what it is about.
            authorities: who may have issued the certificate; none: anybody.
            is_new: whether this is the first time that it is seen here.
            revocations: which certificates no longer count.

        Raises:
            MessageError: naming the party, and what is wrong.
        """
        now = datetime.now(UTC)
        if self.time > now + _SKEW:
            raise MessageError(f"party {self.party!r} is said to have signed in the future")
        if not proposal.created - _SKEW <= self.time <= proposal.expires:
            raise MessageError(
                f"party {self.party!r} is said to have signed the proposal {proposal.name[:12]} on "
                f"{self.time:%Y-%m-%d %H:%M} UTC; it was made on {proposal.created:%Y-%m-%d %H:%M} "
                f"and ends on {proposal.expires:%Y-%m-%d %H:%M}"
            )
        try:
            proof = base64.b64decode(self.proof, validate=True)
        except binascii.Error:
            raise MessageError(f"the proof of party {self.party!r} is no base64") from None
        certificate = check_proof(
            self.party, self.statement, proof, authorities, at=self.time, revocations=revocations
        )
        if is_new and now > certificate.not_valid_after_utc:
            raise MessageError(
                f"the certificate that party {self.party!r} signed the proposal "
                f"{proposal.name[:12]} with expired on {certificate.not_valid_after_utc:%Y-%m-%d}; "
                "what is new must be signed with one that is valid: review it again"
            )


def sign(
    proposal: Proposal, party: str, identity: Identity, *, refuse: str | None = None
) -> Signature:
    """Answer of a party to a proposal, now; ``refuse`` is why it does not take part."""
    return Signature(
        proposal=proposal.name,
        party=party,
        decision="signed" if refuse is None else "refused",
        why=refuse or "",
        time=datetime.now(UTC).replace(microsecond=0),
    ).signed(identity)


# --- Files ----------------------------------------------------------------------------------------


def read_proposal(path: Path) -> Proposal:
    """The proposal in a file.

    Raises:
        ConfigError: it cannot be read, or is none.
    """
    return parse_proposal(_read(path), where=str(path))


def parse_proposal(text: str, *, where: str) -> Proposal:
    """The proposal that a text says, which must be canonical.

    Raises:
        ConfigError: it is none.
    """
    proposal = _parse(Proposal, text, where=where)
    try:
        canonical = proposal.text
    except ValueError:  # a number that RFC 8785 has no form for
        canonical = ""
    if canonical != text.strip():
        raise ConfigError(
            f"{where} is not written as dovetail propose writes it (RFC 8785), so that its name is "
            "not that of its text; ask for the file as it was made"
        )
    return proposal


def parse_signature(text: str, *, where: str) -> Signature:
    """Answer of a party to a proposal, parsed.

    Raises:
        ConfigError: it is nothing of the kind.
    """
    return _parse(Signature, text, where=where)


def signature_path(path: Path, party: str) -> Path:
    """Where a party's signature stands, beside the proposal.

    >>> signature_path(Path("proposal.json"), "shop").name
    'proposal.shop.json'
    """
    return path.with_name(f"{path.stem}.{party}.json")


def read_signatures(path: Path, proposal: Proposal) -> dict[str, Signature]:
    """Party -> what it says of the proposal, of those whose file is beside it.

    Raises:
        ConfigError: a file that is no signature, or is one of another party or proposal.
    """
    signatures = {}
    for party in proposal.signers:
        beside = signature_path(path, party)
        if not beside.exists():
            continue
        signature = parse_signature(_read(beside), where=str(beside))
        if signature.party != party or signature.proposal != proposal.name:
            raise ConfigError(
                f"{beside} is what {signature.party!r} says of proposal "
                f"{signature.proposal[:12]}; expected {party!r} and {proposal.name[:12]}: the "
                "proposal was changed since, so that it must be signed again"
            )
        signatures[party] = signature
    return signatures


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} is larger than any proposal ({MAX_BYTES:,} bytes); name one")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; name a proposal's file") from None


def _parse(kind: type[S], text: str, *, where: str) -> S:
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{where} is larger than any proposal ({MAX_BYTES:,} bytes); name one")
    try:
        return kind.model_validate_json(text)
    except (ValidationError, RecursionError) as error:
        why = "it is nested too deeply"
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = first["msg"].removeprefix("Value error, ")
            why = f"{'.'.join(map(str, first['loc']))} {reason}".strip()
        raise ConfigError(
            f"{where} is no {kind.__name__.lower()}: {why}; ask for the file as it was made"
        ) from None


# --- Runs -----------------------------------------------------------------------------------------


def agreed_run(run: str, proposal: str) -> str:
    """The id of a run's messages, of a run that was proposed; "" is no proposal.

    >>> agreed_run("5f0c/apfed/seed-0", "")
    '5f0c/apfed/seed-0'
    """
    return f"{run}/agreed-{proposal}" if proposal else run


def split_run(run: str) -> tuple[str, str]:
    """The run's own id and the name of the proposal, "" if it is of none.

    >>> split_run(agreed_run("5f0c/apfed/seed-0", 64 * "a"))[0]
    '5f0c/apfed/seed-0'
    """
    parts = _AGREED.fullmatch(run)
    return (parts[1], parts[2]) if parts else (run, "")


def differences(before: Any, now: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Key, value before, value now: of all that differs; None stands for what is not there."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted(before.keys() | now.keys()):
            inner = f"{where}.{key}" if where else str(key)
            yield from differences(before.get(key), now.get(key), inner)
    elif before != now:
        yield where, before, now
