"""Held-back attackers against what the audit says: is its figure the best that is known?

    python -m benchmarks.attacks [--only METHOD...] [--again]

Each method is trained on two tables, credit (4,000 rows, of which 1,000 are labelled where a party
has the labels) and digits (300 labels), seed 0. The same messages are attacked by `dovetail audit`,
as it comes, and by attackers that it does not use (`benchmarks/_attackers.py`). A figure is of the
worst pair of parties: R2 of columns from 100 known rows, share of labels right (each class counting
the same, ten known of each at most), AUC of members. The audit holds where it is no more than 0.1
of R2, or 5 points, below the best of the others.

A method that stands in results/attacks.jsonl is not done again, unless by ``--again``; without
``--only`` the table of results/bench/attacks.md is written from what stands there.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import _attackers, _results
from dovetail.audit.attack import Settings, attack, joined, network_of, outputs_of
from dovetail.audit.attacks import factors
from dovetail.audit.attacks.labels import NORM
from dovetail.audit.scenes import heard, scene_of
from dovetail.audit.tape import Tape
from dovetail.audit.verdict import VERDICTS, Finding, Verdict
from dovetail.data import Classification
from dovetail.methods.apfed.reading import Reading
from dovetail.methods.facets.audited import KNOWN, Logits, Scene
from dovetail.runs.runfile import RunFile, check_run, load_run
from dovetail.runs.setup import load_data, setup

ROOT = Path(__file__).parents[1]
RUNS: Mapping[str, tuple[Path, tuple[str, ...]]] = {
    "credit": (
        ROOT / "runs" / "apfed" / "credit-labels.toml",
        ("data.rows=4000", "data.labels=1000"),
    ),
    "digits": (ROOT / "runs" / "apfed" / "digits-halves.toml", ("data.labels=300",)),
}

#: Method -> what is set, of those between a label owner and its partner.
VERTICAL: Mapping[str, tuple[str, ...]] = {
    "apfed-d, gradients": ('method="apfed-d"', 'apfed.distil.exchange="gradients"'),
    "apfed-d, released": ('method="apfed-d"', 'apfed.distil.exchange="released"'),
    "apfed-r": ('method="apfed-r"',),
    "apfed-c": ('method="apfed-c"',),
    "apfed": ('method="apfed"',),
    "classic vertical": ('method="tvfl"',),
}

CREDIT_DATA = {
    "source": "default_credit",
    "label": "default.payment.next.month",
    "id": "ID",
    "test": 0.25,
    "rows": 4000,
    "categorical": ["SEX", "EDUCATION", "MARRIAGE"],
}
DIGITS_DATA = {"source": "digits", "label": "digit", "test": 0.4}
CREDIT_BLOCKS = {
    "person": ["LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE"],
    "bills": ["BILL_AMT*", "PAY_AMT*"],
    "status": ["PAY_[0-6]"],
}
DIGITS_BLOCKS = {
    "upper": ["pixel_[0-2]_*"],
    "middle": ["pixel_[3-4]_*"],
    "lower": ["pixel_[5-7]_*"],
}

#: How far below the best other attacker the audit may be, by what is looked for.
WITHIN = {"columns": 0.1, "labels": 0.05, "membership": 0.05}

MARKER = "attacks"

#: Steps of a label owner's optimiser that are followed.
MOST_STEPS = 264

#: Where there are more pairs of parties, so many are looked at.
MOST_PAIRS = 4


def run_of(table: str, method: str) -> RunFile:
    """One run file."""
    if method in VERTICAL:
        file, sets = RUNS[table]
        return load_run(file, overrides=(*sets, *VERTICAL[method], "baselines=[]"))
    data = CREDIT_DATA if table == "credit" else DIGITS_DATA
    blocks = CREDIT_BLOCKS if table == "credit" else DIGITS_BLOCKS
    first, second, third = blocks
    if method == "chfl":
        partition: dict[str, Any] = {"kind": "common-unique", "parties": 3, "common": 0.4}
        section: dict[str, Any] = {"widths": [32, 16], "rounds": 6, "local_epochs": 2}
    elif method == "hyfem":
        held = [[first, second], [second, third], [first, third]]
        num = 2 if table == "credit" else 10
        assignment = [
            {"party": f"party-{index}", "blocks": each, "classes": list(range(1, num + 1))}
            | {"rows": 1 / 3}
            for index, each in enumerate(held, start=1)
        ]
        partition = {
            "kind": "blocks",
            "blocks": blocks,
            "assignment": assignment,
            "disjoint": True,
        }
        section = {"rounds": 20, "local_steps": 8, "widths": [32], "extractors": {"*": [32]}}
    else:
        owners = dict(list(blocks.items()))
        partition = {"kind": "owners", "data_owners": owners, "label_owners": 2}
        section = {"epochs": 8, "bottom": [32], "embedding": 16, "top": [16], "batch_size": 64}
        section["selection"] = {"share": 1.0, "rows": 300, "queries": 100}
    return check_run(
        {
            "method": method,
            "baselines": [],
            "evaluate_every": 0,
            "data": {**data, "partition": partition},
            method: section,
        },
        where=f"{table}, {method}",
    )


METHODS = (*VERTICAL, "chfl", "hyfem", "fedoptimus")


class Recording(Reading):
    """APFed-D's gradients of the linear part, step by step, besides what the audit reads."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Tensor, Tensor, Tensor]] = []

    def _logits(
        self, driver: str, party: str, samples_KB: Tensor, gradient_KBD: Tensor
    ) -> Iterator[Logits]:
        reported = list(super()._logits(driver, party, samples_KB, gradient_KBD))
        if reported:
            error = gradient_KBD[..., self._parts(party)["linear"]]
            self.steps.append(
                (samples_KB, error, torch.stack([each.value_BC for each in reported]))
            )
        yield from reported


