"""The ledger counts what the messages are; a party's own file shows what was done to it."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dovetail.errors import NetworkError
from dovetail.network import InProcess, Ledger, LedgerFile, Message
from dovetail.network.ledger import NO_HASH, verify


class Codes(Message):
    samples_B: Tensor
    code_BD: Tensor


class Gradient(Message):
    gradient_BD: Tensor


class Hello(Message):
    seed: int


class Helper:
    accepts = (Codes,)

    def handle(self, message: Message) -> Message:
        assert isinstance(message, Codes)
        return Gradient(torch.zeros_like(message.code_BD))


def codes(num_rows: int) -> Codes:
    return Codes(torch.arange(num_rows), torch.zeros(num_rows, 5))


def test_each_kind_of_message_is_one_line() -> None:
    ledger = Ledger()
    ledger.record("bank", "shop", Hello(1))
    for num_rows in (4, 4, 3):  # two full batches and the rest
        ledger.record("bank", "shop", codes(num_rows))
        ledger.record("shop", "bank", Gradient(torch.zeros(num_rows, 5, dtype=torch.float16)))
    lines = list(ledger.lines())
    assert [(line["message"], line["count"], line["bytes"]) for line in lines] == [
        ("test_ledger.Hello", 1, 0),
        ("test_ledger.Codes", 2, 2 * (4 * 8 + 4 * 5 * 4)),
        ("test_ledger.Gradient", 2, 2 * (4 * 5 * 2)),
        ("test_ledger.Codes", 1, 3 * 8 + 3 * 5 * 4),
        ("test_ledger.Gradient", 1, 3 * 5 * 2),
    ]
    assert lines[1]["from"] == "bank"
    assert lines[1]["to"] == "shop"
    assert lines[1]["tensors"] == [
        {"name": "samples_B", "shape": [4], "dtype": "int64"},
        {"name": "code_BD", "shape": [4, 5], "dtype": "float32"},
    ]
    assert lines[2]["tensors"] == [{"name": "gradient_BD", "shape": [4, 5], "dtype": "float16"}]
    assert json.loads(json.dumps(lines)) == lines


def test_what_one_sent_the_other_received() -> None:
    engine = InProcess({"shop": Helper(), "lab": Helper()}, driver="bank")
    engine.ask({"shop": codes(2), "lab": codes(3)}, Gradient)
    engine.ask({"shop": codes(2)}, Gradient)
    sent = {"shop": 2 * (2 * 8 + 2 * 5 * 4), "lab": 3 * 8 + 3 * 5 * 4}
    back = {"shop": 2 * (2 * 5 * 4), "lab": 3 * 5 * 4}
    assert engine.ledger.bytes_by_party() == {
        "bank": {"sent": sent["shop"] + sent["lab"], "received": back["shop"] + back["lab"]},
        "shop": {"sent": back["shop"], "received": sent["shop"]},
        "lab": {"sent": back["lab"], "received": sent["lab"]},
    }


def test_the_ledger_is_the_same_through_bytes() -> None:
    ledgers = []
    for through_bytes in (False, True):
        engine = InProcess({"shop": Helper()}, driver="bank", through_bytes=through_bytes)
        engine.ask({"shop": codes(2)}, Gradient)
        ledgers.append(list(engine.ledger.lines()))
    assert ledgers[0] == ledgers[1]


def test_nothing_sent_is_nothing_counted() -> None:
    assert list(Ledger().lines()) == []
    assert Ledger().bytes_by_party() == {}


def test_bytes_are_counted_as_they_travel() -> None:
    num_bytes = {}
    for precision in ("float32", "float16", "bfloat16", "int8"):
        engine = InProcess({"shop": Helper()}, driver="bank", precision=precision)
        engine.ask({"shop": codes(3)}, Gradient).or_raise()
        num_bytes[precision] = engine.ledger.bytes_by_party()["bank"]
        (sent, _) = engine.ledger.lines()
        assert sent["tensors"][0] == {"name": "samples_B", "shape": [3], "dtype": "int64"}
        assert sent["tensors"][1] == {"name": "code_BD", "shape": [3, 5], "dtype": precision}
    assert sent["tensors"][2:] == [{"name": "code_BD.scale", "shape": [3], "dtype": "float32"}]
    assert num_bytes == {
        "float32": {"sent": 3 * 8 + 60, "received": 60},
        "float16": {"sent": 3 * 8 + 30, "received": 30},
        "bfloat16": {"sent": 3 * 8 + 30, "received": 30},
        "int8": {"sent": 3 * 8 + 15 + 3 * 4, "received": 15 + 3 * 4},
    }


def test_a_restored_ledger_goes_on_counting() -> None:
    def count(ledger: Ledger, times: int) -> None:
        for _ in range(times):
            ledger.record("bank", "shop", codes(4))
            ledger.record("shop", "bank", Gradient(torch.zeros(4, 5)), "int8")
            ledger.record("bank", "shop", Hello(1))

    whole, first, second = Ledger(), Ledger(), Ledger()
    count(whole, 5)
    count(first, 2)
    count(second, 1)  # forgotten
    second.restore(json.loads(json.dumps(first.state())))
    assert list(second.lines()) == list(first.lines())
    count(second, 3)
    assert list(second.lines()) == list(whole.lines())
    assert second.bytes_by_party() == whole.bytes_by_party()


# --- A party's own record -----------------------------------------------------------------------


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of the shop: its opening line, and five messages to two receivers."""
    path = tmp_path / "ledger.jsonl"
    with LedgerFile(path, "shop") as ledger:
        for sequence in (10, 11, 12):
            ledger.record("bank", codes(2), run="a", sequence=sequence, precision="float16")
        ledger.record("clinic", Gradient(torch.zeros(4, 5)), run="b", sequence=3)
        ledger.record("bank", Hello(1), run="a", sequence=13)
    return path


