"""Every error a user can cause or meet; one base class catches them all.

    DovetailError
    ├── ConfigError          a run file, party file or config says something that cannot be done
    ├── DataError            a table, image set, label or block cannot be used as it is
    │   ├── MissingColumnError  a table lacks a column that was named
    │   └── AlignmentError   the parties' samples do not line up
    ├── ModelError           a saved model cannot be read, or does not fit the data it is given
    ├── TrainingError        training cannot go on
    │   ├── CheckpointError  a saved state cannot be written or read, or does not fit
    │   └── ParticipationError  a party was left out of too much of a run; its models are kept
    └── NetworkError
        ├── MessageError     bytes or fields that are not a declared message
        └── PartyError       a party did not answer as asked

Each message says what was expected, what came, whose it is, and what to do.
"""

from __future__ import annotations


class DovetailError(Exception):
    """Base of all of Dovetail's errors."""


class ConfigError(DovetailError):
    """A run file, party file or config says something that cannot be done."""


class DataError(DovetailError):
    """A table, image set, label or block cannot be used as it is."""


class MissingColumnError(DataError):
    """A table lacks a column that was named."""


class WriteError(DataError):
    """A table cannot be written where it is to go."""


class AlignmentError(DataError):
    """The parties' samples do not line up."""


class ModelError(DovetailError):
    """A saved model cannot be read, or does not fit the data it is given."""


class TrainingError(DovetailError):
    """Training cannot go on."""


class CheckpointError(TrainingError):
    """A saved state of training cannot be written or read, or does not fit."""


class ParticipationError(TrainingError):
    """A party was left out of more of a run than its settings allow; its models are kept."""


class NetworkError(DovetailError):
    """Something between driver and party failed."""


class MessageError(NetworkError):
    """Bytes or fields that are not a declared message."""


class PartyError(NetworkError):
    """A party did not answer as asked.

    Attributes:
        party: its name.
        cause: what went wrong, without the party's data.
    """

    def __init__(self, party: str, cause: str) -> None:
        prefix = f"party {party!r}: "  # once, also where the cause names the party
        super().__init__(prefix + cause.removeprefix(prefix))
        self.party = party
        self.cause = cause

    def __reduce__(self) -> tuple[type[PartyError], tuple[str, str]]:
        """Another process of a cluster raises it again."""
        return type(self), (self.party, self.cause)


class RefusalError(PartyError):
    """A party answered, from its own site, that it does not do what was asked."""
