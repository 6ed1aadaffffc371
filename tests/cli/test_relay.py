"""``dovetail relay``: real processes over HTTPS, and one in the middle that lies."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from federations import command, free_port
from mailboxes import Letters, certify_relay, impatient_command, kill, relay_of, written
from processes import credentials
from test_letter_runs import assert_reconciled, assert_same, trained_on_lines

from dovetail.companions.mailbox import relay_command
from dovetail.companions.mailbox.letters import LetterLabel
from dovetail.companions.mailbox.places import PlaceError
from dovetail.companions.mailbox.relay import Relay
from dovetail.companions.mailbox.relay_server import MAX_CONNECTIONS, Rate
from dovetail.companions.mailbox.relay_server import Relay as RelayApplication
from dovetail.companions.mailbox.relay_store import Bounds, FullError, Store
from dovetail.companions.mailbox.signed import Signatures, sign_request
from dovetail.errors import ConfigError
from dovetail.network.certificates import Authority
from dovetail.network.credentials import Credentials
from dovetail.network.renewal import Certified

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")

CONVERSATION = "000001700000000-0123abcd"


def letter(sender: str, receiver: str, number: int = 1) -> str:
    """Where a letter lies."""
    return LetterLabel(sender, receiver, CONVERSATION, number, 1, "q", 0.0).place


# --- What it keeps --------------------------------------------------------------------------------


def leave(store: Store, name: str, data: bytes) -> None:
    with store.receive(name, len(data)) as receiving:
        receiving.write(data)
        assert receiving.done()


def test_a_party_leaves_so_many_letters_and_bytes_and_no_more(tmp_path: Path) -> None:
    store = Store(tmp_path, Bounds(num_bytes=10, num_files=2, most=8))
    leave(store, letter("bank", "shop"), b"1234")
    with pytest.raises(FullError, match="9 bytes; at most 8"):
        store.receive(letter("bank", "shop", 2), 9)
    with pytest.raises(FullError, match="'bank' has 1 letters of 4 bytes"):
        store.receive(letter("bank", "lab"), 7)
    leave(store, letter("bank", "lab"), b"")
    with pytest.raises(FullError, match="it may have 2 of 10 bytes"):
        store.receive(letter("bank", "lab", 2), 1)
    leave(store, letter("lab", "shop"), b"12345678")  # which the bank cannot prevent
    store.remove(letter("bank", "shop"))
    leave(store, letter("bank", "shop", 2), b"12345678")


def test_letters_that_are_under_way_count(tmp_path: Path) -> None:
    store = Store(tmp_path, Bounds(num_bytes=10, num_files=9, most=8))
    with store.receive(letter("bank", "shop"), 8) as receiving:
        receiving.write(b"1234")
        with pytest.raises(FullError):
            store.receive(letter("bank", "shop", 2), 3)
        assert not receiving.done()  # half of it
    leave(store, letter("bank", "shop", 2), b"12345678")
    assert not list(tmp_path.glob(".*"))


def test_a_relay_that_is_restarted_knows_its_letters(tmp_path: Path) -> None:
    now = 1000.0
    store = Store(tmp_path, Bounds(age_s=100), clock=lambda: now)
    leave(store, "cards/shop", b"key")
    leave(store, letter("bank", "shop"), b"1234")
    os.utime(tmp_path / letter("bank", "shop"), (now, now))
    (tmp_path / ".half.new").write_bytes(b"1")
    again = Store(tmp_path, Bounds(num_files=1, age_s=100), clock=lambda: now)
    assert again.names("mail/shop/", "shop") == again.names("mail/shop/", "bank")
    assert len(again.names("mail/shop/", "shop")) == 1
    assert again.names("mail/shop/", "lab") == []  # which learns of nobody else's
    with pytest.raises(FullError):
        again.receive(letter("bank", "shop", 2), 1)
    now += 101  # nobody took it
    assert again.path(letter("bank", "shop")) is None
    assert again.path("cards/shop") is not None
    leave(again, letter("bank", "shop", 2), b"1")


def test_a_party_asks_so_often_and_others_none_the_less() -> None:
    now = 0.0
    rate = Rate(2, 4, clock=lambda: now)
    assert [rate.allows("eve") for _ in range(5)] == [True] * 4 + [False]
    assert rate.allows("shop")
    now += 1
    assert [rate.allows("eve") for _ in range(3)] == [True, True, False]


def test_a_party_has_so_many_requests_under_way_and_others_none_the_less(tmp_path: Path) -> None:
    """Whose connections a proxy holds: no certificate at the door says whose they are."""
    authority = Authority.create(now=datetime.now(UTC))
    known = {name: Certified(credentials(authority, name)) for name in ("eve", "shop")}
    signatures = Signatures(Certified(credentials(authority, "relay", listens=True)))
    store = Store(tmp_path, Bounds())
    application = RelayApplication(store, Rate(1000, 1000), signatures).application()

    async def asked() -> tuple[list[int], list[int]]:
        goes_on = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b"1"
            await goes_on.wait()
            yield b"2"

        transport = httpx.ASGITransport(app=application)
        async with httpx.AsyncClient(transport=transport, base_url="https://relay") as client:

            async def leave(party: str, number: int) -> int:
                path = "/" + letter(party, "lab", number)
                signed = sign_request(known[party], "PUT", path, b"12", signatures.process)
                headers = {"Authorization": signed, "Content-Length": "2"}
                return (await client.put(path, content=body(), headers=headers)).status_code

            held = [asyncio.create_task(leave("eve", each)) for each in range(MAX_CONNECTIONS)]
            while len(list(tmp_path.rglob(".*"))) < MAX_CONNECTIONS:  # files begun
                await asyncio.sleep(0.01)
            refused = await leave("eve", MAX_CONNECTIONS)
            other = asyncio.create_task(leave("shop", 0))
            goes_on.set()
            through = [await each for each in (*held, other)]
            return [refused, await leave("eve", MAX_CONNECTIONS)], through

    first, through = asyncio.run(asked())
    assert first == [429, 204]
    assert through == [204] * (MAX_CONNECTIONS + 1)


# --- Real processes -------------------------------------------------------------------------------


@pytest.fixture
def write(
    tmp_path: Path, deal: Callable[..., Any], dovetail: Callable[..., Any]
) -> Iterator[Callable[..., Letters]]:
    """Writes a case's files; with ``relay`` also that of a relay, whose address is its place."""
    with ExitStack() as stack:

        def make(name: str, folder: str, relay: bool = False) -> Letters:
            place = f"https://127.0.0.1:{free_port()}" if relay else ""
            made = written(tmp_path / folder, name, deal, dovetail, place)
            stack.enter_context(made.federation.ending())
            if relay:
                certify_relay(made, dovetail)
            return made

        yield make


