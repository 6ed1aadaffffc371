"""``dovetail audit``: what each side of a run could learn, beside what it knows already."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from dovetail.cli import precheck
from dovetail.cli.command import command_of
from dovetail.errors import ConfigError

#: Verdicts that ``--fail-over`` takes, from the weaker.
_FAIL_OVER = ("low", "high")


@command_of(
    "api.auditing:audit",
    names={"variants": "--variant", "try_defences": "--try"},
    least={"seeds": 1, "known": 10},
)
def audit(
    call: Callable[..., Any],
    run: Path,
    overrides: list[str] | None = None,
    fail_over: Annotated[str | None, typer.Option(metavar="low|high")] = None,
) -> None:
    """Attack a run's own messages: what could each party learn of the others?

    Trains the run again in this process and attacks its messages as an honest but curious receiver
    would; with --malicious also as a driver or partner that steers the other's training. Each
    figure is compared with the same attack without messages; the verdict is none, low or high. The
    result is in audit.json and audit.html in the run's folder.

    Nothing found is no proof that there is nothing to find.

    Args:
        fail_over: exit with 1 at this verdict or a stronger one.
    """
    if fail_over not in (None, *_FAIL_OVER):
        raise ConfigError(f"--fail-over takes low or high, got {fail_over!r}")
    precheck.check_run_or_folder(run, overrides)
    verdict = call().verdict
    if fail_over is not None and verdict in _FAIL_OVER[_FAIL_OVER.index(fail_over) :]:
        raise typer.Exit(1)