CODES_BYTES = 2 * 8 + 2 * 5 * 2


def test_every_message_that_leaves_is_one_line(path: Path) -> None:
    opening, first, _, third, clinic, hello = lines = written(path)
    assert opening.keys() == {"ledger", "party", "time", "previous", "hash"}
    assert (opening["ledger"], opening["party"]) == ("dovetail ledger 2", "shop")
    assert list(first) == [
        *("time", "run", "sequence", "to", "message", "tensors"),
        *("bytes", "bytes_to", "bytes_all", "previous", "hash"),
    ]
    assert (first["run"], first["sequence"], first["to"]) == ("a", 10, "bank")
    assert first["message"] == "test_ledger.Codes"
    assert first["tensors"] == {"samples_B": ["int64", [2]], "code_BD": ["float16", [2, 5]]}
    totals = [(line["bytes"], line["bytes_to"], line["bytes_all"]) for line in lines[1:]]
    assert totals == [
        (CODES_BYTES, CODES_BYTES, CODES_BYTES),
        (CODES_BYTES, 2 * CODES_BYTES, 2 * CODES_BYTES),
        (CODES_BYTES, 3 * CODES_BYTES, 3 * CODES_BYTES),
        (80, 80, 3 * CODES_BYTES + 80),
        (0, 3 * CODES_BYTES, 3 * CODES_BYTES + 80),
    ]
    assert (third["to"], clinic["to"], hello["tensors"]) == ("bank", "clinic", {})
    for line in lines:
        age = datetime.now(UTC) - datetime.fromisoformat(line["time"])
        assert timedelta(0) <= age + timedelta(milliseconds=1) < timedelta(minutes=5)


def test_the_chain_can_be_redone_by_hand(path: Path) -> None:
    previous = NO_HASH
    for line in path.read_bytes().splitlines():
        entries = json.loads(line)
        assert entries["previous"] == previous
        previous = hashlib.sha256(line.split(b',"hash":')[0]).hexdigest()
        assert entries["hash"] == previous
    assert verify(path).last_hash == previous


def test_what_is_verified_is_what_was_recorded(path: Path) -> None:
    verified = verify(path)
    assert (verified.party, verified.num_lines, verified.unfinished_bytes) == ("shop", 6, 0)
    assert verified.bytes_to() == {"bank": 3 * CODES_BYTES, "clinic": 80}
    first, clinic, hello = verified.lines()
    assert first == {
        "to": "bank",
        "message": "test_ledger.Codes",
        "tensors": [
            {"name": "samples_B", "shape": [2], "dtype": "int64"},
            {"name": "code_BD", "shape": [2, 5], "dtype": "float16"},
        ],
        "count": 3,
        "bytes": 3 * CODES_BYTES,
        "first": written(path)[1]["time"],
        "last": written(path)[3]["time"],
    }
    assert [(line["count"], line["bytes"]) for line in (clinic, hello)] == [(1, 80), (1, 0)]


