"""What a site counts: nothing that was answered is forgotten, and what cannot be counted is not."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import context

from dovetail.alignment.limits import Limits
from dovetail.errors import AlignmentError, ConfigError
from dovetail.methods.party import PolicySection
from dovetail.network.quota import Quota, QuotaError
from dovetail.node.limits import RunLimits

OLD_SITE = Path(__file__).with_name("old_site")  # written by the code before site.sqlite

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
    limits = Limits(quota, max_alignments=3, max_ids=10**6, print_line=print)
    limits.of("bank", "a1").begins("bank", "intersection", 10)
    allowed, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))
    try:
        for _ in range(2):
            with pytest.raises(QuotaError, match="answers nothing that is not counted; its log"):
                limits.of("bank", "a2").begins("bank", "intersection", 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, most))
    limits.of("bank", "a3").begins("bank", "intersection", 10)
    limits = Limits(Quota(tmp_path), max_alignments=2, max_ids=10**6, print_line=print)
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
        with pytest.raises(ConfigError, match=r"site\.sqlite cannot be read .*put it back, or del"):
            Quota(tmp_path)


def test_a_file_of_a_newer_version_is_left_as_it_is(tmp_path: Path) -> None:
    Quota(tmp_path).read("PRAGMA user_version = 2")
    with pytest.raises(ConfigError, match="is of a newer version of Dovetail"):
        Quota(tmp_path)


# --- Counts of an older version -------------------------------------------------------------------


def test_what_an_older_version_counted_is_read_once_and_moved(tmp_path: Path) -> None:
    site = tmp_path / "shop.site"
    shutil.copytree(OLD_SITE, site)
    read = Quota(site).read
    assert read("SELECT driver, run, num_ids, num_shared, unproven FROM alignments") == [
        ("bank", "a300", 300, 250, 0),
        ("bank", "a301", 301, None, 0),
        ("clinic", "a40", 40, None, 1),
    ]
    assert read("SELECT driver, run, algorithm, number, at, anew, letter FROM begins") == [
        ("bank", "a300/apfed/seed-0", "apfed", 1, 1_700_000_180.0, 0, ""),
        ("clinic", "a40/chfl/seed-1", "chfl", 1, 1_700_000_180.0, 0, "letter-7"),
    ]
    assert read("SELECT * FROM answers") == [("clinic", "a40/chfl/seed-1", "chfl.Average", 4, "")]
    assert read("SELECT * FROM releases") == [("bank", "a300/apfed/seed-0", "apfed", 5)]
    assert read("SELECT driver, times FROM numbers ORDER BY times") == [
        *[("bank", 3)] * 4,
        *[("bank", 6)] * 2,
    ]
    assert read("SELECT driver, count(*) FROM given") == [("bank", 8)]
    assert read("SELECT * FROM sums") == [
        ("clinic", "a40/chfl/seed-1", 1, "abababababababab"),
        ("clinic", "a40/chfl/seed-1", 2, "cdcdcdcdcdcdcdcd"),
    ]
    assert read("SELECT * FROM agreed") == [
        ("abab", "2026-11-20T10:00:00Z", "bank", "a300/apfed/seed-0", "apfed", "d1", "5a5a")
    ]
    used_S = RunLimits(Quota(site), PolicySection()).used(("bank", "a300/apfed/seed-0", "apfed"))
    assert used_S.tolist() == [1] * 32 + [3] * 32 + [2] * 32
    left = {path.name for path in site.rglob("*") if path.is_file()}
    assert left <= {"site.sqlite", "site.sqlite-wal", "site.sqlite-shm"}
    Quota(site).write(COUNT)  # read once: nothing is counted twice
    assert counted(Quota(site)) == 5


def test_an_older_count_that_cannot_be_read_is_told_and_nothing_is_moved(tmp_path: Path) -> None:
    site = tmp_path / "shop.site"
    shutil.copytree(OLD_SITE, site)
    (site / "alignments.json").write_text("{")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"alignments\.json cannot be read .*so nobody knows"):
            Quota(site)
    assert (site / "runs.jsonl").exists()
    (site / "alignments.json").unlink()
    assert counted(Quota(site)) == 4
