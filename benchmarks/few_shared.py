"""APFed-S where few rows are shared: what stands for the numbers of the others, on rows kept back.

    python -m benchmarks.few_shared [--seeds 3] [--only credit]

Tables of ``dovetail bench worth``. A quarter of the rows that train, 4,000 at most, is kept back;
labels and shared rows are drawn from the others. Numbers are made in the clear: M t is what
decryption gives. Of labelled rows that no partner has, three things may stand for the numbers:

    none     nothing: these rows have no part in the teacher
    outputs  what own outputs say of a number (entity augmentation), for students alone:
             ``apfed.sealed.fill``
    map      what own columns say of it, by a map learnt on all shared rows (VFedTrans-like)

Figures are AUC or accuracy in %, of the solo model and of the joint one with the partner there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from benchmarks import _results
from dovetail.methods.apfed.numbers import UNLIMITED
from dovetail.methods.baselines import features
from dovetail.models.learners import LEARNERS, NO_FOLD, best_of, fit_all, hard_targets, make_folds
from dovetail.models.learners.assisted import all_columns, num_targets, targets
from dovetail.models.learners.assisted_teacher import JointTeacher, fit_teacher
from dovetail.models.learners.distil import Owner, StudentConfig, distil
from dovetail.models.learners.joint import blended
from dovetail.models.learners.rows import Rows, first_fold_only
from dovetail.models.learners.stacked import mean_outputs
from dovetail.models.losses import SquaredError
from dovetail.models.smoothers import Kernels, Smoother, Smoothing
from dovetail.runs.runfile import load_run
from dovetail.runs.setup import load_data

RUNS = Path(__file__).parents[1] / "runs" / "apfed"
CASES = (("credit", 1000), ("adult", 1000), ("zer", 400), ("mor", 400))
OVERLAPS = (0.05, 0.1, 0.3)
HOW = ("none", "outputs", "map")
KEPT_BACK, ASKED = 4000, 8000


def score(outputs_NC: Tensor, classes_N: Tensor) -> float:
    """AUC of two classes, else accuracy, in %."""
    if outputs_NC.shape[1] == 2:
        return 100 * float(roc_auc_score(classes_N, outputs_NC.softmax(dim=1)[:, 1]))
    return 100 * float((outputs_NC.argmax(dim=1) == classes_N).float().mean())


def joint_outputs(joint: JointTeacher, own_NC: Tensor, z_NZ: Tensor) -> Tensor:
    """(N, C) of the joint model."""
    inputs_NF = joint.inputs.of(own_NC, z_NZ)
    each = [member.outputs(inputs_NF) for member in joint.members]
    return mean_outputs(blended(each, regression=False), regression=False)


def by_map(z_RZ: Tensor, owner: Owner, seed: int) -> Tensor:
    """The numbers, and of other labelled rows what own columns say of them."""
    known, num = ~z_RZ.isnan().any(dim=1), owner.targets_RC.shape[1]
    z_NT = z_RZ[known][:, : num_targets(num, regression=False)]
    spread_T = z_NT.std(dim=0).clamp(min=1e-9)
    folds_N = make_folds(z_NT, 4, seed=seed, regression=True)
    folds_N = first_fold_only(folds_N) if len(folds_N) > 2000 else folds_N
    rows = Rows(owner.x_RF[known], z_NT / spread_T, folds_N, loss=SquaredError())
    fitted = fit_all(list(LEARNERS.values()), rows, seed=seed, encode_on=owner.x_RF)
    wanted, filled_RZ = owner.labelled & ~known, z_RZ.clone()
    said_NT = best_of(fitted, rows).outputs(owner.x_RF[wanted]) * spread_T
    filled_RZ[wanted] = all_columns(said_NT, regression=False)
    return filled_RZ


def measured(case: str, labels: int, overlap: float, seed: int) -> dict[str, Any]:
    """One table, one draw."""
    data = load_data(load_run(RUNS / f"worth.toml:{case}", overrides=("baselines=[]",))).data
    local, partner = data.train.parties["owner"], data.train.parties["partner"]
    row_of = {each: row for row, each in enumerate(partner.ids.tolist())}
    rows = torch.tensor([row_of[each] for each in local.ids.tolist()])
    x_NF, classes_N = features(local.joined()), local.required_labels
    theirs_NG = features(partner.joined())[rows]
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x_NF), generator=rng)
    test, train = order.tensor_split([min(KEPT_BACK, len(order) // 4)])
    num = data.task.num_outputs
    folds_R = torch.full((len(train),), NO_FOLD)
    labelled = torch.randperm(len(train), generator=rng)[:labels].sort().values
    folds_R[labelled] = make_folds(classes_N[train][labelled], 4, seed=seed)
    targets_RC = hard_targets(classes_N[train], num, regression=False)
    targets_RC[folds_R < 0] = 0
    owner = Owner(x_NF[train], targets_RC, folds_R)
    shared = torch.zeros(len(train), dtype=torch.bool)
    shared[torch.randperm(len(train), generator=rng)[: round(overlap * len(train))]] = True
    rows_L = (shared & owner.labelled).nonzero().flatten()
    others = (shared & ~owner.labelled).nonzero().flatten()[:ASKED]
    theirs_RG = theirs_NG[train]
    kernels = Kernels.fit(theirs_RG[shared], rng)
    smoothing = Smoothing(
        kernels, Smoother("mean", 1.0), theirs_RG[rows_L], folds_R[rows_L], UNLIMITED.least_rows
    )
    t_LT = targets(owner, rows_L)

    def smoothed(weights_NL: Tensor) -> Tensor:
        return all_columns(weights_NL @ t_LT, regression=False)

    z_RZ = torch.full((len(train), num), torch.nan)
    z_RZ[rows_L] = smoothed(smoothing.left_out())
    z_RZ[others] = smoothed(smoothing.weights(theirs_RG[others]))
    z_test = smoothed(smoothing.weights(theirs_NG[test]))
    labelled_rows = owner.labelled_rows()
    fitted = fit_all(list(LEARNERS.values()), labelled_rows, seed=seed, encode_on=owner.x_RF)
    alone = best_of(fitted, labelled_rows)
    own_NC = alone.outputs(x_NF[test])
    line: dict[str, Any] = {
        "table": case,
        "labels": labels,
        "overlap": overlap,
        "seed": seed,
        "labelled and shared": len(rows_L),
        "local": score(own_NC, classes_N[test]),
    }
    for how in HOW:
        numbers = by_map(z_RZ, owner, seed) if how == "map" else z_RZ
        joint = fit_teacher(numbers, owner, alone, fill=how == "outputs")
        assert joint is not None
        done = distil(owner, joint.teacher, alone, StudentConfig(), seed=seed)
        line[f"solo, {how}"] = score(done.solo.outputs(x_NF[test]), classes_N[test])
        if how != "outputs":  # as with "none"
            line[f"joint, {how}"] = score(joint_outputs(joint, own_NC, z_test), classes_N[test])
        line[f"gain by held-out rows, {how}"] = done.gain
    return line


def table(lines: Sequence[dict[str, Any]]) -> str:
    """As results/bench/sealed.md has it: means over seeds."""
    of_case: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        of_case[line["table"], line["labels"], line["overlap"]].append(line)
    keys = ["local", *(f"solo, {how}" for how in HOW), "joint, none", "joint, map"]
    text = f"| table | labels | shared | draws | {' | '.join(keys)} |\n"
    text += "|---" * (4 + len(keys)) + "|\n"
    for (case, labels, overlap), found in of_case.items():
        means = [f"{statistics.fmean(line[key] for line in found):.1f}" for key in keys]
        text += f"| {case} | {labels} | {overlap:.0%} | {len(found)} | {' | '.join(means)} |\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="one table")
    arguments = parser.parse_args()
    path = _results.FOLDER / "few_shared.jsonl"
    lines = [json.loads(each) for each in path.read_text().splitlines()] if path.exists() else []
    done = {(line["table"], line["overlap"], line["seed"]) for line in lines}
    seeds = range(1, arguments.seeds + 1)
    for seed, overlap, (case, labels) in itertools.product(seeds, OVERLAPS, CASES):
        if arguments.only in (None, case) and (case, overlap, seed) not in done:
            lines.append(measured(case, labels, overlap, seed))
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(table(lines))
    _results.insert(_results.FOLDER / "bench" / "sealed.md", "few shared", table(lines))


if __name__ == "__main__":
    main()
