"""The settings that a party of FedOptimus gets, and how large they may make it."""

from __future__ import annotations

from dovetail.errors import MessageError
from dovetail.federated import read_settings
from dovetail.methods.fedoptimus.messages import BeginData, BeginLabels
from dovetail.methods.settings.fedoptimus import Config

#: The widest embedding or layer of a top, and the most layers, that a party counts at all.
MAX_WIDTH, MAX_LAYERS = 2**20, 100


def settings_of(begin: BeginLabels | BeginData) -> Config:
    """The run's settings.

    Raises:
        MessageError: settings that cannot be, or of a size that is not counted.
    """
    config = read_settings(Config, begin, begin.settings)
    if max(config.embedding, *config.top, 1) > MAX_WIDTH or len(config.top) > MAX_LAYERS:
        raise MessageError(f"{begin.wire_name()}: at most {MAX_LAYERS} layers of width {MAX_WIDTH}")
    return config