class Compared:
    """The audit's best and the others' best, by target and pair of parties."""

    def __init__(self) -> None:
        self.audit: dict[tuple[str, str, str], tuple[float, float, Verdict]] = {}
        self.others: dict[tuple[str, str, str], tuple[float, str]] = {}

    def audited(self, findings: Sequence[Finding]) -> None:
        for each in findings:
            few = re.search(r"(\d+) known rows", each.threat.attack)
            is_other = few is not None and int(few[1]) != KNOWN
            if each.target == "columns" and not each.threat.metric.startswith("R2"):
                continue  # whole rows and cells: benchmarks/exact_rows.py
            if each.target in WITHIN and not is_other and each.threat is not NORM:
                key = each.target, each.observer, each.owner
                score, base, verdict = self.audit.get(key, (0.0, 0.0, "none"))
                self.audit[key] = (  # who gains nothing from messages leaves them aside
                    max(score, each.score, each.baseline),
                    max(base, each.baseline),
                    max(verdict, each.verdict, key=VERDICTS.index),
                )

    def tried(self, target: str, observer: str, owner: str, found: Mapping[str, float]) -> None:
        name = max(found, key=lambda each: found[each])
        key = target, observer, owner
        if key not in self.others or found[name] > self.others[key][0]:
            self.others[key] = found[name], name

    def rows(self, table: str, method: str) -> Iterator[dict[str, Any]]:
        """For each target and direction, the pair where the audit is furthest behind."""
        worst: dict[tuple[str, str], dict[str, Any]] = {}
        for key, (score, name) in self.others.items():
            target, observer, owner = key
            known, base, verdict = self.audit.get(key, (0.0, 0.0, "none"))
            row = {
                "table": table,
                "method": method,
                "who learns": f"{observer}: {target} of {owner}",
                "without": round(base, 2),
                "audit": round(known, 2),
                "others": round(score, 2),
                "by": name,
                "verdict": verdict,
                "holds": known >= score - WITHIN[target],
            }
            pair = target, observer if method in VERTICAL else ""
            behind = score - known
            if pair not in worst or behind > worst[pair]["behind"]:
                worst[pair] = {"behind": behind, **row}
        for row in worst.values():
            del row["behind"]
            yield row


def compared(table: str, method: str) -> list[dict[str, Any]]:
    """One run, attacked by the audit and by the others."""
    started = time.process_time()
    run = run_of(table, method)
    loaded = load_data(run)
    task = setup(run, 0, loaded)
    scene = scene_of(task)
    reading = Recording() if isinstance(scene.reading, Reading) else scene.reading
    scene = replace(scene, reading=reading)
    record = heard(task, scene, run.method, 0)
    scene, tape, outcome = record.scene, record.tape, record.outcome
    found = Compared()
    found.audited(attack(run.method, scene, tape, outcome.models, Settings(others_known=False)))
    audit_s = time.process_time() - started
    try_tables(scene, tape, found)
    if isinstance(reading, Recording) and tape.logits:
        try_logits(scene, tape, reading, found)
    try_members(scene, tape, outcome.models, found)
    seconds = round(time.process_time() - started)
    return [{**row, "audit s": round(audit_s), "s": seconds} for row in found.rows(table, method)]


