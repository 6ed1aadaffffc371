"""Match keys: what is compared, which rows enter a pass, and that nothing but points is sent."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail.alignment import (
    KeyResponder,
    Keys,
    MatchFormats,
    Responder,
    align,
    align_by_keys,
    count_by_keys,
    points,
    relay,
    with_rows_of,
)
from dovetail.alignment.matchkeys import component, key_values, match_key, rate
from dovetail.alignment.psi import Blinded, Doubled, Pass, Passing, Proofs, Prove, Ready, Received
from dovetail.data import many_rows, stored, table_from_arrays
from dovetail.errors import AlignmentError, ConfigError, PartyError
from dovetail.network import InProcess, decode
from dovetail.network.checkpoint import read_state, written_state

SCRIPT = Path(__file__).parents[2] / "examples" / "dirty_twins.py"


def keys_of(columns: dict[str, list[Any]], *keys: list[str], **reading: Any) -> Keys:
    table = table_from_arrays("t", {k: np.array(v, dtype=object) for k, v in columns.items()})
    read = {name: table.column(name) for name in table.names}
    return Keys(key_values(match_key(key), read, MatchFormats(**reading)) for key in keys)


def values_of(function: str, *values: Any, **reading: Any) -> list[str]:
    """What a component makes of these values."""
    (key,) = keys_of({"x": list(values)}, [f"{function}(x)"], **reading)
    prefix = f"k{key.key}\x1e".encode()
    return [value.removeprefix(prefix).decode() for value in key.values]


@pytest.mark.parametrize(
    ("function", "values", "become"),
    [
        ("text", ["AB-12 x", " Ａb12X", None], ["ab12x", "ab12x", ""]),
        (
            "name",
            ["Dr. Zoë  Müller", "zoe MULLER", "Łoś", "Dr"],
            ["zoe muller"] * 2 + ["los", "dr"],
        ),
        ("initial", ["Prof. Émile", "é"], ["e", "e"]),
        ("sounds", ["Meyer", "Maier", "Robert"], ["M600", "M600", "R163"]),
        ("date", ["3.7.1980", "1980-07-03", "19800703", "3.7.80"], ["1980-07-03"] * 3 + [""]),
        ("year", ["03/07/1980"], ["1980"]),
        ("digits", ["00 49-17", "4917"], ["4917", "4917"]),
    ],
)
def test_values_are_normalised_as_stated(
    function: str, values: list[Any], become: list[str]
) -> None:
    assert values_of(function, *values) == become


def test_a_date_column_and_a_date_in_text_are_the_same_day() -> None:
    days = (np.datetime64("1980-07-03") - np.datetime64("1970-01-01")).astype(int)
    assert values_of("date", float(days), float(days) + 0.5) == ["1980-07-03"] * 2
    assert values_of("date", "07/03/1980", dates="month-first") == ["1980-07-03"]


def test_telephone_numbers_are_e164_where_phonenumbers_is_there() -> None:
    pytest.importorskip("phonenumbers")
    numbers = ("020 7946 0018", "+44 20 7946 0018", "7")
    assert values_of("phone", *numbers, region="GB") == ["+442079460018"] * 2 + [""]


def test_a_column_alone_means_what_its_name_says() -> None:
    names = ("birth_date", "surname", "given", "mobile", "postcode")
    assert [component(name).function for name in names] == ["date", "name", "name", "phone", "text"]
    for wrong, sentence in {
        "soundz(x)": "there is no function 'soundz'",
        "names(x)": "name two columns or more for names",
        "name(x, y)": "name one column for name",
    }.items():
        with pytest.raises(ConfigError, match=sentence):
            component(wrong)


def test_rows_that_share_a_key_and_rows_without_one_do_not_enter() -> None:
    (key,) = keys_of({"x": ["a", "b", "B", None, "c"]}, ["x"])
    rows, ambiguous = key.usable(np.ones(5, dtype=bool))
    assert (rows.tolist(), ambiguous, key.missing) == ([0, 4], 2, 1)
    rows, ambiguous = key.usable(np.array([True, True, False, True, True]))
    assert (rows.tolist(), ambiguous) == ([0, 1, 4], 0)  # its twin is matched already
    (rated,) = rate([key])
    assert (rated.unique, rated.ambiguous, rated.missing) == (2, 2, 1)


class Seen:
    """A party that notes what it is asked and what it answers."""

    def __init__(self, party: Responder) -> None:
        self.party = party
        self.accepts = party.accepts
        self.messages: list[Any] = []

    def handle(self, message: Any) -> Any:
        answer = self.party.handle(message)
        self.messages += [message, answer]
        return answer


BANK = {
    "id": ["1", "2", None, None, "5", None],
    "surname": ["Meyer", "Ode", "Roth", "Roth", "Lee", "Kim"],
    "born": ["1980-01-02"] * 6,
}
SHOP = {
    "id": ["2", None, None, None, "5", "7"],
    "surname": ["Odd", "Maier", "Roth", "Kim", "Zzz", "Kim"],
    "born": ["02.01.1980"] * 6,
}
ANSWERS = (Ready, Received, Blinded, Doubled, Proofs, Prove, Passing)
WATERFALL = (["id"], ["surname", "date(born)"], ["sounds(surname)", "date(born)"])


@pytest.fixture(params=["at once", "in parts"])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is done in parts of a few rows, which lie in files, too."""
    if request.param == "in parts":
        monkeypatch.setattr(many_rows, "BUCKET", 2)
        monkeypatch.setattr(points, "_AT_ONCE", 2)
        monkeypatch.setattr(stored, "NUMBERS_BYTES", 0)


