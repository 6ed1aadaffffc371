"""``dovetail propose``: a run as one page that its parties read and sign."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dovetail.errors import ConfigError


def propose(
    run: Path,
    purpose: Annotated[str, typer.Option()],
    out: Path = Path("proposal.json"),
    days: Annotated[float, typer.Option(min=0.001)] = 30,
    least_rows: Annotated[int, typer.Option(min=1)] = 1,
    attempts: Annotated[int, typer.Option(min=1)] = 3,
    recipe: str | None = None,
    overrides: list[str] | None = None,
    seed: list[int] | None = None,
    certificates: Path | None = None,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Write a run as one page that every party reads and signs, before it starts.

    The proposal is canonical JSON, named by its SHA-256; beside it are the same as a page (.md),
    and your signature. Send it to the parties; each reviews it (dovetail review) and sends its
    answer back. Put the answers beside it, then:

    dovetail train run.toml --proposal proposal.json

    A party whose file has policy.approval = "signed" answers nothing else.

    Args:
        run: a run file (TOML) with [engine] kind = "stream".
        purpose: what the run is for.
        out: the proposal; its page for people goes beside it.
        days: how long it may be run.
        least_rows: rows that each party brings in, at least.
        attempts: how often each variant of a seed may be started.
    """
    if out.suffix != ".json":
        raise ConfigError(f"a proposal is a .json file, got --out {out}")
    from dovetail.cli.output import print_text
    from dovetail.cli.proposals import local_certificates, read_stale
    from dovetail.network.credentials import Credentials
    from dovetail.network.renewal import Certified
    from dovetail.network.retry import write_text
    from dovetail.node.proposal import sign, signature_path
    from dovetail.runs.proposing import page
    from dovetail.runs.proposing import propose as made
    from dovetail.runs.runfile import load_run

    run_file = load_run(run, recipe=recipe, overrides=tuple(overrides or ()))
    proposal = made(
        run_file,
        where=str(run),
        purpose=purpose,
        days=days,
        least_rows=least_rows,
        attempts=attempts,
        seeds=tuple(seed or ()),
    )
    folder = certificates or local_certificates(run_file, proposal.driver)
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
        print_text("proposed.txt", proposal=proposal, out=out, paths=paths, run=run)