def try_tables(scene: Scene, tape: Tape, found: Compared) -> None:
    """Everything that was sent row by row, all channels of one pair side by side."""
    pairs: dict[tuple[str, str, str], dict[str, tuple[Tensor, dict[str, Tensor]]]] = {}
    for channel, table in tape.tables.items():
        if channel.owner in scene.parties and len(pairs) < MOST_PAIRS:
            kept = pairs.setdefault((channel.observer, channel.owner, channel.order), {})
            kept[channel.what] = table.views()
    for (observer, owner, order), kept in pairs.items():
        for what, (samples, views) in kept.items():
            sent = {name: each.numpy() for name, each in views.items()}
            beside = scene.columns_of(observer, order, samples)
            columns = None if beside is None else beside.numpy()
            target = scene.columns_of(owner, order, samples)
            if target is not None and what != "output gradients":
                tried = _attackers.columns(columns, sent, target.numpy())
                found.tried("columns", observer, owner, tried)
            truth = scene.labels_of(owner, order, samples)
            if truth is None or not isinstance(scene.task, Classification):
                continue
            indices = (truth >= 0).nonzero().flatten().numpy()
            y = truth.numpy()[indices]
            if len(y) >= 100 and np.bincount(y).min() > 12:
                at = {name: each[indices] for name, each in sent.items()}
                tried = _attackers.labels(None if columns is None else columns[indices], at, y)
                found.tried("labels", observer, owner, tried)


def try_logits(scene: Scene, tape: Tape, reading: Recording, found: Compared) -> None:
    """APFed-D's gradients."""
    ((channel, followed),) = tape.logits.items()
    samples = followed.samples
    columns, target = (
        scene.columns_of(who, "", samples) for who in (channel.observer, channel.owner)
    )
    assert columns is not None
    assert target is not None
    rows_STB, value_STB = followed.steps()
    index = torch.full((scene.num_samples()[""],), -1)
    index[samples] = torch.arange(len(samples))
    steps = reading.steps[: min(rows_STB.shape[1], MOST_STEPS)]
    width = steps[0][0].shape[1]
    whole = [each for each in steps if each[0].shape[1] == width]
    members = min(4, len(whole[0][0]), -(-len(rows_STB) // (whole[0][2].shape[-1])))
    reported = _attackers.Steps(
        torch.stack([index[each[0][:members]] for each in whole]),
        torch.stack([each[1][:members] for each in whole]),
        torch.stack([each[2][:members] for each in whole]),
    )
    seen = factors.Measurements(rows_STB, value_STB)
    tried = _attackers.rebuilt(columns.numpy(), seen, reported, target.numpy())
    found.tried("columns", channel.observer, channel.owner, tried)


def try_members(scene: Scene, tape: Tape, models: Mapping[str, Any], found: Compared) -> None:
    """Solo models, and weights that were sent."""
    if not isinstance(scene.task, Classification):
        return
    for party, model in list(models.items())[:3]:
        if party in scene.candidates and scene.candidates[party][0].blocks:
            tried = _members(scene, party, outputs_of(scene, party, model.network))
            found.tried("membership", "who has the model", party, tried)
    for (observer, owner), kept in list(tape.weights.items())[:3]:
        network = network_of(models[owner], kept[-1])
        if owner in scene.candidates and network is not None:
            tried = _members(scene, owner, outputs_of(scene, owner, network))
            found.tried("membership", observer, owner, tried)


def _members(scene: Scene, party: str, probability: Callable[[Tensor], Tensor]) -> dict[str, float]:
    inside, outside = scene.candidates[party]
    assert inside.labels is not None
    assert outside.labels is not None
    return _attackers.members(
        probability, (joined(inside), inside.labels), (joined(outside), outside.labels)
    )


def table_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """What results/bench/attacks.md shows of the record."""
    names = ("table", "method", "who learns", "without", "audit", "others", "by", "verdict")
    lines = [{name: row[name] for name in names} for row in rows]
    for line in lines:
        for name in ("without", "audit", "others"):
            line[name] = f"{line[name]:.2f}"
    return _results.markdown(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=METHODS, choices=METHODS)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = _results.FOLDER / "attacks.jsonl"
    lines = record.read_text().splitlines() if record.exists() else []
    rows = [json.loads(line) for line in lines]
    for method in options.only:
        for table in RUNS:
            done = [row for row in rows if (row["table"], row["method"]) == (table, method)]
            if done and not options.again:
                continue
            about = _results.machine()
            fresh = [{**about, **row} for row in compared(table, method)]
            rows = [row for row in rows if row not in done] + fresh
            order = [*METHODS]
            rows.sort(key=lambda row: (order.index(row["method"]), [*RUNS].index(row["table"])))
            record.write_text("".join(json.dumps(row) + "\n" for row in rows))
            print(
                _results.markdown([{k: v for k, v in r.items() if k not in about} for r in fresh])
            )
    text = "# Held-back attackers against the audit\n\n`python -m benchmarks.attacks`.\n\n"
    (_results.FOLDER / "attacks.md").write_text(text + table_of(rows))
    _results.insert(_results.FOLDER / "bench" / "attacks.md", MARKER, table_of(rows))


if __name__ == "__main__":
    main()
