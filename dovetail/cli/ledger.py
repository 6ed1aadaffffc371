"""``dovetail ledger``: what left a party and came to it; verified, reconciled and proved."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli import precheck
from dovetail.cli.output import console, print_line, print_text
from dovetail.errors import ConfigError, NetworkError
from dovetail.network.printable import printable

if TYPE_CHECKING:
    from cryptography import x509

    from dovetail.network.heads import Compared
    from dovetail.network.ledger import Verified
    from dovetail.network.reconcile import Agreement

#: What may stand before the files.
WORDS = ("verify", "prove", "check")

#: Explained messages that are printed one by one.
_MOST_SHOWN = 20


def ledger(
    files: Annotated[list[str], typer.Argument(metavar="[verify|prove|check] [FILE...]")],
    noted: Annotated[str | None, typer.Option(metavar="HASH")] = None,
    ca: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    by: Annotated[Path | None, typer.Option(metavar="SITE")] = None,
    out: Path | None = None,
    record: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    rebuild: bool = False,
    as_json: bool = False,
) -> None:
    """Show what left a party and what came; verify, reconcile and prove its record.

    dovetail ledger shop.site                    what left and came, and whether it is unbroken

    dovetail ledger verify bank.site shop.site   do two ledgers say the same?

    dovetail ledger prove shop.site 57           that line 57 is in it, for one who has no
    ledger

    dovetail ledger check proof.json             what such a proof shows

    dovetail ledger verify --record out/run/record.json bank.site shop.site

                                                 what was agreed, ran and was used

    A line that was changed, removed, inserted or moved is named, and the exit code is 2. Missing
    lines at the end, or a rewritten ledger, show only against a hash noted earlier (--noted HASH)
    or the heads that another party holds. For two ledgers the first line that differs is named.

    Args:
        files: a party's ledger.jsonl, or its folder.
        noted: a last hash of earlier; it must be there.
        ca: the authority (ca.pem) of who must have signed heads.
        by: with prove: of a party that holds heads; None: the ledger's own.
        out: with prove: where the proof is written.
        record: with verify: a run's record.json; ledgers are held to it.
        rebuild: count again what the site has answered (site.sqlite), from its ledger.
    """
    word = files[0] if files[0] in WORDS else ""
    names = files[1:] if word else files
    for option, value, only in (("--by", by, "prove"), ("--out", out, "prove")):
        if value is not None and word != only:
            raise ConfigError(f"{option} goes with dovetail ledger {only} FILE LINE")
    if noted is not None and (word in WORDS[1:] or len(names) != 1):
        raise ConfigError("--noted goes with one ledger; two are compared by the heads they hold")
    if rebuild:
        if word or len(names) != 1:
            raise ConfigError("--rebuild goes with one site's folder: dovetail ledger shop.site")
        _rebuild(Path(names[0]))
    elif record is not None:
        if word != "verify":
            raise ConfigError("--record goes with dovetail ledger verify")
        precheck.check_record(record)
        _show_record(record, [_ledger_of(name) for name in names], ca=ca, as_json=as_json)
    elif word == "prove":
        _prove(names, by=by, out=out)
    elif word == "check":
        _check(names, ca=ca, as_json=as_json)
    elif len(names) > 1:
        _compare([_ledger_of(name) for name in names], ca=ca, as_json=as_json)
    elif names:
        precheck.check_ledger(_ledger_of(names[0]))
        _show(_ledger_of(names[0]), noted=noted, short=word == "verify", as_json=as_json)
    else:
        raise ConfigError(f"dovetail ledger {word} takes a ledger, got none")


def _rebuild(site_folder: Path) -> None:
    """Count again from a site's ledger, and print what was counted."""
    from dovetail.node.partyfile import open_site
    from dovetail.node.recount import rebuild
    from dovetail.node.site_folder import SiteFolder

    site = open_site(site_folder.with_suffix(".toml"))
    with SiteFolder(site_folder):
        counted = rebuild(site, site_folder)
    shown = ", ".join(f"{number} {kind}" for kind, number in counted.items()) or "nothing"
    print_line(
        f"counted from {site_folder / 'ledger.jsonl'}: {shown}; what it does not say counts as "
        "used up, and runs under way begin anew"
    )


def _ledger_of(name: str) -> Path:
    path = Path(name)
    return path / "ledger.jsonl" if path.is_dir() else path


