"""[fedoptimus] of a run file."""

from __future__ import annotations

import pytest

from dovetail.methods.fedoptimus.plugin import FedOptimusSection


@pytest.mark.parametrize(
    ("said", "weight_decay"),
    [
        ({}, 0.3),
        ({"optimizer": "adamw"}, 0.3),
        ({"optimizer": "adam"}, 0.0),
        ({"optimizer": "sgd"}, 0.0),
        ({"optimizer": "sgd", "weight_decay": 0.01}, 0.01),
    ],
)
def test_the_default_decay_is_adamws(said: dict[str, object], weight_decay: float) -> None:
    assert FedOptimusSection.model_validate(said).weight_decay == weight_decay
