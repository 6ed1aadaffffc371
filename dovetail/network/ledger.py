"""The ledger: what left each party, and for whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail.network.messages import Message

_Tensor = tuple[str, tuple[int, ...], str]  # name, shape, dtype
_Line = tuple[str, str, str, tuple[_Tensor, ...]]  # sender, receiver, message type, tensors


class Ledger:
    """Counts messages by sender, receiver, type, and the names, shapes and dtypes of tensors.

    Bytes are those of the tensors; a message's header adds a few hundred.
    """

    def __init__(self) -> None:
        self._counts: dict[_Line, int] = {}
        self._bytes: dict[_Line, int] = {}

    def record(self, sender: str, receiver: str, message: Message) -> None:
        """Add one message."""
        tensors = message.tensors()
        described = tuple(
            (name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for name, tensor in tensors.items()
        )
        line = (sender, receiver, message.wire_name(), described)
        self._counts[line] = self._counts.get(line, 0) + 1
        self._bytes[line] = self._bytes.get(line, 0) + sum(t.nbytes for t in tensors.values())

    def lines(self) -> Iterator[dict[str, Any]]:
        """One JSON-ready line per kind of message, in the order they first left."""
        for line, count in self._counts.items():
            sender, receiver, kind, described = line
            yield {
                "from": sender,
                "to": receiver,
                "message": kind,
                "tensors": [
                    {"name": name, "shape": list(shape), "dtype": dtype}
                    for name, shape, dtype in described
                ],
                "count": count,
                "bytes": self._bytes[line],
            }

    def bytes_by_party(self) -> dict[str, dict[str, int]]:
        """Party -> bytes "sent" and "received"."""
        totals: dict[str, dict[str, int]] = {}
        for (sender, receiver, _, _), num_bytes in self._bytes.items():
            for party, direction in ((sender, "sent"), (receiver, "received")):
                totals.setdefault(party, {"sent": 0, "received": 0})[direction] += num_bytes
        return totals
