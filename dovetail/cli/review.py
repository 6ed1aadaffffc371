"""``dovetail review``: a party reads a proposal, and signs it or says no."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dovetail.errors import ConfigError


def review(
    party: Annotated[Path, typer.Option()],
    file: Annotated[Path | None, typer.Argument()] = None,
    yes: bool = False,
    refuse: Annotated[str | None, typer.Option(metavar="WHY")] = None,
    certificates: Path | None = None,
    site_folder: Path | None = None,
    as_json: bool = False,
) -> None:
    """Read a proposal, compare it with your policy and table, and sign or refuse it.

    Shows the page, what differs from this driver's last proposal, and whether your party file fits.
    Your answer, signed with your certificate's key, is written beside the proposal, as
    FILE.YOU.json, and kept in your site: send it back to the driver.

    dovetail review proposal.json --party shop.toml

    Without a proposal: all that were seen, who signed, and which runs began on them.

    Args:
        party: your party file (TOML).
        file: a proposal; None: none: list what was agreed, and used.
        yes: sign without being asked.
        refuse: say no, for this reason.
    """
    if yes and refuse is not None:
        raise ConfigError("give --yes or --refuse, not both")
    from dovetail.cli.output import print_line
    from dovetail.cli.proposals import ask, run_record, show
    from dovetail.network.retry import write_text
    from dovetail.node.partyfile import open_site
    from dovetail.node.proposal import read_proposal, read_signatures, signature_path
    from dovetail.node.reviewing import Reviewer, changes
    from dovetail.runs.proposing import review as reviewed

    if file is None:
        run_record(party, certificates=certificates, site_folder=site_folder, as_json=as_json)
        return
    proposal = read_proposal(file)
    site = open_site(party)
    reviewer = Reviewer.of(site, certificates=certificates, site_folder=site_folder)
    against = reviewed(proposal, site)
    last = reviewer.last_before(proposal)
    differing = changes(last, proposal)
    if not as_json:
        show(proposal, site, against, last, differing)
    if refuse is None and against:
        raise ConfigError(
            f"{site.name!r} cannot sign it with {party}: {'; '.join(against)}. Change the party "
            f"file if you agree to that, or say no: dovetail review {file} --party {party} "
            "--refuse WHY"
        )
    if refuse is None and not yes:
        refuse = ask(proposal, site)
    answer = reviewer.answer(proposal, read_signatures(file, proposal), refuse=refuse)
    path = signature_path(file, site.name)
    write_text(path, answer.text)
    if as_json:
        report = {
            "proposal": proposal.name,
            "decision": answer.decision,
            "changes": [f"{key}: {before} -> {after}" for key, before, after in differing],
            "written": str(path),
        }
        print(json.dumps(report))
        return
    print_line(f"{answer.decision} by {site.name!r}: {path}. Send it to {proposal.driver!r}.")
