"""A party's key for first letters: X25519, public in the place, signed with its certificate.

The certificate's own key signs and does not seal. A party makes the other key itself and leaves its
public half in the place, as a *card*; a driver believes a card that the party's certificate has
signed and that is not old. The first request of a conversation is sealed to it; each later one to a
key that came with the answer before (``letters.LetterLabel.key``) and that opens it alone
(``journal.py``). A driver's key is drawn by each process and kept nowhere.

Private halves lie in the party's site. Whoever gets them later opens what somebody has kept of
letters to them, so none stays longer than it is needed: a party takes a new card key once it has
looked through the place, if the last one is older than ``RENEW_S``; that one is forgotten
``GRACE_S`` later, or when the process ends. A driver whose letter came too late for it reads the
new card and sends it again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from dovetail.companions.mailbox.places import CARDS, Place
from dovetail.errors import ConfigError, MessageError
from dovetail.network.certificates import make_folder
from dovetail.network.renewal import MAX_PROOF_BYTES, Certified
from dovetail.network.retry import write_private

#: Seconds after which a party takes a new key for its card.
RENEW_S = 24 * 3600.0

#: Seconds that the key before is kept for letters that were under way.
GRACE_S = 600.0

#: Seconds after which a driver no longer believes a card: its party has not looked since.
MAX_CARD_S = 7 * 24 * 3600.0

#: A card's length at most.
MAX_CARD_BYTES = 2 * MAX_PROOF_BYTES + 1024

_DOMAIN = b"dovetail mailbox key 2\n"


class LetterKeys:
    """A party's private keys for first letters, in its site: that of its card, and the one before.

    Args:
        folder: where they are kept.
        clock: seconds since the epoch.

    Attributes:
        private: the keys; the first is that of the card.

    Raises:
        ConfigError: a file that holds no keys.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = folder / "keys.json", clock
        make_folder(folder)
        if not self._path.exists():
            self._keep(clock(), X25519PrivateKey.generate())
            return
        try:
            fields = json.loads(self._path.read_text(encoding="ascii"))
            self._made = float(fields["made"])
            self.private = tuple(map(private_key, fields["keys"]))
            if not self.private:
                raise ValueError("none")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self._path} holds no keys ({error}); delete it, and drivers are given a new one"
            ) from None

    def renew(self) -> bool:
        """Take a new key if the card's is old, once no letter lies there; whether it did."""
        now = self._clock()
        if abs(now - self._made) < RENEW_S:
            if now - self._made >= GRACE_S:
                self.forget()
            return False
        self._keep(now, X25519PrivateKey.generate(), self.private[0])
        return True

    def forget(self) -> None:
        """Delete the key before."""
        if len(self.private) > 1:
            self._keep(self._made, self.private[0])

    def _keep(self, made: float, *private: X25519PrivateKey) -> None:
        fields = {"made": made, "keys": [each.private_bytes_raw().hex() for each in private]}
        write_private(self._path, json.dumps(fields).encode())
        self._made, self.private = made, private

    def publish(self, place: Place, identity: Certified) -> None:
        """Leave the card in the place.

        Raises:
            PlaceError: it cannot be reached.
        """
        fields = {
            "party": identity.name,
            "key": self.private[0].public_key().public_bytes_raw().hex(),
            "made": self._made,
        }
        text = json.dumps(fields, sort_keys=True).encode()
        card = {"statement": text.decode(), "proof": identity.sign(_DOMAIN + text).hex()}
        place.put(CARDS + identity.name, json.dumps(card).encode())


def private_key(text: str) -> X25519PrivateKey:
    """The key of these hexadecimal digits.

    Raises:
        ValueError: they are none.
    """
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(text))


def read_card(place: Place, party: str, identity: Certified) -> X25519PublicKey | None:
    """The key that first letters to a party are sealed to; None while it has left no card.

    Raises:
        MessageError: what lies there is not what the party has signed, or is old.
        PlaceError: the place cannot be reached.
    """
    data = place.get(CARDS + party, MAX_CARD_BYTES)
    if data is None:
        return None
    try:
        card = json.loads(data)
        text, proof = card["statement"].encode(), bytes.fromhex(card["proof"])
        identity.check(party, _DOMAIN + text, proof)
        fields = json.loads(text)
        if fields["party"] != party:
            raise ValueError("another party's")
        age_s = time.time() - float(fields["made"])
        key = X25519PublicKey.from_public_bytes(bytes.fromhex(fields["key"]))
    except MessageError as error:
        raise MessageError(
            f"the card of {party!r} in {place.where} does not count: {error}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise MessageError(
            f"the card of {party!r} in {place.where} was altered, or is none; remove "
            f"{CARDS}{party}, and let the party join again"
        ) from None
    if not age_s <= MAX_CARD_S:
        raise MessageError(
            f"the card of {party!r} in {place.where} is {age_s / 86400:.0f} days old: it has not "
            "looked for letters since, or an old card is shown in place of its new one; let it "
            "join again"
        )
    return key
