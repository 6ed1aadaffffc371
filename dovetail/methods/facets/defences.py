"""Grids of defences: what is set, which labelled rows are held out, how a cell is scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from dovetail.methods.outcome import Outcome, Scores, outputs_of
from dovetail.methods.training import Training, VariantRun
from dovetail.models.metrics import score
from dovetail.models.randomness import generator
from dovetail.settings.privacy import Once, PrivateSteps, Release

#: Of the labelled rows, the share that a cell is scored on and not trained on.
HELD_OUT = 0.2


@dataclass(frozen=True)
class Defence:
    """Defence: a cell of the grid, and whose settings it changes.

    Attributes:
        name: as it is reported.
        active: settings of the run: of APFed and of classic vertical learning the label owner's.
        gradients: how gradients leave: of APFed partners', elsewhere label owners'. Its ``clip`` is
            in multiples of a row's median length in the run as it is.
        guarantee: what is guaranteed, in words; "" for nothing.
        once: of APFed-D, how partners' columns leave once; None: gradients are exchanged.
        codes: of classic vertical learning and FedOptimus, how codes leave; clip as of gradients.
    """

    name: str
    active: Mapping[str, Any]
    gradients: Release | None = None
    guarantee: str = ""
    once: Once | None = None
    codes: Release | None = None


#: Median length of a row's codes and gradients in the run as it is: in multiples of it they are
#: clipped.
Lengths = Mapping[str, float]


class Grid(Protocol):
    """How the runs of one method are tried."""

    @property
    def defences(self) -> Sequence[Defence]:
        """The cells."""

    @property
    def alone(self) -> str | None:
        """The variant of a model that asks nobody; None: nobody has columns of its own."""

    def hold_out(self, task: Training, seed: int) -> tuple[Training, Any]:
        """The run without the labels of some rows, and what ``scored`` needs to score on them."""

    def protected(self, task: Training, defence: Defence, lengths: Lengths) -> Training:
        """The run with this defence."""

    def sends(self, task: Training) -> bool:
        """Whether anything crosses."""

    def scored(
        self, task: Training, variant_run: VariantRun | None, outcome: Outcome, held: Any
    ) -> float:
        """On rows held out; more is better. ``variant_run`` is None where nobody is asked."""


# --- What methods share ------------------------------------------------------------------------

COUNTED = "epsilon is counted; it covers what releases of a sample's own row say"

NOISE = {z: Release(clip=1.0, noise=z) for z in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)}

AS_IT_IS = Defence("as it is", {})


def label_dp(epsilon: float, num_stages: int = 1) -> Defence:
    name = f"label DP, epsilon {epsilon:g}" + (", learned prior" if num_stages > 1 else "")
    settings: dict[str, Any] = {"label_epsilon": epsilon}
    if num_stages > 1:
        settings["label_stages"] = num_stages
    return Defence(name, settings, None, f"labels: epsilon {epsilon:g} a run")


def first_of(scores: Scores) -> float:
    """The score that cells are compared by: AUC of two classes, else accuracy, or R2."""
    return float(scores.get("auc", scores.get("accuracy", scores.get("r2", 0.0))))


def drawn(rows: Tensor, seed: int, party: str) -> tuple[Tensor, Tensor]:
    """Rows that are held out, and those that are not."""
    rng = generator(seed, party, "held out of the grid")
    drawn = rows[torch.randperm(len(rows), generator=rng)]
    num = max(1, round(HELD_OUT * len(drawn)))
    return drawn[:num], drawn[num:]


def at_length(release: Release | None, length: float) -> Release | None:
    if release is None or release.clip is None:
        return release
    return release.model_copy(update={"clip": release.clip * length})


def mean_of(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# --- Weights that are sent ---------------------------------------------------------------------

#: Where weights are sent: DP-SGD of these.
DEFENCES_OF_WEIGHTS = (
    AS_IT_IS,
    *(
        Defence(
            f"DP-SGD at noise {z:g}",
            {"private": PrivateSteps(noise=z)},
            None,
            "epsilon of a row in what is sent is counted",
        )
        for z in (1.0, 2.0, 4.0, 8.0)
    ),
)


@dataclass(frozen=True)
class WeightsGrid:
    """Each party's own model, of a method that sends weights."""

    tested: bool  # whether every party has test rows

    @property
    def defences(self) -> Sequence[Defence]:
        return DEFENCES_OF_WEIGHTS

    @property
    def alone(self) -> str | None:
        return "best-alone" if self.tested else None

    def hold_out(self, task: Training, seed: int) -> tuple[Training, Any]:
        party_data, held = {}, {}
        for name, local_data in task.party_data.items():
            rows, rest = drawn(local_data.train.labelled_rows(), seed, name)
            held[name] = local_data.train.take(rows)
            party_data[name] = replace(local_data, train=local_data.train.take(rest))
        return replace(task, party_data=party_data), (held, seed)

    def protected(self, task: Training, defence: Defence, lengths: Lengths) -> Training:
        settings = task.settings.model_copy(update=dict(defence.active))
        return replace(task, settings=settings)

    def sends(self, task: Training) -> bool:
        return True

    def scored(
        self, task: Training, variant_run: VariantRun | None, outcome: Outcome, held: Any
    ) -> float:
        rows, seed = held
        if (
            variant_run is None
        ):  # its models are not kept; with these as its test rows it scores them
            assert self.alone is not None
            party_data = {
                name: replace(local_data, test=rows[name])
                for name, local_data in task.party_data.items()
            }
            again = replace(task, party_data=party_data).train(self.alone, seed, lambda *_: None)
            return mean_of([first_of(each) for each in again.scores[self.alone].values()])
        scores = []
        for name, part in rows.items():
            outputs = outputs_of(outcome.models[name], part)
            scores.append(first_of(score(task.party_data[name].task, outputs, part.labels)))
        return mean_of(scores)
