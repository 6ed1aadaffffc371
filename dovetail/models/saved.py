"""A model that its party uses alone: predicts, is saved to a folder, and is loaded from it.

The folder holds ``model.safetensors`` (the weights) and ``model.json`` (everything else: the
network's layers, the task, and how raw columns become network inputs).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from dovetail import data as dd
from dovetail.data.frames import Frame, series_like
from dovetail.data.preprocessing import Input, TableEncoder, input_from_json
from dovetail.data.tables import Table
from dovetail.errors import DataError, ModelError
from dovetail.models.calibration import calibration_of, radius_of
from dovetail.models.decisions import Decision, decision_after_calibration
from dovetail.models.explaining import Explanation, explain
from dovetail.models.folders import read_folder, rebuilding, rebuilt, write_folder
from dovetail.models.metrics import all_scores
from dovetail.models.networks import OwnNetwork, Shape, rowwise
from dovetail.models.prediction import Prediction, prediction_of
from dovetail.models.raw import read_rows, table_of, usable_rows
from dovetail.models.shown import few, html_table
from dovetail.models.specs import NetworkSpec, spec_from_json
from dovetail.settings.labels import prediction_name

FORMAT = 2

#: Rows of so many numbers are made to check a network, whatever its weights.
_NARROW = 1_000_000

#: What ``model.json`` says of a model itself; ``about`` adds the rest.
_RESERVED_KEYS = ("format", "party", "task", "network", "blocks")

#: (N, ...) rows of the only block, or block -> (N, ...) rows.
Rows = Tensor | Mapping[str, Tensor]

#: A table with raw columns: a path or SELECT, a DataFrame of pandas, polars or pyarrow; of images
#: the path of an .npz file or a folder.
Raw = str | Path | Frame | Table


class OneOutput(nn.Module):
    """Output of a network by itself: (B, 1), or of log odds (B, 2)."""

    def __init__(self, network: nn.Module, index: int, *, odds: bool) -> None:
        super().__init__()
        self.network, self.index, self.odds = network, index, odds

    def forward(self, x: Any) -> Tensor:
        output: Tensor = self.network(x)[:, self.index, None]
        return torch.cat([torch.zeros_like(output), output], dim=1) if self.odds else output


def line_of(party: str, about: Mapping[str, Any], what: str = "model") -> str:
    """A model in a line: whose it is and what it predicts."""
    predicts = ", ".join(f"{key} {about[key]}" for key in ("label", "method") if key in about)
    return f"<{what} of {party}{predicts and ': '}{predicts}>"


@dataclass(eq=False)
class Model:
    """The network of one party, with what is needed to use it on raw data.

    A network takes a (B, ...) tensor where the model has one block, and a dict block -> (B, ...)
    tensor where it has several; it gives (B, outputs). One whose attribute ``any_blocks`` is True
    also takes a dict with some of its blocks only.

    Attributes:
        party: whose model it is.
        task: what it predicts.
        network: predicts.
        spec: what the network is built from; None for a network of your own.
        shapes: block -> shape of one row of network input.
        inputs: block -> how raw columns or images become that row; a block is left out where only
            tensors are given.
        about: more to keep with it (method, label, seed, ...), JSON-ready.
    """

    party: str
    task: dd.Task
    network: nn.Module
    spec: NetworkSpec | None
    shapes: Mapping[str, Shape]
    inputs: Mapping[str, Input] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Whose it is and what it predicts, in a line; ``network`` prints its layers."""
        return line_of(self.party, self.about)

    def _repr_html_(self) -> str:
        columns = [
            name for input_ in self.inputs.values() for name in getattr(input_, "columns", ())
        ]
        rows = [
            ("party", self.party),
            *(
                (key, self.about[key])
                for key in ("label", "method", "learner")
                if key in self.about
            ),
            ("classes", few(self.classes)) if self.classes else ("predicts", self.task.predicts),
            *([("columns", f"{len(columns)}: {few(columns)}")] if columns else ()),
        ]
        return html_table(rows, head=("model", ""), note="predicts alone; asks no other party")

    @property
    def any_blocks(self) -> bool:
        """Whether it predicts from some of its blocks, too."""
        return bool(getattr(self.network, "any_blocks", False))

    def outputs(self, x: Rows, *, batch_size: int = 512) -> Tensor:
        """(N, C) logits or (N, 1) standardised values; asks no other party.

        Raises:
            DataError: blocks or rows of another shape than the model was trained on.
        """
        blocks = self._blocks(x)
        given = blocks if len(self.shapes) > 1 else next(iter(blocks.values()))
        width = self.task.num_outputs
        outputs = rowwise(self.network, given, batch_size=batch_size, width=width)
        calibration = calibration_of(self.about)
        return outputs if calibration is None else calibration.applied(outputs)

    def _blocks(self, x: Rows) -> dict[str, Tensor]:
        """Block -> rows, in the model's order.

        Raises:
            DataError: blocks that do not fit the model.
        """
        if isinstance(x, Tensor):
            if len(self.shapes) > 1:
                raise DataError(
                    f"the model of party {self.party!r} takes the blocks {list(self.shapes)}; give "
                    "a dict block -> rows, got one tensor"
                )
            x = {next(iter(self.shapes)): x}
        unknown = x.keys() - self.shapes.keys()
        missing = self.shapes.keys() - x.keys()
        if unknown or not x or (missing and not self.any_blocks):
            raise DataError(
                f"the model of party {self.party!r} takes "
                f"{'one or more of ' if self.any_blocks else ''}the blocks {list(self.shapes)}, "
                f"got {list(x)}"
            )
        for name, block in x.items():
            if tuple(block.shape[1:]) != self.shapes[name]:
                which = f" of block {name!r}" if len(self.shapes) > 1 else ""
                raise DataError(
                    f"the model of party {self.party!r} takes rows{which} of shape "
                    f"{self.shapes[name]}, got {tuple(block.shape[1:])}"
                )
        counts = {name: len(block) for name, block in x.items()}
        if len(set(counts.values())) > 1:
            raise DataError(
                f"the blocks for the model of party {self.party!r} differ in rows: {counts}"
            )
        return {name: x[name] for name in self.shapes if name in x}

    @property
    def decision(self) -> Decision | None:
        """From which probability on the second of two classes is predicted; None: from a half."""
        return decision_after_calibration(self.about)

    @property
    def classes(self) -> tuple[str | int, ...]:
        """The classes, in the order of the columns of ``predict_proba``; () for a regression."""
        return self.task.classes if isinstance(self.task, dd.Classification) else ()

    def predict(
        self,
        x: Rows | Raw,
        *,
        batch_size: int = 512,
        allow_unseen: bool = False,
        partial: bool = False,
    ) -> Any:
        """(N,) class or value of each row; asks no other party (APFed, Eq. 11).

        A NumPy array; of a DataFrame of pandas a Series with its index, of polars a Series. Of
        several labels (N, L), or a DataFrame. Of a model of events an array, in the order of ids.
        ``predictions`` gives probabilities, sets and intervals as well, and takes the same.
        """
        prediction = self.predictions(
            x, batch_size=batch_size, allow_unseen=allow_unseen, partial=partial
        )
        name = prediction_name(self.about.get("label"))
        if any(getattr(each, "events", None) for each in self.inputs.values()):
            return prediction.values  # a value a sample, not a row: no frame's index
        return series_like(x, prediction.values, name=name, names=prediction.labels)

    def predictions(
        self,
        x: Rows | Raw,
        *,
        batch_size: int = 512,
        allow_unseen: bool = False,
        coverage: float | None = None,
        partial: bool = False,
    ) -> Prediction:
        """Class or value of each row, and how sure the model is; asks no other party.

        Args:
            x: raw columns: a DataFrame, or a path to a table; or (N, ...) network inputs, block ->
                inputs where the model has several.
            batch_size: rows at a time.
            allow_unseen: of raw columns: take categories unseen in training as missing.
            coverage: also give the set of classes, or the interval, that holds the truth in this
                share of rows such as those that the model was calibrated on.
            partial: of raw columns: predict the rows that can be used; ``errors`` says of each of
                the others why not. Else one such row refuses them all.

        Raises:
            DataError: columns, blocks or rows of another shape than the model was trained on.
            ModelError: outputs that are not finite; a coverage without ``dovetail calibrate``.
        """
        if partial:
            usable, refused, num_rows = usable_rows(self, x, allow_unseen=allow_unseen)
            predicted = self.predictions(
                usable, batch_size=batch_size, allow_unseen=allow_unseen, coverage=coverage
            )
            return predicted.spread(refused, num_rows)
        if coverage is not None:
            radius = radius_of(self.about, coverage, party=self.party)
            plain = self.predictions(x, batch_size=batch_size, allow_unseen=allow_unseen)
            return plain.conformal(radius)
        exposure = None
        if not isinstance(x, (Tensor, Mapping)):
            rows = read_rows(self, x, allow_unseen=allow_unseen)
            x, exposure = rows.x, rows.exposure
            for clause in rows.far:
                warnings.warn(clause, stacklevel=2)
        outputs = self.outputs(x, batch_size=batch_size)
        num_lost = int((~outputs.isfinite().all(dim=1)).sum())
        if num_lost:
            raise ModelError(
                f"the model of party {self.party!r} gives {num_lost} of {len(outputs)} rows "
                "outputs that are not finite: its training went astray, or these rows are far "
                "from those it was trained on"
            )
        if isinstance(self.task, dd.Classification):
            classes = np.array(self.task.classes)
            probabilities = outputs.softmax(dim=1)
            best = probabilities.argmax(dim=1).numpy()
            if self.decision is not None and len(classes) == 2:
                best = (probabilities[:, 1].double() >= self.decision.threshold).long().numpy()
            return Prediction(classes[best], probabilities.numpy(), self.task.classes)
        return prediction_of(self.task, outputs.double().numpy()).times(exposure)

    def predict_proba(
        self, x: Rows | Raw, *, batch_size: int = 512, allow_unseen: bool = False
    ) -> np.ndarray:
        """(N, C) probability of each of ``classes``, or (N, L) of each of several labels.

        ``x`` is as of ``predict``.

        Raises:
            ModelError: a model that predicts numbers.
        """
        prediction = self.predictions(x, batch_size=batch_size, allow_unseen=allow_unseen)
        return prediction.probabilities_of(self.party)

    def score(
        self, x: Raw, *, label: str | None = None, allow_unseen: bool = False
    ) -> dict[str, float]:
        """How right it is on raw rows that have a label: accuracy, AUC, ..., or RMSE, MAE, R2.

        Args:
            x: raw columns and the label's.
            label: its column; None: what it was called in training.
            allow_unseen: take categories unseen in training as missing.

        Raises:
            DataError: columns that do not fit, or no label.
        """
        name = self.about.get("label") if label is None else label
        rows = read_rows(self, x, label=name, allow_unseen=allow_unseen)
        if rows.labels is None:
            raise DataError(
                f"the model of party {self.party!r} does not know what its label is called; say "
                "score(..., label=COLUMN)"
            )
        inputs, truth = rows.labelled(self.task, str(name))
        threshold = None if self.decision is None else self.decision.threshold
        return all_scores(self.task, self.outputs(inputs), truth, threshold=threshold)

    def explain(
        self,
        x: Raw,
        *,
        label: str | None = None,
        shared_rows: int = 200,
        seed: int = 0,
        allow_unseen: bool = False,
        to: Literal["shap"] | None = None,
    ) -> Explanation | Any:
        """Which columns it relies on: importance, what each adds to a row, and along the first few.

        Args:
            x: raw columns; with the label's, how important each is as well.
            label: its column; None: what it was called in training. Of several, the one that is
                explained.
            shared_rows: the first so many rows are reported one by one.
            seed: of the draws.
            allow_unseen: take categories unseen in training as missing.
            to: "shap": a ``shap.Explanation`` of what each column adds to a row, for shap's plots.

        Raises:
            DataError: columns that do not fit.
            ModelError: a model that takes no raw columns.
            ConfigError: shap is not installed.
        """
        if isinstance(self.task, (dd.MultiLabel, dd.MultiTarget)):
            if label not in self.task.labels:
                raise ModelError(
                    f"the model of party {self.party!r} has several labels, of which one is "
                    f"explained at a time; give label as one of {', '.join(self.task.labels)}"
                )
            return self.of_label(label).explain(
                x,
                label=label if table_of(x).has(label) else None,
                shared_rows=shared_rows,
                seed=seed,
                allow_unseen=allow_unseen,
                to=to,
            )
        rows = read_rows(self, x, label=label, allow_unseen=allow_unseen)
        inputs, truth, told_of = rows.x, None, np.arange(len(rows.ids))
        if rows.labels is not None and not rows.labels.missing.all():
            name = str(self.about.get("label") if label is None else label)
            inputs, truth = rows.labelled(self.task, name)
            told_of = np.flatnonzero(~rows.labels.missing)
        explanation = explain(self, inputs, truth, shared_rows=shared_rows, seed=seed)
        if to is None:
            return explanation
        table, values = table_of(x).take(told_of[:shared_rows]), dict[str, np.ndarray]()
        for encoder in self.inputs.values():
            if isinstance(encoder, TableEncoder):
                values |= encoder.raw(table)
        columns = [values[name].astype(object) for name in explanation.columns]
        return explanation.to_shap(np.column_stack(columns))

    def of_label(self, label: str) -> Model:
        """Model of one of several labels by itself; it is not saved.

        Raises:
            ModelError: it has no such label.
        """
        task = self.task
        if not isinstance(task, (dd.MultiLabel, dd.MultiTarget)) or label not in task.labels:
            raise ModelError(
                f"the model of party {self.party!r} has no label {label!r} among several"
            )
        index = task.labels.index(label)
        one: dd.Task = dd.Classification(("false", "true"))
        if isinstance(task, dd.MultiTarget):
            one = dd.Regression(task.means[index], task.scales[index])
        network = OneOutput(self.network, index, odds=isinstance(task, dd.MultiLabel))
        about = {**self.about, "label": label}
        return Model(self.party, one, network, None, self.shapes, self.inputs, about)

    def save(self, folder: str | Path) -> Path:
        """Write the model's folder, whole or not at all; an older model there is replaced.

        Raises:
            ModelError: the folder exists and holds something that is no model.
        """
        blocks = {
            name: {
                "shape": list(shape),
                "input": self.inputs[name].to_json() if name in self.inputs else None,
            }
            for name, shape in self.shapes.items()
        }
        description = {
            "format": FORMAT,
            "party": self.party,
            **self.about,
            "task": self.task.to_json(),
            "network": self.spec.to_json() if self.spec else {"kind": "custom"},
            "blocks": blocks,
        }
        return write_folder(folder, "model", description, self.network)


