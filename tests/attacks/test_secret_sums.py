"""A coordinator of CHFL with ``secure = true`` tries to read one member's common column.

It knows the code, the settings and the seed, and sends whatever it likes. Members run as they are:
their keys are honest, and so are their shares.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from dovetail.data import Classification, PartyData, table_from_arrays
from dovetail.errors import ConfigError, DovetailError, MessageError, PartyError
from dovetail.federated import Local
from dovetail.methods.chfl import layers as chfl
from dovetail.network.certificates import (
    Authority,
    certificate_pem,
    key_pem,
    new_key,
)
from dovetail.network.checkpoint import Checkpointed, Restore, Save
from dovetail.network.credentials import Credentials
from dovetail.network.quota import Quota
from dovetail.network.renewal import Certified
from dovetail.node.limits import GivenSums
from dovetail.privacy import MaskKeys, SecretSums, from_fixed, total

COMMON = ("age", "dose")
NAMES = ("ada", "bea", "cy", "dan")
CONFIG = chfl.Config(
    widths=(6, 4), rounds=3, local_epochs=1, batch_size=8, learning_rate=0.01, secure=True
)
EVEN = (0.25,) * 4


def member(name: str, sums: SecretSums | None = None, *, secret_only: bool = False) -> chfl.Member:
    rng = np.random.default_rng(list(name.encode()))
    x = rng.normal(size=(24, 4))
    table = table_from_arrays(name, dict(zip((*COMMON, "a", "b"), x.T, strict=True)))
    labels = torch.from_numpy(x[:, 0] > 0).long()
    data = PartyData(name, np.arange(24), labels=labels, tables={"columns": table})
    local_data = chfl.ChflData(data, Classification((0, 1)), COMMON, secure=secret_only)
    return chfl.Member(local_data, Local(name, sums=lambda members: sums))


def begin(config: chfl.Config = CONFIG) -> chfl.Begin:
    """What opens a run, on columns that all encode as their numbers are."""
    columns = [dict(name=name, median=0, mean=0, scale=1, flag=False) for name in COMMON]
    agreed = json.dumps({"party": "all", "columns": [{"kind": "number", **c} for c in columns]})
    return chfl.Begin(config.model_dump_json(), 5, COMMON, agreed)


class Attacker:
    """A coordinator that speaks to each member as it likes."""

    def __init__(self, members: Mapping[str, chfl.Member | Checkpointed]) -> None:
        self.members = dict(members)
        coordinator = chfl.Coordinator(CONFIG, seed=5)
        for each in self.members.values():
            each.handle(begin())
        coordinator.num_common = len(COMMON)
        self.theta_P = torch.zeros(len(self.honest(next(iter(members)))))

    def honest(self, name: str) -> Tensor:
        """What only this member should know."""
        member = self.members[name]
        member = member.party if isinstance(member, Checkpointed) else member  # type: ignore[assignment]
        assert isinstance(member, chfl.Member)
        return member.common_vector()

    def train(self, number: int) -> None:
        for each in self.members.values():
            each.handle(chfl.Average(number - 1, 0, self.theta_P))
            each.handle(chfl.Train(number))

    def keys(self, number: int, names: Sequence[str]) -> dict[str, chfl.PublicKey]:
        given = {name: self.members[name].handle(chfl.GiveKey(number)) for name in names}
        return {name: key for name, key in given.items() if isinstance(key, chfl.PublicKey)}

    def share(
        self,
        number: int,
        name: str,
        keys: Mapping[str, chfl.PublicKey],
        weights: Sequence[float],
    ) -> Tensor:
        request = chfl.GiveShare(
            number,
            tuple(weights),
            tuple(keys),
            torch.stack([each.key for each in keys.values()]),
            torch.cat([each.proof for each in keys.values()]),
            tuple(len(each.proof) for each in keys.values()),
        )
        answer = self.members[name].handle(request)
        assert isinstance(answer, chfl.Share)
        return answer.masked_P

    def sum(self, number: int, names: Sequence[str], weights: Sequence[float]) -> Tensor:
        """The sum as the coordinator has it, everybody told the same."""
        keys = self.keys(number, names)
        return from_fixed(total(self.share(number, name, keys, weights) for name in names))


@pytest.fixture
def attacker() -> Attacker:
    made = Attacker({name: member(name) for name in NAMES})
    made.train(1)
    return made


def test_an_honest_sum_is_the_mean(attacker: Attacker) -> None:
    mean = sum(0.25 * attacker.honest(name) for name in NAMES)
    torch.testing.assert_close(attacker.sum(1, NAMES, EVEN), mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ((1.0, 0.0, 0.0, 0.0), "lie between 0 and 1, got 0"),
        ((0.999997, 1e-6, 1e-6, 1e-6), r"one party weighs 1 and two 1 nearly tells"),
        ((0.5, 0.5 - 2e-9, 1e-9, 1e-9), r"one party weighs 0.5 and two 1 nearly tells"),
        ((1.0, 1.0, 1.0, 1.0), "add up to 1, got 4"),
        ((0.25, 0.25, 0.25, float("nan")), "lie between 0 and 1"),
        ((2.0, -0.5, -0.25, -0.25), "lie between 0 and 1"),
    ],
)
def test_weights_that_leave_one_member_in_the_sum_are_refused_by_each(
    attacker: Attacker, weights: tuple[float, ...], words: str
) -> None:
    keys = attacker.keys(1, NAMES)
    for name in NAMES:
        with pytest.raises(MessageError, match=words):
            attacker.share(1, name, keys, weights)


def test_weights_told_differently_to_each_member_give_noise(attacker: Attacker) -> None:
    """(1, 0, 0, 0) as nearly as the caps allow, from views that are each fine by themselves."""
    keys = attacker.keys(1, NAMES)
    shares = []
    for index, name in enumerate(NAMES):
        weight = 0.6 if not index else 0.01
        others = [(1 - weight) / 3] * 3
        weights = [*others[:index], weight, *others[index:]]
        shares.append(attacker.share(1, name, keys, weights))
    got = from_fixed(total(shares))
    # Uniform over 2^64 / 2^32: nothing of a column whose values lie near 0.
    assert got.abs().median() > 2.0**28
    assert attacker.honest("ada").abs().max() < 10


@pytest.mark.parametrize("trick", ["weights", "rate", "encoding", "trained before", "none"])
def test_who_starts_from_something_else_gives_noise(trick: str) -> None:
    """All but ada are brought to weights that the coordinator knows, so the sum tells ada's."""
    attacker = Attacker({name: member(name) for name in NAMES})
    known = torch.zeros_like(attacker.theta_P)
    given = torch.randn(len(known), generator=torch.Generator().manual_seed(1))
    shown = given if trick in ("rate", "trained before", "none") else known
    for name in NAMES[1:]:
        each = attacker.members[name]
        if trick == "rate":
            each.handle(begin(CONFIG.model_copy(update={"learning_rate": 1e-30})))
        if trick == "encoding":  # every number is 0, and so is every gradient but the biases'
            far = begin().agreed.replace('"scale": 1,', '"scale": 1e30,')
            each.handle(chfl.Begin(begin().settings, 5, COMMON, far))
    for name in NAMES:
        each = attacker.members[name]
        each.handle(chfl.Average(0, 0, given if name == "ada" else shown))
        each.handle(chfl.Train(1))
        if trick == "trained before" and name != "ada":
            each.handle(chfl.Average(0, 0, given))
    if trick == "trained before":
        with pytest.raises(PartyError, match="has no weights to sum for round 1"):
            attacker.sum(1, NAMES, EVEN)
        return
    got = attacker.sum(1, NAMES, EVEN)
    mean = sum(0.25 * attacker.honest(name) for name in NAMES)
    assert torch.allclose(got, mean, atol=1e-6) is (trick == "none")
    assert bool(got.abs().median() > 2.0**28) is (trick != "none")


