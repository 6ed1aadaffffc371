"""How CHFL's gate and round are chosen, judged on rows held out of training, never on test rows.

    python -m benchmarks.chfl_gate hospitals --models models.jsonl --to rules.jsonl

Trains CHFL once for each draw and sort of rows, keeps what the common column and the joint network
say of validation and held-out rows after every round, and then chooses by each rule: the gate on
validation rows, and the round as a run does, by the mean accuracy on them. What a rule gives on the
held-out rows is set beside what the common column gives, its round chosen by the same rows: AUC of
two classes, else accuracy, and the log loss. With the rule that ships, the round is also chosen in
other ways, each set beside the first.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import Tensor

from benchmarks import _results
from dovetail import data as dd
from dovetail import methods
from dovetail.methods.base import Loaded
from dovetail.methods.chfl import layers as chfl
from dovetail.runs.runfile import load_run
from dovetail.runs.setup import pooled_parts, read_pooled

RUNS = Path(__file__).parents[1] / "runs"
#: What a user has, whatever a cell of the paper's tables says.
USER = ("gate=true", "zero_start=true", "unique_weight_decay=0.01")
PATIENCE = 8
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


@dataclass(frozen=True)
class Outputs:
    """Logits of the common column and of the joint network, and the labels of their rows."""

    common: Tensor
    joint: Tensor
    labels: Tensor

    def mixed(self, gate: float) -> Tensor:
        return torch.lerp(self.common, self.joint, gate)

    def losses(self, gate: float) -> Tensor:
        """(N,) log loss of each row."""
        return F.cross_entropy(self.mixed(gate), self.labels, reduction="none").double()

    def right(self, gate: float) -> Tensor:
        """(N,) whether each row is classified rightly."""
        return (self.mixed(gate).argmax(dim=1) == self.labels).double()

    def score(self, gate: float) -> float:
        if self.common.shape[1] > 2:
            return float(self.right(gate).mean())
        if len(self.labels.unique()) < 2:
            return math.nan
        return float(roc_auc_score(self.labels, self.mixed(gate).diff(dim=1)[:, 0]))


#: Round -> party -> (validation, held out).
Rounds = list[dict[str, tuple[Outputs, Outputs]]]


# --- Rules: a gate by validation rows ------------------------------------------------------------


def _error(values_N: Tensor) -> float:
    return float(values_N.std(correction=0)) / math.sqrt(len(values_N))


def by_accuracy_then_loss(outputs: Outputs) -> float:
    """The least loss of those as accurate as any within a standard error."""
    most = outputs.right(max(chfl.GATES, key=lambda gate: float(outputs.right(gate).mean())))
    able = [g for g in chfl.GATES if float((d := most - outputs.right(g)).mean()) <= _error(d)]
    return min(able, key=lambda gate: float(outputs.losses(gate).mean()))


def by_loss(outputs: Outputs) -> float:
    return min(chfl.GATES, key=lambda gate: float(outputs.losses(gate).mean()))


def leaning(errors: float) -> Callable[[Outputs], float]:
    """The smallest gate whose loss is above the least by no more than so many standard errors."""

    def rule(outputs: Outputs) -> float:
        least = outputs.losses(by_loss(outputs))
        for gate in chfl.GATES:
            more = outputs.losses(gate) - least
            if float(more.mean()) <= errors * _error(more):
                return gate
        raise AssertionError("the gate of the least loss is as good as itself")

    return rule


def accurate_and_leaning(errors: float) -> Callable[[Outputs], float]:
    """A rule that leans among gates about as accurate as any."""

    def rule(outputs: Outputs) -> float:
        most = outputs.right(max(chfl.GATES, key=lambda gate: float(outputs.right(gate).mean())))
        able = [g for g in chfl.GATES if float((d := most - outputs.right(g)).mean()) <= _error(d)]
        least = outputs.losses(min(able, key=lambda gate: float(outputs.losses(gate).mean())))
        for gate in able:
            more = outputs.losses(gate) - least
            if float(more.mean()) <= errors * _error(more):
                return gate
        raise AssertionError("the gate of the least loss is as good as itself")

    return rule


def shrunk(rows: float) -> Callable[[Outputs], float]:
    """The gate of the least loss, times N / (N + rows)."""
    return lambda outputs: by_loss(outputs) * len(outputs.labels) / (len(outputs.labels) + rows)


def penalised(rows: float) -> Callable[[Outputs], float]:
    """The least loss, where each row's share of the gate costs: loss + rows * gate^2 / N."""
    return lambda outputs: min(
        chfl.GATES,
        key=lambda g: float(outputs.losses(g).mean()) + rows * g * g / len(outputs.labels),
    )


