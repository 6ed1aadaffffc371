"""Learners of the label owner: soft targets, folds, and models that load as they were saved."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor

from dovetail.data import Classification, Regression, TableEncoder, table_from_arrays
from dovetail.errors import DataError, ModelError
from dovetail.models import Model, RandomStream, load, threads
from dovetail.models.learners import (
    LEARNERS,
    NO_FOLD,
    Best,
    Boosting,
    Fitted,
    Learner,
    Linear,
    Network,
    OwnerSide,
    PartySide,
    Rows,
    StackedConfig,
    Trees,
    boosting,
    boosting_model,
    first_fold_only,
    fit_stacked,
    hard_targets,
    held_out_loss,
    linear,
    make_folds,
    stacked,
    vertical,
)
from dovetail.models.learners.boosting import FEW_ROWS
from dovetail.models.learners.boosting_model import BoostedTrees, BoostingSpec
from dovetail.models.learners.choice import best_of, mean_of
from dovetail.models.learners.rows import fitting_temperature
from dovetail.models.learners.specs import EnsembleSpec
from dovetail.models.learners.stacked import PiecewiseLinear
from dovetail.models.losses import SquaredError, loss_of

#: Small and quick, of every kind.
QUICK: dict[str, Learner] = {
    "linear": Linear(penalties=(0.1, 0.01)),
    "boosting": Boosting(trees=FEW_ROWS[:1], max_rounds=30),
    "network": Network(StackedConfig(widths=(8, 4), bins=4, max_steps=60)),
}
each_learner = pytest.mark.parametrize("learner", QUICK.values(), ids=QUICK)


def standardised(x: np.ndarray) -> Tensor:
    scale = x.std(axis=0)
    return torch.from_numpy((x - x.mean(axis=0)) / np.where(scale > 0, scale, 1)).float()


def digits(rows: int = 240) -> tuple[Tensor, Tensor]:
    """Features and classes of the first digits."""
    data = load_digits()
    return standardised(data.data)[:rows], torch.from_numpy(data.target[:rows])


def cancer(rows: int = 200) -> tuple[Tensor, Tensor]:
    """Two classes."""
    data = load_breast_cancer()
    return standardised(data.data)[:rows], torch.from_numpy(data.target[:rows])


def rows_of(x: Tensor, classes: Tensor, num_folds: int = 2) -> Rows:
    targets = hard_targets(classes, int(classes.max()) + 1, regression=False)
    return Rows(x, targets, make_folds(classes, num_folds, seed=0))


def accuracy(outputs: Tensor, classes: Tensor) -> float:
    return float((outputs.argmax(dim=1) == classes).float().mean())


@pytest.mark.trained
@pytest.mark.slow
@each_learner
def test_held_out_rows_and_new_rows_are_predicted_above_chance(learner: Learner) -> None:
    x, classes = digits(600)
    rows = rows_of(x[:400], classes[:400])
    fitted = learner.fit(rows, seed=0)
    assert accuracy(fitted.held_out_NC, classes[:400]) > 0.6
    assert accuracy(fitted.outputs(x[400:]), classes[400:]) > 0.6


@each_learner
def test_the_same_seed_gives_the_same_model(learner: Learner) -> None:
    x, classes = cancer()
    rows = rows_of(x, classes)
    one, two = learner.fit(rows, seed=3), learner.fit(rows, seed=3)
    assert torch.equal(one.outputs(x), two.outputs(x))


@each_learner
def test_rows_are_predicted_one_by_one_as_together(learner: Learner) -> None:
    x, classes = cancer(80)
    fitted = learner.fit(rows_of(x, classes), seed=0)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    together = fitted.outputs(x)
    assert torch.allclose(fitted.outputs(x[order]), together[order], atol=1e-5)
    assert torch.allclose(fitted.outputs(x[7:8]), together[7:8], atol=1e-5)
    assert fitted.outputs(x[:0]).shape == (0, 2)


@each_learner
@pytest.mark.parametrize("regression", [False, True], ids=["classes", "values"])
def test_a_saved_model_is_loaded_as_it_was(
    learner: Learner, regression: bool, tmp_path: Path
) -> None:
    table = table_from_arrays(
        "clients",
        {
            "age": np.array([31.0, 44.0, np.nan, 58.0, 23.0, 61.0, 35.0, 47.0] * 8),
            "job": np.array(["clerk", "cook", "clerk", "smith"] * 16, dtype=object),
        },
    )
    encoder = TableEncoder.fit(table, ["age", "job"], party="bank")
    x = encoder.transform(table)
    labels = (x[:, 0] + 0.1 * torch.arange(64).remainder(3)).float()
    classes = (labels > 0).long() + (labels > 1).long()
    task = Regression(2.0, 3.0) if regression else Classification(("low", "mid", "high"))
    truth = labels if regression else classes
    rows = Rows(
        x,
        hard_targets(truth, task.num_outputs, regression=regression),
        make_folds(truth, 2, seed=0, regression=regression),
        loss=loss_of(task),
    )
    fitted = learner.fit(rows, seed=0)
    shapes, inputs = {"own": (encoder.num_features,)}, {"own": encoder}
    model = Model("bank", task, fitted.network, fitted.spec, shapes, inputs, {"seed": 0})
    loaded = load(model.save(tmp_path / "bank"))
    before, after = model.predictions(x), loaded.predictions(x)
    assert before.values.tolist() == after.values.tolist()
    if not regression:
        assert before.probabilities is not None
        assert after.probabilities is not None
        assert np.array_equal(before.probabilities, after.probabilities)
        expected = torch.from_numpy(before.probabilities)
        assert torch.allclose(fitted.probabilities(x), expected, atol=1e-6)
    assert loaded.spec == model.spec
    assert {path.suffix for path in (tmp_path / "bank").iterdir()} == {".json", ".safetensors"}


@each_learner
def test_rows_of_no_fold_train_and_are_never_held_out(learner: Learner) -> None:
    x, classes = cancer()
    rows = rows_of(x, classes)
    folds = rows.folds_N.clone()
    folds[:50] = NO_FOLD
    fitted = learner.fit(Rows(x, rows.targets_NC, folds), seed=0)
    assert fitted.held_out_NC[:50].isnan().all()
    assert fitted.held_out_NC[50:].isfinite().all()


@pytest.mark.trained
@each_learner
def test_one_fold_ends_in_a_model_of_all_rows(learner: Learner) -> None:
    x, classes = cancer()
    rows = rows_of(x, classes)
    single = Rows(x, rows.targets_NC, first_fold_only(rows.folds_N))
    fitted = learner.fit(single, seed=0)
    assert accuracy(fitted.outputs(x), classes) > 0.9
    held_out = fitted.held_out_NC[rows.folds_N == 0]
    assert not torch.allclose(fitted.outputs(x[rows.folds_N == 0]), held_out, atol=1e-3)


def test_outputs_by_fold_are_those_of_models_that_held_the_fold_out() -> None:
    rows = rows_of(*digits(), num_folds=3)
    several = {name: learner.fit(rows, seed=3) for name, learner in QUICK.items()}
    for fitted in (*several.values(), best_of(several, rows)):
        by_fold_KNC = fitted.by_fold(rows.x_NF)
        assert len(by_fold_KNC) == 3
        own_NC = by_fold_KNC[rows.folds_N, torch.arange(len(rows.x_NF))]
        assert torch.allclose(own_NC.softmax(1), fitted.held_out_NC.softmax(1), atol=1e-4)
    one = replace(rows, folds_N=first_fold_only(rows.folds_N))
    held_out = one.folds_N == 0
    for learner in QUICK.values():
        fitted = learner.fit(one, seed=3)  # and its model is trained on all rows
        (own_NC,) = fitted.by_fold(one.x_NF[held_out])
        assert torch.allclose(own_NC.softmax(1), fitted.held_out_NC[held_out].softmax(1), atol=1e-4)


@pytest.mark.slow
@each_learner
def test_a_held_out_label_does_not_reach_the_outputs_of_its_row(learner: Learner) -> None:
    """Only through what is chosen by all held-out rows, which one row of 200 does not change."""
    x, classes = cancer()
    rows = rows_of(x, classes)
    flipped = rows.targets_NC.clone()
    flipped[17] = flipped[17].flip(0)
    one = learner.fit(rows, seed=0).held_out_NC[17].softmax(dim=0)
    two = learner.fit(Rows(x, flipped, rows.folds_N), seed=0).held_out_NC[17].softmax(dim=0)
    assert torch.allclose(one, two, atol=0.1)


@pytest.mark.slow
@each_learner
def test_soft_targets_are_learnt_as_the_shares_they_are(learner: Learner) -> None:
    """On rows of two kinds, the model says each kind's own probability."""
    x = torch.tensor([[1.0], [-1.0]]).repeat(200, 1)
    targets = torch.tensor([[0.8, 0.2], [0.4, 0.6]]).repeat(200, 1)
    rows = Rows(x, targets, torch.arange(400) // 2 % 2)
    lasting = {
        "linear": Linear(penalties=(1e-4,)),
        "boosting": Boosting(trees=FEW_ROWS[:1]),
        "network": Network(StackedConfig(widths=(8, 4), max_steps=2000, weight_decay=0.0)),
    }[learner.name]
    probabilities = lasting.fit(rows, seed=0).probabilities(x[:2])
    assert torch.allclose(probabilities, targets[:2], atol=0.02)


def test_a_soft_target_is_its_row_once_for_each_class_with_that_weight() -> None:
    """Linear: the same minimum. Counted weights stand for rows, which trees are grown by."""
    x, _ = cancer(120)
    p = torch.sigmoid(x[:, 0])
    soft = Rows(x, torch.stack([1 - p, p], dim=1), torch.arange(120) % 2)
    doubled = Rows(
        torch.cat([x, x]),
        torch.eye(2).repeat_interleave(120, dim=0),
        soft.folds_N.repeat(2),
        torch.cat([1 - p, p]),
    )
    learner = Linear(penalties=(0.1,), max_iterations=1000)
    one, two = learner.fit(soft, seed=0), learner.fit(doubled, seed=0)
    assert torch.allclose(one.probabilities(x), two.probabilities(x), atol=2e-3)


def test_the_linear_learner_is_scikit_learns_logistic_regression() -> None:
    x, classes = digits(200)
    rows = rows_of(x, classes)
    penalty = 0.05
    fitted = Linear(penalties=(penalty,), max_iterations=2000).fit(rows, seed=0)
    theirs = LogisticRegression(C=1 / (penalty * len(x)), max_iter=2000, tol=1e-8)
    theirs.fit(x.numpy(), classes.numpy())
    ours = (fitted.outputs(x) * fitted.spec.temperature).softmax(dim=1)
    assert np.allclose(ours.numpy(), theirs.predict_proba(x.numpy()), atol=5e-3)


def test_the_linear_learner_of_values_is_ridge() -> None:
    data = load_diabetes()
    x, values = standardised(data.data), standardised(data.target[:, None])[:, 0]
    targets = hard_targets(values, 1, regression=True)
    rows = Rows(x, targets, make_folds(values, 3, seed=0, regression=True), loss=SquaredError())
    fitted = Linear(penalties=(0.02,)).fit(rows, seed=0)
    theirs = Ridge(alpha=0.02 * len(x)).fit(x.numpy(), values.numpy())
    assert np.allclose(fitted.outputs(x)[:, 0].numpy(), theirs.predict(x.numpy()), atol=2e-3)


def test_boosting_with_hard_targets_is_lightgbms_own_objective() -> None:
    import lightgbm

    x, classes = cancer(160)
    rows = rows_of(x, classes)
    trees = Trees(
        num_leaves=4,
        min_data_in_leaf=5,
        learning_rate=0.1,
        feature_fraction=1.0,
        lambda_l2=1.0,
    )
    one_fold = Rows(x, rows.targets_NC, first_fold_only(rows.folds_N))
    fitted = Boosting(trees=(trees,), max_rounds=15, patience=15).fit(one_fold, seed=0)
    member = next(m for m in fitted.network.modules() if isinstance(m, BoostedTrees))
    num_rounds = member.text().count("\nTree=")
    theirs = lightgbm.train(
        {
            "objective": "binary",
            "boost_from_average": False,
            "num_leaves": 4,
            "min_data_in_leaf": 5,
            "learning_rate": 0.1,
            "lambda_l2": 1.0,
            "min_sum_hessian_in_leaf": 1e-3,
            "bagging_fraction": 0.8,
            "bagging_freq": 1,
            "max_bin": 127,
            "num_threads": 1,
            "deterministic": True,
            "force_row_wise": True,
            "seed": 0,
            "verbosity": -1,
        },
        lightgbm.Dataset(
            x.numpy(), classes.numpy(), init_score=np.full(len(x), float(member.start_S))
        ),
        num_rounds,
    )
    with torch.no_grad():
        ours = member(x)[:, 1] - member.start_S
    assert np.allclose(ours.numpy(), theirs.predict(x.numpy(), raw_score=True), atol=1e-4)


def test_a_row_of_weight_two_counts_as_two_rows() -> None:
    x, classes = cancer(100)
    rows = rows_of(x, classes)
    weights = torch.ones(100)
    weights[:30] = 2
    weighted = replace(rows, weights_N=weights)
    twice = Rows(
        torch.cat([x, x[:30]]),
        torch.cat([rows.targets_NC, rows.targets_NC[:30]]),
        torch.cat([rows.folds_N, rows.folds_N[:30]]),
    )
    learner = Linear(penalties=(0.1,))
    one, two = learner.fit(weighted, seed=0), learner.fit(twice, seed=0)
    assert torch.allclose(one.outputs(x), two.outputs(x), atol=1e-2)


def test_networks_of_several_rows_learn_from_their_own_only() -> None:
    x, classes = digits()
    rows = rows_of(x, classes)
    first = replace(rows, folds_N=first_fold_only(rows.folds_N))
    held_out = first.folds_N == 0
    targets = torch.full((150, 10), 0.1)  # nothing
    other = Rows(x[:150], targets, first.folds_N[:150])
    learner = Network(StackedConfig(widths=(8, 4), bins=4, max_steps=60, copies=1))
    one, dull = learner.fit_each([first, other], seed=0)
    outputs = one.held_out_NC[held_out]
    assert float((outputs.argmax(dim=1) == classes[held_out]).float().mean()) > 0.7
    assert float((dull.probabilities(x) - 0.1).abs().max()) < 0.2
    assert torch.allclose(one.outputs(x)[held_out], outputs, atol=1e-5)
    assert one.held_out_NC[~held_out].isnan().all()


@pytest.mark.trained
@pytest.mark.slow
def test_best_is_the_mean_that_held_out_rows_weigh() -> None:
    x, classes = digits()
    rows = rows_of(x, classes)
    singles = [learner.fit(rows, seed=0) for learner in QUICK.values()]
    best = Best(tuple(QUICK.values())).fit(rows, seed=0)
    names = best.learner.split("+")
    chosen = [each for each in singles if each.learner in names]
    assert len(chosen) > 1
    weights = best.spec.weights
    assert weights is not None
    losses = [held_out_loss(each, rows) for each in chosen]
    assert weights.index(max(weights)) == losses.index(min(losses))
    # Five rows more of 400 say that all count alike: so far may it be behind the best one.
    assert held_out_loss(best, rows) <= min(losses) + 0.02
    assert held_out_loss(best, rows) < held_out_loss(mean_of(chosen, rows), rows)
    expected = mean_of(chosen, rows, weights=weights)
    assert torch.allclose(best.outputs(x), expected.outputs(x), atol=1e-5)


def test_a_weighted_mean_of_models_says_that_of_their_probabilities(tmp_path: Path) -> None:
    x, classes = cancer()
    rows = rows_of(x, classes)
    singles = [learner.fit(rows, seed=0) for learner in QUICK.values()]
    several = mean_of(singles, rows, weights=(0.6, 0.3, 0.1))
    probabilities = torch.stack([each.probabilities(x) for each in singles])
    expected = (probabilities * torch.tensor([0.6, 0.3, 0.1])[:, None, None]).sum(dim=0)
    predicted = (several.outputs(x) * several.spec.temperature).softmax(dim=1)
    assert torch.allclose(predicted, expected, atol=1e-5)
    model = Model(
        "bank", Classification((0, 1)), several.network, several.spec, {"own": (x.shape[1],)}
    )
    loaded = load(model.save(tmp_path / "bank"))
    torch.testing.assert_close(loaded.outputs(x), several.outputs(x))  # a model computes row by row
    with pytest.raises(ModelError, match="a weight for each of its 3 members"):
        replace(several.spec, weights=(0.5, 0.5))


def test_learners_of_values_count_by_how_far_off_they_are() -> None:
    rng = torch.Generator().manual_seed(0)
    truth = torch.randn(400, 1, generator=rng)
    rows = Rows(truth, truth, torch.arange(400) % 4, loss=SquaredError())
    near, far = (
        replace(Linear(penalties=(1e-3,)).fit(rows, seed=0), learner=name, held_out_NC=outputs)
        for name, outputs in (
            ("near", truth + 0.3 * torch.randn(400, 1, generator=rng)),
            ("far", torch.randn(400, 1, generator=rng)),
        )
    )
    assert best_of({"near": near, "far": far}, rows).learner == "near"
    # Of errors of sizes 1 and 2 the mean with the least variance has 4/5 of the one.
    wide = replace(
        near, learner="wide", held_out_NC=truth + 0.6 * torch.randn(400, 1, generator=rng)
    )
    weights = best_of({"near": near, "wide": wide}, rows).settings["weights"]
    assert weights[0] == pytest.approx(0.8, abs=0.05)


def test_the_mean_of_models_says_the_mean_of_their_probabilities(tmp_path: Path) -> None:
    x, classes = cancer()
    rows = rows_of(x, classes)
    singles = [learner.fit(rows, seed=0) for learner in QUICK.values()]
    several = mean_of(singles, rows)
    expected = torch.stack([each.probabilities(x) for each in singles]).mean(dim=0)
    probabilities = (several.outputs(x) * several.spec.temperature).softmax(dim=1)
    assert torch.allclose(probabilities, expected, atol=1e-5)
    model = Model(
        "bank", Classification((0, 1)), several.network, several.spec, {"own": (x.shape[1],)}
    )
    loaded = load(model.save(tmp_path / "bank"))
    assert torch.allclose(loaded.outputs(x), several.outputs(x), atol=1e-5)


def test_a_party_can_name_every_learner() -> None:
    assert {name: learner.name for name, learner in LEARNERS.items()} == {
        name: name for name in ("linear", "boosting", "network")
    }


def test_a_member_never_trains_on_its_held_out_rows() -> None:
    """Whatever stands in the rows of a fold, its member's weights are the same."""
    x, classes = cancer(120)
    rows = rows_of(x, classes)
    other = x.clone()
    other[rows.folds_N == 0] = 7.0
    config = StackedConfig(widths=(6, 3), bins=0, copies=1, max_steps=20, patience=1000)
    one = fit_stacked([x], rows, config, seed=0).member_outputs([x])
    two = fit_stacked([other], rows, config, seed=0).member_outputs([x])
    assert not torch.allclose(one[1], two[1])
    last = replace(config, max_steps=4)  # ends before held-out rows are first looked at
    one = fit_stacked([x], rows, last, seed=0).member_outputs([x])
    two = fit_stacked([other], rows, last, seed=0).member_outputs([x])
    assert torch.equal(one[0], two[0])


def test_a_partner_sends_outputs_and_learns_from_their_gradients_alone() -> None:
    """By hand over bytes, as a network would carry them: the same model as in one place."""
    x, classes = cancer(90)
    rows, config = rows_of(x, classes), StackedConfig(widths=(6, 3), bins=4, max_steps=12)
    here = fit_stacked([x[:, :12], x[:, 12:]], rows, config, seed=5)

    def carried(sent: Tensor) -> Tensor:
        return torch.frombuffer(bytearray(sent.numpy().tobytes()), dtype=sent.dtype).view(
            sent.shape
        )

    owner = OwnerSide(rows, config, parties=2, seed=5)
    sides = [
        PartySide(part, config, owner.members, 2, RandomStream(5, "bottom", str(index)))
        for index, part in enumerate([x[:, :12], x[:, 12:]])
    ]
    while not owner.ended:
        drawn = owner.draw()
        gradients = owner.step([carried(side.send(drawn)) for side in sides])
        assert [g.shape for g in gradients] == [(owner.members, drawn.shape[1], 3 + 2)] * 2
        for side, gradient in zip(sides, gradients, strict=True):
            side.follow(carried(gradient))
        if owner.judging and owner.judge([side.judge(owner.judged_KV) for side in sides]):
            for side in sides:
                side.kept.keep()
    owner.restore()
    for side in sides:
        side.kept.restore()
    for side, bottom in zip(sides, here.bottoms, strict=True):
        for one, two in zip(side.bottom.parameters(), bottom.parameters(), strict=True):
            assert torch.equal(one, two)
    for one, two in zip(owner.top.parameters(), here.top.parameters(), strict=True):
        assert torch.equal(one, two)


def test_two_parties_without_hidden_layers_are_one_party_with_both_columns() -> None:
    x, classes = cancer(120)
    rows = rows_of(x, classes)
    config = StackedConfig(widths=(), bins=0, learning_rate=0.05, max_steps=40)
    split = fit_stacked([x[:, :10], x[:, 10:]], rows, config, seed=0)
    pooled = fit_stacked([x], rows, config, seed=0)
    apart, joint = split.member_outputs([x[:, :10], x[:, 10:]]), pooled.member_outputs([x])
    assert torch.allclose(apart, joint, atol=1e-4)
    assert torch.allclose(split.held_out_NC, pooled.held_out_NC, atol=1e-4)


def test_bins_rise_from_none_to_all_and_keep_the_number() -> None:
    x = torch.stack([torch.linspace(-1, 1, 101), torch.arange(101) % 2], dim=1)
    encoding = PiecewiseLinear.fit(x, bins=4)
    encoded = encoding(x)
    assert encoded.shape == (101, 2 + 4)  # the second feature has two values: no bins
    assert torch.equal(encoded[:, :2], x)
    assert encoded[0, 2:].tolist() == [0, 0, 0, 0]
    assert encoded[-1, 2:].tolist() == pytest.approx([1, 1, 1, 1])
    assert encoded[50, 2:].tolist() == pytest.approx([1, 1, 0, 0], abs=1e-5)


def test_a_number_that_is_mostly_zero_has_bins_of_its_other_values() -> None:
    x = torch.cat([torch.zeros(900), torch.linspace(1, 100, 100)])[:, None]
    encoding = PiecewiseLinear.fit(x, bins=4)
    edges = [*encoding.low_M.tolist(), float(encoding.low_M[-1] + encoding.width_M[-1])]
    assert edges == pytest.approx([0, 25, 50, 75, 100], abs=1)


def test_a_thousand_numbers_get_fewer_bins() -> None:
    x = torch.randn(50, 1000, generator=torch.Generator().manual_seed(0))
    assert PiecewiseLinear.fit(x, bins=16).num_outputs == 1000 + 2 * 1000


def test_folds_are_even_and_hold_each_class_evenly() -> None:
    classes = torch.tensor([0] * 40 + [1] * 21 + [2] * 3)
    folds = make_folds(classes, 4, seed=5)
    assert torch.bincount(folds).tolist() == [16, 16, 16, 16]
    for each in (0, 1):
        counts = torch.bincount(folds[classes == each], minlength=4)
        assert counts.max() - counts.min() <= 1


def test_the_temperature_undoes_a_scaling() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 3, generator=generator)
    drawn = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]
    targets = hard_targets(drawn, 3, regression=False)
    assert fitting_temperature(logits * 2, targets) == pytest.approx(2, rel=0.1)