@pytest.mark.usefixtures("parts")
def test_keys_are_tried_in_order_and_what_one_matched_does_not_enter_the_next() -> None:
    shop = Seen(KeyResponder("shop", keys_of(SHOP, *WATERFALL)))
    engine = InProcess({"shop": shop}, driver="bank", through_bytes=True)
    aligned = align_by_keys(engine, keys_of(BANK, *WATERFALL))
    everyone = with_rows_of(aligned, [shop.party])
    shared = everyone.shared("bank", "shop")
    pairs = zip(*(everyone.rows[name][shared].tolist() for name in ("bank", "shop")), strict=True)
    # 2 and 5 by id; then nobody by name: Roth is twice at the bank, Kim at the shop; Meyer sounds
    # as Maier does. With the first pass forgotten, Lee would have met nobody either.
    assert sorted(pairs) == [(0, 1), (1, 0), (4, 4)]
    passes = aligned.passes["shop"]
    assert [len(each.samples_K) for each in passes] == [2, 0, 1]
    assert [(each.usable, each.ambiguous, each.missing) for each in passes] == [
        (3, 0, 3),
        (2, 2, 0),
        (2, 2, 0),
    ]
    assert aligned.overlap == {"shop": 3}
    check_blinded(shop.messages)


def check_blinded(messages: list[Any]) -> None:
    """Nothing but points, their products, and numbers of places and samples is sent; no name is.

    Of all points that were sent none is a key's own, and none was sent twice.
    """
    tensors = [tensor for each in messages for tensor in each.tensors().values()]
    assert {tensor.dtype for tensor in tensors} <= {torch.uint8, torch.int64}
    assert torch.uint8 in {tensor.dtype for tensor in tensors}
    texts = " ".join(str(vars(each)) for each in messages)
    sent = b"".join(tensor.numpy().tobytes() for tensor in tensors)
    for value in ("Meyer", "meyer", "Maier", "maier", "roth", "1980", "M600"):
        assert value not in texts
        assert value.encode() not in sent
    points_sent = [
        KeyResponder("any", keys_of(table, *WATERFALL))._points for table in (BANK, SHOP, CLINIC)
    ]
    plain = {
        point.tobytes() for each in points_sent for points in each for point in points if any(point)
    }
    assert len(plain) > 10
    points = [
        point.numpy().tobytes()
        for each in messages
        for name, tensor in each.tensors().items()
        if name == "points_B32"
        for point in tensor
    ]
    assert points
    assert not plain & set(points)
    assert len(points) == len(set(points))


CLINIC = {
    "id": [None, "5", "1", None],
    "surname": ["Ode", "X", "Y", "Kim"],
    "born": ["1980-01-02"] * 4,
}


class Restarted:
    """A shop whose process ends after each answer; the next one goes on from its state."""

    accepts = KeyResponder.accepts

    def __init__(self, **given: Any) -> None:
        self._given, self._data = given, b""
        self.last: KeyResponder | None = None

    def handle(self, message: Any) -> Any:
        shop = KeyResponder("shop", keys_of(SHOP, *WATERFALL), **self._given)
        if self._data:
            shop.restore(read_state(self._data))
        answer, self.last = shop.handle(message), shop
        state = shop.state()
        self._data = b"" if state is None else written_state(state)
        return answer

    @property
    def over(self) -> bool:
        """Nothing is kept when an alignment is over."""
        return not self._data


