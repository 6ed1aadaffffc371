"""Each party's own random numbers, so that a run is a function of its seed on every engine."""

from __future__ import annotations

import hashlib
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from dovetail.errors import ConfigError


def derive_seed(seed: int, *purpose: str) -> int:
    """A seed for one purpose; distinct purposes give unrelated seeds."""
    text = "\0".join([str(seed), *purpose]).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:7], "little")


def generator(seed: int, *purpose: str) -> torch.Generator:
    """A CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive_seed(seed, *purpose))


class RandomStream:
    """A context in which torch's global generators are this stream's own.

    Dropout and the initialisation of layers draw from global generators. Inside, they continue
    this stream; outside, the global state is as it was. So two parties in one process draw what
    they would draw in two.
    """

    def __init__(self, seed: int, *purpose: str, device: torch.device | None = None) -> None:
        self._device = device if device is not None and device.type == "cuda" else None
        source = generator(seed, *purpose)
        self._own = source.get_state()
        self._own_cuda: Tensor | None = None
        if self._device is not None:
            self._own_cuda = (
                torch.Generator(self._device).manual_seed(source.initial_seed()).get_state()
            )

    def __enter__(self) -> None:
        self._outer = torch.get_rng_state()
        torch.set_rng_state(self._own)
        if self._device is not None and self._own_cuda is not None:
            self._outer_cuda = torch.cuda.get_rng_state(self._device)
            torch.cuda.set_rng_state(self._own_cuda, self._device)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._own = torch.get_rng_state()
        torch.set_rng_state(self._outer)
        if self._device is not None:
            self._own_cuda = torch.cuda.get_rng_state(self._device)
            torch.cuda.set_rng_state(self._outer_cuda, self._device)

    def state(self) -> dict[str, Any]:
        """Where the stream is, for ``restore``; not from inside it."""
        return {"own": self._own, "cuda": self._own_cuda}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from there.

        Raises:
            ConfigError: the state is of another kind of device.
        """
        if (state["cuda"] is None) != (self._device is None):
            then, now = ("cpu", "cuda") if state["cuda"] is None else ("cuda", "cpu")
            raise ConfigError(
                f"the saved random numbers are of device {then!r}, this run computes on {now!r}; "
                "resume on the same kind of device"
            )
        self._own, self._own_cuda = state["own"], state["cuda"]