def test_too_few_labels_for_the_folds_are_told() -> None:
    with pytest.raises(DataError, match="3 labelled rows cannot be dealt to 4 folds; label more"):
        make_folds(torch.tensor([0, 1, 0]), 4, seed=0)


def test_rows_that_do_not_belong_together_are_told() -> None:
    with pytest.raises(DataError, match=r"differ in rows: \[3, 4\]"):
        Rows(torch.zeros(4, 2), torch.zeros(3, 2), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(DataError, match="fold 0 holds out 4 of 4 rows"):
        Rows(torch.zeros(4, 2), torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))


def boosted() -> tuple[Model, Fitted]:
    x, classes = cancer(80)
    fitted = QUICK["boosting"].fit(rows_of(x, classes), seed=0)
    shapes = {"own": (x.shape[1],)}
    task = Classification((0, 1))
    return Model("bank", task, fitted.network, fitted.spec, shapes), fitted


@pytest.mark.parametrize(
    ("text", "put", "cause"),
    [
        ("left_child=1 ", "left_child=9 ", "a node points outside its tree"),
        ("left_child=1 ", "left_child=0 ", "a node points outside its tree"),
        ("right_child=-2\n", "right_child=-1\n", "a node or leaf has two parents"),
        ("split_feature=", "split_feature=3", "a node asks for a feature beyond the 30"),
        ("leaf_value=", "leaf_value=1 2 ", "of leaf_value, expected"),
        ("threshold=", "threshold=nan", "no finite number|could not convert"),
        ("decision_type=2", "decision_type=1", "asks for a category"),
        ("num_leaves=4", "num_leaves=0", "a tree without leaves"),
        ("num_leaves=", "leaves=", "trees cannot be read .'num_leaves'"),
    ],
)
def test_trees_that_cannot_be_are_told(text: str, put: str, cause: str, tmp_path: Path) -> None:
    model, fitted = boosted()
    member = next(m for m in fitted.network.modules() if isinstance(m, BoostedTrees))
    assert text in member.text()
    changed = member.text().replace(text, put).encode()
    member.text_T = torch.frombuffer(bytearray(changed), dtype=torch.uint8)
    first = BoostingSpec(member.num_features, member.num_outputs, len(changed), 1)
    spec = replace(fitted.spec, members=(first, *fitted.spec.members[1:]))
    folder = replace(model, spec=spec).save(tmp_path / "bank")
    with pytest.raises(ModelError, match=cause):
        load(folder)


