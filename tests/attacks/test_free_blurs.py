"""APFed-S: the same rows asked as "samples" and as "tested" are two numbers of each, and counted.

The answer about a labelled row as such is smoothed by the other folds, as a new one by all. While
both were the same question to the count, each choice of which are new gave fresh blurs of the
others' numbers, free: 150 runs left an eightieth of a blur.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dovetail.alignment import psi
from dovetail.methods.apfed import sealed
from dovetail.network import InProcess

ROWS, LABELLED = 200, 40
IDS = [f"P-{number:04d}" for number in range(ROWS)]


def test_rows_that_are_asked_as_others_are_counted_again(shop_site: Callable[..., Any]) -> None:
    site = shop_site(IDS, 'drivers = ["bank"]\nalgorithms = ["align", "apfed"]')
    psi.align(site.engine("a1"), IDS)
    samples = torch.randperm(ROWS)
    targets = torch.randn(LABELLED, 1)
    made = sealed.Sealing.of(targets, ROWS, regression=True, secret=b"s" * 32, asked=b"")

    def asked(run: int, as_new: int, swapped: bool = False) -> str:
        """What is refused where so many labelled rows are asked as new ones; "" if nothing."""
        new = torch.arange(ROWS) < as_new
        labelled = samples[:LABELLED].clone()
        if swapped:  # two rows change places, and folds
            labelled[[LABELLED - 1, LABELLED - 2]] = labelled[[LABELLED - 2, LABELLED - 1]]
        message = sealed.Begin(
            seed=0,
            **made.wire,
            labelled_L=labelled,
            folds_L=torch.arange(LABELLED) % 5,
            samples_N=samples[~new],
            tested_U=samples[new],
        )
        host = site.runs.open(f"a1/apfed-s/seed-{run}", "sealed", "bank")
        engine = InProcess({"shop": host}, driver="bank", through_bytes=True)
        replies = engine.ask({"shop": message}, sealed.Answered)
        failed = replies.failures.get("shop")
        return "" if failed is None else failed.cause

    assert asked(0, as_new=0) == ""
    assert asked(1, as_new=0) == ""  # the same question has the same answer, and is free
    for run, (as_new, swapped) in enumerate([(1, False), (20, False), (0, True)], 2):
        assert "it has given 1 of a row before" in asked(run, as_new, swapped)
    ((most, least),) = site.quota.read("SELECT max(times), min(times) FROM numbers")
    assert (most, least) == (1, 1)
