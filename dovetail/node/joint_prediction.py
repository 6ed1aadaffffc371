"""A label owner that predicts with parties on other machines (FedOptimus, APFed-D).

It drives, they join it: ``dovetail join clinic.toml --driver HOST:PORT --name north``. Which rows
are meant is agreed on by private set intersection, for this prediction only; then each data owner
or partner encodes those that it has, with the network that it kept of the run that the label
owner's model is of.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dovetail import alignment as psi
from dovetail import methods
from dovetail.alignment.stored import predicting_run
from dovetail.errors import ConfigError, ModelError, NetworkError, PartyError
from dovetail.methods.base import SILENT, Progress, Site
from dovetail.methods.inference import Answers, Question, ask
from dovetail.models import Model
from dovetail.models.folders import key_file, read_keys
from dovetail.models.learners.joint import JointSpec
from dovetail.models.owners import TopSpec
from dovetail.network import Engine
from dovetail.node.driver import Listener
from dovetail.node.engines import ElsewhereSection
from dovetail.node.reach import site_reaches
from dovetail.node.site_folder import site_folder_of

#: Where a label owner's site has the keys that read what partners answer.
KEYS = "keys"

#: Seconds that data owners are waited for, unless somebody says.
WAIT_S = 60.0


@dataclass(frozen=True, eq=False)
class _Agreed:
    """Agreement on an alignment: which parties came, and which of the samples each has.

    Attributes:
        engine: reaches them.
        held: party -> (N,) bool.
        sample_N: of each row, its sample.
        missed: party -> why it is not among them.
    """

    engine: Engine
    held: Mapping[str, Tensor]
    sample_N: Tensor
    missed: Mapping[str, str]

    def all_missed(self, missed: Mapping[str, str]) -> dict[str, str]:
        """And those of whom there is no answer, or who have no sample."""
        none = [name for name, held_N in self.held.items() if not held_N.any()]
        return {**self.missed, **missed, **dict.fromkeys(none, "has none of these samples")}


class Asker(Listener):
    """A label owner that drives for one prediction.

    Args:
        site: its party file.
        model: its top or its joint model, of a run over a network.
        section: the data owners or partners that are asked, and how long they are waited for.
        talk: told who is waited for.

    Raises:
        ModelError: the model is of somebody else, or of another kind of run.
        ConfigError: its own name among the partners, or certificates that will not do.
    """

    def __init__(
        self, site: Site, model: Model, section: ElsewhereSection, *, talk: Progress = SILENT
    ) -> None:
        trained = check_asks(site, model, section)
        if section.wait_s is None and not section.patient:
            section = section.model_copy(update={"wait_s": WAIT_S})
        reach = site_reaches(site, section, talk=talk)
        super().__init__(site.name, site_folder_of(site.path), section, reach, talk=talk)
        self._site = site
        self._trained = trained
        self._question = question_of(model.spec, keys_of(site, trained))

    def ask(self, ids: np.ndarray) -> Answers:
        """Answers of the parties that come about the samples with these ids, by row.

        Raises:
            AlignmentError: ids that cannot be compared.
            NetworkError: no party came, or none answered.
        """
        agreed = self._agree(ids)
        answers = ask(agreed.engine, self._trained, self._question, agreed.held)
        return answers.of(agreed.sample_N, agreed.all_missed(answers.missed))

    def _agree(self, ids: np.ndarray) -> _Agreed:
        """With those who come, on samples.

        Raises:
            AlignmentError: ids that cannot be compared.
            NetworkError: nobody came, or nobody agreed on samples.
        """
        here, missed = self._come()
        run = predicting_run(secrets.token_hex(8))
        while here:
            engine = self._engine(run, here)
            try:
                with self._talk.points("aligning") as bar:
                    aligned = psi.align(
                        engine,
                        ids,
                        id_as=self._site.party.id_as,
                        progress=bar,
                    ).alignment.rows
            except PartyError as failure:  # the others begin again, without it
                missed[failure.party] = failure.cause
                here = tuple(name for name in here if name != failure.party)
                continue
            held = {name: aligned[name] >= 0 for name in here}
            return _Agreed(engine, held, aligned[self.name].argsort(), missed)
        raise NetworkError(
            f"no data owner answers: {missing_text(missed)}; ask again once one is there"
        )

    def _come(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Parties that came in time, and the causes of those that did not."""
        try:
            self.wait()
        except NetworkError:
            here = self._lines.connected
            if not here:
                raise
            why = f"did not come within {self._section.wait_s:g} s"
            return here, {name: why for name in self.partners if name not in here}
        return self.partners, {}


def question_of(spec: Any, keys: Path) -> Question:
    """Question to the parties that a model predicts with.

    Args:
        spec: of the model.
        keys: where the keys are, if answers come encrypted.

    Raises:
        ModelError: they are not there, or a model that predicts alone.
    """
    for method in methods.every().values():
        if method.together is not None:
            question = method.together(spec, lambda: read_keys(keys))
            if question is not None:
                return question
    raise ModelError(
        f"a model of the kind {spec.kind!r} predicts without others; leave --partners out"
    )


def keys_of(site: Site, trained: str) -> Path:
    """Where a label owner's site has the keys of a run."""
    return key_file(site_folder_of(site.path) / KEYS, trained)


def check_asks(site: Site, model: Model, section: ElsewhereSection) -> str:
    """The run whose networks partners are asked for.

    Raises:
        ModelError: the model is of somebody else, or of another kind of run.
        ConfigError: partners that the model does not have.
    """
    trained = model.about.get("run")
    if not isinstance(model.spec, TopSpec | JointSpec) or not isinstance(trained, str):
        raise ModelError(
            f"the model of party {model.party!r} is no label owner's of a run with data owners "
            "on other machines; name its folder at its site, for example north.site/models/RUN, "
            "(of APFed-D: RUN/models/joint), or leave --party and --partners out"
        )
    if isinstance(model.spec, JointSpec):
        for name in section.partners:
            if name not in model.spec.partners:
                raise ConfigError(
                    f"--partners names {name!r}, and the joint model was trained with "
                    f"{', '.join(model.spec.partners)}: name these"
                )
    if model.party != site.name:
        raise ModelError(
            f"the model is of label owner {model.party!r}, and {site.where} is of "
            f"{site.name!r}; each predicts with its own: name a model of {site.name!r}"
        )
    return trained


def missing_text(missed: Mapping[str, str]) -> str:
    """Text on which parties are missing, and why."""
    return "; ".join(f"{name} ({why})" for name, why in missed.items())
