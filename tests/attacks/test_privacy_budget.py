"""A party's budget of epsilon: a site without noise refuses, with it stops, whoever asks."""

import numpy as np
import pytest
import torch

from dovetail import data as dd
from dovetail.alignment import psi
from dovetail.errors import ConfigError, PartyError
from dovetail.federated import Local
from dovetail.methods import apfed
from dovetail.methods.apfed.local_data import PartnerData
from dovetail.methods.apfed.partners import party_fields
from dovetail.network.checkpoint import Restore, Save
from dovetail.node.partyfile import open_site
from dovetail.privacy import most_releases

FILE = """
[party]
name = "shop"
table = "shop.csv"
id = "person"

[policy]
{policy}

[apfed]
loss = "reconstruction"
encoder = [4]
{gradients}
"""

NOISED = "gradients = { clip = 0.5, noise = 4.0 }"


def site(folder, policy, gradients=NOISED):
    rng = np.random.default_rng(0)
    columns = {"person": np.arange(40), "x": rng.normal(size=40), "y": rng.normal(size=40)}
    dd.write_table(folder / "shop.csv", columns)
    if "algorithms" not in policy:
        policy = f'algorithms = ["align", "apfed-mixed"]\n{policy}'
    (folder / "shop.toml").write_text(FILE.format(policy=policy, gradients=gradients))
    return open_site(folder / "shop.toml")


def test_a_driver_that_asks_on_is_refused_when_the_budget_is_spent(tmp_path):
    party_site = site(tmp_path, "privacy = { epsilon = 5.0 }")
    x = party_site.table.encoded(party_site.fit_input()).joined()
    shared = dd.SharedRows("shop", x, torch.arange(40))
    local = Local("shop", secret=lambda: bytes(16))
    party = PartnerData(party_fields(party_site), shared=shared).party(local)
    party.handle(apfed.Begin((3,), 0, 0))
    codes = apfed.Codes(torch.arange(20), torch.randn(20, 3))
    most = most_releases(5.0, 2.0, 1e-5)
    before = party.state()
    for _ in range(most):
        party.handle(codes)
        party.restore(before)  # a driver that has it go back gets no more
    with pytest.raises(PartyError, match="has spent its budget of epsilon"):
        party.handle(codes)
    others = apfed.Codes(torch.arange(20, 40), torch.randn(20, 3))
    assert party.handle(others).gradient_BD.shape == (20, 3)


def test_a_run_that_made_room_for_others_has_spent_what_it_had_spent(shop_site):
    """Eight other runs drive it out of memory; it goes on from a state that knows of nothing."""
    ids = [f"P-{number:03d}" for number in range(40)]
    rest = (
        f'privacy = {{ epsilon = 5.0 }}\n[apfed]\nloss = "reconstruction"\nencoder = [4]\n{NOISED}'
    )
    site, most = shop_site(ids, rest), most_releases(5.0, 2.0, 1e-5)
    psi.align(site.engine("a1"), ids)

    def comes_back(site):
        return site.runs.open("a1/apfed/seed-0", "apfed", "bank")

    codes = apfed.Codes(torch.arange(20), torch.randn(20, 3))
    others = apfed.Codes(torch.arange(20, 40), torch.randn(20, 3))
    party = comes_back(site)
    party.handle(apfed.Begin((3,), 0, 0))
    party.handle(Save("apfed", 1, 0))
    for _ in range(most):
        party.handle(codes)
    for _ in range(2):
        party = comes_back(site)
        for each in (codes, others):  # which of its rows were released is not in the state
            with pytest.raises(PartyError, match="has spent its budget of epsilon"):
                party.handle(each)
        site.runs.restarted("bank")
        party.handle(Restore("apfed", 1, exactly=True))
        with pytest.raises(PartyError, match="has spent its budget of epsilon"):
            party.handle(codes)
        site = shop_site(ids, rest)  # another process of the shop


def test_a_budget_without_noise_is_refused(tmp_path):
    party_site = site(tmp_path, "privacy = { epsilon = 5.0 }", gradients="")
    with pytest.raises(ConfigError, match="its gradients are not noised; set gradients"):
        party_fields(party_site)


def test_a_budget_and_an_algorithm_that_is_not_counted_are_refused(tmp_path):
    policy = 'algorithms = ["align", "apfed-d"]\nprivacy = { epsilon = 5.0 }'
    with pytest.raises(ConfigError, match="what 'apfed-d' sends is not counted"):
        site(tmp_path, policy)


def test_the_smaller_of_policy_and_setting_counts(tmp_path):
    setting = "gradients = { clip = 0.5, noise = 4.0, epsilon = 3.0 }"
    assert (
        party_fields(site(tmp_path, "privacy = { epsilon = 5.0 }", setting)).gradients.epsilon == 3
    )
    assert (
        party_fields(site(tmp_path, "privacy = { epsilon = 2.0 }", setting)).gradients.epsilon == 2
    )
