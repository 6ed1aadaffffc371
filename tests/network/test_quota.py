"""What a site counts: nothing that was answered is forgotten, and what cannot be counted is not."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import context

from dovetail.alignment.limits import Alignments
from dovetail.errors import AlignmentError, ConfigError
from dovetail.network.quota import Quota, QuotaError

COUNT = (
    "INSERT INTO answers VALUES ('bank', 'a1', 'chfl.Average', 1, '') "
    "ON CONFLICT DO UPDATE SET times = times + 1"
)


def counted(quota: Quota) -> int:
    return int(sum(times for (times,) in quota.read("SELECT times FROM answers")))


# --- What is counted stays ------------------------------------------------------------------------


def answer_until_killed(folder: Path, told: int) -> None:
    """A party that counts each answer, and gives it then: a byte."""
    quota = Quota(folder)
    while True:
        quota.write(COUNT)
        os.write(told, b"a")


@pytest.mark.slow
def test_a_party_that_is_killed_at_any_moment_has_forgotten_no_answer(tmp_path: Path) -> None:
    given = 0
    for number in range(8):
        heard, told = os.pipe()
        process = context.Process(target=_with, args=(tmp_path, os.getpid(), told))
        process.start()
        os.read(heard, 1)
        given += 1
        time.sleep(0.003 * number)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        os.close(told)
        while more := os.read(heard, 2**16):
            given += len(more)
        os.close(heard)
        # One may be counted whose answer had not left yet, each time that it was killed.
        assert given <= counted(Quota(tmp_path)) <= given + number + 1
    assert given > 100


def _with(folder: Path, parent: int, told: int) -> None:
    """``told`` is the parent's."""
    answer_until_killed(folder, os.open(f"/proc/{parent}/fd/{told}", os.O_WRONLY))


def test_changes_are_made_together_or_not_at_all(tmp_path: Path) -> None:
    quota = Quota(tmp_path)
    with pytest.raises(QuotaError, match=r"cannot write site\.sqlite"):
        quota.write_all(
            (COUNT, [()]), ("INSERT INTO sums VALUES (?, 'a', 1, 'b')", [("x",), ("x",)])
        )
    assert counted(quota) == 0
    quota.write(COUNT)
    assert counted(Quota(tmp_path)) == 1


def test_only_its_owner_reads_it(tmp_path: Path) -> None:
    quota = Quota(tmp_path)
    quota.write(COUNT, for_good=True)
    found = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert set(found.values()) == {0o600}, found
    assert "site.sqlite-wal" in found


# --- What cannot be counted is not answered -------------------------------------------------------


def test_a_full_disk_answers_nothing_and_what_was_counted_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.network.retry.PAUSES_S", (0.01,))
    quota = Quota(tmp_path)
    limits = Alignments(quota, max_alignments=3, max_ids=10**6, print_line=print)
    limits.of("bank", "a1").begins("bank", "intersection", 10)
    allowed, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))
    try:
        for _ in range(2):
            with pytest.raises(
                QuotaError, match="answers nothing that is not counted; its owner may"
            ):
                limits.of("bank", "a2").begins("bank", "intersection", 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, most))
    limits.of("bank", "a3").begins("bank", "intersection", 10)
    limits = Alignments(Quota(tmp_path), max_alignments=2, max_ids=10**6, print_line=print)
    with pytest.raises(AlignmentError, match="'bank' has aligned 2 times"):
        limits.of("bank", "a4").begins("bank", "intersection", 10)


def overwritten(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\x5a" * 8192 + whole[12288:])


@pytest.mark.parametrize(
    "damage",
    [overwritten, lambda path: path.write_bytes(b"gone bad" * 1000), lambda path: path.mkdir()],
    ids=["overwritten", "another file", "a folder"],
)
def test_a_damaged_file_is_not_answered_from(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    quota = Quota(tmp_path)
    quota.write(COUNT)
    quota._connection.close()
    path = tmp_path / "site.sqlite"
    if damage is not overwritten:
        path.unlink()
    damage(path)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"site\.sqlite cannot be read .*put it back, or"):
            Quota(tmp_path)


def test_a_file_of_a_newer_version_is_left_as_it_is(tmp_path: Path) -> None:
    Quota(tmp_path).read("PRAGMA user_version = 3")
    with pytest.raises(ConfigError, match="is of a newer version of Dovetail"):
        Quota(tmp_path)
