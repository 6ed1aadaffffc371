"""HyFEM's settings, chosen on rows held out of the training rows; test rows are never read.

    python -m benchmarks.hyfem_choose figures.toml:cifar10-12 hyfem --rounds 24 learning_rate=0.1 \\
        learning_rate=0.2,class_weights=true

Trains one variant of a file of runs/hyfem with each of the given settings on nine tenths of its
training rows, and adds a line for each to results/hyfem_choice.jsonl: accuracy on the other
tenth, which has all classes; parties' are the mean over parties, each with its own blocks. With
``--all-classes`` each party trains on rows of all classes: what its blocks allow.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import _results
from dovetail import data as dd
from dovetail import methods
from dovetail.files import run_name
from dovetail.methods.base import Loaded
from dovetail.methods.settings.hyfem import HyfemSection
from dovetail.runs.partitions import Blocks
from dovetail.runs.runfile import load_run

RUNS = Path(__file__).parents[1] / "runs" / "hyfem"
SHARE = 0.1


def validated(
    cell: str,
    variant: str,
    rounds: int,
    settings: str,
    seed: int,
    extractor: str | None,
    all_classes: bool,
) -> dict[str, Any]:
    """One line of the file of choices."""
    # A variant's own settings, which a run file may have, come before those of all.
    sets = [f"hyfem.variants.{variant}.{each}" for each in settings.split(",")]
    if extractor is not None:
        sets.append(f'hyfem.extractors={{"*"={extractor}}}')
    sets += [f"hyfem.rounds={rounds}", "baselines=[]", "evaluate_every=0"]
    run = load_run(RUNS / cell, overrides=tuple(sets))
    assert run.data is not None
    section = run.data
    train, test = dd.load(section.source, label=section.label, id=section.id)
    if test is None:
        assert section.test is not None
        train, _ = dd.split(train, test=section.test, seed=section.split_seed, stratify=True)
    train, held_out = dd.split(train, test=SHARE, seed=1, stratify=True)
    partition = section.partition
    if all_classes:
        assert isinstance(partition, Blocks)
        assert not isinstance(partition.assignment, str | Path)
        shares = partition.assignment
        every = tuple(sorted({each for share in shares for each in share.classes}))
        partition = partition.model_copy(
            update={"assignment": tuple(s.model_copy(update={"classes": every}) for s in shares)}
        )
    loaded = Loaded(partition.deal(train, held_out, section), None)
    setup = methods.method_of(run.method).setup(run, loaded, torch.device("cpu"))
    started = time.process_time()
    outcome = setup.train(variant, seed, lambda *_: None)
    accuracies = {
        name: sum(scores["accuracy"] for scores in each.values()) / len(each)
        for name, each in outcome.scores.items()
    }
    return {
        "cell": run_name(RUNS / cell),
        "variant": variant,
        "rounds": rounds,
        "settings": settings,
        "centred": "centred=True" in str(run.settings("hyfem", HyfemSection).extractors),
        "seed": seed,
        **({"all classes": True} if all_classes else {}),
        "cpu s": round(time.process_time() - started, 1),
        **{f"{name} %": round(100 * value, 2) for name, value in accuracies.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cell", help="a run file of runs/hyfem, or figures.toml:CELL")
    parser.add_argument("variant", help="hyfem, or a baseline")
    parser.add_argument("settings", nargs="+", help="key=value,key=value of [hyfem]")
    parser.add_argument("--extractor", help='of all blocks, as TOML: { kind = "small-cnn" }')
    parser.add_argument("--rounds", type=int, default=24, help="of the trials [24]")
    parser.add_argument("--seed", type=int, default=100, help="not one of the run's [100]")
    parser.add_argument("--all-classes", action="store_true", help="at each party")
    parser.add_argument("--to", type=Path, default=_results.FOLDER / "hyfem_choice.jsonl")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for settings in given.settings:
        line = validated(
            given.cell,
            given.variant,
            given.rounds,
            settings,
            given.seed,
            given.extractor,
            given.all_classes,
        )
        print(json.dumps(line), flush=True)
        with given.to.open("a") as file:
            file.write(json.dumps({**_results.machine(), **line}) + "\n")


if __name__ == "__main__":
    main()
