"""Whoever may use a relay, a shared folder or a port for probes tries to keep the others out."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from attackers import assert_given_up
from federations import Federation, Process, free_port
from letter_boxes import Looks, Post, ask
from processes import credentials

from dovetail.companions.mailbox import relay_server
from dovetail.companions.mailbox.letters import LetterLabel
from dovetail.companions.mailbox.places import PlaceError
from dovetail.companions.mailbox.relay import Relay
from dovetail.companions.mailbox.relay_store import Bounds, Store
from dovetail.companions.mailbox.signed import Signatures, sign_request
from dovetail.network.certificates import Authority, certificate_pem, key_pem, new_key
from dovetail.network.credentials import Credentials
from dovetail.network.renewal import Certified
from dovetail.node.probes import MAX_REQUESTS, Probes

CONVERSATION = "000001700000000-0123abcd"


def letter(sender: str, receiver: str, number: int = 1) -> str:
    return LetterLabel(sender, receiver, CONVERSATION, number, 1, "q", 0.0).place


# --- A relay --------------------------------------------------------------------------------------


class Relayed:
    """A relay's process, and certificates of its parties."""

    def __init__(self, federation: Federation) -> None:
        self.folder = federation.folder
        self.where = f"https://127.0.0.1:{federation.port}"
        self.port = federation.port
        self._authority = Authority.create(now=datetime.now(UTC))
        self.credentials("relay", listens=True)
        port = str(federation.port)
        self.process: Process = federation.start(
            "relay", "--certificates", "relay", "--host", "127.0.0.1", "--port", port
        )
        self.process.wait_for("relay at https://127.0.0.1")

    def credentials(self, name: str, *, listens: bool = False) -> Credentials:
        key, now = new_key(), datetime.now(UTC)
        hosts = ("127.0.0.1",) if listens else ()
        issued = self._authority.issue(
            name, key.public_key(), now=now, listens=listens, hosts=hosts
        )
        made = Credentials(self._authority.pem, certificate_pem(issued), key_pem(key))
        folder = self.folder / name
        folder.mkdir()
        contents = ("ca.pem", made.ca), (f"{name}.pem", made.certificate), (f"{name}.key", made.key)
        for file, content in contents:
            (folder / file).write_bytes(content)
            (folder / file).chmod(0o600)
        return made

    def place(self, name: str) -> Relay:
        return Relay(self.where, Certified(self.credentials(name)))

    def line(self, name: str) -> ssl.SSLSocket:
        """An open connection that shows this party's certificate."""
        context = ssl.create_default_context(cafile=str(self.folder / name / "ca.pem"))
        context.load_cert_chain(
            str(self.folder / name / f"{name}.pem"), str(self.folder / name / f"{name}.key")
        )
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        return context.wrap_socket(plain, server_hostname="127.0.0.1")


@pytest.fixture
def relayed(tmp_path: Path) -> Iterator[Relayed]:
    with Federation(tmp_path, free_port()).ending() as federation:
        yield Relayed(federation)


