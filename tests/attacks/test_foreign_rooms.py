"""A room's folder that others could write in, pages that never end, and who looks over its door."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from attackers import assert_given_up
from federations import Federation, free_port

from dovetail.companions.room import application, owner, pages
from dovetail.companions.room.application import Room
from dovetail.companions.room.driver import DriverRoom
from dovetail.companions.room.guard import Entry
from dovetail.companions.room.jobs import Job, Jobs
from dovetail.companions.room.owner import OwnerRoom
from dovetail.errors import ConfigError
from dovetail.network.ledger import LedgerFile
from dovetail.node.site_folder import SiteFolder, is_used

RUN = """
method = "alone"
[data]
source = "breast-cancer"
test = 0.25
partition = { kind = "columns", active = "clinic", parties = { clinic = ["mean *"] } }
"""

PARTY = '[party]\nname = "shop"\ntable = "shop.csv"\nid = "person"\n'


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[OwnerRoom]:
    rows = "\n".join(f"{each},{each % 7}" for each in range(60))
    (tmp_path / "shop.csv").write_text(f"person,spend\n{rows}\n")
    (tmp_path / "shop.toml").write_text(PARTY)
    room = OwnerRoom(tmp_path / "shop.toml")
    yield room
    room.jobs.close()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[DriverRoom]:
    (tmp_path / "run.toml").write_text(RUN)
    room = DriverRoom(tmp_path / "out", run_files=tmp_path)
    yield room
    room.jobs.close()


@contextmanager
def listening(room: DriverRoom | OwnerRoom) -> Iterator[str]:
    """A room's address, for whom its proxy has let in."""
    app = Room(room, Entry(token=""), hosts=None).application()
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", 0)) as listens:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listens]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listens.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


# --- A folder of others ---------------------------------------------------------------------------


def commands(folder: Path, elsewhere: Path) -> list[Job]:
    """What somebody who made the folder might like to have run."""
    out, run = str(folder / "out" / "x"), str(folder / "run.toml")
    evil = str(elsewhere / "run.toml")
    return [
        Job("version", ("--version",)),
        Job("x", ("train", evil, "--out", out)),
        Job("x2", ("train", run, "--out", str(elsewhere / "x2"))),
        Job("x3", ("train", run, "--out", str(folder / "out" / "x3"), "--set", "seed=1")),
        Job("x4", ("export", "x", "--out", "y.onnx")),
        Job("audit of x", ("audit", evil)),
        Job("x5", ("train",)),
    ]


