"""A driver that breaks the rules of sums in secret that outlive lost members."""

import numpy as np
import pytest
import torch

from dovetail.errors import MessageError, TrainingError
from dovetail.methods.chfl import layers as chfl
from dovetail.methods.fedoptimus import masked as fedoptimus
from dovetail.methods.limits import rows_of
from dovetail.privacy import SecretSums
from dovetail.privacy.masks import PUBLIC_BYTES, to_fixed
from dovetail.privacy.sums import RoundsInMemory

NAMES = ("ada", "bea", "cy", "dan", "eve")
EVEN = (0.2,) * 5


class Round:
    """Five parties, and a driver that says to each what it likes."""

    def __init__(self, rounds=None, number=1):
        self.number = number
        self.rounds = rounds or {name: RoundsInMemory() for name in NAMES}
        self.sums = {
            name: SecretSums(name, run="r", driver="hub", rounds=self.rounds[name])
            for name in NAMES
        }
        self.values = {name: torch.full((6,), float(index)) for index, name in enumerate(NAMES)}
        self.keys = {name: each.lasting_key(number)[0] for name, each in self.sums.items()}

    def of(self, members):
        return [self.keys[member] for member in members]

    def parts(self, threshold=4, members=NAMES):
        self.sealed = {
            name: self.sums[name].parts(
                self.number,
                members,
                [self.keys[m] for m in members],
                [b""] * len(members),
                threshold,
            )
            for name in members
        }

    def masked(self, name, going_on=NAMES, weights=EVEN, bound_to="same"):
        index = sorted(NAMES).index(name)
        sealed = {sender: self.sealed[sender][index] for sender in going_on}
        return self.sums[name].lasting_share(
            self.number, NAMES, weights, sealed, self.values[name], bound_to=bound_to
        )


@pytest.mark.parametrize("threshold", [1, 2, 3, 6])
def test_secrets_are_split_for_a_quorum_only(threshold):
    made = Round()
    with pytest.raises(MessageError, match="its quorum asks for 4 or more"):
        made.parts(threshold)


def test_a_sum_over_few_is_not_opened():
    made = Round()
    made.parts()
    for name in NAMES:
        made.masked(name)
    for survivors in (("ada",), ("ada", "bea", "cy")):
        with pytest.raises(MessageError, match="left of a sum that needs 4 or more"):
            made.sums["ada"].opened(1, survivors)
    with pytest.raises(MessageError, match="each once"):
        made.sums["ada"].opened(1, ("ada", "bea", "cy", "cy"))
    with pytest.raises(MessageError, match="each once"):
        made.sums["ada"].opened(1, ("ada", "bea", "cy", "stranger"))
    with pytest.raises(MessageError, match="needs 4 or more"):
        made.sums["bea"].lasting_share(1, NAMES, EVEN, {}, made.values["bea"])


def test_weights_that_leave_one_among_the_survivors_are_not_opened():
    made = Round()
    made.parts()
    weights = (0.5, 0.001, 0.001, 0.001, 0.497)  # with all five, two weigh more than they may
    with pytest.raises(MessageError, match="nearly tells"):
        made.masked("ada", weights=weights)
    weights = (0.3, 0.01, 0.01, 0.01, 0.67 - 1e-9)
    with pytest.raises(MessageError, match="one party weighs"):
        made.masked("ada", weights=weights)
    weights = (0.38, 0.005, 0.005, 0.03, 0.58)
    with pytest.raises(MessageError, match="nearly tells"):
        made.masked("ada", weights=weights)
    made = Round()
    made.parts()
    weights = (0.56, 0.02, 0.02, 0.02, 0.38)  # fine with eve, and nearly ada's alone without her
    for name in NAMES:
        made.masked(name, weights=weights)
    with pytest.raises(MessageError, match=r"one party weighs 0\.9"):
        made.sums["bea"].opened(1, NAMES[:4])


def test_of_one_round_two_sums_that_differ_by_a_member_are_not_opened():
    """The driver falls, or says so: the same round anew, and one of five is called lost."""
    first = Round()
    first.parts()
    for name in NAMES:
        first.masked(name)
    for name in NAMES:
        first.sums[name].opened(1, NAMES)
    again = Round(first.rounds)
    again.parts()
    for name in NAMES:
        again.masked(name)
    for name in NAMES:
        with pytest.raises(MessageError, match="it has opened the sum of round 1 for others"):
            again.sums[name].opened(1, NAMES[:4])
        again.sums[name].opened(1, NAMES)  # the same again is what the driver has


def test_a_sum_of_each_kind_in_one_round_is_refused():
    """Sums of all members by single masks and of all but one by this differ by that one."""
    made = Round()
    keys = {name: sums.key(1)[0] for name, sums in made.sums.items()}
    for name, sums in made.sums.items():
        sums.share(1, NAMES, EVEN, [keys[m] for m in NAMES], [b""] * 5, made.values[name])
    made.parts()
    for name in NAMES:
        with pytest.raises(MessageError, match="has given its share of round 1 to another sum"):
            made.masked(name)


def test_the_driver_is_no_member_and_strangers_none():
    made = Round()
    with pytest.raises(MessageError, match="'hub' drives"):
        made.sums["ada"].parts(1, (*NAMES, "hub"), [made.keys["ada"]] * 6, [b""] * 6, 5)
    with pytest.raises(MessageError, match="do not hold the one 'ada' gave"):
        made.sums["ada"].parts(1, NAMES, [made.keys["bea"]] * 5, [b""] * 5, 4)
    with pytest.raises(MessageError, match="before its key"):
        made.sums["ada"].parts(2, NAMES, [made.keys["ada"]] * 5, [b""] * 5, 4)
    with pytest.raises(TrainingError, match="finite"):
        to_fixed(torch.tensor([np.nan]), 5)


@pytest.mark.parametrize("kind", [chfl.GiveParts, fedoptimus.GiveParts])
def test_certificates_of_members_are_no_rows(kind):
    """Else a policy's max_rows would refuse sums of many parties, each with a certificate."""
    keys_K, proofs = torch.zeros(4, PUBLIC_BYTES).byte(), torch.zeros(4 * 900).byte()
    message = kind(1, 3, ("ada", "bea", "cy", "dan"), keys_K, proofs, (900,) * 4)
    message.check()
    assert rows_of(message) == 4