def test_a_rate_of_one_s_own_is_refused_where_sums_are_secret() -> None:
    apart = {"ada": {"learning_rate": 1e-30}}
    with pytest.raises(ValidationError, match="by_party sets a learning_rate of ada, and with sec"):
        chfl.Config(**{**CONFIG.model_dump(), "by_party": apart})
    chfl.Config(**{**CONFIG.model_dump(), "by_party": {"ada": {"mu": 0.5}}})


def test_pairs_of_one_round_are_refused(attacker: Attacker) -> None:
    """Each member's column follows from the sums a + b, b + c and a + c."""
    for pair in itertools.combinations(NAMES[:3], 2):
        with pytest.raises(MessageError, match="a sum over 2 tells one party's values to another"):
            attacker.sum(1, pair, (0.5, 0.5))


def test_two_sums_of_one_round_are_refused(attacker: Attacker) -> None:
    """The difference of a + b + c + d and a + b + c is d's column."""
    attacker.sum(1, NAMES, EVEN)
    keys = attacker.keys(1, NAMES[:3])
    for name in NAMES[:3]:
        with pytest.raises(MessageError, match="given its share of round 1 to another sum"):
            attacker.share(1, name, keys, (1 / 3,) * 3)
    # Nor at other weights of the same members, from which a column would follow, too.
    keys = attacker.keys(1, NAMES)
    with pytest.raises(MessageError, match="given its share of round 1 to another sum"):
        attacker.share(1, "ada", keys, (0.4, 0.2, 0.2, 0.2))
    # The same once more: a coordinator that fell repeats its round, and learns nothing new.
    again = attacker.sum(1, NAMES, EVEN)
    torch.testing.assert_close(again, sum(0.25 * attacker.honest(name) for name in NAMES))