RULES: Mapping[str, Callable[[Outputs], float]] = {
    "always 0 (common)": lambda outputs: 0.0,
    "always 0.5": lambda outputs: 0.5,
    "always 1 (no gate)": lambda outputs: 1.0,
    "accuracy within 1 s.e., then loss": by_accuracy_then_loss,
    "loss": by_loss,
    "loss within 0.5 s.e., smallest": leaning(0.5),
    "loss within 1 s.e., smallest": leaning(1.0),
    "loss within 2 s.e., smallest": leaning(2.0),
    "accuracy within 1 s.e., then loss within 1 s.e., smallest": accurate_and_leaning(1.0),
    "loss, times N / (N + 10)": shrunk(10),
    "loss, times N / (N + 30)": shrunk(30),
    "loss + gate^2 / N": penalised(1),
    "loss + 3 gate^2 / N": penalised(3),
}

#: The one that ships.
SHIPS = "loss, times N / (N + 30)"


# --- Rounds: the most of a figure over all parties' validation rows ------------------------------

#: Each party's validation rows, and its gate.
Gated = Iterable[tuple[Outputs, float]]


def _over(figure: Callable[[Outputs, float], Tensor], power: float) -> Callable[[Gated], float]:
    """A mean over parties, each of whom counts as its rows to a power: 0 as one, 1 as its rows."""

    def mean(parties: Gated) -> float:
        of: list[tuple[float, float]] = [
            (float(figure(s, g).mean()), len(s.labels) ** power) for s, g in parties
        ]
        return sum(value * weight for value, weight in of) / sum(weight for _, weight in of)

    return mean


ROUNDS: Mapping[str, Callable[[Gated], float]] = {
    "accuracy, mean over parties": _over(Outputs.right, 0),
    "accuracy, roots of rows": _over(Outputs.right, 0.5),
    "accuracy, mean over rows": _over(Outputs.right, 1),
    "loss, mean over parties": _over(lambda outputs, gate: -outputs.losses(gate), 0),
    "loss, mean over rows": _over(lambda outputs, gate: -outputs.losses(gate), 1),
}
PARTIES = next(iter(ROUNDS))


# --- Runs ----------------------------------------------------------------------------------------


def trained(run_file: str, sets: tuple[str, ...], seed: int, share: float) -> Rounds:
    """What was said after each round of CHFL, of validation rows and of held-out ones."""
    # All rounds are made: each rule ends by its own patience.
    keys = [
        "baselines=[]",
        "evaluate_every=0",
        "chfl.patience=1000",
        "chfl.search.learning_rate=[]",
    ]
    keys += ["chfl.search.mu=[]", *(f"chfl.{key}" for key in USER), *sets]
    run = load_run(RUNS / run_file, overrides=tuple(keys))
    assert run.data is not None
    section = run.data
    train, _ = pooled_parts(section, read_pooled(section))
    train, held_out = dd.split(train, test=share, seed=seed, stratify=True)
    loaded = Loaded(section.partition.deal(train, held_out, section), None)
    setup = methods.method_of(run.method).setup(run, loaded, torch.device("cpu"))
    rounds: Rounds = []
    plain = chfl.Member.choose_gate

    @torch.no_grad()
    def choose_gate(member: chfl.Member) -> None:
        plain(member)
        columns, local_data, test = member.columns, member.data.test, member.prepared.test
        assert columns is not None
        assert member.prepared.validation is not None
        assert local_data is not None
        assert local_data.labels is not None
        assert test is not None
        number = member.installed + 1  # average() writes it once the gate is chosen
        while len(rounds) <= number:
            rounds.append({})
        gate = columns.gate
        both = []
        for x, labels in (member.prepared.validation, (test, local_data.labels)):
            columns.gate = None
            joint = columns(x)
            common = columns.common.outputs(x[:, columns.common_indices])[-1]
            columns.gate = gate
            both.append(Outputs(common, joint, labels))
        rounds[number][member.name] = both[0], both[1]

    chfl.Member.choose_gate = choose_gate  # type: ignore[method-assign, assignment]
    try:
        setup.train("chfl", seed, lambda *_: None)
    finally:
        chfl.Member.choose_gate = plain  # type: ignore[method-assign]
    return rounds


def judged(
    rounds: Rounds, rule: Callable[[Outputs], float], patience: int | None, by: str = PARTIES
) -> dict[str, Any]:
    """Party -> (gate, score, log loss) on held-out rows, of the round that a run would keep."""
    best: dict[str, Any] = {}
    most, improved = -math.inf, 0
    for number, outputs in enumerate(rounds[1:], 1):
        gates = {party: rule(validation) for party, (validation, _) in outputs.items()}
        figure = ROUNDS[by]((outputs[party][0], gate) for party, gate in gates.items())
        if figure > most:
            best, most, improved = {"said": outputs, "gates": gates}, figure, number
        if patience is not None and number - improved > patience:
            break
    return {
        party: (
            gate,
            best["said"][party][1].score(gate),
            float(best["said"][party][1].losses(gate).mean()),
        )
        for party, gate in best["gates"].items()
    }


