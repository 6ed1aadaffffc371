"""Cox regression over parties, by sums: hazard ratios of all rows in one place.

Cox: "Regression Models and Life-Tables", JRSS B 34 (1972); Breslow: discussion of it, for ties and
the baseline; Lu et al.: "WebDISCO", JAMIA 22 (2015), for the sums that a site gives.

    A_k = sum_i r_ik e^(x_i b)    B_k = sum_i r_ik x_i e^(x_i b)
    C_k = sum_i r_ik x_i x_i' e^(x_i b)
    gradient of the partial likelihood   sum_k E_k - d_k B_k / A_k
    its second derivative, less          sum_k d_k (C_k / A_k - (B_k / A_k) (B_k / A_k)')
    cumulative baseline hazard           H(t_k) = sum_{j<=k} d_j / A_j               Breslow

r says that a row is at risk in interval k, d_k how many events it has, E_k is the sum of x over
them. Newton's steps are the coordinator's; each asks for new sums, under the masks of
``secret_mean``, so what it learns are totals of all parties. With as many intervals as times these
are the pooled estimates (Breslow's ties), but for float32 sums. They say more than counts: of two
neighbouring intervals the difference of A, B and C is of the rows that left between them. So a
party's ``min_events`` matters, and who noises its counts, or has a budget, takes no part.

Letters: N rows, F columns, K intervals, P = 2 K + F + K F + K F (F + 1) / 2 sums.
"""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from scipy.stats import norm

from dovetail.errors import ConfigError, PartyError, TrainingError
from dovetail.federated import Federation, Round, handles
from dovetail.methods import survival
from dovetail.methods.survival import Ready, Settings
from dovetail.network import Doubles, Message

#: Newton's steps are over where no coefficient moves by more; of columns of spread 1.
_CLOSE, _MOST_STEPS, _LONGEST = 1e-5, 25, 2.0
#: Of a 95 % interval.
_WIDTH = 1.959963984540054


class Step(Message):
    """Coordinator -> party: sums at these coefficients of the standardised columns.

    ``what`` is "mean" (of the columns), "spread" (about the means), or "risk".
    """

    family: ClassVar[str] = "survival"

    number: int
    what: str
    columns: tuple[str, ...]
    centre_F: Doubles
    scale_F: Doubles
    beta_F: Doubles


class Member(survival.Member):
    """A party that counts its rows, and sums over risk sets."""

    @handles(most=_MOST_STEPS + 5)
    def step(self, ask: Step) -> Ready:
        """Sum; the sums leave as counts do, by ``count`` or ``share``."""
        if self.data.section.private is not None or self.local.budget is not None:
            raise PartyError(
                self.name,
                "has noise or a budget (policy.privacy), and sums of Cox regression have none; "
                'leave it out, or ask for method = "kaplan-meier"',
            )
        signed_N, x_NF = self.data.numbers(ask.columns)
        z_NF = (x_NF - ask.centre_F.numpy()) / ask.scale_F.numpy()
        if ask.what == "mean":
            sums = np.concatenate([[len(z_NF)], z_NF.sum(axis=0)])
        elif ask.what == "spread":
            sums = np.concatenate([[len(z_NF)], (z_NF**2).sum(axis=0)])
        else:
            sums = risk_sums(signed_N, z_NF, self.times_K, ask.beta_F.numpy())
        self.counts_P, self.shared = torch.from_numpy(sums), False
        told = [ask.what, str(ask.number), *ask.columns]
        told += [str(each.tolist()) for each in (ask.centre_F, ask.scale_F, ask.beta_F)]
        self.digest = hashlib.sha256("\n".join(told).encode()).hexdigest()
        return Ready(0.0)


