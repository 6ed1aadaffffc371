"""Inputs of a saved model's prediction: a table alone, or with data owners and partners.

A label owner's model of FedOptimus predicts with data owners: with their networks beside it, from
one table with the columns of those that are there, or from ids, with those on other machines that
come and answer (``node/joint_prediction.py``).

A joint model of APFed-D or APFed-S predicts with its partners in the same two ways; rows that a
partner does not answer for are predicted by the solo model that is in the same folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail import data as dd
from dovetail.data.datasets import ids_of
from dovetail.data.kinds import ID
from dovetail.data.tables import csv_names, table_parts
from dovetail.errors import ConfigError, DataError, ModelError, NetworkError
from dovetail.methods.base import SILENT, Progress, Site
from dovetail.methods.inference import Answers, missing_text
from dovetail.models import Model, load
from dovetail.models.folders import NAME as KEYS
from dovetail.models.joined import open_model
from dovetail.models.learners.assisted_joint import AssistedSpec
from dovetail.models.learners.joint import JointSpec, StacksSpec
from dovetail.models.model_folders import JOINT, kind_of, model_folder
from dovetail.models.owners import OwnersSpec, load_bottom
from dovetail.models.raw import RawRows, Takes, read_rows, usable_rows
from dovetail.node.engines import ElsewhereSection
from dovetail.node.partysections import read_party_file
from dovetail.settings.labels import label_columns
from dovetail.settings.sources import is_csv


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
        owners: facts about data owners, for JSON.
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
    section: ElsewhereSection | None = None,
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
        talk: called with whose part is in the predictions, and whose is not.

    Raises:
        ConfigError: half of what it takes to ask others.
        ModelError: no such model, or one that does not go with the rows.
        DataError: rows or ids that cannot be used.
        NetworkError: no data owner answers.
    """
    rows = _Rows(source, party, id_column, allow_unseen, talk)
    if section is None:
        path = model_folder(folder)
        model = open_model(path)
        names = () if party is None or id_column is not None else _ids_of(party)
        if len(names) == 1:
            rows = replace(rows, id_column=names[0])
        given = rows.usable(model) if partial else rows.all(model, path, images)
        return given if len(names) < 2 else replace(given, ids=rows.columns(names))
    if partial:
        raise ConfigError("--partial is for a model that predicts alone; leave it out")
    if party is None:
        raise ConfigError(
            "to predict with data owners on other machines give --party, --partners and --listen, "
            "for example --party north.toml --partners clinic,lab --listen 0.0.0.0:7443"
        )
    if images is not None:
        raise ConfigError("--images is for a model that predicts alone; leave it out")
    # What asks others is a tenth of the memory of a process that predicts alone.
    from dovetail.node.partyfile import open_site

    if (joint := joint_folder(folder)) is not None:
        return rows.with_partners(load(joint), open_site(party), section)
    if allow_unseen:
        raise ConfigError(
            "--allow-unseen is for a table of columns; data owners on other machines take "
            "categories unseen in training as missing, leave it out"
        )
    return rows.with_owners(load(model_folder(folder)), open_site(party), section)


#: Bytes of a CSV file that are predicted at a time, if it has more than twice as many.
PART_BYTES = 1_000_000


def in_parts(
    folder: Path, source: Path, *, id_column: str | None = None, allow_unseen: bool = False
) -> tuple[Model, Iterator[tuple[dd.Table, Given]]] | None:
    """The model, and the rows of a long CSV file part by part; None if they are read as a whole.

    A whole is read of what is short or no CSV file, of events, of rows with labels, which are
    scored, and for models that predict with data owners or partners.

    Raises:
        ModelError: no such model.
        DataError: while the parts are read: rows that cannot be used.
    """
    if not (is_csv(source) and source.is_file() and hasattr(os, "memfd_create")):
        return None
    if source.stat().st_size <= 2 * PART_BYTES:
        return None
    model = open_model(model_folder(folder))
    encoders = [each for each in model.inputs.values() if isinstance(each, dd.TableEncoder)]
    whole = len(encoders) < len(model.shapes) or any(each.events for each in encoders)
    label = model.about.get("label")
    labels = {*label_columns(label)} if isinstance(label, str) else {label}
    names = {*csv_names(source)}
    if (
        whole
        or isinstance(model.spec, (JointSpec, OwnersSpec))
        or label in names
        or labels <= names
    ):
        return None

    def parts() -> Iterator[tuple[dd.Table, Given]]:
        num_rows = 0
        for table in table_parts(source, PART_BYTES):
            rows = read_rows(model, table, id_column=id_column, allow_unseen=allow_unseen)
            ids = rows.ids if id_column is not None else rows.ids + num_rows
            num_rows += table.num_rows
            yield table, Given(model, {id_column or "": ids}, rows.x, None, exposure=rows.exposure)

    return model, parts()


