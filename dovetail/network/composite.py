"""Party that answers the messages of several algorithms, in one process."""

from __future__ import annotations

from dovetail.errors import CheckpointError
from dovetail.network.checkpoint import State
from dovetail.network.engine import Party
from dovetail.network.messages import Message


class Composite:
    """Hands each message to the part that accepts it; its state is that of its parts.

    Over a network a ``Host`` opens a party for each algorithm by itself. In process a name stands
    for one party, and this is it.

    Args:
        parts: parties, each with messages of its own. Those with ``state`` and ``restore`` are
            saved with it; the others keep nothing between steps.

    Raises:
        ValueError: no part, or two that accept one type of message.
    """

    def __init__(self, *parts: Party) -> None:
        if not parts:
            raise ValueError("a composite party has one part or more")
        self.parts = parts
        self._by_type: dict[type[Message], Party] = {}
        for part in parts:
            for kind in part.accepts:
                if kind in self._by_type:
                    raise ValueError(f"two parts of a composite party accept {kind.wire_name()}")
                self._by_type[kind] = part

    @property
    def accepts(self) -> tuple[type[Message], ...]:
        return tuple(self._by_type)

    def handle(self, message: Message) -> Message:
        return self._by_type[type(message)].handle(message)

    def state(self) -> State:
        """Place of the part, from 0 -> its state."""
        return {
            str(index): part.state()
            for index, part in enumerate(self.parts)
            if hasattr(part, "state")
        }

    def restore(self, state: State) -> None:
        """Go on from there, with the same parts.

        Raises:
            CheckpointError: a state of other parts.
        """
        stateful = {
            str(index): part for index, part in enumerate(self.parts) if hasattr(part, "restore")
        }
        if state.keys() != stateful.keys():
            raise CheckpointError(
                f"the saved state is of parts {sorted(state)}, this party saves {sorted(stateful)}"
                "; start anew with --overwrite"
            )
        for index, part in stateful.items():
            part.restore(state[index])
