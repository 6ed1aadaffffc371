"""What a saved model predicts from: a table alone, or with data owners and partners.

A label owner's model of FedOptimus predicts with data owners: with their networks beside it, from
one table with the columns of those that are there, or from ids, with those on other machines that
come and answer (``node/joint_prediction.py``).

A joint model of APFed-D or APFed-S predicts with its partners in the same two ways; rows that a
partner does not answer for are predicted by the solo model that is in the same folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail import data as dd
from dovetail.data.datasets import whole_numbers
from dovetail.errors import ConfigError, DataError, ModelError, NetworkError
from dovetail.methods.base import SILENT, Progress
from dovetail.methods.inference import Answers
from dovetail.methods.party import Site
from dovetail.models import Model, load
from dovetail.models.joined import open_model
from dovetail.models.key_files import NAME as KEYS
from dovetail.models.learners.assisted_joint import AssistedSpec
from dovetail.models.learners.joint import JointSpec, StacksSpec
from dovetail.models.model_folders import JOINT, kind_of, model_folder
from dovetail.models.owners import OwnersSpec, load_bottom
from dovetail.models.raw import read_rows, usable_rows
from dovetail.node.engines import CertifiedSection
from dovetail.node.joint_prediction import Asker, missing_text, question_of
from dovetail.node.partyfile import open_site
from dovetail.node.partysections import read_party_file


@dataclass(frozen=True, eq=False)
class Given:
    """The rows to be predicted, and with what.

    Attributes:
        model: predicts.
        ids: name of a column of ids -> (N,) ids; "" where they are row numbers.
        x: block -> (N, ...) network inputs.
        labels: (N,) raw labels, where the data have them.
        answered: (N,) names of the data owners that each row is predicted with, in one text; None
            where the model needs none.
        owners: what is said of data owners in JSON.
        refused: row -> why it cannot be used; ``x`` and ``labels`` are without it, ``ids`` are not.
        exposure: (N,) what rates are multiplied by; None: nothing.
    """

    model: Model
    ids: Mapping[str, np.ndarray]
    x: Mapping[str, Tensor]
    labels: dd.Column | None
    answered: np.ndarray | None = None
    owners: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    exposure: np.ndarray | None = None


def gather(
    folder: Path,
    source: Path,
    *,
    party: Path | None = None,
    section: CertifiedSection | None = None,
    id_column: str | None = None,
    allow_unseen: bool = False,
    images: Path | None = None,
    partial: bool = False,
    talk: Progress = SILENT,
) -> Given:
    """The model of a folder, and what it predicts the rows of a source from.

    Args:
        folder: a model's, or a run's with one model.
        source: raw columns; with ``section`` a table of ids, or of ids and own columns.
        party: the party file of who asks; without ``section``, of whose rows they are.
        section: how data owners or partners on other machines are reached.
        id_column: the column of ids; None: row numbers, or that of the party file.
        allow_unseen: take categories unseen in training as missing.
        images: pictures of the source's rows, of a model that takes columns and images.
        partial: leave out rows that cannot be used, and say why; else one refuses them all.
        talk: is told whose part is in the predictions, and whose is not.

    Raises:
        ConfigError: half of what it takes to ask others.
        ModelError: no such model, or one that does not go with the rows.
        DataError: rows or ids that cannot be used.
        NetworkError: no data owner answers.
    """
    if section is None:
        path = model_folder(folder)
        model = open_model(path)
        names = () if party is None or id_column is not None else _ids_of(party)
        name = names[0] if len(names) == 1 else id_column
        if partial:
            given = _read_usable(model, source, name, allow_unseen=allow_unseen)
            return given if len(names) < 2 else replace(given, ids=_columns(source, names))
        given = _read_all(
            model, path, source, name, allow_unseen=allow_unseen, images=images, talk=talk
        )
        return given if len(names) < 2 else replace(given, ids=_columns(source, names))
    if partial:
        raise ConfigError("--partial is for a model that predicts alone; leave it out")
    if party is None:
        raise ConfigError(
            "to predict with data owners on other machines give --party, --partners and --listen, "
            "for example --party north.toml --partners clinic,lab --listen 0.0.0.0:7443"
        )
    if images is not None:
        raise ConfigError("--images is for a model that predicts alone; leave it out")
    if (joint := joint_folder(folder)) is not None:
        return _ask_partners(
            load(joint), source, party, section, id_column, allow_unseen=allow_unseen, talk=talk
        )
    if allow_unseen:
        raise ConfigError(
            "--allow-unseen is for a table of columns; data owners on other machines take "
            "categories unseen in training as missing, leave it out"
        )
    return _ask(folder, source, party, section, id_column, talk=talk)


def _read_usable(model: Model, source: Path, id_column: str | None, *, allow_unseen: bool) -> Given:
    """The rows of a table that can be used, and why the others cannot.

    Raises:
        DataError: no row can be used.
        ModelError: a model that does not predict from one table alone.
    """
    table = dd.read_table(source)
    usable, refused, num_rows = usable_rows(model, table, allow_unseen=allow_unseen)
    rows = read_rows(model, usable, id_column=id_column, allow_unseen=allow_unseen)
    ids = np.arange(num_rows)
    if id_column is not None:
        ids = whole_numbers(table.column(id_column)).values
    named = {id_column or "": ids}
    return Given(model, named, rows.x, rows.labels, refused=refused, exposure=rows.exposure)


def _ids_of(party: Path) -> tuple[str, ...]:
    """The columns that name a sample, by a party file."""
    names = read_party_file(party).party.id
    return (names,) if isinstance(names, str) else names


def _columns(source: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns of ids, as they are printed."""
    table = dd.read_table(source)
    return {name: whole_numbers(table.column(name)).values for name in names}


