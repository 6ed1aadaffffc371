"""Runs whose messages are letters in a folder: what is trained is what is trained on a line."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from federations import Process, write_new
from mailboxes import SLOW_S, Letters, eager_command, kill, wait_until, written

from dovetail.audit.measured import reported
from dovetail.runs.letters import ALIGNMENT

Write = Callable[..., Letters]

#: Whose model -> its tensors.
Models = dict[str, dict[str, Any]]

CASES = pytest.mark.parametrize("name", ["chfl", "apfed", "apfed-d"])


@pytest.fixture
def write(
    tmp_path: Path, deal: Callable[..., Any], dovetail: Callable[..., Any]
) -> Iterator[Write]:
    """Writes a case's files below the test's folder; what is started there is ended."""
    with ExitStack() as stack:

        def make(name: str, folder: str, index: str = "") -> Letters:
            made = written(tmp_path / folder, name, deal, dovetail, index)
            stack.enter_context(made.federation.ending())
            return made

        yield make


@pytest.fixture(scope="module")
def lines_models() -> dict[str, Models]:
    """What runs over gRPC have trained so far: of each case one does."""
    return {}


def trained_on_lines(write: Write, name: str, lines_models: dict[str, Models]) -> Models:
    """The models of a run over gRPC."""
    if name in lines_models:
        return lines_models[name]
    lines = write(name, "lines")
    joined = [lines.join(each) for each in lines.case.partners]
    driver = lines.train()
    assert driver.ended() == 0, driver.printed()
    for each in joined:
        each.signal(signal.SIGTERM)
        assert each.ended() == 0, each.printed()
    return lines_models.setdefault(name, lines.models())


def assert_same(models: Models, others: Models) -> None:
    assert models
    assert models.keys() == others.keys()
    for whose, tensors in models.items():
        assert tensors.keys() == others[whose].keys()
        for name, values in tensors.items():
            assert values.equal(others[whose][name]), (whose, name)


def assert_reconciled(letters: Letters, dovetail: Callable[..., Any]) -> None:
    for name in letters.case.partners:
        ledgers = [letters.folder / f"{each}.site" for each in (letters.case.driver, name)]
        ca = letters.folder / "certificates" / "ca" / "ca.pem"
        done = dovetail("ledger", "verify", *ledgers, "--ca", ca)
        assert done.code == 0, done.out + done.err


@pytest.mark.slow
@pytest.mark.network
@CASES
def test_jobs_that_answer_once_train_what_partners_on_lines_do(
    write: Write, name: str, dovetail: Callable[..., Any], lines_models: dict[str, Models]
) -> None:
    letters = write(name, "letters", "place")
    (letters.folder / "place").mkdir()
    driver = letters.train()
    number = letters.answer_by_jobs(driver)
    assert driver.ended() == 0, driver.printed()
    assert number > 3  # each job ended with what was there
    assert_same(letters.models(), trained_on_lines(write, name, lines_models))
    assert_reconciled(letters, dovetail)
    left = [path for path in (letters.folder / "place").rglob("*") if path.is_file()]
    assert {path.parent.name for path in left} == {"cards"}  # and no letter


@pytest.mark.slow
@pytest.mark.network
def test_new_rows_are_predicted_by_letter_as_over_a_connection(write: Write) -> None:
    letters = write("apfed", "letters", "place")
    (letters.folder / "place").mkdir()
    federation = letters.federation
    # Its rows were asked about in training, too.
    lab = letters.folder / "lab.toml"
    more = "[policy]\nsealed = { numbers_per_row = 2 }"
    lab.write_text(lab.read_text().replace("[policy]", more))
    joined, driver = letters.join("lab"), letters.train()
    assert driver.ended() == 0, driver.printed()
    joined.signal(signal.SIGTERM)
    assert joined.ended() == 0, joined.printed()
    rows = write_new(letters.folder, "clinic", "lab")
    asked = ("predict", "out", rows, "--party", "clinic.toml", "--partners", "lab", "--json")

    def columns(driver: Process) -> Any:
        assert driver.ended() == 0, driver.printed()
        (line,) = [each for each in driver.printed().splitlines() if each.startswith("{")]
        assert json.loads(line)["answered"] == ["lab"], line
        return json.loads(line)["columns"]

    words = tuple(map(str, (*asked, "--mailbox", letters.place)))
    by_letter = federation._begin(eager_command, words)
    letters.answer_by_jobs(by_letter)
    federation.join("lab")
    connected = federation.start(*asked, "--listen", f"127.0.0.1:{federation.port}")
    assert columns(by_letter) == columns(connected)


def test_joint_serving_by_letter_is_refused_with_what_to_do(dovetail: Callable[..., Any]) -> None:
    done = dovetail("serve", "out/run", "--party", "bank.toml", "--mailbox", "place")
    assert done.code == 2
    assert "a letter takes minutes: let them connect (--listen HOST:PORT)" in done.err
    done = dovetail("predict", "out/run", "new.csv", "--mailbox", "place")
    assert done.code == 2


@pytest.mark.slow
@pytest.mark.network
@CASES
def test_a_partner_that_is_killed_twice_changes_no_bit(
    write: Write, name: str, dovetail: Callable[..., Any], lines_models: dict[str, Models]
) -> None:
    letters = write(name, "letters", "place")
    (letters.folder / "place").mkdir()
    killed, *others = letters.case.partners
    for each in others:
        letters.join(each)
    if name == "chfl":
        first, driver = letters.join(killed), letters.train()
        letters.wait_for_book(killed, "chfl.Trained")
        kill(first)  # while it answers, or after it
        second = letters.join(killed)
        letters.wait_for_book(killed, "chfl.Trained", 3)
    else:
        letters.align(killed)
        first = letters.join(killed, poll_s=SLOW_S)
        first.wait_for("looks for letters")
        driver = letters.train()
        mail = letters.folder / "place" / "mail" / killed
        wait_until(lambda: any(mail.iterdir()), "request")
        kill(first)  # which has not looked since
        second = letters.join(killed)
        letters.wait_for_book(killed, letters.case.first)
    kill(second)
    letters.join(killed)
    assert driver.ended() == 0, driver.printed()
    assert_same(letters.models(), trained_on_lines(write, name, lines_models))
    assert_reconciled(letters, dovetail)


@pytest.mark.slow
@pytest.mark.network
@CASES
def test_a_driver_that_is_killed_twice_goes_on_with_the_same_bits(
    write: Write, name: str, dovetail: Callable[..., Any], lines_models: dict[str, Models]
) -> None:
    letters = write(name, "letters", "place")
    (letters.folder / "place").mkdir()
    if name == "chfl":
        for each in letters.case.partners:
            letters.join(each)
    else:
        letters.align("lab")  # and then it looks only when it is started
    driver = letters.train()
    for number in (1, 2):
        if name == "chfl":
            letters.federation.wait_for_lines("out", number, driver)
        else:
            # A partner counts what begins, so the second driver asks it to forget that first.
            words = f"{letters.case.first}|Restore"
            letters.wait_for_book(letters.case.driver, words, number)
        kill(driver)
        if number == 1 and name != "chfl":
            letters.once("lab")  # its answer comes to a driver that is gone
        driver = letters.train("--resume")
    if name != "chfl":
        letters.join("lab")
    assert driver.ended() == 0, driver.printed()
    assert_same(letters.models(), trained_on_lines(write, name, lines_models))
    assert_reconciled(letters, dovetail)


@pytest.mark.network
def test_what_is_wrong_with_a_place_is_said(
    write: Write, dovetail: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = write("chfl", "letters", "place")
    monkeypatch.chdir(letters.folder)
    done = dovetail("join", "north.toml", "--mailbox", "place", "--once")
    assert done.code == 2
    assert "there is no folder place, where letters would lie" in done.err
    done = dovetail("join", "north.toml")
    assert "name where the driver listens, --driver HOST:PORT, or where letters lie" in done.err
    done = dovetail("join", "north.toml", "--mailbox", "place", "--driver", "127.0.0.1:7443")
    assert re.search("--mailbox PLACE: one of them", done.err)
    done = dovetail("train", "network.toml", "--out", "out")
    assert done.code == 2
    assert re.search("there is no folder .*place, where letters would lie", done.err)


@pytest.mark.slow
@pytest.mark.network
@CASES
def test_as_many_letters_come_as_inspect_says(write: Write, name: str) -> None:
    letters = write(name, "letters", "place")
    (letters.folder / "place").mkdir()
    for each in letters.case.partners:
        letters.join(each)
    driver = letters.train()
    assert driver.ended() == 0, driver.printed()
    letters_told = reported()[name].letters
    assert letters_told is not None
    once, a_round = letters_told
    expected = once + 4 * a_round + (0 if name == "chfl" else ALIGNMENT)
    assert letters.book(letters.case.partners[0]).count('"from"') == expected
