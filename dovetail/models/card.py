"""A model's card: what it is, what it was trained on, how good it is and for whom.

``card.json`` for programs and ``card.md`` for people, beside the model. What is in the model's own
description is repeated; what a run's folder around it says (scores, baselines, ledger, audit) is
added where it is there; scores of groups come from rows that are given.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dovetail.data import Classification, Survival, TableEncoder, Task
from dovetail.data.fitted import CategoryColumn
from dovetail.data.kinds import day_text
from dovetail.data.tables import Table
from dovetail.data.vectors import VectorColumn
from dovetail.errors import DataError
from dovetail.models import survival
from dovetail.models.calibration import CALIBRATION, CONFORMAL
from dovetail.models.metrics import calibration_error, intervals, score
from dovetail.models.raw import read_rows, table_of
from dovetail.models.saved import Model, Raw, described, load
from dovetail.models.shown import markdown_page

#: Groups that are told of a column.
_MOST_GROUPS = 12
#: Characters of a category that are shown: a page is no place for what people wrote.
_LONGEST = 40
#: Groups of fewer rows say nothing.
_LEAST_GROUP = 20
#: No line of a ledger is longer.
_LAST_BYTES = 2**20
#: What of an audit's finding is told, and its words in order.
_FOUND = ("variant", "observer", "owner", "channel", "target", "advantage", "verdict")
_WORSE = ("none", "low", "high")
#: What a file raises that is not there, or is none of ours.
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
_PACKAGES = ("dovetail", "torch", "lightgbm", "scikit-learn", "numpy")


def card(
    folder: Path,
    *,
    rows: Raw | None = None,
    by: Sequence[str] = (),
    label: str | None = None,
    heads: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Content of the card, JSON-ready.

    Args:
        folder: the model's.
        rows: labelled ones that it was not trained on, to score it on.
        by: columns of these whose groups are scored apart.
        label: the label's column; None: as in training.
        heads: party -> where its own record of what left it stood after the run: lines and hash.

    Raises:
        ModelError: no model there.
        DataError: rows that do not fit, or columns that are not there.
    """
    model = described(folder)
    description = (folder / "model.json").read_bytes()
    stored = json.loads(description)
    written: dict[str, Any] = {
        "party": model.party,
        "label": model.about.get("label"),
        "task": model.task.to_json(),
        "method": model.about.get("method"),
        "learner": model.about.get("learner"),
        "network": stored["network"].get("kind"),
        "seed": model.about.get("seed"),
        "written": _written(folder),
        "trained_rows": _trained_rows(model),
        "columns": _columns(model),
        "calibration": _calibration(model),
        "decision": model.about.get("decision"),
        "private": model.about.get("private"),
        "hash": {
            "model.json": hashlib.sha256(description).hexdigest(),
            "model.safetensors": stored["weights_sha256"],
        },
        "versions": _versions(),
        "run": _run(folder, model.party, joint=_is_joint(stored)),
        "proposal": model.about.get("proposal"),
        "heads": dict(heads or {}),
    }
    if rows is not None:
        written["scores"] = _scores(load(folder), table_of(rows), by, label)
    elif by:
        raise DataError("groups are scored on rows; give a table with labels besides")
    return written


def renew(folder: Path, *, heads: Mapping[str, Any] | None = None) -> None:
    """Write the card again, with what the run's folder says now; scores on given rows stay.

    Raises:
        ModelError: no model there.
        OSError: it cannot be written.
    """
    new = card(folder, heads=heads)
    with suppress(*_UNREADABLE):
        older = _read_json(folder / "card.json")
        if older["hash"] == new["hash"]:
            new |= {name: older[name] for name in ("scores", "heads") if older.get(name)}
    write_card(folder, new)


def kept_heads(folder: Path) -> dict[str, Any]:
    """The heads of ledgers on the card that a model has, if it is of these weights; else none."""
    with suppress(*_UNREADABLE):
        older = _read_json(folder / "card.json")
        weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        if older["hash"]["model.safetensors"] == weights:
            return dict(older["heads"])
    return {}


def renew_all(run: Path, *, heads: Mapping[str, Any] | None = None) -> None:
    """``renew`` of every model in a run's folder, and in those of its seeds.

    Raises:
        OSError: one cannot be written.
    """
    for pattern in ("models/*/model.json", "seed-*/models/*/model.json"):
        for path in sorted(run.glob(pattern)):
            renew(path.parent, heads=heads)


