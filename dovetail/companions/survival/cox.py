"""Cox regression over parties, by sums: hazard ratios of all rows in one place.

Cox: "Regression Models and Life-Tables", JRSS B 34 (1972); Breslow: discussion of it, for ties and
the baseline; Lu et al.: "WebDISCO", JAMIA 22 (2015), for the sums that a site gives.

    A_k = sum_i r_ik e^(x_i b)    B_k = sum_i r_ik x_i e^(x_i b)
    C_k = sum_i r_ik x_i x_i' e^(x_i b)
    gradient of the partial likelihood   sum_k E_k - d_k B_k / A_k
    its second derivative, less          sum_k d_k (C_k / A_k - (B_k / A_k) (B_k / A_k)')
    cumulative baseline hazard           H(t_k) = sum_{j<=k} d_j / A_j               Breslow

r says that a row is at risk in interval k, d_k how many events it has, E_k is the sum of x over
them. Newton's steps are the coordinator's, halved where the likelihood falls; each asks for new
sums, under the masks of ``secret_mean``, so what it learns are totals of all parties. Before them
columns are standardised: each party reports powers of ten of its columns and their spreads, then
means and a spread are summed. With as many intervals as times these are the pooled estimates
(Breslow's ties), but for float32 sums. They say more than counts: of two neighbouring intervals the
difference of A, B and C is of the rows that left between them, at each b that was asked. So a
party's ``min_events`` matters; columns are named once a run; sums in which one row outweighs all
others of a party do not leave it; and who noises its counts, or has a budget, takes no part. A step
of the baseline is an event, so what is written has no step of fewer than ``least``.

Letters: N rows, F columns, K intervals, P = 2 K + F + K F + K F (F + 1) / 2 sums.
"""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

import numpy as np
import torch

from dovetail.companions.survival import survival
from dovetail.companions.survival.kaplan_meier import Counts
from dovetail.companions.survival.section import Settings
from dovetail.errors import ConfigError, PartyError, TrainingError
from dovetail.federated import Federation, Round, handles
from dovetail.network import Doubles, Message, State

#: Newton's steps are over where no coefficient moves by more; of columns of spread 1.
_CLOSE, _MOST_STEPS, _LONGEST = 1e-5, 40, 1.0
#: Coefficients grow without end beyond this, where columns decide when the event comes.
_ENDLESS = 20.0
#: Sums of a party stay below this, so that those of several can be added under masks.
_LARGEST = 1e9
#: Columns of a regression.
MOST_COLUMNS = 32
#: Sums before Newton's; the second mean is about the first, as sums are float32.
_BEFORE = ("mean", "mean", "spread")
#: Of a 95 % interval.
_WIDTH = 1.959963984540054


class Columns(Message):
    """Coordinator -> party: what the run regresses on; once."""

    family: ClassVar[str] = "survival"

    columns: tuple[str, ...]


class Sizes(Message):
    """Party -> coordinator: powers of ten that its columns and their spreads come up to."""

    family: ClassVar[str] = "survival"

    size_F: Doubles
    spread_F: Doubles


class Step(Message):
    """Coordinator -> party: sums at these coefficients of the standardised columns.

    ``what`` is "mean" (of the columns), "spread" (about the means), or "risk".
    """

    family: ClassVar[str] = "survival"

    number: int
    what: str
    centre_F: Doubles
    scale_F: Doubles
    beta_F: Doubles


class Summed(Message):
    """Party -> coordinator: its sums are ready; or one row would outweigh all others in them."""

    family: ClassVar[str] = "survival"

    fits: bool


