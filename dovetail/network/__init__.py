"""Whatever carries, checks or counts a message.

The names below are imported when first used: who only asks what is wrong with a certificate or an
address does not wait for what computes.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail.network.checkpoint import Checkpoint, Checkpointed, State, Stateful, StatefulParty
    from dovetail.network.composite import Composite
    from dovetail.network.costs import noted
    from dovetail.network.engine import Engine, Party, Pending, Replies
    from dovetail.network.inprocess import InProcess
    from dovetail.network.ledger import Ledger, LedgerFile
    from dovetail.network.messages import (
        Bytes,
        Doubles,
        Draws,
        Floats,
        Header,
        Integers,
        Message,
        Numbers,
        Precision,
        Samples,
        Values,
        Weights,
        check_shape,
        decode,
        encode,
    )


#: File of this room -> what of it is a name of the room.
_LAZY = {
    "checkpoint": ("Checkpoint", "Checkpointed", "State", "Stateful", "StatefulParty"),
    "composite": ("Composite",),
    "costs": ("noted",),
    "engine": ("Engine", "Party", "Pending", "Replies"),
    "inprocess": ("InProcess",),
    "ledger": ("Ledger", "LedgerFile"),
    "messages": (
        "Bytes",
        "Doubles",
        "Draws",
        "Floats",
        "Header",
        "Integers",
        "Message",
        "Numbers",
        "Precision",
        "Samples",
        "Values",
        "Weights",
        "check_shape",
        "decode",
        "encode",
    ),
}

if not TYPE_CHECKING:  # a type checker sees the imports above and reports any other name

    def __getattr__(name):
        for file, names in _LAZY.items():
            if name in names:
                value = getattr(import_module(f"dovetail.network.{file}"), name)
                globals()[name] = value  # the next use finds it without coming here
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
