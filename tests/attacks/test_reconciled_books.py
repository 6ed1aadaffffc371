"""Books of two parties, held against each other after kills, and after one was changed."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attackers import Town, town
from test_rewritten_books import rewritten

from dovetail.network.ledger import verify


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Town]:
    with town(tmp_path).ending() as made:
        assert isinstance(made, Town)
        yield made


def output_of(federation: Town, *arguments: str, code: int) -> str:
    done = federation.start("ledger", *arguments)
    assert done.ended() == code, done.printed()
    return done.printed()


def wait_for_lines(federation: Town, number: int) -> None:
    deadline = time.monotonic() + 120
    while len(federation.lines("out")) < number:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.network
def test_books_agree_after_kills_and_resumes_and_every_change_is_found(federation: Town) -> None:
    federation.write(epochs=30)
    shop = federation.join("shop")
    driver = federation.start("train", "run.toml", "--out", "out", "-q")
    wait_for_lines(federation, 3)
    shop.signal(signal.SIGKILL)
    shop.ended()
    shop = federation.join("shop")
    wait_for_lines(federation, 8)
    driver.signal(signal.SIGKILL)
    driver.ended()
    again = federation.start("train", "run.toml", "--out", "out", "--resume", "-q")
    assert again.ended() == 0, again.printed()
    shop.signal(signal.SIGINT)
    assert shop.ended() in (0, 130), shop.printed()

    authority = ("--ca", "certificates/bank/ca.pem")
    both = ("verify", "bank.site", "shop.site", *authority)
    output = output_of(federation, *both, code=0)
    for sender, receiver in (("bank", "shop"), ("shop", "bank")):
        matched = re.search(rf"'{sender}' -> '{receiver}': ([\d,]+) messages are in both", output)
        assert matched is not None, output
        assert int(matched[1].replace(",", "")) > 100, output
        # The last head reaches all but the few lines that telling it took.
        after = re.search(rf"heads of the ledger of '{sender}'.*; (\d+) lines stand behind", output)
        assert after is not None, output
        assert int(after[1]) <= 3, output
    # Two kills: each costs a message in each direction at most.
    lost = re.findall(r"^  .* left for .*: (.*)$", output, re.MULTILINE)
    assert len(lost) <= 4
    assert all(re.search("ended there|was lost there", why) for why in lost), output

    # One line, proved to whoever has the authority's certificate and nothing else.
    index_of = next(
        number
        for number, line in enumerate(
            (federation.folder / "shop.site" / "ledger.jsonl").read_text().splitlines(), start=1
        )
        if "apfed.CodeGradient" in line or "apfed.Codes" in line
    )
    proof = ("--out", "proof.json")
    output_of(federation, "prove", "shop.site", str(index_of), "--by", "bank.site", *proof, code=0)
    shown = output_of(federation, "check", "proof.json", *authority, code=0)
    assert f"is line {index_of:,} of the ledger of 'shop'" in shown
    assert "signed by it" in shown
    text = (federation.folder / "proof.json").read_text()
    (federation.folder / "proof.json").write_text(text.replace("apfed.", "tvfl.", 1))
    assert "was changed" in output_of(federation, "check", "proof.json", *authority, code=2)

    # One byte, one line, and the whole book with hashes that fit.
    path = federation.folder / "shop.site" / "ledger.jsonl"
    honest = path.read_bytes()
    lines = honest.splitlines(keepends=True)
    number = len(lines) // 2
    changed = lines[number].replace(b'"sequence":', b'"Sequence":')
    path.write_bytes(b"".join([*lines[:number], changed, *lines[number + 1 :]]))
    assert f"ledger.jsonl: line {number + 1} was changed" in output_of(federation, *both, code=2)
    path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
    words = rf"line {number + 1} does not follow line {number}"
    assert words in output_of(federation, *both, code=2)

    path.write_bytes(honest)
    missing = json.loads(lines[number])["message"]
    rewritten(path, without=missing)
    assert verify(path).num_lines < len(lines)  # by itself it is a ledger
    matched = output_of(federation, *both, code=2)
    assert "the ledger of 'shop' is not the one it was on" in matched
    first = next(
        number
        for number, line in enumerate(
            (federation.folder / "bank.site" / "ledger.jsonl").read_text().splitlines(), start=1
        )
        if f'"{missing}"' in line
    )
    assert f"line {first} says that {missing}" in matched
    # Without any head of it, too: the books differ.
    shutil.rmtree(federation.folder / "bank.site" / "heads")
    assert f"line {first} says that {missing}" in output_of(federation, *both, code=2)
