"""Parties that reach each other through a coordinator find what they share."""

import pytest
import torch

from dovetail.alignment import Responder, psi, relay
from dovetail.errors import MessageError, PartyError
from dovetail.network import InProcess, encode

IDS = {
    "north": ["anna", "bert", "carl", "dora", "emil"],
    "south": ["fred", "gina", "hans"],
    "bank": ["hans", "dora", "anna", "zoe", "gina", "carl"],
    "shop": ["gina", "carl", "anna", "hans", "emil"],
}


def carry(ids=IDS, *, initiators=("north", "south"), responders=("bank", "shop")):
    """What the coordinator hears, and what each party keeps: rows by initiator and party."""
    rows = {}
    parties = {}
    for name in initiators:
        keep = lambda part, rows_K, name=name: rows.update({(name, name): rows_K})  # noqa: E731
        parties[name] = relay.Initiator(name, {"train": ids[name]}, keep)
    for name in responders:
        keep = lambda initiator, part, rows_K, name=name: rows.update({(initiator, name): rows_K})  # noqa: E731
        parties[name] = relay.Responder(Responder(name, ids[name]), keep)
    engine = InProcess(parties, driver="coordinator")
    return relay.align(engine, dict.fromkeys(initiators, ("train",)), responders), rows


def test_rows_of_one_sample_have_one_id_and_all_have_them():
    _, rows = carry()
    for initiator in ("north", "south"):
        held = [
            [IDS[party][row] for row in rows[initiator, party]]
            for party in (initiator, "bank", "shop")
        ]
        assert held[0] == held[1] == held[2]
        assert set(held[0]) == set(IDS[initiator]) & set(IDS["bank"]) & set(IDS["shop"])


def test_the_coordinator_hears_how_many_are_shared():
    overlaps, _ = carry()
    assert overlaps["north", "train"] == relay.Overlap(5, 2, {"bank": 3, "shop": 3})
    assert overlaps["south", "train"] == relay.Overlap(3, 2, {"bank": 2, "shop": 2})


def test_an_alignment_in_batches_is_one_in_one_piece(monkeypatch):
    align = psi.align
    monkeypatch.setattr(
        relay.psi, "align", lambda *given, **options: align(*given, **options, batch_size=2)
    )
    overlaps, rows = carry()
    assert overlaps["north", "train"].shared == {"bank": 3, "shop": 3}
    assert len(rows["north", "bank"]) == 2


def test_repeated_ids_of_an_initiator_are_told_by_its_name():
    with pytest.raises(PartyError, match="'south'") as error:
        carry({**IDS, "south": ["fred", "fred"]})
    assert error.value.party == "south"


def test_an_alignment_that_was_left_gives_way_to_the_next():
    kept = []
    north = relay.Initiator("north", {"all": IDS["north"]}, lambda *came: kept.append(came))
    first = north.handle(relay.Start("all", ("bank",)))
    assert not first.done
    engine = InProcess(
        {
            "north": north,
            "bank": relay.Responder(Responder("bank", IDS["bank"]), lambda *_: None),
        },
        driver="coordinator",
    )
    overlaps = relay.align(engine, {"north": ["all"]}, ["bank"])
    assert overlaps["north", "all"].num_common == 3
    assert len(kept) == 1


def test_a_responder_takes_one_alignment_at_a_time():
    begin = psi.Begin("north", "intersection", "text", 2, 16)
    bank = relay.Responder(Responder("bank", IDS["bank"]), lambda *_: None)

    def carried(initiator, message):
        data = torch.frombuffer(bytearray(encode(message)), dtype=torch.uint8)
        return relay.Carry(initiator, data.reshape(1, -1))

    bank.handle(carried("north", begin))
    with pytest.raises(MessageError, match="'south' goes on, but 'north' began"):
        bank.handle(carried("south", psi.GetBlinded(0)))
    with pytest.raises(MessageError, match="'south' is said to begin, and its message says"):
        bank.handle(carried("south", begin))


def test_a_party_says_its_role_and_what_it_keeps():
    kept = {"first": ("north",)}.get
    bank = relay.Responder(Responder("bank", IDS["bank"]), lambda *_: None, kept)
    north = relay.Initiator("north", {"a": IDS["north"][:2], "b": IDS["north"][2:]}, print)
    descriptions = [each.handle(relay.Describe("first")) for each in (bank, north)]
    assert [(each.parts, each.num_ids, each.aligned) for each in descriptions] == [
        ((), 6, ("north",)),
        (("a", "b"), 5, ()),
    ]


def test_sizes_that_do_not_add_up_are_refused():
    north = relay.Initiator("north", {"all": IDS["north"]}, print)
    north.handle(relay.Start("all", ("bank",)))
    with pytest.raises(MessageError, match="messages_1X"):
        north.handle(relay.Answers(torch.tensor([3]), torch.zeros(1, 2, dtype=torch.uint8)))
    with pytest.raises(MessageError, match="at most 1048576 bytes"):
        north.handle(relay.Answers(torch.tensor([2**21]), torch.zeros(1, 2, dtype=torch.uint8)))


def test_an_order_has_each_sample_once_and_none_that_is_not_shared():
    bank = relay.Responder(Responder("bank", IDS["bank"]), lambda *_: None)
    with pytest.raises(MessageError, match="'north' has not been aligned just now"):
        bank.handle(relay.Narrow("north", "all", torch.tensor([0])))
    parties = {"north": relay.Initiator("north", {"all": IDS["north"]}, print), "bank": bank}
    relay.align(InProcess(parties, driver="coordinator"), {"north": ["all"]}, ["bank"])
    with pytest.raises(MessageError, match=r"outside 0\.\.4"):
        bank.handle(relay.Narrow("north", "all", torch.tensor([5])))
    with pytest.raises(MessageError, match="named twice, or that it does not share"):
        bank.handle(relay.Narrow("north", "all", torch.arange(5)))


def test_an_unknown_part_is_refused():
    north = relay.Initiator("north", {"all": IDS["north"]}, print)
    with pytest.raises(MessageError, match="there is no part 'some'; there are all"):
        north.handle(relay.Start("some", ("bank",)))
