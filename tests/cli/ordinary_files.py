"""Two parties with ordinary tables, and the least run file of each method over them."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

_PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "id"
{label}
{blocks}
[policy]
algorithms = ["align", "apfed-mixed", "chfl", "hyfem", "fedoptimus"]
[chfl]
common = ["age", "city", "smokes"]
"""

_BLOCKS = 'blocks.body = ["age", "smokes"]\nblocks.place = ["city", "seen"]'

RUNS = {
    "apfed-mixed": "[apfed]\nepochs = 2\nbatch_size = 16\n",
    "chfl": "[chfl]\nrounds = 2\nwidths = [8]\nbatch_size = 16\n",
    "hyfem": "[hyfem]\nrounds = 2\nlocal_steps = 4\nbatch_size = 16\n",
    "fedoptimus": "[fedoptimus]\nrounds = 2\nbatch_size = 16\n",
}

#: Methods whose parties have the same people, and of which one party alone has labels here.
_SHARED = ("apfed-mixed", "fedoptimus")


def write(path: Path, columns: dict[str, list[str]]) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        rows.writerows(zip(*columns.values(), strict=True))


def write_sites(
    folder: Path,
    method: str,
    table: Callable[..., dict[str, list[str]]],
    *,
    task: str = "",
    keys: str = "",
) -> None:
    """Party files of north and south, their tables, and a run file.

    Args:
        folder: where all is written.
        method: of the run.
        table: (name, seed, shared=) -> columns, "sick" the label among them.
        task: of who has labels; "": classes.
        keys: more of the run file, before the method's section.
    """
    for seed, name in enumerate(("north", "south")):
        rows = table(name, seed, shared=method in _SHARED)
        has_label = method not in _SHARED or name == "north"
        if not has_label:
            del rows["sick"]
        write(folder / f"{name}.csv", rows)
        label = 'label = "sick"\n' + (f'task = "{task}"\n' if task else "")
        text = _PARTY.format(
            name=name,
            label=label if has_label else "",
            blocks=_BLOCKS if method == "hyfem" else "",
        )
        (folder / f"{name}.toml").write_text(text)
    test = "test = 0.25\n" if method == "apfed-mixed" else ""
    (folder / "run.toml").write_text(
        f'method = "{method}"\nparties = ["north.toml", "south.toml"]\n{test}{keys}{RUNS[method]}'
    )
