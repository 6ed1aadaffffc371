"""What one book says left is what the other says came, or the first line that differs is named."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from dovetail.errors import NetworkError
from dovetail.network import ledger as ledgers
from dovetail.network.control import Failed
from dovetail.network.heads import Heads, heads_of
from dovetail.network.ledger import LedgerFile, verify
from dovetail.network.messages import Message
from dovetail.network.reconcile import Agreement, check_line, prove, reconcile
from dovetail.network.tree import Tree, leaf_hash, path, root_of


class Batch(Message):
    number: int


class Codes(Message):
    number: int


class Pair:
    """The bank asks, the shop answers; each keeps its book, and what is told happens to both."""

    def __init__(self, folder: Path) -> None:
        self.paths = {name: folder / name / "ledger.jsonl" for name in ("bank", "shop")}
        self.books: dict[str, LedgerFile] = {}
        self.line = {"bank": 0, "shop": 0}
        self.number = 0
        for name, file in self.paths.items():
            file.parent.mkdir()
            self.start(name)

    def start(self, name: str) -> None:
        """It begins, or was killed and begins anew; either way there is a new connection."""
        if name in self.books:
            self.books[name].close()
        self.books[name] = LedgerFile(self.paths[name], name)
        self.line[name] = 0
        if name == "bank":
            self.number = 0
        self.connect()

    def connect(self) -> None:
        self.line = {name: line + 1 for name, line in self.line.items()}

    def left(
        self, name: str, message: Message, *, count: int = 1, digest: str | None = None
    ) -> None:
        other = "shop" if name == "bank" else "bank"
        self.books[name].record(
            other,
            message,
            run="r",
            sequence=self.number,
            count=count,
            digest=self.digest(message) if digest is None else digest,
            connection=self.line[name],
        )

    def came(
        self, name: str, message: Message, *, count: int = 1, digest: str | None = None
    ) -> None:
        other = "shop" if name == "bank" else "bank"
        self.books[name].came(
            other,
            message.wire_name(),
            8,
            run="r",
            sequence=self.number,
            count=count,
            digest=self.digest(message) if digest is None else digest,
            connection=self.line[name],
        )

    def digest(self, message: Message) -> str:
        return hashlib.sha256(f"{message} {self.number}".encode()).hexdigest()

    def ask(self) -> None:
        """One request that comes, and is answered."""
        self.number += 1
        self.left("bank", Batch(self.number))
        self.came("shop", Batch(self.number))
        self.left("shop", Codes(self.number))
        self.came("bank", Codes(self.number))

    def compared(self) -> tuple[Agreement, Agreement]:
        asked, answered = reconcile(*self.paths.values())
        assert (asked.sender, answered.sender) == ("bank", "shop")
        return asked, answered


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    made = Pair(tmp_path)
    made.ask()
    made.ask()
    return made


def test_honest_books_say_the_same_also_while_they_grow(pair: Pair) -> None:
    assert [(each.same, each.lost, each.why) for each in pair.compared()] == [(2, [], "")] * 2
    pair.number += 1
    pair.left("bank", Batch(3))  # it is on its way
    asked, answered = pair.compared()
    assert (asked.same, len(asked.lost), asked.why) == (2, 1, "")
    assert asked.lost[0].endswith("left for 'shop': the book of 'bank' ends there")
    assert (answered.same, answered.why) == (2, "")


@pytest.mark.parametrize("who", ["shop", "bank"])
def test_a_request_that_a_kill_swallowed_is_explained(pair: Pair, who: str) -> None:
    pair.number += 1
    pair.left("bank", Batch(3))
    pair.start(who)
    pair.ask()
    asked, answered = pair.compared()
    why = "the line was lost there" if who == "shop" else "'bank' ended there, and began anew"
    assert asked.lost[0].endswith(f"test_books.Batch (number 3 of 'r') left for 'shop': {why}")
    assert (asked.same, asked.why, answered.same, answered.why) == (3, "", 3, "")


def test_a_first_request_is_not_taken_for_answered_by_the_one_before(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.number += 1
    pair.left("bank", Batch(1))
    pair.came("shop", Batch(1))
    pair.start("bank")  # killed: the answer comes to nobody
    pair.number = 1
    pair.left("shop", Codes(1))
    for each in (2, 3):  # each process numbers from 1; the second's request did not come
        pair.start("bank")
        pair.number = 1
        pair.left("bank", Batch(each))
    pair.start("shop")
    pair.number = 1
    pair.came("shop", Batch(3))
    pair.left("shop", Codes(3))
    pair.came("bank", Codes(3))
    asked, answered = pair.compared()
    assert (asked.same, len(asked.lost), asked.why) == (2, 1, "")
    assert "'bank' ended there, and began anew" in asked.lost[0]
    assert (answered.same, len(answered.lost), answered.why) == (1, 1, "")


def test_an_answer_that_was_lost_is_explained_and_asked_again(pair: Pair) -> None:
    pair.number += 1
    pair.left("bank", Batch(3))
    pair.came("shop", Batch(3))
    pair.left("shop", Codes(3))
    pair.start("shop")  # killed before the answer was through; the request goes out again
    pair.came("shop", Batch(3))
    pair.left("shop", Codes(3))
    pair.came("bank", Codes(3))
    pair.ask()
    asked, answered = pair.compared()
    assert (asked.same, asked.again, asked.lost, asked.why) == (4, 1, [], "")
    assert (answered.same, answered.why) == (4, "")
    assert len(answered.lost) == 1
    assert "'shop' ended there, and began anew" in answered.lost[0]


def test_requests_refused_in_a_row_share_lines(pair: Pair) -> None:
    for each in range(25):
        pair.number += 1
        pair.left("bank", Batch(each))
        if each < 20:
            pair.came("shop", Batch(each))
            pair.left("shop", Failed("no"))
        elif each in (20, 22, 24):
            pair.came("shop", Batch(each), count=2, digest="")
            pair.left("shop", Failed("no"), count=2, digest="")
        pair.came("bank", Failed("no"))
    pair.ask()
    asked, answered = pair.compared()
    assert (asked.same, asked.refused, asked.why) == (23, 5, "")
    assert (answered.same, answered.refused, answered.why) == (23, 5, "")
    pair.number += 1
    pair.came("bank", Failed("made up"))
    assert "the book of 'shop' has no line that it left" in pair.compared()[1].why


def test_a_message_that_was_not_read_is_no_difference(pair: Pair) -> None:
    pair.number += 1
    pair.left("bank", Batch(3))
    pair.came("shop", Batch(3), digest="")
    pair.left("shop", Failed("too large"), digest="")
    pair.came("bank", Failed("too large"), digest="")
    pair.ask()
    asked, answered = pair.compared()
    assert (asked.same, asked.refused, asked.why) == (3, 1, "")
    assert (answered.same, answered.refused, answered.why) == (3, 1, "")


# --- What is no honest difference -----------------------------------------------------------------


def no_break(pair: Pair) -> str:
    pair.number += 1
    pair.left("bank", Batch(3))
    pair.ask()
    return "line 6 says that test_books.Batch (number 3 of 'r') left for 'shop', and the book of"


def answered_all_the_same(pair: Pair) -> str:
    pair.number += 1
    pair.left("bank", Batch(3))
    pair.came("bank", Codes(3))
    pair.start("shop")
    pair.ask()
    return "has no line that it came (it was answered)"


def other_bytes(pair: Pair) -> str:
    pair.number += 1
    pair.left("bank", Batch(3))
    pair.came("shop", Batch(3), digest="b" * 64)
    return "that it came with other bytes, digest bbbbbbbbbbbbbbbb..."


def made_up(pair: Pair) -> str:
    pair.number += 1
    pair.came("shop", Batch(3))
    return "line 6 says that test_books.Batch (number 3 of 'r') came from 'bank', and the book of"


def other_name(pair: Pair) -> str:
    pair.number += 1
    digest = "a" * 64
    pair.left("bank", Batch(3), digest=digest)
    pair.came("shop", Codes(3), digest=digest)
    return "of a message with the same bytes, that it was test_books.Codes (number 3 of 'r')"


def withheld(pair: Pair) -> str:
    """The shop's book ends long before the bank's."""
    for _ in range(3):
        pair.number += 1
        pair.left("bank", Batch(3))
        pair.came("bank", Codes(3))
    return "its book ends before it"


@pytest.mark.parametrize(
    "lie", [no_break, answered_all_the_same, other_bytes, made_up, other_name, withheld]
)
def test_what_no_lost_line_explains_is_named(pair: Pair, lie: Callable[[Pair], str]) -> None:
    words = lie(pair)
    assert words in pair.compared()[0].why
    for file in pair.paths.values():
        verify(file)  # each by itself is a ledger


@pytest.mark.parametrize("more", [{}, {"run": "r", "sequence": math.inf}])
def test_a_made_up_line_that_lacks_something_is_one_sentence(
    pair: Pair, more: dict[str, object]
) -> None:
    ledger = pair.paths["shop"]
    pair.books["shop"].close()
    last = json.loads(ledger.read_bytes().splitlines()[-1])
    made = {"time": "now", "from": "bank", "message": "a.B", "bytes": 0, "previous": last["hash"]}
    made |= more
    body = json.dumps(made, separators=(",", ":"))[:-1]
    digest = hashlib.sha256(body.encode()).hexdigest()
    with ledger.open("a") as file:
        file.write(f'{body},"hash":"{digest}"}}\n')
    verify(ledger)
    with pytest.raises(NetworkError, match="line 6 is no line of a ledger: it lacks something"):
        pair.compared()


# --- Trees and proofs -----------------------------------------------------------------------------

#: Leaves and roots of the reference implementation of Certificate Transparency (RFC 6962 and 9162).
LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657"]
LEAVES.append("606162636465666768696a6b6c6d6e6f")
ROOTS = {
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    5: "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    7: "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}


def test_a_tree_is_that_of_certificate_transparency() -> None:
    tree = Tree()
    assert tree.root() == hashlib.sha256().digest()
    for size, leaf in enumerate(LEAVES, start=1):
        tree.add(bytes.fromhex(leaf))
        assert tree.root().hex() == ROOTS.get(size, tree.root().hex())
        assert len(tree.frontier) == size.bit_count()


def test_a_path_shows_its_leaf_in_its_tree_and_no_other() -> None:
    for size in range(1, 34):
        leaves = [leaf_hash(bytes([number])) for number in range(size)]
        tree = Tree()
        for leaf in leaves:
            tree.add_leaf(leaf)
        for index, leaf in enumerate(leaves):
            hashes = path(leaves, index)
            assert root_of(leaf, index, size, hashes) == tree.root()
            assert root_of(leaf_hash(b"x"), index, size, hashes) != tree.root()
            assert root_of(leaf, index, size, [*hashes, leaf]) is None
            if size > 1:
                assert root_of(leaf, (index + 1) % size, size, hashes) != tree.root()
                assert root_of(leaf, index, size, hashes[:-1]) != tree.root()


def test_a_ledger_in_several_files_is_one_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "ROTATE_BYTES", 500)
    ledger_path = tmp_path / "ledger.jsonl"
    for start in range(3):
        with LedgerFile(ledger_path, "shop") as ledger:
            for number in range(3):
                ledger.record("bank", Failed(f"{start} {number}"), run="r")
            root = ledger.tree.root().hex()
            Heads(ledger).current()
    texts = [
        line
        for file in ("ledger-0001.jsonl", "ledger-0002.jsonl", "ledger.jsonl")
        for line in (tmp_path / file).read_bytes().splitlines()
    ]
    tree = Tree()
    for text in texts:
        tree.add(text)
    assert verify(ledger_path).root == tree.root().hex() == root
    assert (
        verify(ledger_path, whole=False).root == root
    )  # from what its first line says of those before
    assert [head.lines for head in heads_of(tmp_path, "shop")] == [4, 8, 12]
    for line in (1, 6, 12):
        proof = tmp_path / "proof.json"
        proof.write_text(json.dumps(prove(ledger_path, line)))
        assert check_line(proof).text.encode() == texts[line - 1]
    with pytest.raises(NetworkError, match="there is no line 13"):
        prove(ledger_path, 13)
    (tmp_path / "ledger-0001.jsonl").unlink()
    with pytest.raises(NetworkError, match=r"ledger-0001\.jsonl, which it follows, is not here"):
        prove(ledger_path, 6)


def test_a_proof_that_was_changed_shows_nothing(tmp_path: Path) -> None:
    ledger_path, proof = tmp_path / "ledger.jsonl", tmp_path / "proof.json"
    with LedgerFile(ledger_path, "shop") as ledger:
        for number in range(5):
            ledger.record("bank", Failed(str(number)), run="r", digest="a" * 64)
        Heads(ledger).current()
        ledger.record("bank", Failed("later"))
    with pytest.raises(NetworkError, match="no head of the ledger of 'shop' that reaches line 7"):
        prove(ledger_path, 7)
    honest = prove(ledger_path, 4)
    for changes in (
        {"text": honest["text"].replace('"bank"', '"bonk"')},
        {"line": 3},
        {"path": honest["path"][:-1]},
        {"head": {**honest["head"], "root": "0" * 64}},
        {"line": 5},
        {"party": "bank"},
        {"format": "another"},
        {"path": 7},
        {"head": {**honest["head"], "lines": "5"}},
        {"head": {**honest["head"], "of": ["shop"]}},
        {"head": None},
    ):
        proof.write_text(json.dumps({**honest, **changes}))
        with pytest.raises(NetworkError, match=r"not in the tree|is no proof"):
            check_line(proof)