def test_a_share_that_comes_late_is_worth_nothing(attacker: Attacker) -> None:
    """The coordinator says that dan was lost, and keeps his share for the others' second sum."""
    keys = attacker.keys(1, NAMES)
    late = {name: attacker.share(1, name, keys, EVEN) for name in NAMES}
    again = attacker.keys(1, NAMES[:3])
    for name in NAMES[:3]:
        with pytest.raises(MessageError, match="so this round has no other"):
            attacker.share(1, name, again, (1 / 3,) * 3)
    assert from_fixed(late["dan"]).abs().median() > 2.0**28


def test_one_key_serves_no_second_share(attacker: Attacker) -> None:
    """Two shares under the same masks: their difference would have none."""
    keys = attacker.keys(1, NAMES)
    attacker.share(1, "ada", keys, EVEN)
    with pytest.raises(MessageError, match="a key pair masks once"):
        attacker.share(1, "ada", keys, EVEN)


@pytest.mark.parametrize("trick", ["train again", "begin again", "restore", "forget", "restart"])
def test_no_message_makes_a_member_forget_that_it_has_shared(tmp_path: Path, trick: str) -> None:
    def member_of(name: str) -> Checkpointed:
        rounds = GivenSums(Quota(tmp_path / name), "hub", "a1/chfl")
        sums = SecretSums(name, run="a1/chfl", driver="hub", rounds=rounds)
        return Checkpointed(member(name, sums), tmp_path / name / "states")

    for name in NAMES:
        (tmp_path / name).mkdir()
    attacker = Attacker({name: member_of(name) for name in NAMES})
    for each in attacker.members.values():
        each.handle(Save("chfl", 0, 0))
    attacker.train(1)
    attacker.sum(1, NAMES, EVEN)
    for name, each in list(attacker.members.items()):
        match trick:
            case "begin again":
                each.handle(begin())
            case "restore":
                each.handle(Save("chfl", 1, 1))
                each.handle(Restore("chfl", 1, exactly=True))
            case "forget":
                each.handle(Restore("chfl", 0, exactly=True))
            case "restart":  # of its process; or the driver opened eight other runs
                attacker.members[name] = member_of(name)
                attacker.members[name].resume_latest()  # type: ignore[union-attr]
    attacker.train(1)
    keys = attacker.keys(1, NAMES[:3])
    with pytest.raises(MessageError, match="given its share of round 1 to another sum"):
        attacker.share(1, "ada", keys, (1 / 3,) * 3)


