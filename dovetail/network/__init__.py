"""Whatever carries, checks or counts a message."""

from dovetail.network.engine import Engine, Party, Pending, Replies
from dovetail.network.inprocess import InProcess
from dovetail.network.ledger import Ledger
from dovetail.network.messages import Message, check_shape, decode, encode

__all__ = [
    "Engine",
    "InProcess",
    "Ledger",
    "Message",
    "Party",
    "Pending",
    "Replies",
    "check_shape",
    "decode",
    "encode",
]
