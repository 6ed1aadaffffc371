"""``dovetail value``: what each partner of a vertical run is worth."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from rich.table import Table

from dovetail import experiment
from dovetail.cli.output import console
from dovetail.errors import ConfigError
from dovetail.experiment.runfile import load_run
from dovetail.experiment.setup import load_data, setup
from dovetail.experiment.value import MEASURES, Kept, Measure, value
from dovetail.experiment.valuing import about, places_of, write_csv
from dovetail.face.talk import talk_of
from dovetail.models.devices import device

_TITLES: Mapping[Measure, str] = {
    "mi": "mutual information (nats)",
    "loo": "leave-one-out",
    "shapley": "Shapley",
}
assert tuple(_TITLES) == MEASURES == get_args(Measure)


def run_value(
    path: Path,
    *,
    by: str,
    metric: str | None,
    seeds: int | None,
    permutations: int | None,
    partners: str | None,
    recipe: str | None,
    overrides: tuple[str, ...],
    out: Path | None,
    fresh: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Value the partners, write value.json, print the table (or JSON)."""
    measure = next((each for each in MEASURES if each == by), None)
    if measure is None:
        raise ConfigError(f"--by takes {', '.join(MEASURES)}, got {by!r}")
    if out is not None and out.suffix not in (".csv", ".json"):
        raise ConfigError(f"--out takes a .csv or .json file, got {out}")
    file, folder, found = places_of(path, recipe)
    run = load_run(file, recipe=recipe, overrides=overrides)
    if run.engine.kind != "inprocess":
        raise ConfigError(
            f"{file}: partners are valued where all tables are in one place; name every party's "
            "file in parties, and leave [engine] out"
        )
    numbers = found or run.all_seeds()
    if seeds is not None:
        more = (seed for seed in range(min(numbers), 2**31) if seed not in numbers)
        numbers = tuple([*numbers, *(next(more) for _ in range(seeds - len(numbers)))][:seeds])
    device(run.device)
    loaded = load_data(run, talk=talk_of(shown=not (quiet or as_json)))
    coalitions = folder / "value.jsonl"
    if fresh:
        coalitions.unlink(missing_ok=True)
    kept = Kept(coalitions, about(run))
    trains = measure != "mi" and not (quiet or as_json)
    with talk_of(shown=trains).points("coalitions") as progress:
        result = value(
            lambda seed: setup(run, seed, loaded),
            numbers,
            kept,
            by=measure,
            metric=metric,
            partners=None if partners is None else _names(partners),
            permutations=permutations,
            progress=progress.points,
            clock=time.perf_counter,
        )
    result = {"method": run.method, **result}
    text = json.dumps(result, indent=2) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    experiment.write_text(folder / "value.json", text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix == ".json":
            experiment.write_text(out, text)
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
    out = console()
    measures = [name for name in MEASURES if name in next(iter(result["partners"].values()))]
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
