"""``dovetail.value``: what each partner of a vertical run is worth."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from rich.console import RenderableType

from dovetail.api.progress import talk_of
from dovetail.api.shown import Shown, line, lined_table
from dovetail.cluster import tasks_at
from dovetail.errors import ConfigError
from dovetail.methods.base import Points
from dovetail.models.computing import device as device_of
from dovetail.models.shown import html_table
from dovetail.runs import write_text
from dovetail.runs.runfile import load_run
from dovetail.runs.runfolder import using
from dovetail.runs.setup import load_data, setup, threads_for
from dovetail.runs.shapley import MEASURES
from dovetail.runs.value import CoalitionScores, valued_of, with_joint
from dovetail.runs.value import value as value_of
from dovetail.runs.valuing import about, folders_of, write_csv

#: Measures, from cheap to dear.
_TITLES: Mapping[str, str] = {
    "mi": "mutual information (nats)",
    "loo": "leave-one-out",
    "shapley": "Shapley",
    "joint_loo": "joint: leave-one-out",
    "joint_shapley": "joint: Shapley",
}

#: Of fewer, no interval is printed: of two, Student's t makes 12.7 standard errors.
_LEAST_SEEDS = 3


@dataclass(frozen=True, eq=False, repr=False)
class Values(Shown):
    """Values of partners.

    Attributes:
        result: what ``value.json`` says: of each partner each measure, and the scores with all
            and with none.
        folder: the run's, where ``value.json`` and the trained sets of partners are.
    """

    result: Mapping[str, Any]
    folder: Path

    @property
    def ranked(self) -> dict[str, list[str]]:
        """ "solo" and, where there is a joint model, "joint" -> the partners, the most worth first.

        Solo is what a partner is worth after it has left, joint while it is there.
        """
        ranked: dict[str, list[str]] = self.result.get("ranked", {"solo": [*self.partners]})
        return ranked

    @property
    def partners(self) -> dict[str, dict[str, float]]:
        """Partner -> measure -> its mean over seeds; the most worth first."""
        measures = self._measures()
        return {
            partner: {name: values[name]["mean"] for name in measures}
            for partner, values in self.result["partners"].items()
        }

    @property
    def of_no_use(self) -> list[str]:
        """Partners whose every value from training has a 95 % interval that reaches 0 or below;
        () of fewer than three seeds, or where nothing was trained."""
        num_seeds = len(self.result["seeds"])
        trained = [name for name in self._measures() if name != "mi"]
        if num_seeds < _LEAST_SEEDS or not trained:
            return []
        return [
            partner
            for partner, values in self.result["partners"].items()
            if all(_bounds(values[name], num_seeds)[0] <= 0 for name in trained)
        ]

    def save(self, path: str | Path) -> Path:
        """Write a .csv or .json file for other tools.

        Raises:
            ConfigError: neither.
        """
        path = Path(path)
        if path.suffix not in (".csv", ".json"):
            raise ConfigError(f"--out takes a .csv or .json file, got {path}")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".json":
            write_text(path, self.text)
        else:
            write_csv(path, self.result)
        return path

    def to_json(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return dict(self.result)

    @property
    def text(self) -> str:
        """The result as JSON."""
        return json.dumps(self.result, indent=2) + "\n"

    def shown(self) -> Iterator[RenderableType]:
        result, num_seeds = self.result, len(self.result["seeds"])
        head, *rows = self._cells()
        yield lined_table(head, rows, caption=self._caption())
        if "all" in result:
            metric = result["metric"]
            rest = f"only {', '.join(result['always'])}" if "always" in result else "no partner"
            yield line(
                f"{metric} with all {_cell(result['all'], num_seeds, sign='')}, with {rest} "
                f"{_cell(result['none'], num_seeds, sign='')}; {result['coalitions']} coalitions "
                f"trained in {result['seconds']:.0f} s"
            )
        if "all_joint" in result:
            yield line(
                "solo: after the partners have left; joint: while they are there, "
                f"{result['metric']} with all {_cell(result['all_joint'], num_seeds, sign='')}"
            )
        if useless := self.of_no_use:
            yield line(
                f"No gain beyond chance, solo or joint, by {', '.join(useless)}: train without, "
                "and compare"
            )
        yield line(f"Values: {self.folder / 'value.json'}")

    def _repr_html_(self) -> str:
        head, *rows = self._cells()
        return html_table(rows, head=head, note=self._caption() or "")

    def _measures(self) -> list[str]:
        first = next(iter(self.result["partners"].values()))
        return [name for name in _TITLES if name in first]

    def _cells(self) -> Iterator[list[str]]:
        """The head, then a row for each partner."""
        result, measures, num_seeds = self.result, self._measures(), len(self.result["seeds"])
        head = ["partner"]
        for name in measures:
            title = _TITLES[name]
            if name in ("loo", "shapley") and f"joint_{name}" in measures:
                title = f"solo: {title}"
            if name != "mi":
                title += f" ({'less ' if result['lower_is_better'] else ''}{result['metric']})"
            head.append(title + (" ↓" if name == result["by"] and not self._tied() else ""))
        yield head
        for partner, values in result["partners"].items():
            yield [partner, *(_cell(values[name], num_seeds) for name in measures)]

    def _tied(self) -> list[str]:
        """Partners beside each other in the order whose intervals overlap, or are unknown."""
        by, rows = self.result["by"], list(self.result["partners"].items())
        if len(self.result["seeds"]) < _LEAST_SEEDS and by != "mi":
            return [name for name, _ in rows]
        bounds = [_bounds(values[by], len(self.result["seeds"])) for _, values in rows]
        tied = []
        for (one, _), (other, _), above, below in zip(
            rows, rows[1:], bounds, bounds[1:], strict=False
        ):
            if below[1] > above[0] and above != below:
                tied += [one, other]
        return list(dict.fromkeys(tied))

    def _caption(self) -> str | None:
        result, parts = self.result, []
        num_seeds = len(result["seeds"])
        if num_seeds >= _LEAST_SEEDS:
            parts.append(f"mean of {num_seeds} seeds, and its 95 % interval")
        elif result["by"] != "mi":
            seeds = "one seed" if num_seeds == 1 else f"mean of {num_seeds} seeds"
            parts.append(f"{seeds}: how far chance moves these is unknown; --seeds 5 shows it")
        if (tied := self._tied()) and num_seeds >= _LEAST_SEEDS:
            parts.append(f"no order is known of {' and '.join(tied)}, whose intervals overlap")
        if "random orders" in result.get("shapley", ""):
            parts.append(f"Shapley of {result['shapley']}")
            if num_seeds == 1:
                parts[-1] += ", 95 % interval of the orders"
        return "; ".join(parts) or None


def value(
    run: str | PathLike[str],
    by: Literal["mi", "loo", "shapley"] | str = "shapley",
    *,
    metric: str | None = None,
    seeds: int | None = None,
    partners: Sequence[str] | None = None,
    permutations: int | None = None,
    joint: bool = True,
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    fresh: bool = False,
    quiet: bool = False,
    ray: str | None = None,
) -> Values:
    """Rank the partners of a run by what they are worth to the party with labels.

    What ``dovetail value`` does, whose options these are: trains with sets of the partners, which
    are kept in ``value.jsonl`` in the run's folder, so that what was stopped goes on;
    ``value.json`` there has the result.

    Args:
        run: a run, its folder, or a run file; all parties here.
        by: what to rank by: mi (mutual information of a partner's columns with the labels, trains
            nothing), loo (leave-one-out) or shapley; each with those before it.
        metric: a test score; None: auc, accuracy or rmse, by the label.
        seeds: how many seeds to run; None: those of the run.
        partners: value these, the others always take part; None: all.
        permutations: sample Shapley by so many random orders; None: beyond 8 partners 20.
        joint: value partners while they are there, too: takes about twice as long.
        recipe: a recipe of the run file.
        overrides: changes of the run file's keys, such as "apfed.epochs=5".
        fresh: train again what was trained before.
        quiet: show no bar.
        ray: train sets of partners on a Ray cluster: "auto", or its address.

    Raises:
        ConfigError: a measure or score that there is not, a method without partners, or partners
            who are elsewhere.
    """
    measure = next((each for each in MEASURES if each == by), None)
    if measure is None:
        raise ConfigError(f"--by takes {', '.join(MEASURES)}, got {by!r}")
    file, folder, seeds_given = folders_of(Path(run), recipe)
    run_file = load_run(file, recipe=recipe, overrides=tuple(overrides))
    valued_of(run_file.method)  # refuses one without partners
    run_file = with_joint(run_file) if joint else run_file
    if run_file.engine.kind != "inprocess":
        raise ConfigError(
            f"{file}: partners are valued where all tables are in one place; name every party's "
            "file in parties, and leave [engine] out"
        )
    numbers = seeds_given or run_file.all_seeds()
    if seeds is not None:
        more = (seed for seed in range(min(numbers), 2**31) if seed not in numbers)
        numbers = tuple([*numbers, *(next(more) for _ in range(seeds - len(numbers)))][:seeds])
    device_of(run_file.device)
    loaded = load_data(run_file, talk=talk_of(shown=not quiet))
    talk, bars = talk_of(shown=measure != "mi" and not quiet), list[Points]()
    with ExitStack() as stack:
        stack.enter_context(using(folder))
        coalitions = folder / "value.jsonl"
        if fresh:
            coalitions.unlink(missing_ok=True)
        kept = CoalitionScores(coalitions, about(run_file))
        stack.enter_context(threads_for(loaded))
        tasks = stack.enter_context(tasks_at(ray, "ray"))

        def progress(done: int, total: int) -> None:
            if not bars:  # what cannot be valued is refused before there is a bar
                bars.append(stack.enter_context(talk.points("coalitions")))
            bars[0](done, total)

        result = value_of(
            lambda seed: setup(run_file, seed, loaded),
            numbers,
            kept,
            by=measure,
            metric=metric,
            partners=None if partners is None else tuple(partners),
            permutations=permutations,
            joint=joint,
            progress=progress,
            tasks=tasks,
        )
        values = Values({"method": run_file.method, **result}, folder)
        write_text(folder / "value.json", values.text)
    return values


def _cell(values: Mapping[str, float], num_seeds: int, sign: str = "+") -> str:
    text = format(values["mean"], f"{sign}.4f")
    low, high = _bounds(values, num_seeds)
    return f"{text} ({low:{sign}.4f} to {high:{sign}.4f})" if high > low else text


def _bounds(values: Mapping[str, float], num_seeds: int) -> tuple[float, float]:
    """The 95 % interval of a mean: over seeds by Student's t, else over orders."""
    half = 1.96 * values.get("error", 0.0) if num_seeds == 1 else 0.0
    if num_seeds >= _LEAST_SEEDS:
        from scipy.special import stdtrit

        half = float(stdtrit(num_seeds - 1, 0.975)) * values["std"] / num_seeds**0.5
    return values["mean"] - half, values["mean"] + half
