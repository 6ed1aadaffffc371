"""APFed-S beside APFed-D and the best local model, of the runs that are recorded.

    python -m benchmarks.worth            print the table and what it comes to
    python -m benchmarks.worth --insert   also put both into results/bench/sealed.md

The runs: ``dovetail bench worth --recipe sealed --seeds 5`` (results/bench/worth-sealed.jsonl) and
``dovetail bench worth --seeds 5`` (worth.jsonl: APFed-D with ``exchange = "gradients"``). Rows,
labels and seeds are the same; figures are means over the seeds that both have.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from typing import Any

from benchmarks import _results

S, D = "apfed", "apfed-d"


def lines(name: str) -> dict[tuple[str, int], dict[str, Any]]:
    """(cell, seed) -> a line of a record."""
    text = (_results.FOLDER / "bench" / f"{name}.jsonl").read_text(encoding="utf-8")
    read = [json.loads(line) for line in text.splitlines()]
    return {(line["cell"], line["seed"]): line for line in read}


def cells() -> list[dict[str, Any]]:
    """What each setting comes to, in points (AUC or accuracy x 100)."""
    ours, theirs = lines("worth-sealed"), lines("worth")
    seeds: dict[str, list[int]] = defaultdict(list)
    for cell, seed in ours.keys() & theirs.keys():
        seeds[cell].append(seed)
    found = []
    for cell in dict.fromkeys(cell for cell, _ in theirs):
        if cell not in seeds:
            continue

        def mean(read: dict[tuple[str, int], dict[str, Any]], key: str, cell: str = cell) -> float:
            return 100 * statistics.fmean(read[cell, seed][key] for seed in seeds[cell])

        one = ours[cell, seeds[cell][0]]
        found.append(
            {
                "data": one["data"],
                "labels": one["labels"],
                "seeds": len(seeds[cell]),
                "local": mean(ours, "best-alone"),
                "solo D": mean(theirs, D),
                "solo S": mean(ours, S),
                "joint D": mean(theirs, "joint"),
                "joint S": mean(ours, "joint"),
            }
        )
    return found


def summary(found: list[dict[str, Any]]) -> dict[str, float]:
    """What a page says of all settings together."""
    solo = [cell["solo S"] - cell["local"] for cell in found]
    joint = [cell["joint S"] - cell["local"] for cell in found]
    kept = [gain / whole for gain, whole in zip(solo, joint, strict=True) if whole >= 1]
    # "level" is no worse than a twentieth of a point: what a table with one digit shows as equal
    return {
        "settings": len(found),
        "above the best local model": sum(gain > 0 for gain in solo),
        "lowest gain": min(solo),
        "mean gain, solo": statistics.fmean(solo),
        "mean gain of D, solo": statistics.fmean(c["solo D"] - c["local"] for c in found),
        "median gain, solo": statistics.median(solo),
        "median gain, joint": statistics.median(joint),
        "median share kept, %": 100 * statistics.median(kept),
        "solo level with D or above": sum(c["solo S"] >= c["solo D"] - 0.05 for c in found),
        "joint level with D or above": sum(c["joint S"] >= c["joint D"] - 0.05 for c in found),
        "joint within a point of D or above": sum(c["joint S"] >= c["joint D"] - 1 for c in found),
    }


def table(found: list[dict[str, Any]]) -> str:
    """As results/bench/sealed.md has it."""
    names = ("best local", "solo by D", "**solo by S**", "joint by D", "**joint by S**")
    text = f"| data | labels | {' | '.join(names)} |\n|---|---|---|---|---|---|---|\n"
    for cell in found:
        text += (
            f"| {cell['data']} | {cell['labels']} | {cell['local']:.1f} | {cell['solo D']:.1f} | "
            f"**{cell['solo S']:.1f}** | {cell['joint D']:.1f} | **{cell['joint S']:.1f}** |\n"
        )
    return text


def main() -> None:
    found = cells()
    print(table(found))
    for name, value in summary(found).items():
        print(f"{name}: {value:.3g}")
    print(f"seeds a setting: {min(c['seeds'] for c in found)} to {max(c['seeds'] for c in found)}")
    if "--insert" in sys.argv[1:]:
        _results.insert(_results.FOLDER / "bench" / "sealed.md", "worth", table(found))


if __name__ == "__main__":
    main()
