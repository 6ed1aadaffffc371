"""``dovetail value``: what each partner of a vertical run is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli import precheck
from dovetail.cli.options import AsJson, Quiet, RunKeys
from dovetail.errors import ConfigError


def value(
    run: Annotated[Path, typer.Argument(help="A run file (TOML), or a run's folder.")],
    by: Annotated[
        str, typer.Option(metavar="mi|loo|shapley", help="What to rank by; the dearest computed.")
    ] = "shapley",
    metric: Annotated[
        str | None, typer.Option(help="A test score. [auc, accuracy or rmse, by the label]")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds to run. [those of the run]")
    ] = None,
    partners: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Value these; the others always take part. [all]"),
    ] = None,
    permutations: Annotated[
        int | None,
        typer.Option(min=1, help="Sample Shapley by random orders. [beyond 8 partners: 20]"),
    ] = None,
    joint: Annotated[
        bool, typer.Option("--joint/--no-joint", help="Value partners while they are there, too.")
    ] = True,
    recipe: Annotated[str | None, typer.Option(help="A recipe of the run file.")] = None,
    overrides: RunKeys = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write a .csv or .json file for other tools.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Train again what was trained before.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Rank the partners of a run by what they are worth to the party with labels.

    Three measures, from cheap to dear, each with all before it:

    mi: mutual information of a partner's columns with the labels; trains nothing.

    loo: leave-one-out, the test score lost without this partner; trains partners + 2 models. Two
    partners with the same columns are each worth nothing by it.

    shapley: the test score gained, averaged over all orders in which partners could join; adds up
    to what all gain together. Trains a model for each set of partners, 2^partners.

    Partners of APFed are valued twice: solo says what one is worth after it has left, joint while
    it is there, by classic vertical learning. Partners who know something only together rank first
    by joint alone. --no-joint halves the time.

    Use mi to see whom to talk to, loo to see whom the model would miss, shapley to share a reward.
    Below the spread over seeds a difference says little: --seeds 5.

    Trained sets are kept in value.jsonl in the run's folder, so that what was stopped goes on;
    value.json has the result. Works for all variants of APFed, tvfl and fedoptimus, simulated or
    with all party files in one place. --by mi trains nothing, so it is the same for all variants.
    """
    if not run.is_dir():
        precheck.check_run(run, overrides)
    from dovetail.api.valuing import check_out
    from dovetail.api.valuing import value as value_of
    from dovetail.cli.output import show

    check_out(out)
    values = value_of(
        run,
        by=by,
        metric=metric,
        seeds=seeds,
        partners=None if partners is None else _names(partners),
        permutations=permutations,
        joint=joint,
        recipe=recipe,
        overrides=tuple(overrides or ()),
        fresh=fresh,
        quiet=quiet or as_json,
    )
    if out is not None:
        values.save(out)
    if as_json:
        print(values.text, end="")
    elif not quiet:
        show(values)


def _names(partners: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in partners.split(",") if name.strip())
    if not names:
        raise ConfigError("--partners takes names, with commas between them")
    return names
