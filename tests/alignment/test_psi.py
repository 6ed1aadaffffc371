"""Private set intersection is set intersection, shows nothing else, and refuses what is wrong."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dovetail.alignment
from dovetail.alignment import (
    ELSEWHERE,
    Overlap,
    Responder,
    Workers,
    align,
    count_overlap,
    normalise,
    points,
    psi,
    with_rows_of,
)
from dovetail.data import SharedRows, many_rows, stored
from dovetail.errors import AlignmentError, MessageError, PartyError
from dovetail.network import InProcess, Message, encode

P = 2**255 - 19
MODES = {"intersection": align, "cardinality": count_overlap}
BOTH_MODES = pytest.mark.parametrize("mode", MODES)
BOTH_WAYS = pytest.mark.parametrize("through_bytes", [False, True], ids=["directly", "bytes"])


def unique_ids(of: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(
        of, max_size=25, unique_by=lambda item: normalise([item], party="test").values[0]
    )


INTEGERS = st.integers(-20, 20) | st.integers()
STRINGS = st.text(st.sampled_from("aAéﬁ Ａ😀ß\u0301"), max_size=3).map("x{}x".format) | st.text(
    max_size=8
).map("x{}".format)


def keys(ids: Any) -> list[bytes]:
    return normalise(ids, party="test").values


class Recording(InProcess):
    """Keeps the bytes of every message, both ways, and may change them."""

    def __init__(
        self,
        parties: Mapping[str, Any],
        *,
        driver: str = "bank",
        request: Callable[[Message], Message] = lambda message: message,
        answer: Callable[[Message], Message] = lambda message: message,
    ) -> None:
        super().__init__(parties, driver=driver)
        self.messages: list[tuple[str, str, Message]] = []
        self._change_request, self._change_answer = request, answer

    def _call(self, name: str, request: Message, reply: Any) -> Any:
        request = self._change_request(request)
        self.messages.append((self.driver, name, request))
        answer = self._change_answer(super()._call(name, request, reply))
        self.messages.append((name, self.driver, answer))
        return answer

    def of(self, kind: type[Message], sender: str) -> list[Any]:
        return [m for came_from, _, m in self.messages if came_from == sender and type(m) is kind]


# --- It is set intersection --------------------------------------------------------------------


def check_pair(mine: list[Any], theirs: list[Any], through_bytes: bool, batch_size: int) -> None:
    expected = set(keys(mine)) & set(keys(theirs))
    shop = Responder("shop", theirs)
    engine = InProcess({"shop": shop}, driver="bank", through_bytes=through_bytes)
    aligned = align(engine, mine, batch_size=batch_size)
    samples = aligned.alignment.shared("bank", "shop")
    local_keys = [keys(mine)[row] for row in aligned.alignment.rows["bank"][samples]]
    their_keys = [keys(theirs)[row] for row in shop.rows_S[samples]]
    assert local_keys == their_keys  # sample by sample
    assert set(local_keys) == expected
    assert len(local_keys) == len(expected) == aligned.overlap["shop"]
    assert int((shop.rows_S >= 0).sum()) == len(expected)
    counted = count_overlap(engine, mine, batch_size=batch_size)
    assert counted == {"shop": Overlap(len(theirs), len(expected))}


@pytest.mark.slow
@BOTH_WAYS
@settings(max_examples=40)
@given(mine=unique_ids(INTEGERS), theirs=unique_ids(INTEGERS), batch_size=st.sampled_from([3, 99]))
def test_it_is_set_intersection_of_integers(mine, theirs, through_bytes, batch_size):
    check_pair(mine, theirs, through_bytes, batch_size)


@pytest.mark.slow
@BOTH_WAYS
@settings(max_examples=40)
@given(mine=unique_ids(STRINGS), theirs=unique_ids(STRINGS), batch_size=st.sampled_from([3, 99]))
def test_it_is_set_intersection_of_strings(mine, theirs, through_bytes, batch_size):
    check_pair(mine, theirs, through_bytes, batch_size)


@BOTH_WAYS
@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ([], []),
        ([], ["a"]),
        (["a"], []),
        (["a"], ["a"]),
        (["a"], ["b"]),
        (list(range(10)), list(range(10, 20))),
        (list("abcdefg"), list("gfedcba")),
        (["1", 2], [1, "3", 2]),
    ],
    ids=[
        "empty",
        "none of ours",
        "none of theirs",
        "equal of 1",
        "disjoint of 1",
        "disjoint",
        "equal",
        "mixed",
    ],
)
def test_it_is_set_intersection_at_the_edges(mine, theirs, through_bytes):
    check_pair(mine, theirs, through_bytes, 3)


@pytest.fixture
def in_parts(monkeypatch):
    """Everything is done in parts of a few ids, which lie in files."""
    monkeypatch.setattr(many_rows, "BUCKET", 8)
    monkeypatch.setattr(points, "_AT_ONCE", 10)
    monkeypatch.setattr(stored, "NUMBERS_BYTES", 0)


@pytest.mark.parametrize("num_theirs", [0, 1, 60])
def test_ids_in_parts_are_those_at_once(in_parts, num_theirs):
    mine = [f"person-{number}" for number in range(90)]
    check_pair(mine, [f"person-{number * 2}" for number in range(num_theirs)], True, 7)


def test_values_match_in_parts_as_at_once(monkeypatch):
    rng = np.random.default_rng(0)
    mine, others = (rng.integers(0, 255, (200, 16), dtype=np.uint8) for _ in range(2))
    theirs = np.concatenate([others, mine[50:120]])[rng.permutation(270)]
    at_once = psi.matches(mine, theirs)
    monkeypatch.setattr(many_rows, "BUCKET", 8)
    pairs = [set(zip(*each, strict=True)) for each in (at_once, psi.matches(mine, theirs))]
    assert pairs[0] == pairs[1]
    assert len(pairs[0]) == 70
    with pytest.raises(MessageError, match="2 points are repeated"):
        psi.matches(np.concatenate([mine, mine[[3, 150]]]), theirs)


def test_what_is_wrong_with_ids_in_parts_is_said_of_all_of_them(in_parts):
    many = [f"person-{number}" for number in range(30)]
    with pytest.raises(AlignmentError, match="party 'shop': 1 of 31 ids are repeated"):
        Responder("shop", [*many, " person-3"])
    with pytest.raises(AlignmentError, match="'shop': 1 of 31 ids are empty, the first in row 30"):
        Responder("shop", [*many, ""])


def test_ids_are_compared_as_normalised():
    shop = Responder("shop", [" Anna", "BERT"], id_as="lowercase")
    aligned = align(InProcess({"shop": shop}, driver="bank"), ["ａnna", "bert "], id_as="lowercase")
    assert aligned.overlap == {"shop": 2}


def test_processes_find_what_one_finds():
    mine, theirs = np.arange(2500), np.arange(1000, 4000)
    with Workers(2) as workers:
        shop = Responder("shop", theirs, workers=workers)
        aligned = align(InProcess({"shop": shop}, driver="bank"), mine, workers=workers)
    samples = aligned.alignment.shared("bank", "shop")
    rows = aligned.alignment.rows["bank"][samples].numpy()
    assert sorted(mine[rows]) == list(range(1000, 2500))
    assert (mine[rows] == theirs[shop.rows_S[samples]]).all()


# --- Several partners --------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=25)
@given(
    mine=st.sets(st.integers(0, 15)),
    a=st.sets(st.integers(0, 15)),
    b=st.sets(st.integers(0, 15)),
    c=st.sets(st.integers(0, 15)),
    batch_size=st.sampled_from([2, 99]),
)
def test_a_star_of_three_has_each_pair_and_all_in_common(mine, a, b, c, batch_size):
    sets = {"a": a, "b": b, "c": c}
    ids = {name: list(members) for name, members in sets.items()}
    local_ids = list(mine)
    responders = {name: Responder(name, ids[name]) for name in sets}
    engine = InProcess(responders, driver="bank")
    aligned = align(engine, local_ids, batch_size=batch_size)
    assert aligned.num_ids == {"bank": len(mine), **{name: len(s) for name, s in sets.items()}}
    alignment = with_rows_of(aligned, responders.values())
    rows = alignment.rows
    assert sorted(rows["bank"].tolist()) == list(range(len(mine)))
    for size in (1, 2, 3):
        for some in itertools.combinations(sets, size):
            for known in (alignment, aligned.alignment):  # all rows, and what the initiator knows
                samples = known.shared("bank", *some)
                ids_found = [local_ids[row] for row in rows["bank"][samples]]
                assert set(ids_found) == mine.intersection(*(sets[name] for name in some))
            for name in some:
                assert [ids[name][row] for row in rows[name][samples]] == ids_found
    counted = count_overlap(engine, local_ids, batch_size=batch_size)
    assert counted == {name: Overlap(len(s), len(mine & s)) for name, s in sets.items()}


def test_a_partner_is_told_of_its_own_intersection_and_nothing_of_the_others():
    ids = [f"person-{number}" for number in range(12)]
    engine = Recording({"a": Responder("a", ids[:5]), "b": Responder("b", ids[3:9])})
    align(engine, ids)
    to_a = [message for _, receiver, message in engine.messages if receiver == "a"]
    (indices,) = [message for message in to_a if isinstance(message, psi.Places)]
    assert indices.num_shared == len(indices.samples_B) == len(indices.places_B) == 5
    assert sorted(indices.places_B.tolist()) == [0, 1, 2, 3, 4]
    assert len(set(indices.own_B.tolist())) == 5
    assert {type(message) for message in to_a} == {
        psi.Begin,
        psi.Blinded,
        psi.GetBlinded,
        psi.GetDoubled,
        psi.Prove,
        psi.Places,
        psi.GetProve,
        psi.Proofs,
    }
    blinded = {
        receiver: {row.tobytes() for row in message.points_B32.numpy()}
        for _, receiver, message in engine.messages
        if isinstance(message, psi.Blinded) and receiver != "bank"
    }
    assert not blinded["a"] & blinded["b"]  # a secret for each


def test_the_initiator_cannot_take_a_partners_row_for_its_own():
    shop = Responder("shop", ["b", "a"])
    aligned = align(InProcess({"shop": shop}, driver="bank"), ["a", "c"])
    rows_S = aligned.alignment.rows["shop"]
    assert sorted(rows_S.tolist()) == [-1, ELSEWHERE]
    with pytest.raises(AlignmentError, match="align again"):
        SharedRows("shop", torch.zeros(2, 1), rows_S)


# --- What leaves a party -----------------------------------------------------------------------


@BOTH_MODES
def test_no_id_and_no_hash_of_one_leaves_a_party(mode):
    mine = [f" Ｐerson-{number:04d}" for number in range(60)]
    theirs = [f" Ｐerson-{number:04d}" for number in range(30, 100)]
    engine = Recording({"shop": Responder("shop", theirs)})
    MODES[mode](engine, mine, batch_size=25)
    sent = b"".join(encode(message) for _, _, message in engine.messages)
    assert len(sent) > 48 * (len(mine) + len(theirs))
    for raw, key in zip(mine + theirs, keys(mine) + keys(theirs), strict=True):
        point = Workers().hash([key]).tobytes()
        assert raw.encode() not in sent
        assert raw.strip().encode() not in sent
        assert key[1:] not in sent
        assert point[:16] not in sent
        assert point[16:] not in sent
    assert b"Person" not in sent


@BOTH_MODES
def test_no_message_holds_more_ids_than_were_agreed(mode):
    engine = Recording({"shop": Responder("shop", range(23))})
    MODES[mode](engine, range(17), batch_size=5)
    sizes = [len(t) for _, _, message in engine.messages for t in message.tensors().values()]
    assert max(sizes) == 5


@BOTH_MODES
def test_two_runs_send_different_points(mode):
    shop = Responder("shop", range(20))
    runs = []
    for _ in range(2):
        engine = Recording({"shop": shop})
        MODES[mode](engine, range(20))
        runs.append(
            {
                row.tobytes()
                for sender in ("bank", "shop")
                for message in engine.of(psi.Blinded, sender)
                for row in message.points_B32.numpy()
            }
        )
    assert len(runs[0] | runs[1]) == 80


def test_both_sides_send_their_ids_in_random_order(monkeypatch):
    known = bytes(range(32))  # a secret that the test knows
    monkeypatch.setattr(psi.secrets, "token_bytes", lambda size: known)
    ids = [f"person-{number}" for number in range(20)]
    points = Workers().multiply(known, Workers().hash(keys(ids))).tolist()
    orders = set()
    for _ in range(2):
        engine = Recording({"shop": Responder("shop", ids)})
        align(engine, ids)
        for sender in ("bank", "shop"):
            orders.add(tuple(points.index(row) for row in sent_points(engine, sender).tolist()))
    assert len(orders | {tuple(range(20))}) == 5  # four sent, none in row order


def test_shared_samples_are_numbered_at_random():
    shop = Responder("shop", range(50))
    numbered = [
        align(InProcess({"shop": shop}, driver="bank"), range(50)).alignment.rows["bank"].tolist()
        for _ in range(2)
    ]
    assert numbered[0] != numbered[1]
    assert sorted(numbered[0]) == sorted(numbered[1]) == list(range(50))


def test_all_orders_are_drawn_equally_often():
    drawn: dict[tuple[int, ...], int] = {}
    for _ in range(3000):
        order = tuple(psi.random_order(3).tolist())
        drawn[order] = drawn.get(order, 0) + 1
    assert sum(abs(count - 500) ** 2 / 500 for count in drawn.values()) < 30  # 5 d.o.f.: 1e-5
    assert len(drawn) == 6
    assert psi.random_order(0).tolist() == []


def sent_points(engine: Recording, sender: str) -> np.ndarray:
    return np.concatenate([m.points_B32.numpy() for m in engine.of(psi.Blinded, sender)])


def returned_order(mode: str, ids: list[str]) -> tuple[int, ...]:
    """Where each of the initiator's points came back to; takes the responder's secret to know."""
    shop = Responder("shop", ids[:2])
    secrets: list[bytes] = []

    def note_secret(message: Message) -> Message:
        if isinstance(message, psi.GetDoubled) and shop._run is not None:
            secrets.append(shop._run.secret)
        return message

    engine = Recording({"shop": shop}, request=note_secret)
    MODES[mode](engine, ids, batch_size=2)
    doubled = Workers().multiply(secrets[0], sent_points(engine, "bank"))[:, :16].tolist()
    values = [row for m in engine.of(psi.Doubled, "shop") for row in m.values_B16.tolist()]
    return tuple(doubled.index(value) for value in values)


def test_for_a_cardinality_points_come_back_in_any_order_across_batches():
    orders = {returned_order("cardinality", ["a", "b", "c"]) for _ in range(120)}
    assert len(orders) == 6  # one is missing with probability 6 (5/6)^120 = 2e-9


def test_for_an_intersection_points_come_back_in_the_order_sent():
    assert {returned_order("intersection", ["a", "b", "c"]) for _ in range(10)} == {(0, 1, 2)}


def test_a_cardinality_tells_the_responder_no_row():
    shop = Responder("shop", ["a"])
    count_overlap(InProcess({"shop": shop}, driver="bank"), ["a"])
    with pytest.raises(AlignmentError, match="party 'shop' is not aligned with anyone yet"):
        shop.rows_S  # noqa: B018


def test_a_new_alignment_forgets_the_last_and_nothing_else_does():
    shop = Responder("shop", ["a"])
    engine = InProcess({"shop": shop}, driver="bank")
    align(engine, ["a"])
    count_overlap(engine, ["a"])
    with pytest.raises(PartyError, match="lowercase"):
        align(engine, ["a"], id_as="lowercase")
    assert shop.rows_S.tolist() == [0]
    shop.handle(psi.Begin("bank", "intersection", "text", 1, 1))
    with pytest.raises(AlignmentError, match="not aligned"):
        shop.rows_S  # noqa: B018


def test_a_responder_keeps_no_id_and_no_secret_of_a_finished_run():
    shop = Responder("shop", ["person-0001"])
    align(InProcess({"shop": shop}, driver="bank"), ["person-0001"])
    assert shop._run is None
    assert "person" not in repr(vars(shop))


# --- Progress ----------------------------------------------------------------------------------


def test_progress_counts_every_point_of_every_pair():
    engine = InProcess({"a": Responder("a", range(5)), "b": Responder("b", [])}, driver="bank")
    steps: list[tuple[int, int]] = []
    align(engine, range(3), batch_size=2, progress=lambda done, total: steps.append((done, total)))
    # a: 3 + 5 points, b: 3 + 0. Batches of ours: 2 then 1, to both; then of a's: 2, 2, 1.
    assert steps == [(0, 11), (4, 11), (6, 11), (8, 11), (10, 11), (11, 11)]


# --- What is refused ---------------------------------------------------------------------------

LOW_ORDER = [
    0,
    1,
    P - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
]


def first_point(u: int) -> Callable[[Message], Message]:
    """Replaces the first point of a blinded batch."""

    def change(message: Message) -> Message:
        if not isinstance(message, psi.Blinded):
            return message
        points = message.points_B32.clone()
        points[0] = torch.tensor(list(u.to_bytes(32, "little")), dtype=torch.uint8)
        return replace(message, points_B32=points)

    return change


def blinded(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Message], Message]:
    return lambda message: (
        replace(message, points_B32=change(message.points_B32))
        if isinstance(message, psi.Blinded)
        else message
    )


def doubled(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Message], Message]:
    return lambda message: (
        replace(message, values_B16=change(message.values_B16))
        if isinstance(message, psi.Doubled)
        else message
    )


def batch_7(kind: type[Message]) -> Callable[[Message], Message]:
    return lambda message: replace(message, batch=7) if type(message) is kind else message  # type: ignore[call-arg]


NOT_POINTS = [
    *((first_point(u), "1 of 3 points are the identity or of low order") for u in LOW_ORDER),
    *((first_point(u), "not reduced modulo") for u in (P, P + 1, 2**255 - 1, 2**255, 2**256 - 1)),
    (blinded(lambda points: points[:, :31]), r"expected shape \(3, 32\).*got \(3, 31\)"),
    (blinded(lambda points: points[:2]), r"expected shape \(3, 32\).*got \(2, 32\)"),
    (blinded(lambda points: torch.cat([points, points])), r"expected shape .*got \(6, 32\)"),
    (blinded(lambda points: points.to(torch.int32)), "of torch.uint8, got .* of torch.int32"),
    (blinded(lambda points: points[[0, 1, 1]]), "1 points are repeated"),
]


@BOTH_MODES
@pytest.mark.parametrize(("change", "words"), NOT_POINTS)
def test_a_partners_points_that_are_none_are_refused_by_name(mode, change, words):
    engine = Recording({"shop": Responder("shop", [1, 2, 3])}, answer=change)
    with pytest.raises(PartyError, match=f"party 'shop': .*{words}"):
        MODES[mode](engine, [3, 4, 5])


@BOTH_MODES
@pytest.mark.parametrize(("change", "words"), NOT_POINTS)
def test_the_initiators_points_that_are_none_are_refused_by_name(mode, change, words):
    engine = Recording({"shop": Responder("shop", [1, 2, 3])}, request=change)
    with pytest.raises(PartyError, match=f"party 'shop': refuses what 'bank' sent: .*{words}"):
        MODES[mode](engine, [3, 4, 5])


@BOTH_MODES
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (doubled(lambda values: values[:, :8]), r"expected shape \(3, 16\).*got \(3, 8\)"),
        (doubled(lambda values: values[:1]), r"expected shape \(3, 16\).*got \(1, 16\)"),
        (doubled(lambda values: values * 0), "3 of 3 values are the identity"),
        (doubled(lambda values: values[[0, 0, 1]]), "1 points are repeated"),
        (batch_7(psi.Doubled), "expected batch 0, got 7"),
        (batch_7(psi.Blinded), "expected batch 0, got 7"),
    ],
)
def test_a_partners_answers_that_do_not_fit_are_refused_by_name(mode, change, words):
    engine = Recording({"shop": Responder("shop", [1, 2, 3])}, answer=change)
    with pytest.raises(PartyError, match=f"party 'shop': .*{words}"):
        MODES[mode](engine, [3, 4, 5])


@pytest.mark.parametrize("num_ids", [-1, psi.MAX_TOTAL_IDS + 1])
def test_a_number_of_ids_that_no_table_has_is_refused(num_ids):
    engine = Recording(
        {"shop": Responder("shop", [1])},
        answer=lambda m: psi.Ready(num_ids) if isinstance(m, psi.Ready) else m,
    )
    with pytest.raises(PartyError, match=f"party 'shop': says it has {num_ids} ids"):
        align(engine, [1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (batch_7(psi.Blinded), "expected batch 0 of 2 batches from 'bank', got batch 7"),
        (batch_7(psi.GetBlinded), "there are 2 batches, 'bank' asked for batch 7"),
        (batch_7(psi.GetDoubled), "there are 2 batches, 'bank' asked for batch 7"),
        (batch_7(psi.Places), "expected batch 0 from 'bank', got batch 7"),
    ],
)
def test_an_unknown_batch_is_refused(change, words):
    engine = Recording({"shop": Responder("shop", [1, 2, 3])}, request=change)
    with pytest.raises(PartyError, match=f"party 'shop': .*{words}"):
        align(engine, [3, 4, 5], batch_size=2)


@pytest.mark.parametrize(
    ("samples", "indices", "words"),
    [
        ([0, 5], [0, 1], r"samples_B: 'bank' sent numbers outside 0..2"),
        ([0, 1], [-1, 1], r"places_B: 'bank' sent numbers outside 0..3"),
        ([1, 1], [0, 1], r"samples_B: 'bank' sent a number twice"),
        ([0, 1], [2, 2], r"places_B: 'bank' sent a number twice"),
        ([0], [1], r"expected shape \(2,\)"),
    ],
)
def test_places_that_cannot_be_are_refused(samples, indices, words):
    def change(message: Message) -> Message:
        if not isinstance(message, psi.Places):
            return message
        return replace(message, samples_B=torch.tensor(samples), places_B=torch.tensor(indices))

    shop = Responder("shop", [1, 2, 3, 4])
    engine = Recording({"shop": shop}, request=change)
    with pytest.raises(PartyError, match=words):
        align(engine, [3, 4, 5])
    with pytest.raises(AlignmentError, match="not aligned"):
        shop.rows_S  # noqa: B018


def begun(**changes: Any) -> Responder:
    shop = Responder("shop", [1, 2])
    begin = psi.Begin("bank", "cardinality", "text", 3, 2)
    shop.handle(replace(begin, **changes))
    return shop


def refused_words(party: Responder, message: Message) -> str:
    engine = InProcess({"shop": party}, driver="bank")
    failures = engine.ask({"shop": message}, Message).failures
    return str(failures["shop"])


def test_a_message_before_a_run_begins_is_refused():
    shop = Responder("shop", [1, 2])
    assert "has no alignment under way: it was started again" in refused_words(
        shop, psi.GetBlinded(0)
    )


def test_nothing_comes_back_before_all_points_were_sent():
    shop = begun()
    shop.handle(psi.Blinded(0, torch.from_numpy(Workers().hash([b"1", b"2"]))))
    words = refused_words(shop, psi.GetDoubled(0))
    assert "'bank' has sent 1 of 2 batches; all must come first" in words


def test_more_points_than_announced_are_refused():
    shop = begun(num_ids=1)
    points = torch.from_numpy(Workers().hash([b"1"]))
    shop.handle(psi.Blinded(0, points))
    words = refused_words(shop, psi.Blinded(1, points))
    assert "expected no more of 1 batches from 'bank', got batch 1" in words


def test_a_batch_sent_twice_is_refused():
    shop = begun()
    points = torch.from_numpy(Workers().hash([b"1", b"2"]))
    shop.handle(psi.Blinded(0, points))
    assert "expected batch 1 of 2" in refused_words(shop, psi.Blinded(0, points))


def compared(num_theirs: int = 2) -> Responder:
    """A responder of ids 1..M that was sent all of 1..3 in batches of two, and answered."""
    shop = Responder("shop", range(1, num_theirs + 1))
    shop.handle(psi.Begin("bank", "intersection", "text", 3, 2))
    points = torch.from_numpy(Workers().hash([b"1", b"2", b"3"]))
    shop.handle(psi.Blinded(0, points[:2]))
    shop.handle(psi.Blinded(1, points[2:]))
    for batch in range(-(-num_theirs // 2)):
        shop.handle(psi.GetBlinded(batch))
    for batch in range(2):
        shop.handle(psi.GetDoubled(batch))
    return shop


def not_aligned(party: Responder) -> bool:
    with pytest.raises(AlignmentError, match="not aligned"):
        party.rows_S  # noqa: B018
    return True


@pytest.mark.parametrize("num_sent", [0, 1])
def test_places_are_refused_before_all_points_were_sent(num_sent):
    shop = begun(mode="intersection")
    if num_sent:
        shop.handle(psi.Blinded(0, torch.from_numpy(Workers().hash([b"1", b"2"]))))
    words = refused_words(shop, psi.Places(0, 1, *3 * [torch.tensor([0])]))
    assert f"psi.Places: 'bank' has sent {num_sent} of 2 batches; all must come first" in words
    assert not_aligned(shop)


@pytest.mark.parametrize("num_shared", [-1, 3, 10**13])
def test_no_more_ids_are_shared_than_either_side_has(num_shared):
    shop = compared(num_theirs=2)
    words = refused_words(shop, psi.Places(0, num_shared, *3 * [torch.arange(2)]))
    assert f"psi.Places: expected 0..2 shared ids from 'bank', got {num_shared}" in words
    assert not_aligned(shop)


def test_every_batch_of_places_says_the_same_number():
    shop = compared(num_theirs=4)
    index_of_row = torch.from_numpy(np.argsort(shop._run.order_M))
    shop.handle(psi.Places(0, 3, torch.arange(2), index_of_row[:2], torch.arange(2)))
    words = refused_words(shop, psi.Places(1, 2, *3 * [torch.arange(0)]))
    assert "psi.Places: 'bank' said 3 ids are shared, and in batch 1 2" in words
    assert not_aligned(shop)
    shop.handle(psi.Places(1, 3, torch.tensor([2]), index_of_row[2:3], torch.tensor([2])))
    for batch in range(2):
        assert not_aligned(shop)
        asked = shop.handle(psi.GetProve(batch))
        shop.handle(psi.Proofs(batch, asked.points_B32[:, :16]))  # 1 is the secret of what was sent
    assert shop.rows_S.tolist() == [0, 1, 2]


def test_a_run_over_more_ids_than_any_table_has_is_refused():
    begin = psi.Begin("bank", "intersection", "text", 10**13, psi.MAX_IDS)
    words = refused_words(Responder("shop", [1]), begin)
    assert "'bank' has 10000000000000 ids; an alignment takes at most 2147483648" in words


def test_a_large_number_of_ids_takes_no_memory_before_they_come():
    begin = psi.Begin("bank", "intersection", "text", psi.MAX_TOTAL_IDS, 2)
    shop = Responder("shop", [1, 2])
    tracemalloc.start()
    shop.handle(begin)
    shop.handle(psi.Blinded(0, torch.from_numpy(Workers().hash([b"1", b"2"]))))
    indices = psi.Places(0, 1, *3 * [torch.tensor([0])])
    assert "sent 1 of 1073741824 batches" in refused_words(shop, indices)
    assert tracemalloc.get_traced_memory()[1] < 2**20  # bytes
    tracemalloc.stop()


def test_places_are_refused_when_only_the_size_was_agreed():
    shop = begun()
    indices = psi.Places(0, 1, *3 * [torch.tensor([0])])
    assert "psi.Places: not in mode 'cardinality'" in refused_words(shop, indices)


def test_a_responder_may_agree_to_sizes_alone():
    shop = Responder("shop", [1, 2], modes=["cardinality"])
    engine = InProcess({"shop": shop}, driver="bank")
    assert count_overlap(engine, [2]) == {"shop": Overlap(2, 1)}
    with pytest.raises(PartyError, match="'bank' asks for mode 'intersection'; this party agrees"):
        align(engine, [2])


def test_a_responder_may_refuse_small_sets():
    engine = InProcess({"shop": Responder("shop", [1, 2], min_ids=2)}, driver="bank")
    assert count_overlap(engine, [2, 3])["shop"].num_shared == 1
    with pytest.raises(PartyError, match="'bank' has 1 ids; this party compares itself with sets"):
        count_overlap(engine, [2])


def test_an_integer_is_the_string_of_its_digits():
    engine = InProcess({"shop": Responder("shop", ["1", "02"])}, driver="bank")
    assert count_overlap(engine, [1, 2]) == {"shop": Overlap(2, 1)}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("lowercase", "text"), ("text", "lowercase"), ("digits", "text"), ("text", "digits")],
)
def test_a_rule_of_one_side_is_an_error_and_no_smaller_intersection(ours, theirs):
    engine = InProcess({"shop": Responder("shop", ["1"], id_as=theirs)}, driver="bank")
    words = f"'bank' compares ids as '{ours}', 'shop' as '{theirs}'; both party files must"
    for each in (align, count_overlap):
        with pytest.raises(PartyError, match=words):
            each(engine, ["1"], id_as=ours)


def test_a_batch_size_above_the_limit_is_refused_on_both_sides():
    engine = InProcess({"shop": Responder("shop", [1])}, driver="bank")
    with pytest.raises(ValueError, match=r"batch_size must lie in 1..16384, got 16385"):
        align(engine, [1], batch_size=psi.MAX_IDS + 1)
    begin = psi.Begin("bank", "cardinality", "text", 3, psi.MAX_IDS + 1)
    words = refused_words(Responder("shop", [1]), begin)
    assert "expected a batch size in 1..16384, got 16385" in words


@BOTH_MODES
def test_the_initiators_own_repeated_or_empty_ids_are_refused(mode):
    engine = InProcess({"shop": Responder("shop", ["a"])}, driver="bank")
    with pytest.raises(AlignmentError, match="party 'bank': 1 of 3 ids are repeated"):
        MODES[mode](engine, ["a", "b", "a "])
    with pytest.raises(AlignmentError, match="party 'bank': 1 of 2 ids are empty"):
        MODES[mode](engine, ["a", " "])


def test_a_responders_repeated_or_empty_ids_are_refused():
    with pytest.raises(AlignmentError, match="party 'shop': 2 of 3 ids are repeated"):
        Responder("shop", ["a", "a", "a"])
    with pytest.raises(AlignmentError, match="party 'shop': 1 of 1 ids are empty"):
        Responder("shop", [None])


def test_every_public_name_resolves():
    for name in dir(dovetail.alignment):
        assert getattr(dovetail.alignment, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'psi_client'"):
        dovetail.alignment.psi_client  # noqa: B018