def test_an_alignment_by_keys_goes_on_in_another_process_after_each_answer() -> None:
    shop, steady = Restarted(), KeyResponder("shop", keys_of(SHOP, *WATERFALL))
    pairs = []
    for party in (shop, steady):
        engine = InProcess({"shop": party}, driver="bank")
        aligned = align_by_keys(engine, keys_of(BANK, *WATERFALL))
        last = party.last if isinstance(party, Restarted) else party
        assert last is not None
        everyone = with_rows_of(aligned, [last])
        shared = everyone.shared("bank", "shop")
        rows = (everyone.rows[name][shared].tolist() for name in ("bank", "shop"))
        pairs.append(sorted(zip(*rows, strict=True)))
    assert shop.over
    assert pairs[0] == pairs[1]
    assert pairs[0]


def test_a_count_by_keys_goes_on_in_another_process_after_each_answer() -> None:
    shop, steady = Restarted(), KeyResponder("shop", keys_of(SHOP, *WATERFALL))
    engines = [InProcess({"shop": each}, driver="bank") for each in (shop, steady)]
    found, wanted = (count_by_keys(each, keys_of(BANK, *WATERFALL)) for each in engines)
    assert shop.over
    assert found == wanted


def test_keys_of_another_table_do_not_go_on() -> None:
    keys = keys_of(SHOP, *WATERFALL)
    shop = KeyResponder("shop", keys)
    shop.handle(Pass(0, len(keys), str(keys[0].key), 6))
    state = shop.state()
    assert state is not None
    fewer = {name: values[:4] for name, values in SHOP.items()}
    with pytest.raises(AlignmentError, match="another table than when the alignment began"):
        KeyResponder("shop", keys_of(fewer, *WATERFALL)).restore(state)


def test_a_count_by_keys_is_that_of_the_alignment_and_tells_nobody_which() -> None:
    shop = Seen(KeyResponder("shop", keys_of(SHOP, *WATERFALL), modes=["cardinality"]))
    clinic = Seen(KeyResponder("clinic", keys_of(CLINIC, *WATERFALL)))
    engine = InProcess({"shop": shop, "clinic": clinic}, driver="bank", through_bytes=True)
    counts = count_by_keys(engine, keys_of(BANK, *WATERFALL), batch_size=2)
    assert [each.num_shared for each in counts["shop"].passes] == [2, 0, 1]
    assert (counts["shop"].num_ids, counts["shop"].num_shared) == (6, 3)
    # 1 and 5 by id, Ode and Kim by name; their sounds find nobody whom a name has not found.
    assert [each.num_shared for each in counts["clinic"].passes] == [2, 2, 0]
    missing = [(each.usable, each.ambiguous, each.missing) for each in counts["clinic"].passes]
    assert missing == [(3, 0, 3), (4, 2, 0), (4, 2, 0)]
    for party in (shop, clinic):
        check_blinded(party.messages)
        kinds = {type(each).__name__ for each in party.messages}
        assert not kinds & {"Places", "Prove", "Proofs", "GetProve"}
        # It is sent a point for every row of the initiator, with a key or without, in each pass,
        # and sends as many as it has rows: who has a key is not to be seen.
        sizes = [int(each.num_ids) for each in party.messages if type(each).__name__ == "Begin"]
        assert sizes == [6, 6, 6]
        with pytest.raises(AlignmentError, match="not aligned with anyone yet"):
            _ = party.party.rows_S
    # Who agrees to counts alone is not aligned with, and a run does not change its mode.
    with pytest.raises(PartyError, match="asks for mode 'intersection'; this party agrees to card"):
        align_by_keys(engine, keys_of(BANK, *WATERFALL))


def test_passes_of_one_run_are_all_in_one_mode() -> None:
    shop = KeyResponder("shop", keys_of(SHOP, *WATERFALL))
    engine = InProcess({"shop": shop}, driver="bank")
    count_by_keys(engine, keys_of(BANK, *WATERFALL))

    class Turns:
        """The driver counts, and asks in the second pass which rows they are."""

        accepts = shop.accepts

        def handle(self, message: Any) -> Any:
            if type(message).__name__ == "Begin" and shop._pass_index == 1:
                message = type(message)(**{**vars(message), "mode": "intersection"})
            return shop.handle(message)

    with pytest.raises(PartyError, match="began in mode 'cardinality' and goes on in mode"):
        count_by_keys(InProcess({"shop": Turns()}, driver="bank"), keys_of(BANK, *WATERFALL))
    with pytest.raises(AlignmentError, match="no match key to count by"):
        count_by_keys(engine, [])