def test_a_room_begins_nothing_that_a_folder_of_others_asks_for(tmp_path: Path) -> None:
    """A queue that stands in a folder of runs was begun, whatever it said."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for folder in (tmp_path, elsewhere):
        (folder / "run.toml").write_text(RUN)
    hidden = tmp_path / "out" / ".room"
    hidden.mkdir(parents=True)
    (tmp_path / "mine.log").write_text("kept")
    asked = [*commands(tmp_path, elsewhere), Job("../../mine", ("--version",))]
    (hidden / "queue.json").write_text(json.dumps([vars(each) for each in asked]))
    room = DriverRoom(tmp_path / "out", run_files=tmp_path)
    try:
        time.sleep(1.0)
        assert {job.name: job.state for job in room.jobs.all()} == {
            job.name: "failed" for job in commands(tmp_path, elsewhere)
        }
    finally:
        room.jobs.close()
    assert (tmp_path / "mine.log").read_text() == "kept"
    assert list(hidden.glob("*.log")) == []


def test_a_room_goes_on_with_what_it_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    first = DriverRoom(tmp_path / "out", run_files=tmp_path, at_a_time=0)
    first.train("run.toml", "x")
    first.train("run.toml", "y", resume=True)
    first.jobs.close()
    again = DriverRoom(tmp_path / "out", run_files=tmp_path, at_a_time=0)
    again.jobs.close()
    assert {job.name: job.state for job in again.jobs.all()} == {"x": "waiting", "y": "waiting"}


def test_a_site_of_others_joins_no_driver_of_theirs(shop: OwnerRoom) -> None:
    queue = shop.site_folder / ".room" / "queue.json"
    party = str(shop.party_file.resolve())
    site = str(shop.site_folder.resolve())
    asked = Job("join", ("join", party, "--site", site, "--driver", "evil.example:443"))
    queue.write_text(json.dumps([vars(asked)]))
    again = OwnerRoom(shop.party_file)
    again.jobs.close()
    (job,) = again.jobs.all()
    assert job.state == "failed"


# --- Pages that never end -------------------------------------------------------------------------


def test_pages_that_wait_leave_room_for_others(
    runs: DriverRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "MAX_EVENTS", 3)
    with (
        listening(runs) as here,
        httpx.Client(base_url=here, timeout=60) as client,
        ExitStack() as stack,
    ):
        waiting: list[Iterator[str]] = []
        for _ in range(3):
            answer = stack.enter_context(client.stream("GET", f"{here}/events"))
            assert answer.status_code == 200
            waiting.append(answer.iter_text())  # it closes with its iterator
            next(waiting[-1])
        refused = client.get(f"{here}/events")
        assert (refused.status_code, "too many pages" in refused.text) == (503, True)
        assert client.get(f"{here}/").status_code == 200


def test_a_form_that_comes_a_byte_at_a_time_is_given_up(
    runs: DriverRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "FORM_S", 0.5)
    with listening(runs) as here:
        port = int(here.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(
                b"POST /runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n"
                b"Content-Type: application/x-www-form-urlencoded\r\n\r\n"
            )
            assert_given_up(line)


@pytest.mark.parametrize("text", ["[" * 500_000, '{"a":' * 100_000, "\ud800", "1e999999", "{}"])
def test_a_proposal_that_is_none_is_a_sentence(shop: OwnerRoom, text: str) -> None:
    with listening(shop) as here:
        content = text.encode("utf-8", "surrogatepass")
        files = {"file": ("proposal.json", content, "application/json")}
        answer = httpx.post(f"{here}/proposals", files=files)
    assert answer.status_code == 422
    assert "Traceback" not in answer.text


# --- The door -------------------------------------------------------------------------------------


@pytest.mark.network
def test_the_token_is_printed_once_and_stands_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "out").mkdir()
    health = free_port()
    with Federation(tmp_path, free_port()).ending() as federation:
        port = str(federation.port)
        room = federation.start(
            "room", "out", "--port", port, "--health", f"127.0.0.1:{health}", "--run-files", "."
        )
        room.wait_for(r"\?token=")
        (token,) = re.findall(r"token=([\w-]+)", room.printed())
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", follow_redirects=True) as client:
            page = client.get("/", params={"token": token})
            assert page.status_code == 200
            assert "token" not in str(page.url)
            assert page.headers["referrer-policy"] == "no-referrer"
            seen = [page.text, client.get("/runs/x").text, client.get("/room.js").text]
            assert client.get("/", params={"token": f"{token[:-1]}x"}).status_code == 401
            client.post("/runs", data={"file": "run.toml", "name": "x"})
            log = tmp_path / "out" / ".room" / "x.log"
            deadline = time.monotonic() + 60
            while not log.exists() or not log.read_text():
                assert time.monotonic() < deadline
                time.sleep(0.05)
            client.post("/runs/x/stop")
        seen += [
            httpx.get(f"http://127.0.0.1:{health}/{each}").text for each in ("ready", "metrics")
        ]
        seen += [Path(f"/proc/{room.process.pid}/cmdline").read_text()]
        files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
        seen += [path.read_text() for path in files]
        assert log in files
        assert not [each for each in seen if token in each]
        assert room.printed().count(token) == 1


# --- Who looks ------------------------------------------------------------------------------------


def test_looking_keeps_no_join_out_and_two_looks_are_nobody(shop: OwnerRoom) -> None:
    """Each page takes the folder's lock for a moment: a join that began then was refused."""
    ended = threading.Event()

    def look() -> set[str]:
        seen = set()
        while not ended.is_set():
            seen.add(shop.serving())
        return seen

    def look_elsewhere() -> None:
        while not ended.is_set():
            is_used(shop.site_folder)

    with ThreadPoolExecutor(5) as pool:
        looking = [pool.submit(look) for _ in range(4)]
        time.sleep(0.5)
        ended.set()
        assert set().union(*(each.result() for each in looking)) == {""}
        ended.clear()
        others = [pool.submit(look_elsewhere) for _ in range(2)]
        for _ in range(20):
            with SiteFolder(shop.site_folder):
                assert shop.serving() == "elsewhere"
        ended.set()
        for each in others:
            each.result()


def test_a_ledger_is_verified_once_for_as_long_as_it_stays(
    shop: OwnerRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, times = owner.verify, []
    monkeypatch.setattr(owner, "verify", lambda *a, **k: times.append(1) or real(*a, **k))
    with LedgerFile(shop.site_folder / "ledger.jsonl", "shop"):
        pass
    pages = [shop.left() for _ in range(5)]
    assert len(times) == 1
    assert pages == [([], "")] * 5
    with (shop.site_folder / "ledger.jsonl").open("a") as file:
        file.write("{}\n")
    assert shop.left()[1]
    assert len(times) == 2


def test_a_run_is_not_called_as_an_audit(runs: DriverRoom) -> None:
    with listening(runs) as here:
        answer = httpx.post(f"{here}/runs", data={"file": "run.toml", "name": "audit of x"})
    assert answer.status_code == 422
    assert "as audits are" in answer.text


def test_a_queue_of_another_shape_is_named(tmp_path: Path) -> None:
    (tmp_path / ".room").mkdir()
    for text in ('[{"nam": "x", "arguments": []}]', '[{"name": "x", "arguments": 3}]', '{"a": 1}'):
        (tmp_path / ".room" / "queue.json").write_text(text)
        with pytest.raises(ConfigError, match=r"queue\.json cannot be read"):
            Jobs(tmp_path, accepts=lambda job: True)
