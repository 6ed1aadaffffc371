"""A model that answers requests: opened whole, and again when its folder changes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dovetail import data as dd
from dovetail.companions.service.export import onnx_bytes, solo_of
from dovetail.companions.service.rows import RowReader
from dovetail.data.fitted import CategoryColumn
from dovetail.data.kinds import day_text
from dovetail.data.task import Classification, MultiLabel, MultiTarget, Task
from dovetail.data.vectors import VectorColumn
from dovetail.errors import DovetailError, ModelError
from dovetail.models import Model, load
from dovetail.models.exported import OnnxModel, load_onnx, of_bytes
from dovetail.models.prediction import Prediction

#: Of one run of a model: threads that wait for each other cost more than a small run takes.
_THREADS = 1


@dataclass(frozen=True, eq=False)
class Served:
    """Model as it is at this moment.

    Attributes:
        name: what requests call it.
        path: its folder, or its ONNX file.
        onnx: predicts.
        reader: reads its rows.
        version: the first twelve digits of the sum of what it was read from.
        since: when it was read, in seconds since 1970.
        joint: the joint model around it, where there is one.
    """

    name: str
    path: Path
    onnx: OnnxModel
    reader: RowReader
    version: str
    since: float = field(default_factory=time.time)
    joint: Model | None = None

    @property
    def label(self) -> str:
        return str(self.onnx.about.get("label", "prediction"))

    def predict(self, feeds: Mapping[str, np.ndarray]) -> Prediction:
        """Prediction for these columns."""
        return self.onnx.run(feeds)

    def schema(self) -> dict[str, Any]:
        """JSON Schema of one row; what it answers, beside it."""
        columns = self.reader.columns
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"A row for {self.name}",
            "type": "object",
            "properties": {name: _property(column) for name, column in columns.items()},
            "required": list(columns),
            "additionalProperties": True,  # ignored, and named in the answer
            "x-model": self.name,
            "x-version": self.version,
            "x-party": self.onnx.party,
            "x-label": self.label,
            "x-answer": _answered_by(self.onnx.task),
        }

    def card(self) -> dict[str, Any] | None:
        """Contents of card.json beside the model, if it is there."""
        try:
            written = json.loads((self.path / "card.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return written if isinstance(written, dict) else None


@dataclass(frozen=True, eq=False)
class Answered:
    """Answer of a joint model about rows.

    Attributes:
        prediction: of all rows; None where no partner has a part in any.
        by: of each row the partners that have a part in it; () for the solo model.
        missing: partner -> why it did not answer.
    """

    prediction: Prediction | None
    by: Sequence[Sequence[str]]
    missing: dict[str, str]


def _answered_by(task: Task) -> dict[str, Any]:
    """Schema of a row's answer."""
    if isinstance(task, Classification):
        return {"kind": "class", "classes": list(task.classes)}
    kind: dict[str, Any] = {"kind": task.predicts.removeprefix("a ")}
    if isinstance(task, (MultiLabel, MultiTarget)):
        kind["labels"] = list(task.labels)
    return kind


def _property(column: Any) -> dict[str, Any]:
    if isinstance(column, CategoryColumn):
        schema: dict[str, Any] = {"type": ["string", "null"]}
        if not column.other:
            schema = {"enum": [*column.categories, None]}
        if column.seen is not None and column.seen.counts:
            most = int(np.argmax(column.seen.counts))
            schema["examples"] = [column.categories[most]]
        return schema
    if isinstance(column, VectorColumn):
        return {"type": ["string", "null"], "description": "any text"}
    if column.seen is not None and column.seen.what == "date":
        return {
            "type": ["string", "null"],
            "format": "date-time",
            "examples": [day_text(column.median)],
            "description": "a date; in training "
            f"{day_text(column.seen.low)} to {day_text(column.seen.high)}",
        }
    schema = {"type": ["number", "null"], "examples": [float(f"{column.median:.6g}")]}
    if column.seen is not None:
        schema["description"] = f"in training {column.seen.low:g} to {column.seen.high:g}"
    return schema


def open_served(name: str, path: Path) -> Served:
    """The model in a folder or ONNX file, ready to answer.

    Raises:
        ModelError: no whole model there, or one that does not predict alone from columns.
    """
    joint = None
    if path.suffix.lower() == ".onnx":
        onnx = load_onnx(path, threads=_THREADS)
        version = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    else:
        version = folder_version(path)
        model = load(path)
        alone = solo_of(model)
        joint = model if alone is not model and alone.network is not model.network else None
        onnx = of_bytes(onnx_bytes(alone), where=str(path), threads=_THREADS, ours=True)
    encoders = [each for each in onnx.inputs.values() if isinstance(each, dd.TableEncoder)]
    if not encoders or len(encoders) < len(onnx.inputs) or len(onnx.inputs) < len(onnx.shapes):
        raise ModelError(
            f"{path}: the model of party {onnx.party!r} takes images or arrays, and a service "
            "answers rows of columns; use dovetail predict, or the file of dovetail export"
        )
    return Served(name, path, onnx, RowReader(encoders), version, joint=joint)


def folder_version(path: Path) -> str:
    """The first digits of the sum of a model's two files.

    Raises:
        ModelError: they cannot be read.
    """
    try:
        content = (path / "model.json").read_bytes()
    except OSError as error:
        raise ModelError(f"{path} is no model folder ({error.strerror})") from None
    return hashlib.sha256(content).hexdigest()[:12]  # which has the sum of the weights


class Shelf:
    """The models that are served, by name; each is replaced whole or not at all.

    Args:
        paths: name -> folder or ONNX file.
        warn: called with why a changed model was not taken.

    Raises:
        ModelError: one that cannot be opened.
    """

    def __init__(self, paths: Mapping[str, Path], warn: Callable[[str], None]) -> None:
        self._paths = dict(paths)
        self._warn = warn
        self._seen = {name: _stamp(path) for name, path in paths.items()}
        self._models = {name: open_served(name, path) for name, path in paths.items()}

    @property
    def models(self) -> Mapping[str, Served]:
        return self._models

    def changed(self) -> list[str]:
        """Names whose files are not those that were read."""
        return [name for name, path in self._paths.items() if _stamp(path) != self._seen[name]]

    def reload(self, names: list[str] | None = None) -> dict[str, str]:
        """Read models again; name -> version, or why the old one goes on answering."""
        news = {}
        for name in self._paths if names is None else names:
            stamp = _stamp(self._paths[name])
            try:
                fresh = open_served(name, self._paths[name])
            except (DovetailError, OSError) as error:
                news[name] = f"not read: {error}"
                self._seen[name] = stamp  # told of once; tried again when it changes again
                self._warn(f"model {name!r} is not read again, the old one answers: {error}")
                continue
            self._seen[name] = stamp
            self._models[name] = fresh
            news[name] = fresh.version
        return news


def _stamp(path: Path) -> tuple[int, ...]:
    """Times and sizes that change when a model is written."""
    file = path if path.suffix.lower() == ".onnx" else path / "model.json"
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino
