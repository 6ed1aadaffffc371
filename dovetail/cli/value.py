"""``dovetail value``: what each partner of a vertical run is worth."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dovetail.cli import early
from dovetail.cli.options import AsJson, Quiet, RunKeys
from dovetail.errors import ConfigError

#: Measures, from cheap to dear.
_TITLES: Mapping[str, str] = {
    "mi": "mutual information (nats)",
    "loo": "leave-one-out",
    "shapley": "Shapley",
}


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

    Use mi to see whom to talk to, loo to see whom the model would miss, shapley to share a reward.
    Below the spread over seeds a difference says little: --seeds 5.

    Trained sets are kept in value.jsonl in the run's folder, so that what was stopped goes on;
    value.json has the result. Works for apfed, apfed-r, apfed-c, tvfl and fedoptimus, simulated or
    with all party files in one place.
    """
    if not run.is_dir():
        early.check_run(run, overrides)
    from dovetail.experiment import write_text
    from dovetail.experiment.runfile import load_run
    from dovetail.experiment.setup import load_data, setup
    from dovetail.experiment.value import MEASURES, Kept
    from dovetail.experiment.value import value as value_of
    from dovetail.experiment.valuing import about, places_of, write_csv
    from dovetail.face.talk import talk_of
    from dovetail.models.devices import device as device_of

    measure = next((each for each in MEASURES if each == by), None)
    if measure is None:
        raise ConfigError(f"--by takes {', '.join(MEASURES)}, got {by!r}")
    if out is not None and out.suffix not in (".csv", ".json"):
        raise ConfigError(f"--out takes a .csv or .json file, got {out}")
    file, folder, found = places_of(run, recipe)
    run_file = load_run(file, recipe=recipe, overrides=tuple(overrides or ()))
    if run_file.engine.kind != "inprocess":
        raise ConfigError(
            f"{file}: partners are valued where all tables are in one place; name every party's "
            "file in parties, and leave [engine] out"
        )
    numbers = found or run_file.all_seeds()
    if seeds is not None:
        more = (seed for seed in range(min(numbers), 2**31) if seed not in numbers)
        numbers = tuple([*numbers, *(next(more) for _ in range(seeds - len(numbers)))][:seeds])
    device_of(run_file.device)
    loaded = load_data(run_file, talk=talk_of(shown=not (quiet or as_json)))
    coalitions = folder / "value.jsonl"
    if fresh:
        coalitions.unlink(missing_ok=True)
    kept = Kept(coalitions, about(run_file))
    trains = measure != "mi" and not (quiet or as_json)
    with talk_of(shown=trains).points("coalitions") as progress:
        result = value_of(
            lambda seed: setup(run_file, seed, loaded),
            numbers,
            kept,
            by=measure,
            metric=metric,
            partners=None if partners is None else _names(partners),
            permutations=permutations,
            progress=progress.points,
            clock=time.perf_counter,
        )
    result = {"method": run_file.method, **result}
    text = json.dumps(result, indent=2) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "value.json", text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix == ".json":
            write_text(out, text)
        else:
            write_csv(out, result)
    if as_json:
        print(text, end="")
    elif not quiet:
        _print(result, folder)


def _names(partners: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in partners.split(",") if name.strip())
    if not names:
        raise ConfigError("--partners takes names, with commas between them")
    return names


def _print(result: Mapping[str, Any], folder: Path) -> None:
    from rich.table import Table

    from dovetail.cli.output import console

    out = console()
    measures = [name for name in _TITLES if name in next(iter(result["partners"].values()))]
    num_seeds = len(result["seeds"])
    table = Table(caption=_caption(result), caption_justify="left")
    table.add_column("partner")
    for name in measures:
        title = _TITLES[name]
        if name != "mi":
            title += f" ({'less ' if result['lower_is_better'] else ''}{result['metric']})"
        table.add_column(title + (" ↓" if name == result["by"] else ""), justify="right")
    for partner, values in result["partners"].items():
        table.add_row(partner, *(_cell(values[name], num_seeds) for name in measures))
    out.print(table)
    if "all" in result:
        metric = result["metric"]
        rest = f"only {', '.join(result['always'])}" if "always" in result else "no partner"
        out.print(
            f"{metric} with all {_cell(result['all'], num_seeds, sign='')}, with {rest} "
            f"{_cell(result['none'], num_seeds, sign='')}; {result['coalitions']} coalitions "
            f"trained in {result['seconds']:.0f} s",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    out.print(f"Values: {folder / 'value.json'}", highlight=False, markup=False, soft_wrap=True)


def _caption(result: Mapping[str, Any]) -> str | None:
    said = []
    if len(result["seeds"]) > 1:
        said.append(f"mean ± std of {len(result['seeds'])} seeds")
    if "random orders" in result.get("shapley", ""):
        said.append(f"Shapley of {result['shapley']}")
        if len(result["seeds"]) == 1:
            said[-1] += ", ± standard error"
    return "; ".join(said) or None


def _cell(values: Mapping[str, float], num_seeds: int, sign: str = "+") -> str:
    spread = values["std"] if num_seeds > 1 else values.get("error", 0.0)
    text = format(values["mean"], f"{sign}.4f")
    return f"{text} ± {spread:.4f}" if spread or num_seeds > 1 else text
