"""What a label owner reads of its partner's rows by APFed-S, by bits and numbers of a row.

    python -m benchmarks.exact_rows

Credit: 4,000 rows, of which 1,000 are labelled; the bureau's six columns, of which the bank knows
100 rows. `dovetail audit --malicious --fast`, seed 0: an honest bank, and one that encrypts what it
likes. A guess is the most common row, or what trees say from the bank's own columns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import chdir
from typing import Any
from unittest.mock import patch

import torch

from benchmarks import _results
from benchmarks.attacks import RUNS
from dovetail.api.auditing import audit
from dovetail.methods.apfed import sealed, steering
from dovetail.methods.settings.shared import SealedLimits

#: Numbers of a row that a partner gives, and bits of each; None: the default.
POLICIES = ((1, None), (1, 4), (1, 5), (1, 6), (4, None), (12, None))

#: How an attack is called -> what the record calls its figure.
KINDS = {"exact rows": "rows", "exact cells": "cells", "an inversion": "R2"}
KINDS["inversion by ridge regression"] = "R2"


def audited(numbers: int, bits: int | None) -> Iterator[dict[str, Any]]:
    """A line for each way to ask under this policy."""
    policy = SealedLimits(numbers_per_row=numbers, bits=bits)
    free = SealedLimits(numbers_per_row=10**6, bits=bits)
    file, sets = RUNS["credit"]
    overrides = (*sets, 'method="apfed"', "baselines=[]")
    with (
        tempfile.TemporaryDirectory() as folder,
        chdir(folder),
        patch.object(steering, "SealedLimits", lambda: policy),
        patch.object(sealed, "UNLIMITED", free),
    ):
        found = audit(file, overrides=overrides, malicious=True, fast=True, quiet=True)
    lines: dict[str, dict[str, Any]] = {}
    for each in found.findings:
        attack, _, kind = each.threat.attack.partition(", then ")
        steered, honest = each.variant == "apfed, steered", each.variant == "apfed"
        if each.channel not in ("numbers", "steered numbers") or each.target != "columns":
            continue
        if not steered and not (honest and numbers == 1):
            continue
        asked = attack if steered else "as it should"
        start = {"asked": asked, "numbers": numbers, "bits": policy.bits_of(numbers)}
        line, name = lines.setdefault(asked, start), KINDS[kind or attack]
        line[f"{name}, guess"] = round(each.baseline, 3)
        line[f"{name}, read"] = round(each.score, 3)
    yield from lines.values()


def main() -> None:
    torch.set_num_threads(1)
    rows = [line for policy in POLICIES for line in audited(*policy)]
    _results.write("exact_rows", "What is read of a partner's rows by APFed-S", rows)


if __name__ == "__main__":
    main()
