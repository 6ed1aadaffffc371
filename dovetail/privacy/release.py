"""Release of a party's rows, bounded and noised as it has set: codes, or gradients.

    clip      each row is at most so long (Euclidean); a longer one is scaled down
    keep      of each row only this share of the largest numbers is sent, the others as zeros
    sign      of each number the sign alone, at one size for the row
    noise     Gaussian, of this deviation in multiples of ``clip``
    epsilon   what one sample may cost towards one receiver; then nothing more is sent to it

With ``clip`` and ``noise`` a row's releases are counted (``accountant.py``): replacing a row moves
a release by at most 2 clip, so the noise is noise / 2 of that sensitivity. ``keep`` and ``sign``
alone have no guarantee. Noise comes after them, so that they cost no epsilon.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.models.randomness import generator
from dovetail.privacy.accountant import Accountant, most_releases
from dovetail.settings.privacy import Release

_log = logging.getLogger(__name__)


class Releasing:
    """Applies a ``Release`` to what goes to several receivers, and counts it.

    Args:
        release: the setting.
        what: what is released, in log lines.
        rng: draws the noise of a simulation, which repeats; None, at a site: the system does, so
            that no noise is drawn twice, whatever state the site goes back to.
        before: what has released of the same before, in this run; what it counted stays counted.
    """

    def __init__(
        self,
        release: Release,
        what: str,
        rng: torch.Generator | None,
        before: Releasing | None = None,
    ) -> None:
        self.release = release
        self._what = what
        self._repeats = rng is not None
        if rng is None:
            rng = generator(0, what, secret=secrets.token_bytes(32))
        self._rng = rng
        self._accounts: dict[str, Accountant] = {}
        self._stopped: set[str] = set()
        self._least = 0
        if before is not None:
            self._accounts = before._accounts
            self._stopped = before._stopped
            self._least = before._least

    def allowed(self, receiver: str, samples_B: Tensor, *, times: int = 1) -> bool:
        """Whether another release of these samples is within the budget."""
        release = self.release
        if release.epsilon is None:
            return True
        most = most_releases(release.epsilon, release.noise / 2, release.delta)
        if self._account(receiver).after(samples_B, times) <= most:
            return True
        if receiver not in self._stopped:
            self._stopped.add(receiver)
            _log.warning(
                "%s to %r: the budget of epsilon = %g (delta = %g) is spent after %d releases of a "
                "sample; nothing more is sent to it, and training goes on without it",
                self._what, receiver, release.epsilon, release.delta,
                self._account(receiver).largest(),
            )  # fmt: skip
        return False

    def __call__(
        self, receiver: str, samples_B: Tensor, rows_BD: Tensor, *, times: int = 1
    ) -> Tensor:
        """These rows as they may leave; gradients flow back through it.

        Args:
            receiver: for whom they are.
            samples_B: whose rows they are.
            times: how many of the rows one sample moves (Gaussian noise then counts as often).
        """
        release = self.release
        rows = rows_BD
        if release.keep is not None:
            num = max(1, round(release.keep * rows.shape[1]))
            kept = torch.zeros_like(rows, dtype=torch.bool)
            kept.scatter_(1, rows.detach().abs().topk(num, dim=1).indices, value=True)
            rows = rows * kept
        if release.sign:
            rows = rows.sign() * rows.abs().mean(dim=1, keepdim=True)
        if release.clip is not None:
            length_B1 = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            rows = rows * (release.clip / length_B1.clamp(min=release.clip))
        if release.noise:
            assert release.clip is not None
            # Whether a row can be computed is not told either: a receiver may have made it so.
            rows = torch.where(rows.isfinite().all(dim=1, keepdim=True), rows, 0.0)
            drawn = torch.randn(rows.shape, generator=self._rng).to(rows.device)
            rows = rows + release.noise * release.clip * drawn
            self._account(receiver).add(samples_B, times)
        return rows

    def or_zeros(self, receiver: str, samples_B: Tensor, rows_BD: Tensor) -> Tensor:
        """These rows as they may leave; zeros, which say nothing, once the budget is spent."""
        if self.allowed(receiver, samples_B):
            return self(receiver, samples_B, rows_BD)
        return torch.zeros_like(rows_BD)

    def cost(self, receiver: str) -> dict[str, Any] | None:
        """Epsilon and delta of the sample that this receiver knows most of; None without noise."""
        account = self._accounts.get(receiver)
        return None if account is None else account.report()

    def spent(self, what: str, receiver: str) -> list[dict[str, Any]]:
        """Privacy costs of releases to one receiver, of several tables, as a run reports them."""
        worst = max(self.report().values(), key=lambda each: each["epsilon"], default=None)
        return [] if worst is None else [{"to": receiver, "what": what, **worst}]

    def report(self) -> dict[str, dict[str, Any]]:
        """Receiver -> epsilon, delta, releases, whether it is stopped; nothing without noise."""
        return {
            name: {**account.report(), "stopped": name in self._stopped}
            for name, account in self._accounts.items()
        }

    def _account(self, receiver: str) -> Accountant:
        made = Accountant(
            self.release.noise / 2,
            self.release.delta,
            torch.zeros(0, dtype=torch.int64),
            self._least,
        )
        return self._accounts.setdefault(receiver, made)

    def at_least(self, releases: int) -> None:
        """Every sample was released so often to everybody, or more: a state that is older."""
        self._least = max(self._least, releases)
        for account in self._accounts.values():
            account.at_least(releases)

    def state(self) -> dict[str, Any]:
        return {
            "random": self._rng.get_state() if self._repeats else None,
            "accounts": {name: account.state() for name, account in self._accounts.items()},
            "stopped": sorted(self._stopped),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there; what was counted here since, and is not in the state, stays counted."""
        if self._repeats and state["random"] is not None:
            self._rng.set_state(state["random"])
        self._stopped |= set(state["stopped"])
        for name, saved_account in state["accounts"].items():
            account = self._account(name)
            count_S = account.count_S
            account.restore(saved_account)
            num = max(len(account.count_S), len(count_S))
            both = (account.count_S, count_S)
            counts = [F.pad(each, (0, num - len(each)), value=account.least) for each in both]
            account.count_S = torch.maximum(*counts)