@pytest.mark.parametrize("num_classes", [2, 10])
def test_trees_are_followed_as_lightgbm_follows_them(
    num_classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lightgbm

    x, classes = cancer() if num_classes == 2 else digits()
    fitted = QUICK["boosting"].fit(rows_of(x, classes), seed=0)
    unseen = torch.randn(300, x.shape[1], generator=torch.Generator().manual_seed(0))
    for member in (m for m in fitted.network.modules() if isinstance(m, BoostedTrees)):
        theirs = lightgbm.Booster(model_str=member.text()).predict(unseen.numpy(), raw_score=True)
        with monkeypatch.context() as few:
            few.setattr(boosting_model, "_MOST_ROWS", 7)
            in_parts = member(unseen)
        assert torch.equal(member(unseen), in_parts)
        ours = member(unseen) - member.start_S
        ours = ours[:, 1] if num_classes == 2 else ours
        assert np.allclose(ours.numpy(), theirs, atol=1e-5)
        lacking = torch.where(torch.rand_like(unseen) < 0.3, torch.nan, unseen)
        above = lacking.nan_to_num(nan=torch.inf)  # what is missing is above every threshold
        assert torch.equal(member(lacking), member(above))


def test_a_member_of_an_unknown_kind_is_told(tmp_path: Path) -> None:
    model, _ = boosted()
    folder = model.save(tmp_path / "bank")
    description = json.loads((folder / "model.json").read_text())
    description["network"]["members"][0]["kind"] = "oracle"
    (folder / "model.json").write_text(json.dumps(description))
    with pytest.raises(ModelError, match=r"a kind among .*boosting.*, got 'oracle'"):
        load(folder)


def test_a_spec_survives_json() -> None:
    x, classes = cancer(60)
    for learner in QUICK.values():
        spec = learner.fit(rows_of(x, classes), seed=0).spec
        assert EnsembleSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "constant"), [(8, None), (24, None), (24, 1.0), (24, 0.0), (2, None)]
)
def test_boosting_takes_tables_of_which_no_tree_can_split(
    rows: int, constant: float | None
) -> None:
    x = torch.randn(rows, 3) if constant is None else torch.full((rows, 3), constant)
    classes = torch.arange(rows) % 2
    fitted = Boosting().fit(rows_of(x, classes, num_folds=min(4, rows)), seed=0)
    assert fitted.held_out_NC.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["network", "linear"])
