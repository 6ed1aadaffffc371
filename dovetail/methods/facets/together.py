"""A model that predicts together with parties that keep their networks of its run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

from dovetail.methods.inference import Question


class Together(Protocol):
    """Of a method with such models."""

    def __call__(self, spec: Any, keys: Callable[[], Mapping[str, Tensor]], /) -> Question | None:
        """Question to parties for a model of this spec; None: it is none of the method's.

        Args:
            spec: of the model.
            keys: reads what decrypts parties' answers, where they are encrypted.

        Raises:
            ModelError: a key that is missing.
        """
