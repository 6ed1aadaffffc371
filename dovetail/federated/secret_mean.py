"""A mean under masks: the driver learns the sum of what parties sent, and no party's share.

    driver                                     party
    GiveKey                        -------->   a new key pair for this round
                                   <--------   PublicKey
    GiveShare: members, weights,   -------->   checks all of it (``privacy/sums.py``)
    everybody's keys               <--------   Share: weight x values in fixed point, masked

One that outlives lost parties: who is lost costs its own part, not the sum.

    GiveKeys                       -------->   new keys and a seed for this round
                                   <--------   PublicKeys
    GiveParts: everybody's keys    -------->   checks them
                                   <--------   Parts: of its secrets, one sealed for each
    GiveMasked: weights, the parts -------->   checks all of it (``privacy/sums.py``)
    sealed for it                  <--------   Masked: weight x values under two masks
    GiveOpened: whose came         -------->   checks that enough are left
                                   <--------   Opened: of each a part of its seed or its key

A method gives the messages its own names (``messages``, ``lasting_messages``), and its party is
``Sharing`` or ``Lasting``; ``SecretFederation`` and ``LastingFederation`` have the driver's side.
``privacy/masks.py`` says who learns what.
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
from dovetail.privacy.masks import PART_BYTES, PUBLIC_BYTES, SEALED_BYTES, threshold_of, unmasked

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


class GiveKeys(Message):
    """Driver -> party: new keys, for this round's sum."""

    number: int


class PublicKeys(Message):
    """Party -> driver, which hands them to the others of this sum; ``proof`` is as ``PublicKey``'s.

    ``quorum`` is the least that the party sums with.
    """

    keys: Annotated[Tensor, Values(torch.uint8, f"{PUBLIC_BYTES}")]
    proof: Annotated[Tensor, Values(torch.uint8, "N", most=MAX_PROOF_BYTES)]
    quorum: float


class GiveParts(Message):
    """Driver -> party: split your secrets among these, so that ``threshold`` of them open one."""

    number: int
    threshold: int
    members: tuple[str, ...]
    keys_K: Annotated[Tensor, Values(torch.uint8, f"K,{PUBLIC_BYTES}")]
    proofs: Annotated[Tensor, Values(torch.uint8, "N", means="bytes")]
    proof_bytes: tuple[int, ...]

    def check(self, **sizes: int) -> None:
        """Refuse keys and proofs that are not one a member."""
        if len(self.proof_bytes) != len(self.members) or min(self.proof_bytes, default=0) < 0:
            raise MessageError(f"{self.wire_name()}: one proof a member, of 0 bytes or more")
        super().check(**{**sizes, "K": len(self.members), "N": sum(self.proof_bytes)})


class Parts(Message):
    """Party -> driver: its secrets in parts, each sealed for a member, in the order of names."""

    sealed_K: Annotated[Tensor, Values(torch.uint8, f"K,{SEALED_BYTES}")]


class GiveMasked(Message):
    """Driver -> party: your share of the sum over these members, with who goes on's parts."""

    number: int
    members: tuple[str, ...]
    weights: tuple[float, ...]
    going_on: tuple[str, ...]
    sealed_T: Annotated[Tensor, Values(torch.uint8, f"T,{SEALED_BYTES}")]

    def check(self, **sizes: int) -> None:
        """Refuse parts that are not one of each."""
        super().check(**{**sizes, "T": len(self.going_on)})


class Masked(Message):
    """Party -> driver: weight x values in fixed point, masked; and what the masks are bound to."""

    masked_P: Integers
    context: Annotated[Tensor, Values(torch.uint8, "32")]


class GiveOpened(Message):
    """Driver -> party: whose values came; open the sum over these."""

    number: int
    survivors: tuple[str, ...]


class Opened(Message):
    """Party -> driver: of each who went on a part of its seed, or of its key; in order of names."""

    parts_T: Annotated[Tensor, Values(torch.uint8, f"T,{PART_BYTES}")]


LastingMessages = tuple[
    type[GiveKeys],
    type[PublicKeys],
    type[GiveParts],
    type[Parts],
    type[GiveMasked],
    type[Masked],
    type[GiveOpened],
    type[Opened],
]


def lasting_messages(family: str, module: str) -> LastingMessages:
    """The eight as a method's, for its module under the same names."""
    first, last = (GiveKeys, PublicKeys, GiveParts, Parts), (GiveMasked, Masked, GiveOpened, Opened)
    return cast(LastingMessages, tuple(kind.named(family, module) for kind in (*first, *last)))


# --- What a party executes -----------------------------------------------------------------------


