"""A partner whose columns are noise: does the gate keep the own model, and what is lost if not?

    python -m benchmarks.noise_partner [--draws 11 12]

Two tables that scikit-learn brings, an owner with few labels, a partner of eight columns of noise.
All other rows train nothing with their labels, and judge: log loss and accuracy of the best model
alone and of the solo model that APFed-D ends with. One line each goes to
``results/noise_partner.jsonl``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor

from dovetail.data import SharedRows
from dovetail.federated import Local
from dovetail.methods.apfed import distil as distil_run
from dovetail.methods.apfed import teaching
from dovetail.methods.settings.apfed import DistilConfig as Config
from dovetail.methods.settings.apfed import PartnerConfig
from dovetail.models.learners import Best, Fitted, hard_targets, make_folds
from dovetail.models.learners.distil import Owner, StudentConfig, choose_teacher, distil
from dovetail.models.learners.rows import NO_FOLD, mean_loss
from dovetail.network import InProcess

RESULTS = Path(__file__).parent / "results" / "noise_partner.jsonl"

#: Table -> columns of the owner, labels.
TABLES = {"breast cancer": (10, 60), "digits": (32, 100)}


def judged(model: Fitted, owner: Owner) -> dict[str, float]:
    """Log loss and accuracy in rows without label."""
    rest = ~owner.labelled
    outputs_NC, targets_NC = model.outputs(owner.x_RF[rest]), owner.targets_RC[rest]
    return {
        "log loss": round(mean_loss(outputs_NC, targets_NC, loss=owner.loss), 4),
        "accuracy": round(float((outputs_NC.argmax(1) == targets_NC.argmax(1)).double().mean()), 4),
    }


def taught(owner: Owner, partner_x: Tensor, *, seed: int) -> dict[str, Tensor]:
    """Teacher -> (K, R, C) outputs: APFed-D's, its partner in this process."""
    every_row = torch.arange(len(partner_x))
    table = distil_run.AlignedRows(owner.x_RF, {"partner": every_row})
    config = Config(exchange="gradients")
    active = distil_run.Active(owner, table, None, config, Local("owner"), seed=seed)
    shared = SharedRows("partner", partner_x, every_row)
    partner = distil_run.Partner(shared, None, PartnerConfig(), Local("partner"))
    list(teaching.train(active, InProcess({"partner": partner}, driver="owner")))
    assert active.teacher_outputs is not None
    return active.of_folds(active.teacher_outputs.train)


def one(table: str, draw: int) -> dict[str, object]:
    load = load_digits if table == "digits" else load_breast_cancer
    columns, labels = load(return_X_y=True)
    width, num_labels = TABLES[table]
    order = np.random.default_rng(draw).permutation(len(columns))
    x = columns[order, :width]
    x_RF = torch.tensor((x - x.mean(0)) / (x.std(0) + 1e-9), dtype=torch.float32)
    classes: Tensor = torch.tensor(labels[order])
    noise = torch.randn(len(x), 8, generator=torch.Generator().manual_seed(draw))
    folds_R = torch.full((len(x),), NO_FOLD)
    folds_R[:num_labels] = make_folds(classes[:num_labels], 4, seed=draw)
    owner = Owner(x_RF, hard_targets(classes, int(classes.max()) + 1, regression=False), folds_R)
    alone = Best().fit(owner.labelled_rows(), seed=draw, encode_on=x_RF)
    outputs = taught(owner, noise, seed=draw)
    done = distil(owner, choose_teacher(outputs, owner), alone, StudentConfig(), seed=draw)
    return {
        "table": table,
        "draw": draw,
        "labels": num_labels,
        "choice": done.choice,
        "joint ahead by standard errors": round(done.teacher_gain, 2),
        "alone": judged(alone, owner),
        "solo": judged(done.solo, owner),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, nargs="+", default=[11, 12])
    draws = parser.parse_args().draws
    torch.set_num_threads(1)
    with RESULTS.open("w") as lines:
        for table in TABLES:
            for draw in draws:
                line = json.dumps(one(table, draw))
                print(line, flush=True)
                lines.write(line + "\n")


if __name__ == "__main__":
    main()
