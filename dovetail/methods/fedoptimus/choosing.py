"""Choice of who takes part in a round: the most relevant data owners, or those that gain most
together.

An owner alone may reveal much about the labels and nothing beyond the chosen ones: a copy
of the best owner is as relevant as the best. Forward selection (Whitney 1971; over mutual
information Brown, Pocock, Zhao, Lujan, JMLR 2012, section 3) adds the owner p that most raises what
the chosen group S is worth,

    gain(p | S) = I(S + p) - I(S),

until the share is full. I is ``selection``'s estimate of a group, from the same messages: sums of
partial distances, ordered; a copy adds the same order and gains about nothing, a noisy owner below
nothing. It starts with the owner that is worth most alone. Masks would be in vain: sums over S and
over S + p differ by what p alone sent, so that it is refused under them.

What it costs beside scores of relevance: one group for each owner that is left, at each step, so
about 3 P^2 / 8 groups for half of P owners, of growing size. Distances that are known are not sent
again. Who sees orders of groups of two with relevance sees orders of larger groups here, which
reveal less of each member; the coordinator asks each owner about more pairs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from dovetail.errors import ConfigError, PartyError
from dovetail.federated.party import SavedAttributes
from dovetail.methods.selection import Scores, Session, check_asked, score
from dovetail.methods.settings.shared import SelectionConfig as Config
from dovetail.models.randomness import derive_seed
from dovetail.network import Engine

_log = logging.getLogger(__name__)


def forward(
    network: Engine,
    data_owners: Sequence[str],
    label_owners: Sequence[str],
    config: Config,
    *,
    seed: int,
) -> Scores:
    """Data owners in the order in which they were added, those that were not behind them.

    A party that fails is left out, and the search started again without it.

    Args:
        network: reaches all.
        data_owners, label_owners: as of ``selection.score``.
        config: settings; the ``share`` says when to stop.
        seed: of the rows and queries.

    Returns:
        The value of an owner that was added is its gain, of any other its gain in the last step.

    Raises:
        ConfigError: nobody to ask, or masks.
        PartyError: no data owner, or no label owner, is left; the last failure.
    """
    check_asked(data_owners, label_owners)
    if config.secure:
        raise ConfigError(
            'order = "forward" compares groups that differ by one owner, whose part their sums '
            'give away, so that masks protect nobody; choose order = "relevance" or secure = false'
        )
    owners, labelled = list(data_owners), list(label_owners)
    missed: dict[str, str] = {}
    while True:
        search = _Search(
            [Session(network, each, owners, config, seed) for each in labelled], owners
        )
        try:
            return search.run(max(1, round(config.share * len(owners))), missed)
        except PartyError as failure:
            missed[failure.party] = failure.cause
            _log.warning("selection goes on without it: %s", failure)
            owners = [name for name in owners if name != failure.party]
            labelled = [name for name in labelled if name != failure.party]
            if not (owners and labelled):
                raise


class _Search:
    """Search over parties none of whom has failed yet."""

    def __init__(self, sessions: Sequence[Session], owners: Sequence[str]) -> None:
        self.sessions = sessions
        self.owners = owners
        self.groups: dict[tuple[str, ...], float] = {}

    def run(self, keep: int, missed: dict[str, str]) -> Scores:
        """Add the one that gains most, until so many are kept."""
        chosen: list[str] = []
        values: dict[str, float] = {}
        worth = 0.0
        while len(chosen) < keep:
            left = [name for name in self.owners if name not in chosen]
            values |= {
                name: each - worth
                for name, each in zip(left, self._worth(chosen, left), strict=True)
            }
            best = max(left, key=lambda name: values[name])  # of equal ones the first
            chosen.append(best)
            worth += values[best]
        rest = sorted(
            (name for name in self.owners if name not in chosen),
            key=lambda name: (-values[name], name),
        )
        return Scores(
            {name: values[name] for name in self.owners},
            tuple(self.groups.items()),
            sum(each.distances for each in self.sessions),
            sum(each.brute_force(()) for each in self.sessions),
            missed,
            (*chosen, *rest),
        )

    def _worth(self, chosen: Sequence[str], left: Sequence[str]) -> list[float]:
        """I of the chosen and each of those that are left: the mean over label owners, weighted by
        their rows."""
        groups = [
            tuple(name for name in self.owners if name in chosen or name == each) for each in left
        ]
        estimates = []
        for session in self.sessions:
            session.open()
            first = len(self.groups) + 1
            estimates.append([session.estimate(n, each) for n, each in enumerate(groups, first)])
        rows = [session.num_labelled for session in self.sessions]
        nats = [
            sum(n * each for n, each in zip(rows, losses, strict=True)) / sum(rows)
            for losses in zip(*estimates, strict=True)
        ]
        self.groups |= dict(zip(groups, nats, strict=True))
        return nats


class Chooser(SavedAttributes):
    """Keeps the best share of the data owners, scored again every so many rounds.

    Args:
        config: settings; ``share`` is kept.
        data_owners, label_owners: who is asked.
        every: R, rounds from one scoring to the next; 0: the first is for all.
        seed: of rows, queries and groups; each scoring draws its own.

    Attributes:
        latest: what the last scoring found; None before the first, and after ``restore``.
    """

    saved = ("_chosen",)

    def __init__(
        self,
        config: Config,
        data_owners: Sequence[str],
        label_owners: Sequence[str],
        *,
        every: int = 0,
        seed: int = 0,
    ) -> None:
        if every < 0:
            raise ConfigError(f"selection is refreshed every 0 or more rounds, got {every}")
        self.config = config
        self.data_owners = tuple(data_owners)
        self.label_owners = tuple(label_owners)
        self.every = every
        self.seed = seed
        self.latest: Scores | None = None
        self._reported_of: Scores | None = None
        self._chosen: tuple[str, ...] = ()

    def __call__(self, round_number: int, network: Engine) -> tuple[str, ...]:
        """The data owners of this round, from 1."""
        due = self.every > 0 and (round_number - 1) % self.every == 0
        if due or not self._chosen:
            seed = derive_seed(self.seed, "selection", str(round_number))
            find = forward if self.config.order == "forward" else score
            self.latest = find(network, self.data_owners, self.label_owners, self.config, seed=seed)
            self._chosen = self.latest.best(self.config.share)
        return self._chosen

    def report(self) -> dict[str, Any]:
        """Each owner's value and what finding it cost, the first time after a scoring."""
        latest, reported_of = self.latest, self._reported_of
        self._reported_of = latest
        if latest is None or latest is reported_of:
            return {}
        return {"scores": dict(latest.values), "distances": latest.distances}
