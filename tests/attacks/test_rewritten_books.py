"""A party, or a driver, writes its ledger anew, so that something never left it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attackers import Town, town
from typer.testing import CliRunner

from dovetail.errors import MessageError, NetworkError
from dovetail.network import ledger as ledgers
from dovetail.network.control import Failed
from dovetail.network.heads import Heads, compare
from dovetail.network.ledger import LedgerFile, verify


def rewritten(path: Path, *, without: str) -> None:
    """Rewrite a ledger as if such messages had never left: totals and hashes are right again."""
    previous, totals, lines = "0" * 64, dict[str, int](), []
    for line in path.read_text().splitlines():
        entries: dict[str, Any] = json.loads(line)
        if entries.get("message") == without:
            continue
        del entries["hash"]
        entries["previous"] = previous
        if "to" in entries:
            totals[entries["to"]] = totals.get(entries["to"], 0) + entries["bytes"]
            entries["bytes_to"] = totals[entries["to"]]
            entries["bytes_all"] = sum(totals.values())
        body = json.dumps(entries, separators=(",", ":"))[:-1]
        previous = hashlib.sha256(body.encode()).hexdigest()
        lines.append(f'{body},"hash":"{previous}"}}\n')
    path.write_text("".join(lines))


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Town]:
    with town(tmp_path).ending() as made:
        assert isinstance(made, Town)
        yield made


@pytest.mark.network
@pytest.mark.parametrize("liar", ["shop", "bank"])
def test_a_book_written_anew_is_found_by_the_heads_that_the_other_holds(
    federation: Town, liar: str
) -> None:
    federation.write(epochs=4)
    federation.join("shop")
    driver = federation.start("train", "run.toml", "--out", "out")
    assert driver.ended() == 0, driver.printed()
    bank, shop = (federation.folder / f"{name}.site" for name in ("bank", "shop"))
    authority = ("--ca", "certificates/bank/ca.pem")

    agreed = federation.start("ledger", "bank.site", "shop.site", *authority)
    assert agreed.ended() == 0, agreed.printed()
    for holder, of in (("shop", "bank"), ("bank", "shop")):
        words = rf"'{holder}' holds [12] heads of the ledger of '{of}', [12] of them signed: all"
        assert re.search(words, agreed.printed()), agreed.printed()

    path = (shop if liar == "shop" else bank) / "ledger.jsonl"
    before = verify(path)
    rewritten(path, without="apfed.CodeGradient" if liar == "shop" else "apfed.Codes")
    assert verify(path).num_lines < before.num_lines  # it verifies by itself: nobody would see it
    done = federation.start("ledger", "bank.site", "shop.site", *authority)
    assert done.ended() == 2, done.printed()
    other = "bank" if liar == "shop" else "shop"
    words = (
        rf"the ledger of '{liar}' is not the one it was on .*: '{other}' holds the head that "
        rf"'{liar}' signed of line \d+, .*, and no line has it"
    )
    assert re.search(words, done.printed()), done.printed()


# --- In this process ------------------------------------------------------------------------------


def exchanged(tmp_path: Path, *, lines: int = 3) -> dict[str, Path]:
    """Homes of two that have told each other where their ledgers stand; no certificates."""
    site_folders = {name: tmp_path / name for name in ("bank", "shop")}
    ledgers = {}
    for name, site_folder in site_folders.items():
        site_folder.mkdir()
        ledgers[name] = LedgerFile(site_folder / "ledger.jsonl", name)
    for number in range(lines):
        for name, ledger in ledgers.items():
            ledger.record("shop" if name == "bank" else "bank", Failed(f"{number}"), run="r")
    heads = {name: Heads(ledger).current() for name, ledger in ledgers.items()}
    Heads(ledgers["bank"]).keep("shop", heads["shop"])
    Heads(ledgers["shop"]).keep("bank", heads["bank"])
    for ledger in ledgers.values():
        ledger.close()
    return site_folders


def test_lines_cut_off_at_the_end_are_found(tmp_path: Path) -> None:
    site_folders = exchanged(tmp_path)
    path = site_folders["shop"] / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert verify(path).num_lines == 3
    _, _, (of_bank, of_shop) = compare(site_folders["bank"], site_folders["shop"])
    assert (of_bank.why, of_bank.heads, of_bank.lines, of_bank.after) == ("", 1, 4, 0)
    assert "holds the head that 'shop' told of line 4" in of_shop.why


def test_a_rewritten_book_that_goes_on_does_not_wash_the_older_head_away(tmp_path: Path) -> None:
    site_folders = exchanged(tmp_path)
    rewritten(
        site_folders["shop"] / "ledger.jsonl", without="nothing"
    )  # the same lines: nothing to find
    assert not compare(site_folders["bank"], site_folders["shop"])[2][1].why
    path = site_folders["shop"] / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    with (
        LedgerFile(path, "shop") as ledger,
        LedgerFile(site_folders["bank"] / "ledger.jsonl", "bank") as bank,
    ):
        held = Heads(bank)
        for number in range(5):
            ledger.record("bank", Failed(f"anew {number}"))
            held.keep("shop", Heads(ledger).current())
    why = compare(site_folders["bank"], site_folders["shop"])[2][1].why
    assert "holds the head that 'shop' told of line 4" in why


@pytest.mark.slow
def test_a_head_that_was_made_up_is_no_proof(federation: Town) -> None:
    """Who wants to accuse another needs that other's key."""
    from dovetail.network.renewal import Certified

    federation.write()
    bank, shop = (Certified(federation.credentials(name)) for name in ("bank", "shop"))
    site_folder = federation.folder / "bank.site"
    for name in ("bank", "shop"):
        (federation.folder / f"{name}.site").mkdir()
    with (
        LedgerFile(site_folder / "ledger.jsonl", "bank") as ledger,
        LedgerFile(federation.folder / "shop.site" / "ledger.jsonl", "shop") as theirs,
    ):
        honest = Heads(theirs, shop).current()
        Heads(ledger, bank).keep("shop", honest)
        of_bank = Heads(ledger, bank).current()
        assert '"lines": 1,' in honest
        for statement, words in (
            (of_bank, "is no head"),  # of shop's ledger
            (
                of_bank.replace('"of": "bank"', '"of": "shop"'),
                "'shop' is signed with the certificate of another",
            ),
            (honest.replace('"lines": 1,', '"lines": 7,'), "'shop' is not what it has signed"),
            (Heads(theirs).current(), "'shop' is not signed"),
            ("[1, 2]", "is no head"),
            ("x" * 30_000, "is no head"),
        ):
            with pytest.raises(MessageError, match=words):
                Heads(ledger, bank).keep("shop", statement)
    path = site_folder / "heads" / "shop.jsonl"
    head = json.loads(path.read_text())
    path.write_text(json.dumps({**head, "hash": "0" * 64}) + "\n")
    _, _, (_, of_shop) = compare(site_folder, federation.folder / "shop.site")
    assert "'shop' is not what it has signed" in of_shop.why


