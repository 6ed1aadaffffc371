"""A model's folder, calibrated on labelled rows and written again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail.errors import ModelError
from dovetail.models import load
from dovetail.models.calibration import CALIBRATION, CONFORMAL, Kind, fit
from dovetail.models.raw import read_rows, table_of
from dovetail.models.saved import Raw
from dovetail.models.watching import holds_training


def calibrated(
    folder: Path,
    rows: Raw,
    *,
    kind: Kind | None = None,
    label: str | None = None,
    seed: int = 0,
    allow_unseen: bool = False,
) -> dict[str, Any]:
    """Write the model again with what ``calibration.fit`` fits; the result.

    Raises:
        ModelError: no model there, or one without a label's name.
        DataError: rows that do not fit, or too few.
    """
    model = load(folder)
    name = label if label is not None else model.about.get("label")
    if name is None:
        raise ModelError(
            f"the model of party {model.party!r} does not know its label's name; say --label"
        )
    # What is fitted anew is fitted on what the network itself says.
    about = {
        key: value for key, value in model.about.items() if key not in (CALIBRATION, CONFORMAL)
    }
    bare = replace(model, about=about)
    read = read_rows(bare, rows, label=str(name), allow_unseen=allow_unseen)
    inputs, truth = read.labelled(bare.task, str(name))
    fitted = fit(bare.task, bare.outputs(inputs), truth, kind=kind, seed=seed)
    extras = {
        path.name: path.read_bytes() for path in folder.iterdir() if path.name.startswith("card.")
    }
    replace(bare, about={**about, **fitted}).save(folder)
    for file, content in extras.items():  # the folder was written anew
        (folder / file).write_bytes(content)
    calibration = {
        key: value for key, value in fitted.get(CALIBRATION, {}).items() if key not in ("x", "y")
    }
    text = f"{fitted[CONFORMAL]['rows']} rows are kept for sets and intervals"
    if calibration:
        before, after = calibration["before"], calibration["after"]
        how = (
            f"temperature {calibration['temperature']:.3f}"
            if "temperature" in calibration
            else "isotonic"
        )
        text = (
            f"{how}; on {calibration['judged_on']} other rows the log loss went from "
            f"{before['log_loss']:.4f} to {after['log_loss']:.4f}, the calibration error from "
            f"{before['ece']:.4f} to {after['ece']:.4f}; {text}"
        )
    is_table = not isinstance(rows, (str, Path)) or Path(rows).suffix != ".npz"
    if is_table and bare.inputs and holds_training(bare.inputs, table_of(rows)):
        text += (
            ". WARNING: these are the rows of training, or have them among them; probabilities and "
            "sets fitted on them promise too much. Calibrate on rows that it was not trained on"
        )
    return {
        "calibration": calibration or None,
        "conformal_rows": fitted[CONFORMAL]["rows"],
        "text": text,
    }
