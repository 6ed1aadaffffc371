"""Guessing ids is bounded by the day, also for who splits, pads, repeats or kills the site.

What was got before: 100,000 guesses found all 14,286 members in 49 s, and ``min_ids`` was passed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from curious import Driver, multiples, points_of, times

from dovetail.alignment import Responder, align, count_overlap, psi, relay
from dovetail.alignment.limits import DAY_S, Alignments, default_max_ids
from dovetail.errors import AlignmentError, PartyError
from dovetail.methods import apfed
from dovetail.network import InProcess, encode
from dovetail.network.quota import Quota

MEMBERS = [f"06{number:08d}" for number in range(0, 100_000, 7)]  # 14,286 of the 100,000 guessed
SMALL = [f"customer-{number}" for number in range(320)]
ALL = np.arange(320)


# --- Real processes -------------------------------------------------------------------------------


@pytest.mark.network
def test_a_site_gives_no_row_to_who_claims_all_and_aligns_with_it_no_more(
    shop_that_joins: Callable[..., Any],
) -> None:
    shop = shop_that_joins(SMALL)
    bank = Driver(shop.engine("a1"))
    bank.compare(times(7, points_of([f"nobody-{number}" for number in range(320)])))
    bank.claim(ALL, ALL)
    with pytest.raises(PartyError, match="320 of 320 that were checked are not of ids"):
        bank.prove(lambda asked: times(7, asked))
    assert not (shop.site_folder / "aligned").exists()
    begin = apfed.Begin((4,), 0, 0)
    with pytest.raises(PartyError, match="is not aligned with 'bank' yet"):
        shop.engine("a1/apfed").ask({"shop": begin}, apfed.Ready).or_raise()
    (line,) = [each for each in shop.refused() if each["message"] == "psi.Proofs"]
    assert (line["driver"], line["run"]) == ("bank", "a1")
    assert "refuses the 320 places that 'bank' claims to share" in line["why"]
    shop.killed_and_started_anew()
    with pytest.raises(PartyError, match="has claimed rows that it could not prove to share"):
        align(shop.engine("a2"), SMALL)
    assert "refused psi.Proofs of 'bank'" in shop.process.printed() + "".join(
        each.printed() for each in shop.federation.started
    )
    assert "Traceback" not in shop.process.printed()


@pytest.mark.network
def test_100_000_guesses_are_refused_at_once_in_parts_and_after_a_restart(
    shop_that_joins: Callable[..., Any],
) -> None:
    shop = shop_that_joins(MEMBERS)
    assert len(MEMBERS) == 14_286
    guesses = [f"06{number:08d}" for number in range(100_000)]
    refused = r"'bank' has 100000 ids; .* at most 81430: ask its owner to raise policy\.max_ids"
    with pytest.raises(PartyError, match=refused):
        align(shop.engine("a1"), guesses)
    Driver(shop.engine("a2"), batch_size=16_384).begin(50_000)  # the half, which is allowed
    for run in ("a3", "a4"):
        with pytest.raises(PartyError, match="would have compared 100000 ids within 24 hours"):
            Driver(shop.engine(run), batch_size=16_384).begin(50_000)
        shop.killed_and_started_anew()
    whys = {(each["driver"], each["message"]) for each in shop.refused()}
    assert whys == {("bank", "psi.Begin")}
    kept = Quota(shop.site_folder).read("SELECT driver, num_ids FROM alignments")
    assert kept == [("bank", 50_000)]
    for path in shop.site_folder.glob("site.sqlite*"):
        assert path.stat().st_mode & 0o077 == 0


# --- Homes in this process ------------------------------------------------------------------------


@pytest.mark.slow
def test_sets_of_one_id_are_counted_whoever_kills_the_site(shop_site: Any) -> None:
    """Each count of a set of one says whether that id is there."""
    for number in range(30):
        site = shop_site(SMALL, "max_alignments = 8")
        engine, guess = site.engine(f"a{number}"), [f"customer-{number}"]
        if number < 8:
            assert count_overlap(engine, guess)["shop"].num_shared == 1
            continue
        with pytest.raises(PartyError, match="has aligned 8 times within 24 hours"):
            count_overlap(engine, guess)


@pytest.mark.slow
def test_one_driver_uses_up_nothing_of_another(shop_site: Any) -> None:
    site = shop_site(SMALL, "max_alignments = 1")
    align(site.engine("a1"), SMALL)
    with pytest.raises(PartyError, match="'bank' has aligned 1 times"):
        align(site.engine("a2"), SMALL)
    assert align(site.engine("a3", "lab"), SMALL).overlap == {"shop": 320}


def test_alignments_begun_and_left_are_counted(shop_site: Any) -> None:
    site = shop_site(SMALL, "max_alignments = 3")
    bank = Driver(site.engine("a1"))
    for _ in range(3):
        bank.begin(100)
    with pytest.raises(PartyError, match="has aligned 3 times within 24 hours"):
        bank.begin(100)


def test_a_coordinator_gets_no_more_by_inventing_initiators(shop_site: Any) -> None:
    site = shop_site(SMALL, 'max_alignments = 2\nalgorithms = ["align", "fedoptimus"]')
    engine = site.engine("a1", "coordinator", "relay")
    refused = ""
    for number in range(3):
        name = f"owner-{number}"
        begin = psi.Begin(name, "intersection", "text", 10, 16)
        data = torch.frombuffer(bytearray(bytes(encode(begin))), dtype=torch.uint8)
        answer = engine.ask({"shop": relay.Carry(name, data.reshape(1, -1))}, relay.Carried)
        refused = str(answer.failures.get("shop", ""))
        assert bool(refused) == (number == 2)
    assert "'coordinator' has aligned 2 times within 24 hours" in refused
    line = json.loads((site.path / "refusals.jsonl").read_text())
    assert (line["driver"], line["message"]) == ("coordinator", "relay.Carry")


def test_a_set_is_not_padded_with_what_can_be_told_from_ids(shop_site: Any) -> None:
    one = points_of(["customer-3"])
    padding = {
        "repeated": np.repeat(times(7, one), 64, axis=0),
        "of low order": np.concatenate([times(7, one), np.zeros((63, 32), np.uint8)]),
        "not reduced": np.concatenate([times(7, one), np.full((63, 32), 255, np.uint8)]),
    }
    for number, (words, points) in enumerate(padding.items()):
        site = shop_site(SMALL, "min_ids = 64")
        bank = Driver(site.engine(f"a{number}"))
        with pytest.raises(PartyError, match="has 1 ids; this party compares itself with sets of"):
            bank.begin(1)
        bank.begin(64)
        with pytest.raises(PartyError, match=words):
            bank.send(points)


def test_random_points_cannot_be_told_from_ids_and_no_limit_prevents_it(shop_site: Any) -> None:
    """What ``min_ids`` does not do, as the documentation says."""
    site = shop_site(SMALL, "min_ids = 64")
    bank = Driver(site.engine("a1"))
    points = times(7, points_of(["customer-3", *(f"random-{number}" for number in range(63))]))
    theirs, doubled = bank.compare(points)
    mine, _ = psi.matches(doubled, np.ascontiguousarray(times(7, theirs)[:, :16]))
    assert mine.tolist() == [0]


def test_multiples_of_one_id_are_one_row(shop_site: Any) -> None:
    site = shop_site(SMALL)
    bank = Driver(site.engine("a1"))
    bank.compare(multiples(points_of(["customer-3"])[0], 64))
    bank.claim(ALL[:64], ALL[:64])
    with pytest.raises(PartyError, match="of 64 that were checked are not of ids"):
        bank.prove(lambda asked: times(8, asked))
    assert not (site.path / "aligned").exists()


def test_a_count_that_cannot_be_read_lets_nobody_through(shop_site: Any) -> None:
    site = shop_site(SMALL)
    site.quota.write("DROP TABLE alignments")
    with pytest.raises(PartyError, match=r"it cannot read site\.sqlite in its site"):
        align(site.engine("a1"), SMALL)


def test_a_count_that_cannot_be_written_lets_nobody_through(shop_site: Any) -> None:
    site = shop_site(SMALL)
    site.quota.read("PRAGMA query_only = ON")
    with pytest.raises(PartyError, match=r"it cannot write site\.sqlite in its site"):
        align(site.engine("a1"), SMALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "first", "second", "what"),
    [
        (align, SMALL[:200], [*SMALL[:200], "x"], "its set has 201 ids where .* had 200"),
        (align, SMALL[:200], [*SMALL[:199], "x"], "it shares 199 ids where .* had 200"),
        (count_overlap, SMALL[:200], SMALL[:195], "its set has 195 ids where .* had 200"),
    ],
)
def test_sets_that_differ_in_a_few_ids_are_told(
    shop_site: Any, mode: Any, first: list[str], second: list[str], what: str
) -> None:
    site = shop_site(SMALL)
    mode(site.engine("a1"), first)
    mode(site.engine("a2"), first)  # the same again is no difference
    assert not site.printed("differ in a few ids")
    mode(shop_site(SMALL).engine("a3"), second)  # also after a restart
    (line,) = site.printed("differ in a few ids")
    assert re.search(what, line)


def test_predictions_ask_for_other_rows_each_time_and_are_counted_alone(shop_site: Any) -> None:
    site = shop_site(SMALL, "max_alignments = 2")
    align(site.engine("a1/predict"), SMALL[:20])
    align(site.engine("a2/predict"), SMALL[:21])
    assert not site.printed("differ in a few ids")
    with pytest.raises(PartyError, match="has aligned 2 times"):
        align(site.engine("a3/predict"), SMALL[:22])


def test_counts_called_predictions_are_watched_as_all_counts(shop_site: Any) -> None:
    """A prediction is told which of its ids are there; of a count two sets that differ tell it."""
    site = shop_site(SMALL)
    count_overlap(site.engine("a1/predict"), SMALL[:200])
    count_overlap(site.engine("a2/predict"), SMALL[:199])
    (line,) = site.printed("differ in a few ids")
    assert "its set has 199 ids" in line


def test_an_alignment_counts_for_a_day(tmp_path: Path) -> None:
    now = [1e9]
    lines: list[str] = []
    quota = Quota(tmp_path)
    kept = Alignments(
        quota,
        max_alignments=2,
        max_ids=100,
        print_line=lines.append,
        now=lambda: now[0],
    )
    kept.of("bank", "a1").begins("bank", "intersection", 60)
    now[0] += DAY_S / 2
    kept.of("bank", "a2").begins("bank", "intersection", 40)
    with pytest.raises(AlignmentError, match="has aligned 2 times"):
        kept.of("bank", "a3").begins("bank", "intersection", 1)
    now[0] -= 2 * DAY_S  # a clock that was set back frees nobody
    with pytest.raises(AlignmentError, match="has aligned 2 times"):
        kept.of("bank", "a3").begins("bank", "intersection", 1)
    now[0] += 2 * DAY_S + DAY_S / 2 + 1
    with pytest.raises(AlignmentError, match="would have compared 101 ids within 24 hours"):
        kept.of("bank", "a4").begins("bank", "intersection", 61)
    kept.of("bank", "a5").begins("bank", "intersection", 58)
    assert quota.read("SELECT count(*) FROM alignments") == [(2,)]
    now[0] += 10 * DAY_S  # the last one is remembered, to compare with
    kept.of("bank", "a6").begins("bank", "intersection", 59)
    assert "its set has 59 ids where one of its alignments before had 58" in lines[-1]


def test_the_default_lets_a_set_of_the_same_size_align_five_times_a_day() -> None:
    for num in (10, 400, 14_286, 1_000_000):
        assert 5 * num < default_max_ids(num)
    assert default_max_ids(14_286) < 100_000


def test_a_coordinator_that_plays_the_data_owners_guesses_no_more_often_than_it_may(
    tmp_path: Path,
) -> None:
    """It carries a label owner's alignment to a set of guesses of its own, and hears what hits."""
    ids = [f"P-{number:03d}" for number in range(40)]
    limits = Alignments(Quota(tmp_path), max_alignments=3, max_ids=10**6, print_line=print)

    def guessed(ids_guessed: list[str]) -> int:
        owner = relay.Initiator("lab", {"train": ids}, print, guard=limits.of("hub", "a1"))
        guesses = relay.Responder(Responder("bank", ids_guessed), lambda *_: None)
        engine = InProcess({"lab": owner, "bank": guesses}, driver="hub")
        return relay.align(engine, {"lab": ["train"]}, ["bank"])["lab", "train"].num_common

    assert [guessed([f"P-{number:03d}", "nobody"]) for number in (7, 39, 40)] == [1, 1, 0]
    with pytest.raises(PartyError, match=r"policy\.max_alignments allows 3"):
        guessed(["P-007"])
