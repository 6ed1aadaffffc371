"""``dovetail ledger``: what left a party, and whether its record is unbroken."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.options import AsJson
from dovetail.errors import ConfigError, NetworkError

if TYPE_CHECKING:
    from cryptography import x509
    from rich.table import Table

    from dovetail.network.heads import Compared
    from dovetail.network.ledger import Verified


def ledger(
    file: Annotated[Path, typer.Argument(help="A party's ledger.jsonl, or its folder.")],
    other: Annotated[
        Path | None, typer.Argument(help="Another party's, to compare with; each with its heads.")
    ] = None,
    noted: Annotated[
        str | None, typer.Option(metavar="HASH", help="A last hash of earlier; it must be there.")
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="ca.pem of who must have signed; of two ledgers."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what left a party, and verify that its record is unbroken.

    For whom, which messages, their tensors, how often, bytes, first and last time. A line that was
    changed, removed, inserted or moved is named, and the exit code is 2. Lines missing at the end,
    and a ledger written anew, show against a hash noted earlier, --noted HASH; or of two ledgers
    against the heads of each that the other party holds (heads/ beside it).
    """
    if other is not None:
        _compare(file, other, ca=ca, noted=noted, as_json=as_json)
    else:
        _show(file, noted=noted, as_json=as_json)


def _show(path: Path, *, noted: str | None, as_json: bool) -> None:
    """Verify the ledger and print what it holds."""
    from dovetail.cli.output import console
    from dovetail.network.ledger import verify

    if path.is_dir():
        path /= "ledger.jsonl"
    found = verify(path, noted=noted)
    if as_json:
        result = {
            "party": found.party,
            "unbroken": True,
            "lines": found.num_lines,
            "last_hash": found.last_hash,
            "unfinished_bytes": found.unfinished_bytes,
            "bytes_to": found.bytes_to(),
            "sent": list(found.lines()),
        }
        print(json.dumps(result, indent=2))
        return
    console().print(_table(found, path))
    console().print(_verdict(found), highlight=False, markup=False, soft_wrap=True)


def _compare(one: Path, other: Path, *, ca: Path | None, noted: str | None, as_json: bool) -> None:
    """Compare two parties' ledgers with the heads that each holds of the other's.

    Raises:
        NetworkError: a ledger that is not what its party has said it was.
    """
    from dovetail.cli.output import console
    from dovetail.network.certificates import read_certificates, read_file
    from dovetail.network.frames import printable
    from dovetail.network.heads import compare

    if noted is not None:
        raise ConfigError("--noted goes with one ledger; two are compared by the heads they hold")
    authorities: tuple[x509.Certificate, ...] = ()
    if ca is not None:
        authorities = read_certificates(read_file(ca, what="the authority"), where=str(ca))
    first, second, compared = compare(one, other, authorities=authorities)
    wrong = [each.why for each in compared if each.why]
    if as_json:
        about = [asdict(each) for each in compared]
        print(json.dumps({"agree": not wrong, "compared": about}, indent=2))
    else:
        for ledger in (first, second):
            said = f"{ledger.party!r}: unbroken by itself, {ledger.num_lines:,} lines"
            console().print(said, highlight=False, markup=False, soft_wrap=True)
        for each in compared:
            if not each.why:
                console().print(_held(each), highlight=False, markup=False, soft_wrap=True)
    if wrong:
        raise NetworkError("; ".join(map(printable, wrong)))


def _held(found: Compared) -> str:
    if not found.heads:
        return (
            f"{found.holder!r} holds no head of the ledger of {found.of!r}: nothing is known of it "
            "but what it says itself"
        )
    return (
        f"{found.holder!r} holds {found.heads:,} heads of the ledger of {found.of!r}, "
        f"{found.signed:,} of them signed: all are in it, the last in line {found.lines:,}; "
        f"{found.after:,} lines stand behind it, of which only its chain tells"
    )


def _table(found: Verified, path: Path) -> Table:
    from rich.table import Table
    from rich.text import Text

    from dovetail.network.frames import printable

    whose = f"Left {printable(found.party)!r}" if found.party else f"In {path}"
    table = Table(title=Text(whose), title_justify="left")
    for name in ("to", "message", "tensors"):
        table.add_column(name)
    for name in ("count", "bytes"):
        table.add_column(name, justify="right")
    table.add_column("first, last (UTC)")
    for line in found.lines():
        tensors = "\n".join(
            f"{each['name']} {each['dtype']} {'x'.join(map(str, each['shape'])) or 'scalar'}"
            for each in line["tensors"]
        )
        table.add_row(
            *(Text(printable(text)) for text in (line["to"], line["message"])),
            Text("\n".join(map(printable, tensors.split("\n")))),
            f"{line['count']:,}",
            f"{line['bytes']:,}",
            Text(f"{_second(line['first'])}\n{_second(line['last'])}"),
        )
    for receiver, num_bytes in found.bytes_to().items():
        table.add_row(Text(printable(receiver)), "all", "", "", f"{num_bytes:,}", "")
    return table


def _second(time: str) -> str:
    """2026-11-21T09:46:28.123+00:00 -> 2026-11-21 09:46:28"""
    from dovetail.network.frames import printable

    return printable(time[:19].replace("T", " "))


def _verdict(found: Verified) -> str:
    said = f"unbroken: {found.num_lines:,} lines, last hash {found.last_hash}"
    if found.unfinished_bytes:
        said += (
            f"\nAfter them stand {found.unfinished_bytes} bytes of a line that was not finished: "
            "it is being written now, or a crash cut it off before its message left."
        )
    return said + (
        "\nLines missing at the end cannot be seen: note the last hash elsewhere, and look for it "
        "later with --noted HASH, or compare with another party's: dovetail ledger A B."
    )