def load(folder: str | Path, *, network: Any = None) -> Model:
    """The model in a folder that ``Model.save`` wrote.

    Args:
        network: for a model that was trained with a network of your own: the module, class or
            function that was its ``encoder``, or the import path of an installed package that is
            one. Its weights are replaced by the model's. Nothing in the folder names code that is
            run.

    Raises:
        ModelError: no model there, files that cannot be read or do not belong together.
    """
    folder = Path(folder)
    description, weights = _read(folder)
    with rebuilding(folder, "model"):
        model, tensors = _around(description), safetensors.torch.load(weights)
        stored = description["network"]
        if network is not None and stored.get("kind") == "custom":
            network.load_state_dict(tensors)
            return replace(model, network=network.eval())
        if network is not None:
            own = OwnNetwork.installed if isinstance(network, str) else OwnNetwork.given
            part = "own" if "own" in stored else "encoder"
            stored = {**stored, part: own(network).to_json()}
        spec = spec_from_json(stored)
        rebuilt_network = _rebuilt(spec, model.shapes, model.task, tensors)
        return replace(model, network=rebuilt_network.eval(), spec=spec)


def described(folder: str | Path) -> Model:
    """A model without its network, which predicts nothing; also of a custom network.

    Raises:
        ModelError: see ``load``.
    """
    folder = Path(folder)
    description, _ = _read(folder)
    with rebuilding(folder, "model"):
        return _around(description)


