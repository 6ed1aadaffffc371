"""Where models are: a model's own folder, or that of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from dovetail.errors import ModelError
from dovetail.models.owners import TopSpec

#: The folder of a joint model, beside those of parties.
JOINT = "joint"


def model_folder(folder: Path) -> Path:
    """The folder itself, or the only model of a run's folder."""
    if (folder / "model.json").exists():
        return folder
    if (folder / "bottom.json").exists():
        raise ModelError(
            f"{folder} is a data owner's network, which predicts nothing alone; name the folder of "
            "a label owner's model beside it"
        )
    models = sorted(path.parent for path in folder.glob("models/*/model.json"))
    models = models or sorted(path.parent for path in folder.glob("seed-*/models/*/model.json"))
    models = [path for path in models if path.name != JOINT]  # it is asked for by its own name
    if len(models) == 1 or (models and _are_one(models)):
        return models[0]
    if models:
        raise ModelError(f"{folder} has {len(models)} models; name one, for example {models[0]}")
    return folder


def _are_one(models: Sequence[Path]) -> bool:
    """Whether these are tops of label owners who ended with the same one."""
    try:
        told = [json.loads((path / "model.json").read_text()) for path in models]
        return {each["network"]["kind"] for each in told} == {TopSpec.kind} and (
            len({each["weights_sha256"] for each in told}) == 1
        )
    except (OSError, ValueError, LookupError, TypeError):
        return False
