"""[fedoptimus] of a run file."""

from __future__ import annotations

import pytest

from dovetail.methods.settings.fedoptimus import FedOptimusSection


@pytest.mark.parametrize(
    ("given", "weight_decay"),
    [
        ({}, 0.3),
        ({"optimizer": "adamw"}, 0.3),
        ({"optimizer": "adam"}, 0.0),
        ({"optimizer": "sgd"}, 0.0),
        ({"optimizer": "sgd", "weight_decay": 0.01}, 0.01),
    ],
)
def test_the_default_decay_is_adamws(given: dict[str, object], weight_decay: float) -> None:
    assert FedOptimusSection.model_validate(given).weight_decay == weight_decay


def test_a_user_s_default_has_none_of_the_paper_s_parts_but_k_steps() -> None:
    section = FedOptimusSection()
    assert (section.variant, section.server, section.slowmo) == ("kstep", "average", "off")
    assert section.selection is None
    assert section.sync_every == 5


def test_the_variant_called_paper_has_the_paper_s_parts_on() -> None:
    section = FedOptimusSection.model_validate({"variant": "paper"})
    assert (section.server, section.slowmo) == ("fedavgm", "interpolate")
    assert (section.server_momentum, section.optimizer) == ("undamped", "sgd")
    assert (section.learning_rate, section.weight_decay) == (1e-3, 0.0)
    assert section.selection is not None
    assert section.selection.order == "relevance"
    assert section.selection.by == "embeddings"
    assert 0 < section.selection.every <= section.sync_every  # chosen anew in every round


@pytest.mark.parametrize(
    ("given", "share", "every", "server"),
    [
        ({"selection": {"share": 0.5}}, 0.5, 1, "fedavgm"),
        ({"selection": {"every": 100}, "server": "average"}, 0.75, 100, "average"),
    ],
)
def test_keys_beside_the_variant_stay_as_they_are(
    given: dict[str, object], share: float, every: int, server: str
) -> None:
    section = FedOptimusSection.model_validate({"variant": "paper", **given})
    assert section.selection is not None
    assert (section.selection.share, section.selection.every) == (share, every)
    assert section.server == server


@pytest.mark.parametrize(
    ("variant", "sync_every", "slowmo", "selects"),
    [
        ("kstep", 5, "off", False),
        ("fedavg", 1, "off", False),
        ("slowmo", 1, "interpolate", False),
        ("cs-kstep", 5, "off", True),
        ("cs-fedavg", 1, "off", True),
        ("cs-slowmo", 1, "interpolate", True),
    ],
)
def test_each_of_table_1_s_other_rows_has_a_name(
    variant: str, sync_every: int, slowmo: str, selects: bool
) -> None:
    section = FedOptimusSection.model_validate({"variant": variant})
    assert (section.sync_every, section.slowmo, section.server) == (sync_every, slowmo, "average")
    assert (section.selection is not None) == selects
    assert section.optimizer == FedOptimusSection().optimizer
