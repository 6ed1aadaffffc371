"""The engine of docs/own-engine.md is one: APFed over it gives the same bits as in one process."""

from __future__ import annotations

import re
from pathlib import Path

import forked
import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "own-engine.md").read_text()
ENGINE, RUN, _ = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def execute(folder: Path, text: str) -> str:
    """What a program beside the engine prints; a process of its own, as its parties' are."""
    (folder / "own_engine.py").write_text(ENGINE)
    (folder / "run.py").write_text(text)
    done = forked.script(folder, folder / "run.py", environment={"PYTHONPATH": str(ROOT)})
    assert done.code == 0, done.err
    return done.out


def test_the_page_shows_the_example_and_it_is_short() -> None:
    assert (ROOT / "examples" / "own_engine.py").read_text() == ENGINE
    assert ENGINE.count("\n") < 65


@pytest.mark.slow
def test_apfed_over_pipes_gives_the_same_bits(tmp_path: Path) -> None:
    """The page's own program compares weights; then ledgers, byte by byte."""
    more = """
    print(pipes.ledger.bytes_by_party() == here.ledger.bytes_by_party())
"""
    assert execute(tmp_path, RUN + more).split() == ["same", "bits:", "True", "True"]


LOST_PARTIES = """
import os, time
from dataclasses import dataclass
from dovetail.errors import MessageError
from dovetail.network import Message


@dataclass(frozen=True)
class Ask(Message):
    what: str


class Party:
    accepts = (Ask,)

    def handle(self, message):
        if message.what == "end":
            os._exit(1)
        if message.what == "sleep":
            time.sleep(600)
        if message.what == "refuse":
            raise MessageError("not this")
        return message
"""

#: Its parties are forked: that a new interpreter can be one, the page's own program shows.
LOST = """
import multiprocessing

from lost import Ask, Party
from own_engine import Pipes

if __name__ == "__main__":
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(["lost"])
    multiprocessing.get_context = lambda kind: forking
    engine = Pipes(dict.fromkeys(("a", "b", "c", "d"), Party), driver="driver")
    engine.ask(dict.fromkeys(engine.parties, Ask("hello")), Ask).or_raise()  # all have begun
    asked = {"a": Ask("yes"), "b": Ask("refuse"), "c": Ask("end"), "d": Ask("sleep")}
    for _ in range(2):
        replies = engine.ask(asked, Ask, timeout_s=10)
        print(dict(replies), {name: str(each) for name, each in replies.failures.items()})
        asked = dict.fromkeys(engine.parties, Ask("again"))
"""


@pytest.mark.slow
def test_who_refuses_ends_or_does_not_answer_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "lost.py").write_text(LOST_PARTIES)
    first, second = execute(tmp_path, LOST).splitlines()
    assert first.startswith("{'a': Ask(what='yes')} ")
    for words in (
        "party 'b': not this",
        "party 'c': its process has ended",
        "party 'd': it did not answer in time",
    ):
        assert words in first
    names = re.findall(r"'(\w)': Ask\(what='again'\)", second)
    assert sorted(names) == ["a", "b"]
    assert set(re.findall(r"party '(\w)': its process has ended", second)) == {"c", "d"}