def shown(letters: Letters, name: str) -> Certified:
    return Certified(Credentials.load(letters.folder / "certificates" / name, name))


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("name", ["chfl", "apfed"])
def test_a_relay_a_driver_and_a_party_that_are_killed_change_no_bit(
    write: Callable[..., Letters], name: str, dovetail: Callable[..., Any]
) -> None:
    letters = write(name, "letters", relay=True)
    relay = relay_of(letters)
    killed, *others = letters.case.partners
    for each in others:
        letters.join(each)
    if name == "apfed":
        letters.align(killed)
    first, driver = letters.join(killed), letters.train()
    letters.wait_for_book(letters.case.driver, letters.case.first)
    kill(first)
    kill(relay)
    time.sleep(0.5)  # both sides find it gone
    relay = relay_of(letters)
    second = letters.join(killed)
    letters.wait_for_book(killed, letters.case.first)
    kill(second)
    letters.join(killed)
    if name == "chfl":
        letters.federation.wait_for_lines("out", 1, driver)
        kill(driver)
        driver = letters.train("--resume")
    assert driver.ended() == 0, driver.printed()
    assert "is not reached" in driver.printed() or name == "chfl"
    assert_same(letters.models(), trained_on_lines(write, name, {}))
    assert_reconciled(letters, dovetail)
    relay.signal(signal.SIGTERM)
    relay.process.join()
    left = list((letters.folder / "relay.site" / "letters" / "mail").rglob("*.*"))
    assert not [path for path in left if path.is_file()]


