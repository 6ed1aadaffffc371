"""Requests to a relay count once, for one process, from the party whose certificate signed them."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from processes import credentials

from dovetail.companions.mailbox.signed import CLOCK_S, Signatures, UnsignedError, sign_request
from dovetail.network.certificates import Authority
from dovetail.network.renewal import Certified


class Door:
    """A relay's signatures, with a clock that a test sets, and a shop that signs."""

    def __init__(self) -> None:
        self.now = time.time()
        authority = Authority.create(now=datetime.now(UTC))
        self.relay = Certified(credentials(authority, "relay", listens=True))
        self.signatures = Signatures(self.relay, clock=lambda: self.now)
        self.shop = Certified(credentials(authority, "shop"))

    def signed(self) -> str:
        return sign_request(self.shop, "GET", "/mail/shop/", b"", self.signatures.process)


@pytest.fixture
def door() -> Door:
    return Door()


def test_a_signed_request_counts_once(door: Door) -> None:
    header = door.signed()
    said = door.signatures.check(header, "GET", "/mail/shop/")
    assert said.party == "shop"
    door.signatures.once(said)
    with pytest.raises(UnsignedError, match="it is repeated"):
        door.signatures.once(door.signatures.check(header, "GET", "/mail/shop/"))


def test_a_request_is_for_its_method_path_and_process_alone(door: Door) -> None:
    header = door.signed()
    for method, path in (("DELETE", "/mail/shop/"), ("GET", "/mail/bank/")):
        with pytest.raises(UnsignedError, match="has signed GET /mail/shop/"):
            door.signatures.check(header, method, path)
    with pytest.raises(UnsignedError, match="for another process"):
        Signatures(door.relay).check(header, "GET", "/mail/shop/")


@pytest.mark.parametrize(("later_s", "words"), [(1, " ago by"), (-1, " ahead by")])
def test_an_old_request_does_not_count_and_one_of_the_future_neither(
    door: Door, later_s: int, words: str
) -> None:
    header = door.signed()
    door.now += later_s * (CLOCK_S + 5)
    with pytest.raises(UnsignedError, match=words):
        door.signatures.check(header, "GET", "/mail/shop/")


def test_requests_that_are_too_old_to_count_are_not_remembered(door: Door) -> None:
    for _ in range(3):
        door.signatures.once(door.signatures.check(door.signed(), "GET", "/mail/shop/"))
    door.now += 2 * CLOCK_S + 1
    other = sign_request(door.shop, "GET", "/", b"", door.signatures.process)
    with pytest.raises(UnsignedError, match="set the clocks"):
        door.signatures.check(other, "GET", "/")
    door.now -= 2 * CLOCK_S + 1
    said = door.signatures.check(door.signed(), "GET", "/mail/shop/")
    door.now += 2 * CLOCK_S + 1
    door.signatures.once(said)
    assert len(door.signatures._nonces) == 1


def test_no_character_of_a_signed_request_changes_what_is_read(door: Door) -> None:
    header = door.signed()
    said, unnoticed = door.signatures.check(header, "GET", "/mail/shop/"), 0
    for index in range(len(header)):
        altered = header[:index] + ("A" if header[index] != "A" else "B") + header[index + 1 :]
        try:
            assert door.signatures.check(altered, "GET", "/mail/shop/") == said
        except UnsignedError:
            continue
        unnoticed += 1
    # Bits of base64 that stand for nothing, and one of a certificate.
    assert unnoticed <= 3


@pytest.mark.parametrize("header", ["", "Basic abc", "Dovetail a.b", "Dovetail e30=.e30="])
def test_what_is_no_signature_is_refused_in_a_sentence(door: Door, header: str) -> None:
    with pytest.raises(UnsignedError, match="it is not signed"):
        door.signatures.check(header, "GET", "/mail/shop/")


def test_a_party_of_another_authority_is_not_believed(door: Door) -> None:
    other = Certified(credentials(Authority.create(now=datetime.now(UTC)), "shop"))
    header = sign_request(other, "GET", "/mail/shop/", b"", door.signatures.process)
    with pytest.raises(UnsignedError, match="an authority that is not believed here"):
        door.signatures.check(header, "GET", "/mail/shop/")
