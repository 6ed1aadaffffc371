"""``dovetail value``: what each partner of a vertical run is worth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from dovetail.cli import precheck
from dovetail.cli.command import command_of
from dovetail.errors import ConfigError


@command_of("api.valuing:value", least={"seeds": 1, "permutations": 1})
def value(
    call: Callable[..., Any],
    run: Path,
    partners: Annotated[str | None, typer.Option(metavar="A,B")] = None,
    overrides: list[str] | None = None,
    out: Path | None = None,
) -> None:
    """Rank the partners of a run by what they are worth to the party with labels.

    Three measures, from cheap to expensive, each with those before it:

    mi: mutual information of a partner's columns with the labels; trains nothing.

    loo: leave-one-out, the test score lost without this partner; trains partners + 2 models. Two
    partners with the same columns are each worth nothing by it.

    shapley: the test score gained, averaged over all orders in which partners could join; adds up
    to what all gain together. Trains a model for each set of partners, 2^partners.

    Partners of APFed are valued twice: solo after they have left, joint while they are there, by
    classic vertical learning. --no-joint halves the time.

    Use mi to choose whom to talk to, loo to see whom the model would miss, shapley to share a
    reward. Differences below the spread over seeds mean little: --seeds 5.

    A command that was stopped goes on; value.json in the run's folder has the result. Works for all
    variants of APFed, tvfl and fedoptimus, simulated or with all party files in one place.

    Args:
        partners: value these; the others always take part; None: all.
        out: also write a .csv or .json file for other tools.
    """
    precheck.check_run_or_folder(run, overrides)
    if out is not None and out.suffix not in (".csv", ".json"):
        raise ConfigError(f"--out takes a .csv or .json file, got {out}")
    values = call(partners=None if partners is None else _names(partners))
    if out is not None:
        values.save(out)


def _names(partners: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in partners.split(",") if name.strip())
    if not names:
        raise ConfigError("--partners takes names, with commas between them")
    return names
