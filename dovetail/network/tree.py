"""A Merkle tree over the lines of a ledger, as RFC 9162 (Certificate Transparency 2.0) has it.

    leaf          SHA-256(00 || the line's text, without its end)           section 2.1.1
    inner node    SHA-256(01 || left || right)
    root          of n leaves: of the largest power of two below n, and of the rest

Its root says in 32 bytes what all lines are. That one line is among them is shown by about log2(n)
hashes (``path``), without any other line; a writer keeps as many (``Tree``), not the leaves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import overload

from dovetail.errors import NetworkError


def leaf_hash(line: bytes) -> bytes:
    """The leaf of a line's text.

    >>> leaf_hash(b"").hex()[:16]
    '6e340b9cffb37a98'
    """
    return hashlib.sha256(b"\0" + line).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


class Tree:
    """A tree that grows at its end, of which only the full subtrees' roots are kept.

    Args:
        size: its leaves so far.
        frontier: roots of its full subtrees, the largest first: one for each 1 in ``size``'s bits.

    Attributes:
        size: its leaves.
        frontier: as above.

    Raises:
        NetworkError: not as many roots as such a tree has.
    """

    def __init__(self, size: int = 0, frontier: Sequence[bytes] = ()) -> None:
        if size < 0 or len(frontier) != size.bit_count() or {*map(len, frontier)} - {32}:
            raise NetworkError(f"a tree of {size} lines has no {len(frontier)} full parts")
        self.size = size
        self.frontier = list(frontier)

    def add(self, line: bytes) -> None:
        """Add a line's text; 2 hashes on average."""
        self.add_leaf(leaf_hash(line))

    def add_leaf(self, leaf: bytes) -> None:
        """Add a line's leaf."""
        node = leaf
        full = self.size
        while full & 1:
            node = _node(self.frontier.pop(), node)
            full >>= 1
        self.frontier.append(node)
        self.size += 1

    def root(self) -> bytes:
        """Root over all lines so far; of none, the hash of nothing (section 2.1.1)."""
        if not self.frontier:
            return hashlib.sha256().digest()
        root = self.frontier[-1]
        for left in reversed(self.frontier[:-1]):
            root = _node(left, root)
        return root


class Digests(Sequence[bytes]):
    """Hashes of 32 bytes that take 32 bytes each: a list of millions would take three times that.

    >>> digests = Digests()
    >>> digests.append(bytes(32))
    >>> bytes(32) in digests, len(digests[:1])
    (True, 1)
    """

    def __init__(self) -> None:
        self._bytes = bytearray()

    def append(self, digest: bytes) -> None:
        assert len(digest) == 32
        self._bytes += digest

    def __len__(self) -> int:
        return len(self._bytes) // 32

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        start = 32 * range(len(self))[index]
        return bytes(self._bytes[start : start + 32])


def path(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The hashes that show the leaf at this place, nearest first (section 2.1.3.1)."""
    assert 0 <= index < len(leaves)
    hashes: list[bytes] = []
    begin, end = 0, len(leaves)
    while end - begin > 1:
        middle = begin + (1 << (end - begin - 1).bit_length() - 1)
        if index < middle:
            hashes.append(_root(leaves[middle:end]))
            end = middle
        else:
            hashes.append(_root(leaves[begin:middle]))
            begin = middle
    return hashes[::-1]


def _root(leaves: Sequence[bytes]) -> bytes:
    level = list(leaves)
    while len(level) > 1:  # a last one without a neighbour moves up as it is
        pairs = [_node(*level[i : i + 2]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


def root_of(leaf: bytes, index: int, size: int, hashes: Sequence[bytes]) -> bytes | None:
    """The root of the tree in which these hashes show the leaf; None: in none of this size.

    Section 2.1.3.2.
    """
    if not 0 <= index < size:
        return None
    first, last, root = index, size - 1, leaf
    for each in hashes:
        if last == 0:
            return None
        if first & 1 or first == last:
            root = _node(each, root)
            while not first & 1 and first:
                first, last = first >> 1, last >> 1
        else:
            root = _node(root, each)
        first, last = first >> 1, last >> 1
    return root if last == 0 else None
