"""``dovetail predict``: a saved model and raw data in, classes and probabilities out."""

from __future__ import annotations

import csv
import io
import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from dovetail.cli import precheck
from dovetail.errors import DataError, ModelError, WriteError
from dovetail.network.printable import visible

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from dovetail.data import Column
    from dovetail.models import Model

#: The scores that are printed; all are in the JSON.
NUMBERS = ("poisson_deviance", "gamma_deviance", "pinball", "coverage")
SEVERAL = ("auc_labels", "average_precision_labels", "lrap", "r2_labels", "rmse_labels")
SHOWN = (
    "accuracy",
    "log_loss",
    "auc",
    "macro_f1",
    "rmse",
    "mae",
    "r2",
    "c_index",
    "c_uno",
    *NUMBERS,
    *SEVERAL,
)


def predict(
    model: Path,
    data: Path,
    images: Path | None = None,
    party: Path | None = None,
    partners: Annotated[str | None, typer.Option(metavar="A,B")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None,
    mailbox: Annotated[str | None, typer.Option(metavar="PLACE")] = None,
    proxy_ca: Path | None = None,
    certificates: Path | None = None,
    wait: Annotated[float | None, typer.Option(min=0)] = None,
    timeout: float | None = None,
    out: Path | None = None,
    id_column: Annotated[str | None, typer.Option("--id")] = None,
    allow_unseen: bool = False,
    partial: bool = False,
    coverage: float | None = None,
    spreadsheet: bool = False,
    quiet: bool = False,
    as_json: bool = False,
    device: str | None = None,
) -> None:
    """Predict alone: the model's folder and a table are all it needs.

    Writes the class and each class's probability (or the value) for each row; --id adds the row's
    id. If the table also has the label, the scores are printed on standard error.

    A label owner of FedOptimus predicts with data owners: with their networks beside its own, or,
    from a table of ids, with those on other machines that run `dovetail join` with it as driver:

    dovetail predict north.site new.csv --party north.toml --partners clinic,lab
    --listen 0.0.0.0:7443

    --mailbox PLACE asks them by letter, and waits for the answer.

    A partner that does not answer is left out, and named. A warning says if rows differ from those
    of training (see dovetail drift). --coverage 0.9 needs dovetail calibrate.

    A row with an unseen category, or with text for a number, makes the command refuse the whole
    table. With --partial the others are predicted, and the column error has the reason.

    Args:
        data: CSV or Parquet with raw columns; .npz or folder.
        images: pictures of the rows, named by --id, of a model that takes both.
        party: a party file, which names the ids; whose --partners are asked.
        partners: the data owners, on other machines.
        listen: where data owners connect.
        mailbox: where letters to them lie, instead of --listen.
        wait: seconds to wait for data owners, then without; None: 60; by letter: no end.
        timeout: seconds that an answer may take; None: 30; by letter: seven days.
        out: a .csv or .parquet file; None: standard output, as CSV.
        id_column: the column of ids; None: row number; with --party: that file's.
        partial: predict the usable rows; give a reason for each other.
        coverage: add the set of classes, or interval, that holds the truth so often.
        spreadsheet: put an apostrophe before texts that a spreadsheet would run.
    """
    precheck.check_models([str(model)])
    if out is not None and out.exists() and data.exists() and out.samefile(data):
        raise DataError(f"{out} is the table that is read; name another file with --out")

    from dovetail.api.progress import talk_of
    from dovetail.api.reading import gather
    from dovetail.cli.remote import Elsewhere
    from dovetail.data import Survival, write_table
    from dovetail.data.formulas import formulas_in, without_formulas
    from dovetail.files import taught
    from dovetail.models.computing import device as device_named
    from dovetail.models.watching import shift
    from dovetail.settings.labels import prediction_name

    target = None if device is None else device_named(device)
    show = not (quiet or as_json)
    asks_nobody = not (party or partners or listen or mailbox or images)
    if asks_nobody and not (partial or spreadsheet or as_json or (out and out.suffix != ".csv")):
        options = {"id_column": id_column, "allow_unseen": allow_unseen}
        try:
            if _predict_in_parts(model, data, out, coverage, target, show, quiet, options):
                return
        except WriteError:
            raise
        except (DataError, ModelError):
            pass  # said of all rows, below
    elsewhere = Elsewhere(partners, listen, certificates, wait, timeout, mailbox, proxy_ca)
    section = elsewhere.reached(where="dovetail predict")
    given = gather(
        model,
        data,
        party=party,
        section=section,
        id_column=id_column,
        allow_unseen=allow_unseen,
        images=images,
        partial=partial,
        talk=talk_of(shown=show),
    )
    loaded, labels = given.model, given.labels
    if target is not None:
        loaded.network.to(target)
    prediction = loaded.predictions(given.x, coverage=coverage).times(given.exposure)
    if partial:
        refused = given.refused
        prediction = prediction.spread(refused, len(prediction) + len(refused))
        if refused and not quiet:
            row, why = next(iter(refused.items()))
            print(
                f"dovetail: {len(refused)} of {len(prediction)} rows cannot be used (row {row}: "
                f"{why}); the column error has each reason",
                file=sys.stderr,
            )
    if show and (differing := shift(loaded.inputs, data)) is not None:
        print(f"dovetail: {differing}", file=sys.stderr)
    num_rows = len(prediction.values)
    label = prediction_name(loaded.about.get("label"))
    table = prediction.columns(label)
    if given.answered is not None:
        table["answered"] = given.answered
    columns = {**_named(given.ids, table), **table}
    if partial or isinstance(loaded.task, Survival):
        columns = {name: _without_nan(values) for name, values in columns.items()}
    if spreadsheet:
        columns = without_formulas(columns)
    _print_notes(loaded, [] if spreadsheet or quiet else formulas_in(columns), show=show)
    if out is not None:
        write_table(out, columns)
        if show:
            print(f"{num_rows} rows predicted: {out}", file=sys.stderr)
    elif not as_json:
        _print_csv(columns)
    scores = None
    num_scored = 0
    if labels is not None:
        num_scored = int((~labels.missing).sum())
        scores = _scores(loaded, given.x, labels, label)
        if scores is not None and show:
            shown = ", ".join(f"{name} {scores[name]:.4f}" for name in SHOWN if name in scores)
            truth = str(loaded.about.get("label", label))
            part = f" ({num_scored} of {num_rows} rows have it)" if num_scored < num_rows else ""
            print(f"against the column {truth!r}{part}: {shown}", file=sys.stderr)
            if data.is_file() and taught(model, data):
                print(
                    f"dovetail: {data} taught this model, so these scores are not those of new "
                    "rows; its run's result.json has scores of test rows",
                    file=sys.stderr,
                )
    if as_json:
        _print_json(columns, scores, num_scored, out, given.owners)


def _predict_in_parts(
    model: Path,
    data: Path,
    out: Path | None,
    coverage: float | None,
    device: torch.device | None,
    show: bool,
    quiet: bool,
    options: dict[str, Any],
) -> bool:
    """Predict a long CSV file part by part, as if it were read as a whole; whether it was.

    Nothing is written if a part cannot be used.

    Raises:
        DataError: rows that cannot be used, or a file that cannot be written.
    """
    from dovetail.api.reading import in_parts
    from dovetail.data import Survival, write_table
    from dovetail.data.formulas import formulas_in
    from dovetail.models.watching import Shift
    from dovetail.settings.labels import prediction_name

    if (found := in_parts(model, data, **options)) is None:
        return False
    loaded, parts = found
    if device is not None:
        loaded.network.to(device)
    label = prediction_name(loaded.about.get("label"))
    watched, formulas, num_rows = Shift(loaded.inputs if show else {}), dict[str, None](), 0

    def predicted() -> Iterator[dict[str, np.ndarray]]:
        nonlocal num_rows
        for table, given in parts:
            prediction = loaded.predictions(given.x, coverage=coverage).times(given.exposure)
            watched.add(table)
            named = prediction.columns(label)
            columns = {**_named(given.ids, named), **named}
            if isinstance(loaded.task, Survival):
                columns = {name: _without_nan(values) for name, values in columns.items()}
            formulas.update(dict.fromkeys([] if quiet else formulas_in(columns)))
            num_rows += len(prediction)
            yield columns

    written = predicted()
    printed = io.StringIO()
    if out is not None:
        write_table(out, next(written), written)
    else:
        for index, columns in enumerate(written):
            _print_csv(columns, printed, header=not index)
    if show and (differing := watched.text()) is not None:
        print(f"dovetail: {differing}", file=sys.stderr)
    _print_notes(loaded, [*formulas], show=show)
    sys.stdout.write(printed.getvalue())
    if out is not None and show:
        print(f"{num_rows} rows predicted: {out}", file=sys.stderr)
    return True


def _print_notes(model: Model, formulas: list[str], *, show: bool) -> None:
    """On standard error: from which probability a class is predicted, texts that would be run."""
    if model.decision is not None and show and len(model.classes) == 2:
        print(f"dovetail: {model.decision.text(model.classes[1])}", file=sys.stderr)
    if formulas:
        shown = ", ".join(repr(each[:40]) for each in formulas[:3])
        print(
            f"dovetail: a spreadsheet would run {len(formulas)} of the texts ({shown}); "
            "--spreadsheet writes an apostrophe before them",
            file=sys.stderr,
        )


def _without_nan(values: np.ndarray) -> np.ndarray:
    """Values with None for NaN, which CSV leaves empty and JSON writes as null."""
    if values.dtype.kind != "f" or not (values != values).any():
        return values
    cleaned = values.astype(object)
    cleaned[values != values] = None
    return cleaned


def _named(
    ids: Mapping[str, np.ndarray], predicted: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Columns of ids, one of row numbers with a name; a file's columns differ in more than case.

    Raises:
        DataError: an id is named what a column of predictions is called.
    """
    taken = {name.casefold() for name in predicted}
    named = {}
    for name, values in ids.items():
        if not name:
            name = next(each for each in ("row", "row number", "number") if each not in taken)
        if name.casefold() in taken:
            raise DataError(
                f"--id {name!r} is also what a column of predictions is called "
                f"({', '.join(list(predicted)[:20])}); name another column, or leave --id out"
            )
        named[name] = values
    return named


def _scores(
    model: Model, x: Mapping[str, Tensor], labels: Column, label: str
) -> dict[str, float] | None:
    """Scores of the rows that have a label; None, with a note, where there is nothing to score.

    A row of a class that training did not have counts as wrong; where no row has another, the
    column writes its classes otherwise, and what it says of the model is nothing.
    """
    import numpy as np

    from dovetail.data import UNSEEN, Classification, encode_labels
    from dovetail.models.metrics import all_scores
    from dovetail.models.raw import RawRows

    try:
        inputs, truth = RawRows(np.arange(0), dict(x), labels).labelled(model.task, label)
        classes = isinstance(model.task, Classification)
        unseen = np.flatnonzero(truth.numpy() == UNSEEN) if classes else np.arange(0)
        if len(unseen) and len(unseen) == len(truth):
            encode_labels(model.task, labels.values, labels.missing, label=label)  # raises
    except DataError as error:
        print(f"dovetail: not scored: {error}", file=sys.stderr)
        return None
    if len(unseen):
        name = labels.values[~labels.missing].tolist()[unseen[0]]
        print(
            f"dovetail: {len(unseen)} of {len(truth)} rows with a label are of a class that "
            f"training did not have, as {name!r}; they count as wrong",
            file=sys.stderr,
        )
    threshold = None if model.decision is None else model.decision.threshold
    return all_scores(model.task, model.outputs(inputs), truth, threshold=threshold)


def _print_csv(
    columns: dict[str, np.ndarray], file: TextIO | None = None, *, header: bool = True
) -> None:
    """On standard output, or to a file."""
    writer = csv.writer(file or sys.stdout, lineterminator="\n")
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    for row in itertools.chain([[*columns]] if header else [], rows):
        if sys.stdout.isatty():  # which would obey control characters
            row = [visible(each) if isinstance(each, str) else each for each in row]
        writer.writerow(row)


def _print_json(
    columns: dict[str, np.ndarray],
    scores: dict[str, float] | None,
    num_scored: int,
    out: Path | None,
    owners: Mapping[str, Any],
) -> None:
    result: dict[str, Any] = {"rows": len(next(iter(columns.values()))), **owners}
    if out is not None:
        result["out"] = str(out)
    else:
        result["columns"] = {name: values.tolist() for name, values in columns.items()}
    if scores is not None:
        result["scores"] = scores
        result["scored_rows"] = num_scored
    print(json.dumps(result))
