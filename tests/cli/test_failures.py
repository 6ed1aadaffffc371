"""What breaks when, between two machines: two processes, real TLS, the default method."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from federations import Federation, Process, command, free_port
from mailboxes import wait_until

from dovetail.network.quota import Quota

pytest.importorskip("seal")

RUN = """
method = "apfed"
baselines = []
parties = ["clinic.toml"]
test = 0.3

[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = ["lab"]
wait_s = 60

[apfed.distil]
folds = 3
students = ["linear"]
"""


def holding_command(
    folder: Path, output: Path, arguments: Sequence[str], kind: str, after: bool
) -> None:
    """Run a party that stops at a message of this kind, before or after it has handled it."""
    from dovetail.network.host import Host

    real = Host._answer

    def answer(self: Host, opened: Any, driver: str) -> Any:
        held = opened.header.type == kind
        done = real(self, opened, driver) if after or not held else None
        if held:
            (folder / "held").touch()
        while held and (folder / "hold").exists():
            time.sleep(0.01)
        return done or real(self, opened, driver)

    Host._answer = answer  # type: ignore[method-assign]
    command(folder, output, arguments)


@dataclass(eq=False)
class Two(Federation):
    """A clinic that drives, and a lab; each site has a secret of its own, the same in each test."""

    def change_run(self, *changes: tuple[str, str]) -> None:
        path = self.folder / "network.toml"
        text = path.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        path.write_text(text)

    place: str = ""  # where letters lie; "": the lab dials

    def by_letter(self) -> None:
        """From here on messages are letters."""
        self.place = "mail"
        (self.folder / "mail").mkdir()
        listening = f'kind = "stream"\nlisten = "127.0.0.1:{self.port}"'
        self.change_run((listening, 'kind = "mailbox"\nplace = "mail"\npoll_s = 0.2'))

    def _joining(self) -> tuple[str, ...]:
        if self.place:
            return (
                "join",
                "lab.toml",
                "--mailbox",
                self.place,
                "--once",
                "--linger",
                "60",
                *self.joining,
            )
        return ("join", "lab.toml", "--driver", f"127.0.0.1:{self.port}", *self.joining)

    def join_lab(self) -> Process:
        return self.start(*self._joining())

    def join_holding(self, kind: str, *, after: bool = False) -> Process:
        """A lab that stops at a message of this kind, as long as the file "hold" is there."""
        (self.folder / "hold").touch()
        (self.folder / "held").unlink(missing_ok=True)
        return self._begin(holding_command, self._joining(), kind, after)

    def wait_held(self) -> None:
        """Wait until a party has stopped at its message; all are running till then."""

        def held() -> bool:
            for each in self.started:
                assert each.running(), each.printed()
            return (self.folder / "held").exists()

        wait_until(held, "message held")

    def train(self, out: str, *more: object) -> Process:
        return self.start("train", "network.toml", "--out", out, *more)

    def weights(self, out: str) -> bytes:
        return (self.folder / out / "models" / "clinic" / "model.safetensors").read_bytes()

    def refusals(self, name: str) -> list[Any]:
        path = self.folder / f"{name}.site" / "refusals.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def count(self, sql: str, name: str = "lab") -> Any:
        ((number,),) = Quota(self.folder / f"{name}.site").read(sql)
        return number


def written(folder: Path, deal: Any, dovetail: Any, *changes: tuple[str, str]) -> Two:
    """Party files, certificates, secrets and network.toml."""
    dealt = deal(folder)
    named = ("clinic", "lab", "--driver", "clinic", "--host", "127.0.0.1", "-q")
    assert dovetail("certificates", *named, "--out", folder / "certificates").code == 0
    port = free_port()
    for name in ("clinic", "lab"):
        dealt.change(f"{name}.toml", ('"align", "apfed-mixed", "tvfl"]', '"align", "apfed"]'))
        site = folder / f"{name}.site"
        site.mkdir(mode=0o700)
        (site / "secret").touch(mode=0o600)
        (site / "secret").write_text(name.encode().hex()[:6].ljust(32, "0"))
    two = Two(folder, port, ("--name", "clinic"), local_secrets=True)
    (folder / "network.toml").write_text(RUN.format(port=port))
    two.change_run(*changes)
    return two


@pytest.fixture
def two(tmp_path: Path, deal: Any, dovetail: Any) -> Iterator[Two]:
    with written(tmp_path / "two", deal, dovetail).ending() as federation:
        yield federation


@pytest.fixture
def twin(tmp_path: Path, deal: Any, dovetail: Any) -> Callable[[], bytes]:
    """Weights of the run that nothing disturbs."""

    def undisturbed() -> bytes:
        with written(tmp_path / "twin", deal, dovetail).ending() as federation:
            federation.join("lab")
            driver = federation.train("out")
            assert driver.ended() == 0, driver.printed()
            return federation.weights("out")

    return undisturbed


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_partner_killed_at_the_only_question_is_asked_again_and_counts_once(
    two: Two, twin: Callable[[], bytes], after: bool
) -> None:
    lab = two.join_holding("sealed.Begin", after=after)
    driver = two.train("out")
    two.wait_held()
    lab.signal(signal.SIGKILL)
    driver.wait_for("lost 'lab'")
    time.sleep(7)  # longer than the 5 s that a partner's restart once had
    (two.folder / "hold").unlink()
    two.join("lab")
    assert driver.ended() == 0, driver.printed()
    assert two.weights("out") == twin()
    assert two.count("SELECT count(*) FROM begins") == 1


@pytest.mark.network
@pytest.mark.slow
def test_a_partner_killed_in_alignment_and_started_again_aligns_anew(
    two: Two, twin: Callable[[], bytes]
) -> None:
    lab = two.join_holding("psi.GetDoubled")
    driver = two.train("out")
    two.wait_held()
    lab.signal(signal.SIGKILL)
    driver.wait_for("lost 'lab'")
    (two.folder / "hold").unlink()
    two.join("lab")
    assert driver.ended() == 0, driver.printed()
    assert "it was started again in the middle of one" in driver.printed()
    assert two.weights("out") == twin()


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_partner_that_stays_away_in_alignment_ends_the_run_with_what_to_do(
    two: Two, number: int
) -> None:
    two.change_run(("wait_s = 60", "wait_s = 60\ngrace_s = 1"))
    lab = two.join_holding("psi.GetDoubled")
    driver = two.train("out")
    two.wait_held()
    lab.signal(number)
    assert driver.ended() == 2
    assert re.search(
        r"party 'lab': has not been connected since \d\d:\d\d:\d\d; start dovetail join there "
        "again, then give this command again: nothing was aligned$",
        driver.printed().strip(),
    ), driver.printed()


@pytest.mark.network
@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("", r"party 'lab': refuses 'apfed': its policy allows align; its owner may add"),
        (', "apfed"', r"policy\.max_runs_per_day is 1; wait, or ask"),
        (', "apfed"', r"policy\.sealed\.numbers_per_row is 0; ask its owner to raise it"),
    ],
    ids=["method", "runs", "numbers"],
)
def test_what_a_partner_would_refuse_is_refused_before_ids_are_compared(
    two: Two, policy: str, words: str
) -> None:
    path = two.folder / "lab.toml"
    more = "sealed = { numbers_per_row = 0 }" if "sealed" in words else "max_runs_per_day = 1"
    allowed = path.read_text().replace(', "apfed"]', f"{policy}]\n{more}")
    path.write_text(allowed)
    if "runs" in words:
        begun = ("clinic", "before", "sealed", 1, time.time() + 2 * 86400, False, "")
        Quota(two.folder / "lab.site").write("INSERT INTO begins VALUES (?,?,?,?,?,?,?)", *begun)
    lab, driver = two.join("lab"), two.train("out")
    assert driver.ended() == 2
    assert re.search(words, driver.printed().strip().splitlines()[-1]), driver.printed()
    assert two.count("SELECT count(*) FROM alignments") == 0
    assert not (two.folder / "lab.site" / "aligned").exists()
    assert "refuses" in json.dumps(two.refusals("lab"))
    went_back = "the clock here went back: 1 runs and alignments that are later than now count"
    assert (went_back in lab.printed()) == ("runs" in words)


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["told", "killed"])
def test_an_alignment_by_letter_goes_on_or_begins_anew_by_itself(two: Two, number: int) -> None:
    two.by_letter()
    lab = two.join_holding("psi.GetDoubled", after=True)
    driver = two.train("out")
    two.wait_held()
    lab.signal(number)
    (two.folder / "hold").unlink()
    told = number == signal.SIGTERM
    assert lab.ended() == (0 if told else -signal.SIGKILL)
    left = two.folder / "lab.site" / "mailbox" / "clinic.aligning"
    assert ("ends in the middle of an alignment" in lab.printed()) == told == left.exists()
    two.join_lab()
    assert driver.ended() == 0, driver.printed()
    assert not left.exists()
    assert two.count("SELECT count(*) FROM alignments") == (1 if told else 2)
    assert ("aligning anew" in driver.printed()) == (not told)


@pytest.mark.network
@pytest.mark.slow
def test_a_store_behind_its_ledger_answers_nothing_until_it_is_counted_anew(two: Two) -> None:
    lab, driver = two.join_lab(), two.train("out")
    assert driver.ended() == 0, driver.printed()
    lab.signal(signal.SIGTERM)
    assert lab.ended() == 0
    site = two.folder / "lab.site"
    for path in site.glob("site.sqlite*"):
        path.unlink()
    lab = two.join_lab()
    assert lab.ended() == 2
    assert "lacks 2 runs and alignments that lab.site/ledger.jsonl has" in lab.printed()
    assert "dovetail ledger lab.site --rebuild" in lab.printed()
    again = two.start("ledger", "lab.site", "--rebuild")
    assert again.ended() == 0, again.printed()
    assert two.count("SELECT count(*) FROM begins") == 1
    assert two.count("SELECT count(*) FROM alignments") == 1
    lab, driver = two.join_lab(), two.train("again")
    assert driver.ended() == 2
    assert "ask its owner to raise it" in driver.printed()