def cases(name: str) -> Iterator[tuple[str, tuple[str, ...], str | None]]:
    """What is told of a sort of rows, its keys, and the party that is looked at; None: all."""
    if name != "hospitals":
        yield name, (), None
        return
    yield "all", (), None
    for few in (20, 50):
        for hospital in HOSPITALS:
            if (hospital, few) != ("switzerland", 50):
                yield f"{hospital}-{few}", (f"data.partition.rows.{hospital}={few}",), hospital


def lines_of(
    name: str, case: str, keys: tuple[str, ...], looked_at: str | None, draw: int, given: Any
) -> Iterator[dict[str, Any]]:
    """What each rule gives each party, beside its common column."""
    run_file = "hospitals/heart.toml:chfl" if name == "hospitals" else f"chfl/tables.toml:{name}"
    sets = (*keys, f"chfl.rounds={given.rounds}", *given.set, f"data.partition.seed={draw}")
    rounds = trained(run_file, sets, 100 + draw, given.share)
    common = judged(rounds, RULES["always 0 (common)"], PATIENCE)
    ships = judged(rounds, RULES[SHIPS], PATIENCE)
    ways = [(rule, PARTIES, common) for rule in RULES]
    ways += [(SHIPS, by, ships) for by in ROUNDS]
    for rule, by, beside in ways:
        for party, (gate, score, loss) in judged(rounds, RULES[rule], PATIENCE, by).items():
            _, beside_score, beside_loss = beside[party]
            yield {
                **{"data": name, "case": case, "draw": draw, "rounds": given.rounds, "rule": rule},
                **{"round": by if beside is ships else "", "score": 100 * score},
                **{"party": party, "few": party == looked_at, "gate": gate},
                **{"rows": len(rounds[0][party][0].labels), "points": 100 * (score - beside_score)},
                "log loss": loss - beside_loss,
            }


def summary_of(
    name: str, rule: str, by: str, lines: list[dict[str, Any]], share: float
) -> dict[str, Any]:
    """One line of the file of rules."""
    gains = np.array([line["points"] for line in lines])
    few = np.array([line["points"] for line in lines if line["few"]])
    draws = len({line["draw"] for line in lines})
    beside = PARTIES if by else "common"
    summary = {
        "data": name,
        "rule": rule,
        **({"round": by} if by else {}),
        "judged on": f"{share:.0%} of the training rows, {draws} draws",
        "rounds": lines[0]["rounds"],
        "models": len(lines),
        "gate, mean": round(float(np.mean([line["gate"] for line in lines])), 3),
        "score": round(float(np.mean([line["score"] for line in lines])), 2),
        f"above {beside}, points": round(float(gains.mean()), 2),
        "worst tenth": round(float(np.quantile(gains, 0.1)), 2),
        "worst": round(float(gains.min()), 2),
        "5 points below": round(float((gains < -5).mean()), 3),
        f"log loss less {beside}'s": round(float(np.mean([line["log loss"] for line in lines])), 4),
    }
    if len(few):
        summary["score, of few"] = round(float(np.mean([x["score"] for x in lines if x["few"]])), 2)
        summary[f"above {beside}, of few"] = round(float(few.mean()), 2)
        summary["worst tenth, of few"] = round(float(np.quantile(few, 0.1)), 2)
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", help="hospitals, or a cell of runs/chfl/tables.toml")
    parser.add_argument("--draws", type=int, default=5, help="of held-out rows and of batches [5]")
    parser.add_argument("--rounds", type=int, default=30, help="of training [30]")
    parser.add_argument("--share", type=float, default=0.3, help="of rows, to judge on [0.3]")
    parser.add_argument("--set", action="append", default=[], help="more keys of the run file")
    parser.add_argument("--models", type=Path, required=True, help="a line a model; goes on there")
    parser.add_argument("--to", type=Path, help="a line a rule, of all of these models")
    given = parser.parse_args()
    torch.set_num_threads(1)
    there = given.models.read_text().splitlines() if given.models.exists() else []
    done = [json.loads(line) for line in there]
    known = {(line["data"], line["case"], line["draw"]) for line in done}
    for draw, name in product(range(given.draws), given.names):
        for case, keys, looked_at in cases(name):
            if (name, case, draw) in known:
                continue
            new = list(lines_of(name, case, keys, looked_at, draw, given))
            with given.models.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in new)
            done += new
    ways = [*((rule, "") for rule in RULES), *((SHIPS, by) for by in ROUNDS)]
    for name, (rule, by) in product(given.names, ways):
        lines = [line for line in done if line["data"] == name and line["rule"] == rule]
        lines = [x for x in lines if x["round"] == by and not math.isnan(x["points"])]
        summary = summary_of(name, rule, by, lines, given.share)
        print(json.dumps(summary))
        if given.to is not None:
            with given.to.open("a") as file:
                file.write(json.dumps({**_results.machine(), **summary}) + "\n")


if __name__ == "__main__":
    main()
