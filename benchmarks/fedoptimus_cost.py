"""What FedOptimus' runs cost to come near their final accuracy, for results/bench/fedoptimus.md.

    dovetail bench fedoptimus-table1 --recipe cpu --out out/bench
    python -m benchmarks.fedoptimus_cost out/bench --recipe cpu

Cost is that of the first round after which accuracy on the test rows is 95 % of what it ends with:
bytes are those that all parties and the coordinator sent until then; the mean over seeds. Figures
go to results/ as JSON lines, the table between the markers in results/bench/fedoptimus.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._results import FOLDER, insert, markdown
from benchmarks.tables.registry import FEDOPTIMUS_DATA, FEDOPTIMUS_ROWS

#: The share of the final accuracy that cost is told for.
ENOUGH = 0.95


class Cost(NamedTuple):
    """What it took a run to come near its final accuracy."""

    round: int
    seconds: float
    num_bytes: int


def cost(folder: Path) -> Cost | None:
    """What it took; None where no line says."""
    seconds, scored = 0.0, []
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        if line["variant"] != "fedoptimus":
            continue
        seconds += line["seconds"]
        if "accuracy" in line:
            spent = Cost(line["round"], seconds, line["bytes"])
            scored.append((line["accuracy"], spent))
    if not scored:
        return None
    return next(spent for value, spent in scored if value >= ENOUGH * scored[-1][0])


def table(out: Path, recipe: str) -> Iterator[dict[str, Any]]:
    """Rounds, seconds and bytes until a run is near its final accuracy."""
    suffix = f"-{recipe}" if recipe else ""
    for row, title in FEDOPTIMUS_ROWS.items():
        line: dict[str, Any] = {"": title}
        for data, name in FEDOPTIMUS_DATA.items():
            folders = (out / "fedoptimus" / f"{data}-{row}{suffix}").glob("seed-*/result.json")
            costs = [spent for each in folders if (spent := cost(each.parent)) is not None]
            line[name] = ""
            if costs:
                rounds = statistics.fmean(each.round for each in costs)
                seconds = statistics.fmean(each.seconds for each in costs)
                megabytes = statistics.fmean(each.num_bytes for each in costs) / 1e6
                line[name] = f"{rounds:,.0f} rounds, {seconds:,.0f} s, {megabytes:,.0f} MB"
        if any(line[name] for name in FEDOPTIMUS_DATA.values()):
            yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "out", type=Path, nargs="?", default=Path("out/bench"), help="of dovetail bench [out/bench]"
    )
    parser.add_argument("--recipe", default="", help="of the run files")
    arguments = parser.parse_args()
    rows = list(table(arguments.out, arguments.recipe))
    if not rows:
        parser.exit(2, f"{arguments.out} has no finished run of this table; see --help\n")
    lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in rows)
    (FOLDER / "fedoptimus_cost.jsonl").write_text(lines)
    insert(FOLDER / "bench" / "fedoptimus.md", "cost", markdown(rows))


if __name__ == "__main__":
    main()
