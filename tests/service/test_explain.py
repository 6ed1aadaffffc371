"""Explanations add up, find the columns that matter, and are LightGBM's own of its trees."""

import hashlib
import json

import lightgbm
import numpy as np
import pytest
import torch
from learned import clinic_table, fitted_model

from dovetail.cli.predict import predict
from dovetail.companions.service.explain_command import explain
from dovetail.companions.service.explained import page
from dovetail.models.learners.boosting import Boosting
from dovetail.models.learners.linear import Linear
from dovetail.models.learners.network import Network
from dovetail.models.learners.vertical import StackedConfig
from dovetail.models.raw import table_of


@pytest.fixture(scope="module")
def table():
    return clinic_table(300)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learners", "regression", "how"),
    [
        ([Boosting()], False, "trees"),
        ([Boosting()], True, "trees"),
        ([Linear()], False, "gradients"),
        ([Network()], True, "gradients"),
        ([Linear(), Boosting()], False, "orders"),
    ],
    ids=["trees", "trees of a number", "linear", "network of a number", "mean"],
)
def test_what_columns_add_sums_to_what_is_said(table, learners, regression, how):
    model = fitted_model(table, learners, regression=regression)
    explanation = model.explain(table, shared_rows=40)
    assert explanation.how == how
    total = explanation.start + explanation.shares.sum(axis=1)
    spread = explanation.outputs.std()
    # Integrated gradients are a sum of pieces between kinks.
    apart = 0.015 if how == "gradients" else 1e-4
    np.testing.assert_allclose(total, explanation.outputs, atol=apart * spread)
    prediction = model.predictions(table.head(40))
    if regression:
        np.testing.assert_allclose(explanation.outputs, prediction.values, rtol=1e-4)
    else:
        p = prediction.probabilities[:, 1]
        np.testing.assert_allclose(explanation.outputs, np.log(p / (1 - p)), atol=1e-3)


@pytest.mark.slow
def test_pieces_of_a_path_are_those_of_very_many_steps(table):
    """A network of bins is all kinks; against 4096 even steps, which ask no pieces."""
    model = fitted_model(table, [Network(StackedConfig(max_steps=300))])
    explanation = model.explain(table, shared_rows=12)
    x_NF = model.inputs["columns"].transform(table_of(table)).float()
    rise_NF = x_NF[:12] - x_NF.mean(dim=0)
    total_NF = torch.zeros_like(rise_NF)
    for steps_S in torch.arange(4096).split(64):  # side by side: S steps of all rows
        shares_S11 = ((steps_S + 0.5) / 4096)[:, None, None]
        at_SNF = (x_NF.mean(dim=0) + shares_S11 * rise_NF).requires_grad_()
        outputs = model.network(at_SNF.flatten(0, 1))
        (grad_SNF,) = torch.autograd.grad((outputs[:, 1] - outputs[:, 0]).sum(), at_SNF)
        total_NF += grad_SNF.sum(dim=0) * rise_NF / 4096
    total = explanation.start + total_NF.sum(dim=1).numpy()
    spread = np.sqrt(np.square(explanation.outputs - explanation.start).mean())
    np.testing.assert_allclose(
        total, explanation.outputs, atol=0.01 * spread
    )  # so that they are a measure
    start = 0
    for column in model.inputs["columns"].fitted:
        stop = start + len(column.feature_names)
        expected = total_NF[:, start:stop].sum(dim=1).numpy()
        mine = explanation.shares[:, explanation.columns.index(column.name)]
        np.testing.assert_allclose(mine, expected, atol=0.02 * spread)
        start = stop


def test_the_columns_that_matter_come_first_and_intervals_have_the_mean(table):
    explanation = fitted_model(table, [Linear()]).explain(table)
    names = [each.column for each in explanation.importance]
    assert names[0] == "age"
    assert names[-1] == "admitted"  # plays no part in the label
    for each in explanation.importance:
        assert each.low <= each.mean <= each.high
    assert explanation.importance[0].low > explanation.importance[-1].high
    values = [mean for _, mean in explanation.dependence["age"]]
    assert values == sorted(values)  # the older, the likelier ill


@pytest.mark.slow
def test_treeshap_is_lightgbms_own(table):
    model = fitted_model(table, [Boosting()])
    trees = model.network.members[0]
    booster = lightgbm.Booster(model_str=trees.text())
    x_NF = model.inputs["columns"].transform(table_of(table))
    raw = booster.predict(x_NF.double().numpy(), pred_contrib=True)[:, 0]  # age stands first
    explanation = model.explain(table, shared_rows=300)
    flag = model.inputs["columns"].feature_names.index("age is missing")
    raw += booster.predict(x_NF.double().numpy(), pred_contrib=True)[:, flag]
    np.testing.assert_allclose(
        explanation.shares[:, explanation.columns.index("age")] * model.network.temperature,
        raw,
        atol=1e-9,
    )


def test_a_column_of_zeros_and_ones_is_told_from_0_to_1(table):
    """In float32 a 0 that was standardised comes back as 1.3e-08."""
    numbers = table.assign(smoker=table["smoker"].astype(float))
    explanation = fitted_model(numbers, [Linear()]).explain(numbers)
    assert {value for value, _ in explanation.dependence["smoker"]} == {"0", "1"}


def test_rows_without_labels_are_explained_without_importance(table):
    explanation = fitted_model(table, [Linear()]).explain(table.drop(columns=["ill", "cost"]))
    assert explanation.importance == ()
    assert explanation.base is None
    assert len(explanation.dependence) == 3


def test_the_command_prints_json_and_writes_a_page(tmp_path, table, capsys):
    from dovetail.companions.service.explain_command import explain as command

    model = fitted_model(table, [Linear()])
    model.save(tmp_path / "m")
    table.to_parquet(tmp_path / "rows.parquet")
    out = tmp_path / "page.html"
    command(tmp_path / "m", tmp_path / "rows.parquet", row=3, html=out, as_json=True)
    report = json.loads(capsys.readouterr().out)
    row = report["row"]
    assert row["start"] + sum(row["adds"].values()) == pytest.approx(row["said"], abs=0.05)
    text = out.read_text()
    assert text.count("<figure>") == 2 + 1 + 3
    assert "what each column adds in row 3" in text
    assert page("again", model.explain(table)).count("<figure>") == 5


def test_scores_on_the_file_that_taught_the_model_are_called_that(table, tmp_path, capsys):
    model = fitted_model(table, [Linear()])
    folder = model.save(tmp_path / "run" / "models" / "clinic")
    table.to_csv(tmp_path / "taught.csv", index=False)
    table.head(100).to_csv(tmp_path / "other.csv", index=False)
    digest = hashlib.sha256((tmp_path / "taught.csv").read_bytes()).hexdigest()
    (tmp_path / "run" / "run.toml").write_text(f'[sha256]\n"taught.csv" = "{digest}"\n')
    words = "on the rows that it was trained on"
    for name, is_taught in (("taught", True), ("other", False)):
        page_file = tmp_path / f"{name}.html"
        explain(folder, tmp_path / f"{name}.csv", html=page_file, rows=10, quiet=True)
        said = capsys.readouterr().out.splitlines()[0]
        assert said.startswith("auc ")
        assert (words in said, words in page_file.read_text()) == (is_taught, is_taught)
        assert is_taught or said.endswith("on these rows")
        predict(folder, tmp_path / f"{name}.csv", out=tmp_path / "predicted.csv")
        warned = f"{name}.csv taught this model, so these scores are not those of new rows"
        assert (warned in capsys.readouterr().err) == is_taught
