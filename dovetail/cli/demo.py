"""``dovetail demo``: the main job on built-in real data."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import torch

from dovetail import data as dd
from dovetail.cli.output import console, result_table
from dovetail.experiment.runfile import RunFile, check_run
from dovetail.experiment.train import train_seeds
from dovetail.face.talk import talk_of
from dovetail.methods.validation import toml_tables


def run_demo(out: Path, *, num_seeds: int, quiet: bool, as_json: bool, device: str | None) -> None:
    """Train, write the folder and a table to predict from, print what was measured."""
    text = resources.files("dovetail.cli").joinpath("demo.toml").read_text()
    values = toml_tables(text, where="demo.toml")
    if device is not None:
        values["device"] = device
    run = check_run(values, where="demo.toml")
    torch.set_num_threads(1)  # layers this small are slower on more
    seeds = tuple(range(num_seeds))
    talk = not (quiet or as_json)
    if talk:
        console().print(
            "One party has the upper halves of 1078 handwritten digits, and 100 labels. A\n"
            "helper has the lower halves of the same samples. They train together, no pixel\n"
            "leaves its owner, and then the helper leaves.\n"
        )
    result = train_seeds(run, out, seeds, resume=False, talk=talk_of(shown=talk))
    new_samples = _write_new_samples(run, out)
    if as_json:
        print(json.dumps(result, indent=2))
    elif not quiet:
        model = out / ("seed-0" if num_seeds > 1 else "") / "models" / "upper"
        console().print(result_table(result))
        console().print(
            f"Run folder: {out}\nNow predict alone, with nothing but the model and a table:\n"
            f"  dovetail predict {model} {new_samples}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _write_new_samples(run: RunFile, out: Path) -> Path:
    """The test rows as a party would have them: raw columns of the upper half, and the label."""
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
