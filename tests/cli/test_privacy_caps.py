"""``policy.privacy`` caps what a party releases, whatever the run asks, in every counted method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from member_files import MEMBERS, SETTINGS, write_members

from dovetail import data as dd
from dovetail.errors import ConfigError, DovetailError, MessageError
from dovetail.federated import Local
from dovetail.methods import fedoptimus, vertical
from dovetail.methods.apfed.local_data import PartnerData
from dovetail.methods.apfed.partners import party_fields
from dovetail.methods.fedoptimus.local_data import Labels
from dovetail.methods.outcome import Outcome
from dovetail.node.partyfile import open_site
from dovetail.privacy import Accountant, Releasing, Stepping, epsilon, most_releases
from dovetail.runs.runfile import load_run
from dovetail.runs.setup import load_data, setup
from dovetail.settings.privacy import PrivateSteps, Release

NOISE = "{ clip = 1.0, noise = 20.0 }"

#: Method -> its noise in a run file.
NOISED = {
    "chfl": f"private = {NOISE}",
    "hyfem": f"private = {NOISE}",
    "fedoptimus": f"average_tops = false\nembeddings = {NOISE}\ngradients = {NOISE}",
}

CAP = "privacy = { epsilon = 2.0, delta = 1e-5 }"


def trained(folder: Path, method: str, settings: str, policy: str = CAP) -> Outcome:
    """A run of three party files, all of which cap epsilon at 2."""
    write_members(folder, method, policy=policy)
    section = SETTINGS[method].replace(f"[{method}]", f"[{method}]\n{settings}", 1)
    files = ", ".join(f'"{name}.toml"' for name in MEMBERS)
    text = f'method = "{method}"\nevaluate_every = 0\nparties = [{files}]\n{section}'
    (folder / "run.toml").write_text(text)
    run = load_run(folder / "run.toml")
    task = setup(run, 0, load_data(run))
    return task.train(method, 0, lambda *_: None)


@pytest.mark.slow
@pytest.mark.parametrize("method", NOISED)
def test_a_run_without_noise_or_with_a_larger_epsilon_is_refused(tmp_path, method):
    with pytest.raises(DovetailError, match=r"policy.privacy allows epsilon = 2 .* without noise"):
        trained(tmp_path, method, "average_tops = false" if method == "fedoptimus" else "")
    greedy = NOISED[method].replace("noise = 20.0", "noise = 20.0, epsilon = 9.0")
    with pytest.raises(DovetailError, match=r"allows epsilon = 2 .* the run asks for 9 of"):
        trained(tmp_path, method, greedy)


@pytest.mark.slow
@pytest.mark.parametrize("method", NOISED)
def test_what_leaves_stops_at_the_cap_and_the_run_ends_with_a_model(tmp_path, method):
    most = most_releases(2.0, 10.0, 1e-5)
    longer = {"chfl": "local_epochs = 8", "hyfem": "local_steps = 100", "fedoptimus": "epochs = 30"}
    name, _, value = longer[method].partition(" = ")
    settings = dict(SETTINGS)
    lines = [line for line in settings[method].splitlines() if not line.startswith(f"{name} =")]
    settings[method] = "\n".join(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SETTINGS, method, settings[method])
        outcome = trained(tmp_path, method, f"{NOISED[method]}\n{name} = {value}")
    spent = outcome.about["epsilon"]
    assert {each["from"] for each in spent} >= set(MEMBERS)
    assert all(each["stopped"] for each in spent)
    assert all(0 < each["releases"] <= most and each["epsilon"] <= 2.0 for each in spent)
    for party, model in outcome.models.items():
        weights = torch.cat([each.flatten() for each in model.network.parameters()])
        assert weights.isfinite().all(), party
    scores = next(iter(outcome.scores.values()))
    assert all(0 < each["accuracy"] <= 1 for each in scores.values())


def test_a_label_owner_with_a_cap_sends_no_weights_and_no_loss(tmp_path):
    with pytest.raises(DovetailError, match=r"set fedoptimus\.average_tops = false"):
        trained(tmp_path, "fedoptimus", f"embeddings = {NOISE}\ngradients = {NOISE}")
    labels = torch.arange(8) % 2
    task = dd.Classification(("no", "yes"))
    cap = Release(clip=1.0, noise=20.0, epsilon=2.0)
    budget = open_site(tmp_path / "north.toml").policy.section.privacy
    held = Labels("north", task, labels, scored={"test": labels}, release=cap)
    owner = fedoptimus.LabelOwner(held, Local("north", budget=budget))
    settings = fedoptimus.Config(embedding=3, top=(), batch_size=4, average_tops=False)
    ready = owner.handle(fedoptimus.messages.BeginLabels(settings.model_dump_json(), 0, ""))
    assert ready.num_test == 0
    batch = owner.handle(fedoptimus.Draw())
    learned = owner.handle(fedoptimus.Learn(batch.batch, torch.randn(4, 3), False))
    assert learned.loss == 0.0
    assert learned.top_P.numel() == 0
    # A coordinator that breaks the rules: weights that it may not have, a loss that is no number.
    with pytest.raises(MessageError, match="each label owner keeps its own top"):
        owner.handle(fedoptimus.Learn(learned.batch, torch.randn(4, 3), True))
    with torch.no_grad():
        for weight in owner.top.parameters():
            weight.fill_(3e38)
    answer = owner.handle(fedoptimus.Learn(learned.batch, torch.full((4, 3), 1e6), False))
    assert answer.gradient_BE.isfinite().all()
    assert answer.gradient_BE.abs().max() > 0
    assert answer.loss == 0.0


@pytest.mark.slow
def test_a_selection_and_a_cap_do_not_go_together(tmp_path):
    selection = "selection = { share = 0.5, rows = 30 }"
    with pytest.raises(DovetailError, match=r"fedoptimus\.selection\] asks for leaves without"):
        trained(tmp_path, "fedoptimus", f"{NOISED['fedoptimus']}\n{selection}")


PARTNER = """
[party]
name = "shop"
table = "shop.csv"
id = "person"
[policy]
algorithms = ["align", "tvfl"]
privacy = { epsilon = 5.0 }
[apfed]
encoder = [4]
"""


def partner(folder: Path, codes: str) -> Any:
    rng = np.random.default_rng(0)
    columns = {"person": np.arange(40), "x": rng.normal(size=40), "y": rng.normal(size=40)}
    dd.write_table(folder / "shop.csv", columns)
    (folder / "shop.toml").write_text(PARTNER + codes)
    site = open_site(folder / "shop.toml")
    x = site.table.encoded(site.fit_input()).joined()
    shared = dd.SharedRows("shop", x, torch.arange(40))
    partner = PartnerData(party_fields(site))
    local = Local("shop", secret=lambda: bytes(16))
    return replace(partner, shared=shared, test=shared, side="vertical").party(local)


def test_codes_of_classic_vertical_learning_stop_at_the_cap(tmp_path):
    with pytest.raises(ConfigError, match="its codes are not noised; set codes"):
        partner(tmp_path, "")
    party = partner(tmp_path, "codes = { clip = 0.5, noise = 4.0 }")
    party.handle(vertical.Open(0))
    most = most_releases(5.0, 2.0, 1e-5)
    asked = vertical.Encode(torch.arange(20), True, False)
    before = party.state()
    for number in range(most):
        test = vertical.Encode(torch.arange(20), False, True)  # the same rows, as of a prediction
        assert party.handle(test if number % 2 else asked).code_BD.abs().sum() > 0
        party.restore(before)  # a driver that has it go back gets no more
        party.handle(vertical.Open(0))  # nor one that begins anew
    assert not party.handle(asked).code_BD.any()
    assert not party.handle(vertical.Encode(torch.arange(20), False, True)).code_BD.any()
    party.handle(vertical.CodeGradient(torch.ones(20, 4)))  # which it cannot learn from
    others = vertical.Encode(torch.arange(20, 40), True, False)
    assert party.handle(others).code_BD.abs().sum() > 0


def test_a_sample_that_is_named_twice_is_counted_twice():
    account = Accountant(2.0, 1e-5, torch.zeros(0, dtype=torch.int64))
    account.add(torch.tensor([3, 3, 3, 1]))
    assert account.largest() == 3
    assert account.epsilon() == epsilon(3, 2.0, 1e-5)
    most = most_releases(5.0, 2.0, 1e-5)
    released = Releasing(Release(clip=1.0, noise=4.0, epsilon=5.0), "codes", torch.Generator())
    many = torch.zeros(most + 1, dtype=torch.int64)
    assert not released.or_zeros("driver", many, torch.ones(most + 1, 2)).any()
    assert released.or_zeros("driver", many[1:], torch.ones(most, 2)).any()
    assert not released.or_zeros("driver", many[:1], torch.ones(1, 2)).any()


def test_a_row_that_has_no_gradient_moves_no_weight_and_no_noise_is_drawn_twice():
    network = torch.nn.Linear(2, 1)
    for weight in network.parameters():
        torch.nn.init.constant_(weight, 0.5)  # the first row's gradient is longer than the clip
    x, rows = torch.tensor([[1.0, 2.0], [torch.inf, 1.0]]), torch.arange(2)

    def loss(call: Any, one: torch.Tensor) -> torch.Tensor:
        return call(one).square().sum()

    stepping = Stepping(PrivateSteps(clip=1.0, noise=1e-6), "north", 2, None)
    stepping.gradient(network, loss, rows, x)
    moved = network.weight.grad.clone()
    assert moved.norm() < 0.51  # of the first row alone, cut to 1, over two rows
    assert moved.norm() > 0.4
    before = stepping.state()
    loud = Stepping(PrivateSteps(clip=1.0, noise=5.0), "north", 2, None)
    loud.restore(before)
    drawn = []
    for _ in range(2):
        loud.restore(before)
        loud.gradient(network, loss, rows, x)
        drawn.append(network.weight.grad.clone())
    assert not torch.equal(*drawn)
