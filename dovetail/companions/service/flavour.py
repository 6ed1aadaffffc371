"""A model as MLflow keeps and serves it: a ``pyfunc`` that ``dovetail.load`` reads, with no pickle.

``mlflow models serve`` and ``mlflow.pyfunc.load_model`` load it where Dovetail is installed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from dovetail import __version__
from dovetail.data import Classification, MultiLabel, MultiTarget, TableEncoder
from dovetail.errors import ConfigError
from dovetail.models import Model, load
from dovetail.models.exported import OnnxModel
from dovetail.models.exported import load as load_any
from dovetail.settings.labels import prediction_name

#: What MLflow imports to load it.
LOADER = "dovetail.companions.service.flavour"


class Pyfunc:
    """Model as MLflow calls it: a DataFrame of raw columns in, a DataFrame of predictions out."""

    def __init__(self, model: Model | OnnxModel) -> None:
        self.model = model

    def predict(self, rows: Any, params: dict[str, Any] | None = None) -> Any:
        """The class and each class's probability, or the value; columns as of dovetail predict.

        Args:
            rows: a DataFrame.
            params: "allow_unseen": take categories unseen in training as missing.
        """
        import pandas as pd

        unseen = bool((params or {}).get("allow_unseen", False))
        prediction = self.model.predictions(rows, allow_unseen=unseen)
        columns = {prediction_name(self.model.about.get("label")): prediction.values}
        if prediction.labels:
            columns = {name: prediction.values[:, i] for i, name in enumerate(prediction.labels)}
        if prediction.probabilities is not None:
            for index, name in enumerate(prediction.labels or prediction.classes):
                columns[f"p({name})"] = prediction.probabilities[:, index]
        return pd.DataFrame(columns)


def _load_pyfunc(path: str) -> Pyfunc:
    """Model that MLflow keeps, loaded; called by MLflow."""
    return Pyfunc(load_any(path))


def signature(model: Model) -> Any:
    """MLflow's word for which columns go in and come out."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec
    from mlflow.types.schema import AnyType

    columns: list[ColSpec | TensorSpec] = []
    for encoder in model.inputs.values():
        assert isinstance(encoder, TableEncoder)
        for column in encoder.fitted:
            kind: Any = DataType.string if column.is_text else DataType.double
            if column.seen is not None and getattr(column.seen, "what", "") == "date":
                kind = DataType.datetime
            if getattr(column, "categories", ()) == ("false", "true"):
                kind = AnyType()  # type: ignore[no-untyped-call]  # booleans, or text of them
            columns.append(ColSpec(kind, column.name, required=False))
    label = prediction_name(model.about.get("label"))
    out: list[ColSpec | TensorSpec] = [ColSpec(DataType.double, label)]
    if isinstance(model.task, Classification):
        is_text = isinstance(model.task.classes[0], str)
        out = [ColSpec(DataType.string if is_text else DataType.long, label)]
        out += [ColSpec(DataType.float, f"p({name})") for name in model.task.classes]
    if isinstance(model.task, MultiTarget):
        out = [ColSpec(DataType.double, name) for name in model.task.labels]
    if isinstance(model.task, MultiLabel):
        out = [ColSpec(DataType.long, name) for name in model.task.labels]
        out += [ColSpec(DataType.float, f"p({name})") for name in model.task.labels]
    params = ParamSchema([ParamSpec("allow_unseen", DataType.boolean, False)])
    return ModelSignature(Schema(columns), Schema(out), params)


def save_mlflow(folder: Path, out: Path) -> Path:
    """Write a model as a folder of MLflow's.

    Raises:
        ModelError: no model there.
        ConfigError: MLflow is not installed, the model takes images, or the folder is there.
    """
    pyfunc = _pyfunc()
    model = _of_columns(folder)
    if out.exists():
        raise ConfigError(f"{out} is there already; name a folder that is not")
    with _advice_unsaid():
        pyfunc.save_model(str(out), **_given(folder, model))
    return out


def log_mlflow(folder: Path, *, uri: str | None, experiment: str, name: str) -> str:
    """Log a model to MLflow as a run of an experiment; what ``mlflow models serve -m`` takes.

    Raises:
        ModelError: no model there.
        ConfigError: MLflow is not installed or cannot be reached, or the model takes images.
    """
    pyfunc = _pyfunc()
    model = _of_columns(folder)
    import mlflow

    try:
        if uri is not None:
            mlflow.set_tracking_uri(uri)
        mlflow.set_experiment(experiment)
        with mlflow.start_run(run_name=name):
            for file in ("card.md", "card.json"):
                if (folder / file).exists():
                    mlflow.log_artifact(str(folder / file))
            with _advice_unsaid():
                logged = pyfunc.log_model(name=name, **_given(folder, model))
    except Exception as error:  # MLflow's, SQLAlchemy's, requests'
        cause = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"MLflow at {uri or 'its default store'} cannot be used ({cause[0][:300]}); see --uri"
        ) from None
    return str(logged.model_uri)


def _given(folder: Path, model: Model) -> dict[str, Any]:
    return {
        "loader_module": LOADER,
        "data_path": str(folder),
        "signature": signature(model),
        "pip_requirements": [f"dovetail-fl=={__version__}"],
    }


def _of_columns(folder: Path) -> Model:
    model = load(folder)
    if not all(isinstance(model.inputs.get(name), TableEncoder) for name in model.shapes):
        raise ConfigError(
            f"{folder}: the model of party {model.party!r} takes images or arrays; MLflow serves "
            "tables"
        )
    return model


@contextmanager
def _advice_unsaid() -> Iterator[None]:
    """MLflow advises its users by warnings; ours did not write what these are about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _pyfunc() -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        with _advice_unsaid():  # of its own type hints, each time it is imported
            return import_module("mlflow.pyfunc")  # ``from mlflow import pyfunc`` waits for its use
    except ImportError:
        raise ConfigError(
            "MLflow's models need packages that are not installed here; "
            "pip install 'dovetail-fl[track]' pandas"
        ) from None
