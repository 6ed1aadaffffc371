"""Kaplan and Meier's curves and the log-rank test over parties, of sums that hide their counts.

Kaplan, Meier: "Nonparametric Estimation from Incomplete Observations", JASA 53 (1958); Mantel:
"Evaluation of survival data and two new rank order statistics", Cancer Chemother. Rep. 50 (1966).
Nothing is trained: several parties have different samples, each with its time and event, and the
curves of all of them together are asked for, perhaps of groups that a column names.

    (d_gk, c_gk, b_g) = sum over parties of events, censored rows, rows seen beyond
    n_gk = b_g + sum_{j>=k} d_gj + c_gj

which are all that both estimators need (``kaplan_meier.py`` has their formulas): the curves
are those of all rows in one place, with each time rounded up to the end of its interval.

    Here               Shape  Lives at
    Member.counts_P    (P,)   party; sent under masks, or in the clear where its own file says so
    Coordinator.sum_P  (P,)   coordinator
    times_K            (K,)   where intervals end: the run's, or quantiles of all events

    Letters: G groups, K intervals, P = G (2 K + 1) counts, Q ends that a party offers.

What crosses the boundary: names of groups; where the run gives no times, how many events a party
has, in multiples of ``min_events``, and their quantiles rounded up to two digits; then the sums of
counts (``privacy/sums.py``: of three parties or more, the coordinator learns the sum alone, and
whoever colludes with all parties but two learns the sum of these two). Sums are exact unless a
party adds noise: a count of 1 in them is a person, at one of the parties. So intervals are joined
before anything is written (``least``), which the coordinator's machine does; and a party's own file
refuses groups of fewer rows than ``min_rows`` of its policy, and intervals finer than one for
``min_events`` of its events. Each run is a new sum: of two runs with other times or other groups
the difference is a smaller sum.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dovetail.alignment.times import MOST_ENDS, agree_times
from dovetail.companions.survival.kaplan_meier import Counts, counts
from dovetail.companions.survival.local_data import Times
from dovetail.companions.survival.section import Settings
from dovetail.errors import ConfigError, PartyError, TrainingError
from dovetail.federated import Driver as BaseDriver
from dovetail.federated import Federation, Local, Round, handles, read_settings, secret_mean
from dovetail.federated.secret_mean import SecretFederation, Sharing, Sums
from dovetail.network import Doubles, Engine, Message, Weights
from dovetail.privacy import MIN_MEMBERS, SecretSums
from dovetail.settings.privacy import PrivateSteps

# --- What crosses the boundary -----------------------------------------------------------------


class Describe(Message):
    """Coordinator -> party: which groups have you, and where would intervals end?

    ``group`` is a column, or ""; ``ends`` whether ends are asked for.
    """

    group: str
    ends: bool


class Description(Message):
    """Party -> coordinator: its groups, and ends with as many of its events before each."""

    groups: tuple[str, ...]
    ends_Q: Doubles


class Begin(Message):
    """Coordinator -> party: count in these groups and intervals. ``private`` is JSON, or ""."""

    seed: int
    group: str
    groups: tuple[str, ...]
    times_K: Doubles
    secure: bool
    private: str


class Ready(Message):
    """Party -> coordinator: it has counted; how far its noise spreads, 0 without any."""

    noise: float


class Count(Message):
    """Coordinator -> party: your counts, as they are."""


class Counted(Message):
    """Party -> coordinator: its counts in the clear."""

    counts_P: Weights


GiveKey, PublicKey, GiveShare, Share = SHARED = secret_mean.messages("survival", __name__)


# --- What a party executes ---------------------------------------------------------------------


class Member(Sharing):
    """A party that counts its rows."""

    saved: ClassVar[tuple[str, ...]] = ("counts_P",)
    renamed = SHARED

    def __init__(self, data: Times, local: Local) -> None:
        self.data = data
        self.sums = local.sums(data.section.members) or SecretSums(data.name)

    def sizes(self) -> dict[str, int]:
        """P."""
        return {"P": len(self.counts_P)}

    @handles(before_begin=True)
    def describe(self, ask: Describe) -> Description:
        """Groups of the party and the ends that it offers, which follow from its times without
        noise."""
        if ask.ends and (self.data.section.private or self.local.budget) is not None:
            raise PartyError(
                self.name,
                "adds noise to its counts, and tells no quantiles without any: give times in "
                "[survival] of the run",
            )
        ends_Q = torch.from_numpy(self.data.ends()) if ask.ends else torch.empty(0).double()
        return Description(self.data.groups(ask.group), ends_Q)

    @handles
    def begin(self, ask: Begin) -> Ready:
        """Count; noise is drawn once, so that a repeated answer is the same."""
        times_K = self.times_K = ask.times_K.numpy()
        self.data.check(times_K, secure=ask.secure)
        groups_N = self.data.indices(ask.group, ask.groups)
        counted = counts(self.data.signed_N, groups_N, len(ask.groups), times_K)
        asked = read_settings(PrivateSteps, ask, ask.private) if ask.private else None
        self.counts_P, noise = self.local.release_sum(
            torch.from_numpy(counted).flatten().float(), self.data.section.private, asked,
            what="counts", key="[survival] private = { noise = ... }",
        )  # fmt: skip
        told = [ask.seed, ask.group, ask.groups, ask.times_K.tolist(), ask.private]
        self.agreed = self.digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()
        self.secure, self.shared = ask.secure, False
        return Ready(noise)

    @handles
    def count(self, ask: Count) -> Counted:
        """Counts of the party, if its file lets them leave in the clear."""
        self.data.check_clear(secure=self.secure)
        return self.local.with_cost(Counted(self.counts_P.float()), "counts")

    def unsaved(self) -> str:
        is_open = self.sums.number > 0 and not self.shared
        return "a secret sum is not done, and its key is nowhere else" if is_open else ""

    def summed(self, number: int) -> tuple[Tensor, str]:
        """Counts of the party."""
        return self.counts_P, self.digest

    @handles
    def share(self, ask: secret_mean.GiveShare) -> secret_mean.Share:
        """Share of the party in the sum."""
        answer, self.shared = super().share(ask), True
        return self.local.with_cost(answer, "counts")


# --- What the coordinator executes -------------------------------------------------------------


class Driver(BaseDriver):
    """Asks for the sum, and has no data."""

    saved: ClassVar[tuple[str, ...]] = ("groups", "times", "parties", "noise", "sum_P")
    num_rounds = 1
    tolerate_missing = False
    in_clear: Mapping[str, Counted] = MappingProxyType({})  # what parties sent, unless in secret

    def __init__(self, settings: Settings, *, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self.groups: tuple[str, ...] = ()
        self.times: tuple[float, ...] = settings.times
        self.parties: tuple[str, ...] = ()
        self.noise = 0.0  # deviation of each sum
        self.sum_P = torch.empty(0)

    def federation(self, engine: Engine) -> Federation:
        """Federation that sums in the clear, or under masks."""
        if not self.settings.secure:
            return super().federation(engine)
        return SecretFederation(engine, Sums(), SHARED)

    def begin(self, federation: Federation) -> None:
        """Agree on groups and intervals."""
        self.parties = federation.parties
        if self.settings.secure and len(self.parties) < MIN_MEMBERS:
            raise ConfigError(
                f"counts are summed in secret by {MIN_MEMBERS} parties or more, and there are "
                f"{len(self.parties)}; let another take part, or give secure = false in [survival] "
                "of the run file and of every party's own"
            )
        ask = Describe(self.settings.group or "", not self.settings.times)
        described = federation.ask(ask, Description).or_raise()
        self.groups = tuple(sorted({name for each in described.values() for name in each.groups}))
        if not self.settings.times:
            offered = {party: each.ends_Q.tolist() for party, each in described.items()}
            if lacking := [party for party, ends in offered.items() if not ends]:
                raise PartyError(lacking[0], "offers no ends of intervals; give times in the run")
            self.times = agree_times(offered, min(MOST_ENDS, *map(len, offered.values())))
        private, secure = self.settings.private, self.settings.secure
        noise = "" if private is None else private.model_dump_json()
        times_K = torch.tensor(self.times, dtype=torch.float64)
        begin = Begin(self.seed, ask.group, self.groups, times_K, secure, noise)
        ready = federation.ask(begin, Ready).or_raise()
        for party, each in ready.items():
            if not 0 <= each.noise < math.inf:
                raise PartyError(party, f"says that its noise has deviation {each.noise}")
        self.noise = math.hypot(*(each.noise for each in ready.values()))

    def round(self, number: int, federation: Federation) -> Round:
        """The sum over all parties.

        Raises:
            PartyError: counts in the clear that are none.
            TrainingError: a sum that is none of counts.
        """
        self.sum_P = self.summed(len(self.groups) * (2 * len(self.times) + 1), federation)
        if not self.noise:
            for party, each in self.in_clear.items():
                if not _are_counts(each.counts_P):
                    raise PartyError(party, "sent counts that are below 0 or not whole; ask it why")
            if not _are_counts(self.sum_P):
                raise TrainingError(
                    "the sum of counts is below 0 or not whole, so a party sent what is none; "
                    "leave parties out one at a time"
                )
        return Round(metrics={"intervals": len(self.times)})

    def summed(self, num: int, federation: Federation) -> Tensor:
        """(P,) of so many numbers, the sum of what parties have made ready.

        Raises:
            TrainingError: a party was lost in its midst.
        """
        if self.settings.secure:
            asked: Mapping[str, Message] = dict.fromkeys(self.parties, Count())
        else:
            asked = self.in_clear = federation.ask(Count(), Counted, P=num).or_raise()
        mean_P = federation.mean(asked, "counts_P", before=torch.zeros(num))
        if len(federation.included) < len(self.parties):
            why = "; ".join(f"{name}: {cause}" for name, cause in federation.missing.items())
            raise TrainingError(f"a party was lost in the midst of the sum ({why}); run it again")
        return mean_P.double() * len(self.parties)

    def result(self) -> dict[str, Any]:
        """Curves, medians and the test; JSON-ready. Noised cells are not whole, nor joined."""
        cells_GC = self.sum_P.reshape(len(self.groups), -1).numpy()
        cells_GC = cells_GC if self.noise else np.round(cells_GC)
        found = Counts.of(self.groups, np.array(self.times), cells_GC)
        shown = found if self.noise else found.merged(self.settings.least)
        return {
            "group": self.settings.group or "",
            "parties": list(self.parties),
            "rows": shown.rows(),
            "medians": shown.medians(),
            "log_rank": shown.log_rank(),
            "joined": len(found.times_K) - len(shown.times_K),
            "noise": self.noise,
        }


def _are_counts(sum_P: Tensor) -> bool:
    """Whether these are whole and not below 0, but for what float32 rounds."""
    nearest_P = sum_P.round().clip(0)
    return bool(((sum_P - nearest_P).abs() <= 0.01 + 1e-6 * nearest_P).all())
