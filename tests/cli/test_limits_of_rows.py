"""``max_rows`` of a party's policy, in messages that hold weights: CHFL's and HyFEM's."""

from __future__ import annotations

import pytest
import torch

from dovetail.errors import ConfigError
from dovetail.methods import apfed, hyfem
from dovetail.methods.chfl import layers as chfl
from dovetail.network import Message
from dovetail.node.runs import Watched
from dovetail.node.status_line import Activity


class Deaf:
    """A party that answers whatever it is told."""

    accepts = (Message,)

    def handle(self, message: Message) -> Message:
        return hyfem.Ready()


def watched(refused: list[str]) -> Watched:
    return Watched(
        Deaf(),
        Activity(),
        30,
        lambda message, why: refused.append(f"{message.wire_name()} {why}"),
    )


LONG, WIDE = torch.zeros(40), torch.zeros(40, 2)


@pytest.mark.parametrize(
    "message",
    [
        hyfem.Train(WIDE, LONG, 1),
        hyfem.Finish(LONG, WIDE),
        chfl.Average(1, 0, WIDE),
        chfl.GiveShare(1, (), (), WIDE, LONG, ()),
    ],
    ids=lambda message: message.wire_name(),
)
def test_rows_beyond_the_policy_are_refused_also_beside_weights(message: Message) -> None:
    refused: list[str] = []
    party = watched(refused)
    with pytest.raises(ConfigError, match="refuses 40 rows in one message: its policy allows 30"):
        party.handle(message)
    assert refused == [
        f"{message.wire_name()} refuses 40 rows in one message: its policy allows 30"
    ]


@pytest.mark.parametrize(
    "message",
    [hyfem.Train(LONG, LONG, 1), chfl.Average(1, 0, LONG)],
    ids=lambda message: message.wire_name(),
)
def test_a_vector_of_weights_has_no_rows(message: Message) -> None:
    refused: list[str] = []
    watched(refused).handle(message)
    assert not refused


def test_a_vector_of_what_is_no_weights_has_rows() -> None:
    with pytest.raises(ConfigError, match="refuses 40 rows"):
        watched([]).handle(apfed.Codes(LONG, WIDE[:5]))
