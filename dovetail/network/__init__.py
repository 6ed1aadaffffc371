"""Whatever carries, checks or counts a message."""

from dovetail.network.checkpoint import Checkpoint, Keeper, State, Stateful, StatefulParty
from dovetail.network.composite import Composite
from dovetail.network.costs import noted
from dovetail.network.engine import Engine, Party, Pending, Replies
from dovetail.network.inprocess import InProcess
from dovetail.network.ledger import Ledger, LedgerFile
from dovetail.network.messages import (
    Bytes,
    Doubles,
    Floats,
    Header,
    Integers,
    Message,
    Numbers,
    Precision,
    Values,
    check_shape,
    decode,
    encode,
    read_header,
)

__all__ = [
    "Bytes",
    "Checkpoint",
    "Composite",
    "Doubles",
    "Engine",
    "Floats",
    "Header",
    "InProcess",
    "Integers",
    "Keeper",
    "Ledger",
    "LedgerFile",
    "Message",
    "Numbers",
    "Party",
    "Pending",
    "Precision",
    "Replies",
    "State",
    "Stateful",
    "StatefulParty",
    "Values",
    "check_shape",
    "decode",
    "encode",
    "noted",
    "read_header",
]
