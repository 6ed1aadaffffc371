"""Cox' partial likelihood of a batch's rows as a loss, beside discrete hazards.

    python -m benchmarks.cox_loss [--splits 5]

Sets and splits are those of ``benchmarks.survival``, all columns in one place and a perceptron of
32 hidden units with one output. It moves the log odds of all intervals, as Dovetail learns times;
or it is the logarithm of the relative hazard, by Breslow's partial likelihood of the batch, whose
rows are each other's rows at risk. Networks begin alike and see the same batches. A fifth of the
labelled rows chooses the epoch, by C; test rows judge it.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
import warnings

import numpy as np
import torch
from sksurv.metrics import concordance_index_censored
from torch import Tensor, nn

from benchmarks import _results
from benchmarks.survival import CASES, EVENT, SPLITS, TIME, split
from dovetail.data import TableEncoder
from dovetail.data.frames import table_from_frame
from dovetail.data.survival import fit_survival
from dovetail.models.losses import Hazards

BATCHES, EPOCHS, PATIENCE = (32, 256), 200, 20


def partial_likelihood(outputs_B: Tensor, signed_B: Tensor) -> Tensor:
    """Minus its logarithm (Breslow's for ties), for an event; times are below 0 where censored."""
    times_B, events_B = signed_B.abs(), signed_B > 0
    at_risk_BB = times_B[None] >= times_B[:, None]
    logs_B = torch.where(at_risk_BB, outputs_B[None], -torch.inf).logsumexp(dim=1)
    return ((logs_B - outputs_B) * events_B).sum() / events_B.sum().clamp(min=1)


def concordance(risks: np.ndarray, signed: np.ndarray) -> float:
    """Harrell's C."""
    return float(concordance_index_censored(signed > 0, np.abs(signed), risks)[0])


def trained(
    loss: str, batch: int, x: Tensor, signed: Tensor, parts: dict[str, np.ndarray], seed: int
) -> float:
    """C on test rows."""
    task = fit_survival(signed[parts["train"]].numpy(), label="time")
    hazards, targets = Hazards(task.base), task.targets(signed)
    rng = torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.01)
    best, kept, since = -1.0, copy.deepcopy(network), 0
    for _ in range(EPOCHS):
        network.train()
        for rows in torch.from_numpy(parts["train"])[
            torch.randperm(len(parts["train"]), generator=rng)
        ].split(batch):
            outputs = network(x[rows])
            optimizer.zero_grad()
            if loss == "cox":
                partial_likelihood(outputs[:, 0], signed[rows]).backward()
            else:
                hazards.rows(outputs, targets[rows]).mean().backward()
            optimizer.step()
        network.eval()
        with torch.inference_mode():
            judged = concordance(
                network(x[parts["choose"]])[:, 0].numpy(), signed[parts["choose"]].numpy()
            )
        since += 1
        if judged > best:
            best, kept, since = judged, copy.deepcopy(network), 0
        if since > PATIENCE:
            break
    with torch.inference_mode():
        said = kept(x[parts["test"]])[:, 0].numpy()
    return concordance(said, signed[parts["test"]].numpy())


def run_of(case: str, number: int) -> dict[str, float]:
    """Loss and batch -> C."""
    frame, known, test = split(case, number)
    columns = [column for column in frame if column not in (TIME, EVENT)]
    rows = table_from_frame(frame[columns])
    encoder = TableEncoder.fit(rows.take(known), columns, party="pooled")
    x = encoder.transform(rows, allow_unseen=True)
    times = np.maximum(frame[TIME].to_numpy(), 0.5)
    signed = torch.from_numpy(np.where(frame[EVENT] == 1, times, -times).astype(np.float32))
    order = np.random.default_rng(number).permutation(known)
    num = len(known) // 5
    parts = {"choose": order[:num], "train": order[num:], "test": test}
    return {
        f"{loss}, batches of {batch}": trained(loss, batch, x, signed, parts, number)
        for loss, batch in itertools.product(("hazards", "cox"), BATCHES)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--splits", type=int, default=SPLITS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    table = []
    for case in CASES:
        lines = [run_of(case, number) for number in range(given.splits)]
        row: dict[str, object] = {"set": case}
        for name in lines[0]:
            values = [line[name] for line in lines]
            row[name] = f"{statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f}"
        table.append(row)
        print(row, flush=True)
    _results.write("cox_loss", "Harrell's C of a perceptron, by its loss", table)


if __name__ == "__main__":
    main()