def write_card(folder: Path, written: Mapping[str, Any]) -> None:
    """Write card.json and card.md into the model's folder."""
    (folder / "card.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    (folder / "card.md").write_text(markdown(written), encoding="utf-8")
    for name in ("card.json", "card.md"):  # ranges of the columns stand in it, as in model.json
        (folder / name).chmod((folder / "model.json").stat().st_mode & 0o777)


def score_then(folder: Path, name: str) -> float | None:
    """The score that a model's card has; None without a card, or where it has none."""
    with suppress(*_UNREADABLE):
        written = _read_json(folder / "card.json")
        scores = written.get("scores") or {}
        if name in scores.get("all", {}):
            return float(scores["all"][name]["value"])
        return float(written["run"]["scores"][name])
    return None


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


# --- What is told ---------------------------------------------------------------------------------


def _is_joint(stored: Mapping[str, Any]) -> bool:
    """Whether a description is that of a model that asks partners: APFed-D's or APFed-S'."""
    return str(stored["network"].get("kind")).startswith("joint")


def _written(folder: Path) -> str:
    moment = datetime.fromtimestamp((folder / "model.json").stat().st_mtime, UTC)
    return moment.isoformat(timespec="seconds")


def _encoders(model: Model) -> list[TableEncoder]:
    return [each for each in model.inputs.values() if isinstance(each, TableEncoder)]


def _trained_rows(model: Model) -> int | None:
    for encoder in _encoders(model):
        for column in encoder.fitted:
            if column.seen is not None:
                more = column.seen.other if isinstance(column, CategoryColumn) else 0
                return sum(column.seen.counts) + column.seen.missing + more
    return None


def _columns(model: Model) -> list[dict[str, Any]]:
    columns = []
    for encoder in _encoders(model):
        for column in encoder.fitted:
            entry: dict[str, Any] = {"name": column.name}
            if isinstance(column, CategoryColumn):
                entry |= {"kind": "category", "categories": list(column.categories)}
                entry["others"] = column.other
            elif isinstance(column, VectorColumn):
                entry |= {"kind": column.how.by, "features": len(column.feature_names)}
            else:
                entry |= {"kind": "number", "mean": column.mean, "std": column.scale}
                if column.seen is not None:
                    entry |= {"kind": column.seen.what, "low": column.seen.low}
                    entry |= {"high": column.seen.high}
            if column.seen is not None:
                entry["missing"] = column.seen.missing
            if column.name in encoder.schema:
                reading = asdict(encoder.schema[column.name])
                entry["read_as"] = {name: value for name, value in reading.items() if value}
            columns.append(entry)
    return columns


def _calibration(model: Model) -> dict[str, Any] | None:
    report = {}
    calibration = model.about.get(CALIBRATION)
    if isinstance(calibration, Mapping):
        report = {key: value for key, value in calibration.items() if key not in ("x", "y")}
    conformal = model.about.get(CONFORMAL)
    if isinstance(conformal, Mapping):
        report["conformal_rows"] = conformal["rows"]
    return report or None


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version("dovetail-fl" if package == "dovetail" else package)
        except PackageNotFoundError:
            continue
    return versions


def _run(folder: Path, party: str, *, joint: bool) -> dict[str, Any] | None:
    """Content of the run's folder, if the model is in RUN/models/PARTY; at a party's site, what
    left it."""
    run_folder = folder.resolve().parent.parent
    ledger = _ledger(run_folder / "ledger.jsonl")
    report: dict[str, Any] = {"scores": {}, "baselines": {}, "warnings": []}
    report |= {"recovered": None, "refitted": None}
    try:
        result = _read_json(run_folder / "result.json")
        baselines = _baselines(result, party)
        report |= {
            "scores": baselines.get("joint", {}) if joint else result["parties"].get(party, {}),
            "baselines": baselines,
            "recovered": result.get("recovered"),
            "warnings": result.get("warnings", []),
            "refitted": None if joint else result.get("distilled", {}).get("refitted"),
            "bytes": result.get("bytes"),
        }
    except _UNREADABLE:
        if ledger is None:
            return None
    seeds = run_folder.name.startswith("seed-")
    audit = _audit(run_folder.parent / "audit.json") if seeds else _audit(run_folder / "audit.json")
    return {**report, "ledger": ledger, "audit": audit}


def _baselines(result: Mapping[str, Any], party: str) -> dict[str, dict[str, float]]:
    """Baseline -> its scores of this party; of one that has none of it the mean, which is noted."""
    by_party: dict[str, Mapping[str, Any]] = {}
    for variant in result.get("variants", {}).values():
        by_party |= variant.get("scores", {})
    scores = {}
    for name, mean in result.get("baselines", {}).items():
        scores_here = by_party.get(name, {})
        if party in scores_here or len(scores_here) < 2:
            scores[name] = dict(scores_here.get(party, mean))
        else:
            scores[f"{name} (mean of {len(scores_here)} parties)"] = dict(mean)
    return scores


def _ledger(path: Path) -> dict[str, Any] | None:
    """Messages and bytes by sender and receiver, and the sum of the record; of a party's own
    record, which may be of many runs, its path."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LAST_BYTES))
            last = json.loads(file.read().splitlines()[-1])
        if isinstance(last, dict) and "hash" in last:
            return {"head": last["hash"]}
        content = path.read_bytes()
        lines = [json.loads(line) for line in content.splitlines()]
    except (OSError, ValueError, IndexError, RecursionError):
        return None
    sent: dict[str, dict[str, int]] = {}
    for line in lines:
        if isinstance(line, dict) and {"from", "to", "bytes"} <= line.keys():
            way = f"{line['from']} -> {line['to']}"
            entry = sent.setdefault(way, {"messages": 0, "bytes": 0})
            entry["messages"] += int(line.get("count", 1))
            entry["bytes"] += int(line["bytes"])
    return {"sent": sent, "lines": len(lines), "sha256": hashlib.sha256(content).hexdigest()}


def _audit(path: Path) -> dict[str, Any] | None:
    """The audit's verdict: the worst, and that of each attack."""
    with suppress(*_UNREADABLE):
        findings = [{name: each[name] for name in _FOUND} for each in _read_json(path)["findings"]]
        worst = max((each["verdict"] for each in findings), key=_WORSE.index, default="none")
        return {"verdict": worst, "findings": findings}
    return None


# --- Scores ---------------------------------------------------------------------------------------


def _scores(model: Model, table: Table, by: Sequence[str], label: str | None) -> dict[str, Any]:
    name = label if label is not None else model.about.get("label")
    if name is None:
        raise DataError("the model does not know what its label is called; say so")
    read = read_rows(model, table, label=str(name), allow_unseen=True)
    assert read.labels is not None
    present = np.flatnonzero(~read.labels.missing)
    inputs, truth = read.labelled(model.task, str(name))
    outputs = model.outputs(inputs)
    report: dict[str, Any] = {
        "rows": len(present),
        "all": _with_intervals(model.task, outputs, truth),
        "groups": {},
    }
    if isinstance(model.task, Classification):
        probabilities = outputs.double().softmax(dim=1).numpy()
        report["calibration_error"] = calibration_error(probabilities, truth.numpy())
    if isinstance(model.task, Survival):
        report["survival"] = survival.at_ends(model.task, outputs, truth)
    for column in by:
        values = table.column(column)
        texts = np.where(values.missing, "missing", values.values.astype(str))[present]
        groups, counts = np.unique(texts, return_counts=True)
        if len(groups) > _MOST_GROUPS and not values.is_text:
            edges = np.unique(np.quantile(values.values[present].astype(float), [0.25, 0.5, 0.75]))
            index = np.searchsorted(edges, values.values[present].astype(float))
            bounds = ["least", *(f"above {edge:g}" for edge in edges)]
            texts = np.array(bounds)[index]
            groups, counts = np.unique(texts, return_counts=True)
        kept = groups[np.argsort(-counts)][:_MOST_GROUPS]
        report["groups"][column] = {
            str(group): {"rows": int((texts == group).sum())}
            | (
                _with_intervals(model.task, outputs[texts == group], truth[texts == group])
                if (texts == group).sum() >= _LEAST_GROUP
                else {}
            )
            for group in kept
        }
    return report


def _with_intervals(task: Task, outputs: Tensor, truth: Tensor) -> dict[str, dict[str, Any]]:
    """Score -> its value, and the middle 95 % over draws of the rows, as in a report."""
    ends = intervals(task, outputs, truth)
    values = score(task, outputs, truth)
    return {name: {"value": each, "interval": ends.get(name)} for name, each in values.items()}


# --- For people -----------------------------------------------------------------------------------


def markdown(written: Mapping[str, Any]) -> str:
    """The card as a page of Markdown; nothing in it is markup, whatever columns are called."""
    written = _plain(written)
    scores, run = written.get("scores"), written.get("run")
    rows: dict[str, list[list[str]]] = {"ranges": [_range(entry) for entry in written["columns"]]}
    if scores:
        rows["score_rows"] = [["all rows", *map(_shown, scores["all"].values())]] + [
            [
                f"{column} = {group} ({entry['rows']})",
                *(_shown(entry.get(n)) for n in scores["all"]),
            ]
            for column, groups in scores["groups"].items()
            for group, entry in groups.items()
        ]
        curves = scores.get("survival", {"curve": (), "calibration": ()})
        rows["curve"] = [[f"{at['time']:g}", *_said(at)] for at in curves["curve"]]
        rows["curve_groups"] = [
            [f"{horizon['time']:g}", str(each["rows"]), *_said(each)]
            for horizon in curves["calibration"]
            for each in horizon["groups"]
        ]
    if run:
        models = {"this model": run["scores"], **run["baselines"]}
        rows["run_rows"] = [
            [name, *(_number(each.get(score)) for score in run["scores"])]
            for name, each in models.items()
        ]
        rows["sent"] = [
            [way, str(entry["messages"]), f"{entry['bytes']:,}"]
            for way, entry in (run["ledger"] or {}).get("sent", {}).items()
        ]
        rows["found"] = [
            [
                f"{each['observer']} of {each['owner']}",
                f"{each['target']} from {each['channel']}",
                f"{each['advantage']:.3f}",
                each["verdict"],
            ]
            for each in (run["audit"] or {}).get("findings", ())
        ]
    filters: dict[str, Callable[..., str]] = {"cell": _cell, "json": json.dumps}
    values = {"scores": None, "run": None, "private": None, **written, **rows}
    predicts = _predicts(written["task"])
    return markdown_page("dovetail.models", "card.md", filters, predicts=predicts, **values)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _predicts(task: Mapping[str, Any]) -> str:
    """Description of what a model predicts."""
    if task["kind"] == "classification":
        return f"one of {', '.join(map(str, task['classes'][:20]))}"
    if task["kind"] == "survival":
        return f"when an event comes, up to {task['cuts'][-1]:g}"
    if "labels" in task:
        shown = ", ".join(map(str, task["labels"][:20]))
        return f"{len(task['labels'])} labels at once: {shown}"
    return "a number"


def _said(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Share without event: what the model says, and Kaplan and Meier's."""
    return _number(entry["said"]), _number(entry["was"])


def _plain(value: Any) -> Any:
    """The value with texts shown as they are: no tag, no link, no picture, one line."""
    if isinstance(value, Mapping):
        return {_plain(name): _plain(value) for name, value in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if not isinstance(value, str):
        return value
    text = " ".join(value.replace("&", "&amp;").replace("<", "&lt;").split())
    return re.sub(r"([\\`\[\]])", r"\\\1", text)


def _shown(entry: Mapping[str, Any] | None) -> str:
    if not isinstance(entry, Mapping):
        return ""
    interval = entry["interval"]
    spread = f" ({interval[0]:.4g} to {interval[1]:.4g})" if interval else ""
    return f"{entry['value']:.4g}{spread}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else ""


def _range(column: Mapping[str, Any]) -> list[str]:
    name, kind = column["name"], column["kind"]
    if "features" in column:
        has = f"{column['features']} features"
    elif kind == "category":
        known = [
            each if len(each) <= _LONGEST else f"{each[:_LONGEST]}..."
            for each in column["categories"][:8]
        ]
        has = ", ".join(known) + (", ..." if len(column["categories"]) > 8 else "")
    elif "low" not in column:
        has = f"{column['mean']:.4g} ± {column['std']:.4g}"
    else:
        text = day_text if kind == "date" else (lambda value: f"{value:.6g}")
        has = f"{text(column['low'])} to {text(column['high'])}"
    return [name, _read_as(column.get("read_as", {})), kind, has, str(column.get("missing", ""))]


def _read_as(reading: Mapping[str, Any]) -> str:
    """A column's kind, and how its texts are read; "" in a card of a model that kept none."""
    parts = [reading.get("kind", "")]
    if reading.get("kind") == "date":
        parts.append(reading.get("format", "ISO 8601"))
    if reading.get("decimal") == ",":
        parts.append("decimal comma")
    if reading.get("without"):
        parts.append(f"without {' '.join(map(json.dumps, reading['without']))}")
    if reading.get("lowercase"):
        parts.append("in lower case")
    if reading.get("missing"):
        parts.append(f"no value: {', '.join(reading['missing'])}")
    return ", ".join(parts)
