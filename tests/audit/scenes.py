"""Runs whose messages are planted: what an attacker must find, and what it must not."""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail.audit.tape import Tape
from dovetail.data import Classification, MultiLabel, Survival, Task
from dovetail.methods import apfed
from dovetail.methods.facets.audited import Channel, Holding, Scene, Seen

NUM = 600
CLASSES = ("a", "b", "c")


def planted(leak: float, *, classes: int = 3, num: int = NUM) -> tuple[Scene, Tape]:
    """A bank's codes, as a shop saw them: noise, and so much of its labels and columns in it."""
    rng = torch.Generator().manual_seed(7)
    labels = torch.randint(classes, (num,), generator=rng)
    x = torch.randn(num, 4, generator=rng)
    columns = torch.randn(num, 3, generator=rng)
    scene = Scene(
        Classification(CLASSES[:classes]),
        {
            "bank": Holding(x, ("age", "income", "rent", "debt"), labels),
            "shop": Holding(columns, ("visits", "basket", "hour")),
        },
        {"": {"bank": torch.arange(num), "shop": torch.arange(num)}},
        lambda *_: (),
    )
    one_hot = torch.nn.functional.one_hot(labels, classes).float()
    codes = torch.cat([4 * leak * one_hot, leak * x[:, :2]], dim=1)
    codes += 0.5 * torch.randn(codes.shape, generator=rng)
    return scene, heard(scene, Channel("shop", "bank", "codes"), codes)


def planted_times(leak: float, *, num: int = NUM) -> tuple[Scene, Tape]:
    """A clinic's codes, as a lab saw them: noise, and so much of times to an event in it."""
    rng = torch.Generator().manual_seed(7)
    times = torch.rand(num, generator=rng) * 100 + 1
    times[torch.rand(num, generator=rng) < 0.3] *= -1  # censored
    times[:20] = torch.nan  # without a label
    x, columns = torch.randn(num, 2, generator=rng), torch.randn(num, 2, generator=rng)
    scene = Scene(
        Survival((50.0,), (0.0,)),
        {"clinic": Holding(x, ("age", "bmi"), times), "lab": Holding(columns, ("iron", "zinc"))},
        {"": {"clinic": torch.arange(num), "lab": torch.arange(num)}},
        lambda *_: (),
    )
    codes = torch.randn(num, 3, generator=rng)
    codes[:, 0] += 5 * leak * times.abs().log().nan_to_num()
    return scene, heard(scene, Channel("lab", "clinic", "codes"), codes)


def planted_several(leak: float, task: Task, *, num: int = NUM) -> tuple[Scene, Tape]:
    """A clinic's codes, as a lab saw them: noise, and so much of the second of two labels in it."""
    rng = torch.Generator().manual_seed(7)
    values = torch.randn(num, 2, generator=rng)
    labels = (values > 0).float() if isinstance(task, MultiLabel) else values.clone()
    labels[torch.rand(num, 2, generator=rng) < 0.2] = torch.nan
    columns = torch.randn(num, 2, generator=rng)
    scene = Scene(
        task,
        {"clinic": Holding(None, (), labels), "lab": Holding(columns, ("iron", "zinc"))},
        {"": {"clinic": torch.arange(num), "lab": torch.arange(num)}},
        lambda *_: (),
    )
    codes = torch.randn(num, 3, generator=rng)
    codes[:, 0] += 5 * leak * values[:, 1]
    return scene, heard(scene, Channel("lab", "clinic", "codes"), codes)


def heard(scene: Scene, channel: Channel, values: Tensor) -> Tape:
    """A tape on which these values of all samples crossed once."""
    tape = Tape(lambda *_: [Seen(channel, torch.arange(len(values)), values)], scene.num_samples())
    tape("bank", "shop", apfed.Begin((4,), 0, 0), apfed.Ready(False))
    return tape
