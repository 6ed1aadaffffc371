"""Letters through a company's proxy that opens TLS: it reads sizes and times, alters nothing."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from federations import Process, command, free_port
from mailboxes import Letters, certify_relay, relay_of, written
from opening_proxy import OpeningProxy, asked
from test_letter_runs import assert_reconciled, assert_same, trained_on_lines
from test_relay import letter, shown

from dovetail.companions.mailbox.places import PlaceError
from dovetail.companions.mailbox.relay import Relay

pytest.importorskip("starlette")
pytest.importorskip("httpx")

pytestmark = pytest.mark.network


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[OpeningProxy]:
    made = OpeningProxy(tmp_path / "company")
    yield made
    made.close()


@pytest.fixture
def write(
    tmp_path: Path, deal: Callable[..., Any], dovetail: Callable[..., Any], proxy: OpeningProxy
) -> Iterator[Callable[..., Letters]]:
    """Writes a case's files; with ``relay`` its place is one that the proxy leads to."""
    with ExitStack() as stack:

        def make(name: str, folder: str, relay: bool = False) -> Letters:
            place = f"https://127.0.0.1:{free_port()}" if relay else ""
            made = written(tmp_path / folder, name, deal, dovetail, place)
            stack.enter_context(made.federation.ending())
            if relay:
                path = made.folder / "network.toml"
                trusted = f'proxy_ca = "{proxy.ca}"\npartners'
                path.write_text(path.read_text().replace("partners", trusted))
                certify_relay(made, dovetail)
            return made

        yield make


def behind_proxy(folder: Path, output: Path, arguments: Sequence[str], url: str) -> None:
    """``dovetail ARGUMENTS`` where a proxy is the only way out."""
    os.environ["HTTPS_PROXY"] = url
    command(folder, output, arguments, local_secrets=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chfl", "apfed"])
def test_a_run_through_a_proxy_that_opens_tls_gives_the_same_bits(
    write: Callable[..., Letters], name: str, proxy: OpeningProxy, dovetail: Callable[..., Any]
) -> None:
    letters = write(name, "letters", relay=True)
    relay_of(letters, "--no-mutual-tls")

    def start(*words: object) -> Process:
        return letters.federation._begin(behind_proxy, [str(each) for each in words], proxy.url)

    for each in letters.case.partners:
        look = ("--mailbox", letters.place, "--proxy-ca", proxy.ca, "--poll", "0.1")
        start("join", f"{each}.toml", *look)
    driver = start("train", "network.toml", "--out", "out")
    assert driver.ended() == 0, driver.printed()
    assert_same(letters.models(), trained_on_lines(write, name, {}))
    assert_reconciled(letters, dovetail)
    left = [each for each in proxy.requests if each.startswith(b"PUT /mail/")]
    assert len(left) > 8
    read = b"".join(proxy.requests + proxy.answers)
    assert letters.case.first.encode() in (letters.folder / "out" / "ledger.jsonl").read_bytes()
    for word in (letters.case.first.encode(), b"psi.", b"safetensors", b"instance"):
        assert word not in read


@pytest.fixture
def parties(
    write: Callable[..., Letters], proxy: OpeningProxy, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Relay]]:
    """Clinic, lab and eve, who reach a relay by the proxy."""
    letters = write("apfed", "letters", relay=True)
    relay_of(letters, "--no-mutual-tls")
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    made = {
        name: Relay(letters.place, shown(letters, name), proxy_ca=proxy.ca)
        for name in ("clinic", "lab", "eve")
    }
    yield made
    for each in made.values():
        each.close()


def test_a_proxy_cannot_alter_a_request(parties: dict[str, Relay], proxy: OpeningProxy) -> None:
    clinic, lab = parties["clinic"], parties["lab"]
    name, other = letter("clinic", "lab"), letter("clinic", "lab", 2)
    clinic.put(name, b"letter")  # as it is
    changes: dict[str, Callable[[bytes], bytes]] = {
        "not the one that was signed": lambda each: each[:-1] + bytes([each[-1] ^ 1]),
        "has signed PUT": lambda each: each.replace(b".000003.", b".000004.", 1),
        "is not signed": lambda each: re.sub(rb"(?i)authorization: [^\r]+\r\n", b"", each),
    }
    for why, change in changes.items():
        proxy.change = change
        with pytest.raises(PlaceError, match=why):
            clinic.put(letter("clinic", "lab", 3), b"letter")
    proxy.change = lambda each: each.replace(b"DELETE", b"GET", 1)
    with pytest.raises(PlaceError, match="has signed DELETE"):
        lab.remove(name)
    proxy.change = bytes
    assert lab.get(name, 100) == b"letter"
    assert lab.get(other, 100) is None


def test_a_proxy_cannot_repeat_or_invent_a_request(
    parties: dict[str, Relay], proxy: OpeningProxy
) -> None:
    clinic, lab, eve = (parties[name] for name in ("clinic", "lab", "eve"))
    name = letter("clinic", "lab")
    clinic.put(name, b"letter")
    put = proxy.requests[-1]
    lab.remove(name)
    host = lab.where.removeprefix("https://")
    assert b"401" in (answer := asked(host, put)).split(b"\r\n")[0]
    assert b"it is repeated" in answer
    assert lab.names("mail/lab/") == []
    eve.names("mail/eve/")
    signed_by_eve = re.search(rb"(?i)authorization: [^\r]+", proxy.requests[-1])
    assert signed_by_eve is not None
    forged = re.sub(rb"(?i)authorization: [^\r]+", signed_by_eve[0], put)
    assert b"401" in asked(host, forged).split(b"\r\n")[0]
    unsigned = re.sub(rb"(?i)authorization: [^\r]+\r\n", b"", put)
    assert b"401" in asked(host, unsigned).split(b"\r\n")[0]
    with pytest.raises(PlaceError, match="left by it alone"):
        eve.put(letter("clinic", "lab", 2), b"another's")
    assert lab.names("mail/lab/") == []


def test_what_was_sent_to_a_relays_process_before_does_not_count(
    write: Callable[..., Letters], proxy: OpeningProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = write("apfed", "letters", relay=True)
    relay = relay_of(letters, "--no-mutual-tls")
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    clinic = Relay(letters.place, shown(letters, "clinic"), proxy_ca=proxy.ca)
    clinic.put(letter("clinic", "lab"), b"letter")
    put = proxy.requests[-1]
    relay.signal(signal.SIGKILL)
    relay.ended()
    relay_of(letters, "--no-mutual-tls")
    answer = asked(letters.place.removeprefix("https://"), put)
    assert b"signed for another process" in answer
    with pytest.raises(PlaceError, match="is not reached"):  # its connection is of that process
        clinic.names("mail/clinic/")
    clinic.put(letter("clinic", "lab", 2), b"letter")  # which takes up the new one by itself
    clinic.close()


def test_who_does_not_trust_the_proxy_is_told_how(
    write: Callable[..., Letters], proxy: OpeningProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = write("apfed", "letters", relay=True)
    relay_of(letters)
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    clinic = Relay(letters.place, shown(letters, "clinic"))
    with pytest.raises(PlaceError, match=r"engine.proxy_ca or --proxy-ca"):
        clinic.names("mail/clinic/")
    trusting = Relay(letters.place, shown(letters, "clinic"), proxy_ca=proxy.ca)
    with pytest.raises(PlaceError, match="--no-mutual-tls"):
        trusting.names("mail/clinic/")
