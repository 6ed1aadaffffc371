"""A party's key for letters: X25519, public in the place, signed with its certificate.

The certificate's own key signs and does not seal. A party makes the other key itself and leaves its
public half in the place, as a *card*; a driver believes a card that the party's certificate has
signed. The private half stays in the party's site. Whoever gets it later can open the requests that
it was used for, and that somebody has kept: so a party that joins takes a new one every
``RENEW_DAYS`` days, and forgets the last but one. A driver's is drawn anew by each process, and
kept nowhere.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from dovetail.errors import ConfigError, MessageError
from dovetail.network.certificates import make_folder
from dovetail.network.identity import MAX_PROOF_BYTES, Certified
from dovetail.network.mailbox.places import CARDS, Place
from dovetail.network.retry import open_private, patiently

#: Days after which a party takes a new key; letters to the last one are still opened.
RENEW_DAYS = 30

#: A card's length at most.
MAX_CARD_BYTES = 2 * MAX_PROOF_BYTES + 1024

_DOMAIN = b"dovetail mailbox key 1\n"


class Keys:
    """A party's private keys, in its site; the first counts, the second did before.

    Args:
        folder: where they are kept.

    Raises:
        ConfigError: a file that holds no keys.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "keys.json"
        make_folder(folder)
        made, hexes = 0.0, list[str]()
        if self._path.exists():
            try:
                written = json.loads(self._path.read_text(encoding="ascii"))
                made, hexes = float(written["made"]), list(written["keys"])
                self.private = tuple(_private(each) for each in hexes)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"{self._path} holds no keys ({error}); delete it, and drivers are given a "
                    "new one"
                ) from None
        if not hexes or time.time() - made > RENEW_DAYS * 24 * 3600:
            hexes = [X25519PrivateKey.generate().private_bytes_raw().hex(), *hexes[:1]]
            self._write({"made": time.time(), "keys": hexes})
            self.private = tuple(_private(each) for each in hexes)

    def _write(self, fields: dict[str, object]) -> None:
        fresh = self._path.with_name(".keys.new")

        def write() -> None:
            with open(open_private(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
                json.dump(fields, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self._path)

        patiently(write)

    def publish(self, index: Place, identity: Certified) -> None:
        """Leave the card in the place.

        Raises:
            PlaceError: it cannot be reached.
        """
        card_fields = {
            "party": identity.name,
            "key": self.private[0].public_key().public_bytes_raw().hex(),
        }
        text = json.dumps(card_fields, sort_keys=True).encode()
        card = {"said": text.decode(), "proof": identity.sign(_DOMAIN + text).hex()}
        index.put(CARDS + identity.name, json.dumps(card).encode())


def _private(text: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(text))


def read_card(index: Place, party: str, identity: Certified) -> X25519PublicKey | None:
    """The key that letters to a party are sealed to; None while it has left no card.

    Raises:
        MessageError: what lies there is not what the party has signed.
        PlaceError: the place cannot be reached.
    """
    data = index.get(CARDS + party, MAX_CARD_BYTES)
    if data is None:
        return None
    try:
        card = json.loads(data)
        text, proof = card["said"].encode(), bytes.fromhex(card["proof"])
        identity.check(party, _DOMAIN + text, proof)
        card_fields = json.loads(text)
        if card_fields["party"] != party:
            raise ValueError("another party's")
        return X25519PublicKey.from_public_bytes(bytes.fromhex(card_fields["key"]))
    except MessageError as error:
        raise MessageError(
            f"the card of {party!r} in {index.where} does not count: {error}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise MessageError(
            f"the card of {party!r} in {index.where} was altered, or is none; remove "
            f"{CARDS}{party}, and let the party join again"
        ) from None
