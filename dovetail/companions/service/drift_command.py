"""``dovetail drift``: whether new rows are like those that a model was trained on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer


def drift(
    model: Path,
    data: Path,
    then: float | None = None,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Report for each column how new rows differ from those of training.

    Population stability index, Kolmogorov-Smirnov distance, missing and unseen values; an alarm is
    a difference that is large and not by chance. With labels in DATA, also the score now and at
    training. The exit code is 1 if there is an alarm.

    Args:
        model: a model's folder, RUN/models/PARTY, a RUN, or an .onnx file.
        data: CSV or Parquet with raw columns.
        then: the score that the model had; the card's if it has one.
    """
    from dovetail.api.shown import plain_table, terminal_text
    from dovetail.cli.output import console
    from dovetail.data import TableEncoder, read_table
    from dovetail.errors import DataError, ModelError
    from dovetail.models.card import score_then
    from dovetail.models.exported import load
    from dovetail.models.metrics import headline
    from dovetail.models.model_folders import model_folder
    from dovetail.models.watching import LEAST_ROWS, warning
    from dovetail.models.watching import drift as compare

    path = model if model.suffix.lower() == ".onnx" else model_folder(model)
    loaded = load(path)
    encoders = [each for each in loaded.inputs.values() if isinstance(each, TableEncoder)]
    table = read_table(data)
    drifts = compare(encoders, table)
    if not drifts:
        if table.num_rows < LEAST_ROWS:
            raise DataError(
                f"{data} has {table.num_rows} rows, and drift is seen in {LEAST_ROWS} or more"
            )
        raise ModelError(
            f"{path} kept nothing of its training columns to compare with; models trained from "
            "now on keep it"
        )
    name = headline(loaded.task)
    now = None
    if loaded.about.get("label") in table.names:
        now = loaded.score(table, allow_unseen=True).get(name)
    then = then if then is not None else score_then(path, name)
    alarms = [each for each in drifts if each.alarms]
    if as_json:
        result = {
            "rows": table.num_rows,
            "columns": [each.to_json() for each in drifts],
            "alarms": [each.column for each in alarms],
            "score": {"name": name, "now": now, "then": then} if now is not None else None,
        }
        print(json.dumps(result))
    else:
        shown = plain_table(("column", "PSI", "KS", "missing", "then", "alarm"))
        for each in drifts:
            shown.add_row(
                terminal_text(each.column),
                f"{each.psi:.3f}",
                "" if each.ks is None else f"{each.ks:.3f}",
                f"{each.missing:.1%}",
                f"{each.missing_then:.1%}",
                terminal_text("; ".join(each.alarms), style="bold"),
            )
        console().print(shown)
        if now is not None:
            before = "" if then is None else f", then {then:.4f}"
            print(f"{name} now {now:.4f}{before}")
        if not quiet:
            print(
                f"dovetail: {warning(drifts) or 'these rows are like those of training'}",
                file=sys.stderr,
            )
    if alarms:
        raise typer.Exit(1)