def released_to(released: Releasing | None, what: str) -> list[dict[str, Any]]:
    """Privacy costs of noised releases, to each of their receivers."""
    accounts = {} if released is None else released.report()
    return [{"to": receiver, "what": what, **each} for receiver, each in accounts.items()]


def spent_text(account: Mapping[str, Any]) -> str:
    """Text on the cost of one sender's releases to one receiver, as ``result.json`` has it.

    >>> spent_text({"from": "a", "to": "b", "what": "codes", "epsilon": 4.2, "delta": 1e-05,
    ...             "releases": 7, "stopped": True})
    'codes of a to b: epsilon 4.2 (delta 1e-05) after 7 releases; its budget is spent'
    """
    return (
        f"{account['what']} of {account['from']} to {account['to']}: epsilon "
        f"{account['epsilon']:.3g} "
        f"(delta {account['delta']:g}) after {account['releases']} releases"
        + ("; its budget is spent" if account["stopped"] else "")
    )


def randomised_response(
    labels_N: Tensor, num_classes: int, epsilon: float, rng: torch.Generator
) -> Tensor:
    """Labels that say little of each row's own: epsilon-label-DP, once for a whole run.

    Warner 1965; Ghazi et al. 2021 (arXiv:2102.06062) with an even prior: a label is kept with
    probability e^eps / (e^eps + C - 1), and is else any other. Missing ones stay missing.
    """
    kept = torch.rand(len(labels_N), generator=rng) < _kept(epsilon, num_classes)
    shift = torch.randint(1, max(2, num_classes), (len(labels_N),), generator=rng)
    changed = (labels_N + shift) % num_classes
    return torch.where(kept | (labels_N < 0), labels_N, changed)


def _kept(epsilon: float, num_classes: int) -> float:
    """
    >>> round(_kept(1.0, 2), 4), round(_kept(2.0, 10), 4)
    (0.7311, 0.4509)
    """
    return float(1 / (1 + (num_classes - 1) * torch.tensor(-epsilon, dtype=torch.float64).exp()))


def distance_correlation(x_BF: Tensor, y_BD: Tensor) -> Tensor:
    """Squared distance correlation of two views of the same rows, in 0..1.

    Szekely, Rizzo, Bakirov 2007; as a penalty Vepakomma et al. 2020 (NoPeek). Cost: B^2 (F + D).
    """

    def centred(rows: Tensor) -> Tensor:
        squared = (rows.unsqueeze(1) - rows.unsqueeze(0)).pow(2).sum(dim=-1)
        distance = (squared + 1e-12).sqrt()
        return distance - distance.mean(0) - distance.mean(1, keepdim=True) + distance.mean()

    a, b = centred(x_BF.flatten(1).float()), centred(y_BD.flatten(1).float())
    spread = (a.pow(2).mean() * b.pow(2).mean()).sqrt()
    return (a * b).mean() / spread.clamp(min=1e-12)
