"""``dovetail track``: a model as MLflow keeps and serves it."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def track(
    model: Path,
    out: Path | None = None,
    uri: str | None = None,
    experiment: str = "dovetail",
    name: str | None = None,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Log a model to MLflow, so that MLflow's own serving loads it.

    It is a pyfunc without any pickle: MLflow imports Dovetail, which reads the model's folder.
    `mlflow models serve -m URI` answers then. Needs pip install 'dovetail-fl[track]'.

    Args:
        out: only write the folder that MLflow serves; log nothing.
        uri: MLflow's; None: its own choice.
        experiment: under which it is listed.
        name: of the model; None: the folder's.
    """
    from dovetail.companions.service.flavour import log_mlflow, save_mlflow
    from dovetail.models.model_folders import model_folder

    folder = model_folder(model)
    if out is not None:
        where = str(save_mlflow(folder, out))
    else:
        where = log_mlflow(folder, uri=uri, experiment=experiment, name=name or folder.name)
    if as_json:
        print(json.dumps({"model": str(folder), "uri": where}))
    elif not quiet:
        print(f"dovetail: mlflow models serve -m {where} answers with it", file=sys.stderr)
