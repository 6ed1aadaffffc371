"""Nobody is believed that rows are shared: not a driver whose ids match nothing, not one that has
some of them, no partner, and not who carries messages. What was got before: all 320 places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from curious import WORKERS, Driver, multiples, points_of, secret, tensor, times

from dovetail.alignment import Responder, align, psi, relay
from dovetail.errors import AlignmentError, PartyError
from dovetail.network import Engine, InProcess, Message, decode, encode

SHOP_IDS = [f"customer-{number}" for number in range(320)]
OUTSIDE = [f"nobody-{number}" for number in range(320)]
ALL = np.arange(320)

#: The attacker's secret.
MINE = 77


def attack(shop: Responder, batch_size: int = 512) -> Driver:
    return Driver(InProcess({"shop": shop}, driver="bank", through_bytes=True), "shop", batch_size)


def no_rows(shop: Responder) -> bool:
    with pytest.raises(AlignmentError, match="not aligned with anyone"):
        shop.rows_S  # noqa: B018
    return True


#: What a driver that has no id can answer c H(y) with: (asked, theirs, doubled) -> answers.
ANSWERS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "its secret, as if it had the ids": lambda asked, theirs, doubled: times(MINE, asked),
    "the question": lambda asked, theirs, doubled: asked,
    "zeros": lambda asked, theirs, doubled: np.zeros_like(asked),
    "what it was sent back": lambda asked, theirs, doubled: doubled[: len(asked)],
    "the victim's points": lambda asked, theirs, doubled: theirs[: len(asked)],
    "those, times its secret": lambda asked, theirs, doubled: times(MINE, theirs[: len(asked)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("num_claimed", [1, 320])
def test_a_driver_whose_ids_match_nothing_is_given_no_row(answer: Any, num_claimed: int) -> None:
    shop = Responder("shop", SHOP_IDS)
    bank = attack(shop)
    theirs, doubled = bank.compare(times(MINE, points_of(OUTSIDE)))
    bank.claim(ALL[:num_claimed], ALL[:num_claimed])  # this alone was believed
    assert no_rows(shop)
    words = f"the {num_claimed} places that 'bank' claims.*{num_claimed} of {num_claimed} that were"
    with pytest.raises(PartyError, match=words):
        bank.prove(lambda asked: answer(asked, theirs, doubled))
    assert no_rows(shop)
    with pytest.raises(PartyError, match="has no alignment under way"):  # there is one try
        bank.ask(psi.GetProve(0))


def test_one_id_that_is_shared_opens_no_row_but_its_own() -> None:
    """Multiples of one shared id make values that are equal on both sides for any place: with the
    right place of that id in mind, all 320 doubly blinded values can be shown."""
    shop = Responder("shop", SHOP_IDS)
    bank = attack(shop)
    one = points_of(SHOP_IDS[:1])
    mine = multiples(one[0], 320)
    theirs, doubled = bank.compare(mine)
    shown = [times(8 * k, theirs)[:, :16] for k in (1, 2, 320)]
    right = [
        np.flatnonzero((each == doubled[k - 1]).all(axis=1))
        for each, k in zip(shown, (1, 2, 320), strict=True)
    ]
    assert len({int(guess[0]) for guess in right}) == 1  # it knows the place, and has such values
    indices = np.roll(ALL, int(right[0][0]))
    bank.claim(indices, ALL)
    with pytest.raises(PartyError, match=r"of 320 that were checked"):
        bank.prove(lambda asked: times(8, asked))
    assert no_rows(shop)


@pytest.mark.parametrize("num_shared", [1, 40, 319])
def test_one_false_place_beside_those_that_are_shared_is_found(num_shared: int) -> None:
    shop = Responder("shop", SHOP_IDS)
    bank = attack(shop)
    ids = SHOP_IDS[:num_shared] + OUTSIDE[:1]
    theirs, doubled = bank.compare(times(MINE, points_of(ids)))
    mine, indices = psi.matches(doubled, np.ascontiguousarray(times(MINE, theirs)[:, :16]))
    assert len(mine) == num_shared
    unshared = next(index for index in ALL if index not in indices)
    bank.claim(np.append(indices, unshared), np.append(mine, num_shared))
    with pytest.raises(PartyError, match=f"1 of {num_shared + 1} that were checked"):
        bank.prove(lambda asked: times(MINE, asked))
    assert no_rows(shop)


def test_two_places_exchanged_are_found() -> None:
    shop = Responder("shop", SHOP_IDS)
    bank = attack(shop)
    theirs, doubled = bank.compare(times(MINE, points_of(SHOP_IDS[:2])))
    mine, indices = psi.matches(doubled, np.ascontiguousarray(times(MINE, theirs)[:, :16]))
    bank.claim(indices, mine[::-1].copy())
    with pytest.raises(PartyError, match="2 of 2 that were checked"):
        bank.prove(lambda asked: times(MINE, asked))
    assert no_rows(shop)


@pytest.mark.slow
def test_of_many_places_a_part_is_checked_and_a_tenth_of_false_ones_does_not_pass() -> None:
    """It passes with probability 0.9^400 = 5e-19."""
    ids = [f"customer-{number}" for number in range(2000)]
    shop = Responder("shop", ids)
    bank = attack(shop, 16_384)
    theirs, doubled = bank.compare(times(MINE, points_of(ids[:1800] + OUTSIDE[:200])))
    mine, indices = psi.matches(doubled, np.ascontiguousarray(times(MINE, theirs)[:, :16]))
    rest_local, rest_indices = (np.setdiff1d(np.arange(2000), each) for each in (mine, indices))
    bank.claim(np.append(indices, rest_indices), np.append(mine, rest_local))
    with pytest.raises(PartyError, match=r"the 2000 places.*of 400 that were checked"):
        bank.prove(lambda asked: times(MINE, asked))
    assert no_rows(shop)


def test_small_messages_make_no_fewer_proofs() -> None:
    shop = Responder("shop", SHOP_IDS)
    bank = attack(shop, batch_size=1)
    bank.compare(times(MINE, points_of(OUTSIDE[:3])))
    bank.claim(ALL[:3], ALL[:3])
    assert bank.ask(psi.GetProve(0), psi.Prove).num_questions == 3
    with pytest.raises(PartyError, match="batch 1 next, each once, got batch 0"):
        bank.ask(psi.GetProve(0))


def test_claims_that_are_true_are_believed() -> None:
    """The attacker's tool does what an honest driver does, so that its failures mean something."""
    shop = Responder("shop", SHOP_IDS)
    bank = attack(shop, batch_size=7)
    theirs, doubled = bank.compare(times(MINE, points_of(SHOP_IDS[10:50] + OUTSIDE)))
    mine, indices = psi.matches(doubled, np.ascontiguousarray(times(MINE, theirs)[:, :16]))
    bank.claim(indices, mine)
    assert bank.prove(lambda asked: times(MINE, asked)) == 40
    assert sorted(shop.rows_S[shop.rows_S >= 0].tolist()) == list(range(10, 50))


