"""A mean under masks: the driver learns the sum of what parties sent, and no party's share.

    driver                                     party
    GiveKey                        -------->   a new key pair for this round
                                   <--------   PublicKey
    GiveShare: members, weights,   -------->   checks all of it (``privacy/sums.py``)
    everybody's keys               <--------   Share: weight x values in fixed point, masked

A method gives the four messages its own names (``messages``), and its party is ``Sharing``;
``SecretFederation`` has the driver's side. ``privacy/masks.py`` says who learns what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, cast

import torch
from torch import Tensor

from dovetail.errors import MessageError, TrainingError
from dovetail.federated.federation import Federation, normalised
from dovetail.federated.party import Party, handles
from dovetail.network import Bytes, Engine, Integers, Message, Replies, Values
from dovetail.network.renewal import MAX_PROOF_BYTES
from dovetail.privacy import KEY_BYTES, MIN_MEMBERS, SecretSums, check_weights, from_fixed, total

M = TypeVar("M", bound=Message)

#: Rounds in a row in which no party shares in a sum: a driver that goes on from an older state
#: repeats rounds that were summed, and not again with others.
MAX_REFUSED = 20


class GiveKey(Message):
    """Driver -> party: a new public key, for this round's sum."""

    number: int


class PublicKey(Message):
    """Party -> driver, which hands it to the others of this sum.

    ``proof`` is a certificate and its signature of key, run and round; empty where parties have no
    certificates.
    """

    key: Annotated[Tensor, Values(torch.uint8, f"{KEY_BYTES}")]
    proof: Annotated[Tensor, Values(torch.uint8, "N", most=MAX_PROOF_BYTES)]


class GiveShare(Message):
    """Driver -> party: your share of the sum over these members, at these weights.

    All is in the order of ``members``; proofs stand end to end.
    """

    number: int
    weights: tuple[float, ...]
    members: tuple[str, ...]
    keys_K32: Bytes
    proofs: Annotated[Tensor, Values(torch.uint8, "N", means="bytes")]
    proof_bytes: tuple[int, ...]

    def check(self, **sizes: int) -> None:
        """Refuse keys and proofs that are not one a member."""
        if len(self.proof_bytes) != len(self.members) or min(self.proof_bytes, default=0) < 0:
            raise MessageError(f"{self.wire_name()}: one proof a member, of 0 bytes or more")
        super().check(**{**sizes, "K": len(self.members), "N": sum(self.proof_bytes)})


class Share(Message):
    """Party -> driver: weight x values in fixed point, masked."""

    masked_P: Integers


Messages = tuple[type[GiveKey], type[PublicKey], type[GiveShare], type[Share]]


def messages(family: str, module: str) -> Messages:
    """The four as a method's, for its module under the same names."""
    kinds = GiveKey, PublicKey, GiveShare, Share
    return cast(Messages, tuple(kind.named(family, module) for kind in kinds))


# --- What a party executes -----------------------------------------------------------------------


class Summing(Party):
    """A party whose values leave in sums under masks.

    Attributes:
        sums: what it gives to sums of its run.
    """

    sums: SecretSums

    def summed(self, number: int) -> tuple[Tensor, str]:
        """(P,) its values for this sum; and what they follow from, the same at all parties.

        Raises:
            PartyError: it has none.
        """
        raise NotImplementedError


class Sharing(Summing):
    """Sums that are lost with any of their members."""

    @handles
    def key(self, ask: GiveKey) -> PublicKey:
        """A new key for this sum, and the proof that it is the party's."""
        self.summed(ask.number)
        return self.named(PublicKey)(*map(bytes_of, self.sums.key(ask.number)))

    @handles
    def share(self, ask: GiveShare) -> Share:
        """Share of the party: its weight times its values, under masks.

        Raises:
            MessageError: a sum that could reveal one party's values, or a key that is not proved.
        """
        values_P, bound_to = self.summed(ask.number)
        keys, proofs = list_of(ask.keys_K32), list_of(ask.proofs.split(list(ask.proof_bytes)))
        of_sum = ask.number, ask.members, ask.weights, keys, proofs
        return self.named(Share)(self.sums.share(*of_sum, values_P, bound_to=bound_to))


