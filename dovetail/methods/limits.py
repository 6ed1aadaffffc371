"""How often, and about how many samples at a time, a party answers in one run.

A driver that asks about one sample at a time, or about the same one again and again, learns of that
sample what no run that trains needs to know. A party that has limits says so when training starts,
and refuses what exceeds them; a driver that keeps its word draws its batches accordingly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from dovetail.errors import ConfigError
from dovetail.methods.settings.party import PolicySection
from dovetail.network import Message, State
from dovetail.network.checkpoint import StatefulParty
from dovetail.network.messages import means_of

#: Labelled rows that take part in APFed-S at most.
MAX_LABELLED = 3000


class LimitError(ConfigError):
    """A question that the party's policy does not answer."""


@dataclass(frozen=True)
class Limits:
    """Limits of what a party answers in one run.

    Attributes:
        min_rows: the fewest different samples of one message.
        max_uses: how often it answers about one sample; 0: any number of times.
        max_begins: how often the run may begin; 0: any number of times.
        max_codes: the most rows of one message that brings codes of them, which may then not be
            all alike either; 0: any.
    """

    min_rows: int = 1
    max_uses: int = 0
    max_begins: int = 0
    max_codes: int = 0

    @classmethod
    def of(cls, policy: PolicySection) -> Limits:
        """How often, and about how many samples at a time, a party of this policy answers."""
        return cls(policy.min_rows, policy.max_uses, policy.max_begins, policy.max_codes)

    def write_into(self, reply: Message) -> Message:
        """The reply, with these limits in it if it is one that has them."""
        names = {each.name for each in fields(reply)}
        if not {"min_rows", "max_uses"} <= names:
            return reply
        values = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name in names
        }
        return replace(reply, **values)

    def check_run(self, party: str, num_samples: int, *, batch_size: int, passes: float) -> None:
        """Refuse a run that would not keep them, at whoever drives it.

        Args:
            party: whose they are.
            num_samples: how many are shared with it.
            batch_size: of the driver.
            passes: how often the driver goes through them.

        Raises:
            ConfigError: naming the party, its limit and the driver's setting.
        """
        if min(num_samples, batch_size) < self.min_rows:
            if num_samples < self.min_rows:
                why, what = f"shares {num_samples} samples", "align more rows"
            else:
                why = f"would be asked about {batch_size} samples at a time (batch_size)"
                what = "raise batch_size"
            raise ConfigError(
                f"party {party!r} {why} and answers about {self.min_rows} or more (its "
                f"policy.min_rows); {what}, or ask its owner to lower min_rows"
            )
        if self.max_uses and math.ceil(passes) > self.max_uses:
            raise ConfigError(
                f"the run would ask party {party!r} {math.ceil(passes):,} times about each sample, "
                f"and it answers {self.max_uses:,} times (its policy.max_uses); lower epochs or "
                "steps_per_epoch, or ask its owner to raise max_uses"
            )


#: Of a party that is simulated.
NO_LIMITS = Limits()


def limits_of(replies: Mapping[str, Message]) -> dict[str, Limits]:
    """Party -> the limits in its reply."""
    return {
        party: Limits(
            **{
                each.name: getattr(reply, each.name)
                for each in fields(Limits)
                if hasattr(reply, each.name)
            }
        )
        for party, reply in replies.items()
    }


@dataclass(frozen=True, eq=False)
class AskedFor:
    """The samples that a message names.

    Attributes:
        samples: (N,) places in the order.
        order: which of the two that the parties share: of the rows that train, or of test rows.
        once: whether it may name each but once; members of an ensemble each draw their own.
        codes: (N, ...) what it says of each; None: nothing.
    """

    samples: Tensor
    order: str
    once: bool
    codes: Tensor | None = None

    @cached_property
    def different(self) -> Tensor:
        """The samples, each once, in ascending order."""
        different: Tensor = self.samples.unique()
        return different

    @property
    def is_well_formed(self) -> bool:
        """Else the party itself says what is wrong."""
        return self.samples.ndim == 1 and self.samples.dtype == torch.int64


#: Codes of a message whose rank is lower are made up, or of columns that say next to nothing.
LEAST_RANK = 2

#: A singular value counts from this share of the largest on.
_COUNTS_FROM = 1e-3


def code_rank(codes: Tensor) -> int:
    """In how many directions codes differ from their mean; 0 where they are all alike.

    >>> code_rank(torch.ones(5, 3)), code_rank(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
    (0, 1)
    """
    codes_BD = codes.detach().flatten(1).double().cpu()
    apart_BD = codes_BD - codes_BD.mean(dim=0)
    largest = torch.linalg.vector_norm(codes_BD)
    if len(apart_BD) > apart_BD.shape[1]:
        apart_BD = apart_BD.T
    squared = torch.linalg.eigvalsh(apart_BD @ apart_BD.T)
    return int((squared.clamp(min=0).sqrt() > _COUNTS_FROM * largest).sum())


def _codes(message: Message, num: int) -> Tensor | None:
    """Codes that a message has for each of so many samples that it names: a field ``code_...``."""
    for name, tensor in message.tensors().items():
        if name.startswith("code_") and tensor.ndim > 1 and len(tensor) == num:
            return tensor
    return None