def _authorities(ca: Path | None) -> tuple[x509.Certificate, ...]:
    """Whose certificates are believed; none: anybody's.

    Raises:
        ConfigError: a file that is none of certificates.
    """
    from dovetail.network.certificates import certificates_in

    if ca is None:
        return ()
    return certificates_in(ca, "the authority")


def _show(path: Path, *, noted: str | None, short: bool, as_json: bool) -> None:
    """Verify the ledger and print what it holds."""
    from dovetail.network.ledger import verify

    verified = verify(path, noted=noted, keep=False)
    if as_json:
        result = {
            "party": verified.party,
            "unbroken": True,
            "lines": verified.num_lines,
            "last_hash": verified.last_hash,
            "root": verified.root,
            "unfinished_bytes": verified.unfinished_bytes,
            "bytes_to": verified.bytes_to(),
            "sent": list(verified.lines()),
            "came": list(verified.lines_came()),
        }
        print(json.dumps(result, indent=2))
        return
    if not short:
        whose = f"Left {printable(verified.party)!r}" if verified.party else f"In {path}"
        _print(whose, "to", list(verified.lines()), verified.bytes_to())
        if verified.came:
            came = f"Came to {printable(verified.party)!r}"
            _print(came, "from", list(verified.lines_came()), {})
    print_text("ledger.txt", verified=verified)


# --- Several ledgers
# --------------------------------------------------------------------------------


def _compare(paths: Sequence[Path], *, ca: Path | None, as_json: bool) -> None:
    """Hold ledgers against each other, and against the heads that each party has of the others'.

    Raises:
        NetworkError: a ledger that is not what its party has said it was, or two that differ.
    """
    from dovetail.network.heads import compare
    from dovetail.network.reconcile import reconcile

    authorities = _authorities(ca)
    compared: list[Compared] = []
    agreements: list[Agreement] = []
    ledgers: dict[Path, Verified] = {}
    for one, other in combinations(paths, 2):
        ledgers[one], ledgers[other], heads = compare(one, other, authorities=authorities)
        comparisons = reconcile(one, other)
        if (
            len(paths) == 2
            or any(each.heads for each in heads)
            or any(_any(each) for each in comparisons)
        ):
            compared += heads
            agreements += comparisons
    whys = [*(each.why for each in compared), *(each.why for each in agreements)]
    wrong = [why for why in whys if why]
    if as_json:
        report: dict[str, Any] = {
            "agree": not wrong,
            "compared": [asdict(each) for each in compared],
            "reconciled": [asdict(each) for each in agreements],
        }
        print(json.dumps(report, indent=2))
    else:
        for ledger in ledgers.values():
            print_line(f"{ledger.party!r}: unbroken by itself, {ledger.num_lines:,} lines")
        for each in compared:
            if not each.why:
                print_line(_held(each))
        for agreement in agreements:
            for line in _reconciled(agreement):
                print_line(printable(line))
    if wrong:
        raise NetworkError("; ".join(map(printable, wrong)))


def _any(agreement: Agreement) -> bool:
    return bool(agreement.same or agreement.lost or agreement.refused or agreement.why)


def _reconciled(agreement: Agreement) -> list[str]:
    text = (
        f"{agreement.sender!r} -> {agreement.receiver!r}: {agreement.same:,} messages are in "
        "both books"
    )
    if agreement.again:
        text += f"; {agreement.again:,} came again after {agreement.receiver!r} had begun anew"
    if agreement.refused:
        text += f"; {agreement.refused:,} of requests refused in a row, which share lines"
    if agreement.lost:
        text += f"; {len(agreement.lost):,} left and did not come, as explained:"
    shown = [f"  {each}" for each in agreement.lost[:_MOST_SHOWN]]
    if len(agreement.lost) > _MOST_SHOWN:
        shown.append(f"  and {len(agreement.lost) - _MOST_SHOWN:,} more (--json has all)")
    return [text, *shown]


def _held(compared: Compared) -> str:
    if not compared.heads:
        return (
            f"{compared.holder!r} holds no head of the ledger of {compared.of!r}: nothing is "
            "known of it but what it says itself"
        )
    return (
        f"{compared.holder!r} holds {compared.heads:,} heads of the ledger of {compared.of!r}, "
        f"{compared.signed:,} of them signed: all are in it, the last in line {compared.lines:,}; "
        f"{compared.after:,} lines stand behind it, of which only its chain tells"
    )


