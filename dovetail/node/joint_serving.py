"""A label owner that keeps the partners of its joint model at hand, to ask about single rows.

``asking.py`` agrees on samples and asks, once. A service cannot do that for each request: a partner
lets its ids be compared a few times a day. So each partner agrees once, when it comes, on all
samples that may be asked about; from then on a question is one message. A partner that fails, or
comes back as another process, agrees again; until then it is done without.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from dovetail import alignment as psi
from dovetail.alignment.ids import normalise
from dovetail.alignment.stored import predicting_run
from dovetail.errors import AlignmentError, DovetailError, NetworkError
from dovetail.methods.base import SILENT, Progress, Site
from dovetail.methods.inference import Question
from dovetail.network import Engine
from dovetail.node.driver import Listener
from dovetail.node.engines import StreamSection
from dovetail.node.reach import site_reaches
from dovetail.node.site_folder import site_folder_of

#: Seconds from one look at whether a partner is here to the next.
_TICK_S = 0.2
#: Seconds until a partner that failed is agreed with again: at first, and at most.
_FIRST_S, _MOST_S = 1.0, 300.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Agreed:
    """Agreement with one partner.

    Attributes:
        engine: reaches it, in the run of this agreement.
        sample_N: row of the label owner's ids -> sample.
        held_S: which samples it has.
    """

    engine: Engine
    sample_N: Tensor
    held_S: Tensor


@dataclass(eq=False)
class _Asked:
    """Rows that one request asks about, by one model."""

    trained: str
    question: Question
    rows_B: Tensor
    answer: Future[Tensor]


class JointServing(Listener):
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
        reach = site_reaches(site, section, talk=talk)
        super().__init__(site.name, site_folder_of(site.path), section, reach, talk=talk)
        self.within_s = within_s
        self.site = site
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

    def agree(self, name: str) -> _Agreed:
        """Agreement of a partner and this party now.

        Raises:
            DovetailError: it refuses, fails or goes.
        """
        engine = self._engine(predicting_run(secrets.token_hex(8)), (name,))
        timeout_s = self._section.timeout_s
        aligned = psi.align(engine, self._ids, id_as=self._id_as, timeout_s=timeout_s)
        rows = aligned.alignment.rows
        held_S = rows[name] >= 0
        self._talk.print(f"{name} is here and has {int(held_S.sum()):,} of {len(self._ids):,} rows")
        return _Agreed(engine, rows[self.name].argsort(), held_S)

    def lost(self, name: str, why: str) -> None:
        """Told that a partner failed."""
        _log.warning("%s: %s", name, why)
        self._talk.warn(f"{name} is done without: {why}")


class _Partner:
    """Partner, and the thread that talks with it."""

    def __init__(self, serving: JointServing, name: str) -> None:
        self._serving = serving
        self._name = name
        self._agreed: _Agreed | None = None
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
        held_A = agreed.held_S[asked_A]
        if held_A.any():
            message = question.message(trained, asked_A[held_A])
            replies = agreed.engine.ask(
                {self._name: message}, question.reply, timeout_s=self._serving.within_s
            )
            reply = replies.or_raise()[self._name]
            codes_AE[held_A] = question.read(self._name, reply, int(held_A.sum()))
        return codes_AE[index_B]
