"""What APFed has beside the paper: validation rows, balanced partners, VICReg."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from test_apfed import active, active_data, assert_same_bits, full_alignment, passives, train_to_end

from dovetail.methods import apfed
from dovetail.methods.apfed.code_losses import clustering_loss, vicreg_loss
from dovetail.methods.apfed.unify import Balanced
from dovetail.network import Checkpoint, InProcess

ROWS = 300


def validated(**settings: float | None) -> apfed.Active:
    data = active_data(num_rows=ROWS)
    alignment = full_alignment("lab", num_rows=ROWS)
    return active(data, alignment, validation=0.2, **settings)


def helped(party: apfed.Active) -> InProcess:
    assert party.questions.alignment is not None
    helpers = passives({"lab": "reconstruction"}, full_alignment("lab"))
    helpers["lab"].shared = type(helpers["lab"].shared)(
        "lab", torch.randn(ROWS, 3), torch.arange(ROWS)
    )
    return InProcess(helpers, driver="clinic")


def test_the_model_is_that_of_the_epoch_with_the_least_loss_on_rows_that_train_nothing() -> None:
    party = validated(epochs=6)
    assert len(party.best.rows) == 60
    trained = torch.cat(
        [next(party.questions.labelled) for _ in range(party.questions.labelled.steps_per_pass)]
    )
    assert not torch.isin(trained, party.best.rows).any()
    losses: list[float] = []
    models = []
    party = validated(epochs=6)
    for _ in apfed.train(party, helped(party)):
        rows = party.best.rows
        party.solo.networks.eval()
        with torch.no_grad():
            losses.append(float(party.task_loss(party.encode(rows), rows)))
        models.append({k: v.clone() for k, v in party.encoder.state_dict().items()})
        party.solo.networks.train()
    best = losses.index(min(losses))
    assert party.best.epoch == best + 1
    kept = party.model().network.state_dict()
    for name, weight in models[best].items():
        assert torch.equal(kept[f"encoder.{name}"], weight)


def test_patience_ends_the_run_after_so_many_epochs_without_a_better() -> None:
    party = validated(epochs=200, patience=2)
    epochs = train_to_end(party, helped(party))
    assert epochs[-1].number == party.best.epoch + 2


def test_few_labelled_rows_keep_none_back() -> None:
    assert not len(active(validation=0.2).best.rows)


@pytest.mark.slow
def test_a_run_with_validation_goes_on_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(ROWS, 3)

    def run(num_epochs: int, folder: Path) -> apfed.Active:
        party = validated(epochs=5)
        engine_party = passives({"lab": "reconstruction"})["lab"]
        engine_party.shared = type(engine_party.shared)("lab", x, torch.arange(ROWS))
        checkpoint = Checkpoint(folder, about={})
        engine = InProcess(checkpoint.hosting({"lab": engine_party}), driver="clinic")
        for epoch in apfed.train(party, engine, checkpoint):
            if epoch.number == num_epochs:
                break
        return party

    whole = run(99, tmp_path / "whole")
    run(3, tmp_path / "stopped")
    resumed = run(99, tmp_path / "stopped")
    assert resumed.best.epoch == whole.best.epoch
    assert_same_bits(
        dict(whole.model().network.state_dict()), dict(resumed.model().network.state_dict())
    )


def task_gradient(party: apfed.Active) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """A batch's codes with their graph, dL_A/dh, and the encoder's gradient by it."""
    rows = torch.arange(10)
    party.solo.networks.eval()
    code = party.encode(rows)
    leaf = code.detach().requires_grad_()
    party.optimizer.zero_grad()
    party.task_loss(leaf, rows).backward()
    assert leaf.grad is not None
    torch.autograd.backward(code, leaf.grad, retain_graph=True)
    return (
        code,
        leaf.grad,
        [w.grad.clone() for w in party.encoder.parameters() if w.grad is not None],
    )


def balanced(party: apfed.Active) -> Balanced:
    assert isinstance(party.unify, Balanced)
    return party.unify


def test_a_partner_is_rho_times_as_long_as_the_task() -> None:
    party = active(balance=0.5)
    code, gradient, expected = task_gradient(party)
    balanced(party).add([(1.0, code, 1000 * gradient)])  # the same direction, far too long
    for weight, each in zip(party.encoder.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, 1.5 * each)


def test_what_points_against_the_task_is_left_out() -> None:
    party = active(balance=0.5)
    code, gradient, expected = task_gradient(party)
    balanced(party).add([(1.0, code, -gradient)])
    for weight, each in zip(party.encoder.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, each)


@pytest.mark.parametrize("loss", ["contrastive", "vicreg", "clustering"])
def test_balanced_partners_train_with_the_party(loss: str) -> None:
    party = active(alignment=full_alignment("lab"), balance=1.0, epochs=8, projection=4)
    before = [each.clone() for each in party.encoder.parameters()]
    engine = InProcess(passives({"lab": loss}), driver="clinic")
    epochs = train_to_end(party, engine)
    assert all(math.isfinite(epoch.loss) and not epoch.missed for epoch in epochs)
    assert not any(map(torch.equal, before, party.encoder.parameters()))


def test_vicreg_of_equal_spread_and_uncorrelated_codes_is_nothing() -> None:
    code = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert float(vicreg_loss(code, code)) == 0
    # Half as far apart: 1 - 0.5 * sqrt(4 / 3) at each party; a constant code: 1 - 0.01 at one.
    small = float(vicreg_loss(code / 2, code / 2))
    assert small == pytest.approx(2 * (1 - 0.5 * (4 / 3) ** 0.5), abs=1e-3)
    assert float(vicreg_loss(torch.zeros(4, 2), code)) == pytest.approx(1 + 0.99, abs=1e-3)


def test_the_clustering_loss_is_that_of_its_paper() -> None:
    """COMPLETER, Eq. (3) and (4), by hand for two clusters, and least where both parties agree."""
    code = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 1.0]])
    other = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 1.0]])
    a, p = code.softmax(1), other.softmax(1)
    joint = sum(torch.outer(a[i], p[i]) + torch.outer(p[i], a[i]) for i in range(3)) / 6
    marginal = joint.sum(0)
    information = (joint * (joint / torch.outer(marginal, marginal)).log()).sum()
    entropy = -(marginal * marginal.log()).sum()
    torch.testing.assert_close(clustering_loss(code, other), -information - 2 * 9 * entropy)
    apart = 20 * torch.eye(2)[[0, 1, 0, 1]]
    agreed, crossed = clustering_loss(apart, apart), clustering_loss(apart, apart[[0, 1, 1, 0]])
    assert float(agreed) == pytest.approx(-(1 + 18) * math.log(2), abs=1e-3)
    assert float(crossed - agreed) == pytest.approx(math.log(2), abs=1e-3)
