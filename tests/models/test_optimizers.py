"""Optimizers in a functional form."""

import torch
from torch import nn

from dovetail.models.optimizers import AdamW


def test_adamw_is_bit_for_bit_that_of_pytorch_and_goes_on_from_its_state() -> None:
    rng = torch.Generator().manual_seed(0)
    first = [torch.randn(4, 30, 20, generator=rng), torch.randn(4, 1, 20, generator=rng)]
    ours, theirs, resumed = ([nn.Parameter(each.clone()) for each in first] for _ in range(3))
    own = AdamW(ours, learning_rate=1e-3, weight_decay=0.1)
    reference = torch.optim.AdamW(theirs, lr=1e-3, weight_decay=0.1, fused=True)
    later = AdamW(resumed, learning_rate=1e-3, weight_decay=0.1)
    for step in range(20):
        if step == 10:
            later.load_state_dict(own.state_dict())
            for mine, kept in zip(resumed, ours, strict=True):
                mine.data.copy_(kept)
        for mine, its, third in zip(ours, theirs, resumed, strict=True):
            mine.grad = torch.randn(mine.shape, generator=rng)
            its.grad, third.grad = mine.grad.clone(), mine.grad.clone()
        for each in (own, reference, later):
            each.step()
            each.zero_grad()
    for mine, its, third in zip(ours, theirs, resumed, strict=True):
        assert torch.equal(mine, its)
        assert torch.equal(mine, third)
        assert not torch.equal(mine, first[0] if mine.shape == first[0].shape else first[1])