class Member(survival.Member):
    """A party that counts its rows, and sums over risk sets."""

    saved: ClassVar[tuple[str, ...]] = (*survival.Member.saved, "columns", "digest", "shared")
    columns: tuple[str, ...] = ()

    def sizes(self) -> dict[str, int]:
        """P; F, once columns are named."""
        return {**super().sizes(), **({"F": len(self.columns)} if self.columns else {})}

    @handles(most=1)
    def regress(self, ask: Columns) -> Sizes:
        """Take these columns, for the whole run."""
        if self.data.section.private is not None or self.local.budget is not None:
            raise PartyError(
                self.name,
                "has noise or a budget (policy.privacy), and sums of Cox regression have none; "
                'leave it out, or ask for method = "kaplan-meier"',
            )
        if not 0 < len(set(ask.columns)) == len(ask.columns) <= MOST_COLUMNS:
            raise PartyError(
                self.name, f"was asked for no, repeated or over {MOST_COLUMNS} columns"
            )
        if self.columns not in ((), ask.columns):
            raise PartyError(self.name, "sums the same columns in all of a run")
        self._take(ask.columns)
        about_NF = self.x_NF - self.x_NF.mean(axis=0)
        return Sizes(*(torch.from_numpy(_powers(each)) for each in (self.x_NF, about_NF)))

    @handles(most=len(_BEFORE) + _MOST_STEPS)
    def step(self, ask: Step) -> Summed:
        """Sum; the sums leave as counts do, by ``count`` or ``share``."""
        if not self.columns:
            raise PartyError(self.name, "was asked for sums before columns were named")
        with np.errstate(all="ignore"):
            z_NF = (self.x_NF - ask.centre_F.numpy()) / ask.scale_F.numpy()
            e_N = np.exp(z_NF @ ask.beta_F.numpy())
            if ask.what != "risk":
                e_N, powers_NF = np.ones(len(z_NF)), z_NF ** (2 if ask.what == "spread" else 1)
                sums = np.concatenate([[len(z_NF)], powers_NF.sum(axis=0)])
            else:
                sums = risk_sums(self.signed_N, z_NF, self.times_K, e_N)
        if not (np.abs(sums) < _LARGEST).all() or e_N.max() > e_N.sum() / 2:
            return Summed(False)
        self.counts_P, self.shared = torch.from_numpy(sums), False
        told = [self.agreed, ask.what, str(ask.number), *self.columns]
        told += [str(each.tolist()) for each in (ask.centre_F, ask.scale_F, ask.beta_F)]
        self.digest = hashlib.sha256("\n".join(told).encode()).hexdigest()
        return Summed(True)

    def restore(self, state: State) -> None:
        """Go on from there."""
        super().restore(state)
        if self.columns:
            self._take(self.columns)

    def _take(self, columns: tuple[str, ...]) -> None:
        self.signed_N, self.x_NF = self.data.numbers(columns)
        self.columns = columns


def _powers(x_NF: np.ndarray) -> np.ndarray:
    """(F,) the power of ten that is not below the root mean square; -300 of zeros."""
    largest_F = np.maximum(np.abs(x_NF).max(axis=0), 1e-300)
    means_F = ((x_NF / largest_F) ** 2).mean(axis=0)
    powers_F: np.ndarray = np.ceil(np.log10(largest_F) + np.log10(np.maximum(means_F, 1e-300)) / 2)
    return powers_F.clip(-300, 300)


def risk_sums(
    signed_N: np.ndarray, z_NF: np.ndarray, times_K: np.ndarray, e_N: np.ndarray
) -> np.ndarray:
    """(P,) events of each interval, the sum of x over all events, and A, B, C's upper triangles; e
    is e^(x b)."""
    size, (rows, columns) = len(times_K), np.triu_indices(z_NF.shape[1])
    interval_N = np.searchsorted(times_K, np.abs(signed_N), side="left")
    came_N = ~np.signbit(signed_N) & (interval_N < size)
    e_N1 = e_N[:, None]
    each_NQ = np.hstack([e_N1, e_N1 * z_NF, e_N1 * z_NF[:, rows] * z_NF[:, columns]])
    left_KQ = np.zeros((size + 1, each_NQ.shape[1]))
    np.add.at(left_KQ, interval_N, each_NQ)
    at_risk_KQ = left_KQ[::-1].cumsum(axis=0)[::-1][:size]
    events_K = np.bincount(interval_N[came_N], minlength=size)
    return np.concatenate([events_K, z_NF[came_N].sum(axis=0), at_risk_KQ.ravel()])