# --- Books that grow ------------------------------------------------------------------------------


def test_a_book_that_grew_goes_on_in_a_new_file_and_is_one_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "ROTATE_BYTES", 500)
    path = tmp_path / "ledger.jsonl"
    noted = []
    for start in range(4):
        with LedgerFile(path, "shop") as ledger:
            for number in range(3):
                ledger.record("bank", Failed(f"{start} {number}"), run="r")
            noted.append(ledger.last_hash)
    names = sorted(each.name for each in tmp_path.iterdir())
    assert names == [*(f"ledger-000{number}.jsonl" for number in (1, 2, 3)), "ledger.jsonl"]
    whole = verify(path)
    assert (whole.num_lines, whole.last_hash, whole.follows) == (16, noted[-1], "")
    assert sum(sent.count for sent in whole.sent.values()) == 12
    for digest in noted:
        assert verify(path, noted=digest).num_lines == 16
    last = verify(path, whole=False)
    assert (last.num_lines, last.follows, len(last.hashes)) == (16, "ledger-0003.jsonl", 4)

    middle = tmp_path / "ledger-0002.jsonl"
    kept = middle.read_text()
    rewritten(middle, without="control.Failed")
    with pytest.raises(NetworkError, match="line 1 does not follow the last line of the file"):
        verify(path)
    middle.write_text(kept.replace('"to":"bank"', '"to":"bonk"'))
    with pytest.raises(NetworkError, match=r"ledger-0002\.jsonl: line 2 was changed"):
        verify(path)


def test_two_books_of_one_party_and_a_noted_hash_are_no_comparison(tmp_path: Path) -> None:
    from dovetail.cli.main import app

    site_folders = exchanged(tmp_path)
    with pytest.raises(NetworkError, match="both of party 'bank'"):
        compare(site_folders["bank"], site_folders["bank"])
    done = CliRunner().invoke(
        app, ["ledger", str(site_folders["bank"]), str(site_folders["shop"]), "--json"]
    )
    report = json.loads(done.output)
    assert report["agree"] is True
    assert {(each["holder"], each["of"]) for each in report["compared"]} == {
        ("shop", "bank"),
        ("bank", "shop"),
    }
