"""``dovetail ledger``: what left a party, and whether its record is unbroken."""

from __future__ import annotations

import json
from pathlib import Path

from rich.table import Table
from rich.text import Text

from dovetail.cli.output import console
from dovetail.network.frames import printable
from dovetail.network.ledger import Verified, verify


def run_ledger(path: Path, *, noted: str | None, as_json: bool) -> None:
    """Verify the ledger and print what it holds."""
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


def _table(found: Verified, path: Path) -> Table:
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
        "later with --noted HASH."
    )