def test_a_run_in_the_clear_is_refused_by_who_shares_in_secret_only() -> None:
    plain = CONFIG.model_copy(update={"secure": False})
    with pytest.raises(ConfigError, match="refuses to show its common column"):
        member("ada", secret_only=True).handle(begin(plain))


# --- Keys that the coordinator makes itself ------------------------------------------------------


def credentials(authority: Authority, name: str, now: datetime) -> Credentials:
    key = new_key()
    certificate = authority.issue(name, key.public_key(), now=now, days=2)
    return Credentials(authority.pem, certificate_pem(certificate), key_pem(key))


@pytest.fixture(scope="module")
def shown() -> dict[str, Credentials]:
    """Everybody's certificate of one authority; the coordinator has one, too."""
    now = datetime.now(UTC)
    authority = Authority.create(now=now)
    return {name: credentials(authority, name, now) for name in (*NAMES, "hub", "eve")}


def certified(shown: dict[str, Credentials], **settings: object) -> Attacker:
    made = Attacker(
        {
            name: member(
                name,
                SecretSums(  # type: ignore[arg-type]
                    name, run="a1", identity=Certified(shown[name]), driver="hub", **settings
                ),
            )
            for name in NAMES
        }
    )
    made.train(1)
    return made


def in_the_middle(
    keys: Mapping[str, chfl.PublicKey], victim: str
) -> tuple[dict[str, chfl.PublicKey], dict[str, SecretSums]]:
    """Keys of the coordinator's own in place of all but the victim's, each under its old proof."""
    made = {name: SecretSums(name) for name in keys if name != victim}
    put = {
        name: key
        if name == victim
        else chfl.PublicKey(torch.tensor(list(made[name].key(1)[0]), dtype=torch.uint8), key.proof)
        for name, key in keys.items()
    }
    return put, made


def test_signed_keys_are_summed_as_before(shown: dict[str, Credentials]) -> None:
    attacker = certified(shown)
    mean = sum(0.25 * attacker.honest(name) for name in NAMES)
    torch.testing.assert_close(attacker.sum(1, NAMES, EVEN), mean, rtol=1e-5, atol=1e-6)


def test_keys_put_in_place_of_the_members_own_are_refused(shown: dict[str, Credentials]) -> None:
    attacker = certified(shown)
    keys, _ = in_the_middle(attacker.keys(1, NAMES), "ada")
    with pytest.raises(MessageError, match="of party 'bea' is not what it has signed"):
        attacker.share(1, "ada", keys, EVEN)


def test_without_certificates_whoever_carries_keys_sees_through_the_masks(
    attacker: Attacker,
) -> None:
    """Why they are signed: this is what the coordinator gets where they are not."""
    keys, sums_put = in_the_middle(attacker.keys(1, NAMES), "ada")
    shares = [attacker.share(1, "ada", keys, EVEN)]
    publics = [bytes(key.key.tolist()) for key in keys.values()]
    nothing = torch.zeros(len(attacker.theta_P))
    for sums in sums_put.values():
        context = attacker.members["ada"].weights_digest  # type: ignore[union-attr]  # as it told her
        shares.append(sums.share(1, NAMES, EVEN, publics, [b""] * 4, nothing, bound_to=context))
    got = 4 * from_fixed(total(shares))
    torch.testing.assert_close(got, attacker.honest("ada"), rtol=1e-5, atol=1e-6)