@pytest.mark.network
def test_a_party_that_holds_all_connections_keeps_nobody_out(relayed: Relayed) -> None:
    """All 256 of one party, each in the middle of a request: others were answered 503."""
    relayed.credentials("eve")
    lab = relayed.place("lab")
    with ExitStack() as stack:
        held = []
        for _ in range(relay_server.MAX_REQUESTS + 10):
            line = stack.enter_context(relayed.line("eve"))
            line.sendall(b"GET /mail/eve/ HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
            held.append(line)
        lab.put("cards/lab", b"key")
        lab.put(letter("lab", "clinic"), b"letter")
        assert len(lab.names("mail/clinic/")) == 1
        time.sleep(0.5)
        closed = 0
        for line in held:
            line.settimeout(0.01)
            try:
                closed += line.recv(1) == b""
            except TimeoutError:
                pass
            except OSError:
                closed += 1
        assert len(held) - closed <= relay_server.MAX_CONNECTIONS
    lab.close()


@pytest.mark.network
def test_asking_for_the_head_of_a_letter_does_not_remove_it(relayed: Relayed) -> None:
    lab, clinic = relayed.place("lab"), relayed.place("clinic")
    name = letter("lab", "clinic")
    lab.put(name, b"letter")
    assert clinic._ask("HEAD", name) == b""
    with pytest.raises(PlaceError, match=r"will not HEAD .* \(403\)"):
        lab._ask("HEAD", name)
    assert clinic.get(name, 100) == b"letter"
    lab.close()
    clinic.close()


def test_letters_to_invented_names_leave_no_folders(tmp_path: Path) -> None:
    """At 50 requests a second folders of 2 million names a day would fill a disk's inodes."""
    now = 1000.0
    store = Store(tmp_path, Bounds(age_s=100), clock=lambda: now)
    for number in range(20):
        name = letter("eve", f"nobody-{number}")
        with store.receive(name, 1) as receiving:
            receiving.write(b"x")
            assert receiving.done()
        if number % 2:
            store.remove(name)
    now += 101
    assert store.names("mail/eve/", "eve") == []  # and those that nobody took are too old
    assert list((tmp_path / "mail").iterdir()) == []


@contextmanager
def listening(app: Any) -> Iterator[int]:
    """The port of an application."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", 0)) as listens:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listens]})
        thread.start()
        try:
            yield listens.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def test_a_letter_that_comes_a_byte_at_a_time_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte came in time, so that a letter of 256 MiB could have taken a century."""
    monkeypatch.setattr(relay_server, "PIECE_S", 0.5)
    authority = Authority.create(now=datetime.now(UTC))
    eve = Certified(credentials(authority, "eve"))
    signatures = Signatures(Certified(credentials(authority, "relay", listens=True)))
    store = Store(tmp_path, Bounds())
    app = relay_server.Relay(store, relay_server.Rate(100, 100), signatures).application()
    path = f"/{letter('eve', 'lab')}"
    signed = sign_request(eve, "PUT", path, bytes(1000), signatures.process)
    with listening(app) as port, socket.create_connection(("127.0.0.1", port)) as line:
        head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {signed}\r\n"
        line.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode())
        assert_given_up(line)
    assert store.names("mail/lab/", "lab") == []
    assert not list(tmp_path.glob(".*"))


# --- A folder that others can write in ------------------------------------------------------------


def planted(place: Path, name: str, kind: str) -> None:
    """What is no letter, under a letter's name."""
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        (path / "inside").mkdir(parents=True)
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(2**40)  # sparse


@pytest.mark.parametrize("kind", ["folder", "link", "pipe", "large"])
def test_what_is_no_letter_holds_up_no_other(tmp_path: Path, kind: str) -> None:
    """With one such file a party answered nobody any more: it could not read the place."""
    post = Post(tmp_path)
    conversation = "000000000000001-0123abcd"  # before the bank's own
    name = LetterLabel("bank", "shop", conversation, 1, 1, "q", 0.0).place
    planted(tmp_path / "place", name, kind)
    with Looks(post) as looks, post.drive() as mailbox:
        assert len(ask(mailbox, times=2)) == 2
    assert looks.error is None
    assert any("is no letter: " in why for why in post.refused)


@pytest.mark.parametrize("kind", ["folder", "link", "pipe", "large"])
def test_an_answer_that_is_no_letter_is_asked_for_again(tmp_path: Path, kind: str) -> None:
    post = Post(tmp_path)
    real, done = post.place.place.put, []

    def put(name: str, data: bytes) -> None:
        if name.startswith("mail/bank/") and not done:
            done.append(name)
            planted(tmp_path / "place", name, kind)
        else:
            real(name, data)

    post.place.put_ = put
    with Looks(post) as looks, post.drive() as mailbox:
        assert len(ask(mailbox, times=2)) == 2
    assert looks.error is None
    assert post.printed("bank", "is no letter: ")


# --- A port for probes ----------------------------------------------------------------------------


@pytest.mark.network
def test_connections_that_say_nothing_keep_no_prober_out() -> None:
    """As many as are answered at a time: an orchestrator then took the process for dead."""
    with (
        Probes("127.0.0.1:0", why_not_ready=lambda: "", metrics=lambda: ()) as probes,
        ExitStack() as stack,
    ):
        for _ in range(3 * MAX_REQUESTS):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", probes.port)))
            line.sendall(b"GET /health HT")
        for _ in range(5):
            with urllib.request.urlopen(f"http://127.0.0.1:{probes.port}/health", timeout=2) as ok:
                assert ok.read() == b"ok\n"
