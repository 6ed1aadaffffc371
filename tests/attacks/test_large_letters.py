"""Letters of somebody who fills a mailbox: sizes are seen before anything is read into memory.

``tracemalloc`` counts every byte that a letter takes in Python, whatever the system has free.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from letter_boxes import Post, until
from processes import Answer, Question
from torch import ones

from dovetail.companions.mailbox.folder import Folder
from dovetail.companions.mailbox.letters import MAX_EXTRA_BYTES
from dovetail.companions.mailbox.sending import Mailbox
from dovetail.methods.settings.party import PolicySection
from dovetail.network.messages import MAX_MESSAGE_BYTES

MIB = 2**20


@contextmanager
def peak_mib() -> Iterator[list[float]]:
    """The most that Python held at once, above what it held before."""
    found: list[float] = []
    tracemalloc.start()
    try:
        yield found
        found.append(tracemalloc.get_traced_memory()[1] / MIB)
    finally:
        tracemalloc.stop()


@pytest.fixture
def post(tmp_path: Path) -> Post:
    post = Post(tmp_path)
    post.place = Folder(tmp_path / "place")  # as it is, without a test between
    post.start()
    return post


def waiting(post: Post, driver: Mailbox, numbers: int) -> tuple[Any, Path]:
    """A question of so many numbers that is under way, and the file that it lies in."""
    driver.wait(10)
    sent = driver.engine("run", timeout_s=60.0).send({"shop": Question(ones(numbers))}, Answer)
    folder = post.folder / "place" / "mail" / "shop"
    until(lambda: folder.is_dir() and [*folder.glob("bank.*.q")])
    return sent, next(folder.glob("bank.*.q"))


def test_a_letter_of_a_gibibyte_is_refused_unread_and_holds_up_no_other(post: Post) -> None:
    assert PolicySection().max_message_bytes == MAX_MESSAGE_BYTES == 256 * MIB
    sent, honest = waiting(post, post.drive(), 1)
    false = honest.with_name(honest.name.replace(".1.q", ".2.q"))  # as the driver's next attempt
    with false.open("wb") as file:
        file.truncate(1024 * MIB)  # it takes no disk
    with peak_mib() as peak:
        assert post.mailman.look() == 1  # the honest one
    assert peak[0] < 3
    assert f"has {1024 * MIB} bytes; at most {256 * MIB + MAX_EXTRA_BYTES} are" in post.refused[-1]
    assert not [*honest.parent.iterdir()]
    assert sent.replies().or_raise().keys() == {"shop"}


def test_a_large_letter_lies_in_memory_no_more_often_than_it_must(post: Post) -> None:
    sent, letter = waiting(post, post.drive(), 8 * MIB)
    assert letter.stat().st_size > 32 * MIB
    with peak_mib() as peak:
        assert post.mailman.look() == 1
    # Request, its tensor, what is answered and its letter; 1,152 when a read asked for the limit.
    assert peak[0] < 7 * 32
    assert sent.replies().or_raise().keys() == {"shop"}
