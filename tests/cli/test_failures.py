"""What breaks when, between two machines: two processes, real TLS, the table of docs/network.md."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from federations import Federation, Process, command, free_port
from mailboxes import wait_until
from safetensors.torch import load_file

from dovetail.network.quota import Quota

PAGE = Path(__file__).parents[2] / "docs" / "network.md"

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

[apfed]
encoder = [8]
head = [8]
epochs = 1
steps_per_epoch = 6
learning_rate = 0.05
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


class Cable:
    """A line through here to a port, that can be cut."""

    def __init__(self, port: int) -> None:
        self._to, self._open, self._ends = port, True, list[socket.socket]()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                if not self._open:
                    near.close()
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    near.close()
                    continue
                self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    @staticmethod
    def _carry(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self._open = False
        for each in self._ends:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._ends.clear()

    def mend(self) -> None:
        self._open = True

    def close(self) -> None:
        self.cut()
        self._listening.close()


@dataclass(frozen=True)
class Disk:
    """A small disk of its own, in memory."""

    folder: Path

    def fill(self) -> None:
        """Leave no byte free."""
        with suppress(OSError), (self.folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def empty(self) -> None:
        (self.folder / "filler").unlink()


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """A folder, with what it has, as a disk of 8 MiB; only root may."""
    before = folder.with_name(f"{folder.name}-before")
    folder.mkdir(exist_ok=True)
    shutil.copytree(folder, before)
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no small disk can be mounted here: only root may")
    try:
        shutil.copytree(before, folder, dirs_exist_ok=True)
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@dataclass(eq=False)
class Two(Federation):
    """A clinic that drives, and a lab; each site has a secret of its own, the same in each test."""

    place: str = ""  # where letters lie; "": the lab dials
    through: int = 0  # port that the lab dials; 0: the driver's
    predicts: bool = False  # the driver predicts by a run that is there, rather than trains

    def change_run(self, *changes: tuple[str, str]) -> None:
        path = self.folder / "network.toml"
        text = path.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        path.write_text(text)

    def by_letter(self) -> None:
        """From here on messages are letters."""
        self.place = "mail"
        (self.folder / "mail").mkdir()
        listening = f'kind = "stream"\nlisten = "127.0.0.1:{self.port}"'
        self.change_run((listening, 'kind = "mailbox"\nplace = "mail"\npoll_s = 0.2'))

    def of_method(self, method: str) -> None:
        """From here on it is of APFed or APFed-S."""
        if method == "APFed":
            self.change_run(('method = "apfed"', 'method = "apfed-mixed"'))

    def _joining(self) -> tuple[str, ...]:
        if self.place:
            looks = ("--mailbox", self.place, "--once", "--linger", "60")
            return ("join", "lab.toml", *looks, *self.joining)
        address = f"127.0.0.1:{self.through or self.port}"
        return ("join", "lab.toml", "--driver", address, *self.joining)

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

    def let_go(self) -> None:
        (self.folder / "hold").unlink(missing_ok=True)

    def train(self, out: str, *more: object) -> Process:
        return self.start("train", "network.toml", "--out", out, *more)

    def drive(self, *more: object) -> Process:
        """What the driver does: a run into "out", or a prediction into "said.csv"."""
        if not self.predicts:
            return self.train("out", *more)
        wait = () if self.place else ("--wait", "60")
        reach = ("--mailbox", self.place) if self.place else ("--listen", f"127.0.0.1:{self.port}")
        asked = ("--party", "clinic.toml", "--partners", "lab", *reach, *wait)
        return self.start("predict", "trained", "new.csv", "--out", "said.csv", *asked)

    def made(self) -> bytes:
        """Weights of the run in "out", or what was predicted."""
        return (self.folder / "said.csv").read_bytes() if self.predicts else self.weights("out")

    def weights(self, out: str) -> bytes:
        return (self.folder / out / "models" / "clinic" / "model.safetensors").read_bytes()

    def refusals(self, name: str) -> list[Any]:
        path = self.folder / f"{name}.site" / "refusals.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def count(self, sql: str, name: str = "lab") -> Any:
        ((number,),) = Quota(self.folder / f"{name}.site").read(sql)
        return number


def written(folder: Path, deal: Any, dovetail: Any) -> Two:
    """Party files, certificates, secrets and network.toml."""
    dealt = deal(folder)
    named = ("clinic", "lab", "--driver", "clinic", "--host", "127.0.0.1", "-q")
    assert dovetail("certificates", *named, "--out", folder / "certificates").code == 0
    port = free_port()
    for name in ("clinic", "lab"):
        dealt.change(f"{name}.toml", ('"apfed-mixed", "tvfl"]', '"apfed-mixed", "apfed"]'))
        site = folder / f"{name}.site"
        site.mkdir(mode=0o700)
        (site / "secret").touch(mode=0o600)
        (site / "secret").write_text(name.encode().hex()[:6].ljust(32, "0"))
    (folder / "network.toml").write_text(RUN.format(port=port))
    return Two(folder, port, ("--name", "clinic"), local_secrets=True)


@pytest.fixture
def two(tmp_path: Path, deal: Any, dovetail: Any) -> Iterator[Two]:
    with written(tmp_path / "two", deal, dovetail).ending() as federation:
        assert isinstance(federation, Two)
        yield federation


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What tests of this file share: an aligned pair, and the weights of undisturbed runs."""
    return {"folder": tmp_path_factory.mktemp("aligned") / "pair"}


