"""Where figures go: JSON lines for programs, a Markdown table for people."""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "commit": _commit(),
    }


def _commit() -> str:
    """The version that is measured; "" outside a clone."""
    asked = ["git", "rev-parse", "--short=12", "HEAD"]
    done = subprocess.run(asked, cwd=FOLDER, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def script(name: str, folder: Path = FOLDER.parent) -> Path | None:
    """The script of a record, or of those that it writes: ``exchange`` of ``exchange_parts``."""
    while name:
        path = folder / name
        if path.is_dir() or path.with_suffix(".py").is_file():
            return path.with_suffix(".py")
        name = name.rpartition("_")[0]
    return None


def write(name: str, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write results/NAME.jsonl and results/NAME.md, and print the table."""
    FOLDER.mkdir(exist_ok=True)
    about = machine()
    lines = (json.dumps({**about, **row}) + "\n" for row in rows)
    (FOLDER / f"{name}.jsonl").write_text("".join(lines))
    noted = ", ".join(f"{key} {value}" for key, value in about.items())
    command = f"python -m benchmarks.{(script(name) or Path(name)).stem}"
    text = f"# {title}\n\n`{command}`; {noted}.\n\n{markdown(rows)}"
    (FOLDER / f"{name}.md").write_text(text)
    print(text)


def before(name: str) -> list[dict[str, Any]]:
    """The rows of results/NAME.jsonl, as they were given to ``write``; none without a file."""
    path, about = FOLDER / f"{name}.jsonl", machine()
    lines = path.read_text().splitlines() if path.is_file() else []
    return [
        {key: value for key, value in json.loads(line).items() if key not in about}
        for line in lines
    ]


def resumed(
    path: Path,
    wanted: Iterable[Mapping[str, Any]],
    run: Callable[..., Mapping[str, Any] | None],
) -> list[dict[str, Any]]:
    """All finished runs of a file, a JSON line each; what is missing is run, and added at once.

    Args:
        wanted: of each run, what names it: the arguments of ``run``.
        run: the rest of the line, ``seconds`` among it; None for what cannot be run.
    """
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for names in wanted:
        if any(names.items() <= line.items() for line in lines):
            continue
        result = run(**names)
        if result is None:
            continue
        lines.append({**machine(), **names, **result})
        with path.open("a") as file:
            file.write(json.dumps(lines[-1]) + "\n")
        print(*names.values(), f"{result['seconds']:.0f} s", flush=True)
    return lines


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of rows that have the same keys."""
    names = list(rows[0])
    cells = [names, ["---"] * len(names), *([_cell(row[name]) for name in names] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def insert(page: Path, marker: str, table: str) -> None:
    """Put a table between a marker's comments."""
    pattern = rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)"
    text, count = re.subn(
        pattern, lambda match: f"{match[1]}{table}{match[2]}", page.read_text(), flags=re.DOTALL
    )
    if not count:
        raise SystemExit(f"{page} has no marker {marker!r}")
    page.write_text(text)


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
