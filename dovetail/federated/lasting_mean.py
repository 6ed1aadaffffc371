"""A mean under masks that outlives lost parties: who is lost costs its own part, not the sum.

    driver                                     party
    GiveKeys                       -------->   new keys and a seed for this round
                                   <--------   PublicKeys
    GiveParts: everybody's keys    -------->   checks them
                                   <--------   Parts: of its secrets, one sealed for each
    GiveMasked: weights, the parts -------->   checks all of it (``privacy/sums.py``)
    sealed for it                  <--------   Masked: weight x values under two masks
    GiveOpened: whose came         -------->   checks that enough are left
                                   <--------   Opened: of each a part of its seed or its key

A method gives the messages its own names (``messages``), and its party is ``Lasting``;
``LastingFederation`` has the driver's side. ``privacy/masks.py`` says who learns what.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeVar, cast

import torch
from torch import Tensor

from dovetail.errors import MessageError
from dovetail.federated.party import handles
from dovetail.federated.secret_mean import MaskedFederation, Summing, bytes_of, list_of, proofs_of
from dovetail.network import Engine, Integers, Message, Values
from dovetail.network.renewal import MAX_PROOF_BYTES
from dovetail.privacy import MIN_MEMBERS, from_fixed
from dovetail.privacy.masks import PART_BYTES, PUBLIC_BYTES, SEALED_BYTES, threshold_of, unmasked

M = TypeVar("M", bound=Message)


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


Messages = tuple[
    type[GiveKeys],
    type[PublicKeys],
    type[GiveParts],
    type[Parts],
    type[GiveMasked],
    type[Masked],
    type[GiveOpened],
    type[Opened],
]


def messages(family: str, module: str) -> Messages:
    """The eight as a method's, for its module under the same names."""
    first, last = (GiveKeys, PublicKeys, GiveParts, Parts), (GiveMasked, Masked, GiveOpened, Opened)
    return cast(Messages, tuple(kind.named(family, module) for kind in (*first, *last)))


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
        messages: the method's, as ``Messages``.
        quorum: more than this share of the members must answer to the end.
        timeout_s: as of ``Federation``.
    """

    def __init__(
        self,
        engine: Engine,
        messages: Messages,
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
