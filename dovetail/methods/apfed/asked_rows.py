"""Which rows a label owner of APFed-S asks a partner about, and where its numbers go.

Letters: R the label owner's rows, L labelled ones that take part, N asked about, Z numbers of each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail.methods.limits import MAX_LABELLED


def rows_labelled(samples_R: Tensor, labelled_R: Tensor, rng: torch.Generator) -> Tensor:
    """(L,) rows that are labelled and shared; of many a draw."""
    rows = ((samples_R >= 0) & labelled_R).nonzero().flatten()
    if len(rows) > MAX_LABELLED:
        rows = rows[torch.randperm(len(rows), generator=rng)[:MAX_LABELLED]].sort().values
    return rows


def rows_asked(samples_R: Tensor, rows_L: Tensor, most: int, rng: torch.Generator) -> Tensor:
    """(N,) rows that are asked about: the labelled ones, and a draw of other shared ones."""
    others = samples_R >= 0
    others[rows_L] = False
    rows = others.nonzero().flatten()
    drawn = rows[torch.randperm(len(rows), generator=rng)[:most]]
    return torch.cat([rows_L, drawn]).sort().values


def rows_of(samples_R: Tensor, asked_N: Tensor) -> Tensor:
    """(N,) the row of each of these samples."""
    row_of = torch.full((int(samples_R.max()) + 1,), -1)
    held = samples_R >= 0
    row_of[samples_R[held]] = held.nonzero().flatten()
    return row_of[asked_N]


def placed(z_NZ: Tensor, samples_R: Tensor, asked_N: Tensor) -> Tensor:
    """(R, Z) numbers by row; NaN of rows that were not asked about."""
    found = torch.full((len(samples_R), z_NZ.shape[1]), torch.nan)
    found[rows_of(samples_R, asked_N)] = z_NZ
    return found
