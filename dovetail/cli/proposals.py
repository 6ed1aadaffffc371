"""What ``dovetail propose`` and ``dovetail review`` do: runs that are read and signed first."""

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
from dovetail.methods.party import Site
from dovetail.network.certificates import certificate_name
from dovetail.network.credentials import Credentials, certificates_beside
from dovetail.network.identity import Certified
from dovetail.network.printable import printable
from dovetail.network.retry import write_text
from dovetail.node.engines import CertifiedSection
from dovetail.node.partyfile import open_site
from dovetail.node.proposal import (
    Proposal,
    read_proposal,
    read_signatures,
    sign,
    signature_path,
)
from dovetail.node.reviewing import Reviewer, changes
from dovetail.runs.proposing import page, propose, review
from dovetail.runs.runfile import RunFile, load_run


def run_propose(
    path: Path,
    *,
    purpose: str,
    out: Path,
    days: float,
    least_rows: int,
    attempts: int,
    recipe: str | None,
    overrides: tuple[str, ...],
    seeds: tuple[int, ...],
    certificates: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write the proposal, its page and the driver's signature."""
    run = load_run(path, recipe=recipe, overrides=overrides)
    if out.suffix != ".json":
        raise ConfigError(f"a proposal is a .json file, got --out {out}")
    proposal = propose(
        run,
        where=str(path),
        purpose=purpose,
        days=days,
        least_rows=least_rows,
        attempts=attempts,
        seeds=seeds,
    )
    folder = certificates or _local_certificates(run, proposal.driver)
    identity = Certified(Credentials.load(folder, proposal.driver))
    signature = sign(proposal, proposal.driver, identity)
    for stale in read_stale(out, proposal):
        stale.unlink()
    paths = [out, out.with_suffix(".md"), signature_path(out, proposal.driver)]
    for each, text in zip(paths, (proposal.text, page(proposal), signature.text), strict=True):
        write_text(each, text)
    if as_json:
        print(json.dumps({"proposal": proposal.name, "written": list(map(str, paths))}))
    elif not quiet:
        others = [name for name in proposal.signers if name != proposal.driver]
        print_line(
            f"Proposal {proposal.name[:12]}, until {proposal.expires:%Y-%m-%d %H:%M} UTC: {out}"
        )
        print_line(f"  to read: {paths[1]}; signed by {proposal.driver!r}: {paths[2]}")
        print_line(f"Send {out} to {', '.join(others)}. Each reads and answers it with")
        print_line(f"  dovetail review {out.name} --party THEIR.toml")
        print_line("and sends its answer back, to stand beside the proposal. When all have signed:")
        print_line(f"  dovetail train {path} --proposal {out}")


def read_stale(out: Path, proposal: Proposal) -> list[Path]:
    """Answers beside ``out`` that are of another proposal: of one that is replaced now."""
    stale = []
    for party in proposal.signers:
        path = signature_path(out, party)
        if path.exists() and proposal.name not in path.read_text(encoding="utf-8"):
            stale.append(path)
    return stale


def _local_certificates(run: RunFile, driver: str) -> Path:
    section = run.engine
    if isinstance(section, CertifiedSection) and section.certificates:
        return Path(section.certificates)
    if run.parties:
        return certificates_beside(Path(run.parties[0]), driver)
    return Path("certificates") / certificate_name(driver)


def run_review(
    file: Path,
    *,
    party: Path,
    yes: bool,
    refuse: str | None,
    certificates: Path | None,
    site_folder: Path | None,
    as_json: bool,
) -> None:
    """Show a proposal to a party, and write its answer.

    Raises:
        ConfigError: it cannot be signed with this party file, or nobody is there to be asked.
    """
    if yes and refuse is not None:
        raise ConfigError("give --yes or --refuse, not both")
    proposal = read_proposal(file)
    site = open_site(party)
    reviewer = Reviewer.of(site, certificates=certificates, site_folder=site_folder)
    against = review(proposal, site)
    last = reviewer.last_before(proposal)
    differing = changes(last, proposal)
    if not as_json:
        _show(proposal, site, against, last, differing)
    if refuse is None and against:
        raise ConfigError(
            f"{site.name!r} cannot sign it with {party}: {'; '.join(against)}. Change the party "
            f"file if you agree to that, or say no: dovetail review {file} --party {party} "
            "--refuse WHY"
        )
    if refuse is None and not yes:
        refuse = _ask(proposal, site)
    answer = reviewer.answer(proposal, read_signatures(file, proposal), refuse=refuse)
    path = signature_path(file, site.name)
    write_text(path, answer.text)
    if as_json:
        report: dict[str, Any] = {
            "proposal": proposal.name,
            "decision": answer.decision,
            "changes": [f"{key}: {before} -> {after}" for key, before, after in differing],
            "written": str(path),
        }
        print(json.dumps(report))
        return
    print_line(f"{answer.decision} by {site.name!r}: {path}. Send it to {proposal.driver!r}.")


def _show(
    proposal: Proposal,
    site: Site,
    against: list[str],
    last: Proposal | None,
    changes: list[tuple[str, Any, Any]],
) -> None:
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


def _ask(proposal: Proposal, site: Site) -> str | None:
    """None: signed; else why not.

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