def _identified(
    site: Site, model: Model, source: Path, id_column: str | None
) -> tuple[dd.PartyTable, dict[str, np.ndarray]]:
    """A table's rows by who they are, with labels if it has them; and its columns of ids."""
    names = site.party.id if id_column is None else id_column
    label = model.about.get("label")
    known = label if dd.read_table(source).has(label) else None
    rows = dd.read_party_table(site.name, str(source), id=names, label=known, columns=())
    return rows, _columns(source, (names,) if isinstance(names, str) else names)


# --- With data owners on other machines -----------------------------------------------------------


def _ask(
    folder: Path,
    source: Path,
    party: Path,
    section: CertifiedSection,
    id_column: str | None,
    *,
    talk: Progress,
) -> Given:
    """What data owners on other machines say of the ids in a table.

    Raises:
        ModelError: not this label owner's model.
        DataError: ids that cannot be used.
        NetworkError: no data owner answers.
    """
    model, site = load(model_folder(folder)), open_site(party)
    rows, ids = _identified(site, model, source, id_column)
    with Asker(site, model, section, talk=talk) as asker:
        answer = asker.ask(rows.ids)
    answered = np.array(
        [
            " ".join(name for name, is_in in zip(answer.answered, row, strict=True) if is_in)
            for row in zip(
                *(answered.tolist() for answered in answer.answered.values()), strict=True
            )
        ],
        dtype=object,
    )
    predicted = np.flatnonzero(answered != "")
    if not len(predicted):
        raise NetworkError(
            f"{source}: no data owner answers for any row: {missing_text(answer.missed)}"
        )
    _print_answered(answer, talk)
    left = np.flatnonzero(answered == "")
    if len(left):
        shown = ["/".join(str(values[row]) for values in ids.values()) for row in left[:5]]
        more = ", ..." if len(left) > len(shown) else ""
        talk.warn(
            f"{len(left)} of {len(answered)} rows are not predicted, as no data owner "
            f"that answered has them: {', '.join(shown)}{more}"
        )
    return Given(
        model,
        {name: values[predicted] for name, values in ids.items()},
        {name: answer.mean()[torch.from_numpy(predicted)] for name in model.shapes},
        None if rows.labels is None else rows.labels.take(predicted),
        answered[predicted],
        {
            "answered": [name for name, values in answer.answered.items() if values.any()],
            "missing": list(answer.missed),
            "reasons": dict(answer.missed),
            "not_predicted": len(left),
        },
    )


def _print_answered(answer: Answers, talk: Progress) -> None:
    """Whose embeddings are in the means, and whose are not."""
    shown = []
    for name, is_answered in answer.answered.items():
        if is_answered.any():
            part = (
                ""
                if is_answered.all()
                else f" ({int(is_answered.sum()):,} of {len(is_answered):,} rows)"
            )
            shown.append(f"{name}{part}")
    left = f"; left out of the mean: {missing_text(answer.missed)}" if answer.missed else ""
    talk.warn(f"predicted with the data owners {', '.join(shown)}{left}")


# --- With partners of a joint model ---------------------------------------------------------------


def joint_folder(folder: Path) -> Path | None:
    """The folder of a joint model, if it is meant: itself, or that of a run with one."""
    for path in (folder, folder / "models" / JOINT):
        if kind_of(path) in (StacksSpec.kind, AssistedSpec.kind):
            return path
    return None


