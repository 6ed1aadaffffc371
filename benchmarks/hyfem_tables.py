"""Tables and curves of docs/hyfem.md, from run folders.

    python -m benchmarks.hyfem_tables out

A folder is called CELL (a run of several seeds), CELL-seedN, or CELL-VARIANT-seedN for one of the
ablation, where CELL is a file of runs/hyfem/. Cells of a table are the mean over the runs that
have the figure; ± is their standard deviation. Figures go to results/ as JSON lines, tables
between the markers in docs/hyfem.md, curves to docs/images/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks._results import DOCS, FOLDER, insert, markdown

CELLS = {
    "cifar10-12": "CIFAR-10, 12 blocks, 9 parties",
    "eurosat-12": "EuroSAT half, 12 blocks, 9 parties",
    "cifar10-4": "CIFAR-10, 4 blocks, 6 parties (C.1)",
    "eurosat-4": "EuroSAT half, 4 blocks, 6 parties (C.1)",
    "fashion-4": "Fashion-MNIST, 4 blocks, 6 parties",
    "covertype-4": "covertype, 4 groups of columns, 6 parties",
}

SCORES = {
    "server": "HyFEM, server",
    "hyfem": "HyFEM, parties",
    "standalone": "stand-alone, parties",
    "fedprox": "FedProx",
    "fedavg": "FedAvg",
    "pooled": "pooled",
}

VARIANTS = {
    "": "one start, matched every round (the default)",
    "-unmatched": "one start, never matched (`match_rounds = 0`)",
    "-class-weights": "one start, matched, `class_weights = true`",
    "-own-unmatched": 'own starts (`start = "own"`), never matched',
    "-own": "own starts, matched every round",
    "-own-frozen": "own starts, matched in round 1, then kept (`match_rounds = 1`)",
    "-own-class-weights": "own starts, matched, `class_weights = true`",
    "-own-free": 'own starts, matched, `width = "free"`',
    "-own-distance": 'own starts, matched, `cost = "distance"`',
}


def runs(out: Path, cell: str) -> dict[int, tuple[Path, dict[str, Any]]]:
    """Seed -> folder and result, of the runs of a cell that have finished."""
    found = {}
    for folder in [*out.glob(f"{cell}/seed-*"), *out.glob(f"{cell}-seed[0-9]*"), out / cell]:
        if (folder / "result.json").exists():
            result = json.loads((folder / "result.json").read_text())
            if "seed" in result:  # no summary of several
                found[int(result["seed"])] = (folder, result)
    return dict(sorted(found.items()))


def accuracies(result: Mapping[str, Any]) -> dict[str, float]:
    """Score -> accuracy in %."""
    both = {result["method"]: result["mean"], **result["rulers"]}
    return {name: 100 * scores["accuracy"] for name, scores in both.items()}


def steps(folder: Path) -> int:
    """T Q of a run."""
    section = tomllib.loads((folder / "run.toml").read_text())["hyfem"]
    return int(section["rounds"] * section["local_steps"])


def told(numbers: list[float]) -> str:
    """Mean and spread."""
    if not numbers:
        return ""
    spread = f" ± {statistics.stdev(numbers):.1f}" if len(numbers) > 1 else ""
    return f"{statistics.fmean(numbers):.1f}{spread}"


def main_table(out: Path) -> Iterator[dict[str, Any]]:
    """Data set by score."""
    for cell, title in CELLS.items():
        found = runs(out, cell)
        if found:
            each = [accuracies(result) for _, result in found.values()]
            yield {
                "data": title,
                "T Q": steps(next(iter(found.values()))[0]),
                **{
                    column: told([run[name] for run in each if name in run])
                    for name, column in SCORES.items()
                },
                "seeds": len(found),
            }


def ablation(out: Path) -> Iterator[dict[str, Any]]:
    """What the matching buys, on the seeds that each variant has."""
    for cell in ("fashion-4", "cifar10-4"):
        for suffix, title in VARIANTS.items():
            found = runs(out, f"{cell}{suffix}")
            if not found or not any(runs(out, f"{cell}{other}") for other in VARIANTS if other):
                continue
            each = [accuracies(result) for _, result in found.values()]
            yield {
                "data": CELLS[cell].split(",")[0],
                "matching": title,
                "server": told([run["server"] for run in each]),
                "parties": told([run["hyfem"] for run in each]),
                "seeds": len(each),
            }


def choices() -> Iterator[dict[str, Any]]:
    """What was tried on held-out rows; see hyfem_choose.py."""
    path = FOLDER / "hyfem_choice.jsonl"
    for text in path.read_text().splitlines() if path.exists() else ():
        line = json.loads(text)
        scores = {name[:-2]: value for name, value in line.items() if name.endswith(" %")}
        yield {
            "run file": line["cell"],
            "stage": line["stage"],
            "rounds": line["rounds"],
            "settings": f"`{line['settings']}`" + (", centred" if line["centred"] else ""),
            **{SCORES[name]: "" for name in ("server", "hyfem", "standalone", "pooled")},
            **{SCORES[name]: f"{value:.1f}" for name, value in scores.items()},
        }


def draw(out: Path, cells: list[str], path: Path) -> None:
    """Accuracy over rounds, as Figures 4 and 5."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "dovetail"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(cells), figsize=(3.6 * len(cells), 3.4), layout="constrained", squeeze=False
    )
    for axis, cell in zip(axes[0], cells, strict=True):
        curves: dict[str, dict[int, list[float]]] = {}
        for folder, _ in runs(out, cell).values():
            for text in (folder / "metrics.jsonl").read_text().splitlines():
                line = json.loads(text)
                if line["stage"] == "hyfem" and "server" in line:
                    curve = curves.setdefault("server", {})
                    curve.setdefault(line["round"], []).append(100 * line["server"]["accuracy"])
                if "accuracy" in line and line["stage"] in SCORES:
                    curve = curves.setdefault(line["stage"], {})
                    curve.setdefault(line["round"], []).append(100 * line["accuracy"])
        for name, mark in zip(SCORES, "o^sdvx", strict=True):
            points = sorted(curves.get(name, {}).items())
            if points:
                means = [statistics.fmean(values) for _, values in points]
                axis.plot([at for at, _ in points], means, marker=mark, label=SCORES[name])
        axis.set_title(CELLS[cell].split(",")[0])
        axis.set_xlabel("round")
    axes[0][0].set_ylabel("test accuracy, %")
    axes[0][0].legend(frameon=False, fontsize=7)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "out", type=Path, nargs="?", default=Path("out"), help="the folder with run folders [out]"
    )
    parser.add_argument("--print", action="store_true", help="print the tables, write nothing")
    arguments = parser.parse_args()
    out = arguments.out
    tables = {
        "main": list(main_table(out)),
        "ablation": list(ablation(out)),
        "choice": list(choices()),
    }
    for marker, rows in tables.items():
        if arguments.print:
            print(f"{marker}\n{markdown(rows) if rows else 'nothing yet'}")
        elif rows:
            lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in rows)
            if marker != "choice":
                (FOLDER / f"hyfem_{marker}.jsonl").write_text(lines)
            insert(DOCS / "hyfem.md", marker, markdown(rows))
    cells = [cell for cell in CELLS if runs(out, cell)]
    if not arguments.print and cells:
        draw(out, cells, DOCS / "images" / "hyfem-rounds.svg")


if __name__ == "__main__":
    main()
