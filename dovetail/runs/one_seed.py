"""Training of one seed of a run: the method, then each baseline beside it, on the same rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch

from dovetail.federated import LeftOut, in_round
from dovetail.methods.outcome import Observer, Outcome, number
from dovetail.methods.training import Training
from dovetail.models.computing import computing
from dovetail.network import Checkpoint
from dovetail.settings.models import Compute

CPU = torch.device("cpu")


def run(
    training: Training,
    seed: int,
    observe: Observer,
    *,
    checkpoint: Callable[[str], Checkpoint] | None = None,
    skip: Collection[str] = (),
    compute: Compute = "float32",
    device: torch.device = CPU,
) -> Iterator[tuple[str, Outcome]]:
    """Train the method, then each baseline; gives each as it is done.

    Args:
        training: what to train.
        seed: of everything random.
        observe: called with each epoch or round.
        checkpoint: variant -> where it is saved, and goes on from; None saves nothing.
        skip: variants that are done already.
        compute: in which numbers networks are computed.
        device: where.
    """
    for variant in dict.fromkeys((training.method, *training.baselines)):
        if variant in skip:
            continue
        saved = Checkpoint.none() if checkpoint is None else checkpoint(variant)

        def note(
            variant: str,
            total: int,
            line: dict[str, Any],
            saved: Checkpoint = saved,
            left_out: LeftOut = LeftOut(),  # noqa: B008 - one a variant, as ``saved``
        ) -> None:
            if "epoch" not in line:  # a method of epochs tells each step as it is missed
                for party, why in line.get("reasons", {}).items():
                    left_out.warn(party, in_round(number(line), why))
            # Kept with the state, so that a variant that was resumed adds up like one that was not.
            saved.extra.setdefault("lines", []).append(line)
            observe(variant, total, line)

        with computing(compute, device):
            outcome = training.train(variant, seed, note, saved)
        _add_up(outcome, saved.extra.get("lines", []))
        yield variant, outcome


def _add_up(outcome: Outcome, lines: Iterable[Mapping[str, Any]]) -> None:
    """Seconds and what parties were left out of, over all epochs or rounds of a variant."""
    numbered = [line for line in lines if number(line)]
    outcome.seconds = sum(line["seconds"] for line in lines)
    unit = "steps" if any("steps" in line for line in numbered) else "rounds"
    of = sum(line.get("steps", 1) for line in numbered)
    outcome.missed = {}
    for line in numbered:
        for party, count in line.get("missed", {}).items():
            first = in_round(number(line), line["reasons"][party])
            entry = outcome.missed.setdefault(party, {unit: 0, "of": of, "first": first})
            entry[unit] += min(count, line.get("steps", 1))  # several messages may be missed in one
