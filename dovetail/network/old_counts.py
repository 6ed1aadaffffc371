"""What a site counted in files of their own before ``site.sqlite``; read once, and removed then.

alignments.json, runs.jsonl                          alignments; begins and answers
checkpoints/DRIVER/RUN/ALGORITHM.uses .asked .spent  uses and releases
numbers/DRIVER.safetensors, sums/DRIVER/RUN.jsonl    numbers of rows; shares of secret sums
proposals/NAME/used.jsonl                            runs that began on a proposal
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dovetail.errors import CheckpointError, ConfigError
from dovetail.network.checkpoint import load_state

#: Tables, and a row of each.
Rows = Iterator[tuple[str, tuple[Any, ...]]]


def rows(site_folder: Path) -> Rows:
    """What the files of this site say.

    Raises:
        ConfigError: one that cannot be read.
    """
    for pattern, read in _READERS.items():
        for path in sorted(site_folder.glob(pattern)):
            try:
                yield from read(path)
            except (OSError, ValueError, LookupError, TypeError, CheckpointError) as error:
                raise ConfigError(
                    f"{path} cannot be read ({error}), so nobody knows what was answered here; put "
                    "it back, or delete it"
                ) from None


def remove(site_folder: Path) -> None:
    """Remove what was read."""
    for pattern in _READERS:
        for path in site_folder.glob(pattern):
            path.unlink()


def _lines(path: Path) -> Iterator[Any]:
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):  # cut off as the machine went down
            yield json.loads(line)


def _alignments(path: Path) -> Rows:
    for driver, entries in json.loads(path.read_text(encoding="utf-8"))["drivers"].items():
        for each in entries:
            yield "alignments", (driver, *each.values())


def _runs(path: Path) -> Rows:
    answers, number = dict[tuple[str, ...], tuple[int, str]](), Counter[str]()
    for line in _lines(path):
        driver, run, letter = line["driver"], line["run"], line.get("letter", "")
        if message := line.get("answered"):
            times, _ = answers.get((driver, run, message), (0, ""))
            answers[driver, run, message] = times + line.get("count", 1), letter
            continue
        number[driver] = max(number[driver] + 1, line["number"])
        began = number[driver], line["time"], bool(line.get("anew")), letter
        yield "begins", (driver, run, line["algorithm"], *began)
    yield from (("answers", (*key, *each)) for key, each in answers.items())


def _run(path: Path) -> tuple[str, str, str]:
    """Driver, run and algorithm of a file among the states of a run."""
    return path.parts[-3], path.parts[-2].replace("+", "/"), path.stem


def _uses(path: Path) -> Rows:
    for used_S in load_state(path)[0]["used"].values():
        yield "uses", (*_run(path), None, used_S.numpy().astype("<i4").tobytes())


def _asked(path: Path) -> Rows:
    whole = path.read_bytes()
    yield "uses", (*_run(path), whole[: len(whole) // 4 * 4], None)


def _spent(path: Path) -> Rows:
    yield "releases", (*_run(path), int(path.read_text(encoding="ascii")))


def _numbers(path: Path) -> Rows:
    driver, state = "" if path.stem == "all" else path.stem, load_state(path)[0]
    counts = zip(state["ids"].tolist(), state["counts"].tolist(), strict=True)
    yield from (("numbers", (driver, *each)) for each in counts)
    yield from (("given", (driver, number)) for number in state["given"].tolist())


def _sums(path: Path) -> Rows:
    run = path.parts[-2], path.stem.replace("+", "/")
    yield from (("sums", (*run, *each)) for each in _lines(path))


def _agreed(path: Path) -> Rows:
    yield from (("agreed", (path.parts[-2], *line.values())) for line in _lines(path))


_READERS: dict[str, Callable[[Path], Rows]] = {
    "alignments.json": _alignments,
    "runs.jsonl": _runs,
    "checkpoints/*/*/*.uses": _uses,
    "checkpoints/*/*/*.asked": _asked,
    "checkpoints/*/*/*.spent": _spent,
    "numbers/*.safetensors": _numbers,
    "sums/*/*.jsonl": _sums,
    "proposals/*/used.jsonl": _agreed,
}