def _ask_partners(
    model: Model,
    source: Path,
    party: Path,
    section: CertifiedSection,
    id_column: str | None,
    *,
    allow_unseen: bool,
    talk: Progress,
) -> Given:
    """A joint model's rows, with the codes of partners on other machines; who does not come is
    done without.

    Raises:
        ModelError: not this label owner's model.
        DataError: rows or ids that cannot be used.
    """
    site = open_site(party)
    rows, ids = _identified(site, model, source, id_column)
    read = read_rows(model, source, allow_unseen=allow_unseen)
    missed: Mapping[str, str]
    with Asker(site, model, section, talk=talk) as asker:
        try:
            answer = asker.ask(rows.ids)
            codes, answered, missed = dict(answer.codes), answer.answered, answer.missed
        except NetworkError as failure:
            codes, answered = {}, {}
            missed = {name: str(failure) for name in section.partners}
    by_row = [
        [name for name, is_answered in answered.items() if bool(is_answered[row])]
        for row in range(len(rows.ids))
    ]
    given = _joint_given(model, ids, {**read.x, **codes}, rows.labels, by_row, missed, talk)
    return replace(given, exposure=read.exposure)


def _read_joint(
    model: Model,
    model_path: Path,
    source: Path,
    id_column: str | None,
    *,
    allow_unseen: bool,
    talk: Progress,
) -> Given:
    """A joint model's rows, from a table that may have the partners' columns, too."""
    local_rows = read_rows(model, source, id_column=id_column, allow_unseen=allow_unseen)
    ids, x, labels = local_rows.ids, local_rows.x, local_rows.labels
    assert isinstance(model.spec, JointSpec)
    codes: dict[str, Tensor] = {}
    missed: dict[str, str] = {}
    spec = model.spec
    question = cache(lambda: question_of(spec, model_path / KEYS))
    for name in model.spec.partners:
        folder = model_path.parent / name
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
        local_model = replace(
            model,
            shapes={name: tuple(bottom.shape)},
            inputs={} if bottom.input is None else {name: bottom.input},
        )
        try:
            held = read_rows(local_model, source, allow_unseen=allow_unseen).x
        except (DataError, ModelError) as error:
            missed[name] = str(error)
            continue
        codes[name] = question().here(bottom, held[name])
    by_row = [list(codes)] * len(ids)
    named = {id_column or "": ids}
    given = _joint_given(model, named, {**x, **codes}, labels, by_row, missed, talk)
    return replace(given, exposure=local_rows.exposure)


def _joint_given(
    model: Model,
    ids: Mapping[str, np.ndarray],
    x: Mapping[str, Tensor],
    labels: dd.Column | None,
    by_row: Sequence[Sequence[str]],
    missed: Mapping[str, str],
    talk: Progress,
) -> Given:
    """What is predicted; says on standard error which rows the solo model says."""
    assert isinstance(model.spec, JointSpec)
    needed = 1 if model.spec.partial else len(model.spec.partners)
    together = sum(len(each) >= needed for each in by_row)
    here = [name for name in model.spec.partners if any(name in each for each in by_row)]
    missing_clause = f"; missing: {missing_text(missed)}" if missed else ""
    if together:
        talk.warn(
            f"{together} of {len(by_row)} rows are predicted with {', '.join(here)}, the "
            f"others by the model that needs no partner{missing_clause}"
        )
    else:
        talk.warn(
            "no partner's columns are there, so every row is predicted by the model that "
            f"needs none{missing_clause}"
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
    model: Model,
    model_path: Path,
    source: Path,
    id_column: str | None,
    *,
    allow_unseen: bool,
    images: Path | None,
    talk: Progress,
) -> Given:
    """What a table has of what the model takes."""
    if isinstance(model.spec, JointSpec):
        return _read_joint(
            model, model_path, source, id_column, allow_unseen=allow_unseen, talk=talk
        )
    rows = read_rows(model, source, id_column=id_column, allow_unseen=allow_unseen, images=images)
    ids, x, labels = rows.ids, rows.x, rows.labels
    named = {id_column or "": ids}
    if not isinstance(model.spec, OwnersSpec):
        return Given(model, named, x, labels, exposure=rows.exposure)
    answered = [name for name in model.shapes if name in x]
    missing = [name for name in model.shapes if name not in x]
    left = f"; left out of the mean, as their columns are not there: {', '.join(missing)}"
    talk.warn(f"predicted with the data owners {', '.join(answered)}{left if missing else ''}")
    by_row = np.full(len(ids), " ".join(answered), dtype=object)
    return Given(model, named, x, labels, by_row, {"answered": answered, "missing": missing})