# --- One run -------------------------------------------------------------------------------------


def _show_record(path: Path, ledgers: Sequence[Path], *, ca: Path | None, as_json: bool) -> None:
    """Say what a run's record shows, up to the first thing that is not so.

    Raises:
        DovetailError: that thing.
    """
    from dovetail.node.record import check_record

    if path.is_dir():
        path /= "record.json"
    lines = []
    for line in check_record(path, ledgers, _authorities(ca)):
        lines.append(line)
        if not as_json:
            print_line(printable(line))
    if as_json:
        report = {"holds": True, "record": json.loads(path.read_bytes()), "said": lines}
        print(json.dumps(report, indent=2))


# --- One line -------------------------------------------------------------------------------------


def _prove(names: Sequence[str], *, by: Path | None, out: Path | None) -> None:
    """Write the proof of one line.

    Raises:
        ConfigError: not a file and a number.
        NetworkError: it cannot be proved.
    """
    from dovetail.network.reconcile import prove
    from dovetail.network.retry import write_text

    if len(names) != 2 or not names[1].isdecimal():
        raise ConfigError(
            "dovetail ledger prove takes a ledger and the number of a line, for example "
            f"dovetail ledger prove shop.site 57; got {' '.join(names) or 'nothing'}"
        )
    proof = json.dumps(prove(_ledger_of(names[0]), int(names[1]), by=by), indent=2)
    if out is None:
        print(proof)
    else:
        write_text(out, proof + "\n")
        print_line(
            f"Proof of line {int(names[1]):,}: {out}  (dovetail ledger check {out} --ca ca.pem)"
        )


def _check(names: Sequence[str], *, ca: Path | None, as_json: bool) -> None:
    """Say what a proof shows.

    Raises:
        ConfigError: not one file.
        NetworkError: it shows nothing.
    """
    from dovetail.network.reconcile import check_line

    if len(names) != 1:
        raise ConfigError("dovetail ledger check takes the file of one proof")
    checked = check_line(Path(names[0]), authorities=_authorities(ca))
    if as_json:
        print(json.dumps(asdict(checked), indent=2))
        return
    print_line(printable(checked.text))
    how = "signed by it" if checked.head.proof else "told by it, unsigned"
    of = "" if ca is not None or not checked.head.proof else " (whose authority --ca names)"
    print_line(
        printable(
            f"is line {checked.line:,} of the ledger of {checked.party!r}, under the head of line "
            f"{checked.head.lines:,} of {checked.head.time}, {how}{of}: root {checked.head.root}"
        )
    )


# --- What one holds -------------------------------------------------------------------------------


def _print(
    title: str, whom: str, lines: Sequence[Mapping[str, Any]], totals: Mapping[str, int]
) -> None:
    """A row for each kind of message, of which eighty columns hold all, and when they went."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title),
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    has_tensors = any("tensors" in line for line in lines)
    costs = [each for each in ("epsilon", "bits") if any(each in line for line in lines)]
    table.add_column(whom, overflow="fold")
    table.add_column("message", overflow="fold")
    if has_tensors:
        table.add_column("tensors", overflow="fold")
    heads = {"epsilon": "epsilon", "bits": "bits a row"}
    for name in ("count", "bytes", *(heads[each] for each in costs)):
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        tensors = "\n".join(
            f"{each['name']} {each['dtype']} {'x'.join(map(str, each['shape'])) or 'scalar'}"
            for each in line.get("tensors", ())
        )
        table.add_row(
            *(Text(printable(text)) for text in (line[whom], line["message"] or "(unread)")),
            *[Text("\n".join(map(printable, tensors.split("\n"))))] * has_tensors,
            f"{line['count']:,}",
            f"{line['bytes']:,}",
            *(f"{line[each]:.3g}" if each in line else "" for each in costs),
        )
    for name, num_bytes in totals.items():
        table.add_row(Text(printable(name)), "all", *[""] * has_tensors, "", f"{num_bytes:,}")
    console().print(table)
    when = [_second(line[end]) for line in lines for end in ("first", "last")]
    if when:
        print_line(f"{min(when)} to {max(when)} (UTC); --json has the times of each")
    print_line("")


def _second(time: str) -> str:
    """2026-11-21T09:46:28.123+00:00 -> 2026-11-21 09:46:28"""
    return printable(time[:19].replace("T", " "))
