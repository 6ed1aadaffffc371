"""A run as it goes on, in TensorBoard or MLflow: lines of ``metrics.jsonl``, settings, scores.

All of it is in the run folder anyway: a tracker that fails later is reported once and left out.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, get_args

from dovetail.errors import ConfigError
from dovetail.methods.outcome import number
from dovetail.runs.runfile import TrackerName

#: What a kind needs, of the extra ``track``.
_MODULES: Mapping[TrackerName, tuple[str, ...]] = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
}


class Tracker(Protocol):
    """Tracker of a run, in one place where runs are watched."""

    def line(self, line: Mapping[str, Any]) -> None:
        """Take one line of ``metrics.jsonl``."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """Take ``result.json``: the run is complete."""

    def close(self) -> None:
        """Let go; a run that has not finished is marked as stopped."""


def check(kinds: tuple[TrackerName, ...]) -> None:
    """Refuse what is not installed.

    Raises:
        ConfigError: saying how to install it.
    """
    for kind in kinds:
        if any(find_spec(module) is None for module in _MODULES[kind]):
            raise ConfigError(
                f"tracking with {kind!r} needs packages that are not installed here; "
                "pip install 'dovetail-fl[track]', or leave it out of track.to and --track"
            )


def numbers_and_texts(line: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, str]]:
    """The leaves of nested tables, by their path.

    >>> numbers_and_texts({"loss": 0.5, "missed": {"shop": 1}, "reasons": {"shop": "late"}})
    ({'loss': 0.5, 'missed/shop': 1.0}, {'reasons/shop': 'late'})
    """
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    for path, value in _leaves(line):
        if isinstance(value, int | float) and not isinstance(value, bool):
            numbers[path] = float(value)
        else:
            texts[path] = str(value)
    return numbers, texts


def _leaves(
    table: Mapping[str, Any], above: str = "", sign: str = "/"
) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        path = f"{above}{sign}{key}" if above else str(key)
        if isinstance(value, Mapping):
            yield from _leaves(value, path, sign)
        else:
            yield path, value


class _Axis:
    """At which step a line is shown: its epoch or round; those before the first are counted."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}

    def of(self, line: Mapping[str, Any]) -> tuple[str, int, dict[str, Any]]:
        """Variant, step, and what the line says; a search's trials begin with "before/"."""
        numbers = {
            key: value for key, value in line.items() if key not in ("variant", "epoch", "round")
        }
        variant = str(line["variant"])
        if step := number(line):
            return variant, step, numbers
        self._before[variant] = self._before.get(variant, -1) + 1
        return variant, self._before[variant], {"before": numbers}


def final_scores(result: Mapping[str, Any]) -> dict[str, float]:
    """Every score of ``result.json``, by its path.

    >>> final_scores({"parties": {"bank": {"auc": 0.9}}, "baselines": {"alone": {"auc": 0.8}}})
    {'parties/bank/auc': 0.9, 'baselines/alone/auc': 0.8}
    """
    kept = {key: result[key] for key in ("parties", "mean", "baselines") if key in result}
    return numbers_and_texts(kept)[0]


# --- TensorBoard ----------------------------------------------------------------------------------


