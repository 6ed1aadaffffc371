"""Whole rows from a change of weights: the analytic leak of a first layer, scored as tables are.

Papers: Phong et al. 2018 and Geiping et al. 2020 for the leak: of a neuron that one row of a batch
alone drives, the weights' change divided by the bias's is that row. Vero et al., "TabLeak", ICML
2023, for what counts as found on tables: a number within 0.319 deviations of the truth, a category
exactly.

Threat: whoever sees one member's weights before and after a round. Each neuron gives one candidate
row. Baseline: as many rows drawn column by column from the table's own distribution, which is more
than the receiver has.

Scored on each candidate is the share of columns that its nearest true row has right; a row that is
drawn at random has some right, too.

Departure from TabLeak: nothing is optimised, so that this is a lower bound.
"""

from __future__ import annotations

import numpy as np

from dovetail.audit.verdict import Measured
from dovetail.methods.facets.audited import Threat

THREAT = Threat(
    "rows from a first layer's change",
    "TabLeak 2023; Phong et al. 2018",
    "one member's weights before and after a round",
    "as many rows drawn column by column from the table",
    "share of columns right in the nearest row, mean over candidates",
)

#: A number counts as found within so many deviations (Vero et al., section 5).
TOLERANCE = 0.319

#: Candidates and true rows that are compared.
MAX_CANDIDATES, MAX_ROWS = 256, 4000


def rows(change_HF: np.ndarray, bias_H: np.ndarray, x_NF: np.ndarray) -> Measured | None:
    """How near a layer's change comes to true rows; None where no bias moved."""
    moved = np.flatnonzero(np.abs(bias_H) > 1e-8)
    if not len(moved):
        return None
    moved = moved[np.argsort(-np.abs(bias_H[moved]), kind="stable")][:MAX_CANDIDATES]
    candidates = change_HF[moved] / bias_H[moved, None]
    rng = np.random.default_rng(0)
    x = x_NF[rng.permutation(len(x_NF))[:MAX_ROWS]]
    deviation = x.std(axis=0)
    varying = deviation > 1e-9
    drawn = np.stack(
        [x[rng.integers(len(x), size=len(candidates)), f] for f in range(x.shape[1])], axis=1
    )
    scale = deviation[varying]

    def nearest(guess_MF: np.ndarray) -> np.ndarray:
        distances = np.empty(len(guess_MF))
        for index, guess in enumerate(guess_MF[:, varying] / scale):
            near = np.abs(x[:, varying] / scale - guess) < TOLERANCE
            distances[index] = near.mean(axis=1).max()
        return distances

    attack, baseline = nearest(candidates), nearest(drawn)
    variants = {
        "candidates with every column right": float((attack == 1).mean()),
        "drawn rows with every column right": float((baseline == 1).mean()),
    }
    return Measured(attack[None], baseline[None], None, variants)