# --- Phases ---------------------------------------------------------------------------------------

PLACES = psi.Places(0, 2, *3 * [torch.arange(2)])
PROOFS = psi.Proofs(0, torch.zeros(2, 16, dtype=torch.uint8))
POINTS = tensor(times(MINE, points_of(OUTSIDE[:2])))
QUESTION = psi.Prove(0, 1, tensor(points_of(SHOP_IDS[:1])))

#: In turn, what an intersection of 2 and 2 ids is made of.
STEPS: list[Message] = [
    psi.Blinded(0, POINTS),
    psi.GetBlinded(0),
    psi.GetDoubled(0),
    psi.Prove(0, 1, tensor(points_of(SHOP_IDS[:1]))),
    PLACES,
    psi.GetProve(0),
    PROOFS,
]


@pytest.mark.parametrize("num_done", range(len(STEPS)))
def test_each_phase_is_answered_once_and_in_its_turn(num_done: int) -> None:
    for ahead in range(len(STEPS)):
        shop = Responder("shop", SHOP_IDS[:2])
        bank = attack(shop)
        bank.begin(2)
        for step in STEPS[:num_done]:
            bank.ask(step)
        # The fourth, asking the other for proofs, may be left out.
        if ahead == num_done or (num_done, ahead) == (3, 4):
            continue
        with pytest.raises(PartyError, match="party 'shop'"):
            bank.ask(STEPS[ahead])
        assert no_rows(shop)


@pytest.mark.parametrize("message", STEPS[3:], ids=lambda message: message.wire_name())
def test_counting_is_no_way_to_ask_for_one_id_or_to_claim_one(message: Message) -> None:
    """``Prove`` in cardinality mode would say of any id whether it is there."""
    shop = Responder("shop", SHOP_IDS[:2])
    bank = attack(shop)
    bank.begin(2, "cardinality")
    bank.send(POINTS.numpy())
    bank.theirs(), bank.doubled()
    with pytest.raises(PartyError, match=r"not in mode 'cardinality'|asks before|not asked for"):
        bank.ask(message)
    assert no_rows(shop)


def test_a_driver_asks_for_no_more_proofs_than_there_can_be_rows() -> None:
    shop = Responder("shop", SHOP_IDS)
    bank = attack(shop)
    bank.compare(times(MINE, points_of(OUTSIDE[:3])))
    with pytest.raises(PartyError, match=r"expected 1\.\.3 questions"):
        bank.ask(psi.Prove(0, 320, tensor(points_of(SHOP_IDS))))
    bank.ask(psi.Prove(0, 3, tensor(points_of(SHOP_IDS[:3]))))
    with pytest.raises(PartyError, match="each once"):
        bank.ask(psi.Prove(0, 3, tensor(points_of(SHOP_IDS[3:6]))))


