"""Replicas side by side compute what autograd does, one after the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dovetail.models import ColumnsMlp, OwnerResNet, RandomStream, StripCnn
from dovetail.models.owners import BottomSpec, EncodedMlp
from dovetail.models.replicas import (
    LoopedReplicas,
    StackedReplicas,
    replicas_of,
)
from dovetail.models.vectors import statistics_of, vector_of, write_vector

NETWORKS = [
    (StripCnn(channels=4, hidden=6), (1, 2, 28)),
    (StripCnn(channels=4, hidden=6), (3, 2, 32)),
    (StripCnn(channels=2, kernel=5, stride=(1, 2), hidden=3), (1, 3, 9)),
    (StripCnn(channels=2, kernel=1, stride=(2, 3), hidden=3), (2, 3, 7)),
    (ColumnsMlp((5, 4)), (7,)),
    (ColumnsMlp(()), (7,)),
    (EncodedMlp((5, 4)), (7,)),
    (EncodedMlp((), bins=3), (7,)),
]


def made(spec: BottomSpec, shape: tuple[int, ...]) -> nn.Module:
    with RandomStream(0, "test"):
        if isinstance(spec, EncodedMlp):  # its bins are placed by rows
            fitted, encoding = spec.fitted(torch.rand(40, *shape))
            assert fitted.num_bins > len(shape)
            return fitted.build(shape, 5, encoding)
        return spec.build(shape, 5)


def batches(shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[list[Tensor], list[Tensor]]:
    rng = torch.Generator().manual_seed(1)
    x = [torch.randint(256, (size, *shape), dtype=torch.uint8, generator=rng) for size in sizes]
    return x, [torch.randn(size, 5, generator=rng) for size in sizes]


@pytest.mark.parametrize(("spec", "shape"), NETWORKS)
@pytest.mark.parametrize("sizes", [(6, 6, 6), (6, 2, 0)])
def test_stacked_is_looped(
    spec: BottomSpec, shape: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    """Embeddings and gradients to 1e-6 of their scale, over steps with batches that shrink."""
    network = made(spec, shape)
    kinds = [StackedReplicas(network, 3), LoopedReplicas(network, 3)]  # type: ignore[arg-type]
    optimizers = [torch.optim.SGD([each.values], lr=0.01) for each in kinds]
    for step_sizes in (sizes, tuple(size // 2 for size in sizes), sizes):
        x, gradients = batches(shape, step_sizes)
        stacked, looped = (each.forward(x) for each in kinds)
        torch.testing.assert_close(stacked, looped, rtol=1e-6, atol=1e-6)
        for each, optimizer in zip(kinds, optimizers, strict=True):
            each.backward(gradients)
            optimizer.step()
        one, other = (each.values.grad for each in kinds)
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6 * float(other.abs().max()))
    torch.testing.assert_close(kinds[0].values, kinds[1].values, rtol=1e-6, atol=1e-6)


def test_a_replica_is_a_network_of_its_own() -> None:
    network = made(StripCnn(channels=4, hidden=6), (1, 2, 28))
    replicas = replicas_of(network, 2)
    assert isinstance(replicas, StackedReplicas)
    with torch.no_grad():
        replicas.values[1] += 0.1
    x, _ = batches((1, 2, 28), (3, 3))
    both = replicas.forward(x)
    for index, rows in enumerate(x):
        alone = replicas.network(index)(rows.float() / 255)
        torch.testing.assert_close(both[3 * index : 3 * index + 3], alone, rtol=1e-6, atol=1e-6)


def test_batch_normalisation_is_kept_for_each_replica() -> None:
    replicas = replicas_of(made(OwnerResNet(2), (1, 4, 4)), 2)
    assert isinstance(replicas, LoopedReplicas)
    before = replicas.statistics_NQ.clone()
    x, _ = batches((1, 4, 4), (4, 0))
    replicas.forward(x)
    assert not torch.equal(replicas.statistics_NQ[0], before[0])
    assert torch.equal(replicas.statistics_NQ[1], before[1])
    torch.testing.assert_close(statistics_of(replicas.network(0)), replicas.statistics_NQ[0])


def test_a_vector_is_written_back() -> None:
    network = made(ColumnsMlp((5,)), (7,))
    vector_P = vector_of(network)
    write_vector(torch.zeros_like(vector_P), network)
    assert not vector_of(network).any()
    write_vector(vector_P, network)
    assert torch.equal(vector_of(network), vector_P)


@pytest.mark.gpu
def test_stacked_is_looped_on_a_gpu() -> None:
    network = made(StripCnn(channels=4, hidden=6), (1, 2, 28)).cuda()
    x, gradients = batches((1, 2, 28), (6, 6, 6))
    kinds = [StackedReplicas(network, 3), LoopedReplicas(network, 3)]  # type: ignore[arg-type]
    for each in kinds:
        each.forward(x)
        each.backward([gradient.cuda() for gradient in gradients])
    one, other = (each.values.grad for each in kinds)
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
