"""Baselines of the literature for partners that may leave, trained and scored beside APFed-D.

"party-dropout" is Sun et al.'s (PlugVFL), "laser" Valdeira et al.'s (LASER-VFL); see
``models/learners/subsets.py``. Both have the teacher's networks and settings, learn from every
labelled row of the label owner, shared or not, and are scored with the partners there and gone
("...-gone"). They are trained in one place, as baselines: no partner is asked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dovetail.data import Alignment, Federation
from dovetail.errors import ConfigError
from dovetail.methods.apfed.distil import Table
from dovetail.methods.apfed.distilling import Distilling
from dovetail.methods.baselines import features, judged_rows
from dovetail.methods.outcome import Observer, Outcome, numbers
from dovetail.models.learners.subsets import fit_laser, fit_party_dropout

#: Variant -> what a table calls its scores with the partners there; with "-gone", without them.
MISSING_PARTY: Mapping[str, str] = {
    "party-dropout": "party dropout",
    "laser": "LASER",
}


def train_with_missing(
    work: Distilling,
    variant: str,
    train: Federation,
    test: Federation | None,
    observe: Observer,
) -> Outcome:
    """Train and score one of ``GONE``.

    Raises:
        ConfigError: nobody beside the label owner.
    """
    started = time.perf_counter()
    name = work.train.name
    partners = [party for party in work.alignment.rows if party != name]
    if not partners:
        raise ConfigError(f"the baseline {variant!r} needs a party beside {name!r}")
    owner = work.owner()
    xs, held_PR = _parts(train, work.alignment, name, partners, owner.x_RF)
    labelled = owner.labelled
    config = work.config.stack("network")
    fit = fit_laser if variant == "laser" else fit_party_dropout
    fitted = fit(
        [x_RF[labelled] for x_RF in xs],
        judged_rows(owner.labelled_rows()),
        config,
        seed=work.seed,
        held_PN=held_PR[:, labelled],
        encode_on=[x_RF[held_R] for x_RF, held_R in zip(xs, held_PR, strict=True)],
    )
    outcome = Outcome()
    line: dict[str, Any] = {"epoch": 1, "seconds": time.perf_counter() - started, "steps": 1}
    if work.test is not None:
        local_NF = features(work.test.joined())
        without_partner = fitted.outputs([local_NF, *(None for _ in partners)])
        outcome.scores[f"{variant}-gone"] = {name: work.scored(f"{variant}-gone", without_partner)}
        line |= numbers(outcome.scores[f"{variant}-gone"][name])
        if test is not None and work.test_alignment is not None:
            test_xs, there_PN = _parts(test, work.test_alignment, name, partners, local_NF)
            rows = there_PN.all(dim=0).nonzero().flatten()
            if len(rows):
                together = fitted.outputs([x_NF[rows] for x_NF in test_xs])
                scored = work.scored(variant, together, rows)
                whole = len(rows) == len(local_NF)
                outcome.scores[variant] = {name: scored if whole else {**scored, "rows": len(rows)}}
    observe(variant, 1, line)
    return outcome


def _parts(
    federation: Federation,
    alignment: Alignment,
    name: str,
    partners: list[str],
    local_RF: Tensor,
) -> tuple[list[Tensor], Tensor]:
    """Every party's features in the label owner's rows, its own first, and (P, R) who has which.

    Zeros stand where a partner has no such row.
    """
    table = Table.of(local_RF, name, alignment)
    xs, held = [local_RF], [torch.ones(len(local_RF), dtype=torch.bool)]
    for party in partners:
        x = features(federation[party].joined())
        samples_R = table.samples[party]
        there_R = samples_R >= 0
        x_RF = torch.zeros(len(local_RF), x.shape[1])
        x_RF[there_R] = x[alignment.rows[party][samples_R[there_R]]]
        xs.append(x_RF)
        held.append(there_R)
    return xs, torch.stack(held)
