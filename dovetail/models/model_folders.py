"""Where models are: a model's own folder, or that of a run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.errors import ModelError
from dovetail.models.owners import TopSpec

#: The folder of a joint model, beside those of parties.
JOINT = "joint"


def model_folder(folder: Path) -> Path:
    """The folder itself, or the only model of a run's folder."""
    if folder.is_file():
        raise ModelError(
            f"{folder} is a file, and a model's folder is asked for here; one that was exported is "
            "for dovetail serve, dovetail drift and, in Python, dovetail.load"
        )
    if (folder / "model.json").exists():
        return folder
    if (folder / "bottom.json").exists():
        raise ModelError(
            f"{folder} is a data owner's network, which predicts nothing alone; name the folder of "
            "a label owner's model beside it"
        )
    models = _models_of(folder)
    if len(models) == 1 or (models and _are_one(models)):
        return models[0]
    if models:
        raise ModelError(f"{folder} has {len(models)} models; name one, for example {models[0]}")
    return folder


def next_commands(folder: Path) -> list[str]:
    """Commands for a run's folder: its report, and predictions of its first model.

    The model of a label owner that predicts with data owners alone is left out: it asks for them.
    """
    commands = [f"dovetail report {shlex.quote(str(folder))}"]
    for path in _models_of(folder):
        if kind_of(path) != TopSpec.kind:
            commands.append(f"dovetail predict {shlex.quote(str(path))} NEW-ROWS.csv")
            break
    return commands


def _models_of(folder: Path) -> list[Path]:
    """The models of a run's folder, or of its seeds; a joint one is asked for by its own name."""
    models = sorted(path.parent for path in folder.glob("models/*/model.json"))
    models = models or sorted(path.parent for path in folder.glob("seed-*/models/*/model.json"))
    return [path for path in models if path.name != JOINT]


def kind_of(model: Path) -> str | None:
    """Kind of the model's network; None of a folder that cannot be read."""
    network = _description(model).get("network")
    return str(network.get("kind")) if isinstance(network, dict) else None


def _are_one(models: Sequence[Path]) -> bool:
    """Whether these are tops of label owners who ended with the same one."""
    weights = {str(_description(model).get("weights_sha256")) for model in models}
    return {kind_of(model) for model in models} == {TopSpec.kind} and len(weights) == 1


def _description(model: Path) -> dict[str, Any]:
    try:
        stored = json.loads((model / "model.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return stored if isinstance(stored, dict) else {}
