"""What a driver says of partners that are lost and come back."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.node import driver


class Said:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warn(self, text: str) -> None:
        self.lines.append(text.partition(" ")[2])


def test_who_comes_back_as_the_work_ends_is_said_to_be_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: Any = SimpleNamespace(links=("lab", "shop"), connected=())
    talk: Any = Said()
    with driver._watched(lines, talk):
        while len(talk.lines) < 2:
            time.sleep(0.01)
        # From here on it looks no more until the end.
        monkeypatch.setattr(driver, "TICK_S", 60.0)
        time.sleep(0.3)
        lines.connected = ("lab",)
    lost, other, (back) = talk.lines
    assert {lost, other} == {"lost 'lab'; it may come back", "lost 'shop'; it may come back"}
    assert back.startswith("'lab' is back after ")


def test_who_leaves_as_the_work_ends_is_not_said_to_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "TICK_S", 60.0)
    lines: Any = SimpleNamespace(links=("lab",), connected=("lab",))
    talk: Any = Said()
    with driver._watched(lines, talk):
        lines.connected = ()
    assert talk.lines == []
