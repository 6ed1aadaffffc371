"""Journal of a driver's letters at a party: written before an answer leaves, never forgotten.

    shop.site/mailbox/bank.json      the conversation, its last number and attempt, and its answer's
    shop.site/mailbox/bank.answer.7  digest; that answer, which is sent again if it is lost

So a number is handled once, whenever the process is killed: before the line is written nothing has
left, and the request still lies there; behind it the answer is here, and is left (again). The files
that a run's states are in (``node/parked.py``) carry the same *mark* as the line that they are of.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dovetail.errors import ConfigError
from dovetail.network.certificates import certificate_name, make_folder
from dovetail.network.messages import Data
from dovetail.network.retry import write_private


@dataclass(frozen=True)
class Entry:
    """Entry of the last answer.

    Attributes:
        conversation, number, attempt: of the request.
        done: whether its answer lies in the place, and the request is gone from it.
        instance, sequence: of the message in it.
        digest: SHA-256 of the answer.
        mark: how many requests of this driver were answered.
        key: private X25519 key, in hexadecimal, that the next request is sealed to. The one that
            this request was sealed to is gone: written over here, before the answer leaves.
    """

    conversation: str = ""
    number: int = 0
    attempt: int = 0
    done: bool = True
    instance: str = ""
    sequence: int = 0
    digest: str = ""
    mark: int = 0
    key: str = ""


class Journal:
    """Journal of one driver's letters at a party.

    Args:
        folder: in its site.
        driver: whose letters.

    Attributes:
        last: what was answered last.

    Raises:
        ConfigError: a file that cannot be read: nobody knows what was answered.
    """

    def __init__(self, folder: Path, driver: str) -> None:
        make_folder(folder)
        self._path = folder / f"{certificate_name(driver)}.json"
        self.last = Entry()
        if self._path.exists():
            try:
                self.last = Entry(**json.loads(self._path.read_text(encoding="utf-8")))
                self.answer()
            except (OSError, ValueError, TypeError) as error:
                raise ConfigError(
                    f"{self._path} cannot be read ({error}), so nobody knows which letters of "
                    f"{driver!r} were answered; put it back, or delete it, and the driver begins "
                    "anew"
                ) from None

    def answer(self) -> bytes:
        """The last answer.

        Raises:
            OSError, ValueError: it is not here as it was.
        """
        if not self.last.digest:
            return b""
        data = self._answer_path(self.last.mark).read_bytes()
        if hashlib.sha256(data).hexdigest() != self.last.digest:
            raise ValueError("the answer beside it is another")
        return data

    def keep(self, entry: Entry, answer: Data) -> None:
        """Remember what is about to leave.

        Raises:
            OSError: it cannot be written, and must not leave.
        """
        older, mark = self.last.mark, self.last.mark + 1
        digest = hashlib.sha256(answer).hexdigest()
        write_private(self._answer_path(mark), bytes(answer))
        self._put(replace(entry, mark=mark, digest=digest, done=False))
        self._answer_path(older).unlink(missing_ok=True)

    def tried(self, attempt: int) -> None:
        """The last answer is about to be sent again, to another attempt."""
        self._put(replace(self.last, attempt=attempt, done=False))

    def done(self) -> None:
        """The answer lies in the place."""
        self._put(replace(self.last, done=True))

    def _put(self, entry: Entry) -> None:
        write_private(self._path, json.dumps(asdict(entry)).encode())
        self.last = entry

    def _answer_path(self, mark: int) -> Path:
        return self._path.with_name(f"{self._path.stem}.answer.{mark}")
