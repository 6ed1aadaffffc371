"""Three parties of HyFEM that each hold two of three blocks, and the server that trains them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.data import Classification, PartyData
from dovetail.federated import Local, train
from dovetail.methods import hyfem
from dovetail.models import Perceptron
from dovetail.models.blocks import Extractor
from dovetail.network import Checkpoint, InProcess

TASK = Classification(("no", "yes", "perhaps"))
SHAPES = {"age": (2,), "blood": (3,), "scan": (1, 2, 2)}
EXTRACTORS: dict[str, Extractor] = {
    "age": Perceptron((3,)),
    "blood": Perceptron((4, 3)),
    "scan": Perceptron((2,)),
}
HELD = {"clinic": ("age", "blood"), "lab": ("scan", "blood"), "surgery": ("age", "scan")}


def rows(name: str, blocks: tuple[str, ...], num_rows: int = 12) -> PartyData:
    rng = torch.Generator().manual_seed(len(name))
    return PartyData(
        name,
        np.arange(num_rows),
        {block: torch.randn(num_rows, *SHAPES[block], generator=rng) for block in blocks},
        torch.arange(num_rows) % 3,
    )


def member(name: str, blocks: tuple[str, ...] | None = None, **settings: Any) -> hyfem.Member:
    return made(
        hyfem.HyfemData(rows(name, blocks or HELD[name]), TASK, **{"widths": (5,), **settings})
    )


def made(local_data: hyfem.HyfemData) -> hyfem.Member:
    return hyfem.Member(local_data, Local(local_data.name))


def members(**settings: Any) -> dict[str, hyfem.Member]:
    return {name: member(name, **settings) for name in HELD}


def config(**settings: Any) -> hyfem.Settings:
    usual = {"rounds": 3, "local_steps": 4, "batch_size": 5, "learning_rate": 0.1}
    return hyfem.Settings(**{**usual, **settings})


def coordinator(blocks: tuple[str, ...] = tuple(SHAPES), **settings: Any) -> hyfem.Coordinator:
    extractors = {block: EXTRACTORS[block] for block in blocks}
    return hyfem.Coordinator(TASK, extractors, config(**settings), seed=0)


def trained(
    server: hyfem.Coordinator, parties: Mapping[str, Any], checkpoint: Checkpoint | None = None
) -> list[hyfem.Round]:
    hosted = parties if checkpoint is None else checkpoint.hosting(parties)
    return list(train(server, InProcess(hosted, driver="server"), checkpoint))


def weights(model: Any) -> dict[str, Tensor]:
    return dict(model.network.state_dict())


def assert_same_bits(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name
