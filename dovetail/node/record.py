"""Record of a run: what was agreed, what ran, what it was run on, and the heads of the ledgers.

    RUN/record.json     canonical JSON (RFC 8785), signed by the driver
    RUN/cohort.json     what opens the driver's own cohort digest; it stays with the driver

Years later it shows, with the run's folder and nothing else: the proposal and who signed it, the
resulting weights, the heads of all ledgers at its end, each signed by its party, and what
each party says of the runs that it took part in (``Account``). With the ledgers, too, that they are
still the ones they were.

A cohort digest is SHA-256(salt || ":" || SHA-256 of the samples' ids): nobody can try ids against
it, and who has the ids and the salt can show that it was these.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

from cryptography import x509
from pydantic import AwareDatetime, Field, ValidationError

from dovetail.errors import ConfigError, MessageError, NetworkError
from dovetail.network.heads import LedgerHead, read_head
from dovetail.network.ledger import verify
from dovetail.network.renewal import Identity, check_proof
from dovetail.network.retry import write_text
from dovetail.node.proposal import Signed, read_proposal, read_signatures
from dovetail.settings.section import PartyName, Section

FILE = "record.json"
COHORT = "cohort.json"

#: A larger account is not kept.
MAX_ACCOUNT = 2**18

_PROPOSAL = "agreement/proposal.json"

#: What of a run's folder is in its record. What is written later (audit, card, calibration) is not.
_FILES = (
    *("run.toml", "result.json", "metrics.jsonl", "ledger.jsonl", "agreement/*.json"),
    "models/*/model.safetensors",
)


def cohort(samples: str, salt: str) -> str:
    """A digest of which samples they were, that nobody can try ids against.

    Args:
        samples: SHA-256 of their ids.
        salt: drawn at random for this run.
    """
    return hashlib.sha256(f"{salt}:{samples}".encode()).hexdigest()


class Run(Section):
    """A run that a party took part in.

    Attributes:
        time: when it began there.
        run: its id.
        variant: what was trained; "" of an alignment or a prediction.
        cohort: which samples it was of.
    """

    time: AwareDatetime
    run: str = Field(max_length=1000)
    variant: str = Field(default="", max_length=100)
    cohort: str = Field(default="", max_length=64)


class Account(Signed):
    """Account of a party on a proposal's runs, when the driver leaves.

    Attributes:
        party: who says so.
        driver: whose runs.
        proposal: on which they began.
        runs: all of them so far.
        time: when it was signed.
    """

    opening: ClassVar[bytes] = b"dovetail account 1\n"

    format: Literal["dovetail account 1"] = "dovetail account 1"
    party: PartyName
    driver: PartyName
    proposal: str = Field(pattern="[0-9a-f]{64}")
    runs: tuple[Run, ...] = ()
    time: AwareDatetime


class Record(Signed):
    """A run, when it ended.

    Attributes:
        run: its id.
        driver: who drove.
        parties: who took part beside it.
        proposal: the name of what was agreed on; "" of a run without one.
        ended: when.
        files: file of the run's folder -> its SHA-256.
        heads: party -> where its ledger stood, as it said itself.
        accounts: party -> what it says of the runs that it took part in.
        cohort: which of its own samples the driver trained on; "" of one without data.
    """

    opening: ClassVar[bytes] = b"dovetail record 1\n"

    format: Literal["dovetail record 1"] = "dovetail record 1"
    run: str
    driver: PartyName
    parties: tuple[PartyName, ...]
    proposal: str = ""
    ended: AwareDatetime
    files: dict[str, str]
    heads: dict[str, dict[str, Any]]
    accounts: dict[str, Account] = Field(default_factory=dict)
    cohort: str = ""


# --- Written --------------------------------------------------------------------------------------


def give_account(
    party: str,
    driver: str,
    proposal: str,
    used: Sequence[Mapping[str, str]],
    identity: Identity | None,
) -> str:
    """Account of a party, as it travels."""
    runs = [
        {
            **{name: each[name] for name in ("time", "run", "variant")},
            "cohort": cohort(each["samples"], each["salt"]) if each.get("salt") else "",
        }
        for each in used
        if each["driver"] == driver
    ]
    account = Account.model_validate(
        {"party": party, "driver": driver, "proposal": proposal, "runs": runs, "time": _now()}
    )
    return (account if identity is None else account.signed(identity)).model_dump_json()


def read_account(text: str, party: str) -> Account | None:
    """Account that a party has sent; None if it sent none.

    Raises:
        MessageError: it is no account, or another's.
    """
    if not text:
        return None
    try:
        if len(text) > MAX_ACCOUNT:
            raise ValueError("too long")
        account = Account.model_validate_json(text)
        if account.party != party:
            raise ValueError("of another")
    except (ValueError, RecursionError):  # a ValidationError is one
        raise MessageError(f"what party {party!r} says of its runs is no account") from None
    return account


def write_record(
    folder: Path,
    *,
    run: str,
    driver: str,
    parties: Sequence[str],
    proposal: str,
    heads: Mapping[str, LedgerHead],
    accounts: Mapping[str, Account],
    samples: str,
    identity: Identity | None,
) -> Record:
    """Write a run's record into its folder, when all else is there.

    Args:
        samples: SHA-256 of the ids that the driver trained on; "" of one without data.
        identity: signs it; None: the driver has no certificate.

    Raises:
        OSError: it cannot be written.
    """
    salt = secrets.token_hex(16)
    record = Record(
        run=run,
        driver=driver,
        parties=tuple(parties),
        proposal=proposal,
        ended=_now(),
        files={name: _sha256(folder / name) for name in _files(folder)},
        heads={name: asdict(head) for name, head in heads.items()},
        accounts=dict(accounts),
        cohort=cohort(samples, salt) if samples else "",
    )
    record = record if identity is None else record.signed(identity)
    write_text(folder / FILE, record.text)
    if samples:
        opening = {"cohort": record.cohort, "samples": samples, "salt": salt}
        write_text(folder / COHORT, json.dumps(opening, indent=2) + "\n")
    return record


def _files(folder: Path) -> list[str]:
    files = {path for pattern in _FILES for path in folder.glob(pattern)}
    return sorted(path.relative_to(folder).as_posix() for path in files)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


# --- Shown ----------------------------------------------------------------------------------------


def read_record(path: Path) -> Record:
    """A run's record.

    Raises:
        ConfigError: it cannot be read, or is none.
    """
    try:
        return Record.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (ValidationError, RecursionError):
        raise ConfigError(
            f"{path} is no record of a run; a run's is {FILE} in its folder"
        ) from None


def check_record(
    path: Path, ledgers: Sequence[Path], authorities: Sequence[x509.Certificate] = ()
) -> Iterator[str]:
    """Sentences on what a record shows.

    Args:
        path: the record, in its run's folder.
        ledgers: ledgers of its parties.
        authorities: who must have issued the certificates of those who signed; none: anybody.

    Raises:
        DovetailError: the first thing that is not as the record says.
    """
    record, folder = read_record(path), path.parent
    yield _signature(record.driver, record.statement, record.proof, authorities, path, "record")
    yield f"run {record.run}, ended {record.ended:%Y-%m-%d %H:%M:%S} UTC"
    for name, digest in sorted(record.files.items()):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ConfigError(f"{path} names {name!r}, which is outside of its folder")
        if not (folder / name).is_file():
            raise ConfigError(f"{folder / name} is in the record, and is not there")
        if _sha256(folder / name) != digest:
            raise ConfigError(f"{folder / name} is not what it was when the run ended")
    yield f"{len(record.files)} files are as they were: {', '.join(sorted(record.files))}"
    yield from _agreed(record, folder, authorities)
    yield from _accounts(record, path, authorities)
    yield from _heads(record, path, ledgers, authorities)


def _signature(
    party: str,
    statement: bytes,
    proof: str,
    authorities: Sequence[x509.Certificate],
    path: Path,
    what: str,
) -> str:
    """That it is signed.

    Raises:
        DovetailError: it is not, or not by this party.
    """
    if not proof:
        if authorities:
            raise MessageError(f"{path}: the {what} of {party!r} is not signed")
        return f"the {what} of {party!r} is not signed: it has no certificate of its own here"
    try:
        decoded = base64.b64decode(proof, validate=True)
        check_proof(party, statement, decoded, authorities, at=None)
    except binascii.Error:
        raise MessageError(f"{path}: the proof of {party!r} is no base64") from None
    except MessageError as error:
        raise MessageError(f"{path}: {error}") from None
    return f"{what} signed by {party!r}"


def _agreed(record: Record, folder: Path, authorities: Sequence[x509.Certificate]) -> Iterator[str]:
    if not record.proposal:
        yield "no proposal: it ran as its parties' policies allow"
        return
    path = folder / _PROPOSAL
    proposal = read_proposal(path)
    if proposal.name != record.proposal:
        raise ConfigError(
            f"{path} is the proposal {proposal.name[:12]}, and the record is of "
            f"{record.proposal[:12]}"
        )
    yield f"proposal {proposal.name} ({proposal.purpose})"
    signatures = read_signatures(path, proposal)
    for party in proposal.signers:
        if party not in signatures:
            raise ConfigError(f"{folder}: {party!r} has not signed the proposal")
        signature = signatures[party]
        signature.check(proposal, tuple(authorities))
        if signature.decision != "signed":
            raise ConfigError(f"{folder}: {party!r} has refused the proposal: {signature.why}")
        if signature.time > record.ended:
            raise ConfigError(f"{folder}: {party!r} signed the proposal when the run had ended")
        yield f"proposal signed by {party!r} on {signature.time:%Y-%m-%d %H:%M:%S} UTC"
    for path in sorted(folder.glob("models/*/model.json")):
        try:
            named = json.loads(path.read_bytes()).get("proposal", record.proposal)
        except (ValueError, AttributeError, RecursionError):
            raise ConfigError(f"{path} is no description of a model") from None
        if named != record.proposal:
            raise ConfigError(f"{path} names another proposal than the record")


def _accounts(record: Record, path: Path, authorities: Sequence[x509.Certificate]) -> Iterator[str]:
    if record.cohort:
        yield f"{record.driver!r} trained on the cohort {record.cohort}"
    for party in record.parties:
        account = record.accounts.get(party)
        if account is None:
            if record.proposal:
                yield f"{party!r} was not there to say what it was asked for"
            continue
        if (account.proposal, account.driver) != (record.proposal, record.driver):
            raise MessageError(f"{path}: the account of {party!r} is of another proposal")
        yield _signature(party, account.statement, account.proof, authorities, path, "account")
        for run in account.runs:
            what = run.variant or "alignment or prediction"
            yield f"  {run.time:%Y-%m-%d %H:%M:%S} {what}, run {run.run}, cohort {run.cohort}"


def _heads(
    record: Record, path: Path, ledgers: Sequence[Path], authorities: Sequence[x509.Certificate]
) -> Iterator[str]:
    known = {}
    for ledger_path in ledgers:
        verified = verify(ledger_path)
        known[verified.party] = verified
    for party, fields in record.heads.items():
        try:
            head = read_head(fields, party)
        except ValueError:
            raise MessageError(f"{path}: what it has of {party!r} is no head") from None
        proof = base64.b64encode(bytes.fromhex(head.proof)).decode()
        text = _signature(party, head.statement(), proof, authorities, path, "head of the ledger")
        text += f": line {head.lines:,}, root {head.root}"
        if party in known:
            ledger = known.pop(party)
            if not ledger.has(head.hash):
                raise NetworkError(
                    f"the ledger of {party!r} is not the one it was when the run ended: no line "
                    f"has the hash of line {head.lines:,} then, {head.hash[:16]}..."
                )
            text += "; the ledger that is here has it"
        yield text
    for party in known:
        raise ConfigError(f"{path} has no head of the ledger of {party!r}")
