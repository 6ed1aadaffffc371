"""What follows gradients, beside PyTorch's own."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import nn

from dovetail.models.optimizers import Optimizer, follow_back
from dovetail.settings.models import OptimizerConfig

PYTORCH: dict[str, Any] = {
    "sgd": partial(torch.optim.SGD, lr=1e-2, momentum=0.9, weight_decay=0.1),
    "adam": partial(torch.optim.Adam, lr=1e-2, weight_decay=0.1),
    "adamw": partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1),
}


def config(kind: Literal["sgd", "adam", "adamw"], momentum: float = 0.9) -> OptimizerConfig:
    return OptimizerConfig(optimizer=kind, learning_rate=1e-2, momentum=momentum, weight_decay=0.1)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_a_step_is_bit_for_bit_pytorchs_and_goes_on_from_its_state(kind: Any, fused: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    first = [torch.randn(4, 30, 20, generator=rng), torch.randn(4, 1, 20, generator=rng)]
    ours, theirs, resumed = ([nn.Parameter(each.clone()) for each in first] for _ in range(3))
    settings: Any = {"learning_rate": 1e-2, "momentum": 0.9, "weight_decay": 0.1, "fused": fused}
    ours_optimizer, later = (Optimizer(each, kind=kind, **settings) for each in (ours, resumed))
    reference = PYTORCH[kind](theirs, fused=fused or None)
    for step in range(20):
        if step == 10:
            later.load_state_dict(ours_optimizer.state_dict())
            for mine, kept in zip(resumed, ours, strict=True):
                mine.data.copy_(kept)
        for index, (mine, its, third) in enumerate(zip(ours, theirs, resumed, strict=True)):
            if index and step % 3 == 0 and (kind != "sgd" or step):
                continue  # a parameter without a gradient stays
            mine.grad = torch.randn(mine.shape, generator=rng)
            its.grad, third.grad = mine.grad.clone(), mine.grad.clone()
        for each in (ours_optimizer, reference, later):
            each.step()
            each.zero_grad()
        assert all(each.grad is None for each in ours)
    for index, (mine, its, third) in enumerate(zip(ours, theirs, resumed, strict=True)):
        assert torch.equal(mine, its)
        assert torch.equal(mine, third)
        assert not torch.equal(mine, first[index])
        for name, value in reference.state[its].items():
            assert torch.equal(ours_optimizer.state[mine][name], value), name


def test_sgd_takes_up_a_parameter_whose_first_gradient_comes_later() -> None:
    early, late = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    together, alone = (
        Optimizer.of(config("sgd"), [early, late]),
        Optimizer.of(config("sgd"), [late]),
    )
    early.grad = torch.ones(3)
    together.step()
    late.grad = torch.ones(3)
    copy = late.detach().clone()
    together.step()
    moved = late.detach().clone()
    late.data.copy_(copy)
    alone.step()
    assert torch.equal(moved, late)
    assert torch.equal(
        together.state[late]["momentum_buffer"], alone.state[late]["momentum_buffer"]
    )


def test_sgd_without_momentum_keeps_nothing() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = Optimizer.of(config("sgd", momentum=0.0), [weight])
    weight.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(weight.detach(), torch.full((3,), 1 - 1e-2 * 1.1))
    assert optimizer.state_dict() == {"state": {}}
    assert not optimizer.state


def test_a_kept_state_is_its_own() -> None:
    weight = nn.Parameter(torch.ones(3))
    first, other = Optimizer.of(config("adam"), [weight]), Optimizer.of(config("adam"), [weight])
    weight.grad = torch.ones(3)
    first.step()
    other.load_state_dict(first.state_dict())
    before = other.state[weight]["exp_avg"].clone()
    first.step()
    assert torch.equal(other.state[weight]["exp_avg"], before)


@pytest.mark.slow
def test_a_first_step_does_not_import_the_compiler() -> None:
    code = """
import itertools, sys, torch
from dovetail.models import Perceptron
from dovetail.models.blocks import BlocksSpec
from dovetail.models.optimizers import Optimizer, follow_back
BlocksSpec(("own",), ((3,),), (Perceptron((4,)),), (5,), 2).build()  # sized without memory
layer = torch.nn.Linear(3, 2)
for kind, fused in itertools.product(("sgd", "adam", "adamw"), (True, False)):
    optimizer = Optimizer(layer.parameters(), kind=kind, learning_rate=1e-3, fused=fused)
    layer(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    follow_back([layer(torch.ones(4, 3))], [torch.ones(4, 2)])
assert "torch._dynamo" not in sys.modules
assert "sympy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_gradients_of_outputs_are_followed_as_autograd_does() -> None:
    torch.manual_seed(0)
    body, heads = nn.Linear(5, 4), [nn.Linear(4, 3), nn.Linear(4, 2)]
    weights = [w for each in (body, *heads) for w in each.parameters()]
    x, gradients = torch.randn(7, 5), []
    given = [torch.randn(7, 4), torch.randn(7, 3), torch.randn(7, 2)]
    for follow in (torch.autograd.backward, follow_back):
        code = body(x).relu()
        follow([code, *(head(code) for head in heads)], given)
        gradients.append([w.grad for w in weights])
        for weight in weights:
            weight.grad = None
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*gradients, strict=True))


def test_nothing_is_stepped_without_gradients() -> None:
    weight = nn.Parameter(torch.ones(3))
    Optimizer([weight], kind="adam", learning_rate=0.1, weight_decay=0.0).step()
    assert torch.equal(weight.detach(), torch.ones(3))
