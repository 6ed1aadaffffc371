"""Tables and plots of docs/chfl.md, from run folders.

    python -m benchmarks.chfl_tables out

A folder is called DATA-PARTIES-COMMON-splitN, as runs/chfl/generate.py names its files; more seeds
of the same cell may stand in DATA-PARTIES-COMMON-splitN-more, other rulers in ...-rulers. Every
cell of a table is the mean over all its runs; ± is their standard deviation, over splits and seeds
as in the paper. Figures go to results/ as JSON lines, tables between the markers in docs/chfl.md,
plots to docs/images/.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._results import FOLDER, markdown

DOCS = Path(__file__).parents[1] / "docs"

METHODS = {"common": "Common", "local": "Local", "chfl-mu0": "CHFL, μ = 0", "chfl": "CHFL, μ > 0"}
RULERS = {"simple": "simple method (V-B5)", "fedprox": "FedProx", "pooled": "pooled on common"}

#: The splits of the tables; others are looked at apart.
SPLITS = (0, 1, 2)

#: Accuracy in %, mean and spread, of the paper's Tables II and III.
PAPER_2 = {
    "covertype": ("62.18 ± 10.86", "64.07 ± 5.94", "67.44 ± 7.31", "68.43 ± 6.61"),
    "sensorless": ("97.62 ± 0.24", "95.26 ± 0.46", "98.55 ± 0.17", "98.63 ± 0.20"),
    "jannis": ("64.49 ± 1.84", "63.41 ± 0.90", "65.51 ± 1.28", "65.72 ± 1.11"),
}
PAPER_3 = {
    2: ("64.20 ± 10.98", "76.49 ± 1.44", "74.75 ± 3.56", "77.48 ± 2.24"),
    5: PAPER_2["covertype"],
    10: ("60.14 ± 11.12", "56.28 ± 8.54", "62.90 ± 9.21", "62.91 ± 9.14"),
}
SHARES = (10, 20, 30, 40, 50)


@dataclass(frozen=True)
class Run:
    """One split and seed: the mean accuracy over parties of each method that was trained."""

    split: int
    seed: int
    accuracy: Mapping[str, float]


def runs(out: Path, cell: str, splits: Collection[int] = SPLITS) -> list[Run]:
    """All runs of a cell that have finished, one for each split and seed."""
    found: dict[tuple[int, int], dict[str, float]] = {}
    for split in splits:
        for folder in sorted(out.glob(f"{cell}-split{split}*")):
            if folder.name.removeprefix(f"{cell}-split{split}") not in ("", "-more", "-rulers"):
                continue
            for path in sorted({*folder.glob("result.json"), *folder.glob("seed-*/result.json")}):
                result = json.loads(path.read_text())
                if "seed" not in result:  # a summary of several
                    continue
                own = {result["method"]: result["mean"], **result["rulers"]}
                kept = found.setdefault((split, result["seed"]), {})
                for name, scores in own.items():
                    kept.setdefault(name, scores["accuracy"])
    return [Run(split, seed, accuracy) for (split, seed), accuracy in sorted(found.items())]


def values(cell: list[Run], method: str) -> list[float]:
    """Accuracy in %, of the runs that have it."""
    return [100 * run.accuracy[method] for run in cell if method in run.accuracy]


def told(numbers: list[float], sign: str = "") -> str:
    """Mean and spread."""
    mean = f"{statistics.fmean(numbers):{sign}.2f}"
    return f"{mean} ± {statistics.stdev(numbers):.2f}" if len(numbers) > 1 else mean


def row(cell: list[Run], **first: Any) -> dict[str, Any]:
    """One line of a table: each method, what mu > 0 gains on the best other, and how many runs."""
    full = [run for run in cell if METHODS.keys() <= run.accuracy.keys()]
    line = {**first, **{title: told(values(full, name)) for name, title in METHODS.items()}}
    for other in ("chfl-mu0", "local", "common"):
        gains = [100 * (run.accuracy["chfl"] - run.accuracy[other]) for run in full]
        line[f"μ > 0 less {METHODS[other].removeprefix('CHFL, ')}"] = told(gains, "+")
    num_splits = len({run.split for run in full})
    return {**line, "splits": num_splits, "runs": len(full)}


def paper(cells: tuple[str, ...], **first: Any) -> dict[str, Any]:
    """The paper's line, for a table of the same columns."""
    blank = dict.fromkeys(
        (
            f"μ > 0 less {METHODS[name].removeprefix('CHFL, ')}"
            for name in ("chfl-mu0", "local", "common")
        ),
        "",
    )
    return {**first, **dict(zip(METHODS.values(), cells, strict=True)), **blank,
            "splits": 3, "runs": 15}  # fmt: skip


