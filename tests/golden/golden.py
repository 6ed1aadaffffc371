"""What a run computed, as JSON: weights, scores, messages, predictions; and how two differ.

Texts, integers, shapes and orders are compared exactly. Floats are not the same bits on every
processor: a tensor's norm may differ by ``NORM_TOLERANCE``, and what is computed of weights by
``SCORE_TOLERANCE``.

The record is made of what is stable: the command's name and arguments, and the files that a run
leaves. ``dovetail`` below is the one place that starts a command.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import platform
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from golden_cases import TABLES, Case
from safetensors.numpy import load_file

HERE = Path(__file__).parent
RECORDS = HERE / "record"

#: How far a tensor's norm may lie from the record's, of its size.
NORM_TOLERANCE = 1e-4

#: How far a score, loss or prediction may lie from the record's.
SCORE_TOLERANCE = 2e-2

ADVICE = """\
These numbers are not those of the golden record. If nobody meant to change what is computed, the
last change has a mistake. If it is meant: python tests/golden/record.py --write NAME ..., look at
the difference that git shows, and say in the commit why numbers change.
"""

OTHER_MACHINE = """\
The record was made on {recorded!r}, this is {here!r}. To tell a mistake from another machine's
arithmetic, check out the commit that wrote the record and run this test here: if it fails there
too, it is the machine.
"""


# --- Running --------------------------------------------------------------------------------------


def dovetail(folder: Path, *arguments: object) -> tuple[int, str, str]:
    """``dovetail ARGUMENTS`` in a folder, in this process: its exit code, and what it printed."""
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["dovetail"].partition(":")
    main = getattr(import_module(module), function)
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["dovetail", *map(str, arguments)]),
        mock.patch.dict(os.environ),
    ):
        os.environ.pop("DOVETAIL_DATA", None)
        try:
            main()
        except SystemExit as done:
            code = int(done.code or 0)
    return code, out.getvalue(), err.getvalue()


def run(case: Case, folder: Path) -> Path:
    """The run folder of a case, trained in this one."""
    case.write(folder)
    settings = [part for each in case.settings for part in ("--set", each)]
    code, _, err = dovetail(folder, "train", "run.toml", "--out", "out", "-q", *settings)
    assert code == 0, err
    return folder / "out"


def here() -> str:
    """What bits depend on: PyTorch's version, what it uses of the processor, whose that is."""
    vendor = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("vendor_id"):
                vendor = line.partition(":")[2].strip()
                break
    capability = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__}, {capability}, {platform.machine()} {vendor}".strip()


# --- What a run left ------------------------------------------------------------------------------


def taken(case: Case, folder: Path) -> dict[str, Any]:
    """The record of a case that ``run`` has trained in this folder."""
    out = folder / "out"
    return {
        "platform": here(),
        "result": result(out),
        "rounds": rounds(out),
        "weights": weights(out / "models"),
        **messages(out / "ledger.jsonl"),
        "predictions": predictions(folder, out / "models"),
    }


def weights(models: Path) -> dict[str, Any]:
    """File below a folder of models -> its tensors' names, dtypes and shapes, and their norms."""
    return {
        path.relative_to(models).with_suffix("").as_posix(): of_file(path)
        for path in sorted(models.rglob("*.safetensors"))
    }


def of_file(path: Path) -> dict[str, Any]:
    """Tensor of a file, with dtype and shape -> its norm."""
    norms = {
        f"{name} {value.dtype} {list(value.shape)}": np.linalg.norm(value.astype(np.float64))
        for name, value in sorted(load_file(path).items())
    }
    return {"norms": {title: float(f"{norm:.6g}") for title, norm in norms.items()}}


#: Of results and lines of rounds: what differs from run to run.
PASSING = {"seconds", "versions", "run", "id", "started", "finished", "time"}

#: Of results and lines of rounds: what follows from the same outputs as the scores that are
#: compared, and is tested by hand in tests/models/test_metrics.py.
FOLLOWS = {
    *("average_precision", "macro_f1", "balanced_accuracy", "brier", "ece"),
    *("auc_macro", "average_precision_macro", "details", "warnings"),
}


def without_passing(value: Any) -> Any:
    if isinstance(value, Mapping):
        left_out = PASSING | FOLLOWS
        return {key: without_passing(each) for key, each in value.items() if key not in left_out}
    if isinstance(value, list):
        return [without_passing(each) for each in value]
    return value