def _ids_of(party: Path) -> tuple[str, ...]:
    """The columns that name a sample, by a party file."""
    names = read_party_file(party).party.id
    return (names,) if isinstance(names, str) else names


def joint_folder(folder: Path) -> Path | None:
    """The folder of a joint model, if it is meant: itself, or that of a run with one."""
    for path in (folder, folder / "models" / JOINT):
        if kind_of(path) in (StacksSpec.kind, AssistedSpec.kind):
            return path
    return None


@dataclass(frozen=True)
class _Rows:
    """Rows that are to be predicted, and how they are read; see ``gather``."""

    source: Path
    party: Path | None
    id_column: str | None
    allow_unseen: bool
    talk: Progress

    def read(self, model: Takes, images: Path | None = None) -> RawRows:
        """The table's rows, as a model takes them."""
        return read_rows(
            model,
            self.source,
            id_column=self.id_column,
            allow_unseen=self.allow_unseen,
            images=images,
        )

    def columns(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Columns of ids, as they are printed."""
        table = dd.read_table(self.source)
        return {name: ids_of(str(self.source), name, table.column(name, ID)) for name in names}

    def named(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """Ids by the column that they are of."""
        return {self.id_column or "": ids}

    # --- With all networks in one place -----------------------------------------------------------

    def usable(self, model: Model) -> Given:
        """The rows of a table that can be used, and why the others cannot.

        Raises:
            DataError: no row can be used.
            ModelError: a model that does not predict from one table alone.
        """
        table = dd.read_table(self.source)
        usable, refused, num_rows = usable_rows(model, table, allow_unseen=self.allow_unseen)
        rows = read_rows(model, usable, id_column=self.id_column, allow_unseen=self.allow_unseen)
        ids = np.arange(num_rows)
        if self.id_column is not None:
            column = table.column(self.id_column, ID)
            ids = ids_of(table.description, self.id_column, column)
        return Given(
            model, self.named(ids), rows.x, rows.labels, refused=refused, exposure=rows.exposure
        )

    def all(self, model: Model, model_path: Path, images: Path | None) -> Given:
        """Columns of a table that the model takes."""
        if isinstance(model.spec, JointSpec):
            return self._joint_here(model, model.spec, model_path)
        rows = self.read(model, images)
        named, x = self.named(rows.ids), rows.x
        if not isinstance(model.spec, OwnersSpec):
            return Given(model, named, x, rows.labels, exposure=rows.exposure)
        answered = [name for name in model.shapes if name in x]
        missing = [name for name in model.shapes if name not in x]
        left = f"; left out of the mean, as their columns are not there: {', '.join(missing)}"
        self.talk.warn(
            f"predicted with the data owners {', '.join(answered)}{left if missing else ''}"
        )
        by_row = np.full(len(rows.ids), " ".join(answered), dtype=object)
        about = {"answered": answered, "missing": missing}
        return Given(model, named, x, rows.labels, by_row, about)

    def _joint_here(self, model: Model, spec: JointSpec, model_path: Path) -> Given:
        """A joint model's rows, from a table that may have the partners' columns, too."""
        from dovetail.node.joint_prediction import question_of

        rows = self.read(model)
        codes: dict[str, Tensor] = {}
        missed: dict[str, str] = {}
        question = cache(lambda: question_of(spec, model_path / KEYS))
        for name in spec.partners:
            folder = model_path.parent / name
            if not (folder / "bottom.json").exists():
                missed[name] = f"its networks are not in {folder}"
                continue
            bottom = load_bottom(folder)
            if isinstance(bottom.input, dd.TableEncoder) and not self.source.is_dir():
                columns = dd.read_table(self.source).names
                lacking = [column for column in bottom.input.columns if column not in columns]
                if lacking:
                    missed[name] = f"{self.source} lacks its column {lacking[0]!r}"
                    continue
            inputs = {} if bottom.input is None else {name: bottom.input}
            local_model = replace(model, shapes={name: tuple(bottom.shape)}, inputs=inputs)
            try:
                held = read_rows(local_model, self.source, allow_unseen=self.allow_unseen).x
            except (DataError, ModelError) as error:
                missed[name] = str(error)
                continue
            codes[name] = question().here(bottom, held[name])
        by_row = [list(codes)] * len(rows.ids)
        return self._joint(model, self.named(rows.ids), rows, codes, by_row, missed)

    # --- With those on other machines -------------------------------------------------------------

    def _identified(self, site: Site, model: Model) -> tuple[dd.PartyTable, dict[str, np.ndarray]]:
        """The rows by who they are, with labels if it has them; and the columns of ids."""
        names = site.party.id if self.id_column is None else self.id_column
        label, path = model.about.get("label"), str(self.source)
        known = label if dd.read_table(self.source).has(label) else None
        encode = None if known is None else site.table.label_encode
        rows = dd.read_party_table(
            site.name, path, id=names, label=known, columns=(), encode=encode
        )
        return rows, self.columns((names,) if isinstance(names, str) else names)

    def with_owners(self, model: Model, site: Site, section: ElsewhereSection) -> Given:
        """Answers of data owners about the ids in a table.

        Raises:
            ModelError: not this label owner's model.
            DataError: ids that cannot be used.
            NetworkError: no data owner answers.
        """
        from dovetail.node.joint_prediction import Asker

        rows, ids = self._identified(site, model)
        with Asker(site, model, section, talk=self.talk) as asker:
            answer = asker.ask(rows.ids)
        answered = np.array([" ".join(each) for each in _by_row(answer.answered)], dtype=object)
        predicted = np.flatnonzero(answered != "")
        if not len(predicted):
            raise NetworkError(
                f"{self.source}: no data owner answers for any row: {missing_text(answer.missed)}"
            )
        _print_answered(answer, self.talk)
        left = np.flatnonzero(answered == "")
        if len(left):
            shown = ["/".join(str(values[row]) for values in ids.values()) for row in left[:5]]
            more = ", ..." if len(left) > len(shown) else ""
            self.talk.warn(
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

    def with_partners(self, model: Model, site: Site, section: ElsewhereSection) -> Given:
        """A joint model's rows, with the codes of partners; who does not come is done without.

        Raises:
            ModelError: not this label owner's model.
            DataError: rows or ids that cannot be used.
        """
        from dovetail.node.joint_prediction import Asker

        rows, ids = self._identified(site, model)
        read = read_rows(model, self.source, allow_unseen=self.allow_unseen)
        codes: dict[str, Tensor] = {}
        missed: Mapping[str, str]
        by_row: Sequence[Sequence[str]] = [()] * len(rows.ids)
        with Asker(site, model, section, talk=self.talk) as asker:
            try:
                answer = asker.ask(rows.ids)
                codes, missed = dict(answer.codes), answer.missed
                by_row = _by_row(answer.answered)
            except NetworkError as failure:
                missed = {name: str(failure) for name in section.partners}
        return self._joint(model, ids, replace(read, labels=rows.labels), codes, by_row, missed)

    def _joint(
        self,
        model: Model,
        ids: Mapping[str, np.ndarray],
        rows: RawRows,
        codes: Mapping[str, Tensor],
        by_row: Sequence[Sequence[str]],
        missed: Mapping[str, str],
    ) -> Given:
        """Joint predictions; prints on standard error which rows the solo model predicts."""
        assert isinstance(model.spec, JointSpec)
        needed = 1 if model.spec.partial else len(model.spec.partners)
        together = sum(len(each) >= needed for each in by_row)
        here = [name for name in model.spec.partners if any(name in each for each in by_row)]
        missing_clause = f"; missing: {missing_text(missed)}" if missed else ""
        if together:
            self.talk.warn(
                f"{together} of {len(by_row)} rows are predicted with {', '.join(here)}, the "
                f"others by the model that needs no partner{missing_clause}"
            )
        else:
            self.talk.warn(
                "no partner's columns are there, so every row is predicted by the model that "
                f"needs none{missing_clause}"
            )
        return Given(
            model,
            ids,
            {**rows.x, **codes},
            rows.labels,
            np.array([" ".join(each) for each in by_row], dtype=object),
            {
                "answered": here,
                "missing": list(missed),
                "reasons": dict(missed),
                "predicted_together": together,
            },
            exposure=rows.exposure,
        )


def _by_row(answered: Mapping[str, Tensor]) -> list[list[str]]:
    """Of each row, who answers for it."""
    by_row = zip(*(values.tolist() for values in answered.values()), strict=True)
    return [[name for name, is_in in zip(answered, row, strict=True) if is_in] for row in by_row]


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
