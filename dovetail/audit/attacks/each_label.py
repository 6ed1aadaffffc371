"""Labels that an attacker looks for: of several, each by itself and named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dovetail.data import Classification, MultiLabel, MultiTarget, Survival, Task
from dovetail.methods.facets.audited import Threat

#: What is looked for of a time to an event.
TIMES = ("log of the time", "event")


@dataclass(frozen=True, eq=False)
class Label:
    """Label of samples that is attacked by itself.

    Attributes:
        seen_N: bool, which samples have it.
        classes_N: int64, where it is a class, or yes or no; None of numbers.
        numbers_NF: of the samples that have it, where it is numbers; else None.
        numbers: what these are called.
        name: of one of several; "" of the only one.
        place: of one of several, among outputs; None: all outputs are the label's.
    """

    seen_N: np.ndarray
    classes_N: np.ndarray | None = None
    numbers_NF: np.ndarray | None = None
    numbers: tuple[str, ...] = ()
    name: str = ""
    place: int | None = None

    def named(self, threat: Threat) -> Threat:
        """A threat that says which of several labels it is after."""
        return (
            replace(threat, attack=f"{threat.attack}, label {self.name!r}") if self.name else threat
        )

    def output_of(self, outputs_NC: np.ndarray) -> np.ndarray:
        """Outputs for this label."""
        return outputs_NC if self.place is None else outputs_NC[:, [self.place]]


def each_label(task: Task, truth: Tensor) -> Iterator[Label]:
    """The labels that are attacked: classes, times, each of several; none of other tasks.

    Args:
        truth: (K,) or (K, L) labels, missing ones as they are marked.
    """
    match task:
        case Classification():
            yield Label((truth >= 0).numpy(), truth.numpy())
        case Survival():
            seen = truth.isfinite()
            log_N2 = torch.stack([truth.abs().log(), (~torch.signbit(truth)).double()], dim=1)
            yield Label(seen.numpy(), numbers_NF=log_N2[seen].numpy(), numbers=TIMES)
        case MultiLabel() | MultiTarget():
            for place, name in enumerate(task.labels):
                values, seen = truth[:, place], ~truth[:, place].isnan()
                if isinstance(task, MultiLabel):
                    classes = values.nan_to_num().long().numpy()
                    yield Label(seen.numpy(), classes, name=name, place=place)
                else:
                    numbers = values[seen, None].double().numpy()
                    yield Label(
                        seen.numpy(), numbers_NF=numbers, numbers=(name,), name=name, place=place
                    )
