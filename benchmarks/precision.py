"""What narrow codes and gradients cost: bytes, rounding and accuracy.

    python -m benchmarks.precision

APFed on halves of digits, 100 of them labelled, through bytes in process, which gives the bits
that a wire gives. Accuracy is the active party's alone, after training; "minus float32" is the mean
over the same seeds, to be read beside the spread over seeds. Rounding is ||code as it arrives -
code|| / ||code||, of the trained encoder on the test rows. A step is missed where a message cannot
be sent: where a code is almost zero, the contrast's gradient may be beyond float16's 65504.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks import _results
from benchmarks.exchange import There
from dovetail.files import toml_tables
from dovetail.methods.apfed.variants import label_owner_data
from dovetail.methods.training import Training
from dovetail.models import EncoderHeadNetwork, Model, network_input
from dovetail.network import decode, encode
from dovetail.network.messages import PRECISIONS
from dovetail.runs.runfile import check_run
from dovetail.runs.setup import load_data, setup
from dovetail.settings.section import Precision


def train(made: Training, variant: str, seed: int) -> dict[str, float]:
    """Bytes, missed steps, accuracy and rounding of one training."""
    missed = 0

    def observe(_variant: str, _epochs: int, line: dict[str, Any]) -> None:
        nonlocal missed
        missed += sum(line.get("missed", {}).values())

    outcome = made.train(variant, seed, observe)
    (accuracies,) = outcome.scores[variant].values()
    assert outcome.ledger is not None
    sent = outcome.ledger.bytes_by_party().values()
    return {
        "MB": sum(each["sent"] for each in sent) / 1e6,
        "missed": missed,
        "accuracy": 100 * accuracies["accuracy"],
        "rounding": rounding(made, outcome.models[label_owner_data(made).name]),
    }


def rounding(made: Training, model: Model) -> float:
    test = label_owner_data(made).test
    assert test is not None
    assert isinstance(model.network, EncoderHeadNetwork)
    model.network.eval()
    with torch.no_grad():
        code_ND = model.network.encoder(network_input(test.joined()))
    came = decode(encode(There(code_ND), precision=made.run.engine.precision), (There,))
    return float((came.x - code_ND).norm() / code_ND.norm())


def measure(seeds: range) -> list[dict[str, Any]]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    run = check_run(toml_tables(text, where="precision.toml"), where="precision.toml")
    loaded = load_data(run)
    rows = []
    for variant in ("apfed-r", "apfed-c"):
        figures: dict[Precision, list[dict[str, float]]] = {}
        for precision in PRECISIONS:
            for seed in seeds:
                engine = run.engine.model_copy(update={"precision": precision})
                made = setup(run.model_copy(update={"engine": engine}), seed, loaded)
                one = train(made, variant, seed)
                figures.setdefault(precision, []).append(one)
        wide = figures["float32"]
        for precision, narrow in figures.items():
            accuracies = [one["accuracy"] for one in narrow]
            changes = [
                one["accuracy"] - other["accuracy"] for one, other in zip(narrow, wide, strict=True)
            ]
            rows.append(
                {
                    "method": variant,
                    "precision": precision,
                    "seeds": len(seeds),
                    "MB": narrow[0]["MB"],
                    "of float32": narrow[0]["MB"] / wide[0]["MB"],
                    "missed steps": sum(one["missed"] for one in narrow),
                    "accuracy %": statistics.mean(accuracies),
                    "spread over seeds": statistics.stdev(accuracies),
                    "minus float32": statistics.mean(changes),
                    "rounding": f"{statistics.mean(one['rounding'] for one in narrow):.1e}",
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="of each row [3]")
    given = parser.parse_args()
    torch.set_num_threads(1)
    _results.write("precision", "What narrow codes and gradients cost", measure(range(given.seeds)))


if __name__ == "__main__":
    main()
