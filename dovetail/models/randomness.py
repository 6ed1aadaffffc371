"""Each party's own random numbers: a function of the run's seed and of its site's secret.

The seed travels: whoever knows it and a party's widths could compute what that party draws. So a
site mixes in a secret that never leaves it, and no other can compute its weights, masks, dropout or
order of batches. PyTorch's CPU generator takes 32 bits of a seed and no more, few enough to try
them all; with a secret its whole state is drawn from it.

Parties that are simulated in one process have no secret: what they draw is a function of the run's
seed and their name, and the same run gives the same bits again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.errors import ConfigError

#: What a site mixes into its random numbers; asked anew whenever training begins.
Secret = Callable[[], bytes]


def key_of(secret: Secret | None) -> bytes | None:
    """Key that is mixed in from here on; None in simulation."""
    return None if secret is None else secret()


#: Words of the Mersenne twister's state, and where they and its two counters lie in what
#: ``torch.Generator.get_state`` gives.
_WORDS = 624
_LEFT, _NEXT, _STATE = 8, 16, 24


def derive_seed(seed: int, *purpose: str, secret: bytes | None = None) -> int:
    """A seed for one purpose; distinct purposes give unrelated seeds.

    Args:
        seed: of the run.
        purpose: what it is for.
        secret: of the site where it is; None in simulation, and where others may know the seed.
    """
    if secret is not None:
        return int.from_bytes(derive_key(secret, str(seed), *purpose, num_bytes=7), "little")
    return int.from_bytes(
        hashlib.sha256("\0".join([str(seed), *purpose]).encode()).digest()[:7], "little"
    )


def generator(seed: int, *purpose: str, secret: bytes | None = None) -> torch.Generator:
    """A CPU generator for one purpose.

    Args:
        seed: of the run.
        purpose: what it is for; distinct purposes give unrelated numbers.
        secret: of the site where it is; None in simulation.
    """
    if secret is None:
        return torch.Generator().manual_seed(derive_seed(seed, *purpose))
    made = torch.Generator().manual_seed(0)
    state = made.get_state().numpy()
    drawn = derive_key(secret, str(seed), *purpose, num_bytes=4 * _WORDS)
    words = np.frombuffer(drawn, "<u4").astype("<u8")
    words[0] |= 0x80000000  # as every seed has it: never all zeros
    state[_LEFT : _LEFT + 4] = np.frombuffer((1).to_bytes(4, "little"), np.uint8)
    state[_NEXT : _NEXT + 8] = 0  # as of a fresh one: the next number mixes the words
    state[_STATE : _STATE + 8 * _WORDS] = words.view(np.uint8)
    made.set_state(torch.from_numpy(state))
    return made


def derive_key(secret: bytes, *purpose: str, num_bytes: int = 16) -> bytes:
    """Bytes for one purpose; nobody without the secret can distinguish them from random ones."""
    head = len(secret).to_bytes(4, "little") + secret
    return hashlib.shake_256(head + "\0".join(purpose).encode()).digest(num_bytes)


class RandomStream:
    """A context in which torch's global generators are this stream's own.

    Dropout and the initialisation of layers draw from global generators. Inside, they continue
    this stream; outside, the global state is as it was. So two parties in one process draw what
    they would draw in two.
    """

    def __init__(
        self,
        seed: int,
        *purpose: str,
        secret: bytes | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._device = device if device is not None and device.type == "cuda" else None
        self._state = generator(seed, *purpose, secret=secret).get_state()
        self._cuda_state: Tensor | None = None
        if self._device is not None:
            of_cuda = derive_seed(seed, *purpose)
            if secret is not None:  # Philox takes 64 bits
                key = derive_key(secret, str(seed), *purpose, "cuda", num_bytes=8)
                of_cuda = int.from_bytes(key, "little")
            self._cuda_state = torch.Generator(self._device).manual_seed(of_cuda).get_state()

    def __enter__(self) -> None:
        self._outer = torch.get_rng_state()
        torch.set_rng_state(self._state)
        if self._device is not None and self._cuda_state is not None:
            self._outer_cuda = torch.cuda.get_rng_state(self._device)
            torch.cuda.set_rng_state(self._cuda_state, self._device)

    def __exit__(self, *_: object) -> None:
        self._state = torch.get_rng_state()
        torch.set_rng_state(self._outer)
        if self._device is not None:
            self._cuda_state = torch.cuda.get_rng_state(self._device)
            torch.cuda.set_rng_state(self._outer_cuda, self._device)

    def state(self) -> dict[str, Any]:
        """Where the stream is, for ``restore``; not from inside it."""
        return {"own": self._state, "cuda": self._cuda_state}

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
        self._state, self._cuda_state = state["own"], state["cuda"]
