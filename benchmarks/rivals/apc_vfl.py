"""APC-VFL: a partner's representations, distilled into the label owner's own encoder.

Irureta et al. 2024, "Towards Active Participant Centric Vertical Federated Learning: Some
Representations May Be All You Need" (arXiv:2410.17648).

    1  each party trains an autoencoder on all of its rows, without labels
    2  the partner sends the codes of shared rows: the one message
    3  the label owner trains an autoencoder on [own code, partner's code] of shared rows: z
    4  it trains a further encoder on all of its own rows, of loss
           mse(decoded, x) + distilled * mse(code, z)     the second term of shared rows only
    5  a classifier of its labelled rows: of [own columns, code]

Written from the description, without the authors' code. What the description leaves open is ours:
one hidden layer, codes as wide as the party has encoded columns (32 at most), full batches of Adam,
an end by a tenth of the rows, and ``distilled`` by cross-validation of the classifier. The
classifier is the mean of logistic regression and LightGBM, as beside it in ``benchmarks.unseen``.
"""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from benchmarks.newcomer import by_anyone
from benchmarks.rivals.base import Given, Result, encoded, folds_of

DISTILLED = (0.1, 1.0, 10.0)
WIDEST, MOST_STEPS, PATIENCE = 32, 600, 50


def trained(
    x_NF: Tensor, *, seed: int, taught: Tensor | None = None, weight: float = 0.0
) -> nn.Module:
    """The encoder of an autoencoder of these rows.

    Args:
        x_NF: rows.
        seed: of weights and of the rows that end it.
        taught: (N, D) codes to imitate, NaN where there is none.
        weight: of that in the loss.
    """
    generator = torch.Generator().manual_seed(seed)
    width = x_NF.shape[1]
    code = min(WIDEST, width) if taught is None else taught.shape[1]
    hidden = 2 * max(width, code)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, code))
        decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, width))
    both = nn.ModuleList([encoder, decoder])
    judges = torch.rand(len(x_NF), generator=generator) < 0.1
    judges[0] = True

    def loss(rows: Tensor) -> Tensor:
        codes = encoder(x_NF[rows])
        total: Tensor = (decoder(codes) - x_NF[rows]).square().mean()
        if taught is not None and bool((there := ~taught[rows].isnan().any(dim=1)).any()):
            total = total + weight * (codes[there] - taught[rows][there]).square().mean()
        return total

    optimizer = torch.optim.Adam(both.parameters(), lr=3e-3)
    least, best, since = float("inf"), copy.deepcopy(encoder), 0
    for _ in range(MOST_STEPS):
        optimizer.zero_grad()
        loss(~judges).backward()
        optimizer.step()
        with torch.no_grad():
            now = float(loss(judges))
        since += 1
        if now < least:
            least, best, since = now, copy.deepcopy(encoder), 0
        if since > PATIENCE:
            break
    return best.eval()


@torch.no_grad()
def codes_of(encoder: nn.Module, x_NF: Tensor) -> Tensor:
    """(N, D) scaled to a spread of one."""
    codes: Tensor = encoder(x_NF)
    return codes.div(codes.std().clamp(min=1e-6))


def apc_vfl(given: Given, seed: int) -> Result:
    """See ``Rival``; it predicts by the owner's columns alone, and never reads ``there``."""
    train, test = given.train, given.test
    x, new = given.owned(train), given.owned(test)
    theirs = encoded(given.partner, given.partner)
    sent = codes_of(trained(theirs, seed=seed), theirs)
    shared = torch.from_numpy(train.index.get_indexer(given.partner.index))
    both = torch.cat([codes_of(trained(x, seed=seed), x)[shared], sent], dim=1)
    taught = torch.full((len(x), min(WIDEST, both.shape[1])), torch.nan)
    taught[shared] = codes_of(trained(both, seed=seed), both)
    known = train["y"].notna().to_numpy()
    tried = []
    for weight in DISTILLED:
        encoder = trained(x, seed=seed, taught=taught, weight=weight)
        with torch.no_grad():
            joined = [
                frame[given.columns].join(
                    pd.DataFrame(encoder(rows).numpy(), index=frame.index).add_prefix("code ")
                )
                for frame, rows in ((train, x), (test, new))
            ]
        labelled = joined[0][known].assign(y=train["y"][known])
        tried.append((held_out_loss(labelled, seed), labelled, joined[1]))
    _, labelled, rows = min(tried, key=lambda each: each[0])
    return Result(
        classified(labelled, rows),
        None,
        sent.numel() * sent.element_size(),
        messages=1,
        learns="which rows are shared",
    )


def classified(labelled: pd.DataFrame, rows: pd.DataFrame) -> np.ndarray:
    """(N, C) the mean of logistic regression and LightGBM."""
    names = [name for name in labelled if name != "y"]
    two = [
        by_anyone(kind, labelled, rows, names, regression=False) for kind in ("linear", "lightgbm")
    ]
    return np.asarray(np.mean(two, axis=0))


def held_out_loss(labelled: pd.DataFrame, seed: int) -> float:
    """Cross-entropy of labelled rows by logistic regression of four folds."""
    classes = sorted(labelled["y"].unique())
    truth = labelled["y"].map({name: index for index, name in enumerate(classes)}).to_numpy()
    folds = folds_of(truth, seed)
    losses = []
    names = [name for name in labelled if name != "y"]
    for fold in range(4):
        learnt, judged = labelled[folds != fold], labelled[folds == fold]
        if set(learnt["y"]) != set(classes):
            continue
        said = by_anyone("linear", learnt, judged, names, regression=False)
        losses += [-np.log(said[np.arange(len(judged)), truth[folds == fold]].clip(1e-6))]
    return float(np.concatenate(losses).mean()) if losses else 0.0
