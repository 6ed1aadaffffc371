"""A planted leak is found, and where nothing is told nothing is found."""

import numpy as np
import pytest
import torch
from lightgbm import LGBMClassifier
from scenes import heard, planted, planted_several, planted_times
from sklearn.metrics import roc_auc_score

from dovetail.audit.attack import Settings, attack
from dovetail.audit.attacks import columns, factors, labels, membership, rows
from dovetail.audit.tape import MAX_WIDTH, ChannelSummary
from dovetail.audit.verdict import interval, worst_of
from dovetail.data import MultiLabel, MultiTarget
from dovetail.methods.apfed import contrastive_loss
from dovetail.methods.apfed.reading import codes_behind
from dovetail.methods.facets.audited import MAX_ROWS, Channel

LINEAR = Settings(network=False)
RECIPES = "likelihood ratio", "shadow models (LiRA)", "difficulty calibrated by trees"


def measured_at(leak):
    scene, tape = planted(leak)
    findings = attack("apfed", scene, tape, {}, LINEAR)
    return {(each.target, each.threat.attack): each for each in findings}


def test_a_planted_leak_is_high_and_names_the_column_worst_off():
    findings = measured_at(1.0)
    assert {each.verdict for each in findings.values()} == {"high"}
    inverted = findings["columns", "inversion by ridge regression"]
    assert inverted.worst[0] in ("age", "income")  # the codes have no other
    assert inverted.worst[2] > 0.7
    assert inverted.score == pytest.approx(0.4, abs=0.1)  # 0.8 of two columns of four


def test_random_messages_are_none():
    findings = measured_at(0.0).values()
    assert len(findings) == 4
    assert worst_of(list(findings)) == "none"


@pytest.mark.trained
@pytest.mark.parametrize(("leak", "verdict"), [(1.0, "high"), (0.0, "none")])
def test_times_to_an_event_are_looked_for_among_what_was_shown(leak, verdict):
    scene, tape = planted_times(leak)
    found = [each for each in attack("apfed", scene, tape, {}, LINEAR) if each.target == "labels"]
    assert [each.verdict for each in found] == [verdict]
    if leak:
        assert found[0].worst[0] == "log of the time"
        assert found[0].worst[2] > 0.8


@pytest.mark.parametrize(
    "task",
    [MultiLabel(("pain", "sepsis")), MultiTarget(("pain", "sepsis"), (0.0, 0.0), (1.0, 1.0))],
    ids=["yes or no", "numbers"],
)
def test_each_of_several_labels_is_attacked_by_itself_and_named(task):
    scene, tape = planted_several(1.0, task)
    found = [each for each in attack("apfed", scene, tape, {}, LINEAR) if each.target == "labels"]
    strongest = {
        name: max((each for each in found if f"label {name!r}" in each.threat.attack),
                  key=lambda each: each.advantage)
        for name in task.labels
    }  # fmt: skip
    assert strongest["sepsis"].verdict == "high"
    assert strongest["pain"].verdict == "none"
    assert len({each.key for each in found}) == len(found)


@pytest.mark.slow
def test_a_network_finds_what_no_line_does():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 2))
    target = np.abs(x)
    linear, network = (
        columns.inversion(None, {"last": x}, target, ("p", "q"), known=400, network=each)
        for each in (False, True)
    )
    assert interval(linear)[1] < 0.1
    assert interval(network)[1] > 0.7


def test_the_norm_of_gradients_tells_the_rare_class():
    rng = np.random.default_rng(0)
    y = (rng.random(1000) < 0.05).astype(int)
    p = 0.05 + 0.02 * rng.random(1000)  # a model that says "rare" to nobody
    gradient = (p - y)[:, None] * np.array([[0.5, -1.0]])
    measured = labels.norm({"last": gradient}, y)
    assert interval(measured)[1] > 0.99  # Li et al. 2021: near-perfect
    sign = labels.output_sign((p - y)[:, None], y)
    assert interval(sign)[1] == pytest.approx(1.0)


def test_each_class_counts_the_same_and_a_sure_attack_has_no_spread():
    y = np.array([0] * 90 + [1] * 10)
    right = np.array([[1.0] * 90 + [0.5] * 10])
    contributions = labels.balanced(right, y)
    assert contributions.mean() == pytest.approx(0.75)
    assert labels.balanced(np.ones((1, 100)), y).tolist() == [[1.0] * 100]


def test_contributions_to_an_auc_have_its_mean():
    rng = np.random.default_rng(0)
    positive = rng.random(300) < 0.3
    scores = np.round(rng.normal(size=300) + positive, 1)  # with ties
    rows_ = labels.auc_rows(scores, positive)
    assert rows_.mean() == pytest.approx(roc_auc_score(positive, scores))


def test_a_model_that_learned_rows_by_heart_tells_them_and_another_does_not():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(400, 5, generator=rng)
    y = torch.randint(2, (400,), generator=rng)

    def by_heart(rows_):
        known = (torch.cdist(rows_, x[:200]) < 1e-3).double()
        right = torch.nn.functional.one_hot(y[:200], 2).double()
        return 0.5 + 0.45 * known @ (2 * right - 1)

    inside, outside = (x[:200], y[:200]), (x[200:], y[200:])
    finding, bound = membership.membership(by_heart, inside, outside)
    assert interval(finding)[1] > 0.9
    assert bound > 1
    silent, bound = membership.membership(lambda r: torch.full((len(r), 2), 0.5), inside, outside)
    assert interval(silent)[1] == pytest.approx(0.5, abs=0.06)
    assert bound < 0.5