def result(out: Path) -> Any:
    """``result.json`` without times and versions."""
    return without_passing(json.loads((out / "result.json").read_text()))


def json_lines(path: Path) -> Iterator[Any]:
    if path.exists():
        for line in path.read_text().splitlines():
            yield json.loads(line)


def rounds(out: Path) -> list[Any]:
    """``metrics.jsonl`` without times."""
    return [without_passing(line) for line in json_lines(out / "metrics.jsonl")]


def messages(ledger: Path) -> dict[str, list[str]]:
    """Kinds of messages, from whom to whom, their tensors, how many and how large; sorted.

    Those that keep and restore a party's state stand apart: what a state holds may change while
    what is computed does not.
    """
    lines: dict[str, list[str]] = {"messages": [], "checkpoints": []}
    for line in json_lines(ledger):
        if "message" not in line:
            continue
        tensors = ", ".join(
            f"{each['name']} {each['dtype']} {each['shape']}" for each in line["tensors"]
        )
        text = (
            f"{line.get('variant', '')}: {line['from']} -> {line['to']}: {line['message']} "
            f"x{line['count']}, {line['bytes']} bytes ({tensors})"
        )
        kind = "checkpoints" if line["message"].startswith("checkpoint.") else "messages"
        lines[kind].append(text)
    return {kind: sorted(lines) for kind, lines in lines.items()}


def predictions(folder: Path, models: Path) -> dict[str, Any]:
    """Party -> the head of the CSV that its model predicts of the case's table.

    Of the first party and the last.
    """
    (table,) = (name for name in TABLES if (folder / name).exists())
    folders = sorted(models.rglob("model.json"))
    return {
        path.parent.relative_to(models).as_posix(): predicted(folder, path.parent, table)
        for path in dict.fromkeys((*folders[:1], *folders[-1:]))
    }


def predicted(folder: Path, model: Path, table: object) -> dict[str, Any]:
    """The first lines of the CSV that a model predicts."""
    ids = ("--id", "row") if str(table).endswith(".csv") else ()
    code, out, err = dovetail(folder, "predict", model, table, "-q", *ids)
    if code:
        return {"refused": err.replace(str(folder), "FOLDER")}
    cells = [[number(cell) for cell in line.split(",")] for line in out.splitlines()[:4]]
    return {"head": cells}


def number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


# --- Comparing ------------------------------------------------------------------------------------


def recorded(name: str) -> Any:
    return json.loads((RECORDS / f"{name}.json").read_text())


def write(name: str, record: Any) -> None:
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def check(record: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Fail where what was computed now is not what is recorded, saying what and what to do."""
    keys = [key for key in dict.fromkeys((*record, *now)) if key != "platform"]
    different = [line for key in keys for line in differences(record.get(key), now.get(key), key)]
    if different:
        advice = ADVICE
        if record["platform"] != now["platform"]:
            advice += OTHER_MACHINE.format(recorded=record["platform"], here=now["platform"])
        more = "" if len(different) <= 40 else f"\n... and {len(different) - 40} more"
        raise AssertionError(advice + "\n".join(different[:40]) + more)


def differences(old: Any, new: Any, where: str) -> Iterator[str]:
    """One line for everything that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            below = f"{where} / {key}"
            if key not in new:
                yield f"{below}: is missing now"
            elif key not in old:
                yield f"{below}: is not in the record"
            else:
                yield from differences(old[key], new[key], below)
    elif isinstance(old, list) and isinstance(new, list):
        if where in ("messages", "checkpoints") or where.startswith("homes / "):
            lost, added = Counter(old) - Counter(new), Counter(new) - Counter(old)
            yield from (f"{where}: the record has {each!r}" for each in sorted(lost.elements()))
            yield from (f"{where}: now there is {each!r}" for each in sorted(added.elements()))
            return
        if len(old) != len(new):
            yield f"{where}: the record has {len(old)}, now there are {len(new)}"
        for index, pair in enumerate(zip(old, new, strict=False)):
            yield from differences(*pair, f"{where} / {index}")
    elif not same(old, new, where):
        yield f"{where}: the record has {old!r}, now it is {new!r}"


def same(old: Any, new: Any, where: str) -> bool:
    if all(isinstance(each, int | float) for each in (old, new)) and float in map(type, (old, new)):
        tolerance = NORM_TOLERANCE if "/ norms /" in where else SCORE_TOLERANCE
        return math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance)
    return bool(old == new)