def test_a_ledger_goes_on_where_it_ended(path: Path) -> None:
    before = path.read_bytes()
    with LedgerFile(path, "shop") as ledger:
        ledger.record("clinic", Gradient(torch.zeros(1, 5)))
    assert path.read_bytes().startswith(before)
    last = written(path)[-1]
    assert (last["bytes"], last["bytes_to"], last["bytes_all"]) == (20, 100, 100 + 3 * CODES_BYTES)
    verified = verify(path)
    assert (verified.num_lines, verified.last_hash) == (8, ledger.last_hash)


def test_each_line_is_in_the_file_when_its_message_may_leave(tmp_path: Path) -> None:
    ledger = LedgerFile(tmp_path / "ledger.jsonl")
    for number in range(1, 4):
        ledger.record("bank", codes(1), sequence=number)
        assert written(ledger.path)[-1]["sequence"] == number
        assert verify(ledger.path, noted=ledger.last_hash).num_lines == number + 1
    ledger.close()


def test_only_its_owner_reads_a_ledger(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# --- What was done to it shows ------------------------------------------------------------------


def changed(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], lines[3].replace(b'"bank"', b'"bonk"'), *lines[4:]]


def changed_with_its_hash(lines: list[bytes]) -> list[bytes]:
    body = lines[3].replace(b'"run":"a"', b'"run":"z"').split(b',"hash":')[0]
    digest = hashlib.sha256(body).hexdigest().encode()
    return [*lines[:3], b'%b,"hash":"%b"}\n' % (body, digest), *lines[4:]]


TAMPERED: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "changed": (changed, "line 4 was changed: its hash is not that of its text"),
    "changed with its hash": (changed_with_its_hash, "line 5 does not follow line 4"),
    "a space": (
        lambda lines: [*lines[:2], lines[2][:-1] + b" \n", *lines[3:]],
        "line 3 was change",
    ),
    "hash": (
        lambda lines: [*lines[:2], lines[2][:-9] + b'00000"}\n', *lines[3:]],
        "line 3 was cha",
    ),
    "removed": (lambda lines: lines[:2] + lines[3:], "line 3 does not follow line 2: there a line"),
    "removed at the beginning": (lambda lines: lines[1:], "line 1 does not follow the beginning"),
    "reordered": (lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]], "line 3 does not fo"),
    "repeated": (lambda lines: [*lines[:3], lines[2], *lines[3:]], "line 4 does not follow line 3"),
    "inserted": (lambda lines: [*lines[:3], b'{"to":"bank"}\n', *lines[3:]], "line 4 was changed"),
    "no JSON": (lambda lines: [*lines[:3], b"\n", *lines[3:]], "line 4 was changed: it is no line"),
    "zeros": (lambda lines: [*lines[:5], bytes(400) + b"\n"], "line 6 was changed: it is no line"),
    "a half line in the middle": (
        lambda lines: [*lines[:3], lines[3][:50], *lines[4:]],
        "line 4 was changed: it is no line of a ledger",
    ),
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_the_first_bad_line_is_named_and_nothing_is_appended(path: Path, kind: str) -> None:
    tamper, words = TAMPERED[kind]
    broken = b"".join(tamper(path.read_bytes().splitlines(keepends=True)))
    path.write_bytes(broken)
    with pytest.raises(NetworkError, match=words):
        verify(path)
    with pytest.raises(NetworkError, match=words):
        LedgerFile(path, "shop")
    assert path.read_bytes() == broken


@pytest.mark.parametrize("made", [{"bytes": 8}, {"count": math.inf}])
def test_totals_that_are_not_the_sums_show_even_with_hashes_made_to_fit(
    path: Path, made: dict[str, float]
) -> None:
    previous, lines = NO_HASH, []
    for entries in written(path):
        entries = {**entries, "previous": previous}
        if entries.get("bytes") == 80:
            entries |= made
        del entries["hash"]
        body = json.dumps(entries, separators=(",", ":"))[:-1].encode()
        previous = hashlib.sha256(body).hexdigest()
        lines.append(b'%b,"hash":"%b"}\n' % (body, previous.encode()))
    path.write_bytes(b"".join(lines))
    with pytest.raises(NetworkError, match=r"line 5 is no line of a ledger: .* totals are not"):
        verify(path)


