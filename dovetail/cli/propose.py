"""``dovetail propose``: a run as one page that its parties read and sign."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.options import AsJson, Certificates, Quiet, Recipe, RunKeys, Seeds


def propose(
    run: Annotated[Path, typer.Argument(help='A run file (TOML) with [engine] kind = "stream".')],
    purpose: Annotated[str, typer.Option(help="What the run is for, in a sentence.")],
    out: Annotated[
        Path, typer.Option(help="The proposal; its page for people goes beside it.")
    ] = Path("proposal.json"),
    days: Annotated[float, typer.Option(min=0.001, help="How long it may be run.")] = 30,
    least_rows: Annotated[
        int, typer.Option(min=1, help="Rows that each party brings in, at least.")
    ] = 1,
    attempts: Annotated[
        int, typer.Option(min=1, help="How often each variant of a seed may be begun.")
    ] = 3,
    recipe: Recipe = None,
    overrides: RunKeys = None,
    seed: Seeds = None,
    certificates: Certificates = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write a run as one page that every party reads and signs, before it begins.

    The proposal is canonical JSON, named by its SHA-256; beside it stands the same as a page
    (.md), and your own signature. Send it to the parties; each reviews it (dovetail review) and
    sends its answer back, to stand beside it. Then:

    dovetail train run.toml --proposal proposal.json

    A party whose file has policy.approval = "signed" answers nothing else.
    """
    from dovetail.cli.proposals import run_propose

    run_propose(
        run,
        purpose=purpose,
        out=out,
        days=days,
        least_rows=least_rows,
        attempts=attempts,
        recipe=recipe,
        overrides=tuple(overrides or ()),
        seeds=tuple(seed or ()),
        certificates=certificates,
        quiet=quiet,
        as_json=as_json,
    )
