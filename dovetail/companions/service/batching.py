"""Requests that wait together are predicted together: one run of the model for all of them.

Nothing waits for others to come: whoever is there when the event loop turns makes the batch. So one
request alone costs nothing more, and sixty-four cost one run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.companions.service.rows import Asked
from dovetail.companions.service.served import Served
from dovetail.models.prediction import Prediction

#: Up to so many rows are predicted in the event loop itself; more go to a thread, so that others
#: are answered meanwhile.
_AT_ONCE = 256


@dataclass(eq=False)
class _Waiting:
    asked: Asked
    answer: asyncio.Future[Prediction]


class Batcher:
    """Predicts for many requests of many models.

    Args:
        seen: called with the rows of each run of a model.
    """

    def __init__(self, seen: Callable[[Served, int], None]) -> None:
        self._waiting: dict[int, tuple[Served, list[_Waiting]]] = {}
        self._seen = seen
        self._tasks: set[asyncio.Task[None]] = set()

    async def predict(self, model: Served, asked: Asked) -> Prediction:
        """Prediction of the model for these rows."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Prediction] = loop.create_future()
        if id(model) not in self._waiting:
            self._waiting[id(model)] = (model, [])
            loop.call_soon(self._flush, id(model))
        self._waiting[id(model)][1].append(_Waiting(asked, answer))
        return await answer

    def _flush(self, key: int) -> None:
        model, waiting = self._waiting.pop(key)
        waiting = [each for each in waiting if not each.answer.done()]  # who went away
        if not waiting:
            return
        num_rows = sum(len(each.asked) for each in waiting)
        self._seen(model, num_rows)
        if num_rows <= _AT_ONCE:
            _answer(waiting, lambda: _run(model, waiting))
            return
        task = asyncio.get_running_loop().create_task(_in_thread(model, waiting))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _in_thread(model: Served, waiting: Sequence[_Waiting]) -> None:
    try:
        predictions = await asyncio.to_thread(_run, model, waiting)
    except Exception as error:
        for each in waiting:
            if not each.answer.done():
                each.answer.set_exception(error)
        return
    _answer(waiting, lambda: predictions)


def _answer(waiting: Sequence[_Waiting], run: Callable[[], Prediction]) -> None:
    try:
        predictions = run()
    except Exception as error:  # whoever asked is told
        for each in waiting:
            if not each.answer.done():
                each.answer.set_exception(error)
        return
    start = 0
    for each in waiting:
        part = slice(start, start + len(each.asked))
        start = part.stop
        if each.answer.done():
            continue
        each.answer.set_result(predictions.part(part))


def _run(model: Served, waiting: Sequence[_Waiting]) -> Prediction:
    if len(waiting) == 1:
        return model.predict(waiting[0].asked.feeds)
    names = waiting[0].asked.feeds
    feeds = {name: np.concatenate([each.asked.feeds[name] for each in waiting]) for name in names}
    return model.predict(feeds)
