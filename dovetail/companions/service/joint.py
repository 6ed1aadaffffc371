"""A joint model in service: its partners are asked about the rows of each request.

Those that are there answer within a deadline, or the model that needs nobody says the row; each
answer names which it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail import data as dd
from dovetail.api.reading import joint_folder
from dovetail.companions.service.rows import Asked
from dovetail.companions.service.served import Answered, Served
from dovetail.data.tables import InMemory
from dovetail.errors import ConfigError
from dovetail.methods.base import Progress
from dovetail.methods.inference import Question
from dovetail.models import Model, load
from dovetail.models.learners.joint import JointSpec
from dovetail.models.model_folders import model_folder
from dovetail.models.raw import read_rows
from dovetail.node.engines import StreamSection
from dovetail.node.joint_prediction import JointServing, check_asks, keys_of, question_of
from dovetail.node.partyfile import open_site


def served_folder(folder: Path) -> Path:
    """The folder of a joint model, if there is one, else of the model that predicts alone."""
    return joint_folder(folder) or model_folder(folder)


def joint_serving(
    models: Mapping[str, Path],
    party: Path,
    section: StreamSection,
    *,
    ids: Path | None,
    within_s: float,
    talk: Progress,
) -> JointServing:
    """Context that asks the partners of these models, once it is entered.

    Args:
        models: name -> folder.
        party: the party file of who serves.
        section: where partners connect.
        ids: a table with the ids that may be asked about; None: the party file's table.
        within_s: how long an answer may take.
        talk: called with who comes and goes.

    Raises:
        ConfigError: no joint model among them, or an id of several columns.
        ModelError: models of somebody else.
        DataError: ids that cannot be read.
    """
    site = open_site(party)
    joint = [load(path) for path in models.values() if joint_folder(path) is not None]
    if not joint:
        raise ConfigError(
            "--partners is for a joint model, and none of these is one; name the run's folder, or "
            "RUN/models/joint (apfed and apfed-d leave one)"
        )
    for model in joint:
        trained = check_asks(site, model, section)
        assert isinstance(model.spec, JointSpec)
        question_of(model.spec, keys_of(site, trained))  # a key that is missing is told now
    id_column(site.party.id)
    known = site.table.ids
    if ids is not None:
        known = dd.read_party_table(site.name, str(ids), id=site.party.id, columns=()).ids
    return JointServing(site, known, section, within_s=within_s, talk=talk)


def id_column(names: str | Sequence[str]) -> str:
    """The column of a request's rows that says who they are.

    Raises:
        ConfigError: several columns do.
    """
    if isinstance(names, str):
        return names
    if len(names) == 1:
        return names[0]
    raise ConfigError(
        f"a request names a row by one column, and the party file's id is {list(names)}; join "
        "them into one column at every party"
    )


@dataclass(frozen=True, eq=False)
class JointPredictor:
    """Predicts rows of a joint model with whoever of its partners answers.

    Attributes:
        serving: asks them.
    """

    serving: JointServing
    _questions: dict[str, Question] = field(default_factory=dict)

    def _question(self, model: Model) -> Question:
        """Question to partners; an encrypted answer's key is read once."""
        assert isinstance(model.spec, JointSpec)
        trained = str(model.about.get("run"))
        if trained not in self._questions:
            self._questions[trained] = question_of(model.spec, keys_of(self.serving.site, trained))
        return self._questions[trained]

    async def __call__(self, served: Served, asked: Asked, ids: Sequence[Any]) -> Answered:
        """Answer of the joint model; if no partner answers, no prediction, and why."""
        model = served.joint
        assert model is not None
        assert isinstance(model.spec, JointSpec)
        agreed_rows = self.serving.rows_of(ids)
        rows = [row for row, agreed in enumerate(agreed_rows) if agreed is not None]
        codes: dict[str, Tensor] = {}
        missing = dict.fromkeys(model.spec.partners, "is not asked")
        if not rows:
            why = "none of these ids is among those that were agreed on"
            return Answered(None, [()] * len(ids), dict.fromkeys(missing, why))
        futures = self.serving.ask(
            str(model.about.get("run")),
            self._question(model),
            [agreed for agreed in agreed_rows if agreed is not None],
        )
        waiting = {name: asyncio.wrap_future(each) for name, each in futures.items()}
        done, _ = await asyncio.wait(waiting.values(), timeout=self.serving.within_s)
        for name, each in waiting.items():
            if each not in done:
                each.cancel()
                missing[name] = f"did not answer within {self.serving.within_s:g} s"
            elif (failure := each.exception()) is not None:
                missing[name] = str(failure)
            else:
                del missing[name]
                codes[name] = torch.full((len(ids), each.result().shape[1]), torch.nan)
                codes[name][rows] = each.result()
        by = _answering(model.spec, codes, len(ids))
        if not any(by):
            return Answered(None, by, missing)
        rows_of = read_rows(model, table_of_feeds(model, asked), allow_unseen=True).x
        prediction = await asyncio.to_thread(model.predictions, {**rows_of, **codes})
        return Answered(prediction, by, missing)


def _answering(
    spec: JointSpec, codes: Mapping[str, Tensor], num_rows: int
) -> list[tuple[str, ...]]:
    """Partners whose answer is in each row; () if the model alone predicts it."""
    there = {name: (~names.isnan().any(dim=1)).tolist() for name, names in codes.items()}
    by = [tuple(name for name, names in there.items() if names[row]) for row in range(num_rows)]
    needed = 1 if spec.partial else len(spec.partners)
    return [names if len(names) >= needed else () for names in by]


def table_of_feeds(model: Model, asked: Asked) -> dd.Table:
    """The rows of a request as a table, which a model reads."""
    columns: dict[str, dd.Column] = {}
    for encoder in model.inputs.values():
        assert isinstance(encoder, dd.TableEncoder)
        for column in encoder.fitted:
            values: np.ndarray = asked.feeds[column.name][:, 0]
            is_text = column.is_text
            missing = values == "" if is_text else np.isnan(values)
            columns[column.name] = dd.Column(values, missing, encoder.schema[column.name])
    return dd.Table("the body", tuple(columns), len(asked), InMemory(columns.__getitem__))