@pytest.mark.network
def test_a_relay_answers_each_party_what_is_for_it_alone(
    write: Callable[..., Letters],
) -> None:
    letters = write("apfed", "letters", relay=True)
    port = free_port()
    relay = relay_of(letters, "--health", f"127.0.0.1:{port}", "--max-letter-mb", 1, "--rate", 100)
    clinic, lab, eve = (
        Relay(letters.place, shown(letters, name)) for name in ("clinic", "lab", "eve")
    )
    lab.put("cards/lab", b"key")
    assert eve.get("cards/lab", 100) == b"key"
    with pytest.raises(PlaceError, match="a card of 'lab' is left by that party alone"):
        eve.put("cards/lab", b"another")
    name = letter("clinic", "lab")
    clinic.put(name, b"letter")
    assert lab.names("mail/lab/") == clinic.names("mail/lab/") == [name.rpartition("/")[2]]
    assert eve.names("mail/lab/") == []
    for refused in (lambda: eve.get(name, 100), lambda: eve.remove(name)):
        with pytest.raises(PlaceError, match="for that party alone"):
            refused()
    with pytest.raises(PlaceError, match="a letter of 'clinic' is left by it alone"):
        eve.put(letter("clinic", "lab", 2), b"")
    with pytest.raises(PlaceError, match="longer than 5 bytes"):
        lab.get(name, 5)
    with pytest.raises(PlaceError, match="413"):
        clinic.put(letter("clinic", "lab", 3), bytes(2**20 + 1))
    assert lab.get(name, 100) == b"letter"
    lab.remove(name)
    assert lab.get(name, 100) is None
    for path in ("mail/../../relay.log", "mail/lab/../x", "mail/lab/x"):
        with pytest.raises(PlaceError):
            eve.put(path, b"")
    for each in (clinic, lab, eve):
        each.close()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        reported = answer.read().decode()
    assert re.search(r'dovetail_relay_files_total\{event="refused"\} 4.0', reported)
    assert relay.running()


@pytest.mark.network
def test_a_relay_lets_in_nobody_without_a_certificate_of_its_authority(
    write: Callable[..., Letters], tmp_path: Path, dovetail: Callable[..., Any]
) -> None:
    letters = write("apfed", "letters", relay=True)
    relay_of(letters)
    context = ssl.create_default_context(
        cafile=str(letters.folder / "certificates" / "lab" / "ca.pem")
    )
    with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
        urllib.request.urlopen(f"{letters.place}/mail/lab/", context=context, timeout=5)
    done = dovetail("certificates", "lab", "--out", tmp_path / "others", "-q")
    assert done.code == 0, done.err
    other = Credentials.load(tmp_path / "others" / "lab", "lab")
    stranger = Relay(letters.place, Certified(other))
    with pytest.raises(PlaceError, match=r"is not reached .* certificates of one authority"):
        stranger.names("mail/lab/")
    done = dovetail(
        "certificates", "lab", "--revoke", "--out", letters.folder / "certificates", "-q"
    )
    assert done.code == 0, done.err
    listed = letters.folder / "certificates" / "ca" / "crl.pem"
    (letters.folder / "certificates" / "relay" / "crl.pem").write_bytes(listed.read_bytes())
    local = letters.folder / "certificates" / "lab"
    (local / "crl.pem").unlink(missing_ok=True)
    revoked = Relay(letters.place, Certified(Credentials.load(local, "lab")))
    with pytest.raises(PlaceError, match="is not reached"):
        revoked.names("mail/lab/")