def risk_sums(
    signed_N: np.ndarray, z_NF: np.ndarray, times_K: np.ndarray, beta_F: np.ndarray
) -> np.ndarray:
    """(P,) events of each interval, A, B, C's upper triangles, and the sum of x over all events."""
    size, (rows, columns) = len(times_K), np.triu_indices(z_NF.shape[1])
    interval_N = np.searchsorted(times_K, np.abs(signed_N), side="left")
    came_N = ~np.signbit(signed_N) & (interval_N < size)
    e_N1 = np.exp(np.clip(z_NF @ beta_F, -30, 30))[:, None]
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
        self.columns, self.num_rounds, self.done = settings.columns, _MOST_STEPS + 2, False
        num = len(self.columns)
        self.sums: dict[str, Any] = {"centre": [0.0] * num, "scale": [1.0] * num, "rows": 0}
        self.beta = [0.0] * num

    def ended(self, number: int) -> bool:
        """Whether coefficients move no more."""
        return self.done

    def round(self, number: int, federation: Federation) -> Round:
        """Means, spreads, then a step of Newton's."""
        what: Literal["mean", "spread", "risk"] = "risk"
        if number <= 2:
            what = "mean" if number == 1 else "spread"
        vectors = (self.sums["centre"], self.sums["scale"], self.beta)
        doubles = (torch.tensor(each, dtype=torch.float64) for each in vectors)
        federation.ask(Step(number, what, self.columns, *doubles), Ready).or_raise()
        num, size = len(self.columns), len(self.times)
        cells = 1 + num if what != "risk" else size + num + size * _width(num)
        sums = self.summed(cells, federation).numpy()
        if what == "mean":
            self.sums |= {"rows": round(sums[0]), "centre": (sums[1:] / sums[0]).tolist()}
        elif what == "spread":
            scale = np.sqrt(sums[1:] / sums[0])
            if (scale < 1e-9).any():
                constant = self.columns[int(scale.argmin())]
                raise ConfigError(f"column {constant!r} is the same in all rows; leave it out")
            self.sums["scale"] = scale.tolist()
        else:
            self._newton(sums)
        return Round(metrics={"steps": number})

    def _newton(self, sums: np.ndarray) -> None:
        size, num = len(self.times), len(self.columns)
        events, of_events, rest = np.split(sums, [size, size + num])
        events, at_risk = np.round(events), rest.reshape(size, -1)
        keep = events > 0
        events, at_risk = events[keep], at_risk[keep]
        a, b, c = np.split(at_risk, [1, 1 + num], axis=1)
        mean = b / a
        gradient = of_events - (events[:, None] * mean).sum(axis=0)
        second = np.zeros((num, num))
        second[np.triu_indices(num)] = (events[:, None] * c / a).sum(axis=0)
        second = second + np.triu(second, 1).T - (events[:, None] * mean).T @ mean
        if np.linalg.cond(second) > 1e8:
            raise TrainingError("columns are functions of each other, or decide all; leave one out")
        step = np.clip(np.linalg.solve(second, gradient), -_LONGEST, _LONGEST)
        hazards = np.zeros(size)
        hazards[keep] = events / a[:, 0]
        self.sums |= {
            "events": int(events.sum()),
            "errors": np.sqrt(np.diag(np.linalg.inv(second))).tolist(),
            "hazards": np.cumsum(hazards).tolist(),
        }
        self.done = bool(np.abs(step).max() < _CLOSE)
        if not self.done:
            self.beta = (np.array(self.beta) + step).tolist()

    def result(self) -> dict[str, Any]:
        """Coefficients with their errors and limits, and the baseline; JSON-ready."""
        if not self.done:
            raise TrainingError(
                f"coefficients still move after {_MOST_STEPS} steps; leave some out"
            )
        scale = np.array(self.sums["scale"])
        coefficients, errors = np.array(self.beta) / scale, np.array(self.sums["errors"]) / scale
        p = 2 * norm.sf(np.abs(coefficients / errors))
        limits = np.exp(coefficients[:, None] + np.outer(errors, [-_WIDTH, _WIDTH]))
        listed = zip(self.columns, coefficients, errors, limits, p, strict=True)
        return {
            "parties": list(self.parties),
            "rows": self.sums["rows"],
            "events": self.sums["events"],
            "coefficients": [
                {
                    "column": name, "coefficient": float(value), "error": float(error),
                    "hazard_ratio": float(np.exp(value)), "low": float(low), "high": float(high),
                    "p": float(chance),
                }
                for name, value, error, (low, high), chance in listed
            ],
            "baseline": {
                "times": list(self.times),
                "hazards": self.sums["hazards"],
                "at": dict(zip(self.columns, self.sums["centre"], strict=True)),
            },
        }  # fmt: skip


def _width(num: int) -> int:
    """Numbers of a risk set."""
    return 1 + num + num * (num + 1) // 2
