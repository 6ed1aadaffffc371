"""Letters in a bucket: moto's server over HTTP stands for a store, in an environment of its own.

moto needs other versions of what is installed here: ``make build/moto/.installed`` makes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from federations import Process, command, free_port
from mailboxes import Letters, kill, written
from stores import MOTO, bucket_store
from test_letter_runs import assert_reconciled, assert_same, trained_on_lines

from dovetail.companions.mailbox.bucket import Bucket
from dovetail.companions.mailbox.places import PlaceError
from dovetail.errors import ConfigError

pytest.importorskip("obstore")

NEEDS_SERVER = pytest.mark.skipif(
    not MOTO.exists(), reason="make build/moto/.installed makes the server"
)

PLACE = "s3://letters/bank-and-shop"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A store with an empty bucket; gives the environment that reaches it."""
    with bucket_store(tmp_path, "letters") as environment:
        yield environment


@pytest.fixture
def bucket(store: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name, value in store.items():
        monkeypatch.setenv(name, value)
    return Bucket(PLACE)


@NEEDS_SERVER
@pytest.mark.network
def test_a_bucket_does_what_a_place_must(bucket: Bucket) -> None:
    bucket.put("mail/shop/a", b"letter")
    bucket.put("mail/shop/b", b"")
    bucket.put("cards/shop", b"key")
    assert sorted(bucket.names("mail/shop/")) == ["a", "b"]
    assert bucket.names("mail/nobody/") == []
    assert bucket.get("mail/shop/a", 6) == b"letter"
    with pytest.raises(PlaceError, match="6 bytes; at most 5"):
        bucket.get("mail/shop/a", 5)
    for _ in range(2):
        bucket.remove("mail/shop/a")
    assert bucket.get("mail/shop/a", 6) is None
    assert Bucket("s3://letters").get("bank-and-shop/cards/shop", 10) == b"key"
    with pytest.raises(PlaceError, match="there is no such bucket"):
        Bucket("s3://nobodys").put("cards/shop", b"key")


@NEEDS_SERVER
@pytest.mark.network
def test_a_store_that_is_gone_is_told(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(PlaceError, match=re.escape(f"cannot list {PLACE}/mail/shop/")):
        Bucket(PLACE).names("mail/shop/")


def test_an_address_that_is_no_bucket_is_refused() -> None:
    for where in ("s3://", "s3://key@bucket/prefix"):
        with pytest.raises(ConfigError, match="a bucket is s3://BUCKET"):
            Bucket(where)


def command_there(
    folder: Path, output: Path, arguments: Sequence[str], environment: dict[str, str]
) -> None:
    """``dovetail ARGUMENTS`` where a store is reached."""
    os.environ.update(environment)
    command(folder, output, arguments, local_secrets=False)


@NEEDS_SERVER
@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("name", ["chfl", "apfed"])
def test_a_party_that_is_killed_twice_changes_no_bit(
    tmp_path: Path,
    store: dict[str, str],
    deal: Callable[..., Any],
    dovetail: Callable[..., Any],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as stack:

        def write(case: str, folder: str) -> Letters:
            made = written(tmp_path / folder, case, deal, dovetail, "")
            stack.enter_context(made.federation.ending())
            return made

        letters = written(tmp_path / "letters", name, deal, dovetail, PLACE)
        stack.enter_context(letters.federation.ending())

        def start(*arguments: object) -> Process:
            reported = [str(each) for each in arguments]
            return letters.federation._begin(command_there, reported, store)

        def join(party: str) -> Process:
            return start("join", f"{party}.toml", "--mailbox", PLACE, "--poll", "0.1")

        killed, *others = letters.case.partners
        for each in others:
            join(each)
        first = join(killed)
        if name == "apfed":
            aligned = start("align", "network.toml")
            assert aligned.ended() == 0, aligned.printed()
        driver = start("train", "network.toml", "--out", "out")
        letters.wait_for_book(letters.case.driver, letters.case.first)
        kill(first)
        second = join(killed)
        letters.wait_for_book(killed, letters.case.first)
        kill(second)
        join(killed)
        assert driver.ended() == 0, driver.printed()
        assert_same(letters.models(), trained_on_lines(write, name, {}))
        assert_reconciled(letters, dovetail)
    for key, value in store.items():
        monkeypatch.setenv(key, value)
    for party in (letters.case.driver, *letters.case.partners):
        assert Bucket(PLACE).names(f"mail/{party}/") == []