# --- The other side -------------------------------------------------------------------------------


class Liar:
    """A partner that has one id, and makes its points and answers from it to share all ids."""

    accepts = Responder.accepts
    secret = secret(MINE)

    def handle(self, message: Message) -> Message:
        one = points_of(SHOP_IDS[:1])[0]
        match message:
            case psi.Begin():
                self.num, self.theirs = message.num_ids, np.empty((0, 32), np.uint8)
                return psi.Ready(self.num)
            case psi.Blinded():
                self.theirs = message.points_B32.numpy()
                return psi.Received(message.batch)
            case psi.GetBlinded():
                return psi.Blinded(0, tensor(multiples(one, self.num)))
            case psi.GetDoubled():  # it bets that the first point is the id that it has
                values = multiples(self.theirs[0], self.num)
                return psi.Doubled(0, tensor(values[:, :16]))
            case psi.Prove():
                self.asked = message.num_questions
                return psi.Proofs(0, tensor(times(8, message.points_B32.numpy())[:, :16]))
            case psi.Places():
                return psi.Received(0)
        raise AssertionError(message)


def test_a_partner_that_has_one_id_does_not_get_codes_of_all() -> None:
    liar, outcomes = Liar(), []
    for _ in range(60):  # the bet is won in a third of all runs
        engine = InProcess({"shop": liar}, driver="bank")
        try:
            outcomes.append(str(align(engine, SHOP_IDS[:3]).overlap["shop"]))
        except PartyError as refused:
            outcomes.append(str(refused))
    caught = [words for words in outcomes if words != "0"]
    assert caught
    for words in caught:  # one in three may be the id that it has
        assert "party 'shop': cannot prove what it claims to share: " in words
        assert "of 3 ids that were checked, of 3, are not its own" in words


# --- By way of a coordinator ----------------------------------------------------------------------


class Carried(Engine):
    """What a coordinator makes up in the name of an initiator."""

    def __init__(self, party: relay.Responder, initiator: str) -> None:
        super().__init__(initiator)
        self.party = party

    @property
    def parties(self) -> tuple[str, ...]:
        return ("shop",)

    def send(self, requests: Any, reply: Any, *, timeout_s: float | None = None) -> Any:
        raise NotImplementedError

    def ask(self, requests: Any, reply: Any, *, timeout_s: float | None = None) -> Any:
        engine = InProcess({"shop": self.party}, driver="coordinator")
        data = torch.frombuffer(bytearray(bytes(encode(requests["shop"]))), dtype=torch.uint8)
        carry = relay.Carry(self.driver, data.reshape(1, -1))
        came = engine.ask({"shop": carry}, relay.Carried).or_raise()["shop"].message_1X
        kinds = (psi.Ready, psi.Blinded, psi.Received, psi.Doubled, psi.Prove, psi.Proofs)
        answer = decode(came.numpy().tobytes(), kinds)

        class Replies:
            def or_raise(self) -> Any:
                return {"shop": answer}

        return Replies()


def test_a_coordinator_claims_no_row_in_the_name_of_an_initiator() -> None:
    kept: list[Any] = []
    shop = relay.Responder(Responder("shop", SHOP_IDS), lambda *rows: kept.append(rows))
    coordinator = Driver(Carried(shop, "north"))
    coordinator.compare(times(MINE, points_of(OUTSIDE)))
    coordinator.claim(ALL, ALL)
    narrow = relay.Narrow("north", "train", torch.arange(320))
    with pytest.raises(AlignmentError, match="not aligned"):
        shop.handle(narrow)
    with pytest.raises(PartyError, match="refuses the 320 places that 'north' claims"):
        coordinator.prove(lambda asked: times(MINE, asked))
    with pytest.raises(AlignmentError, match="not aligned"):
        shop.handle(narrow)
    assert not kept


def test_points_that_are_the_same_up_to_low_order_are_one() -> None:
    """Adding the point of order two to P makes 1/u of its u: another 32 bytes, and no other id."""
    shop = Responder("shop", SHOP_IDS, min_ids=4)
    bank = attack(shop)
    two = times(MINE, points_of(SHOP_IDS[:2]))
    inverses = [pow(int.from_bytes(point.tobytes(), "little"), -1, 2**255 - 19) for point in two]
    again = np.frombuffer(b"".join(u.to_bytes(32, "little") for u in inverses), np.uint8)
    padded = np.concatenate([two, again.reshape(2, 32)])
    assert (WORKERS.multiply(secret(3), two) == WORKERS.multiply(secret(3), padded[2:])).all()
    bank.begin(4)
    with pytest.raises(PartyError, match="2 points are repeated"):
        bank.send(padded)