@pytest.fixture
def aligned(
    two: Two, twins: dict[str, Any], tmp_path: Path, deal: Any, dovetail: Any
) -> Callable[[str], bytes]:
    """Has two begin aligned; method -> weights of its undisturbed run on that alignment."""
    folder = twins["folder"]
    if not folder.exists():
        with written(folder, deal, dovetail).ending() as pair:
            assert isinstance(pair, Two)
            lab, driver = pair.join_lab(), pair.start("align", "network.toml")
            assert driver.ended() == 0, driver.printed()
            lab.signal(signal.SIGTERM)
            lab.ended()
    for name in ("clinic", "lab"):
        shutil.copytree(folder / f"{name}.site", two.folder / f"{name}.site", dirs_exist_ok=True)

    def undisturbed(method: str) -> bytes:
        if two.predicts:
            return bytes(twins["predicted"])
        if method not in twins:
            copied = shutil.copytree(folder, tmp_path / f"twin-{method}")
            with Two(copied, free_port(), two.joining, local_secrets=True).ending() as pair:
                assert isinstance(pair, Two)
                (copied / "network.toml").write_text(RUN.format(port=pair.port))
                pair.of_method(method)
                pair.join_lab()
                driver = pair.train("out")
                assert driver.ended() == 0, driver.printed()
                twins[method] = pair.weights("out")
        weights: bytes = twins[method]
        return weights

    return undisturbed


@pytest.fixture
def trained(two: Two, aligned: Callable[[str], bytes], twins: dict[str, Any]) -> None:
    """Has two predict by a run that is over, and twins have what it predicts undisturbed."""
    kept = twins["folder"].with_name("trained")
    if not kept.exists():
        shutil.copytree(twins["folder"], kept)
        with Two(kept, free_port(), two.joining, local_secrets=True).ending() as pair:
            assert isinstance(pair, Two)
            (kept / "network.toml").write_text(RUN.format(port=pair.port))
            policy = (kept / "lab.toml").read_text()
            twice = "[policy]\nsealed = { numbers_per_row = 2 }"  # of training, and of a prediction
            (kept / "lab.toml").write_text(policy.replace("[policy]", twice, 1))
            rows = (kept / "clinic.csv").read_text().splitlines(keepends=True)
            (kept / "new.csv").write_text("".join(rows[:80]))
            lab, driver = pair.join_lab(), pair.train("trained")
            assert driver.ended() == 0, driver.printed()
            lab.signal(signal.SIGTERM)
            lab.ended()
            shutil.copytree(kept, kept.with_name("predicted"))
        with Two(kept.with_name("predicted"), free_port(), two.joining).ending() as pair:
            assert isinstance(pair, Two)
            pair.predicts, pair.local_secrets = True, True
            pair.join_lab()
            driver = pair.drive()
            assert driver.ended() == 0, driver.printed()
            twins["predicted"] = pair.made()
    for name in ("clinic.site", "lab.site", "trained"):
        shutil.copytree(kept / name, two.folder / name, dirs_exist_ok=True)
    for name in ("lab.toml", "new.csv"):
        shutil.copy(kept / name, two.folder / name)
    two.predicts = True


# --- The table ------------------------------------------------------------------------------------

#: When -> the message that is being answered.
_AT = {
    "alignment": "psi.GetDoubled",
    "question": "sealed.Begin",
    "step": "apfed.Codes",
    "prediction": "smoothing.Smooth",
}

#: The driver's process, and the partner's, when all is over or goes on.
Ended = tuple[Process, Process]


