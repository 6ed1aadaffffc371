"""Which columns a model relies on: those that its label follows, and what partners answer."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from learned import clinic_table, fitted_model

import dovetail as dt
from dovetail.models.learners.linear import Linear
from dovetail.models.raw import read_rows
from dovetail.models.relied import SHOWN, relied
from dovetail.report.folder import read_run
from dovetail.report.judged import relied as plots
from dovetail.report.make import make_report


def told(table: pd.DataFrame, **given: Any) -> Any:
    model = fitted_model(table, [Linear()], **given)
    rows = read_rows(model, table, label=str(model.about["label"]))
    x, labels = rows.labelled(model.task, str(model.about["label"]))
    return model, x, labels


def test_columns_that_the_label_follows_come_first() -> None:
    model, x, labels = told(clinic_table(300))
    found = relied(model, x, labels, seed=0)
    assert found is not None
    assert (found["score"], found["rows"], found["of"]) == ("auc", 150, 4)
    names = [name for name, *_ in found["columns"]]
    assert set(names) == {"age", "job", "smoker", "admitted"}
    assert names[0] == "age"
    assert names[-1] == "admitted"  # the label does not follow it
    assert all(low <= mean <= high for _, mean, low, high in found["columns"])
    assert relied(model, x, labels, seed=0) == found


def test_of_a_number_the_error_rises() -> None:
    model, x, labels = told(clinic_table(300), regression=True)
    found = relied(model, x, labels, seed=0)
    assert found is not None
    assert found["score"] == "rmse"
    assert found["columns"][0][1] > 0


def test_of_a_wide_table_the_most_important_columns_are_told() -> None:
    table = clinic_table(200)
    rng = np.random.default_rng(0)
    noise = pd.DataFrame(rng.normal(size=(200, 60)), columns=[f"noise{n}" for n in range(60)])
    model, x, labels = told(pd.concat([table, noise], axis=1))
    found = relied(model, x, labels, seed=0)
    assert found is not None
    assert found["of"] == 64
    assert len(found["columns"]) == SHOWN
    assert found["columns"][0][0] == "age"


def test_of_rows_of_one_class_nothing_is_told() -> None:
    model, x, labels = told(clinic_table(120))
    one = (labels == 0).nonzero().flatten()
    assert relied(model, {name: each[one] for name, each in x.items()}, labels[one], seed=0) is None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default method; half of what decides the label is at the shop."""
    rng = np.random.default_rng(0)
    here, there, noise = rng.normal(size=(3, 400))
    label = np.where(here + 2 * there + 0.3 * rng.normal(size=400) > 0, "yes", "no")
    ids = [f"C{row}" for row in range(400)]
    bank = pd.DataFrame({"customer": ids, "here": here, "noise": noise, "bought": label})
    shop = pd.DataFrame({"customer": ids, "there": there})
    parties = [
        dt.Party("bank", bank, id="customer", label="bought"),
        dt.Party("shop", shop, id="customer"),
    ]
    out = tmp_path_factory.mktemp("relied") / "run"
    dt.fit(dt.APFed(distil={"students": ["linear"]}), parties, test=0.3, out=out, quiet=True)
    return out


@pytest.mark.slow
def test_a_run_tells_the_columns_of_its_solo_and_its_joint_model(run: Path) -> None:
    (seed,) = read_run(run).seeds
    details = seed.done["apfed"].details
    solo, joint = details["apfed"]["bank"].relied, details["joint"]["bank"].relied
    assert solo is not None
    assert joint is not None
    assert [name for name, *_ in solo.columns] == ["here", "noise"]
    name, mean, low, _ = joint.columns[0]
    assert name == "shop: what it answers"
    assert 0 < low <= mean  # the joint model is worse if the shop's answers are permuted
    assert {name for name, *_ in joint.columns} == {"shop: what it answers", "here", "noise"}
    assert solo.rows == joint.rows == 120


@pytest.mark.slow
def test_the_report_draws_what_matters(run: Path) -> None:
    drawn = plots(read_run(run))
    assert [plot.title.partition(":")[0] for plot in drawn] == [
        "bank, solo model",
        "bank, joint model",
    ]
    assert "its AUC falls if a column is permuted among 120 test rows" in drawn[0].title
    assert [row.name for row in drawn[0].rows] == ["here", "noise"]
    page = make_report([run], out=run.parent / "report.html", data=False).read_text()
    assert page.index("What matters") < page.index("shop: what it answers")
    assert "what columns add to each prediction" in page
