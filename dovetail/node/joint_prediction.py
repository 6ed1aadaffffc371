"""A label owner that predicts with parties on other machines (FedOptimus, APFed-D, APFed-S).

It drives, they join it: ``dovetail join clinic.toml --driver HOST:PORT --name north``. Which rows
are meant is agreed on by private set intersection, for this prediction only; then each data owner
or partner encodes those that it has, with the network that it kept of the run that the label
owner's model is of.

``Asker`` agrees on samples and asks, once. A service cannot do that for each request: a partner
lets its ids be compared a few times a day. So with ``JointServing`` each partner agrees once, when
it comes, on all samples that may be asked about; from then on a question is one message. A partner
that fails, or comes back as another process, agrees again; until then it is done without.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from dovetail import alignment as psi
from dovetail import methods
from dovetail.alignment.ids import normalise
from dovetail.alignment.stored import predicting_run
from dovetail.errors import (
    AlignmentError,
    ConfigError,
    DovetailError,
    ModelError,
    NetworkError,
    PartyError,
)
from dovetail.methods.base import SILENT, Progress, Site
from dovetail.methods.inference import Answers, Question, ask, missing_text
from dovetail.models import Model
from dovetail.models.folders import key_file, read_keys
from dovetail.models.learners.joint import JointSpec
from dovetail.models.owners import TopSpec
from dovetail.network import Engine
from dovetail.node.driver import Listener
from dovetail.node.engines import ElsewhereSection, StreamSection
from dovetail.node.reach import site_reaches
from dovetail.node.site_folder import site_folder_of

#: Where a label owner's site has the keys that read what partners answer.
KEYS = "keys"

#: Seconds that data owners are waited for, unless somebody says.
WAIT_S = 60.0


@dataclass(frozen=True, eq=False)
class Agreed:
    """Agreement on samples with partners.

    Attributes:
        engine: reaches them, in the run of this agreement.
        sample_N: row of the label owner's ids -> sample.
        held: partner -> (S,) bool, which samples it has.
    """

    engine: Engine
    sample_N: Tensor
    held: Mapping[str, Tensor]


class Agreeing(Listener):
    """A label owner that agrees on samples with partners who come.

    Args:
        site: its party file.
        section: the partners.
        talk: told who is there.
    """

    def __init__(self, site: Site, section: ElsewhereSection, *, talk: Progress) -> None:
        reach = site_reaches(site, section, talk=talk)
        super().__init__(site.name, site_folder_of(site.path), section, reach, talk=talk)
        self.site = site

    def aligned(
        self, run: str, partners: tuple[str, ...], ids: np.ndarray, **options: Any
    ) -> Agreed:
        """Agreement on the samples with these ids.

        Raises:
            PartyError: a partner refuses, fails or goes.
        """
        engine, id_as = self._engine(run, partners), self.site.party.id_as
        rows = psi.align(engine, ids, id_as=id_as, **options).alignment.rows
        held = {name: rows[name] >= 0 for name in partners}
        return Agreed(engine, rows[self.name].argsort(), held)


class Asker(Agreeing):
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
        super().__init__(site, section, talk=talk)
        self._trained = trained
        self._question = question_of(model.spec, keys_of(site, trained))

    def ask(self, ids: np.ndarray) -> Answers:
        """Answers of the parties that come about the samples with these ids, by row.

        Raises:
            AlignmentError: ids that cannot be compared.
            NetworkError: no party came, or none answered.
        """
        agreed, missed = self._agree(ids)
        answers = ask(agreed.engine, self._trained, self._question, agreed.held)
        none = [name for name, held_S in agreed.held.items() if not held_S.any()]
        why = dict.fromkeys(none, "has none of these samples")
        return answers.of(agreed.sample_N, {**missed, **answers.missed, **why})

    def _agree(self, ids: np.ndarray) -> tuple[Agreed, dict[str, str]]:
        """With those who come, on samples; and why others are not among them.

        Raises:
            AlignmentError: ids that cannot be compared.
            NetworkError: nobody came, or nobody agreed on samples.
        """
        here, missed = self._come()
        run = predicting_run(secrets.token_hex(8))
        while here:
            try:
                with self._talk.points("aligning") as bar:
                    return self.aligned(run, here, ids, progress=bar), missed
            except PartyError as failure:  # the others begin again, without it
                missed[failure.party] = failure.cause
                here = tuple(name for name in here if name != failure.party)
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


#: Seconds from one look at whether a partner is here to the next.
_TICK_S = 0.2
#: Seconds until a partner that failed is agreed with again: at first, and at most.
_FIRST_S, _MOST_S = 1.0, 300.0

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Asked:
    """Rows that one request asks about, by one model."""

    trained: str
    question: Question
    rows_B: Tensor
    answer: Future[Tensor]


class JointServing(Agreeing):
    """A label owner whose partners are asked about rows as long as the context is open.

    Args:
        site: its party file.
        ids: (N,) of the samples that may be asked about.
        section: the partners. Nobody waits for them: who is not there is done without.
        within_s: how long an answer about rows may take.
        talk: told who is there, and who is lost.

    Attributes:
        site, within_s: as given.

    Raises:
        ConfigError: its own name among the partners, or certificates that will not do.
        AlignmentError: ids that cannot be compared.
    """

    def __init__(
        self,
        site: Site,
        ids: np.ndarray,
        section: StreamSection,
        *,
        within_s: float,
        talk: Progress = SILENT,
    ) -> None:
        # Who is not connected is done without at once.
        section = section.model_copy(update={"grace_s": 0.0})
        super().__init__(site, section, talk=talk)
        self.within_s = within_s
        self._ids = ids
        self._id_as = site.party.id_as
        known = normalise(ids, party=site.name, id_as=self._id_as)
        self._row_of = {value: row for row, value in enumerate(known.values)}
        self._asked: dict[str, _Partner] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        self._asked = {name: _Partner(self, name) for name in self.partners}
        return self

    def __exit__(self, kind: type[BaseException] | None, *others: object) -> None:
        for each in self._asked.values():
            each.stop()
        super().__exit__(kind, *others)
        for each in self._asked.values():
            each.join()

    def rows_of(self, ids: Sequence[Any]) -> list[int | None]:
        """The row of each id; None of one that is not known, or is none."""
        return [self._row(each) for each in ids]

    def _row(self, id: Any) -> int | None:
        if isinstance(id, float) and id.is_integer():  # JSON and CSV have one kind of number
            id = int(id)
        try:
            (value,) = normalise([id], party=self.name, id_as=self._id_as).values
        except AlignmentError:
            return None
        return self._row_of.get(value)

    def ask(
        self, trained: str, question: Question, rows: Sequence[int]
    ) -> dict[str, Future[Tensor]]:
        """Partner -> its (B, E) answer about these rows to come, NaN where it lacks one.

        Args:
            trained: the run whose networks are meant.
            question: of the joint model.
            rows: places among the ids.
        """
        rows_B = torch.tensor(list(rows), dtype=torch.int64)
        return {
            name: each.ask(trained, question, rows_B)
            for name, each in self._asked.items()
            if question.width(name)
        }

    def is_here(self, name: str) -> bool:
        """Whether a partner has a line."""
        return name in self._lines.connected

    def agree(self, name: str) -> Agreed:
        """Agreement of a partner and this party now.

        Raises:
            DovetailError: it refuses, fails or goes.
        """
        run, timeout_s = predicting_run(secrets.token_hex(8)), self._section.timeout_s
        agreed = self.aligned(run, (name,), self._ids, timeout_s=timeout_s)
        num_held = int(agreed.held[name].sum())
        self._talk.print(f"{name} is here and has {num_held:,} of {len(self._ids):,} rows")
        return agreed

    def lost(self, name: str, why: str) -> None:
        """Told that a partner failed."""
        _log.warning("%s: %s", name, why)
        self._talk.warn(f"{name} is done without: {why}")


class _Partner:
    """Partner, and the thread that talks with it."""

    def __init__(self, serving: JointServing, name: str) -> None:
        self._serving = serving
        self._name = name
        self._agreed: Agreed | None = None
        self._why = "has not come yet"
        self._waiting: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name=f"asks-{name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._waiting.put(None)

    def join(self) -> None:
        self._thread.join(2 * self._serving.within_s + 5)

    def ask(self, trained: str, question: Question, rows_B: Tensor) -> Future[Tensor]:
        """Codes to come; a partner that is not there answers at once that it is not."""
        answer: Future[Tensor] = Future()
        why = self._absent()
        if why is not None:
            answer.set_exception(NetworkError(why))
        else:
            self._waiting.put(_Asked(trained, question, rows_B, answer))
        return answer

    def _absent(self) -> str | None:
        if not self._serving.is_here(self._name):
            return "is not connected"
        return self._why if self._agreed is None else None

    def _work(self) -> None:
        pause_s, next_s = _FIRST_S, 0.0
        while not self._stopped:
            good: bool | None = None
            is_here = self._serving.is_here(self._name)
            if self._agreed is None and is_here and time.monotonic() >= next_s:
                self._why = "is agreeing on samples"
                good = self._attempt(self._agree)
            questions = self._next()
            if questions:
                good = self._attempt(lambda: self._answer(questions))  # noqa: B023
                if good:
                    pause_s = _FIRST_S
            if good is False:
                next_s = time.monotonic() + pause_s
                pause_s = min(2 * pause_s, _MOST_S)

    def _next(self) -> list[_Asked]:
        """All that wait."""
        questions: list[_Asked] = []
        with suppress(queue.Empty):
            first = self._waiting.get(timeout=_TICK_S)
            while first is not None:
                questions.append(first)
                first = self._waiting.get_nowait()
        return [each for each in questions if each.answer.set_running_or_notify_cancel()]

    def _agree(self) -> None:
        self._agreed = self._serving.agree(self._name)

    def _attempt(self, do: Callable[[], None]) -> bool:
        """Whether it went well; else the partner has to agree again."""
        try:
            do()
        except DovetailError as failure:
            self._why = getattr(failure, "cause", str(failure))
        except Exception as failure:  # whoever asks is not left waiting by a slip of ours
            _log.exception("%s", self._name)
            self._why = str(failure)
        else:
            return True
        self._agreed = None
        if not self._stopped:
            self._serving.lost(self._name, self._why)
        return False

    def _answer(self, questions: Sequence[_Asked]) -> None:
        """Send one message for all that ask by one model; whoever is not answered gets the cause.

        Raises:
            NetworkError: the partner did not answer.
            MessageError: it answered something else.
        """
        by_model: dict[tuple[str, int], list[_Asked]] = {}
        for each in questions:
            by_model.setdefault((each.trained, id(each.question)), []).append(each)
        try:
            for (trained, _), asked in by_model.items():
                rows_B = torch.cat([each.rows_B for each in asked])
                codes = self._codes(trained, asked[0].question, rows_B)
                parts = codes.split([len(each.rows_B) for each in asked])
                for each, part in zip(asked, parts, strict=True):
                    each.answer.set_result(part)
        except Exception as failure:
            why = getattr(failure, "cause", str(failure))
            for each in questions:
                if not each.answer.done():
                    each.answer.set_exception(NetworkError(why))
            raise

    def _codes(self, trained: str, question: Question, rows_B: Tensor) -> Tensor:
        """(B, E), NaN of rows that the partner lacks.

        Raises:
            NetworkError: it did not answer.
            MessageError: it answered something else.
        """
        agreed = self._agreed
        if agreed is None:
            raise NetworkError(self._why)
        # Each sample once; rows of several requests may be of one.
        asked_A, index_B = agreed.sample_N[rows_B].unique(return_inverse=True)
        codes_AE = torch.full((len(asked_A), question.width(self._name)), torch.nan)
        held_A = agreed.held[self._name][asked_A]
        if held_A.any():
            message = question.message(trained, asked_A[held_A])
            replies = agreed.engine.ask(
                {self._name: message}, question.reply, timeout_s=self._serving.within_s
            )
            reply = replies.or_raise()[self._name]
            codes_AE[held_A] = question.read(self._name, reply, int(held_A.sum()))
        return codes_AE[index_B]
