"""What APFed-S costs and shows beside APFed-D: seconds, bytes, messages, and the partner's columns.

    python -m benchmarks.sealed [--seed 1] [--exchange [ROWS]]

Credit with 1,000 labels and digits with 100, as ``dovetail bench worth`` has them, everybody in one
process. Seconds are of a core (process time), so that a busy machine does not count: of the
exchange with the partner, and of the whole run. "columns" is what the label owner can explain of
the partner's columns (mean R², ridge regression fitted on half of the shared rows and judged on the
other half, from known rows): from its own columns, and with the numbers that it was given.
Below, each step of the encryption by itself, at 300 labels and 4,096 rows. ``--exchange`` measures
the exchange alone, both sides in one process, weights included, of made-up tables: labels, rows
and classes are what its cost hangs on; of ROWS rows more where they are given.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import RidgeCV
from torch import Tensor
from torch.nn import functional as F

from benchmarks import _results
from dovetail.data import Alignment, SharedRows
from dovetail.federated import Local
from dovetail.methods.apfed import sealed
from dovetail.methods.apfed.distil import AlignedRows
from dovetail.models.learners import NO_FOLD
from dovetail.models.learners.distil import Owner
from dovetail.models.losses import CLASSES
from dovetail.network import InProcess
from dovetail.privacy import encrypted
from dovetail.runs.runfile import load_run
from dovetail.runs.setup import load_data, setup

RUNS = Path(__file__).parents[1] / "runs" / "apfed"
#: Labels, rows and classes of made-up exchanges, the cheapest first.
EXCHANGES = ((1000, 16_500, 2), (3000, 10_000, 2), (1000, 10_000, 26), (1000, 100_000, 2))
CASES = {"credit, 1,000 labels": ("credit", 1000), "digits, 100 labels": ("digits", 100)}


def explained(x_RF: Tensor, columns_RG: Tensor) -> float:
    """Mean R² of the columns, of rows that the ridge regression has not seen."""
    half = len(x_RF) // 2
    known, rest = slice(None, half), slice(half, None)
    varied = (columns_RG[known].std(dim=0) > 1e-6) & (columns_RG[rest].std(dim=0) > 1e-6)
    x, y = x_RF.double().numpy(), columns_RG[:, varied].double().numpy()
    fitted = RidgeCV(np.logspace(-2, 4, 7)).fit(x[known], y[known])
    errors = ((y[rest] - fitted.predict(x[rest])) ** 2).mean(axis=0)
    return float(np.clip(1 - errors / y[rest].var(axis=0), -1, 1).mean())


def run_of(name: str, case: str, labels: int, method: str, seed: int) -> dict[str, Any]:
    """A run's costs and scores."""
    sets = (
        f"data.labels={labels}",
        f'method="{method}"',
        "baselines=[]",
        "evaluate_every=0",
        'apfed.distil.exchange="gradients"',  # of APFed-D
    )
    run = load_run(RUNS / f"worth.toml:{case}", overrides=sets)
    loaded = load_data(run)
    training = setup(run, seed, loaded)
    times: list[float] = []
    started = time.process_time()

    def observe(variant: str, total: int, line: dict[str, Any]) -> None:
        times.append(time.process_time() - started)

    variant_run = training.played(method, seed, observe)
    exchanged = times[-1]
    outcome = variant_run.outcome(seed, observe)
    whole = time.process_time() - started
    lines = list(outcome.ledger.lines())
    party = next(iter(outcome.scores[method]))
    score = "auc" if case == "credit" else "accuracy"
    scores: dict[str, Any] = {
        "run": name,
        "method": method,
        "solo": round(100 * outcome.scores[method][party][score], 1),
        "joint": round(100 * outcome.scores["joint"][party][score], 1),
        "alone": round(100 * outcome.scores["best-alone"][party][score], 1),
        "exchange s": round(exchanged, 1),
        "run s": round(whole, 1),
        "MB": round(sum(line["bytes"] for line in lines) / 1e6, 2),
        "messages": sum(line["count"] for line in lines),
        "columns, own": None,
        "columns, with numbers": None,
    }
    driver = variant_run.driver
    if isinstance(driver, sealed.Active):
        (partner,) = variant_run.parties.values()
        samples_R = driver.train.samples[partner.name]
        held = driver.aligned()  # rows that it was asked about
        columns = driver.owner.x_RF[held]
        theirs = partner.shared[samples_R[held]].flatten(1)
        z = driver.numbers[partner.name][held]
        scores["columns, own"] = round(explained(columns, theirs), 3)
        scores["columns, with numbers"] = round(
            explained(torch.cat([columns, z], dim=1), theirs), 3
        )
    return scores