def partner_signalled(
    two: Two, kind: str, number: int, *, again: bool, after: bool = False
) -> Ended:
    """It is killed, stopped or told to end at a message, and comes again, or not."""
    if not again:
        two.change_run(("wait_s = 60", "wait_s = 25\ngrace_s = 1"))
    lab, driver = two.join_holding(kind, after=after), two.drive()
    two.wait_held()
    lab.signal(number)
    if not again:
        return driver, lab
    if not two.place:
        driver.wait_for("lost 'lab'")
    two.let_go()
    if number == signal.SIGSTOP:
        lab.signal(signal.SIGCONT)
        return driver, lab
    lab.ended()
    two.join_lab()
    return driver, lab


def driver_killed(two: Two, kind: str) -> Ended:
    lab, driver = two.join_holding(kind, after=True), two.drive()
    two.wait_held()
    driver.signal(signal.SIGKILL)
    driver.ended()
    two.let_go()
    return two.drive(*([] if two.predicts else ["--resume"])), lab


def line_cut(two: Two, kind: str) -> Ended:
    with ExitStack() as stack:
        cable = Cable(two.port)
        stack.callback(cable.close)
        two.through = cable.port
        lab, driver = two.join_holding(kind, after=True), two.drive()
        two.wait_held()
        cable.cut()
        two.let_go()
        driver.wait_for("lost 'lab'")
        time.sleep(3)
        cable.mend()
        assert driver.ended() == 0, driver.printed()
        return driver, lab


def partner_disk_full(two: Two, kind: str) -> Ended:
    """Its site is on a disk that is full when it answers; then there is room, and all goes on."""
    with small_disk(two.folder / "lab.site") as disk:
        lab, driver = two.join_holding(kind), two.drive()
        two.wait_held()
        disk.fill()
        two.let_go()
        assert driver.ended() == 2, driver.printed()
        said = " ".join(driver.printed().split())
        assert "cannot write its ledger, and sends nothing that is not written down" in said
        disk.empty()
        again = two.drive("--overwrite")
        again.ended()
        return again, lab


def driver_disk_full(two: Two, kind: str) -> Ended:
    """The run's folder is on a disk that is full while the partner answers."""
    with small_disk(two.folder / "out") as disk:
        lab, driver = two.join_holding(kind), two.drive()
        two.wait_held()
        disk.fill()
        two.let_go()
        assert driver.ended() == 2, driver.printed()
        said = driver.printed().replace("\n", "")
        assert f"no space left on the disk at {disk.folder}" in said, driver.printed()
        disk.empty()
        again = two.drive("--resume")
        again.ended()
        shutil.copytree(two.folder / "out", two.folder / "done")
    two.folder.joinpath("out").rmdir()
    two.folder.joinpath("done").rename(two.folder / "out")
    return again, lab


def clock_back(two: Two, kind: str) -> Ended:
    """One run a day, and the last one began two days from now."""
    path = two.folder / "lab.toml"
    path.write_text(path.read_text().replace("[policy]", "[policy]\nmax_runs_per_day = 1", 1))
    begun = ("clinic", "before", "sealed", 1, time.time() + 2 * 86400, False, "")
    Quota(two.folder / "lab.site").write("INSERT INTO begins VALUES (?,?,?,?,?,?,?)", *begun)
    lab = two.join_lab()
    return two.train("out"), lab


_KILL, _STOP, _END = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM

#: What breaks -> how.
BREAKS: dict[str, Callable[..., Ended]] = {
    "partner killed, started again": partial(partner_signalled, number=_KILL, again=True),
    "partner killed for good": partial(partner_signalled, number=_KILL, again=False),
    "partner stopped, goes on": partial(partner_signalled, number=_STOP, again=True),
    "partner stopped for good": partial(partner_signalled, number=_STOP, again=False),
    "partner told to end, started again": partial(
        partner_signalled, number=_END, again=True, after=True
    ),
    "driver killed, `--resume`": driver_killed,
    "driver killed, given again": driver_killed,
    "line cut, mended": line_cut,
    "partner's clock back two days": clock_back,
    "partner's disk full, then not": partner_disk_full,
    "driver's disk full, `--resume`": driver_disk_full,
}


def table() -> list[list[str]]:
    """Rows of the page: when, what, engine, method, exit code, driver, partner, same bits."""
    after = PAGE.read_text(encoding="utf-8").partition("<!-- failures -->\n")[2]
    lines = after.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("row", table(), ids=lambda row: " ".join(row[:4]))
