"""``dovetail demo``: the main job on built-in real data."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.options import AsJson, Device, Quiet

if TYPE_CHECKING:
    from dovetail.runs.runfile import RunFile


def demo(
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("out/demo"),
    seeds: Annotated[
        int, typer.Option(min=1, help="How many seeds to run; several show the spread.")
    ] = 1,
    quiet: Quiet = False,
    as_json: AsJson = False,
    device: Device = None,
) -> None:
    """Train with a partner on built-in data, and predict without it.

    A party with few labels and the upper halves of handwritten digits trains with a helper who
    has the lower halves of the same samples. The helper leaves; the model stays. Beside it: the
    best model alone, the joint model with the helper there, how much of its help stays, the
    paper's APFed-R and -C, and classic vertical learning with the helper present and gone.
    """
    from dovetail.api.progress import talk_of
    from dovetail.api.scores import Scores
    from dovetail.cli.output import console, say, show
    from dovetail.files import toml_tables
    from dovetail.runs.runfile import check_run
    from dovetail.runs.train import train_seeds

    text = resources.files("dovetail.cli").joinpath("demo.toml").read_text()
    values = toml_tables(text, where="demo.toml")
    if device is not None:
        values["device"] = device
    run = check_run(values, where="demo.toml")
    numbers = tuple(range(seeds))
    talk = not (quiet or as_json)
    if talk:
        console().print(
            "One party has the upper halves of 1078 handwritten digits, and 100 labels. A\n"
            "helper has the lower halves of the same samples. They train together, no pixel\n"
            "leaves its owner, and then the helper leaves.\n\n"
            "APFed-S asks the helper one encrypted question, which the helper cannot read, and\n"
            "distils what comes back into a model that needs nobody; beside it the best model of\n"
            "the party's own columns. 15 seconds of processor time.\n"
        )
    result = train_seeds(run, out, numbers, resume=False, overwrite=True, talk=talk_of(shown=talk))
    new_samples = _write_new_samples(run, out)
    if as_json:
        print(json.dumps(result, indent=2))
    elif not quiet:
        model = out / ("seed-0" if seeds > 1 else "") / "models" / "upper"
        show(Scores(result))
        say(f"Run folder: {out}\nNow predict alone, with nothing but the model and a table:")
        say(f"  dovetail predict {model} {new_samples}")


def _write_new_samples(run: RunFile, out: Path) -> Path:
    """The test rows as a party would have them: raw columns of the upper half, and the label."""
    from dovetail import data as dd

    assert run.data is not None
    pooled, _ = dd.load(run.data.source, label=run.data.label)
    assert run.data.test is not None
    _, test = dd.split(pooled, test=run.data.test, seed=run.data.split_seed, stratify=True)
    assert isinstance(test.x, dd.Table)
    names = test.x.select(["pixel_[0-3]_*"])
    columns = {name: test.x.column(name).values for name in names}
    path = out / "new-digits.csv"
    dd.write_table(path, {"id": test.ids, **columns, test.label: test.labels.values})
    return path
