"""Tables and curves of docs/apfed.md, from run folders.

    python -m benchmarks.apfed_tables out

The run folders are those of the commands that docs/apfed.md names. Figures go to results/ as JSON
lines; the tables go between the markers in docs/apfed.md; the curves to docs/images/.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from pathlib import Path
from typing import Any

from benchmarks._results import FOLDER, markdown

DOCS = Path(__file__).parents[1] / "docs"

#: Table 2 of the paper, setting 2-1: accuracy in %, mean and spread.
PAPER: dict[str, dict[str, str]] = {
    "mnist": {
        "tvfl-0": "52.41 ± 2.77",
        "tvfl-a": "72.69 ± 1.28",
        "tvfl-r": "10.42 ± 0.14",
        "alone": "95.24 ± 0.12",
        "apfed-r": "95.52 ± 0.07",
        "apfed-c": "95.72 ± 0.09",
    },
    "fmnist": {
        "tvfl-0": "68.22 ± 1.72",
        "tvfl-a": "70.61 ± 1.49",
        "tvfl-r": "11.61 ± 2.64",
        "alone": "88.49 ± 0.16",
        "apfed-r": "88.94 ± 0.25",
        "apfed-c": "88.85 ± 0.63",
    },
    "cifar10": {
        "tvfl-0": "43.24 ± 0.85",
        "tvfl-a": "40.11 ± 1.00",
        "tvfl-r": "12.09 ± 0.57",
        "alone": "52.94 ± 1.36",
        "apfed-r": "53.74 ± 1.35",
        "apfed-c": "55.99 ± 2.85",
    },
}

NAMES = {
    "tvfl": "classic, partner present",
    "tvfl-0": "classic, partner gone: TVFL-0",
    "tvfl-a": "classic, partner gone: TVFL-A",
    "tvfl-r": "classic, partner gone: TVFL-R",
    "alone": "alone (SingleVL)",
    "pooled": "pooled",
    "apfed-r": "APFed-R",
    "apfed-c": "APFed-C",
}


#: For tables with a column per method.
SHORT = {name: name.upper() if name.startswith("tvfl-") else name for name in NAMES} | {
    "apfed-r": "APFed-R",
    "apfed-c": "APFed-C",
    "tvfl": "classic, present",
}


def read(folder: Path) -> dict[str, Any] | None:
    """A run's result, or None where it has not finished."""
    path = folder / "result.json"
    return json.loads(path.read_text()) if path.exists() else None


