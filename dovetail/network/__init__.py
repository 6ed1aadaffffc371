"""Whatever carries, checks or counts a message."""

from dovetail.network.checkpoint import Checkpoint, Keeper, State, Stateful, StatefulParty
from dovetail.network.composite import Composite
from dovetail.network.engine import Engine, Party, Pending, Replies
from dovetail.network.inprocess import InProcess
from dovetail.network.ledger import Ledger, LedgerFile
from dovetail.network.messages import (
    Header,
    Message,
    Precision,
    check_shape,
    decode,
    encode,
    read_header,
)

__all__ = [
    "Checkpoint",
    "Composite",
    "Engine",
    "Header",
    "InProcess",
    "Keeper",
    "Ledger",
    "LedgerFile",
    "Message",
    "Party",
    "Pending",
    "Precision",
    "Replies",
    "State",
    "Stateful",
    "StatefulParty",
    "check_shape",
    "decode",
    "encode",
    "read_header",
]