def asked_for(message: Message) -> AskedFor | None:
    """Samples that a message asks about; None: no samples."""
    order = "test" if getattr(message, "test", False) else "train"
    for name, of in means_of(type(message)).items():
        if of in _NAMING:
            once, samples = of == "samples", getattr(message, name)
            codes = _codes(message, samples.numel()) if once else None
            return AskedFor(samples, order, once=once, codes=codes)
    return None


#: What fields mean that name samples.
_NAMING = ("samples", "draws")


def names_samples(kind: type[Message]) -> bool:
    """Whether a message asks about samples."""
    return any(means in _NAMING for means in means_of(kind).values())


def rows_of(message: Message) -> int:
    """How many rows its largest tensor has; a vector of weights or bytes has none."""
    means = means_of(type(message))
    return max(
        (
            len(tensor)
            for name, tensor in message.tensors().items()
            if tensor.ndim > (means.get(name) in ("weights", "bytes"))
        ),
        default=0,
    )


@dataclass(eq=False)
class Uses:
    """How often a party has answered about each of its samples in one run.

    A message counts once for each sample that it names, however often it does.

    Attributes:
        limits: of its policy.
        used: order -> (S,) int32, how often so far; of samples beyond its end, never.
    """

    limits: Limits
    used: dict[str, Tensor] = field(default_factory=dict)

    def check(self, asked: AskedFor) -> None:
        """Refuse a question about these samples.

        Raises:
            LimitError: naming the policy's key.
        """
        if not asked.is_well_formed:
            return
        different = asked.different
        if asked.once and len(different) < len(asked.samples):
            raise LimitError(
                f"refuses {len(asked.samples)} samples of which {len(different)} are different: a "
                "message names each sample once"
            )
        if len(different) < self.limits.min_rows:
            raise LimitError(
                f"refuses a question about {len(different)} samples: its policy.min_rows is "
                f"{self.limits.min_rows}"
            )
        if asked.codes is not None and self.limits.max_codes:
            self._check_codes(asked.codes)
        used_S = self.used.get(asked.order)
        if not self.limits.max_uses or used_S is None:
            return
        known = different[(different >= 0) & (different < len(used_S))]
        if len(known) and int(used_S[known].max()) >= self.limits.max_uses:
            raise LimitError(
                "refuses a question about a sample that it has answered "
                f"{self.limits.max_uses:,} times in this run: its policy.max_uses"
            )

    def _check_codes(self, codes: Tensor) -> None:
        """Refuse codes that read a table rather than train: too many at once, or all alike."""
        if len(codes) > self.limits.max_codes:
            raise LimitError(
                f"refuses codes of {len(codes)} rows in one message: its policy.max_codes is "
                f"{self.limits.max_codes}; lower batch_size"
            )
        least = min(LEAST_RANK, len(codes) - 1, codes[0].numel())
        if codes.isfinite().all() and (rank := code_rank(codes)) < least:
            raise LimitError(
                f"refuses codes of {len(codes)} rows that differ in {rank} directions: codes that "
                "are all but alike would read its columns (policy.max_codes)"
            )

    def count(self, asked: AskedFor) -> Tensor:
        """Count an answer; gives the different samples that it is about."""
        different = asked.different
        if not len(different):
            return different
        used_S = self.used.get(asked.order, torch.zeros(0, dtype=torch.int32))
        more = int(different.max()) + 1 - len(used_S)
        if more > 0:
            used_S = torch.cat([used_S, torch.zeros(more, dtype=torch.int32)])
        used_S[different] += 1
        self.used[asked.order] = used_S
        return different

    @contextmanager
    def counted(self, asked: AskedFor | None) -> Iterator[None]:
        """Counts a question before it is answered, unless an error ends that.

        Raises:
            LimitError: naming the policy's key.
        """
        if asked is None:
            yield
            return
        self.check(asked)
        different = self.count(asked)
        try:
            yield
        except BaseException:
            if len(different):
                self.used[asked.order][different] -= 1
            raise

    def left(self, order: str = "train") -> float:
        """How often every sample may be asked about yet."""
        used_S = self.used.get(order)
        if not self.limits.max_uses:
            return math.inf
        return self.limits.max_uses - (
            0 if used_S is None or not len(used_S) else int(used_S.max())
        )

    def forget(self) -> None:
        """The run starts again, with other networks."""
        self.used = {}


class Limited:
    """A party of this process that keeps the limits of its party file.

    Args:
        party: what answers.
        limits: of its policy.
    """

    def __init__(self, party: StatefulParty, limits: Limits) -> None:
        self.accepts = party.accepts
        self._party = party
        self._uses = Uses(limits)

    def handle(self, message: Message) -> Message:
        asked = asked_for(message)
        with self._uses.counted(asked):
            answer = self._party.handle(message)
        return self._uses.limits.write_into(answer)

    def state(self) -> State:
        return {"party": self._party.state(), "used": dict(self._uses.used)}

    def restore(self, state: State) -> None:
        self._party.restore(state["party"])
        self._uses.used = dict(state["used"])


def limited(party: StatefulParty, limits: Limits) -> StatefulParty:
    """The party itself, or where it has a party file with what its policy answers."""
    return party if limits == NO_LIMITS else Limited(party, limits)