def proof_by(shown: dict[str, Credentials], name: str, statement: bytes) -> Tensor:
    return torch.tensor(list(Certified(shown[name]).sign(statement)), dtype=torch.uint8)


def test_keys_signed_by_somebody_else_for_another_round_or_run_are_refused(
    shown: dict[str, Credentials],
) -> None:
    attacker = certified(shown)
    honest = attacker.keys(1, NAMES)
    mine = torch.tensor(list(MaskKeys().public), dtype=torch.uint8)
    public = bytes(mine.tolist())
    statement = SecretSums("bea", run="a1")._statement(1, "bea", public)
    forged = {**honest, "bea": chfl.PublicKey(mine, proof_by(shown, "hub", statement))}
    with pytest.raises(MessageError, match="'bea' is signed with the certificate of another"):
        attacker.share(1, "ada", forged, EVEN)

    now = datetime.now(UTC)
    other = {"bea": credentials(Authority.create(now=now), "bea", now)}  # his own authority
    forged["bea"] = chfl.PublicKey(mine, proof_by(other, "bea", statement))
    with pytest.raises(MessageError, match="of an authority that is not believed here"):
        attacker.share(1, "ada", forged, EVEN)

    for run, number in (("a2", 1), ("a1", 2)):  # bea's own words, of another sum
        statement = SecretSums("bea", run=run)._statement(number, "bea", public)
        forged["bea"] = chfl.PublicKey(mine, proof_by(shown, "bea", statement))
        with pytest.raises(MessageError, match="of party 'bea' is not what it has signed"):
            attacker.share(1, "ada", forged, EVEN)

    forged["bea"] = chfl.PublicKey(mine, torch.zeros(0, dtype=torch.uint8))
    with pytest.raises(MessageError, match="of party 'bea' is not signed"):
        attacker.share(1, "ada", forged, EVEN)
    for junk in (b"\x00", b"\xff" * 40, bytes(700)):
        forged["bea"] = chfl.PublicKey(mine, torch.tensor(list(junk), dtype=torch.uint8))
        with pytest.raises(MessageError, match="of party 'bea' holds no certificate"):
            attacker.share(1, "ada", forged, EVEN)


def test_a_coordinator_that_takes_part_under_its_own_certificate_is_refused(
    shown: dict[str, Credentials],
) -> None:
    attacker = certified(shown)
    keys = attacker.keys(1, ("ada", "bea"))
    for extra in ("hub", "eve"):
        sums = SecretSums(extra, run="a1", identity=Certified(shown[extra]))
        public, proof = sums.key(1)
        keys[extra] = chfl.PublicKey(
            torch.tensor(list(public), dtype=torch.uint8),
            torch.tensor(list(proof), dtype=torch.uint8),
        )
    with pytest.raises(MessageError, match="'hub' drives, and may not be one of those it sums"):
        attacker.share(1, "ada", keys, EVEN)
    # A friend of his with a certificate is only kept out by those who say whom they sum with.
    attacker = certified(shown, members=NAMES)
    honest = attacker.keys(1, ("ada", "bea"))
    with pytest.raises(MessageError, match=r"'eve': the key members of its party file does not"):
        attacker.share(1, "ada", {**honest, "eve": keys["eve"]}, (0.4, 0.3, 0.3))


def test_a_coordinator_with_honest_code_hears_why_and_ends(shown: dict[str, Credentials]) -> None:
    """One of four has most rows: weighted by them its column would show."""
    from dovetail.network import InProcess

    members = {name: member(name) for name in NAMES}
    config = CONFIG.model_copy(update={"weights": "samples"})
    coordinator = chfl.Coordinator(config, seed=5)
    rounds = chfl.train(coordinator, InProcess(members, driver="hub"))
    first = next(rounds)
    assert first.participants == NAMES
    coordinator.num_rows["ada"] = 1000
    with pytest.raises(DovetailError, match=r"one party weighs 0\.9.* let weights be .even."):
        next(rounds)
