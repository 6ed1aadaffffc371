"""``dovetail review``: a party reads a proposal, and signs it or says no."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.options import AsJson, Certificates


def review(
    party: Annotated[Path, typer.Option(help="Your party file (TOML).")],
    file: Annotated[
        Path | None, typer.Argument(help="A proposal. [none: list what was agreed, and used]")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Sign without being asked.")] = False,
    refuse: Annotated[
        str | None, typer.Option(metavar="WHY", help="Say no, for this reason.")
    ] = None,
    certificates: Certificates = None,
    site_folder: Annotated[
        Path | None,
        typer.Option("--site", help="The party's folder. [STEM.site beside its file]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read a proposal, hold it against your own policy and table, and sign it or say no.

    Shows the page, what differs from the last proposal of this driver, and whether your party file
    goes with it. Your answer, signed with your certificate's key, is written beside the proposal,
    as FILE.YOU.json, and kept in your site: send it back to the driver.

    dovetail review proposal.json --party shop.toml

    Without a proposal: all that were seen, who signed, and which runs began on them.
    """
    from dovetail.cli.proposals import run_record, run_review

    if file is None:
        run_record(party, certificates=certificates, site_folder=site_folder, as_json=as_json)
        return
    run_review(
        file,
        party=party,
        yes=yes,
        refuse=refuse,
        certificates=certificates,
        site_folder=site_folder,
        as_json=as_json,
    )
