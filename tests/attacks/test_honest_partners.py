"""Partners that keep the rules and all that they are sent: what they work out afterwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail import data as dd
from dovetail.audit.attack import Settings
from dovetail.audit.run import Audit, audit
from dovetail.runs.runfile import check_run

pytestmark = pytest.mark.usefixtures("brief_learners")


def audited(folder: Path, **apfed: object) -> Audit:
    """APFed-D on 700 people, whose columns at the bank say nothing of those at the shop."""
    rng = np.random.default_rng(0)
    bank, shop = rng.normal(size=(2, 700, 5))
    score = bank @ rng.normal(size=5) + shop @ rng.normal(size=5) + rng.normal(size=700)
    columns = {f"bank_{index}": column for index, column in enumerate(bank.T)}
    columns |= {f"shop_{index}": column for index, column in enumerate(shop.T)}
    labels = np.where(score > 0, "yes", "no").astype(object)
    dd.write_table(folder / "people.csv", {**columns, "label": labels})
    values = {
        "method": "apfed-d",
        "evaluate_every": 0,
        "data": {
            "source": str(folder / "people.csv"),
            "label": "label",
            "test": 0.2,
            "partition": {
                "kind": "columns",
                "active": "bank",
                "parties": {"bank": ["bank_*"], "shop": ["shop_*"]},
            },
        },
        "apfed": {"distil": {"students": ["linear"], "max_steps": 300, **apfed}},
    }
    return audit(check_run(values, where="test"), (0,), settings=Settings(network=False))


@pytest.mark.trained
@pytest.mark.slow
def test_gradients_of_outputs_tell_a_partner_every_label_and_the_owner_s_columns(tmp_path: Path):
    """The sign is the label, so that p follows, and its logits of all steps give the columns."""
    findings = audited(tmp_path, exchange="gradients").findings
    (sign,) = [each for each in findings if each.channel == "output gradients"]
    assert sign.score == 1
    (rebuilt,) = [each for each in findings if each.channel == "logits"]
    assert (rebuilt.observer, rebuilt.owner, rebuilt.target) == ("shop", "bank", "columns")
    assert rebuilt.baseline < 0.05
    assert rebuilt.score > 0.8
    assert rebuilt.verdict == "high"


@pytest.mark.slow
def test_columns_that_are_released_once_tell_a_partner_nothing(tmp_path: Path):
    findings = audited(tmp_path, exchange="released").findings
    assert {each.verdict for each in findings if each.observer == "shop"} == {"none"}
    assert not [each for each in findings if each.channel in ("logits", "output gradients")]
