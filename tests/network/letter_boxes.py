"""A driver, a party and a place in one process, and a place that does as a test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from processes import Answer, Doubles, Question, credentials
from torch import ones

from dovetail.companions.mailbox.answering import Mailman
from dovetail.companions.mailbox.folder import Folder
from dovetail.companions.mailbox.keys import LetterKeys
from dovetail.companions.mailbox.places import Place
from dovetail.companions.mailbox.sending import Mailbox
from dovetail.companions.mailbox.watching import LetterWatch
from dovetail.network.certificates import Authority
from dovetail.network.host import Host
from dovetail.network.ledger import LedgerFile
from dovetail.network.renewal import Certified

POLL_S = 0.02


@dataclass
class Kept:
    """Keeps how often a party has answered, by mark, as its run's states are kept.

    Attributes:
        party: whose state it is.
        states: mark -> how often it had answered.
    """

    party: Doubles
    states: dict[int, int] = field(default_factory=dict)
    half_done: str = ""

    def take(self, driver: str, letter: str) -> None: ...

    def park(self, driver: str, mark: int) -> None:
        self.states[mark] = self.party.handled

    def busy(self, driver: str) -> str:
        return self.half_done


class Lying:
    """A place that hands on what a real one does, and changes it as a test says.

    Attributes:
        put_, get_, names_: called in the place of the real ones' own; None: as they are.
    """

    def __init__(self, place: Place) -> None:
        self.place, self.where = place, place.where
        self.put_: Callable[[str, bytes], None] | None = None
        self.get_: Callable[[str, bytes | None], bytes | None] | None = None
        self.names_: Callable[[str, list[str]], list[str]] | None = None
        self.removed: dict[str, bytes] = {}

    def put(self, name: str, data: bytes) -> None:
        (self.put_ or self.place.put)(name, data)

    def get(self, name: str, most: int) -> bytes | None:
        found = self.place.get(name, most)
        return found if self.get_ is None else self.get_(name, found)

    def names(self, folder: str) -> list[str]:
        found = self.place.names(folder)
        return found if self.names_ is None else self.names_(folder, found)

    def remove(self, name: str) -> None:
        data = self.place.get(name, 2**20)
        if data is not None:
            self.removed[name] = data
        self.place.remove(name)

    def close(self) -> None:
        self.place.close()


class Post:
    """A bank that drives, a shop that answers, and what each was told.

    Args:
        folder: where all lies.
        late_s, torn_s: of both sides.
    """

    def __init__(self, folder: Path, *, late_s: float = 60.0, torn_s: float = 60.0) -> None:
        self.authority = Authority.create(now=datetime.now(UTC))
        self.folder = folder
        for each in ("place", "shop"):
            (folder / each).mkdir()
        self.place = Lying(Folder(folder / "place"))
        self.late = {"late_s": late_s, "torn_s": torn_s}
        self.told: dict[str, list[str]] = {"bank": [], "shop": []}
        self.refused: list[str] = []
        self.party = Doubles()
        self.kept = Kept(self.party)
        self.bank = Certified(credentials(self.authority, "bank", listens=True))
        self.shop = Certified(credentials(self.authority, "shop"))
        self.mailman = self.start()

    def start(self) -> Mailman:
        """The shop's process, which is another than before: it has what its disk has."""
        journal = self.folder / "shop" / "mailbox"
        ledger = LedgerFile(self.folder / "shop" / "ledger.jsonl", "shop")
        host = Host(
            "shop",
            lambda *_: self.party,
            ledger=ledger,
            on_refusal=lambda driver, kind, run, why: self.refused.append(why),
        )
        keys = LetterKeys(journal)
        watch = LetterWatch(self.place.where, self.told["shop"].append, **self.late)
        drivers = ("bank",)
        mailman = Mailman(host, self.place, keys, self.shop, drivers, journal, self.kept, watch)
        keys.publish(self.place, self.shop)
        self.party.handled = self.kept.states.get(mailman.last["bank"].mark, 0)
        self.mailman = mailman
        return mailman

    def drive(self) -> Mailbox:
        """The bank's process."""
        return Mailbox(
            self.place,
            parties=["shop"],
            driver="bank",
            identity=self.bank,
            show=self.told["bank"].append,
            poll_s=POLL_S,
            watch=LetterWatch(self.place.where, self.told["bank"].append, **self.late),
        )

    def printed(self, name: str, words: str) -> bool:
        return any(words in each for each in self.told[name])


class Looks(threading.Thread):
    """Has the shop look all the time, until it is told to stop."""

    def __init__(self, post: Post) -> None:
        super().__init__(daemon=True)
        self.post, self.ended = post, threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.ended.wait(POLL_S):
                self.post.mailman.look()
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Looks:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()


def ask(mailbox: Mailbox, times: int = 1, *, timeout_s: float = 20.0) -> list[Answer]:
    """The shop's answers to so many questions, one after the other."""
    mailbox.wait(10)
    engine = mailbox.engine("run", timeout_s=timeout_s)
    return [
        engine.ask({"shop": Question(ones(1))}, Answer).or_raise()["shop"] for _ in range(times)
    ]


def until(found: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.01)
