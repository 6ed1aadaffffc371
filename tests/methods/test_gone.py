"""Party dropout and LASER as rulers of a run, beside what they are to be compared with."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.errors import ConfigError
from dovetail.experiment.runfile import check_run
from dovetail.experiment.setup import load_data, setup
from dovetail.experiment.stages import run as run_stages
from dovetail.methods.apfed.wiring import _stages
from dovetail.methods.outcome import Outcome

SECTION = {"max_steps": 150, "folds": 2, "copies": 1, "widths": [16, 8], "bins": 4}


def trained(stage: str, *, overlap: float = 1.0, **distil: Any) -> dict[str, dict[str, Any]]:
    values = {
        "method": stage,
        "evaluate_every": 0,
        "data": {
            "source": "digits",
            "label": "digit",
            "test": 0.4,
            "labels": 300,
            "partition": {
                "kind": "columns",
                "active": "upper",
                "overlap": overlap,
                "parties": {"upper": ["pixel_[0-3]_*"], "lower": ["pixel_[4-7]_*"]},
            },
        },
        "apfed": {"distil": SECTION | distil},
    }
    run = check_run(values, where="the test")
    outcomes: list[Outcome] = [
        outcome for _, outcome in run_stages(setup(run, 0, load_data(run)), 0, lambda *_: None)
    ]
    return {name: own["upper"] for name, own in outcomes[0].scores.items()}


@pytest.mark.parametrize("stage", ["party-dropout", "laser"])
def test_both_are_scored_with_the_partner_and_without(stage: str) -> None:
    scores = trained(stage)
    # Half of a digit's pixels, 300 labels: about 0.75; all of them about 0.9.
    assert scores[stage]["accuracy"] > scores[f"{stage}-gone"]["accuracy"] + 0.05
    assert scores[f"{stage}-gone"]["accuracy"] > 0.55


@pytest.mark.parametrize("stage", ["party-dropout", "laser"])
def test_rows_that_the_partner_lacks_train_too(stage: str) -> None:
    """A tenth of 300 labels is shared: with these alone it would be far off."""
    assert trained(stage, overlap=0.1)[f"{stage}-gone"]["accuracy"] > 0.55


@pytest.mark.parametrize("stage", ["party-dropout", "laser"])
def test_parties_with_files_of_their_own_do_not_agree_to_one_place(stage: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    values = {"method": stage, "parties": ["bank.toml"], "test": 0.3}
    run = check_run(values, where="run.toml")
    with pytest.raises(ConfigError, match=f"the ruler '{stage}' puts everybody's columns in one"):
        _stages(run, where="run.toml")
