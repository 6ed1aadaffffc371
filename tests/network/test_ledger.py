"""The ledger's counts and bytes are those of the messages."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.network import InProcess, Ledger, Message


@dataclass(frozen=True, eq=False)
class Codes(Message):
    samples_B: Tensor
    code_BD: Tensor


@dataclass(frozen=True, eq=False)
class Gradient(Message):
    gradient_BD: Tensor


@dataclass(frozen=True, eq=False)
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
