"""How often, and about how many samples at a time, a party answers in one run.

A driver that asks about one sample at a time, or about the same one again and again, learns of that
sample what no run that trains needs to know. A party that has limits says so when training begins,
and refuses what exceeds them; a driver that keeps its word draws its batches accordingly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from dovetail.errors import ConfigError
from dovetail.network import Message, State
from dovetail.network.checkpoint import StatefulParty


class LimitError(ConfigError):
    """A question that the party's policy does not answer."""


@dataclass(frozen=True)
class Limits:
    """What a party answers in one run.

    Attributes:
        min_rows: the fewest different samples of one message.
        max_uses: how often it answers about one sample; 0: any number of times.
    """

    min_rows: int = 1
    max_uses: int = 0

    def told(self, reply: Message) -> Message:
        """The reply, with these limits in it if it is one that tells them."""
        names = {each.name for each in fields(reply)}
        if not {"min_rows", "max_uses"} <= names:
            return reply
        return replace(reply, min_rows=self.min_rows, max_uses=self.max_uses)  # type: ignore[call-arg]

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
            what = "shares" if num_samples < self.min_rows else "would be asked about"
            raise ConfigError(
                f"party {party!r} {what} {min(num_samples, batch_size)} samples"
                f"{'' if num_samples < self.min_rows else ' at a time (batch_size)'} and answers "
                f"about {self.min_rows} or more (its policy.min_rows); "
                f"{'align more rows' if num_samples < self.min_rows else 'raise batch_size'}, or "
                "ask its owner to lower min_rows"
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
    """Party -> the limits that its reply tells."""
    return {
        party: Limits(reply.min_rows, reply.max_uses)  # type: ignore[attr-defined]
        for party, reply in replies.items()
    }


class Uses:
    """How often a party has answered about each of its samples in one run.

    Args:
        limits: of its policy.
        used_S: (S,) int32, how often so far.
    """

    def __init__(self, limits: Limits, used_S: Tensor) -> None:
        self.limits = limits
        self.used_S = used_S

    def check(self, samples_B: Tensor) -> None:
        """Refuse a question about these samples.

        Raises:
            LimitError: naming the policy's key.
        """
        if samples_B.ndim != 1 or samples_B.dtype != torch.int64:
            return  # no samples: the party says so
        num_different = len(samples_B.unique())
        if num_different < len(samples_B):
            raise LimitError(
                f"refuses {len(samples_B)} samples of which {num_different} are different: a "
                "message names each sample once"
            )
        if num_different < self.limits.min_rows:
            raise LimitError(
                f"refuses a question about {num_different} samples: its policy.min_rows is "
                f"{self.limits.min_rows}"
            )
        inside = (samples_B >= 0) & (samples_B < len(self.used_S))
        if not self.limits.max_uses or not inside.all():  # outside: the party says so
            return
        if int(self.used_S[samples_B].max()) >= self.limits.max_uses:
            raise LimitError(
                "refuses a question about a sample that it has answered "
                f"{self.limits.max_uses:,} times in this run: its policy.max_uses"
            )

    def count(self, samples_B: Tensor) -> None:
        """What was answered."""
        self.used_S[samples_B] += 1


class Limited:
    """A party of this process that keeps the limits of its party file.

    Args:
        party: what answers.
        limits: of its policy.
        num_samples: how many it shares.
    """

    def __init__(self, party: StatefulParty, limits: Limits, num_samples: int) -> None:
        self.accepts = party.accepts
        self._party = party
        self._uses = Uses(limits, torch.zeros(num_samples, dtype=torch.int32))

    def handle(self, message: Message) -> Message:
        samples_B = message.tensors().get("samples_B")
        if samples_B is not None:
            self._uses.check(samples_B)
        answer = self._party.handle(message)
        if samples_B is not None:
            self._uses.count(samples_B)
        return self._uses.limits.told(answer)

    def state(self) -> State:
        return {"party": self._party.state(), "used": self._uses.used_S}

    def restore(self, state: State) -> None:
        self._party.restore(state["party"])
        self._uses.used_S = state["used"]
