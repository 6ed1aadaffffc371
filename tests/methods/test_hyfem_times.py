"""HyFEM of times to an event: what all agreed on stays agreed, also when a run goes on."""

from __future__ import annotations

import numpy as np
import torch

from dovetail.data import PartyData, Survival
from dovetail.data.survival import survival_of
from dovetail.federated import Local, train
from dovetail.methods import hyfem
from dovetail.models import Perceptron
from dovetail.network import InProcess

CONFIG = hyfem.Settings(rounds=2, local_steps=2, batch_size=8, width="widest")


def member(name: str, seed: int) -> hyfem.Member:
    rng = torch.Generator().manual_seed(seed)
    x, time = torch.randn(40, 2, generator=rng), 100 * torch.rand(40, generator=rng)
    event = (torch.rand(40, generator=rng) < 0.7).float()
    labels = torch.where(event > 0, time, -time)
    rows = PartyData(name, np.arange(40), {"age": x}, labels)
    task = survival_of((20.0 * seed, 60.0, 100.0), labels)
    return hyfem.Member(hyfem.HyfemData(rows, task, (3,)), Local(name))


def coordinator() -> hyfem.Coordinator:
    nothing_agreed = Survival((), ())
    return hyfem.Coordinator(nothing_agreed, {"age": Perceptron((3,))}, CONFIG, seed=0)


def test_a_run_that_goes_on_has_the_intervals_that_were_agreed() -> None:
    network = InProcess({"north": member("north", 1), "south": member("south", 2)}, driver="server")
    first, again = coordinator(), coordinator()
    list(train(first, network))
    assert len(first.task.cuts) > 1
    again.restore(first.state())
    assert again.task == first.task == again.agreed.task
