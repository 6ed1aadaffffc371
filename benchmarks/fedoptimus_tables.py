"""Tables of docs/fedoptimus.md, from run folders.

    python -m benchmarks.fedoptimus_tables out

A folder is called CELL (a run of several seeds, or of one), or CELL-seedN, where CELL is a file of
runs/fedoptimus/. Cells of a table are the mean over the runs that have the figure; ± is their
standard deviation. Cost is that of the first round after which accuracy on the test rows is 95 % of
what it ends with: bytes are those that all parties and the coordinator sent until then. Figures go
to results/ as JSON lines, tables between the markers in docs/fedoptimus.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._results import DOCS, FOLDER, insert, markdown

DATA = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}

ROWS = {
    "cs-fedavg": "CS + FedAvg",
    "cs-slowmo": "CS + SlowMo",
    "cs-kstep": "CS + K-Step",
    "fedavg": "FedAvg",
    "slowmo": "SlowMo",
    "kstep": "K-Step",
    "fedoptimus": "FedOptimus",
}

#: Test accuracy in %, of the paper's Table 1.
PAPER = {
    "cs-fedavg": (41.53, 57.47, 58.91),
    "cs-slowmo": (97.02, 95.34, 59.16),
    "cs-kstep": (97.32, 97.97, 60.03),
    "fedavg": (94.63, 94.59, 64.12),
    "slowmo": (97.89, 95.24, 63.39),
    "kstep": (94.58, 56.55, 98.77),
    "fedoptimus": (98.57, 98.43, 98.46),
}

#: A run of more epochs (``--set fedoptimus.epochs=24``), in a folder called DATA-fedoptimus-long.
LONG = "fedoptimus-long"

#: A longer run of the ruler: ``--set fedoptimus.epochs=1 --set 'rulers=["pooled"]'
#: --set 'fedoptimus.stages.pooled={learning_rate=3e-3,epochs=12}'``, in DATA-fedoptimus-pooled.
POOLED = "fedoptimus-pooled"

RULERS = {
    "classic": "one label owner with all rows (classic vertical)",
    "alone": "each label owner alone",
    "pooled": "pooled: one network on whole images",
}

#: The share of the final accuracy that cost is told for.
ENOUGH = 0.95


class Cost(NamedTuple):
    """What it took a run to come near its final accuracy."""

    round: int
    seconds: float
    num_bytes: int


def runs(out: Path, cell: str) -> list[tuple[Path, dict[str, Any]]]:
    """Folder and result of the runs of a cell that have finished, a seed each."""
    found = {}
    for folder in [*out.glob(f"{cell}/seed-*"), *out.glob(f"{cell}-seed[0-9]*"), out / cell]:
        if (folder / "result.json").exists():
            result = json.loads((folder / "result.json").read_text())
            if "seed" in result:  # no summary of several
                found[int(result["seed"])] = (folder, result)
    return [found[seed] for seed in sorted(found)]


def accuracy(result: dict[str, Any]) -> float:
    """In %, of the run's own method: the mean over label owners."""
    parties = result["parties"].values()
    return 100 * statistics.fmean(scores["accuracy"] for scores in parties)


def cost(folder: Path, stage: str) -> Cost | None:
    """What it took to come near the final accuracy; None where no line says."""
    seconds, scored = 0.0, []
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        if line["stage"] != stage:
            continue
        seconds += line["seconds"]
        if "accuracy" in line:
            told = Cost(line["round"], seconds, line["bytes"])
            scored.append((line["accuracy"], told))
    if not scored:
        return None
    return next(told for value, told in scored if value >= ENOUGH * scored[-1][0])