def test_a_coordinator_carries_alignments_by_match_keys() -> None:
    """Every message that it carries is read: nothing but points is in them."""
    rows: dict[tuple[str, str, str], list[int]] = {}

    def keep(owner: str, party: str) -> Any:
        return lambda part, kept: rows.update({(owner, part, party): kept.tolist()})

    def keep_theirs(party: str) -> Any:
        return lambda owner, part, kept: rows.update({(owner, part, party): kept.tolist()})

    bank = keys_of(BANK, *WATERFALL)
    parts = {"train": np.array([0, 1, 2]), "test": np.array([3, 4])}
    parts_here = {part: bank.of(chosen) for part, chosen in parts.items()}
    parties = {
        "bank": relay.Initiator("bank", parts_here, keep("bank", "bank")),
        "shop": relay.Responder(
            KeyResponder("shop", keys_of(SHOP, *WATERFALL)), keep_theirs("shop")
        ),
    }
    assert parties["shop"].handle(relay.Describe("")).num_ids == 6
    assert parties["bank"].handle(relay.Describe("")).num_ids == 5
    carried: list[Any] = []

    class Read(InProcess):
        def _call(self, name: str, request: Any, reply: Any) -> Any:
            answer = super()._call(name, request, reply)
            for each in (request, answer):
                if isinstance(each, relay.Carry | relay.Carried):
                    kinds = (*Responder.accepts, *ANSWERS)
                    carried.append(decode(each.message_1X.numpy().tobytes(), kinds))
                else:  # what a coordinator hears besides: names, numbers of samples
                    assert isinstance(
                        each,
                        relay.Start
                        | relay.Requests
                        | relay.Answers
                        | relay.Narrow
                        | relay.Narrowed,
                    )
            return answer

    engine = Read(parties, driver="coordinator", through_bytes=True)
    overlaps = relay.align(engine, {"bank": ("train", "test")}, ["shop"])
    assert overlaps["bank", "train"] == relay.Overlap(3, 2, {"shop": 2})
    assert overlaps["bank", "test"] == relay.Overlap(2, 1, {"shop": 1})
    # Rows of a part: Meyer by its sound, 2 by id; then 5. Roth is in both parts, and nobody's.
    pairs = zip(rows["bank", "train", "bank"], rows["bank", "train", "shop"], strict=True)
    assert sorted(pairs) == [(0, 1), (1, 0)]
    assert (rows["bank", "test", "bank"], rows["bank", "test", "shop"]) == ([1], [4])
    check_blinded(carried)
    ids = relay.Initiator("bank", {"train": ["1", "2"]}, keep("bank", "bank"))
    with pytest.raises(PartyError, match=r"compares ids, this party match keys|goes on, but"):
        relay.align(
            InProcess({**parties, "bank": ids}, driver="coordinator"), {"bank": ["train"]}, ["shop"]
        )


def test_both_sides_must_list_the_same_keys() -> None:
    other = KeyResponder("shop", keys_of(SHOP, ["id"], ["surname"]))
    engine = InProcess({"shop": other}, driver="bank")
    with pytest.raises(PartyError, match="3 match keys, this party 2"):
        align_by_keys(engine, keys_of(BANK, *WATERFALL))
    with pytest.raises(PartyError, match=r"asks for key 2, .text\(born\).; this party's is"):
        align_by_keys(engine, keys_of(BANK, ["id"], ["born"]))
    with pytest.raises(PartyError, match="compares ids, this party match keys"):
        align(engine, ["1", "2"])
    ids = InProcess({"shop": Responder("shop", ["1", "2"])}, driver="bank")
    with pytest.raises(PartyError, match="match keys, this party ids"):
        align_by_keys(ids, keys_of(BANK, *WATERFALL))
    with pytest.raises(AlignmentError, match="no match key"):
        align_by_keys(engine, [])


@pytest.mark.slow
def test_dirty_twins_are_found_with_the_stated_recall(tmp_path: Path) -> None:
    from dovetail.methods.aligning import align_sites
    from dovetail.methods.base import SILENT
    from dovetail.node.overlaps import aligned_here, counted_here
    from dovetail.node.partyfile import open_sites

    script = runpy.run_path(str(SCRIPT))
    files = script["make"](tmp_path, clinic=400, registry=320, both=240, seed=1)
    sites = open_sites(tuple(files))
    for site in sites.values():  # nobody learns from who somebody is
        names = {name for columns in site.table.blocks.values() for name in columns}
        assert names in ({"measured"}, {"reported"})
    counts = aligned_here(sites, "clinic", workers=1, talk=SILENT)["truth"]["registry"]
    assert counts["in_both"] == 240
    assert counts["recall"] >= 0.9
    assert counts["precision"] >= 0.99
    counted = counted_here(sites, "clinic", workers=1, talk=SILENT)
    by_key = [each["matched"] for each in counted["keys"]["registry"]]
    assert sum(by_key) == counted["shared"]["registry"]
    assert abs(counted["shared"]["registry"] - counts["matched"]) <= 4  # of rows that share a key
    again = open_sites(tuple(files))
    assert align_sites(again, "clinic", workers=1)[0].overlap["registry"] == counts["matched"]
