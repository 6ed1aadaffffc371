"""Verdict on an attack's result, in numbers and in a word.

A figure by itself says little: a partner's columns already reveal something. So each attack is made
twice, with what was sent and without, and what counts is the share of the unknown that was gained:

    advantage = (attack - baseline) / (1 - baseline)

for scores whose best is 1 (share of labels right, R2, AUC). Its 95 % interval comes from the spread
over scored rows and over draws of what the attacker knows, paired row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from dovetail.methods.facets.audited import Threat

Verdict = Literal["none", "low", "high"]

#: Verdicts, from the least to the most.
VERDICTS: tuple[Verdict, ...] = ("none", "low", "high")

#: Below this advantage, or where the interval reaches 0, the verdict is "none".
LOW_FROM = 0.05

#: From this advantage on the verdict is "high".
HIGH_FROM = 0.20

#: By so much R2 of the column worst off may grow, however little the mean over columns does.
COLUMN_LOW_FROM, COLUMN_HIGH_FROM = 0.2, 0.5

THRESHOLDS = (
    f"none: less than {LOW_FROM:.0%} of what the receiver did not know is gained, or the 95 % "
    f"interval reaches 0; high: {HIGH_FROM:.0%} or more; low: between; low, too, where R2 of one "
    f"column grows by {COLUMN_LOW_FROM:g}, and high by {COLUMN_HIGH_FROM:g}"
)


@dataclass(frozen=True, eq=False)
class Measured:
    """Scores row by row, so that their mean is the score.

    Attributes:
        attack_RN, baseline_RN: draws of what the attacker knows x scored rows; NaN where a row is
            known in a draw.
        worst: the column worst off: name, baseline, attack.
        variants: name -> score, of all that was tried; the attack is the best of them.
    """

    attack_RN: np.ndarray
    baseline_RN: np.ndarray
    worst: tuple[str, float, float] | None = None
    variants: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """Finding of one attack on one channel of one variant.

    Attributes:
        variant: of the run.
        observer: who attacks.
        owner: whose data they are.
        channel: what was seen: "codes", "gradients", "weights", "model", ...
        target: what was looked for: "labels", "columns", "membership", "rows".
        threat: what is assumed.
        baseline, score: without and with what was seen.
        advantage, low, high: the share of the unknown that was gained, and its 95 % interval.
        verdict: in a word.
        worst: the column worst off: name, baseline, score.
        variants: name -> score, of all that was tried.
        note: what else there is to say.
    """

    variant: str
    observer: str
    owner: str
    channel: str
    target: str
    threat: Threat
    baseline: float
    score: float
    advantage: float
    low: float
    high: float
    verdict: Verdict
    worst: tuple[str, float, float] | None = None
    variants: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def key(self) -> tuple[str, ...]:
        """Key that identifies the finding in a run; it is equal in each seed."""
        return (
            self.variant, self.observer, self.owner, self.channel, self.target, self.threat.attack
        )  # fmt: skip


def verdict_of(
    advantage: float, low: float, worst: tuple[str, float, float] | None = None
) -> Verdict:
    """The word for an advantage whose interval starts at ``low``, and for the column worst off.

    >>> verdict_of(0.4, 0.3), verdict_of(0.1, 0.05), verdict_of(0.1, -0.01), verdict_of(0.03, 0.02)
    ('high', 'low', 'none', 'none')
    >>> verdict_of(0.07, 0.04, ("sex = Female", -0.01, 0.68))
    'high'
    """
    verdict: Verdict = "high" if advantage >= HIGH_FROM else "low"
    if low <= 0 or advantage < LOW_FROM:
        verdict = "none"
    grown = 0.0 if worst is None else worst[2] - max(0.0, worst[1])
    column: Verdict = "high" if grown >= COLUMN_HIGH_FROM else "low"
    if grown < COLUMN_LOW_FROM:
        column = "none"
    return max(verdict, column, key=VERDICTS.index)


def interval(measured: Measured) -> tuple[float, float, float, float, float]:
    """Baseline, score, advantage and its 95 % interval."""
    attack, baseline = np.nanmean(measured.attack_RN), np.nanmean(measured.baseline_RN)
    gain_RN = measured.attack_RN - measured.baseline_RN
    gain_RN = gain_RN[:, np.isfinite(gain_RN).any(axis=0)]  # a row that each draw knows is out
    gain_N = np.nanmean(gain_RN, axis=0)
    num_draws = len(gain_RN)
    variance = gain_N.var(ddof=1) / len(gain_N)
    if num_draws > 1:
        variance += np.nanmean(gain_RN, axis=1).var(ddof=1) / num_draws
    room = max(1e-9, 1 - max(baseline, 0.0))
    advantage = (attack - baseline) / room
    reach = 1.96 * float(np.sqrt(variance)) / room
    return tuple(map(float, (baseline, attack, advantage, advantage - reach, advantage + reach)))  # type: ignore[return-value]


def finding(
    measured: Measured,
    threat: Threat,
    *,
    variant: str,
    observer: str,
    owner: str,
    channel: str,
    target: str,
    note: str = "",
) -> Finding:
    """Finding of an attack."""
    baseline, score, advantage, low, high = interval(measured)
    return Finding(
        variant, observer, owner, channel, target, threat, baseline, score, advantage, low, high,
        verdict_of(advantage, low, measured.worst), measured.worst, dict(measured.variants), note,
    )  # fmt: skip


def over_seeds(findings: Sequence[Finding]) -> Finding:
    """Finding of several seeds: means; the interval is the wider of within and between."""
    first = findings[0]
    if len(findings) == 1:
        return first
    mean = {
        name: float(np.mean([getattr(each, name) for each in findings]))
        for name in ("baseline", "score", "advantage", "low", "high")
    }
    advantages = [each.advantage for each in findings]
    within = (mean["high"] - mean["low"]) / 2 / len(findings) ** 0.5
    between = 1.96 * float(np.std(advantages, ddof=1)) / len(findings) ** 0.5
    reach = max(within, between)
    low, high = mean["advantage"] - reach, mean["advantage"] + reach
    names = set.intersection(*(set(each.variants) for each in findings))
    worst = [each.worst for each in findings if each.worst is not None]
    off = max(worst, key=lambda each: each[2] - each[1]) if worst else None
    return Finding(
        first.variant, first.observer, first.owner, first.channel, first.target, first.threat,
        mean["baseline"], mean["score"], mean["advantage"], low, high,
        verdict_of(mean["advantage"], low, off),
        off,
        {n: float(np.mean([each.variants[n] for each in findings])) for n in sorted(names)},
        first.note,
    )  # fmt: skip


def worst_of(findings: Sequence[Finding]) -> Verdict:
    """The strongest word among them; "none" where there are none."""
    return max((each.verdict for each in findings), key=VERDICTS.index, default="none")
