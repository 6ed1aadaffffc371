"""Federations whose messages are letters, by the commands a user types, for tests."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from federations import PATIENCE_S, Federation, Process, command, free_port
from member_files import SETTINGS, write_members

from dovetail.models import load

STREAM = """
[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
wait_s = 180
partners = {partners}
"""

MAILBOX = """
[engine]
kind = "mailbox"
place = "{place}"
poll_s = 0.1
partners = {partners}
"""

#: Seconds from one look of a party to the next, long enough to be killed in between.
SLOW_S = 3


@dataclass
class Case:
    """A method, who drives, and who joins.

    Attributes:
        run: the run file but for [engine].
        first: the first message of what is trained.
    """

    method: str
    driver: str
    partners: tuple[str, ...]
    run: str
    first: str


CASES = {
    "chfl": Case(
        "chfl",
        "coordinator",
        ("north", "south"),
        'method = "chfl"\nbaselines = []\n' + SETTINGS["chfl"],
        "chfl.Describe",
    ),
    "apfed": Case(
        "apfed",
        "clinic",
        ("lab",),
        'method = "apfed"\nbaselines = []\nparties = ["clinic.toml"]\ntest = 0.3\n'
        '[apfed.distil]\nfolds = 3\nstudents = ["linear"]\n',
        "sealed.Begin",
    ),
    "apfed-d": Case(
        "apfed-d",
        "clinic",
        ("lab",),
        'method = "apfed-d"\nbaselines = []\nparties = ["clinic.toml"]\ntest = 0.3\n'
        '[apfed.distil]\nfolds = 3\nteachers = ["linear"]\nstudents = ["linear"]\n',
        "distil.Begin",
    ),
}


@dataclass
class Letters:
    """A case's files in a folder, and what is started there.

    Attributes:
        place: what parties name with --mailbox; "" where they dial.
    """

    case: Case
    federation: Federation
    place: str

    @property
    def folder(self) -> Path:
        return self.federation.folder

    def join(self, name: str, *more: object, poll_s: float = 0.1) -> Process:
        """A party that goes on looking, or stays on its line."""
        if not self.place:
            return self.federation.join(name)
        looks = ("--mailbox", self.place, "--poll", poll_s)
        return self.federation.start("join", f"{name}.toml", *looks, *more)

    def once(self, name: str, *more: object) -> str:
        """What a job that answers what is there has said."""
        job = self.join(name, "--once", *more)
        assert job.ended() == 0, job.printed()
        return job.printed()

    def answer_by_jobs(self, asking: Process) -> int:
        """How many jobs answered what was there, until who asks had ended.

        One is begun with nothing there, and then whenever a letter is.
        """
        for name in self.case.partners:
            self.once(name)
        number = len(self.case.partners)
        while asking.running():
            time.sleep(0.02)
            for name in self.case.partners:
                mail = self.folder / "place" / "mail" / name
                if mail.exists() and any(mail.iterdir()):
                    self.once(name)
                    number += 1
        return number

    def train(self, *more: object) -> Process:
        return self.federation.start("train", "network.toml", "--out", "out", *more)

    def align(self, name: str) -> None:
        """Align with this party, which has ended then."""
        joined, driver = self.join(name), self.federation.start("align", "network.toml")
        assert driver.ended() == 0, driver.printed()
        joined.signal(signal.SIGTERM)
        assert joined.ended() == 0, joined.printed()

    def models(self) -> dict[str, dict[str, Any]]:
        """Whose model -> its tensors: the driver's, and those that parties keep."""
        folders = {f"driver: {each.name}": each for each in (self.folder / "out").glob("models/*")}
        for name in self.case.partners:
            for variant in (self.folder / f"{name}.site").glob("models/*"):
                if (variant / "model.json").exists():
                    folders[f"{name}: {variant.name.split('+')[1]}"] = variant
        return {whose: dict(load(path).network.state_dict()) for whose, path in folders.items()}

    def book(self, name: str) -> str:
        """A party's ledger as it is now."""
        path = self.folder / f"{name}.site" / "ledger.jsonl"
        return path.read_text() if path.exists() else ""

    def wait_for_book(self, name: str, words: str, number: int = 1) -> None:
        """Wait until a party's ledger has these words so often."""
        wait_until(lambda: len(re.findall(words, self.book(name))) >= number, words)


def wait_until(found: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not found():
        assert time.monotonic() < deadline, f"no {what}"
        time.sleep(0.01)


def kill(process: Process) -> None:
    process.signal(signal.SIGKILL)
    process.ended()


def written(
    folder: Path, name: str, deal: Callable[..., Any], dovetail: Callable[..., Any], place: str
) -> Letters:
    """A case's party files, certificates and network.toml.

    Args:
        place: where letters lie; "" dials.
    """
    case = CASES[name]
    folder.mkdir()
    if case.method == "chfl":
        write_members(folder, "chfl", case.partners, policy='drivers = ["coordinator"]')
    else:
        dealt = deal(folder)
        for each in case.partners:
            agreed = f'"align", "{case.method}"]\ndrivers = ["clinic"]'
            dealt.change(f"{each}.toml", ('"align", "apfed-mixed", "tvfl"]', agreed))
    federation = Federation(folder, free_port(), ("--name", case.driver))
    engine = MAILBOX if place else STREAM
    partners = json.dumps(list(case.partners))
    reported = engine.format(place=place, partners=partners, port=federation.port)
    (folder / "network.toml").write_text(case.run + reported)
    named = (case.driver, *case.partners, "--driver", case.driver, "--host", "127.0.0.1")
    done = dovetail("certificates", *named, "--out", folder / "certificates", "-q")
    assert done.code == 0, done.err
    return Letters(case, federation, place)


def eager_command(folder: Path, output: Path, arguments: Sequence[str]) -> None:
    """``dovetail ARGUMENTS`` that looks for answers ten times a second and not every ten."""
    from dovetail.companions.mailbox import opening

    real = opening.Mailbox

    def eager(*given: Any, poll_s: float, **named: Any) -> Any:
        assert poll_s == 10
        return real(*given, poll_s=0.1, **named)

    opening.Mailbox = eager  # type: ignore[assignment,misc]
    command(folder, output, arguments, local_secrets=False)


def impatient_command(folder: Path, output: Path, arguments: Sequence[str]) -> None:
    """``dovetail ARGUMENTS`` to which a letter is late after half a second."""
    from dovetail.companions.mailbox.watching import LetterWatch

    assert LetterWatch.__init__.__kwdefaults__["late_s"] == 60
    LetterWatch.__init__.__kwdefaults__["late_s"] = 0.5
    command(folder, output, arguments, local_secrets=False)


def certify_relay(letters: Letters, dovetail: Callable[..., Any]) -> None:
    """Certificates of a relay, and of a party that is none of the run."""
    names = ("relay", "eve", "--driver", "relay", "--host", "127.0.0.1")
    done = dovetail("certificates", *names, "--out", letters.folder / "certificates", "-q")
    assert done.code == 0, done.err


def relay_of(letters: Letters, *more: object) -> Process:
    """``dovetail relay`` at the place of these letters, once it answers."""
    port = letters.place.rpartition(":")[2]
    where = ("--certificates", "certificates/relay", "--host", "127.0.0.1", "--port", port)
    process = letters.federation.start("relay", *where, *more)
    process.wait_for("relay at https://127.0.0.1")
    return process