def last(folder: Path) -> float:
    """Accuracy in % after the last round of FedOptimus; its rulers need not have finished."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    scored = [line for line in lines if line["stage"] == "fedoptimus" and "accuracy" in line]
    return 100 * float(scored[-1]["accuracy"])


def told(numbers: list[float], digits: int = 2) -> str:
    """Mean and spread."""
    if not numbers:
        return ""
    spread = f" ± {statistics.stdev(numbers):.{digits}f}" if len(numbers) > 1 else ""
    return f"{statistics.fmean(numbers):.{digits}f}{spread}"


def main_table(out: Path) -> Iterator[dict[str, Any]]:
    """The seven rows of Table 1, then the rulers."""
    for row, title in ROWS.items():
        line: dict[str, Any] = {"": title}
        for place, (data, name) in enumerate(DATA.items()):
            found = runs(out, f"{data}-{row}")
            line[name] = told([accuracy(result) for _, result in found])
            line[f"{name}, paper"] = f"{PAPER[row][place]:.2f}"
        if any(line[name] for name in DATA.values()):
            yield line
    line = {"": "FedOptimus, 24 epochs"}
    for data, name in DATA.items():
        line[name] = told([last(folder) for folder in sorted(out.glob(f"{data}-{LONG}-seed*"))])
        line[f"{name}, paper"] = ""
    if any(line[name] for name in DATA.values()):
        yield line
    for ruler, title in RULERS.items():
        line = {"": title}
        for data, name in DATA.items():
            found = runs(out, f"{data}-fedoptimus")
            scores = [result["rulers"][ruler] for _, result in found if ruler in result["rulers"]]
            line[name] = told([100 * score["accuracy"] for score in scores])
            line[f"{name}, paper"] = ""
        if any(line[name] for name in DATA.values()):
            yield line
    line = {"": "pooled, 12 epochs"}
    for data, name in DATA.items():
        found = runs(out, f"{data}-{POOLED}")
        scores = [result["rulers"]["pooled"] for _, result in found]
        line[name] = told([100 * score["accuracy"] for score in scores])
        line[f"{name}, paper"] = ""
    if any(line[name] for name in DATA.values()):
        yield line


def cost_table(out: Path) -> Iterator[dict[str, Any]]:
    """Rounds, seconds and bytes until a run is near its final accuracy."""
    for row, title in ROWS.items():
        line: dict[str, Any] = {"": title}
        for data, name in DATA.items():
            found = [
                told
                for folder, result in runs(out, f"{data}-{row}")
                if (told := cost(folder, result["method"])) is not None
            ]
            line[name] = ""
            if found:
                rounds = statistics.fmean(each.round for each in found)
                seconds = statistics.fmean(each.seconds for each in found)
                megabytes = statistics.fmean(each.num_bytes for each in found) / 1e6
                line[name] = f"{rounds:,.0f} rounds, {seconds:,.0f} s, {megabytes:,.0f} MB"
        if any(line[name] for name in DATA.values()):
            yield line


def adult_table(out: Path) -> Iterator[dict[str, Any]]:
    """The table's case: accuracy in %, of the method and its rulers."""
    found = [result for _, result in runs(out, "adult-4")]
    if not found:
        return
    titles = {"fedoptimus": "FedOptimus", **RULERS}
    each = [{**result["rulers"], "fedoptimus": result["mean"]} for result in found]
    for name, title in titles.items():
        numbers = [100 * scores[name]["accuracy"] for scores in each if name in scores]
        yield {"adult, four data owners": title, "accuracy": told(numbers), "seeds": len(numbers)}


def notes(out: Path) -> str:
    """How long runs were, and which of the paper's figures no pooled network here comes near."""
    text = ""
    for place, (data, name) in enumerate(DATA.items()):
        every = [run for row in ROWS for run in runs(out, f"{data}-{row}")]
        if not every:
            continue
        epochs = {_epochs(folder) for folder, _ in every}
        counts = [len(runs(out, f"{data}-{row}")) for row in ROWS]
        text += (
            f"- {name}: {' or '.join(map(str, sorted(epochs)))} epochs, "
            f"seeds a row: {' to '.join(map(str, sorted({min(counts), max(counts)})))}.\n"
        )
        pooled = [
            100 * result["rulers"]["pooled"]["accuracy"]
            for cell in ("fedoptimus", POOLED)
            for _, result in runs(out, f"{data}-{cell}")
            if "pooled" in result["rulers"]
        ]
        if pooled:
            best = max(pooled)
            above = [
                f"{ROWS[row]} {told[place]:.2f}"
                for row, told in PAPER.items()
                if told[place] > best
            ]
            text += (
                f"  The paper's figures above the best pooled network here ({best:.2f}): "
                f"{', '.join(above) or 'none'}.\n"
            )
    return text


def _epochs(folder: Path) -> int:
    return int(tomllib.loads((folder / "run.toml").read_text())["fedoptimus"]["epochs"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "out", type=Path, nargs="?", default=Path("out"), help="the folder with run folders [out]"
    )
    parser.add_argument("--print", action="store_true", help="print the tables, write nothing")
    arguments = parser.parse_args()
    tables = {
        "main": list(main_table(arguments.out)),
        "cost": list(cost_table(arguments.out)),
        "adult": list(adult_table(arguments.out)),
    }
    for marker, rows in tables.items():
        if arguments.print:
            print(f"{marker}\n{markdown(rows) if rows else 'nothing yet'}")
        elif rows:
            lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in rows)
            (FOLDER / f"fedoptimus_{marker}.jsonl").write_text(lines)
            insert(DOCS / "fedoptimus.md", marker, markdown(rows))
    if arguments.print:
        print(notes(arguments.out))
    else:
        insert(DOCS / "fedoptimus.md", "notes", notes(arguments.out))


if __name__ == "__main__":
    main()
