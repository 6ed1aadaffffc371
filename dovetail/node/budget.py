"""Budget of one driver's runs at a party, all of them together: memory and disk.

Memory is counted as networks are made, tensor by tensor, before each is: a message that asks for a
network too large is refused when the first of its tensors would not fit, and nothing was allocated
for it. Disk is counted before a state or a model is written. Where there is no room, older runs of
the same driver make it first: out of memory they go back to what they have saved, and their saved
states are dropped, the oldest first. Other drivers' runs are not touched.

What is not counted is bounded elsewhere: a message and what is computed from it, by
``policy.max_message_mb``.
"""

from __future__ import annotations

import json
import shutil
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dovetail.errors import ConfigError
from dovetail.network import Message, Party
from dovetail.network.certificates import certificate_name
from dovetail.network.checkpoint import Restore

#: A weight takes itself, its gradient and the optimizer's momentum.
_PER_WEIGHT = 3

_MB = 2**20


class BudgetError(ConfigError):
    """A driver's runs would take more than the policy allows."""


class Budgets:
    """The budgets of one party, a driver each.

    Args:
        site_folder: the party's folder.
        max_memory_mb: of the networks of a driver's runs, in MiB.
        max_disk_mb: of what is saved of a driver's runs, in MiB.
    """

    def __init__(self, site_folder: Path, *, max_memory_mb: float, max_disk_mb: float) -> None:
        self._site_folder = site_folder
        self._max_memory_mb = max_memory_mb
        self._max_disk_mb = max_disk_mb
        self._runs: dict[str, weakref.WeakSet[Budgeted]] = {}

    def within(self, driver: str, run: str, make: Callable[[], Party]) -> Budgeted:
        """The party of a run, whose networks are counted as they are made."""
        party = Budgeted(self, driver, run, make)
        self._runs.setdefault(driver, weakref.WeakSet()).add(party)
        return party

    def make_memory(self, party: Budgeted) -> None:
        """Room for what this party has been counted, if its driver's older runs can make it.

        Raises:
            BudgetError: naming the key that would allow it.
        """
        runs = self._runs[party.driver]
        while sum(each.num_bytes for each in runs) > self._max_memory_mb * _MB:
            others = [each for each in runs if each.run != party.run and each.num_bytes]
            if not others:
                raise BudgetError(
                    f"refuses the run {party.run!r}: its networks would take more than the "
                    f"{self._max_memory_mb:g} MB of memory that its policy allows all runs of one "
                    "driver together; make them smaller, or its policy.max_memory_mb larger"
                )
            min(others, key=lambda each: each.used).unload()

    def make_disk(self, driver: str, folder: Path, num_bytes: int) -> None:
        """Room for so many more bytes of a driver's in this folder.

        Raises:
            BudgetError: naming the key that would allow it.
        """
        while self._on_disk(driver) + num_bytes > self._max_disk_mb * _MB:
            others = [each for each in self._states(driver).glob("*") if each != folder]
            if not others:
                raise BudgetError(
                    f"refuses to write {num_bytes / _MB:,.0f} MB: its policy allows "
                    f"{self._max_disk_mb:g} MB on its disk for all runs of one driver together; "
                    "delete old models of its site, make networks smaller, or its "
                    "policy.max_disk_mb larger"
                )
            shutil.rmtree(min(others, key=last_written), ignore_errors=True)

    def _states(self, driver: str) -> Path:
        return self._site_folder / "checkpoints" / certificate_name(driver)

    def _on_disk(self, driver: str) -> int:
        """Bytes of a driver's states, and of the models that came of its runs."""
        models = (
            folder
            for folder in (self._site_folder / "models").glob("*")
            if driver_of(folder) in (driver, None)
        )
        return sum(_size(folder) for folder in (self._states(driver), *models))


class Budgeted:
    """A party of one run; unloaded where a newer run needs the room, and made again when asked.

    Attributes:
        num_bytes: what its networks take.
        used: when it was asked last.
    """

    def __init__(self, budgets: Budgets, driver: str, run: str, make: Callable[[], Party]) -> None:
        self._budgets = budgets
        self._make = make
        self._party: Party | None = None
        self.driver = driver
        self.run = run
        self.num_bytes = 0
        self.used = time.monotonic()

    @property
    def accepts(self) -> tuple[type[Message], ...]:
        return self.party.accepts

    @property
    def party(self) -> Party:
        """The party itself."""
        if self._party is None:
            with self._counted():
                self._party = self._make()
        return self._party

    @property
    def loaded(self) -> Party | None:
        """The party itself, if it is in memory."""
        return self._party

    def handle(self, message: Message) -> Message:
        self.used = time.monotonic()
        party = self.party
        if type(message).__name__.startswith("Begin") or isinstance(message, Restore):
            with self._counted():
                return party.handle(message)
        return party.handle(message)

    def unload(self) -> None:
        """Forget it but for what it has saved."""
        self._party = None
        self.num_bytes = 0

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Networks made in here are this party's, instead of those that it had."""
        self.num_bytes = 0

        def take(num_bytes: int) -> None:
            self.num_bytes += _PER_WEIGHT * num_bytes
            self._budgets.make_memory(self)

        try:
            with _Counting(take):
                yield
        except BudgetError:
            self.num_bytes = 0
            raise


class _Counting(TorchFunctionMode):
    """Reports how large each tensor will be that is about to be made on this machine."""

    def __init__(self, take: Callable[[int], None]) -> None:
        super().__init__()
        self._take = take

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _MAKES and str(kwargs.get("device")) != "meta":
            # The same call where tensors have a size and no memory, and nothing is drawn.
            other = {key: each for key, each in kwargs.items() if key != "generator"}
            self._take(func(*args, **{**other, "device": "meta"}).nbytes)
        elif func is Tensor.repeat and args[0].device.type != "meta":
            self._take(args[0].to("meta").repeat(*args[1:], **kwargs).nbytes)
        return func(*args, **kwargs)


#: What networks and optimizers are made with.
_MAKES = {
    *(torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn),
    *(torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like),
}


def _size(folder: Path) -> int:
    total = 0
    for path in folder.glob("**/*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def last_written(folder: Path) -> float:
    """When a file of it was written last; 0 where it is gone meanwhile."""
    with suppress(OSError):
        return max(each.stat().st_mtime for each in (folder, *folder.iterdir()))
    return 0.0


def driver_of(model: Path) -> str | None:
    """Whose run a model came of; None where it does not say."""
    for name in ("model.json", "bottom.json"):
        with suppress(OSError, ValueError, AttributeError):
            driver = json.loads((model / name).read_text(encoding="utf-8")).get("driver")
            return driver if isinstance(driver, str) else None
    return None