def test_shadow_models_tell_members_that_the_loss_alone_does_not():
    """Half of the rows have labels of chance: hard ones that were learned look like easy ones."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 6))
    y = (x[:, 0] + 3 * x[:, 1] * (x[:, 2] > 0) > 0).astype(np.int64)
    hard = rng.random(800) < 0.5
    y[hard] = rng.integers(2, size=hard.sum())
    model = LGBMClassifier(n_estimators=60, num_leaves=15, verbose=-1, n_jobs=1).fit(
        x[:400], y[:400]
    )

    def probability(rows_):
        return torch.from_numpy(np.asarray(model.predict_proba(rows_.numpy())))

    x, y = torch.from_numpy(x), torch.from_numpy(y)
    inside, outside = (x[:400], y[:400]), (x[400:], y[400:])
    reported, _ = membership.membership(probability, inside, outside)
    assert reported.variants["shadow models (LiRA)"] > reported.variants["loss alone"] + 0.05
    assert interval(reported)[1] == max(reported.variants[n] for n in RECIPES)


def test_a_row_that_drives_a_neuron_alone_is_read_from_the_change():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 6))
    signal = rng.normal(size=20)
    measured = rows.rows(signal[:, None] * x[:20], signal, x)
    assert measured.variants["candidates with every column right"] == 1
    assert measured.variants["drawn rows with every column right"] < 0.2
    noise = rows.rows(rng.normal(size=(20, 6)), rng.normal(size=20), x)
    assert interval(noise)[2] <= 0.05


def test_a_table_keeps_first_last_and_mean_of_a_bounded_sample():
    table = ChannelSummary(3, 2)
    table.add(torch.tensor([0, 2]), torch.tensor([[1.0, 0.0], [5.0, 5.0]]))
    table.add(torch.tensor([0]), torch.tensor([[3.0, 4.0]]))
    samples, views = table.views()
    assert samples.tolist() == [0, 2]
    assert views["first"].tolist() == [[1, 0], [5, 5]]
    assert views["last"].tolist() == [[3, 4], [5, 5]]
    assert views["mean"].tolist() == [[2, 2], [5, 5]]
    large = ChannelSummary(MAX_ROWS + 100, MAX_WIDTH * 2)
    large.add(torch.arange(MAX_ROWS + 100), torch.ones(MAX_ROWS + 100, MAX_WIDTH * 2))
    assert large.views()[1]["last"].shape == (MAX_ROWS, MAX_WIDTH)


@pytest.mark.trained
def test_who_has_no_columns_is_compared_with_guessing():
    scene, _ = planted(1.0)
    tape = heard(scene, Channel("server", "bank", "codes"), scene.parties["bank"].x_NF)
    findings = attack("apfed", scene, tape, {}, LINEAR)
    inverted = [each for each in findings if each.target == "columns"]
    assert inverted[0].baseline == pytest.approx(0, abs=0.05)
    assert inverted[0].score > 0.99


def test_a_category_of_one_row_does_not_blow_up_the_mean():
    rng = np.random.default_rng(0)
    known = rng.normal(size=(300, 2))
    target = np.concatenate([known, np.zeros((300, 1))], axis=1)
    draws = np.random.default_rng(0)
    rows = [set(draws.permutation(300)[: columns.KNOWN].tolist()) for _ in range(columns.DRAWS)]
    target[min(set.intersection(*rows)), 2] = 1.0  # each draw knows it
    measured = columns.inversion(None, {"last": known}, target, ("p", "q", "only one"))
    assert interval(measured)[1] > 0.6


@pytest.mark.parametrize("rows", [64, 200])
def test_codes_of_a_contrast_are_solved_from_its_gradient(rows):
    rng = torch.Generator().manual_seed(0)
    code = torch.randn(rows, 16, generator=rng)
    other = code + torch.randn(rows, 16, generator=rng)
    code.requires_grad_()
    loss = contrastive_loss(code, other, 1.0)
    (gradient,) = torch.autograd.grad(loss, code)
    truth = torch.nn.functional.normalize(other, dim=1)
    assert float((codes_behind(code, gradient) - truth).norm(dim=1).median()) < 0.01
    assert float((codes_behind(code, -gradient) - truth).norm(dim=1).median()) > 0.3


@pytest.mark.slow
def test_factors_are_found_from_few_known_rows_by_the_better_of_two_ways():
    """Twenty known rows of a partner whose weights move as a curve does."""
    rng = np.random.default_rng(0)
    num, steps, batch = 300, 120, 50
    x = rng.normal(size=(num, 3)) @ np.array([[1, 0.6, 0], [0, 0.8, 0.5], [0, 0, 0.9]])
    moved = np.linspace(0, 1, steps)[:, None] ** np.array([0.5, 1.0, 2.0]) * np.array([2, -1, 1.5])
    rows = np.stack([rng.permutation(num)[:batch] for _ in range(steps)])
    value = np.einsum("tbf,tf->tb", x[rows], moved) + 0.05 * rng.normal(size=(steps, batch))
    seen = factors.Measurements(torch.from_numpy(rows[None]), torch.from_numpy(value[None]))
    known, mean = rng.permutation(num)[:20], np.zeros_like(x)
    rest = np.setdiff1d(np.arange(num), known)
    spread = ((x[rest] - x[rest].mean(axis=0)) ** 2).mean()
    left = {
        solve.__name__: ((solve(seen, x, known, mean)[rest] - x[rest]) ** 2).mean() / spread
        for solve in (factors._alternated, factors._factorised)
    }
    chosen = factors._better(seen, x, known, mean)(known)[rest]
    assert ((chosen - x[rest]) ** 2).mean() / spread == min(left.values())
    assert min(left.values()) < 0.2