class Lasting(Summing):
    """Sums that outlive lost members."""

    @handles
    def keys(self, ask: GiveKeys) -> PublicKeys:
        """New keys for this sum."""
        self.summed(ask.number)
        keys, proof = map(bytes_of, self.sums.lasting_key(ask.number))
        return self.named(PublicKeys)(keys, proof, self.sums.quorum)

    @handles
    def parts(self, ask: GiveParts) -> Parts:
        """Secrets of the party, split among the others.

        Raises:
            MessageError: members, keys or a threshold that the party refuses.
        """
        self.summed(ask.number)
        keys, proofs = list_of(ask.keys_K), list_of(ask.proofs.split(list(ask.proof_bytes)))
        sealed = self.sums.parts(ask.number, ask.members, keys, proofs, ask.threshold)
        return self.named(Parts)(torch.stack([bytes_of(each) for each in sealed]))

    @handles
    def masked(self, ask: GiveMasked) -> Masked:
        """Share of the party in the sum, under masks.

        Raises:
            MessageError: a sum that could reveal one party's values.
        """
        values_P, bound_to = self.summed(ask.number)
        if len(set(ask.going_on)) != len(ask.going_on):
            raise MessageError("each member goes on once")
        sealed = dict(zip(ask.going_on, list_of(ask.sealed_T), strict=True))
        masked_P, context = self.sums.lasting_share(
            ask.number, ask.members, ask.weights, sealed, values_P, bound_to=bound_to
        )
        return self.named(Masked)(masked_P, bytes_of(context))

    @handles
    def opened(self, ask: GiveOpened) -> Opened:
        """Parts that open the sum over those whose share came.

        Raises:
            MessageError: too few are left, or the sum was opened for others.
        """
        self.summed(ask.number)
        parts = self.sums.opened(ask.number, ask.survivors)
        opened = [part.to_bytes(PART_BYTES, "big") for _, part in sorted(parts.items())]
        return self.named(Opened)(torch.stack([bytes_of(each) for each in opened]))


# --- What the driver executes --------------------------------------------------------------------


class LastingFederation(MaskedFederation):
    """A federation whose means are taken under masks, and go on without who is lost in their midst.

    Args:
        engine: carries the messages.
        messages: the method's, as ``LastingMessages``.
        quorum: more than this share of the members must answer to the end.
        timeout_s: as of ``Federation``.
    """

    def __init__(
        self,
        engine: Engine,
        messages: LastingMessages,
        quorum: float,
        *,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(engine, timeout_s=timeout_s)
        self._messages = messages
        self._quorum = quorum

    def mean(
        self,
        replies: Mapping[str, M],
        field: str,
        weights: Mapping[str, float] | None = None,
        *,
        before: Tensor | None = None,
    ) -> Tensor:
        """The mean over those whose values came; as ``before`` where too few answer to the end.

        Raises:
            TrainingError: fewer parties are left than share in a sum.
        """
        assert before is not None
        self.check_answered(replies)
        give_keys, public, give_parts, parts, give_masked, masked, give_opened, opened = (
            self._messages
        )
        keys, shares = self.keys(tuple(replies), give_keys(self.number), public, weights)
        members = tuple(keys)
        quorum = max(self._quorum, *(key.quorum for key in keys.values()))
        threshold = threshold_of(len(members), quorum)
        least = max(MIN_MEMBERS, threshold)
        split = self.ask(
            give_parts(
                self.number,
                threshold,
                members,
                torch.stack([key.keys for key in keys.values()]),
                *proofs_of([key.proof for key in keys.values()]),
            ),
            parts,
            to=members,
            K=len(members),
        )
        going_on = tuple(split)
        self.included = ()
        if len(going_on) < least:
            return before
        position = {name: number for number, name in enumerate(sorted(members))}
        ask = {
            member: give_masked(
                self.number,
                members,
                tuple(shares.values()),
                going_on,
                torch.stack([split[sender].sealed_K[position[member]] for sender in going_on]),
            )
            for member in going_on
        }
        came = self.ask(ask, masked, P=len(before))
        survivors = tuple(came)
        if len(survivors) < least:
            return before
        opened_parts = self.ask(
            give_opened(self.number, survivors), opened, to=survivors, T=len(going_on)
        )
        if len(opened_parts) < threshold:
            return before
        held = {
            holder: {
                owner: int.from_bytes(bytes(part.tolist()), "big")
                for owner, part in zip(sorted(going_on), reply.parts_T, strict=True)
            }
            for holder, reply in opened_parts.items()
        }
        total_P = unmasked(
            {name: reply.masked_P for name, reply in came.items()},
            {name: bytes(keys[name].keys.tolist()) for name in going_on},
            held,
            threshold,
            members=members,
            contexts={name: bytes(reply.context.tolist()) for name, reply in came.items()},
        )
        self.included = survivors
        return from_fixed(total_P) / sum(shares[name] for name in survivors)
