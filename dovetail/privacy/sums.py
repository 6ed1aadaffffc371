"""Side of one party in secret sums: what it checks before its share leaves.

Masks (``masks.py``) hide a share among those of one sum. They do not help where the sum itself
reveals a single party's values. So a party shares only

    among three or more, itself one of them, and none of them the driver
    at weights that are above 0, add up to 1, are at most MAX_WEIGHT each and MAX_PAIR for any two:
        a sum at weights (1, 0, 0, 0) is one party's values, and so nearly is one at (0.98, ...)
    once for each round: of two sums in one round that differ by a member, the difference is that
        member's values. Only the same sum again, of the same members at the same weights, is given
        (a driver that fell and repeats the round). A round whose sum fails has none
    under keys that the others have signed with their certificates, for this run and round

and what each party received of all this (run, round, members, weights, keys, what its values follow
from) goes into the masks: a driver that sends two parties different things gets a sum in which
masks do not cancel. Else it would send all but one of them weights that no row moves, and the sum
would reveal the one's values (Pasquini, Francati, Ateniese, CCS 2022).

What it does not prevent: the driver and all parties of a sum but two know the sum of the two; a
driver may run twice, or go from round to round, with other members, and compare; and weights that
only rows of one party move, the same to all.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from dovetail.errors import MessageError
from dovetail.network.renewal import Identity
from dovetail.privacy.masks import MaskKeys, SumSecrets, threshold_of, to_fixed
from dovetail.settings.privacy import QUORUM

#: The fewest parties of a sum: of two, each subtracts its own and has the other's.
MIN_MEMBERS = 3

#: The largest weight of one party, and of two together.
MAX_WEIGHT, MAX_PAIR = 0.6, 0.95

#: How far weights may be from 1 together: they are sums of 64-bit floats.
_TOLERANCE = 1e-6


class SharedRounds(Protocol):
    """Which sums a party has given shares of; it outlives the party's process."""

    def only(self, number: int, digest: str) -> str:
        """The sum that this round's share is of: this one, written down now, or another before."""


class RoundsInMemory:
    """Shared rounds of a party that lives as long as its run."""

    def __init__(self) -> None:
        self._rounds: dict[int, str] = {}

    def only(self, number: int, digest: str) -> str:
        return self._rounds.setdefault(number, digest)


@dataclass(eq=False)
class _Lasting:
    """Sum that may outlive lost parties, as one party knows it."""

    number: int
    secrets: SumSecrets
    publics: dict[str, bytes] = field(default_factory=dict)
    threshold: int = 0
    shares: dict[str, float] = field(default_factory=dict)