class Driver(survival.Driver):
    """Newton's steps on the partial likelihood of all rows."""

    family: ClassVar[str] = "survival"  # what its parties save under
    saved: ClassVar[tuple[str, ...]] = (*survival.Driver.saved, "columns", "sums", "beta", "done")

    def __init__(self, settings: Settings, *, seed: int) -> None:
        super().__init__(settings, seed=seed)
        if not settings.columns:
            raise ConfigError(
                'method = "cox" needs columns = [...] in [survival]: numbers that all parties have'
            )
        if settings.private is not None or settings.group is not None:
            raise ConfigError('private and group are for method = "kaplan-meier"; leave them out')
        self.columns, self.done = settings.columns, False
        if not len(set(self.columns)) == len(self.columns) <= MOST_COLUMNS:
            raise ConfigError(
                f"columns in [survival] differ and are {MOST_COLUMNS} at most, got "
                f"{list(self.columns)}"
            )
        self.num_rounds = len(_BEFORE) + _MOST_STEPS
        num = len(self.columns)
        self.sums: dict[str, Any] = {"centre": [0.0] * num, "step": [0.0] * num, "fits": -1e300}
        self.beta = [0.0] * num

    def begin(self, federation: Federation) -> None:
        """Agree on intervals, and how large columns are."""
        super().begin(federation)
        sizes = federation.ask(Columns(self.columns), Sizes, F=len(self.columns)).or_raise()
        for key in ("size", "spread"):
            powers = [getattr(each, f"{key}_F").clip(-300, 300) for each in sizes.values()]
            self.sums[key] = (10.0 ** torch.stack(powers).amax(dim=0)).tolist()
        self.sums["scale"] = self.sums["size"]

    def ended(self, number: int) -> bool:
        """Whether coefficients move no more."""
        return self.done

    def round(self, number: int, federation: Federation) -> Round:
        """Means, spreads, then a step of Newton's."""
        what = _BEFORE[number - 1] if number <= len(_BEFORE) else "risk"
        vectors = (self.sums["centre"], self.sums["scale"], self.beta)
        doubles = (torch.tensor(each, dtype=torch.float64) for each in vectors)
        answers = federation.ask(Step(number, what, *doubles), Summed).or_raise()
        if unfit := [party for party, each in answers.items() if not each.fits]:
            self._shorter(unfit)
            return Round(metrics={"steps": number})
        num, size = len(self.columns), len(self.times)
        cells = 1 + num if what != "risk" else size + num + size * _width(num)
        sums = self.summed(cells, federation).numpy()
        if what == "risk":
            self._newton(sums)
        elif not sums[0] > 0.5:
            raise TrainingError("sums of the parties are no counts; a party does not add up right")
        else:
            self._standardise(what, sums[1:] / sums[0], round(sums[0]))
        return Round(metrics={"steps": number})

    def _standardise(self, what: str, mean: np.ndarray, rows: int) -> None:
        scale = np.array(self.sums["scale"])
        if what == "mean":
            centre = np.array(self.sums["centre"]) + mean * scale
            self.sums |= {"rows": rows, "centre": centre.tolist(), "scale": self.sums["spread"]}
            return
        found = scale * np.sqrt(np.clip(mean, 0, None))
        if (constant := found <= 1e-12 * np.array(self.sums["size"])).any():
            name = self.columns[int(constant.argmax())]
            raise ConfigError(f"column {name!r} is the same in all rows; leave it out")
        self.sums["scale"] = found.tolist()

    def _shorter(self, unfit: list[str]) -> None:
        """Half of the last step, which has been too long for these parties."""
        step = np.array(self.sums["step"]) / 2
        if np.abs(step).max() < 1e-3:
            raise TrainingError(
                f"at {', '.join(unfit)} one row outweighs all others: values of a column lie far "
                "from the rest; leave the column out, or give its logarithm"
            )
        self.sums["step"] = step.tolist()
        self.beta = (np.array(self.beta) - step).tolist()

    def _newton(self, sums: np.ndarray) -> None:
        size, num = len(self.times), len(self.columns)
        events, of_events, rest = np.split(sums, [size, size + num])
        events_K, at_risk = np.round(events), rest.reshape(size, -1)
        keep = events_K > 0
        if not keep.any():
            raise TrainingError("no event has come by the last time; give later times")
        events, at_risk = events_K[keep], at_risk[keep]
        a, b, c = np.split(at_risk, [1, 1 + num], axis=1)
        if not (a > 0).all():
            raise TrainingError("sums of the parties are no counts; a party does not add up right")
        fits = float(of_events @ np.array(self.beta) - (events * np.log(a[:, 0])).sum())
        long = np.abs(self.sums["step"]).max() > 1e-3  # shorter ones drown in float32
        if long and fits < self.sums["fits"] - 1e-6 * abs(fits):
            self._shorter(list(self.parties))
            return
        mean = b / a
        gradient = of_events - (events[:, None] * mean).sum(axis=0)
        second = np.zeros((num, num))
        second[np.triu_indices(num)] = (events[:, None] * c / a).sum(axis=0)
        second = second + np.triu(second, 1).T - (events[:, None] * mean).T @ mean
        if not np.linalg.cond(second) < 1e8:
            raise TrainingError("columns are functions of each other, or decide all; leave one out")
        step = np.clip(np.linalg.solve(second, gradient), -_LONGEST, _LONGEST)
        hazards = np.zeros(size)
        hazards[keep] = events / a[:, 0]
        self.sums |= {
            "events": events_K.tolist(),
            "errors": np.sqrt(np.clip(np.diag(np.linalg.inv(second)), 0, None)).tolist(),
            "hazards": np.cumsum(hazards).tolist(),
            "fits": fits,
            "step": step.tolist(),
        }
        self.done = bool(np.abs(step).max() < _CLOSE)
        if not self.done:
            self.beta = (np.array(self.beta) + step).tolist()
        if np.abs(self.beta).max() > _ENDLESS:
            name = self.columns[int(np.abs(self.beta).argmax())]
            raise TrainingError(
                f"the coefficient of {name!r} grows without end: it decides when the event comes; "
                "leave it out"
            )

    def result(self) -> dict[str, Any]:
        """Coefficients with their errors and limits, and the baseline; JSON-ready."""
        from scipy.special import ndtr

        if not self.done:
            raise TrainingError(
                f"coefficients still move after {_MOST_STEPS} steps: a column may decide when the "
                "event comes, or be the same in all rows but a few; leave some out"
            )
        scale = np.array(self.sums["scale"])
        coefficients, errors = np.array(self.beta) / scale, np.array(self.sums["errors"]) / scale
        p = 2 * ndtr(-np.abs(coefficients / errors))
        with np.errstate(over="ignore"):  # of a column in a unit that is far too large
            ratios = np.nan_to_num(np.exp(coefficients))
            limits = np.exp(coefficients[:, None] + np.outer(errors, [-_WIDTH, _WIDTH]))
            limits = np.nan_to_num(limits)
        listed = zip(self.columns, coefficients, errors, ratios, limits, p, strict=True)
        return {
            "parties": list(self.parties),
            "rows": self.sums["rows"],
            "events": int(sum(self.sums["events"])),
            "coefficients": [
                {
                    "column": name, "coefficient": float(value), "error": float(error),
                    "hazard_ratio": float(ratio), "low": float(low), "high": float(high),
                    "p": float(chance),
                }
                for name, value, error, ratio, (low, high), chance in listed
            ],
            "baseline": self._baseline(),
        }  # fmt: skip

    def _baseline(self) -> dict[str, Any]:
        """The cumulative hazard at the means, by ends of intervals with ``least`` events or none;
        means and spreads."""
        events_K = np.array(self.sums["events"])
        none = np.zeros_like(events_K)
        came = Counts(("all",), np.array(self.times), events_K[None], none[None], none[:1])
        ends = came.merged(self.settings.least).times_K
        hazards = np.array(self.sums["hazards"])[np.isin(self.times, ends)]
        return {
            "times": ends.tolist(),
            "hazards": hazards.tolist(),
            "at": dict(zip(self.columns, self.sums["centre"], strict=True)),
            "spread": dict(zip(self.columns, self.sums["scale"], strict=True)),
        }


def _width(num: int) -> int:
    """Numbers of a risk set."""
    return 1 + num + num * (num + 1) // 2
