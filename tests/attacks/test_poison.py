"""A partner answers with numbers that are finite and wrong, to end a run or to spoil its model."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch

from dovetail.data import Alignment, Classification, PartyData, SharedRows
from dovetail.errors import PartyError, TrainingError
from dovetail.federated import Local
from dovetail.methods import apfed, vertical
from dovetail.models import Head, Perceptron
from dovetail.network import InProcess, Message

NUM_ROWS = 256


def bank(**settings: Any) -> apfed.Active:
    x = torch.randn(NUM_ROWS, 5, generator=torch.Generator().manual_seed(1))
    everybody = torch.arange(NUM_ROWS)
    return apfed.Active(
        PartyData("bank", everybody.numpy(), {"own": x}, (x[:, 0] - x[:, 2] > 0).long()),
        Alignment({"bank": everybody, "shop": everybody}),
        Classification(("no", "yes")),
        apfed.Config(**{"epochs": 20, "learning_rate": 0.05, **settings}),
        Local("bank"),
        seed=0,
        encoder=Perceptron((16, 8)),
        head=Head((8,), 0.0),
    )


class Poisons:
    """A partner that asks for codes to move by this much, always in one direction."""

    accepts = (apfed.Begin, apfed.Codes)

    def __init__(self, size: float, honest_steps: int = 0) -> None:
        self.size = size
        self.left = honest_steps

    def handle(self, message: Message) -> Message:
        if isinstance(message, apfed.Begin):
            return apfed.Ready(False)
        assert isinstance(message, apfed.Codes)
        self.left -= 1
        size = 0.0 if self.left >= 0 else self.size
        return apfed.CodeGradient(torch.full_like(message.code_BD, size))


def losses(active: apfed.Active, partner: Any) -> list[float]:
    return [
        epoch.loss for epoch in apfed.train(active, InProcess({"shop": partner}, driver="bank"))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e30, -1e6, 3.4e38])
def test_a_finite_gradient_of_any_size_neither_ends_a_run_nor_derails_it(
    size: float, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        poisoned = losses(bank(), Poisons(size, honest_steps=6))
    alone = losses(bank(trade_off=0.0), Poisons(0.0))
    assert all(map(math.isfinite, poisoned))
    assert poisoned == alone  # bit for bit: none of it was taken
    (message,) = caplog.messages
    assert "party 'shop': 64 rows of its gradient are up to" in message
    assert "more than apfed.clip = 10000 times the task's own; they are cut off" in message


def test_without_the_bound_a_gradient_of_a_million_ends_the_run() -> None:
    with pytest.raises(TrainingError, match="its loss is"):
        losses(bank(clip=None, epochs=2), Poisons(-1e6))


def test_rows_out_of_bounds_are_counted_and_others_keep_every_bit() -> None:
    active = bank()
    active.bound.measure(torch.full((64, 8), 0.01))
    gradient = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)) * 0.01
    assert active.bound.bounded("shop", gradient) is gradient
    wild = gradient.clone()
    wild[3] = 1e20
    cut = active.bound.bounded("shop", wild)
    others = torch.arange(64) != 3
    assert torch.equal(cut[others], gradient[others])
    assert cut[3].abs().max() == 0
    assert active.bound.cut == {"shop": 1}


def test_codes_of_zeros_get_no_gradient_of_billions_and_others_keep_every_bit() -> None:
    rng = torch.Generator().manual_seed(0)
    code, private_code = torch.randn(64, 8, generator=rng), torch.randn(64, 8, generator=rng)

    def gradient(code_BD: torch.Tensor, *norm: float) -> torch.Tensor:
        leaf = code_BD.clone().requires_grad_()
        apfed.contrastive_loss(leaf, private_code, 1.0, *norm).backward()
        assert leaf.grad is not None
        return leaf.grad

    guarded = gradient(code)
    code[5] = 0
    assert gradient(code)[5].norm() < 100
    assert gradient(code, 1e-12)[5].norm() > 1e9  # as PyTorch has it
    code[5] = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))[5]
    assert torch.equal(gradient(code, 1e-12), guarded)


def test_codes_and_gradients_out_of_hand_are_named_in_classic_vertical_learning() -> None:
    x = torch.randn(64, 5, generator=torch.Generator().manual_seed(1))
    everybody = torch.arange(64)

    class Member(vertical.Member):
        def handle(self, message: Message) -> Message:
            answer = super().handle(message)
            if isinstance(answer, vertical.Codes):
                return vertical.Codes(torch.full_like(answer.code_BD, 1e30))
            return answer

    shared = SharedRows("shop", x, everybody)
    member = Member(shared, None, vertical.Config(), Perceptron((8, 4)), Local("shop"))
    owner = vertical.Owner(
        PartyData("bank", everybody.numpy(), {"own": x}, (x[:, 0] > 0).long()),
        Alignment({"bank": everybody, "shop": everybody}),
        Classification(("no", "yes")),
        vertical.Config(epochs=1),
        Local("bank"),
        seed=0,
        encoder=Perceptron((8, 4)),
        head=Head((4,)),
    )
    with pytest.raises(PartyError, match=r"'shop'.*its codes are above 1e\+06; lower its learning"):
        list(vertical.train(owner, InProcess({"shop": member}, driver="bank")))


@pytest.mark.parametrize("size", [1e30, 1e7])
def test_a_driver_s_codes_out_of_hand_do_not_move_a_partner(size: float) -> None:
    shared = SharedRows("shop", torch.randn(64, 5), torch.arange(64))
    shop = apfed.Passive(
        shared, apfed.PassiveConfig(loss="reconstruction"), Perceptron((8, 4)), Local("shop")
    )
    network = InProcess({"shop": shop}, driver="bank")
    network.ask({"shop": apfed.Begin((4,), 0, 0)}, apfed.Ready).or_raise()
    assert shop.network is not None
    before = [each.clone() for each in shop.network.parameters()]
    asked = {"shop": apfed.Codes(torch.arange(64), torch.full((64, 4), size))}
    with pytest.raises(PartyError, match=r"it was sent codes above 1e\+06"):
        network.ask(asked, apfed.CodeGradient).or_raise()
    assert all(map(torch.equal, before, shop.network.parameters()))