class SecretSums:
    """Shares of one party in the sums of a run.

    Args:
        party: its name.
        run: the run's id, the same at all parties.
        identity: signs its keys and checks the others'; None where all are in one process, or
            whoever carries the messages is trusted with the keys.
        driver: who sums; it may not be among the members.
        members: whom it sums with; None: anybody who is certified.
        rounds: what it has given already.
        quorum: a sum that outlives lost parties opens for more than this share of its members.
    """

    def __init__(
        self,
        party: str,
        *,
        run: str = "",
        identity: Identity | None = None,
        driver: str | None = None,
        members: Collection[str] | None = None,
        rounds: SharedRounds | None = None,
        quorum: float = QUORUM,
    ) -> None:
        self.party = party
        self._run = run
        self._identity = identity
        self._driver = driver
        self._members = members
        self._rounds = rounds or RoundsInMemory()
        self._keys: tuple[int, MaskKeys] | None = None
        self.quorum = quorum
        self._lasting: _Lasting | None = None

    @property
    def number(self) -> int:
        """The last round that it drew keys for, which are nowhere else; -1: it drew none."""
        lasting = -1 if self._lasting is None else self._lasting.number
        return max(lasting, -1 if self._keys is None else self._keys[0])

    def key(self, number: int) -> tuple[bytes, bytes]:
        """A new public key for the sum of this round, and the proof that it is this party's."""
        keys = MaskKeys()
        self._keys = number, keys
        if self._identity is None:
            return keys.public, b""
        return keys.public, self._identity.sign(self._statement(number, self.party, keys.public))

    def share(
        self,
        number: int,
        members: Sequence[str],
        weights: Sequence[float],
        keys: Sequence[bytes],
        proofs: Sequence[bytes],
        values_P: Tensor,
        *,
        bound_to: str = "",
    ) -> Tensor:
        """(P,) int64: this party's weight times its values, under masks.

        Args:
            number: the round's.
            members: all whose values are summed.
            weights: theirs, in that order; as are ``keys`` and ``proofs``.
            values_P: this party's.
            bound_to: what its values follow from, of all that the driver said; the same at all.

        Raises:
            MessageError: a sum that could reveal one party's values, or a key that is not proved.
            TrainingError: values that are not finite, or too large.
        """
        if self._keys is None or self._keys[0] != number:
            raise MessageError("a share was asked for before a key")
        if not len(members) == len(set(members)) == len(weights) == len(keys) == len(proofs):
            raise MessageError("a sum has one weight, key and proof for each of its members")
        self._check_members(members)
        check_weights(weights)
        self._check_keys(number, members, keys, proofs)
        digest = self._only_sum(number, members, weights)
        weight = weights[list(members).index(self.party)]
        fixed_P = to_fixed(values_P.double() * weight, len(members))
        publics = dict(zip(members, keys, strict=True))
        masked_P = self._keys[1].mask(
            self.party, publics, fixed_P, context=f"{digest} {bound_to}".encode()
        )
        return masked_P

    # --- That outlives lost parties (masks.py) --------------------------------------------------

    def lasting_key(self, number: int) -> tuple[bytes, bytes]:
        """New public keys and a commitment for the sum of this round, and the proof of them."""
        kept = SumSecrets()
        self._lasting = _Lasting(number, kept)
        if self._identity is None:
            return kept.public, b""
        return kept.public, self._identity.sign(self._statement(number, self.party, kept.public))

    def parts(
        self,
        number: int,
        members: Sequence[str],
        keys: Sequence[bytes],
        proofs: Sequence[bytes],
        threshold: int,
    ) -> list[bytes]:
        """Parts of its secrets, one encrypted for each member, in the order of their names.

        Args:
            number: the round's.
            members: all who gave keys; ``keys`` and ``proofs`` are in that order.
            threshold: how many parts give a secret back.

        Raises:
            MessageError: members or keys as of ``share``, or fewer parts than its quorum.
        """
        lasting = self._of(number)
        if not len(members) == len(set(members)) == len(keys) == len(proofs):
            raise MessageError("a sum has one key and proof for each of its members")
        self._check_members(members)
        least = threshold_of(len(members), self.quorum)
        if not least <= threshold <= len(members):
            raise MessageError(
                f"refuses to split its keys so that {threshold} of {len(members)} open them; its "
                f"quorum asks for {least} or more"
            )
        self._check_keys(number, members, keys, proofs)
        lasting.publics = dict(zip(members, keys, strict=True))
        lasting.threshold = threshold
        return lasting.secrets.sealed(
            self.party, lasting.publics, threshold, context=self._sealing(number)
        )

    def lasting_share(
        self,
        number: int,
        members: Sequence[str],
        weights: Sequence[float],
        sealed: Mapping[str, bytes],
        values_P: Tensor,
        *,
        bound_to: str = "",
    ) -> tuple[Tensor, bytes]:
        """(P,) int64: its weight times its values, under both masks; and what they are bound to.

        Args:
            number: the round's.
            members: all who gave keys; ``weights`` are in that order.
            sealed: who goes on -> its parts for this party.
            values_P: this party's.
            bound_to: as of ``share``.

        Raises:
            MessageError: a sum that could reveal one party's values, or parts that were changed.
            TrainingError: values that are not finite, or too large.
        """
        lasting = self._of(number)
        if set(members) != set(lasting.publics) or len(members) != len(weights):
            raise MessageError("a sum is of the members whose keys were shown, each at its weight")
        check_weights(weights)
        shares = dict(zip(members, weights, strict=True))
        self._check_left(sealed, shares, lasting.threshold)
        digest = self._only_sum(number, members, weights, "lasting")
        context = hashlib.sha256(f"{digest} {bound_to}".encode()).digest()
        fixed_P = to_fixed(values_P.double() * shares[self.party], len(members))
        masked_P = lasting.secrets.mask(
            self.party,
            {member: lasting.publics[member] for member in sealed},
            sealed,
            fixed_P,
            sealing=self._sealing(number),
            context=context,
        )
        lasting.shares = shares
        return masked_P, context

    def opened(self, number: int, survivors: Sequence[str]) -> dict[str, int]:
        """Member -> its part of that one's seed, or of its key where its values were lost.

        Raises:
            MessageError: so few that the sum reveals one party's values, or another choice of them
                than this round's sum was opened for before.
        """
        lasting = self._of(number)
        self._check_left(survivors, lasting.shares, lasting.threshold)
        chosen = _digest(sorted(survivors))
        if self._rounds.only(-1 - number, chosen) != chosen:
            raise MessageError(
                f"it has opened the sum of round {number} for others; the difference of the two "
                "would tell one party's values"
            )
        return lasting.secrets.opened(survivors)

    def _of(self, number: int) -> _Lasting:
        if self._lasting is None or self._lasting.number != number:
            raise MessageError("a sum was asked for before its key")
        return self._lasting

    def _check_left(
        self, left: Collection[str], shares: Mapping[str, float], threshold: int
    ) -> None:
        """Refuse a sum over so few that it reveals one party's values.

        Raises:
            MessageError: how many there are, and may be.
        """
        if len(left) != len(set(left)) or not set(left) <= set(shares):
            raise MessageError("a sum is left to those who are in it, each once")
        least = max(MIN_MEMBERS, threshold)
        if len(left) < least:
            raise MessageError(f"{len(left)} members are left of a sum that needs {least} or more")
        total = math.fsum(shares[name] for name in left)
        check_weights([shares[name] / total for name in left])

    def _sealing(self, number: int) -> bytes:
        return b"dovetail sum 1\n" + json.dumps([self._run, number]).encode()

    # --- What it checks ---------------------------------------------------------------------------

    def _check_keys(
        self, number: int, members: Sequence[str], keys: Sequence[bytes], proofs: Sequence[bytes]
    ) -> None:
        """Refuse keys that are not their members' for this round."""
        for member, key, proof in zip(members, keys, proofs, strict=True):
            if self._identity is not None and member != self.party:
                self._identity.check(member, self._statement(number, member, key), proof)

    def _only_sum(
        self, number: int, members: Sequence[str], weights: Sequence[float], *kind: str
    ) -> str:
        """Name of a sum; refused if this round had another."""
        weighed = sorted(zip(members, [float(weight).hex() for weight in weights], strict=True))
        digest = _digest([*kind, self._run, number, weighed])
        if self._rounds.only(number, digest) != digest:
            raise MessageError(
                f"it has given its share of round {number} to another sum; of two sums the "
                "difference would tell one party's values, so this round has no other"
            )
        return digest

    def _check_members(self, members: Sequence[str]) -> None:
        if len(members) < MIN_MEMBERS:
            raise MessageError(
                f"a sum over {len(members)} tells one party's values to another; it needs "
                f"{MIN_MEMBERS} or more"
            )
        if self.party not in members:
            raise MessageError(f"a share was asked for of a sum that {self.party!r} is not in")
        if self._driver in members:
            raise MessageError(f"{self._driver!r} drives, and may not be one of those it sums")
        known = members if self._members is None else {*self._members, self.party}
        unknown = [name for name in members if name not in known]
        if unknown:
            raise MessageError(
                f"refuses a sum with {', '.join(map(repr, unknown))}: the key members of its party "
                "file does not name them"
            )

    def _statement(self, number: int, party: str, key: bytes) -> bytes:
        return b"dovetail mask key 1\n" + json.dumps([self._run, number, party, key.hex()]).encode()


def check_weights(weights: Sequence[float]) -> None:
    """Refuse weights at which a sum reveals one party's values.

    Raises:
        MessageError: what they are and may be.
    """
    largest = sorted(weights, reverse=True)
    if not all(0 < weight <= 1 for weight in weights):  # also where one is NaN
        raise MessageError(f"weights of a secret sum lie between 0 and 1, got {min(weights):g}")
    if abs(math.fsum(weights) - 1) > _TOLERANCE:
        raise MessageError(
            f"weights of a secret sum add up to 1, got {math.fsum(weights):g} in all"
        )
    if largest[0] > MAX_WEIGHT or sum(largest[:2]) > MAX_PAIR:
        raise MessageError(
            f"a sum in which one party weighs {largest[0]:.3g} and two {sum(largest[:2]):.3g} "
            f"nearly tells their values; at most {MAX_WEIGHT} and {MAX_PAIR} are shared: let "
            'weights be "even", or more parties take part'
        )


def _digest(fields: object) -> str:
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()