def test_lines_missing_at_the_end_show_only_against_a_noted_hash(path: Path) -> None:
    noted = verify(path).last_hash
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]))
    assert verify(path).num_lines == 4
    with pytest.raises(NetworkError, match=f"no line has the hash {noted}: the file was"):
        verify(path, noted=noted)
    path.write_bytes(b"".join(lines))
    with LedgerFile(path, "shop") as ledger:
        ledger.record("bank", Hello(2))
    assert verify(path, noted=noted).num_lines == 8


# --- Crashes, full disks, wrong files -------------------------------------------------------------


def test_the_half_line_of_a_crash_is_dropped_and_the_next_start_says_so(path: Path) -> None:
    whole = path.read_bytes()
    for length in (1, 40, 300):
        path.write_bytes(whole + whole.splitlines()[1][:length])
        assert verify(path).unfinished_bytes == length
        assert verify(path).num_lines == 6
        with LedgerFile(path, "shop") as ledger:
            ledger.record("bank", Hello(2))
        assert path.read_bytes().startswith(whole)
        assert written(path)[6]["cut"] == length
        assert verify(path).num_lines == 8


def test_a_crash_in_the_very_first_line_leaves_a_new_ledger(path: Path) -> None:
    first = path.read_bytes().splitlines()[0]
    for length in (0, 1, 10, len(first)):
        path.write_bytes(first[:length])
        LedgerFile(path, "shop").close()
        assert verify(path).num_lines == 1


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 100

    def write(file: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        num = really(file, data[:room])
        room -= num
        return num

    really = os.write
    with LedgerFile(path, "shop") as ledger:
        before = path.read_bytes()
        monkeypatch.setattr(os, "write", write)
        for left in (100, 0):
            room = left
            with pytest.raises(NetworkError, match=r"cannot be written \(No space left .* go on$"):
                ledger.record("bank", codes(2))
            assert path.read_bytes() == before
        room = 10_000
        ledger.record("bank", codes(2))
    assert verify(path).num_lines == 8
    assert verify(path).bytes_to()["bank"] == 3 * CODES_BYTES + 2 * 8 + 2 * 5 * 4


def test_a_ledger_has_one_writer(path: Path) -> None:
    with LedgerFile(path, "shop") as first, LedgerFile(path, "shop") as second:
        second.record("bank", Hello(1))
        with pytest.raises(NetworkError, match="somebody else has written to it"):
            first.record("bank", Hello(2))
    assert verify(path).num_lines == 9


def test_a_closed_ledger_takes_no_line(path: Path) -> None:
    ledger = LedgerFile(path, "shop")
    ledger.close()
    ledger.close()
    with pytest.raises(NetworkError, match="this ledger is closed"):
        ledger.record("bank", Hello(1))


def test_a_ledger_belongs_to_one_party(path: Path) -> None:
    with pytest.raises(NetworkError, match="of party 'lab', found that of 'shop'; give each"):
        LedgerFile(path, "lab")
    assert verify(path).num_lines == 6


@pytest.mark.parametrize("content", [b"hello", b"hello\n", b"{}\n", b"[1]\n", b"\0" * 5000])
def test_a_file_that_is_no_ledger_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(NetworkError, match="this is no ledger of a party"):
        LedgerFile(path)
    assert path.read_bytes() == content


def test_a_run_s_summary_has_no_chain_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger()
    ledger.record("bank", "shop", codes(2))
    lines = [json.dumps({"variant": "seed-0", **line}) for line in ledger.lines()]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(NetworkError, match="a run's summary of messages, which has no chain"):
        verify(path)


def test_a_ledger_that_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match=r"ledger cannot be written \(No such file"):
        LedgerFile(tmp_path / "none" / "ledger.jsonl")
    with pytest.raises(NetworkError, match=r"cannot be read \(No such file"):
        verify(tmp_path / "ledger.jsonl")
