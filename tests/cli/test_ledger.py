"""``dovetail ledger``: what left a party, and one sentence where its record is broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dovetail.network import LedgerFile, Message


class Gradient(Message):
    gradient_BD: Tensor


class Ready(Message):
    num_rows: int


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    with LedgerFile(path, "shop") as ledger:
        ledger.record("bank", Ready(4))
        for _ in range(2500):
            ledger.record("bank", Gradient(torch.zeros(4, 5)), precision="float16")
    return path


def test_the_table_says_for_whom_what_and_how_much(dovetail: Any, path: Path) -> None:
    last = json.loads(path.read_bytes().splitlines()[-1])["hash"]
    done = dovetail("ledger", path)
    assert done.code == 0
    assert "Left 'shop'" in done.out
    row = next(line for line in done.out.splitlines() if "test_ledger.Gradient" in line)
    for cell in ("bank", "gradient_BD float16 4x5", "2,500", "100,000"):
        assert cell in row
    assert f"unbroken: 2,502 lines, last hash {last}\n" in done.out
    began, ended = (
        json.loads(path.read_bytes().splitlines()[index])["time"][:19].replace("T", " ")
        for index in (1, -1)
    )
    assert f"\n{began} to {ended} (UTC); --json has the times of each\n" in done.out
    assert dovetail("ledger", path, "--noted", last).code == 0


def test_eighty_columns_hold_a_row(
    dovetail: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with LedgerFile(tmp_path / "long", "a-hospital") as ledger:
        ledger.record("long-beach", Gradient(torch.zeros(512, 36)))
    done = dovetail("ledger", tmp_path / "long")
    rows = [line.split() for line in done.out.splitlines() if "Gradient" in line]
    shown = "long-beach test_ledger.Gradient gradient_BD float32 512x36 1 73,728"
    assert rows == [shown.split()]


def test_json_is_the_same_result(dovetail: Any, path: Path) -> None:
    result = json.loads(dovetail("ledger", path, "--json").out)
    assert (result["party"], result["unbroken"], result["lines"]) == ("shop", True, 2502)
    assert result["bytes_to"] == {"bank": 100_000}
    assert [(line["message"], line["count"], line["bytes"]) for line in result["sent"]] == [
        ("test_ledger.Ready", 1, 0),
        ("test_ledger.Gradient", 2500, 100_000),
    ]


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_broken_ledger_is_one_sentence_and_exit_code_2(
    dovetail: Any, path: Path, arguments: tuple[str, ...]
) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1000] + lines[1001:]))
    done = dovetail("ledger", path, *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"dovetail: {path}: line 1001 does not follow line 1000: there a line was removed, "
        "inserted, moved or changed\n"
    )


def test_a_hash_that_is_not_there_is_exit_code_2(dovetail: Any, path: Path) -> None:
    done = dovetail("ledger", path, "--noted", "0" * 64)
    assert (done.code, done.out) == (2, "")
    assert "its chain is unbroken, but no line has the hash 000" in done.err


def test_an_unfinished_line_is_told_and_no_fault(dovetail: Any, path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'{"time":')
    done = dovetail("ledger", path)
    assert done.code == 0
    assert "After them stand 8 bytes of a line that was not finished" in done.out


def test_a_runs_summary_is_told_from_a_ledger(dovetail: Any, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"variant":"seed-0","from":"a","to":"b","message":"x","count":1,"bytes":2}\n')
    done = dovetail("ledger", path)
    assert (done.code, done.out) == (2, "")
    assert "this is a run's summary of messages, which has no chain to verify" in done.err
    assert done.err.count("\n") == 1


def test_a_file_that_is_not_there_is_exit_code_2(dovetail: Any, tmp_path: Path) -> None:
    done = dovetail("ledger", tmp_path / "none.jsonl")
    assert (done.code, done.out) == (2, "")
    assert (
        done.err
        == f"dovetail: {tmp_path / 'none.jsonl'}: cannot be read (No such file or directory)\n"
    )


def test_what_a_ledger_says_cannot_steer_the_terminal(dovetail: Any, tmp_path: Path) -> None:
    with LedgerFile(tmp_path / "l", "sh\x1b[31mop") as ledger:
        ledger.record("[red]ba\x1b]0;x\x07nk", Ready(1))
    done = dovetail("ledger", tmp_path / "l")
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "[red]ba" in done.out


def test_help_says_what_it_shows(dovetail: Any) -> None:
    done = dovetail("ledger", "--help")
    assert done.code == 0
    assert "what left a party" in done.out
    assert "--noted" in done.out
