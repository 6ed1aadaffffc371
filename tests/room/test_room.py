"""A room's pages, by HTTP: who is let in, what is shown of whatever comes, what a queue does."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import uvicorn

from dovetail.companions.room import serving
from dovetail.companions.room.application import Room
from dovetail.companions.room.driver import DriverRoom
from dovetail.companions.room.guard import COOKIE, Entry
from dovetail.companions.room.jobs import Job, Jobs
from dovetail.companions.room.owner import OwnerRoom
from dovetail.companions.room.pages import MAX_FORM
from dovetail.errors import ConfigError
from dovetail.node.probes import Probes

HOSTS = ["localhost", "127.0.0.1"]

#: What somebody else may have called something.
HOSTILE = '<img src=x onerror="alert(1)">'

RUN = """
method = "alone"
[data]
source = "breast-cancer"
test = 0.25
partition = { kind = "columns", active = "clinic", parties = { clinic = ["mean *"] } }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "notes.toml").write_text("[notes]\n")
    return tmp_path


@pytest.fixture
def driver(folder: Path) -> Iterator[DriverRoom]:
    room = DriverRoom(folder / "out", run_files=folder)
    yield room
    room.jobs.close()
    for process in room.jobs._processes.values():
        process.kill()
        process.wait()


@contextmanager
def client_of(room: DriverRoom | OwnerRoom, entry: Entry) -> Iterator[httpx.Client]:
    """A browser's like, at a room that listens."""
    application = Room(room, entry, hosts=HOSTS).application()
    config = uvicorn.Config(application, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            here = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with httpx.Client(base_url=here, follow_redirects=True, timeout=60.0) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


def post(client: httpx.Client, path: str, **given: Any) -> httpx.Response:
    """As a page of the room does."""
    return client.post(path, headers={"origin": str(client.base_url).rstrip("/")}, **given)


@pytest.fixture
def client(driver: DriverRoom) -> Iterator[httpx.Client]:
    entry = Entry()
    with client_of(driver, entry) as client:
        assert client.get("/", params={"token": entry.token}).status_code == 200
        yield client


# --- Who is let in --------------------------------------------------------------------------------


def test_nobody_is_let_in_without_the_token(driver: DriverRoom) -> None:
    with client_of(driver, Entry()) as stranger:
        for path in ("/", "/?token=wrong", "/runs/first", "/events", "/room.css"):
            answer = stranger.get(path)
            assert answer.status_code == 401, path
            assert "Runs in" not in answer.text
        assert post(stranger, "/runs", data={"file": "run.toml"}).status_code == 401
    assert driver.jobs.all() == []


def test_the_token_is_asked_for_once_and_stays_out_of_addresses(driver: DriverRoom) -> None:
    entry = Entry()
    with client_of(driver, entry) as client:
        answer = client.get("/", params={"token": entry.token}, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"{COOKIE}=")
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert client.get("/").status_code == 200


def test_another_sites_page_does_nothing(client: httpx.Client, driver: DriverRoom) -> None:
    form = {"file": "run.toml", "name": "first"}
    for headers in (
        {"origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        assert client.post("/runs", data=form, headers=headers).status_code == 403
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400  # rebound by DNS
    assert driver.jobs.all() == []


def test_pages_take_nothing_from_elsewhere(client: httpx.Client) -> None:
    headers = client.get("/").headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_a_proxy_says_who_asks(driver: DriverRoom) -> None:
    with client_of(driver, Entry(token="", identity_header="X-Remote-User")) as client:
        assert client.get("/").status_code == 401
        assert client.get("/", headers={"x-remote-user": "ada"}).status_code == 200


def test_a_form_that_is_too_large_is_refused_unread(client: httpx.Client) -> None:
    answer = post(client, "/runs", content=b"x" * (MAX_FORM + 1))
    assert answer.status_code == 413


def test_beyond_this_machine_a_room_is_guarded(driver: DriverRoom) -> None:
    with pytest.raises(ConfigError, match="give --tls FOLDER"):
        serving.run(driver, host="0.0.0.0", port=0)


def test_probes_say_how_many_pages_are_open_and_what_runs(driver: DriverRoom) -> None:
    room = Room(driver, Entry(token=""), hosts=HOSTS)
    with Probes("127.0.0.1:0", why_not_ready=lambda: "", metrics=room.metrics) as probes:
        here = f"http://127.0.0.1:{probes.port}"
        assert httpx.get(f"{here}/ready").status_code == 200
        reported = httpx.get(f"{here}/metrics").text
    assert "dovetail_room_pages 0.0" in reported


# --- A driver's runs ------------------------------------------------------------------------------


def until(what: Callable[[], bool], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_run_waits_trains_and_is_shown(client: httpx.Client, driver: DriverRoom) -> None:
    page = client.get("/").text
    assert "<option>run.toml</option>" in page
    assert "notes.toml" not in page  # no run file
    answer = post(client, "/runs", data={"file": "run.toml", "name": "first"})
    assert answer.status_code == 200  # after the redirect
    again = post(client, "/runs", data={"file": "run.toml", "name": "first"})
    assert again.status_code == 422
    assert "waits or runs already" in again.text
    until(lambda: driver.jobs.of("first").state not in ("waiting", "running"))  # type: ignore[union-attr]
    assert driver.jobs.of("first").state == "done", driver.jobs.log("first")  # type: ignore[union-attr]
    (line,) = driver.runs()
    assert (line.name, line.state, line.method) == ("first", "done", "alone")
    assert line.figure
    run = client.get("/runs/first").text
    assert "models/clinic" in run
    report = client.get("/runs/first/report")
    assert "first: a run of Dovetail" in report.text
    assert "'unsafe-inline'" in report.headers["content-security-policy"]
    assert client.get("/compare", params={"run": "first"}).status_code == 200

    model = client.get("/runs/first/model", params={"model": "models/clinic"}).text
    assert "mean radius" in model
    names = driver.columns("first", "models/clinic")
    rows = ",".join(names) + "\n" + ",".join("10" for _ in names) + "\n"
    form = {"model": "models/clinic", "rows": rows}
    reported = post(client, "/runs/first/model", data=form)
    assert '<th scope="col">prediction</th>' in reported.text
    assert "is far from all others: 10" in reported.text
    form["rows"] = "nonsense\n1\n"
    refused = post(client, "/runs/first/model", data=form)
    assert 'role="alert"' in refused.text
    assert "Traceback" not in refused.text


@pytest.mark.parametrize("name", ["..", ".room", "../out", "a/b", HOSTILE, "nobody"])
def test_no_path_leads_out_of_the_folder(client: httpx.Client, name: str) -> None:
    for path in ("", "/report", "/model?model=../../run.toml"):
        answer = client.get(f"/runs/{quote(name, safe='').replace('.', '%2e')}{path}")
        assert answer.status_code in (404, 422), (name, path)
        assert "<img" not in answer.text
    answer = post(client, "/runs", data={"file": "../run.toml", "name": "x"})
    assert answer.status_code == 422
    answer = post(client, "/runs", data={"file": "run.toml", "name": name})
    assert answer.status_code in (200, 422)
    assert (answer.status_code == 200) == (name == "nobody")


def test_hostile_folders_are_text(client: httpx.Client, driver: DriverRoom) -> None:
    folder = driver.folder / HOSTILE.replace("/", "")
    folder.mkdir()
    (folder / "run.toml").write_text(f"method = {json.dumps(HOSTILE)}\n")
    page = client.get("/").text
    assert "<img" not in page
    assert "&lt;img src=x onerror" in page


# --- The queue ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_command_that_waits_outlives_its_room(tmp_path: Path) -> None:
    (tmp_path / ".room").mkdir()
    kept = [Job("now", ("--version",)).__dict__, Job("was", ("--version",), "running").__dict__]
    (tmp_path / ".room" / "queue.json").write_text(json.dumps(kept))
    jobs = Jobs(tmp_path, accepts=lambda job: True)
    try:
        until(lambda: jobs.of("now").state == "done")  # type: ignore[union-attr]
        assert "dovetail" in jobs.log("now")
        assert jobs.of("was").state == "stopped"  # type: ignore[union-attr]
    finally:
        jobs.close()


def test_a_queue_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / ".room").mkdir()
    (tmp_path / ".room" / "queue.json").write_text("[{")
    with pytest.raises(ConfigError, match=r"queue\.json cannot be read"):
        Jobs(tmp_path, accepts=lambda job: True)


@pytest.mark.parametrize("name", ["", "../x", ".x", "a/b", "x\n", "x" * 81])
def test_a_name_that_no_folder_should_have_is_refused(driver: DriverRoom, name: str) -> None:
    with pytest.raises(ConfigError, match="a run's name has letters"):
        driver.jobs.add(name, ["--version"])


def test_what_waits_is_stopped_before_it_begins(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, accepts=lambda job: True, at_a_time=0)
    try:
        jobs.add("first", ["--version"])
        jobs.stop("first")
        assert jobs.of("first").state == "stopped"  # type: ignore[union-attr]
        with pytest.raises(ConfigError, match="nothing called 'first' waits or runs"):
            jobs.stop("first")
    finally:
        jobs.close()


# --- A data owner ---------------------------------------------------------------------------------


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[OwnerRoom]:
    rows = "\n".join(f"{each},{each % 7},{each % 2}" for each in range(60))
    (tmp_path / "shop.csv").write_text(f"person,spend,visits\n{rows}\n")
    (tmp_path / "shop.toml").write_text(
        '[party]\nname = "shop"\ntable = "shop.csv"\nid = "person"\n\n'
        '[policy]\nalgorithms = ["align", "apfed-mixed"]\ndrivers = ["bank"]\n'
    )
    room = OwnerRoom(tmp_path / "shop.toml")
    yield room
    room.jobs.close()


def test_refusals_are_shown_as_text_and_a_broken_ledger_is_named(owner: OwnerRoom) -> None:
    line = {"time": "now", "driver": "bank", "why": HOSTILE + "\x1b[31m", "times": 10}
    (owner.site_folder / "refusals.jsonl").write_text(json.dumps(line) + "\n{half a li")
    (owner.site_folder / "ledger.jsonl").write_text('{"party": "shop"}\n')
    with client_of(owner, Entry(token="")) as client:
        page = client.get("/").text
    assert "&lt;img src=x" in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "(10 times)" in page
    assert 'role="alert"' in page  # the ledger
    assert "drivers = " not in page
    assert "<code>drivers</code>" in page


def test_without_a_driver_nothing_is_answered_and_the_room_says_how(owner: OwnerRoom) -> None:
    with client_of(owner, Entry(token="")) as client:
        assert "Start this room with --driver HOST:PORT" in client.get("/").text
        refused = post(client, "/serve")
        assert refused.status_code == 422
        assert "dovetail room shop.toml --driver HOST:PORT" in refused.text
        refused = post(client, "/stop")
        assert refused.status_code == 422


def test_what_is_no_proposal_is_refused_in_a_sentence(owner: OwnerRoom) -> None:
    with client_of(owner, Entry(token="")) as client:
        given = {"file": ("proposal.json", b'{"purpose": 3}', "application/json")}
        refused = post(client, "/proposals", files=given)
        assert refused.status_code == 422
        assert "Traceback" not in refused.text
        assert client.get("/proposals/0123456789ab").status_code == 422
