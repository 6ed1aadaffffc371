"""Detection of what a place does to letters, reported once for many of a kind.

Letters are signed, so what a place can do is to hold them back, lose them, show them again, or show
something else under their name. Each of these is noticed where it matters and told by name:

    altered, torn   the signature, or the length, is not the sender's (``letters.read_letter``)
    repeated        the same attempt of a number that is done (``sending.py``, ``answering.py``)
    lost            a request is gone from its place and no answer has come (``sending.py``)
    held back       a letter is shown for the first time by a place that was looked through after it
                    had been sent; or clocks differ
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dovetail.companions.mailbox.letters import LetterLabel
from dovetail.network.counting import Tally, times
from dovetail.network.printable import printable
from dovetail.network.retry import write_private

#: Seconds that the clocks of two sides may differ, and that a place may take to show a letter.
LATE_S = 60.0

#: Seconds that a letter which is there in part is given to come whole.
TORN_S = 60.0

_log = logging.getLogger(__name__)


class LetterWatch:
    """Reports what is wrong with letters of one place.

    Args:
        where: what people call the place.
        show: reported in words.
        late_s, torn_s: see above.
        kept: where the next process finds since when letters are there in part; None: nowhere.
    """

    def __init__(
        self,
        where: str,
        show: Callable[[str], None],
        *,
        late_s: float = LATE_S,
        torn_s: float = TORN_S,
        kept: Path | None = None,
    ) -> None:
        self._where = where
        self._tell = show
        self._late_s, self._torn_s = late_s, torn_s
        self._counted = Tally()
        self._kept = kept
        self._torn: dict[str, float] = {}  # file -> since when
        if kept is not None:
            with suppress(OSError, ValueError, TypeError, AttributeError):
                written = json.loads(kept.read_text(encoding="utf-8"))
                self._torn = {str(name): float(since) for name, since in written.items()}

    def tell(self, what: str, kind: str = "") -> None:
        """Report it, or count it; of a ``kind`` that comes again and again at times."""
        count = self._counted.once_more(kind or what)
        if count:
            _log.warning("%s: %s%s", self._where, printable(what), times(count))
            self._tell(f"{printable(what)}{times(count)}")

    def late(self, label: LetterLabel, looked: float) -> None:
        """A letter is shown for the first time.

        Args:
            label: what stands on it.
            looked: when the place was looked through before, and did not show it; 0: it was not.
        """
        if looked and label.sent + self._late_s < looked:
            self.tell(
                f"{label} was sent at {clock(label.sent)}, and {self._where} did not show it at "
                f"{clock(looked)}, but now: it was held back on the way, or clocks differ",
                f"held back {label.sender}",
            )

    def is_torn(self, name: str) -> bool:
        """Whether a letter that is there in part has been so for too long to become whole."""
        now, known = time.time(), dict(self._torn)
        since = min(self._torn.setdefault(name, now), now)
        is_torn = now - since >= self._torn_s
        if is_torn:
            del self._torn[name]
        if self._kept is not None and known != self._torn:
            write_private(self._kept, json.dumps(self._torn).encode())
        return is_torn


def clock(seconds: float) -> str:
    """A time of day."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))
