"""``dovetail demo``: the main job on built-in real data."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dovetail.runs.runfile import RunFile


def demo(
    out: Path = Path("out/demo"),
    tables: bool = False,
    seeds: Annotated[int, typer.Option(min=1)] = 1,
    quiet: bool = False,
    as_json: bool = False,
    device: str | None = None,
) -> None:
    """Train with a partner on built-in data, and predict without it.

    A clinic with few diagnoses trains with a lab that has other measurements of the same tumours.
    The lab leaves; the model stays. Beside it: the best local model, the joint model with the lab
    there, how much of the gain is kept, the paper's APFed-R and -C, and classic vertical learning
    with the lab present and gone.

    With --tables it trains nothing, and writes what the README's commands read: customers.csv,
    visits.csv and new-customers.csv, made up, and new-rows.csv, of scikit-learn's digits.

    Args:
        out: the run's folder.
        tables: write tables to try things with, here.
        seeds: how many seeds to run; several show the spread.
    """
    if tables:
        _write_tables(Path(), quiet=quiet)
        return
    from dovetail.api.progress import talk_of
    from dovetail.api.scores import Scores
    from dovetail.cli.output import console, print_line, show
    from dovetail.files import toml_tables
    from dovetail.runs.runfile import check_run
    from dovetail.runs.train import train_seeds

    text = resources.files("dovetail.cli").joinpath("demo.toml").read_text(encoding="utf-8")
    values = toml_tables(text, where="demo.toml")
    if device is not None:
        values["device"] = device
    run = check_run(values, where="demo.toml")
    numbers = tuple(range(seeds))
    talk = not (quiet or as_json)
    if talk:
        console().print(
            "A clinic has ten measurements of 341 tumours, and 60 diagnoses. A lab has\n"
            "ten other measurements of the same tumours. They train together, no table\n"
            "leaves its owner, and then the lab leaves.\n\n"
            "APFed-S asks the lab one encrypted question, which the lab cannot read, and\n"
            "distils the answer into a model that needs nobody. Beside it stands the best\n"
            "model of the clinic's columns alone. 5 seconds of processor time.\n"
        )
    result = train_seeds(run, out, numbers, resume=False, overwrite=True, talk=talk_of(shown=talk))
    new_samples = _write_new_samples(run, out)
    if as_json:
        print(json.dumps(result, indent=2))
    elif not quiet:
        model = out / ("seed-0" if seeds > 1 else "") / "models" / "clinic"
        show(Scores(result))
        print_line(f"Run folder: {out}\nNow predict alone, with nothing but the model and a table:")
        print_line(f"  dovetail predict {model} {new_samples}")


#: Customers of a shop, of whom so many say whether they bought, and later ones.
_CUSTOMERS, _LABELLED, _NEW = 1500, 200, 300


def _write_tables(folder: Path, *, quiet: bool) -> None:
    """Two parties' tables, and rows to predict.

    Raises:
        ConfigError: a file is there already.
    """
    import numpy as np
    from sklearn.datasets import load_digits

    from dovetail import data as dd
    from dovetail.cli.output import print_line
    from dovetail.errors import ConfigError

    rng, num = np.random.default_rng(0), _CUSTOMERS + _NEW
    numbers = np.array([f"c{10_000 + number}" for number in rng.permutation(num)], dtype=object)
    age, income = rng.integers(18, 80, num), rng.lognormal(3.4, 0.4, num).round(1)
    visits = rng.poisson(np.exp(1.0 + 0.4 * (income > 30) - 0.01 * (age - 45)))
    basket = rng.lognormal(3, 0.6, num).round(2)
    likes = 0.5 * visits + 0.02 * basket + 0.03 * income - 0.02 * age - 2.6
    bought = np.where(rng.random(num) < 1 / (1 + np.exp(-1.5 * likes)), "yes", "no").astype(object)
    bought[_LABELLED:] = None
    city = rng.choice(np.array(["north", "south", "west"], dtype=object), num)
    own = {"customer": numbers, "age": age, "income": income, "city": city, "bought": bought}
    seen = rng.permutation(_CUSTOMERS)[: int(0.8 * _CUSTOMERS)]
    digits = load_digits(as_frame=True).data.head(50)
    written: dict[str, dict[str, np.ndarray]] = {
        "customers.csv": {name: values[:_CUSTOMERS] for name, values in own.items()},
        "visits.csv": {"customer": numbers[seen], "visits": visits[seen], "basket": basket[seen]},
        "new-customers.csv": {
            name: values[_CUSTOMERS:] for name, values in own.items() if name != "bought"
        },
        "new-rows.csv": {name: digits[name].to_numpy() for name in digits},
    }
    there = [name for name in written if (folder / name).exists()]
    if there:
        raise ConfigError(f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} here already")
    for name, columns in written.items():
        dd.write_table(folder / name, columns)
        if not quiet:
            print_line(
                f"{name}: {len(next(iter(columns.values()))):,} rows, {', '.join(columns)[:60]}"
            )


def _write_new_samples(run: RunFile, out: Path) -> Path:
    """The test rows as the clinic would have them: its raw columns, and the label."""
    from dovetail import data as dd

    assert run.data is not None
    pooled, _ = dd.load(run.data.source, label=run.data.label)
    assert run.data.test is not None
    _, test = dd.split(pooled, test=run.data.test, seed=run.data.split_seed, stratify=True)
    assert isinstance(test.x, dd.Table)
    names = test.x.select(["*error"])
    columns = {name: test.x.column(name).values for name in names}
    path = out / "new-patients.csv"
    dd.write_table(path, {"id": test.ids, **columns, test.label: test.labels.values})
    return path
