"""Party dropout and LASER as baselines of a run; and what rows that no partner has are good for."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.errors import ConfigError
from dovetail.methods.apfed.plugin import _variants
from dovetail.methods.outcome import Outcome
from dovetail.runs.one_seed import run as run_variants
from dovetail.runs.runfile import check_run
from dovetail.runs.setup import load_data, setup

SECTION = {
    "exchange": "gradients",
    "max_steps": 150,
    "folds": 2,
    "copies": 1,
    "widths": [16, 8],
    "bins": 4,
}


def outcome_of(variant: str, *, overlap: float = 1.0, **distil: Any) -> Outcome:
    values = {
        "method": variant,
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
        outcome for _, outcome in run_variants(setup(run, 0, load_data(run)), 0, lambda *_: None)
    ]
    return outcomes[0]


def trained(variant: str, *, overlap: float = 1.0) -> dict[str, dict[str, Any]]:
    outcome = outcome_of(variant, overlap=overlap)
    return {name: scores["upper"] for name, scores in outcome.scores.items()}


@pytest.mark.trained
@pytest.mark.slow
@pytest.mark.parametrize("variant", ["party-dropout", "laser"])
def test_both_are_scored_with_the_partner_and_without(variant: str) -> None:
    scores = trained(variant)
    # Half of a digit's pixels, 300 labels: about 0.75; all of them about 0.9.
    assert scores[variant]["accuracy"] > scores[f"{variant}-gone"]["accuracy"] + 0.05
    assert scores[f"{variant}-gone"]["accuracy"] > 0.55


@pytest.mark.trained
@pytest.mark.slow
@pytest.mark.parametrize("variant", ["party-dropout", "laser"])
def test_rows_that_the_partner_lacks_train_too(variant: str) -> None:
    """A tenth of 300 labels is shared: with these alone it would be far off."""
    assert trained(variant, overlap=0.1)[f"{variant}-gone"]["accuracy"] > 0.55


@pytest.mark.parametrize("variant", ["party-dropout", "laser"])
def test_parties_with_files_of_their_own_do_not_agree_to_one_place(variant: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    values = {"method": variant, "parties": ["bank.toml"], "test": 0.3}
    run = check_run(values, where="run.toml")
    with pytest.raises(ConfigError, match=f"the baseline '{variant}' puts everybody's columns in"):
        _variants(run, where="run.toml")


@pytest.mark.slow
@pytest.mark.usefixtures("brief_learners")
def test_the_owners_labelled_rows_that_no_partner_has_train_its_models_all_the_same() -> None:
    quick = {"students": ["linear"], "teachers": ["linear"], "gate": -10.0, "blend": False}
    few, all_ = (outcome_of("apfed-d", overlap=share, **quick) for share in (0.2, 1.0))
    report = few.about["distilled"]
    assert report["labelled"] == 300
    assert 30 < report["labelled_and_shared"] < 100
    # Alone is of all labelled rows, whoever else has them: the same model to the last bit.
    assert few.scores["best-alone"] == all_.scores["best-alone"]
    # Three quarters of the student's labelled rows are the owner's only; with these it is above
    # what 60 labels give, and with the teacher's word on the shared ones about level with alone.
    solo = few.scores["apfed-d"]["upper"]["accuracy"]
    assert report["pays"]
    assert solo > few.scores["linear"]["upper"]["accuracy"] - 0.03
