"""The settings that a party of FedOptimus is told, and how large they may make it."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from dovetail.errors import MessageError
from dovetail.methods.fedoptimus.messages import BeginData, BeginLabels
from dovetail.methods.settings.fedoptimus import Abilities

#: The widest embedding or layer of a top, and the most layers, that a party counts at all.
MAX_WIDTH, MAX_LAYERS = 2**20, 100

A = TypeVar("A", bound=Abilities)


def settings_of(begin: BeginLabels | BeginData, kind: type[A]) -> A:
    """The run's settings.

    Raises:
        MessageError: settings that cannot be, or of a size that is not counted.
    """
    try:
        config = kind.model_validate_json(begin.settings)
    except ValidationError as error:
        raise MessageError(f"{begin.wire_name()}: settings that cannot be ({error})") from None
    if max(config.embedding, *config.top, 1) > MAX_WIDTH or len(config.top) > MAX_LAYERS:
        raise MessageError(f"{begin.wire_name()}: at most {MAX_LAYERS} layers of width {MAX_WIDTH}")
    return config
