"""Commands ``dovetail propose`` and ``dovetail review``: runs that are read and signed first."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from dovetail.cli.output import console, print_line
from dovetail.errors import ConfigError
from dovetail.methods.base import Site
from dovetail.network.certificates import certificate_name
from dovetail.network.credentials import certificates_beside
from dovetail.network.printable import printable
from dovetail.node.engines import CertifiedSection
from dovetail.node.partyfile import open_site
from dovetail.node.proposal import (
    Proposal,
    signature_path,
)
from dovetail.node.reviewing import Reviewer
from dovetail.runs.proposing import page
from dovetail.runs.runfile import RunFile


def read_stale(out: Path, proposal: Proposal) -> list[Path]:
    """Answers beside ``out`` that are of another proposal: of one that is replaced now."""
    stale = []
    for party in proposal.signers:
        path = signature_path(out, party)
        if path.exists() and proposal.name not in path.read_text(encoding="utf-8"):
            stale.append(path)
    return stale


def local_certificates(run: RunFile, driver: str) -> Path:
    """Where the driver's certificate is, as its run file or party file says."""
    section = run.engine
    if isinstance(section, CertifiedSection) and section.certificates:
        return Path(section.certificates)
    if run.parties:
        return certificates_beside(Path(run.parties[0]), driver)
    return Path("certificates") / certificate_name(driver)


def show(
    proposal: Proposal,
    site: Site,
    against: list[str],
    last: Proposal | None,
    changes: list[tuple[str, Any, Any]],
) -> None:
    """Print a proposal as its page, what is new in it, and what the party file has against it."""
    console().print(Markdown(page(proposal)))
    if last is None:
        print_line(f"\nThe first proposal of {proposal.driver!r} that is seen here.")
    else:
        print_line(f"\nAgainst the last one of {proposal.driver!r}, {last.name[:12]}:")
        for key, before, after in changes or [("nothing", "", "differs")]:
            print_line(f"  {printable(key)}: {json.dumps(before)} -> {json.dumps(after)}")
    print_line(f"\n{site.name!r} ({site.where}):")
    for line in against or ["its policy and its table go with it"]:
        print_line(f"  {line}")


def ask(proposal: Proposal, site: Site) -> str | None:
    """Objection of a party to a proposal; None: it signs.

    Raises:
        ConfigError: there is nobody to ask.
    """
    if not sys.stdin.isatty():
        raise ConfigError("nobody is there to be asked; say --yes, or --refuse WHY")
    name = proposal.name[:12]
    while True:
        answer = input(f"Does {site.name!r} sign proposal {name}? [yes/no] ").strip().lower()
        if answer == "yes":
            return None
        if answer == "no":
            return input("Why not? ").strip()


def run_record(
    party: Path, *, certificates: Path | None, site_folder: Path | None, as_json: bool
) -> None:
    """Show all proposals that a site keeps: who said what, and which runs began on them."""
    site = open_site(party)
    reviewer = Reviewer.of(site, certificates=certificates, site_folder=site_folder)
    agreements, agreed = reviewer.agreements, []
    for proposal in agreements.known():
        signatures = agreements.signatures(proposal.name)
        for signature in signatures.values():
            signature.check(proposal, reviewer.identity.authorities)
        agreed.append((proposal, signatures, agreements.used(proposal.name)))
    if as_json:
        print(
            json.dumps(
                [
                    {
                        "proposal": json.loads(proposal.text),
                        "name": proposal.name,
                        "signatures": {n: json.loads(s.text) for n, s in signatures.items()},
                        "used": used,
                    }
                    for proposal, signatures, used in agreed
                ],
                indent=2,
            )
        )
        return
    table = Table(title=Text(f"Proposals that {site.name!r} keeps"), title_justify="left")
    for column in ("proposal", "driver", "trains", "said"):
        table.add_column(column)
    for proposal, signatures, _ in agreed:
        text = "\n".join(
            f"{name}: {signatures[name].decision} {signatures[name].time:%Y-%m-%d %H:%M}"
            if name in signatures
            else f"{name}: nothing"
            for name in proposal.signers
        )
        what = f"{', '.join(proposal.variants)}\nuntil {proposal.expires:%Y-%m-%d}"
        table.add_row(proposal.name[:12], Text(proposal.driver), what, Text(text))
    console().print(table)
    for proposal, _, used in agreed:
        print_line(f"Runs that began on {proposal.name[:12]}:{'' if used else ' none'}")
        for each in used:
            print_line(f"  {each['time']}  {each['run']}")