def test_a_table_too_large_to_keep_encoded_is_learnt_alike(name, monkeypatch):
    rows, learner = rows_of(*cancer(120)), QUICK[name]
    whole = learner.fit(rows, seed=0)
    monkeypatch.setattr(vertical, "_MOST_ENCODED", 3000)  # of rows of 30 numbers: a few at a time
    monkeypatch.setattr(linear, "_MOST_DOUBLES", 0)
    monkeypatch.setattr(linear, "_ROWS_AT_ONCE", 50)
    parts = learner.fit(rows, seed=0)
    torch.testing.assert_close(parts.held_out_NC, whole.held_out_NC, rtol=1e-4, atol=1e-5)


def test_bins_of_a_large_table_are_placed_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0))
    x[:, 1] = x[:, 1] > 0  # a category
    monkeypatch.setattr(stacked, "_MOST_SORTED", 5_000)
    encoding = stacked.PiecewiseLinear.fit(x)
    assert encoding.column_M.unique().tolist() == [0]
    shares = [float((x[:, 0] < edge).float().mean()) for edge in encoding.low_M]
    assert shares == pytest.approx([each / 16 for each in range(16)], abs=0.03)  # of 5,000: 0.007
    again = stacked.PiecewiseLinear.fit(x)
    assert torch.equal(again.low_M, encoding.low_M)
    monkeypatch.undo()
    whole, at = stacked.PiecewiseLinear.fit(x), torch.linspace(0, 1, 17, dtype=torch.float64)
    assert torch.equal(whole.low_M, stacked._edges(x[:, 0].double(), at)[:-1])


