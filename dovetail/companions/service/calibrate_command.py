"""``dovetail calibrate``: a model's folder and labelled rows in, a calibrated model out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Literal


def calibrate(
    model: Path,
    data: Path,
    kind: Literal["temperature", "isotonic"] | None = None,
    label: str | None = None,
    seed: int = 0,
    allow_unseen: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Calibrate probabilities, and add prediction sets or intervals.

    Half of the rows calibrate the probabilities (temperature or isotonic), the other half judge it
    and are kept for `dovetail predict --coverage 0.9`. The result is written into the model's
    folder, and applies to exports and the service, too.

    Args:
        data: labelled rows that it was not trained on, and not tested on.
        kind: of classes; isotonic is of two; None: temperature.
        seed: which half of the rows is for which.
    """
    from dovetail.companions.service.calibrating import calibrated
    from dovetail.models.model_folders import model_folder

    folder = model_folder(model)
    report = calibrated(folder, data, kind=kind, label=label, seed=seed, allow_unseen=allow_unseen)
    if as_json:
        print(json.dumps({"model": str(folder), **report}))
    elif not quiet:
        print(f"{folder}: {report['text']}", file=sys.stderr)