def scores(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Method or ruler -> score -> {"mean", "std"}."""
    (own,) = result["parties"].values()
    every = {result["method"]: own, **result["rulers"]}
    return {
        name: {
            key: value if isinstance(value, dict) else {"mean": value, "std": None}
            for key, value in each.items()
        }
        for name, each in every.items()
    }


def percent(value: dict[str, Any] | None) -> str:
    """In %, with the spread where there is one."""
    if value is None:
        return ""
    spread = "" if value["std"] is None else f" ± {value['std'] * 100:.2f}"
    return f"{value['mean'] * 100:.2f}{spread}"


def image_rows(out: Path, name: str, recipe: str) -> list[dict[str, Any]]:
    """One row per method of a data set's 2-1 setting."""
    rows = []
    for method in ("alone", "apfed-r", "apfed-c", "tvfl"):
        result = read(out / f"{name}-2-1-{method}-{recipe}")
        if result is None:
            continue
        seconds = result["seconds"]
        sent = result["bytes"].get("view-1", {}).get("sent", 0)
        for kind, each in scores(result).items():
            rows.append(
                {
                    "data": name,
                    "method": NAMES[kind],
                    "paper %": PAPER[name].get(kind, ""),
                    "here %": percent(each["accuracy"]),
                    "seeds": len(result.get("seeds", [0])),
                    "seconds": round(seconds) if kind == method else "",
                    "MB sent each way": round(sent / 1e6) if kind == method else "",
                }
            )
    return rows


def label_rows(out: Path, name: str, score: str) -> list[dict[str, Any]]:
    """One row per number of labels; the gain of APFed over learning alone, seed by seed."""
    rows = []
    for labels in (100, 300, 1000, "all"):
        folder = out / f"{name}-{labels}"
        result = read(folder)
        if result is None:
            continue
        by_method = scores(result)
        row: dict[str, Any] = {"labels": labels}
        order = ("alone", "apfed-r", "apfed-c", "pooled", "tvfl", "tvfl-0", "tvfl-a", "tvfl-r")
        for method in order:
            if method in by_method:
                row[SHORT[method]] = percent(by_method[method].get(score))
        for method in ("apfed-r", "apfed-c"):
            gains = gain_by_seed(folder, method, score)
            mean, spread = 100 * statistics.fmean(gains), 100 * statistics.stdev(gains)
            row[f"gain {method[-1].upper()}"] = f"{mean:+.2f} ± {spread:.2f}"
        row["seeds"] = len(result["seeds"])
        rows.append(row)
    return rows


def overlap_rows(out: Path) -> list[dict[str, Any]]:
    """One row per way to use rows that only partly match."""
    rows = []
    for overlap, title in (("pairwise", "all of the bank's rows"), ("common", "common rows only")):
        result = read(out / f"overlap-{overlap}")
        if result is not None:
            by_method = scores(result)
            row = {"trained on": f"{title} (`{overlap}`)"}
            for method in ("alone", "apfed-r", "apfed-c"):
                row[NAMES[method]] = percent(by_method[method]["auc"])
            rows.append({**row, "seeds": len(result["seeds"])})
    return rows


def gain_by_seed(folder: Path, method: str, score: str) -> list[float]:
    """Score of ``method`` minus that of learning alone, of each seed."""
    gains = []
    for seed in json.loads((folder / "result.json").read_text())["seeds"]:
        by_method = scores(json.loads((folder / f"seed-{seed}" / "result.json").read_text()))
        gains.append(by_method[method][score]["mean"] - by_method["alone"][score]["mean"])
    return gains


def draw_gains(out: Path, path: Path) -> None:
    """Gain over learning alone against the number of labels."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "dovetail"
    from matplotlib import pyplot

    panels = {"adult": "auc", "credit": "auc", "fmnist": "accuracy"}
    figure, axes = pyplot.subplots(1, len(panels), figsize=(10, 3.2), layout="constrained")
    for axis, (name, score) in zip(axes, panels.items(), strict=True):
        counts = [n for n in (100, 300, 1000, "all") if read(out / f"{name}-{n}")]
        for method, mark in (("apfed-r", "s"), ("apfed-c", "o")):
            gains = [gain_by_seed(out / f"{name}-{n}", method, score) for n in counts]
            axis.errorbar(
                range(len(counts)),
                [100 * statistics.fmean(each) for each in gains],
                [100 * statistics.stdev(each) for each in gains],
                marker=mark,
                capsize=3,
                label=NAMES[method],
            )
        axis.axhline(0, color="gray", linewidth=0.8)
        axis.set_xticks(range(len(counts)), [str(n) for n in counts])
        axis.set_xlabel("labels")
        axis.set_title(f"{name}: {score}")
    axes[0].set_ylabel("gain over learning alone, points")
    axes[0].legend(frameon=False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def insert(marker: str, table: str) -> None:
    """Put a table between a marker's comments in docs/apfed.md."""
    page = DOCS / "apfed.md"
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
    out = parser.parse_args().out
    tables = {
        "subset": [
            row
            for name in ("mnist", "fmnist", "cifar10")
            for row in image_rows(out, name, "subset")
        ],
        "cpu": [row for name in ("mnist", "cifar10") for row in image_rows(out, name, "cpu")],
        "overlap": overlap_rows(out),
        "labels-adult": label_rows(out, "adult", "auc"),
        "labels-credit": label_rows(out, "credit", "auc"),
        "labels-fmnist": label_rows(out, "fmnist", "accuracy"),
    }
    for marker, rows in tables.items():
        if rows:
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (FOLDER / f"apfed_{marker.replace('-', '_')}.jsonl").write_text(lines)
            insert(marker, markdown(rows))
    if all(tables[f"labels-{name}"] for name in ("adult", "credit", "fmnist")):
        draw_gains(out, DOCS / "images" / "apfed-labels.svg")


if __name__ == "__main__":
    main()