def bytes_of(content: bytes) -> Tensor:
    """Bytes as they travel."""
    return torch.tensor(list(content), dtype=torch.uint8)


def list_of(parts: Iterable[Tensor]) -> list[bytes]:
    """Each of several as bytes again."""
    return [bytes(each.tolist()) for each in parts]


# --- What the driver executes --------------------------------------------------------------------


class Sums:
    """State of the driver from one sum to the next; saved with it.

    Attributes:
        resting: parties whose loss cost the last sum; they are left out of the next.
        refused: rounds in a row in which nobody shared.
    """

    def __init__(self) -> None:
        self.resting: tuple[str, ...] = ()
        self.refused = 0

    def state(self) -> dict[str, Any]:
        return {"resting": self.resting}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.resting = tuple(state["resting"])


class MaskedFederation(Federation):
    """A federation whose means are taken under masks; replies hold nothing to be averaged."""

    def size(self, values_P: Tensor) -> int:
        """None: values leave under masks alone."""
        return 0

    def keys(
        self,
        parties: tuple[str, ...],
        ask: Message,
        reply: type[M],
        weights: Mapping[str, float] | None,
    ) -> tuple[Replies[M], dict[str, float]]:
        """The keys of those of these parties that answer, and their shares of the sum.

        Raises:
            TrainingError: fewer than share in a sum, or weights that would reveal a party's values.
        """
        keys = self.ask(ask, reply, to=parties)
        if len(keys) < MIN_MEMBERS:
            raise TrainingError(
                f"a secret sum needs three or more members, round {self.number} has {len(keys)} "
                f"left ({'; '.join(f'{name}: {why}' for name, why in self.missing.items())})"
            )
        shares = normalised(tuple(keys), weights)
        try:
            check_weights(tuple(shares.values()))
        except MessageError as cause:
            raise TrainingError(str(cause)) from None
        return keys, shares


def proofs_of(proofs: Sequence[Tensor]) -> tuple[Tensor, tuple[int, ...]]:
    """Proofs in a row, and how long each is."""
    return torch.cat(list(proofs)), tuple(map(len, proofs))


class SecretFederation(MaskedFederation):
    """A federation whose means are taken under masks; replies hold nothing to be averaged.

    Args:
        engine: carries the messages.
        sums: what is remembered of sums before.
        messages: the method's.
        timeout_s: as of ``Federation``.
    """

    def __init__(
        self,
        engine: Engine,
        sums: Sums,
        messages: Messages,
        *,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(engine, timeout_s=timeout_s)
        self._sums = sums
        self._messages = messages

    def mean(
        self,
        replies: Mapping[str, M],
        field: str,
        weights: Mapping[str, float] | None = None,
        *,
        before: Tensor | None = None,
    ) -> Tensor:
        """The mean over those who share in a sum; as ``before`` where one is lost in its midst.

        A party shares once in a round, as of two sums the difference would be somebody's values.
        Who was lost is left out of the next round's sum.

        Raises:
            TrainingError: fewer parties are left than share in a sum.
        """
        assert before is not None
        self.check_answered(replies)
        give_key, public, give_share, share = self._messages
        rested = tuple(party for party in replies if party not in self._sums.resting)
        members = rested if len(rested) >= MIN_MEMBERS else tuple(replies)
        self._sums.resting = ()
        keys, shares = self.keys(members, give_key(self.number), public, weights)
        members = tuple(keys)
        request = give_share(
            self.number,
            tuple(shares.values()),
            members,
            torch.stack([key.key for key in keys.values()]),
            *proofs_of([key.proof for key in keys.values()]),
        )
        masked = self.ask(request, share, to=members, P=len(before))
        lost = {member: failure.cause for member, failure in masked.failures.items()}
        if not lost:
            self.included, self._sums.refused = members, 0
            return from_fixed(total(reply.masked_P for reply in masked.values()))
        self.included = ()
        if masked:
            self._sums.resting = tuple(lost)
            return before
        self._sums.refused += 1  # rounds that were summed before, with others
        if self._sums.refused > MAX_REFUSED:
            raise TrainingError(
                f"no member shares in the secret sum of round {self.number} "
                f"({'; '.join(f'{name}: {why}' for name, why in lost.items())})"
            )
        return before
