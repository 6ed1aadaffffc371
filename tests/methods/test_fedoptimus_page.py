"""The page of FedOptimus against Algorithm 1 written out in plain PyTorch: the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.data import Classification, SharedRows
from dovetail.federated import Local, train
from dovetail.methods import fedoptimus
from dovetail.methods.fedoptimus.local_data import Columns, Labels
from dovetail.models import RandomStream, generator
from dovetail.models.owners import TopSpec
from dovetail.models.vectors import vector_of, write_vector
from dovetail.network import InProcess

SHARDS = {"l1": 50, "l2": 40, "l3": 27}
WIDTHS = {"d1": 4, "d2": 3, "d3": 5}
SEED = 11
SETTINGS: dict[str, Any] = {
    "batch_size": 16,
    "embedding": 6,
    "top": (5,),
    "rounds": 4,
    "learning_rate": 0.1,
    "sync_every": 3,
}


class Bottom:
    """A network that is no stack of dense layers, so that autograd follows each replica."""

    def build(self, shape: Sequence[int], embedding: int) -> nn.Module:
        return nn.Sequential(nn.Linear(shape[0], 7), nn.Tanh(), nn.Linear(7, embedding))


def rows_and_labels() -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
    rng = torch.Generator().manual_seed(3)
    num = sum(SHARDS.values())
    x = {name: torch.randn(num, width, generator=rng) for name, width in WIDTHS.items()}
    shards = torch.randperm(num, generator=rng).split([*SHARDS.values()])
    return x, torch.randint(3, (num,), generator=rng), dict(zip(SHARDS, shards, strict=True))


class Server:
    """w_t of one model, from round to round."""

    def __init__(self, w: Tensor, config: fedoptimus.Config) -> None:
        self.w, self.m, self.config = w, torch.zeros_like(w), config

    def average(self, copies: Sequence[Tensor]) -> Tensor:
        mean = torch.zeros_like(self.w)
        for w_n, num in zip(copies, SHARDS.values(), strict=True):
            mean = torch.add(mean, w_n, alpha=num / sum(SHARDS.values()))  # FedAvg
        beta, alpha = self.config.beta, self.config.alpha
        self.m = beta * self.m + (1 - beta) * (self.w - mean)  # FedAvgM, line 11
        w_hat = self.w - self.m  # line 12
        self.w = (1 - alpha) * self.w + alpha * w_hat  # SlowMo, line 13
        return self.w


class Model:
    """A network that is trained alone, and its last iterates (line 8)."""

    def __init__(self, network: nn.Module, config: fedoptimus.Config) -> None:
        self.network, self.num = network, config.iterate_average
        parameters, rate = network.parameters(), config.learning_rate
        self.optimizer = torch.optim.SGD(parameters, rate, config.momentum, fused=True)
        self.last: list[Tensor] = []

    def follow(self, output: Tensor, gradient: Tensor | None = None) -> None:
        self.optimizer.zero_grad()
        output.backward(gradient)
        self.optimizer.step()
        self.last = [*self.last, vector_of(self.network)][-self.num :]

    def mean(self) -> Tensor:
        if self.num == 1:
            return self.last[-1]
        return torch.stack(self.last).sum(dim=0) / len(self.last)


def algorithm_1(config: fedoptimus.Config) -> tuple[dict[str, Tensor], Tensor]:
    """Data owner -> the weights of its bottom, and those of the top."""
    x, labels, shards = rows_and_labels()
    bottoms: dict[str, list[Model]] = {}
    for name, width in WIDTHS.items():
        w_0 = []
        for _ in SHARDS:
            with RandomStream(SEED, name, "bottom"):
                w_0.append(Bottom().build((width,), config.embedding))
        bottoms[name] = [Model(network, config) for network in w_0]
    tops = []
    for _ in SHARDS:
        with RandomStream(SEED, "top"):
            tops.append(Model(TopSpec(config.embedding, config.top, 3).build(), config))
    servers = {
        name: Server(vector_of(bottom[0].network), config) for name, bottom in bottoms.items()
    }
    server = Server(vector_of(tops[0].network), config)
    order = {name: generator(SEED, name, "batches") for name in SHARDS}
    batches: dict[str, list[Tensor]] = {name: [] for name in SHARDS}
    for _ in range(config.rounds or 0):
        for _ in range(config.sync_every):
            for n, (owner, rows) in enumerate(shards.items()):
                if not batches[owner]:
                    drawn = torch.randperm(len(rows), generator=order[owner])
                    batches[owner] = [*drawn.split(config.batch_size)]
                batch = rows[batches[owner].pop(0)]
                embeddings = {d: bottom[n].network(x[d][batch]) for d, bottom in bottoms.items()}
                h = torch.stack([e.detach() for e in embeddings.values()]).sum(dim=0) / len(x)
                h.requires_grad_()
                tops[n].follow(F.cross_entropy(tops[n].network(h), labels[batch]))
                assert h.grad is not None
                for d, embedding in embeddings.items():
                    bottoms[d][n].follow(embedding, h.grad / len(x))
        for bottom, stepped in [*((bottoms[d], servers[d]) for d in bottoms), (tops, server)]:
            w = stepped.average([model.mean() for model in bottom])
            for model in bottom:
                write_vector(w, model.network)
    return {d: stepped.w for d, stepped in servers.items()}, server.w


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"iterate_average": 2},
        {"momentum": 0.5, "beta": 0.5, "alpha": 0.7},
        {"sync_every": 1},
    ],
)
def test_the_page_computes_algorithm_1(changes: dict[str, Any]) -> None:
    config = fedoptimus.Config(**{**SETTINGS, **changes})
    x, labels, shards = rows_and_labels()
    data = {
        name: fedoptimus.DataOwner(
            Columns(
                name,
                {owner: SharedRows(name, columns, rows) for owner, rows in shards.items()},
                Bottom(),  # type: ignore[arg-type]
            ),
            Local(name),
        )
        for name, columns in x.items()
    }
    task = Classification((0, 1, 2))
    tops = {
        name: fedoptimus.LabelOwner(Labels(name, task, labels[rows]), Local(name))
        for name, rows in shards.items()
    }
    coordinator = fedoptimus.Coordinator(
        config, data_owners=[*data], label_owners=[*tops], seed=SEED
    )
    rounds = list(train(coordinator, InProcess({**data, **tops}, driver="hub")))
    assert rounds[-1].metrics["loss"] != rounds[0].metrics["loss"]
    bottoms, top = algorithm_1(config)
    for name, owner in data.items():
        expected = bottoms[name].expand(len(tops), -1)
        torch.testing.assert_close(owner.replicas.weights_NP, expected)  # sums in another order
    for label_owner in tops.values():
        torch.testing.assert_close(vector_of(label_owner.top), top)