def test_an_address_that_is_no_relays_is_refused(write: Callable[..., Letters]) -> None:
    letters = write("apfed", "letters", relay=True)
    for where in ("https://", "https://relay:443/mail"):
        with pytest.raises(ConfigError, match="a relay is https://HOST:PORT"):
            Relay(where, shown(letters, "lab"))
    nobody = Relay(letters.place, shown(letters, "lab"))
    with pytest.raises(PlaceError, match="is not reached"):
        nobody.names("mail/lab/")


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("lie", ["drop", "repeat", "alter", "delay"])
def test_a_relay_that_lies_is_found_out_by_name(write: Callable[..., Letters], lie: str) -> None:
    letters = write("chfl", "letters", relay=True)
    port = letters.place.rpartition(":")[2]
    where = ["relay", "--certificates", "certificates/relay", "--host", "127.0.0.1"]
    relay = letters.federation._begin(lying_relay, [*where, "--port", port], lie)
    relay.wait_for("relay at https://127.0.0.1")
    look = ("--mailbox", letters.place, "--poll", "0.1")
    joined = [
        letters.federation._begin(impatient_command, ("join", f"{each}.toml", *look))
        for each in letters.case.partners
    ]
    train = ("train", "network.toml", "--out", "out")
    driver = letters.federation._begin(impatient_command, train)
    assert driver.ended() == 0, driver.printed()
    reported = driver.printed() + "".join(each.printed() for each in joined)
    assert re.search(FOUND[lie], reported), reported


FOUND = {
    "drop": r"request \d+ to '(north|south)', or its answer, is gone; it is asked again",
    "repeat": r"request \d+ of 'coordinator' was shown again by https://127.0.0.1:\d+ after it",
    "alter": r"answer \d+ of '(north|south)' was altered in https://127.0.0.1:\d+",
    "delay": r"request \d+ of 'coordinator' was sent at .* did not show it at .* held back",
}


def lying_relay(folder: Path, output: Path, arguments: list[str], lie: str) -> None:
    """``dovetail relay`` that drops, alters or delays the third letter, or repeats all."""
    real_keep, real_names, real_remove = Store.keep, Store.names, Store.remove
    letters: list[str] = []
    hidden: dict[str, float] = {}
    copies: dict[str, bytes] = {}

    def keep(self: Store, name: str, fresh: Path, num_bytes: int) -> None:
        data = fresh.read_bytes()
        letters.extend([name] if name.endswith((".a", ".q")[lie != "alter" :]) else [])
        is_third = letters[2:] == [name]
        if is_third and lie == "alter":
            fresh.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        if is_third and lie == "delay":
            hidden[name] = time.monotonic() + 3
        copies[name] = data
        real_keep(self, name, fresh, num_bytes)
        if is_third and lie == "drop":
            real_remove(self, name)

    def names(self: Store, mailbox: str, party: str) -> list[str]:
        found = real_names(self, mailbox, party)
        if mailbox != f"mail/{party}/":  # whoever has left it sees that it lies there
            return found
        return [each for each in found if hidden.get(mailbox + each, 0) < time.monotonic()]

    def remove(self: Store, name: str) -> None:
        real_remove(self, name)
        data = copies.pop(name, None)
        if lie == "repeat" and data is not None:
            fresh, handle = self.fresh()
            os.close(handle)
            fresh.write_bytes(data)
            real_keep(self, name, fresh, len(data))

    Store.keep, Store.names, Store.remove = keep, names, remove  # type: ignore[method-assign]
    command(folder, output, arguments)


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "[::]"])
def test_the_address_that_is_printed_can_be_typed(
    everywhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_command.socket, "getfqdn", lambda: "relay.example.org")
    assert relay_command._typed(f"https://{everywhere}:443") == "https://relay.example.org:443"
    assert relay_command._typed("https://10.0.0.1:443") == "https://10.0.0.1:443"