def table_2(out: Path) -> Iterator[dict[str, Any]]:
    """Data set by method, ours below the paper's."""
    for name in ("covertype", "sensorless", "jannis", "adult"):
        cell = runs(out, f"{name}-5-30")
        if not cell:
            continue
        if name in PAPER_2:
            yield paper(PAPER_2[name], data=name, of="paper")
        yield row(cell, data=name, of="here")


def table_3(out: Path) -> Iterator[dict[str, Any]]:
    """Number of parties by method, on covertype."""
    for parties in (2, 5, 10):
        cell = runs(out, f"covertype-{parties}-30")
        if cell:
            yield paper(PAPER_3[parties], parties=parties, of="paper")
            yield row(cell, parties=parties, of="here")


def figure_4(out: Path) -> Iterator[dict[str, Any]]:
    """Share of common columns by method, on covertype."""
    for share in SHARES:
        cell = runs(out, f"covertype-5-{share}")
        if cell:
            yield row(cell, **{"common columns": f"{share} %"})


def by_split(out: Path) -> Iterator[dict[str, Any]]:
    """Each split of Table II apart, and one beside the three."""
    for name in ("covertype", "sensorless", "jannis"):
        for split in (*SPLITS, 3):
            cell = runs(out, f"{name}-5-30", (split,))
            if cell:
                yield row(cell, data=name, split=split)


def rulers(out: Path) -> Iterator[dict[str, Any]]:
    """What else was trained on the same rows and seeds."""
    for name in ("covertype", "sensorless", "jannis"):
        cell = [
            run for run in runs(out, f"{name}-5-30", (0,)) if RULERS.keys() <= run.accuracy.keys()
        ]
        if cell:
            both = {**METHODS, **RULERS}
            yield {
                "data": name,
                **{title: told(values(cell, key)) for key, title in both.items()},
                "runs": len(cell),
            }


def draw(out: Path, path: Path) -> None:
    """Table III and Figure 4 as curves."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "dovetail"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    panels: list[tuple[str, list[int], str]] = [
        ("common columns, %", list(SHARES), "covertype-5-{}"),
        ("parties", [2, 5, 10], "covertype-{}-30"),
    ]
    for axis, (title, places, name) in zip(axes, panels, strict=True):
        # Only splits that every place has, so that a curve compares like with like.
        by_place = {place: runs(out, name.format(place)) for place in places}
        by_place = {place: cell for place, cell in by_place.items() if cell}
        shared = set.intersection(*({run.split for run in cell} for cell in by_place.values()))
        for method, mark in zip(METHODS, "sv^o", strict=True):
            points = {
                place: values([run for run in cell if run.split in shared], method)
                for place, cell in by_place.items()
            }
            axis.errorbar(
                list(points),
                [statistics.fmean(each) for each in points.values()],
                [statistics.stdev(each) if len(each) > 1 else 0 for each in points.values()],
                marker=mark,
                capsize=3,
                label=METHODS[method],
            )
        axis.set_xlabel(title)
        axis.set_xticks(list(by_place))
    axes[0].set_ylabel("test accuracy, %")
    axes[0].legend(frameon=False, fontsize=8)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def insert(page: Path, marker: str, table: str) -> None:
    """Put a table between a marker's comments."""
    pattern = rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)"
    text, found = re.subn(
        pattern, lambda match: f"{match[1]}{table}{match[2]}", page.read_text(), flags=re.DOTALL
    )
    if not found:
        raise SystemExit(f"{page} has no marker {marker!r}")
    page.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "out", type=Path, nargs="?", default=Path("out"), help="the folder with run folders [out]"
    )
    parser.add_argument("--print", action="store_true", help="print the tables, write nothing")
    arguments = parser.parse_args()
    out = arguments.out
    tables = {
        "table-2": list(table_2(out)),
        "table-3": list(table_3(out)),
        "figure-4": list(figure_4(out)),
        "splits": list(by_split(out)),
        "rulers": list(rulers(out)),
    }
    for marker, rows in tables.items():
        if arguments.print:
            print(f"{marker}\n{markdown(rows) if rows else 'nothing yet'}")
        elif rows:
            lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in rows)
            (FOLDER / f"chfl_{marker.replace('-', '_')}.jsonl").write_text(lines)
            insert(DOCS / "chfl.md", marker, markdown(rows))
    if not arguments.print and tables["figure-4"] and tables["table-3"]:
        draw(out, DOCS / "images" / "chfl-covertype.svg")


if __name__ == "__main__":
    main()