def test_what_breaks_ends_as_the_page_says(
    two: Two, request: pytest.FixtureRequest, row: list[str]
) -> None:
    when, what, engine, method, code, driver_prints, partner_prints, same = row
    twin = request.getfixturevalue("aligned") if same == "yes" else None
    if when == "prediction":
        request.getfixturevalue("trained")
    two.of_method(method)
    if engine == "letters":
        two.by_letter()
    driver, lab = BREAKS[what](two, _AT.get(when, ""))
    ended = driver.ended()
    said, heard = (" ".join(each.printed().split()) for each in (driver, lab))
    assert ended == int(code), (said, heard)
    for words in re.findall("`([^`]+)`", driver_prints):
        assert words in said, said
    for words in re.findall("`([^`]+)`", partner_prints):
        assert words in heard, heard
    assert "Traceback" not in said + heard
    if when == "prediction":
        with (two.folder / "said.csv").open() as file:
            said_by = [row["answered"] for row in csv.DictReader(file)]
        assert ("lab" in said_by) == (same == "yes")
    if (when, engine) == ("alignment", "letters"):  # it went on
        assert "anew" not in said
        assert two.count("SELECT count(*) FROM alignments") == 1
        assert not [*(two.folder / "lab.site/mailbox").glob("*.aligning-*")]
    if twin is not None:
        assert two.made() == twin(method)


def test_every_way_to_break_stands_in_the_page() -> None:
    assert {row[1] for row in table()} == BREAKS.keys()


@pytest.mark.network
@pytest.mark.slow
def test_match_keys_by_letter_go_on_in_new_processes(two: Two) -> None:
    """Two keys: half of the people share the first; the lab's process ends in either pass."""
    people = {}
    for name in ("clinic", "lab"):
        file = two.folder / f"{name}.csv"
        first, *rows = file.read_text().splitlines()
        people[name] = [row.partition(",")[0] for row in rows]
        codes = [each if int(each[-1]) % 2 else "" for each in people[name]]
        made = (f"{i},{code},{row}" for i, (code, row) in enumerate(zip(codes, rows, strict=True)))
        file.write_text("\n".join([f"row,code,{first}", *made]))
        text = (two.folder / f"{name}.toml").read_text()
        keys = 'id = "row"\nmatch = [["text(code)"], ["text(person)"]]'
        (two.folder / f"{name}.toml").write_text(text.replace('id = "person"', keys))
    two.by_letter()
    driver = two.start("align", "network.toml", "--json")
    for number, kind in ((signal.SIGKILL, "psi.GetDoubled"), (signal.SIGTERM, "psi.Pass")):
        lab = two.join_holding(kind, after=True)
        two.wait_held()
        lab.signal(number)
        two.let_go()
        lab.ended()
        two.started.remove(lab)
    assert "ends in the middle of an alignment" in " ".join(lab.printed().split())
    two.join_lab()
    assert driver.ended() == 0, driver.printed()
    rows = [
        load_file(two.folder / f"{name}.site/aligned/clinic.safetensors")["rows_S"].tolist()
        for name in people
    ]
    pairs = {(here, there) for here, there in zip(*rows, strict=True) if there >= 0}
    assert pairs == {
        (people["clinic"].index(each), people["lab"].index(each))
        for each in {*people["clinic"]} & {*people["lab"]}
    }
    assert two.count("SELECT count(*) FROM alignments") == 2  # a pass each
    assert not [*(two.folder / "lab.site/mailbox").glob("*.aligning-*")]


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="who is connected is not listed")
def test_a_driver_is_told_who_dials_in_with_another_authoritys_certificate(
    two: Two, dovetail: Any
) -> None:
    words = ("certificates", "clinic", "lab", "--driver", "clinic", "--host", "127.0.0.1", "-q")
    assert dovetail(*words, "--out", two.folder / "other").code == 0
    lab = two.start(*two._joining(), "--certificates", "other/lab")
    driver = two.start("align", "network.toml")
    driver.wait_for("127.0.0.1 dials in again and again and gets no further than TLS")
    lab.wait_for("no trusted line to clinic")
    lab.signal(signal.SIGTERM)
    lab.ended()
    two.join_lab()
    assert driver.ended() == 0, driver.printed()
    assert " ".join(driver.printed().split()).count("sign its request (dovetail") == 1


# --- Refused before, counted after ----------------------------------------------------------------


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
    allowed = path.read_text().replace(', "apfed-mixed", "apfed"]', f"{policy}]\n{more}")
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
    assert "its owner may write sealed = { numbers_per_row = 2 }" in driver.printed()