def steps() -> list[dict[str, Any]]:
    """Process seconds of each step of the encryption."""
    rng = np.random.default_rng(0)
    rows, labels, nonce = 4096, 300, encrypted.new_nonce()
    targets = rng.integers(-(2**10), 2**10, (labels, 1))
    weights = rng.integers(-400, 400, (rows, labels))
    layout = encrypted.Layout.best(labels, 1, rows)
    steps = []

    def timed(what: str, do: Callable[[], Any], num_bytes: Callable[[Any], int]) -> Any:
        started = time.process_time()
        made = do()
        seconds = time.process_time() - started
        steps.append({"step": what, "s": round(seconds, 3), "MB": round(num_bytes(made) / 1e6, 2)})
        return made

    owner = timed("keys", encrypted.SecretKey, lambda made: 0)
    key = owner.public_key(nonce)
    wire = timed("encrypt", lambda: owner.encrypt(targets, layout, nonce), lambda made: made.nbytes)
    given = encrypted.Encrypted(layout, key, wire, nonce)
    answers = timed(
        "multiply, mask, blur",
        lambda: given.multiply(lambda part: weights[part], rows, 12, bytes(32)),
        lambda made: made.nbytes,
    )
    found = timed("decrypt", lambda: owner.decrypt(answers, layout, rows), len_0)
    apart = np.abs(found - weights @ targets / 2.0**encrypted.WEIGHT_BITS).max()
    assert apart < 2.0 ** (encrypted.NUMBER_BITS - 1 - 12) * 1.1  # half the width of the blur
    return steps


def exchange(labels: int, rows: int, classes: int) -> dict[str, Any]:
    """Costs of one question about all rows, and its answer, for a partner of six columns."""
    rng = torch.Generator().manual_seed(0)
    x_RF, theirs_RF = (torch.randn(rows, width, generator=rng) for width in (4, 6))
    truth_R = torch.randint(classes, (rows,), generator=rng)
    folds_R = torch.full((rows,), NO_FOLD)
    folds_R[:labels] = torch.arange(labels) % 4
    targets_RC = F.one_hot(truth_R, classes).float()
    everyone = torch.arange(rows)
    table = AlignedRows.of(x_RF, "bank", Alignment({"bank": everyone, "shop": everyone}))
    owner = Owner(x_RF, targets_RC, folds_R, CLASSES)
    active = sealed.Active(owner, table, None, Local("bank"), seed=1, max_rows=rows)
    partner = sealed.Partner(SharedRows("shop", theirs_RF, everyone), None, Local("shop"))
    engine = InProcess({"shop": partner}, driver="bank", through_bytes=True)
    started = time.process_time()
    active.ask_all(engine)
    seconds = time.process_time() - started
    assert "shop" in active.numbers, active.lost
    sent = sum(line["bytes"] for line in engine.ledger.lines())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "labels": labels,
        "rows": rows,
        "classes": classes,
        "s": round(seconds, 2),
        "MB": round(sent / 1e6, 1),
        "peak MiB": round(peak),
    }


def len_0(made: Any) -> int:
    """Nothing of it travels."""
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--exchange", type=int, nargs="?", const=0, metavar="ROWS")
    options = parser.parse_args()
    seed = options.seed
    if options.exchange is not None:
        torch.set_num_threads(1)
        sizes = EXCHANGES + ((1000, options.exchange, 2),) * bool(options.exchange)
        costs = [exchange(*each) for each in sizes]
        _results.write("sealed_exchange", "APFed-S: one question and its answer", costs)
        return
    _results.write("sealed_steps", "APFed-S: steps of the encryption", steps())
    rows: list[dict[str, Any]] = []
    for method in ("apfed", "apfed-d"):
        for name, (case, labels) in CASES.items():
            rows.append(run_of(name, case, labels, method, seed))
            _results.write("sealed", "APFed-S beside APFed-D: cost, and what it shows", rows)


if __name__ == "__main__":
    main()
