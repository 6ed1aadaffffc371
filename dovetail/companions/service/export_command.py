"""``dovetail export``: a model's folder in, one ONNX file out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer


def export(
    model: Path,
    out: Annotated[Path, typer.Option()],
    to: Literal["onnx"] = "onnx",
    check: Path | None = None,
    block: list[str] | None = None,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Write a model as one ONNX file, with its preprocessing inside.

    Raw columns go in by name, class and probabilities (or the value) come out; onnxruntime needs
    nothing else. The file is compared with the model before it is written. Needs pip install
    'dovetail-fl[export]'.

    Args:
        out: the file to write; its name ends in .onnx.
        to: the format.
        check: rows to compare on: the file must say what the model says.
        block: of HyFEM: a block that the file reads; repeat for several; None: all.
    """
    from dovetail.companions.service.export import export as write
    from dovetail.models.joined import open_model
    from dovetail.models.model_folders import model_folder

    written = write(open_model(model_folder(model)), out, check=check, blocks=tuple(block or ()))
    if as_json:
        report = {
            "out": str(written.path),
            "bytes": written.bytes,
            "inputs": list(written.inputs),
            "checked_rows": written.rows,
            "difference": written.difference,
        }
        print(json.dumps(report))
    elif not quiet:
        print(
            f"{written.path}: {written.bytes:,} bytes, {len(written.inputs)} inputs; on "
            f"{written.rows} rows it differs from the model by {written.difference:.1g} at most",
            file=sys.stderr,
        )
