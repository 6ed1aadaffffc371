"""``dovetail predict``: a saved model and raw data in, classes and probabilities out.

A label owner's model of FedOptimus predicts with data owners: with their networks beside it, from
one table with the columns of those that are there, or from ids, with those on other machines that
come and answer (``together.py``).

A joint model of APFed-D predicts with its partners in the same two ways; rows that a partner does
not answer for are predicted by the solo model that is in the same folder.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail import data as dd
from dovetail.cli.align import Elsewhere
from dovetail.data.datasets import whole_numbers
from dovetail.errors import ConfigError, DataError, ModelError, NetworkError
from dovetail.experiment import score
from dovetail.face.talk import talk_of
from dovetail.methods.base import Talk
from dovetail.methods.fedoptimus import predicting
from dovetail.methods.outcome import JOINT
from dovetail.models import Model, load
from dovetail.models.devices import device as device_named
from dovetail.models.learners.joint import JointSpec
from dovetail.models.owners import OwnersSpec, TopSpec, load_bottom
from dovetail.models.raw import RawRows, read_rows
from dovetail.site.asking import Asker, Together, told
from dovetail.site.engines import StreamSection
from dovetail.site.partyfile import open_site


@dataclass(frozen=True, eq=False)
class Given:
    """What is predicted, and from what.

    Attributes:
        model: predicts.
        ids: name of a column of ids -> (N,) ids; "" where they are row numbers.
        x: block -> (N, ...) network inputs.
        labels: (N,) raw labels, where the data have them.
        answered: (N,) names of the data owners that each row is predicted with, in one text; None
            where the model needs none.
        owners: what is said of data owners in JSON.
    """

    model: Model
    ids: Mapping[str, np.ndarray]
    x: Mapping[str, Tensor]
    labels: dd.Column | None
    answered: np.ndarray | None = None
    owners: Mapping[str, Any] = field(default_factory=dict)


def run_predict(
    folder: Path,
    source: Path,
    *,
    party: Path | None,
    elsewhere: Elsewhere,
    out: Path | None,
    id_column: str | None,
    allow_unseen: bool,
    quiet: bool,
    as_json: bool,
    device: str | None,
) -> None:
    """Predict every row of ``source`` and write the table."""
    target = None if device is None else device_named(device)
    show = not (quiet or as_json)
    section = elsewhere.section(None, (), None, where="dovetail predict")
    if section is not None and party is not None and (joint := _joint_folder(folder)) is not None:
        given = _ask_partners(
            load(joint),
            source,
            party,
            section,
            id_column,
            allow_unseen=allow_unseen,
            talk=talk_of(shown=show),
        )
    elif section is not None and party is not None:
        if allow_unseen:
            raise ConfigError(
                "--allow-unseen is for a table of columns; data owners on other machines take "
                "categories unseen in training as missing, leave it out"
            )
        given = _ask(folder, source, party, section, id_column, talk=talk_of(shown=show))
    elif section is not None or party is not None:
        raise ConfigError(
            "to predict with data owners on other machines give --party, --partners and --listen, "
            "for example --party north.toml --partners clinic,lab --listen 0.0.0.0:7443"
        )
    else:
        found = _model_folder(folder)
        given = _read_all(_model(found), found, source, id_column, allow_unseen=allow_unseen)
    model, labels = given.model, given.labels
    if target is not None:
        model.network.to(target)
    prediction = model.predict(given.x)
    num_rows = len(prediction.values)
    label = str(model.about.get("label", "prediction"))
    said: dict[str, np.ndarray] = {label: prediction.values}
    if prediction.probabilities is not None:
        for place, name in enumerate(prediction.classes):
            probabilities = prediction.probabilities[:, place].astype(np.float64)
            said[f"p({name})"] = probabilities.round(6)
    if given.answered is not None:
        said["answered"] = given.answered
    columns = {**_named(given.ids, said), **said}
    if out is not None:
        dd.write_table(out, columns)
        if show:
            print(f"{num_rows} rows predicted: {out}", file=sys.stderr)
    elif not as_json:
        _print_csv(columns)
    scores = None
    num_scored = 0
    if labels is not None:
        num_scored = int((~labels.missing).sum())
        scores = _scores(model, given.x, labels, label)
        if scores is not None and show:
            shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
            part = f" ({num_scored} of {num_rows} rows have it)" if num_scored < num_rows else ""
            print(f"against the column {label!r}{part}: {shown}", file=sys.stderr)
    if as_json:
        _print_json(columns, scores, num_scored, out, given.owners)


# --- With data owners on other machines -----------------------------------------------------------


def _ask(
    folder: Path,
    source: Path,
    party: Path,
    section: StreamSection,
    id_column: str | None,
    *,
    talk: Talk,
) -> Given:
    """What data owners on other machines say of the ids in a table.

    Raises:
        ModelError: not this label owner's model.
        DataError: ids that cannot be used.
        NetworkError: no data owner answers.
    """
    model, site = load(_model_folder(folder)), open_site(party)
    names = site.party.id if id_column is None else id_column
    table = dd.read_table(source)
    label = model.about.get("label")
    rows = dd.read_party_table(
        site.name,
        str(source),
        id=names,
        label=label if label in table.names else None,
        columns=(),
    )
    with Asker(site, model, section, talk=talk) as asker:
        said = asker.ask(rows.ids)
    answered = np.array(
        [
            " ".join(name for name, is_in in zip(said.answered, row, strict=True) if is_in)
            for row in zip(*(answered.tolist() for answered in said.answered.values()), strict=True)
        ],
        dtype=object,
    )
    predicted = np.flatnonzero(answered != "")
    if not len(predicted):
        raise NetworkError(f"{source}: no data owner answers for any row: {told(said.missed)}")
    _tell(said)
    ids = {
        name: whole_numbers(table.column(name)).values
        for name in ((names,) if isinstance(names, str) else names)
    }
    left = np.flatnonzero(answered == "")
    if len(left):
        shown = ["/".join(str(own[row]) for own in ids.values()) for row in left[:5]]
        more = ", ..." if len(left) > len(shown) else ""
        print(
            f"dovetail: {len(left)} of {len(answered)} rows are not predicted, as no data owner "
            f"that answered has them: {', '.join(shown)}{more}",
            file=sys.stderr,
        )
    return Given(
        model,
        {name: own[predicted] for name, own in ids.items()},
        {name: said.mean_NE[torch.from_numpy(predicted)] for name in model.shapes},
        None if rows.labels is None else rows.labels.take(predicted),
        answered[predicted],
        {
            "answered": [name for name, own in said.answered.items() if own.any()],
            "missing": list(said.missed),
            "reasons": dict(said.missed),
            "not_predicted": len(left),
        },
    )


def _tell(said: Together) -> None:
    """Whose embeddings are in the means, and whose are not."""
    shown = []
    for name, own in said.answered.items():
        if own.any():
            part = "" if own.all() else f" ({int(own.sum()):,} of {len(own):,} rows)"
            shown.append(f"{name}{part}")
    left = f"; left out of the mean: {told(said.missed)}" if said.missed else ""
    print(f"dovetail: predicted with the data owners {', '.join(shown)}{left}", file=sys.stderr)


# --- With partners of a joint model ---------------------------------------------------------------


def _joint_folder(folder: Path) -> Path | None:
    """The folder of a joint model, if it is meant: itself, or that of a run with one."""
    for place in (folder, folder / "models" / JOINT):
        try:
            kind = json.loads((place / "model.json").read_text())["network"]["kind"]
        except (OSError, ValueError, LookupError, TypeError):
            continue
        if kind == JointSpec.kind:
            return place
    return None


def _ask_partners(
    model: Model,
    source: Path,
    party: Path,
    section: StreamSection,
    id_column: str | None,
    *,
    allow_unseen: bool,
    talk: Talk,
) -> Given:
    """A joint model's rows, with the codes of partners on other machines; who does not come is
    done without.

    Raises:
        ModelError: not this label owner's model.
        DataError: rows or ids that cannot be used.
    """
    site = open_site(party)
    names = site.party.id if id_column is None else id_column
    table = dd.read_table(source)
    label = model.about.get("label")
    known = label if label in table.names else None
    rows = dd.read_party_table(site.name, str(source), id=names, label=known, columns=())
    x = read_rows(model, source, allow_unseen=allow_unseen).x
    missed: Mapping[str, str]
    with Asker(site, model, section, talk=talk) as asker:
        try:
            said = asker.codes(rows.ids)
            codes, answered, missed = dict(said.codes), said.answered, said.missed
        except NetworkError as failure:
            codes, answered = {}, {}
            missed = {name: str(failure) for name in section.partners}
    ids = {
        name: whole_numbers(table.column(name)).values
        for name in ((names,) if isinstance(names, str) else names)
    }
    by_row = [
        [name for name, own in answered.items() if bool(own[row])] for row in range(len(rows.ids))
    ]
    return _joint_given(model, ids, {**x, **codes}, rows.labels, by_row, missed)


def _read_joint(
    model: Model, place: Path, source: Path, id_column: str | None, *, allow_unseen: bool
) -> Given:
    """A joint model's rows, from a table that may have the partners' columns, too."""
    own_rows = read_rows(model, source, id_column=id_column, allow_unseen=allow_unseen)
    ids, x, labels = own_rows.ids, own_rows.x, own_rows.labels
    assert isinstance(model.spec, JointSpec)
    codes: dict[str, Tensor] = {}
    missed: dict[str, str] = {}
    for name in model.spec.partners:
        folder = place.parent / name
        if not (folder / "bottom.json").exists():
            missed[name] = f"its networks are not in {folder}"
            continue
        bottom = load_bottom(folder)
        if isinstance(bottom.input, dd.TableEncoder) and not source.is_dir():
            columns = dd.read_table(source).names
            lacking = [column for column in bottom.input.columns if column not in columns]
            if lacking:
                missed[name] = f"{source} lacks its column {lacking[0]!r}"
                continue
        own = replace(
            model,
            shapes={name: tuple(bottom.shape)},
            inputs={} if bottom.input is None else {name: bottom.input},
        )
        try:
            held = read_rows(own, source, allow_unseen=allow_unseen).x
        except (DataError, ModelError) as error:
            missed[name] = str(error)
            continue
        codes[name] = bottom.embed(held[name])
    by_row = [list(codes)] * len(ids)
    return _joint_given(model, {id_column or "": ids}, {**x, **codes}, labels, by_row, missed)


def _joint_given(
    model: Model,
    ids: Mapping[str, np.ndarray],
    x: Mapping[str, Tensor],
    labels: dd.Column | None,
    by_row: Sequence[Sequence[str]],
    missed: Mapping[str, str],
) -> Given:
    """What is predicted; says on standard error which rows the solo model says."""
    assert isinstance(model.spec, JointSpec)
    needed = 1 if model.spec.partial else len(model.spec.partners)
    together = sum(len(each) >= needed for each in by_row)
    here = [name for name in model.spec.partners if name in x]
    told_missed = f"; missing: {told(missed)}" if missed else ""
    if together:
        print(
            f"dovetail: {together} of {len(by_row)} rows are predicted with {', '.join(here)}, the "
            f"others by the model that needs no partner{told_missed}",
            file=sys.stderr,
        )
    else:
        print(
            "dovetail: no partner's columns are there, so every row is predicted by the model that "
            f"needs none{told_missed}",
            file=sys.stderr,
        )
    return Given(
        model,
        ids,
        x,
        labels,
        np.array([" ".join(each) for each in by_row], dtype=object),
        {
            "answered": here,
            "missing": list(missed),
            "reasons": dict(missed),
            "predicted_together": together,
        },
    )


# --- With all networks in one place ---------------------------------------------------------------


def _read_all(
    model: Model, place: Path, source: Path, id_column: str | None, *, allow_unseen: bool
) -> Given:
    """What a table has of what the model takes."""
    if isinstance(model.spec, JointSpec):
        return _read_joint(model, place, source, id_column, allow_unseen=allow_unseen)
    rows = read_rows(model, source, id_column=id_column, allow_unseen=allow_unseen)
    ids, x, labels = rows.ids, rows.x, rows.labels
    named = {id_column or "": ids}
    if not isinstance(model.spec, OwnersSpec):
        return Given(model, named, x, labels)
    answered = [name for name in model.shapes if name in x]
    missing = [name for name in model.shapes if name not in x]
    left = f"; left out of the mean, as their columns are not there: {', '.join(missing)}"
    print(
        f"dovetail: predicted with the data owners {', '.join(answered)}{left if missing else ''}",
        file=sys.stderr,
    )
    by_row = np.full(len(ids), " ".join(answered), dtype=object)
    return Given(model, named, x, labels, by_row, {"answered": answered, "missing": missing})


def _model(place: Path) -> Model:
    """The model in a folder; a label owner's joined with the data owners' beside it.

    Raises:
        ModelError: none, or a label owner's without any data owner's.
    """
    return predicting.open_model(place)


def _model_folder(folder: Path) -> Path:
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


def _named(ids: Mapping[str, np.ndarray], said: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns of ids, one of row numbers with a name; a file's columns differ in more than case.

    Raises:
        DataError: an id is named what a column of predictions is called.
    """
    taken = {name.casefold() for name in said}
    named = {}
    for name, values in ids.items():
        if not name:
            name = next(each for each in ("row", "row number", "number") if each not in taken)
        if name.casefold() in taken:
            raise DataError(
                f"--id {name!r} is also what a column of predictions is called "
                f"({', '.join(list(said)[:20])}); name another column, or leave --id out"
            )
        named[name] = values
    return named


def _scores(
    model: Model, x: Mapping[str, Tensor], labels: dd.Column, label: str
) -> dict[str, float] | None:
    """Scores of the rows that have a label; None, with a note, where there is nothing to score."""
    try:
        inputs, truth = RawRows(np.arange(0), dict(x), labels).labelled(model.task, label)
    except DataError as error:
        print(f"dovetail: not scored: {error}", file=sys.stderr)
        return None
    return score(model.task, model.outputs(inputs), truth)


def _print_csv(columns: dict[str, np.ndarray]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))


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