class TensorBoard:
    """Event files in RUN/tensorboard/VARIANT, so that a method and its baselines share each chart.

    Args:
        folder: the run's.
        settings: the run file as resolved.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder = folder / "tensorboard"
        self._settings = settings
        self._axis = _Axis()
        self._writers: dict[str, Any] = {}
        shutil.rmtree(self._folder, ignore_errors=True)  # an earlier run's, or told again

    def _writer(self, name: str) -> Any:
        if name not in self._writers:
            from torch.utils.tensorboard import SummaryWriter

            self._writers[name] = SummaryWriter(str(self._folder / name))
        return self._writers[name]

    def line(self, line: Mapping[str, Any]) -> None:
        variant, step, metrics = self._axis.of(line)
        numbers, texts = numbers_and_texts(metrics)
        writer = self._writer(variant)
        for path, value in numbers.items():
            writer.add_scalar(path, value, step)
        for path, text in texts.items():
            writer.add_text(path, text, step)
        writer.flush()

    def finish(self, result: Mapping[str, Any]) -> None:
        settings = {
            path: value if isinstance(value, bool | int | float | str) else str(value)
            for path, value in _leaves(self._settings, sign=".")
        }
        scores = {f"final/{path}": value for path, value in final_scores(result).items()}
        self._writer(str(result["method"])).add_hparams(settings, scores, run_name=".")

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


# --- MLflow ---------------------------------------------------------------------------------------

#: Parameters and metrics in one request; MLflow's own limits are 100 and 1000.
_BATCH = 100


class MLflow:
    """Tracker of an MLflow run: metrics VARIANT/NAME at their epoch, settings as parameters.

    Args:
        name: of the run.
        settings: the run file as resolved.
        id: of the run; one that MLflow knows is gone on with.
        uri: of MLflow; None: its own choice (MLFLOW_TRACKING_URI, else ./mlflow.db).
        experiment: under which it is listed.

    Raises:
        ConfigError: MLflow cannot be reached.
    """

    def __init__(
        self, name: str, settings: Mapping[str, Any], *, id: str, uri: str | None, experiment: str
    ) -> None:
        # It is not for us to tell MLflow's makers who trains; and training does not wait minutes.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        from mlflow import MlflowClient

        for noisy in ("mlflow", "alembic"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        self._axis = _Axis()
        self._done = False
        try:
            self._client = MlflowClient(tracking_uri=uri)
            known_run = self._find(experiment, id)
            self.known = known_run is not None
            self._run: str = known_run or self._begin(name, id, settings)
        except Exception as error:  # MLflow's, SQLAlchemy's, requests'
            where = uri or os.environ.get("MLFLOW_TRACKING_URI") or "its default store"
            raise ConfigError(
                f"MLflow at {where} cannot be used ({_first_line(error)}); "
                "see track.uri and MLFLOW_TRACKING_URI"
            ) from None

    def _find(self, experiment: str, id: str) -> str | None:
        known = self._client.get_experiment_by_name(experiment)
        if known is None:
            self._experiment = self._client.create_experiment(experiment)
            return None
        self._experiment = known.experiment_id
        runs = self._client.search_runs([self._experiment], f"tags.`dovetail.id` = '{id}'")
        if not runs:
            return None
        self._client.update_run(runs[0].info.run_id, status="RUNNING")
        return str(runs[0].info.run_id)

    def _begin(self, name: str, id: str, settings: Mapping[str, Any]) -> str:
        from mlflow.entities import Param

        tags = {"dovetail.id": id, "method": str(settings["method"])}
        run = self._client.create_run(self._experiment, tags=tags, run_name=name)
        leaves = _leaves(settings, sign=".")
        params = [Param(_named(path), str(value)[:6000]) for path, value in leaves]
        for start in range(0, len(params), _BATCH):
            self._client.log_batch(run.info.run_id, params=params[start : start + _BATCH])
        return str(run.info.run_id)

    def _log(self, numbers: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_named(path), value, now, step) for path, value in numbers.items()]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._run, metrics=metrics[start : start + _BATCH])

    def line(self, line: Mapping[str, Any]) -> None:
        variant, step, metrics = self._axis.of(line)
        numbers, texts = numbers_and_texts({variant: metrics})
        self._log(numbers, step)
        for path, text in texts.items():
            self._client.set_tag(self._run, _named(path), text[:5000])

    def finish(self, result: Mapping[str, Any]) -> None:
        self._log({f"final/{path}": value for path, value in final_scores(result).items()}, 0)
        self._done = True

    def close(self) -> None:
        self._client.set_terminated(self._run, "FINISHED" if self._done else "KILLED")


def _named(path: str) -> str:
    """A name as MLflow allows it."""
    return re.sub(r"[^\w\-. :/]", "_", path)[:250]


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


# --- Any of them ----------------------------------------------------------------------------------


class Tracks:
    """Several trackers as one; a context. One that fails is reported once and left out.

    Args:
        kinds: which.
        folder: the run's.
        settings: the run file as resolved.
        name, id: of the run.
        kept: lines of ``metrics.jsonl`` from before a stop; a tracker without them gets them.
        uri, experiment: see ``MLflow``.
        warn: called with why a tracker was left out.

    Raises:
        ConfigError: one that is not installed, or cannot be reached.
    """

    def __init__(
        self,
        kinds: tuple[TrackerName, ...],
        folder: Path,
        settings: Mapping[str, Any],
        *,
        name: str,
        id: str,
        kept: list[dict[str, Any]],
        uri: str | None = None,
        experiment: str = "dovetail",
        warn: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ) -> None:
        check(kinds)
        self._warn = warn
        self._trackers: dict[TrackerName, Tracker] = {}
        for kind in dict.fromkeys(kinds):
            tracker: Tracker
            if kind == "tensorboard":
                tracker, known = TensorBoard(folder, settings), False
            else:
                tracker = MLflow(name, settings, id=id, uri=uri, experiment=experiment)
                known = tracker.known
            self._trackers[kind] = tracker
            for line in () if known else kept:
                self._do(kind, "line", line)

    def __enter__(self) -> Tracks:
        return self

    def __exit__(self, *_: object) -> None:
        for each in tuple(self._trackers):
            self._do(each, "close")

    def line(self, variant: str, line: Mapping[str, Any]) -> None:
        """Give one line of ``metrics.jsonl`` to all."""
        for kind in tuple(self._trackers):
            self._do(kind, "line", {"variant": variant, **line})

    def finish(self, result: Mapping[str, Any]) -> None:
        """Give ``result.json`` to all."""
        for kind in tuple(self._trackers):
            self._do(kind, "finish", result)

    def _do(self, kind: TrackerName, what: str, *arguments: Mapping[str, Any]) -> None:
        if kind not in self._trackers:
            return
        try:
            getattr(self._trackers[kind], what)(*arguments)
        except Exception as error:  # a server that is gone, a full disk: training goes on
            del self._trackers[kind]
            self._warn(
                f"dovetail: {kind} takes no more of this run ({_first_line(error)}); training goes "
                "on, and metrics.jsonl has every line"
            )


assert _MODULES.keys() == {*get_args(TrackerName)}
