"""A model as one ONNX file: reads raw columns, predicts by onnxruntime; no weights of torch."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dovetail import data as dd
from dovetail.data.frames import series_like
from dovetail.data.preprocessing import Input, input_from_json
from dovetail.data.task import Classification, Regression, Task, task_from_json
from dovetail.data.vectors import VectorColumn
from dovetail.errors import DataError, ModelError
from dovetail.models import Model
from dovetail.models.calibration import radius_of
from dovetail.models.decisions import decision_after_calibration
from dovetail.models.metrics import all_scores
from dovetail.models.model_folders import model_folder
from dovetail.models.networks import Shape
from dovetail.models.onnx_files import check_graph, open_session
from dovetail.models.prediction import Prediction, prediction_of
from dovetail.models.raw import read_rows, table_of
from dovetail.models.saved import Raw, line_of
from dovetail.models.saved import load as load_folder
from dovetail.models.specs import NetworkSpec
from dovetail.settings.labels import prediction_name

#: Where the file says what model.json says, less the network.
METADATA = "dovetail"
FORMAT = 1
#: Input of whole images; a model's blocks are parts of them.
IMAGES = "images"


@dataclass(eq=False)
class OnnxModel:
    """A model in an ONNX file; predicts raw rows as ``Model`` does.

    Attributes:
        party, task, shapes, inputs, about: as of ``Model``.
        session: onnxruntime's.
        outputs: names of the file's outputs: class and probabilities, or the value.
        rows: of one run at most, so that its values fit in memory; None: any number.
    """

    party: str
    task: Task
    shapes: Mapping[str, Shape]
    inputs: Mapping[str, Input]
    session: Any
    outputs: tuple[str, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    spec: NetworkSpec | None = None
    any_blocks: bool = False
    rows: int | None = None

    def __repr__(self) -> str:
        """As of ``Model``."""
        return line_of(self.party, self.about, "ONNX model")

    @property
    def classes(self) -> tuple[str | int, ...]:
        """The classes, in the order of the columns of ``predict_proba``; () for a regression."""
        return self.task.classes if isinstance(self.task, Classification) else ()

    def predict(self, x: Raw, *, allow_unseen: bool = False) -> Any:
        """(N,) class or value of each row of raw columns; as of ``Model.predict``."""
        prediction = self.predictions(x, allow_unseen=allow_unseen)
        name = prediction_name(self.about.get("label"))
        return series_like(x, prediction.values, name=name, names=prediction.labels)

    def predictions(
        self, x: Raw, *, allow_unseen: bool = False, coverage: float | None = None
    ) -> Prediction:
        """Class or value of each row, and how sure the model is; as of ``Model.predictions``.

        Raises:
            DataError: columns or values that do not fit the model.
        """
        if coverage is not None:
            radius = radius_of(self.about, coverage, party=self.party)
            return self.predictions(x, allow_unseen=allow_unseen).conformal(radius)
        rows = read_rows(self, x, allow_unseen=allow_unseen)
        return self.run(self.feeds_of(x)).times(rows.exposure)

    def predict_proba(self, x: Raw, *, allow_unseen: bool = False) -> np.ndarray:
        """(N, C) probability of each of ``classes``.

        Raises:
            ModelError: a model that predicts numbers.
        """
        return self.predictions(x, allow_unseen=allow_unseen).probabilities_of(self.party)

    def score(
        self, x: Raw, *, label: str | None = None, allow_unseen: bool = False
    ) -> dict[str, float]:
        """How right it is on raw rows that have a label; as of ``Model``."""
        name = str(self.about.get("label") if label is None else label)
        rows = read_rows(self, x, label=name, allow_unseen=allow_unseen)
        if rows.labels is None:
            raise DataError(f"there is no label {name!r} to score against")
        prediction = self.run(self.feeds_of(x))
        truth = dd.encode_labels(self.task, rows.labels.values, rows.labels.missing, label=name)
        present = torch.from_numpy(np.flatnonzero(~rows.labels.missing))
        if isinstance(self.task, Classification):
            assert prediction.probabilities is not None
            outputs = torch.from_numpy(prediction.probabilities).clamp(min=1e-12).log()
        elif not isinstance(self.task, Regression):
            outputs = torch.from_numpy(self._results(self.feeds_of(x))[0])
        else:
            standardised = (prediction.values - self.task.mean) / self.task.scale
            outputs = torch.from_numpy(standardised)[:, None]
        decision = decision_after_calibration(self.about)
        threshold = None if decision is None else decision.threshold
        return all_scores(self.task, outputs[present], truth[present], threshold=threshold)

    def run(self, feeds: Mapping[str, np.ndarray]) -> Prediction:
        """Prediction of the file for named inputs, unchecked."""
        results = self._results(feeds)
        if not isinstance(self.task, (Classification, Regression)):
            return prediction_of(self.task, results[0])
        if len(results) == 1:
            return Prediction(results[0])
        return Prediction(np.asarray(results[0]), results[1], self.classes)

    def _results(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs of the file, for some rows at a time."""
        feeds = {**feeds, **self._vectors(feeds)}
        num_rows = max(map(len, feeds.values()), default=0)
        step = self.rows or max(num_rows, 1)
        names, pieces = list(self.outputs), []
        for start in range(0, max(num_rows, 1), step):
            rows = {name: values[start : start + step] for name, values in feeds.items()}
            pieces.append(self.session.run(names, rows))
        return [np.concatenate(each) for each in zip(*pieces, strict=True)]

    def _vectors(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The inputs of columns of which a text becomes several numbers."""
        encoders = [each for each in self.inputs.values() if isinstance(each, dd.TableEncoder)]
        return {
            column.name: column.vectors(feeds[column.name][:, 0])
            for encoder in encoders
            for column in encoder.fitted
            if isinstance(column, VectorColumn)
        }

    def feeds(self, table: dd.Table) -> dict[str, np.ndarray]:
        """The file's inputs for all rows of a table."""
        feeds: dict[str, np.ndarray] = {}
        for encoder in self.inputs.values():
            assert isinstance(encoder, dd.TableEncoder)
            feeds |= {name: values[:, None] for name, values in encoder.raw(table).items()}
        return feeds

    def feeds_of(self, x: Raw) -> dict[str, np.ndarray]:
        """The file's inputs for raw rows: of a table, or whole images."""
        if any(isinstance(each, dd.TableEncoder) for each in self.inputs.values()):
            return self.feeds(table_of(x))
        whole = dd.read_images(Path(str(x)))
        pixels = (whole.test or whole.train).x
        expected = next(each for each in self.session.get_inputs() if each.name == IMAGES)
        if list(pixels.shape[1:]) != expected.shape[1:]:
            raise DataError(
                f"{x}: the ONNX file takes whole images of {tuple(expected.shape[1:])} (channels, "
                f"height, width), got {tuple(pixels.shape[1:])}"
            )
        return {IMAGES: pixels.numpy()}


def load(path: str | Path, *, network: Any = None) -> Model | OnnxModel:
    """The model in a folder that ``Model.save`` wrote, or in a file of ``dovetail export``.

    Args:
        path: the folder, or that of a run with one model, or a file whose name ends in ``.onnx``.
        network: for a model that was trained with a network of your own: the module, class,
            function or import path that was its ``encoder``.

    Raises:
        ModelError: no model there, files that cannot be read or do not belong together.
    """
    if Path(path).suffix.lower() == ".onnx":
        return load_onnx(path)
    return load_folder(model_folder(Path(path)), network=network)


def load_onnx(path: str | Path, *, threads: int | None = None) -> OnnxModel:
    """The model in an ONNX file that ``dovetail export`` wrote; ``threads`` of one run of it.

    Raises:
        ModelError: no such file, or one of another origin.
        ConfigError: onnxruntime is not installed.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"there is no file {path}; dovetail export writes one")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror})") from None
    return of_bytes(content, where=str(path), threads=threads)


def of_bytes(
    content: bytes, *, where: str, threads: int | None = None, ours: bool = False
) -> OnnxModel:
    """The model in the bytes of an ONNX file.

    Args:
        content: the bytes.
        where: what errors call them.
        threads: of one run.
        ours: this process wrote them, of a model's folder: their memory is not looked at.

    Raises:
        ModelError: bytes of another origin.
        ConfigError: onnxruntime is not installed.
    """
    memory = None if ours else check_graph(content, where=where)
    session = open_session(content, where=where, threads=threads)
    stored = session.get_modelmeta().custom_metadata_map.get(METADATA)
    if stored is None:
        raise ModelError(
            f"{where} was not written by dovetail export: it does not say which columns it reads"
        )
    try:
        metadata = json.loads(stored)
        if metadata.pop("format") != FORMAT:
            raise ModelError(f"{where} is of another format; use the dovetail that wrote it")
        blocks = metadata.pop("blocks")
        return OnnxModel(
            party=str(metadata.pop("party")),
            task=task_from_json(metadata.pop("task")),
            shapes={name: tuple(block["shape"]) for name, block in blocks.items()},
            inputs={
                name: input_from_json(block["input"])
                for name, block in blocks.items()
                if block["input"] is not None
            },
            session=session,
            outputs=tuple(each.name for each in session.get_outputs()),
            about=metadata,
            rows=None if memory is None else memory.rows,
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        cause = textwrap.shorten(repr(error), 300, placeholder=" …")
        raise ModelError(f"{where} is damaged ({cause}); export it again") from None