def _read(folder: Path) -> tuple[dict[str, Any], bytes]:
    absent = "is no model folder: {} is missing; a run keeps its models in RUN/models/PARTY"
    return read_folder(folder, "model", format=FORMAT, absent=absent)


def _around(description: Mapping[str, Any]) -> Model:
    """All but its network."""
    blocks, label = description["blocks"], description.get("label")
    if not blocks:
        raise ModelError("a model has one block or more; copy the whole folder again")
    if not isinstance(label, str | None):
        raise ModelError("its label is no text; copy the whole folder again")
    return Model(
        party=description["party"],
        task=dd.task_from_json(description["task"]),
        network=nn.Identity(),
        spec=None,
        shapes={name: _shape(name, block["shape"]) for name, block in blocks.items()},
        inputs={
            name: input_from_json(block["input"])
            for name, block in blocks.items()
            if block["input"] is not None
        },
        about={name: value for name, value in description.items() if name not in _RESERVED_KEYS},
    )


def _shape(name: str, stored: Any) -> Shape:
    shape = tuple(stored)
    if not shape or not all(type(size) is int and size > 0 for size in shape):
        raise ModelError(f"the shape of block {name!r} is one or more sizes, got {list(shape)}")
    return shape


def _rebuilt(
    spec: NetworkSpec, shapes: Mapping[str, Shape], task: dd.Task, tensors: Mapping[str, Tensor]
) -> nn.Module:
    """The network of this spec.

    Raises:
        ModelError: a network that does not fit the model's blocks or task.
        RuntimeError: one that does not fit the weights.
    """

    def check(network: nn.Module) -> None:
        zeros = {name: torch.zeros(2, *shape) for name, shape in shapes.items()}
        with torch.no_grad():
            outputs = network(zeros if len(shapes) > 1 else next(iter(zeros.values())))
        if tuple(outputs.shape) != (2, task.num_outputs):
            raise ModelError(
                f"its network gives outputs of shape {tuple(outputs.shape[1:])}, its task needs "
                f"{task.num_outputs}; copy the whole folder again"
            )

    of_rows = all(len(shape) == 1 for shape in shapes.values())  # an image's maps are larger
    # A damaged description may have rows of any width.
    width = sum(math.prod(shape) for shape in shapes.values())
    narrow = width <= max(_NARROW, sum(each.numel() for each in tensors.values()))
    return rebuilt(spec.build, tensors, check, small=of_rows and narrow)