def test_trees_that_grow_in_threads_end_when_one_of_them_fails(monkeypatch) -> None:
    grown: list[int] = []
    gradients = boosting._gradients

    def fails(scores: np.ndarray, *arguments: object, **also: object) -> object:
        grown.append(threading.get_ident())
        if len(grown) == 40:
            raise MemoryError
        return gradients(scores, *arguments, **also)  # type: ignore[arg-type]

    monkeypatch.setattr(boosting, "_gradients", fails)
    monkeypatch.setattr(threads, "num_threads", lambda: 2)
    with pytest.raises(MemoryError):
        Boosting(patience=600).fit(rows_of(*digits()), seed=0)
    assert len(set(grown)) == 2
    assert len(grown) < 80  # of 8 x 400


@pytest.mark.parametrize("num_cores", [1, 3])
def test_trees_are_the_same_however_many_cores_there_are(num_cores: int, monkeypatch) -> None:
    rows = rows_of(*cancer(80))
    plain = QUICK["boosting"].fit(rows, seed=0)
    monkeypatch.setattr(threads, "num_threads", lambda: num_cores)
    assert torch.equal(QUICK["boosting"].fit(rows, seed=0).held_out_NC, plain.held_out_NC)


def test_lightgbm_is_loaded_whole_where_its_files_are_not_as_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import lightgbm

    from dovetail.models import lightgbm_core

    def absent(folders: list[str]) -> None:
        raise ImportError(folders)

    assert lightgbm_core._loaded.__wrapped__() is not lightgbm
    monkeypatch.setattr(lightgbm_core, "_core", absent)
    assert lightgbm_core._loaded.__wrapped__() is lightgbm


def test_lightgbm_takes_pandas_as_ever_beside_the_core_that_boosting_loads() -> None:
    import lightgbm
    import pandas

    from dovetail.models import lightgbm_core

    assert lightgbm_core.Booster is not lightgbm.Booster
    rows = pandas.DataFrame({"age": [20.0, 60.0] * 20})
    model = lightgbm.LGBMClassifier(verbosity=-1).fit(rows, [0, 1] * 20)
    assert model.feature_name_ == ["age"]
