"""``dovetail audit``: what each side of a run could learn, beside what it knows already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli import precheck
from dovetail.cli.options import AsJson, Quiet, RunKeys
from dovetail.errors import ConfigError

#: Verdicts that ``--fail-over`` takes, from the weaker.
_FAIL_OVER = ("low", "high")


def audit(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a run file (TOML).")],
    variant: Annotated[
        list[str] | None,
        typer.Option(help="The method or a baseline of the run; repeat for several. [the method]"),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="How many of the run's seeds to train again.")
    ] = 1,
    known: Annotated[
        int, typer.Option(min=10, help="Rows of the other side that an attacker knows.")
    ] = 100,
    fast: Annotated[bool, typer.Option("--fast", help="Linear attackers only.")] = False,
    malicious: Annotated[
        bool, typer.Option("--malicious", help="Also try peers that break the protocol.")
    ] = False,
    try_: Annotated[
        bool, typer.Option("--try", help="Also train with a dozen defences: what each costs.")
    ] = False,
    limit: Annotated[
        str, typer.Option(metavar="none|low", help="The verdict that --try may recommend up to.")
    ] = "low",
    fail_over: Annotated[
        str | None,
        typer.Option(metavar="low|high", help="Exit with 1 at this verdict or a stronger one."),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="A recipe of the run file.")] = None,
    overrides: RunKeys = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Attack a run's own messages: what could each party learn of the others?

    Trains the run again in this process, by its own settings and seeds, keeps what crosses, and
    attacks it as an honest but curious receiver would; with --malicious also as a driver or a
    partner that steers the other's training, within the limits of a site. Each figure stands
    beside the same attack without messages; the verdict is none, low or high. audit.json and
    audit.html, in the run's folder, have all of it.

    Nothing found is no proof that there is nothing to find.
    """
    if fail_over is not None and fail_over not in _FAIL_OVER:
        raise ConfigError(f"--fail-over takes low or high, got {fail_over!r}")
    if not run.is_dir():
        precheck.check_run(run, overrides)
    from dovetail.api.auditing import audit as audit_of
    from dovetail.audit.verdict import VERDICTS
    from dovetail.cli.output import show

    audited = audit_of(
        run,
        variants=tuple(variant or ()),
        seeds=seeds,
        known=known,
        fast=fast,
        malicious=malicious,
        try_defences=try_,
        limit=limit,  # type: ignore[arg-type]  # checked there
        recipe=recipe,
        overrides=tuple(overrides or ()),
        quiet=quiet or as_json,
    )
    if as_json:
        print(json.dumps(audited.to_json(), indent=2))
    elif not quiet:
        show(audited)
    if fail_over and VERDICTS.index(audited.verdict) >= VERDICTS.index(fail_over):
        raise typer.Exit(1)
