"""DP-SGD of what the label owner keeps: its encoder and head say little of each of its rows.

Abadi et al. 2016, as in ``privacy/steps.py``, for APFed with and without partners. Of Eq. (9) a
row's part is cut to a length, with what partners returned for its code: they move the row's
gradient by J_i^T r_i, linear in r_i, so that one row's loss is

    l_i + N' sum_p lambda_p <r_i^p, h_i>        N': rows of the batch

What a partner returns for one row follows from the codes of others, and from all that it learned
of codes before. Codes that leave noised (``codes`` with ``clip`` and ``noise``) are counted
releases of their own; what comes of them costs nothing more, and the two add up (Renyi,
``accountant.py``). Without that noise nothing could be guaranteed of a model that partners helped
with, so it is refused.

Not counted: means and scales of columns, weights of classes, a threshold chosen on held-out rows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dovetail.errors import ConfigError
from dovetail.federated import Local
from dovetail.federated.party import SavedAttributes
from dovetail.methods.apfed.networks import SoloNetwork
from dovetail.methods.apfed.unify import Gradients, Help, TradeOff, Unify, weight_of
from dovetail.methods.common_rows import Targets
from dovetail.models import RandomStream, network_input
from dovetail.privacy import Stepping
from dovetail.privacy.accountant import epsilon
from dovetail.settings.privacy import PrivateSteps, Release

_log = logging.getLogger(__name__)

#: Variants that train by DP-SGD where ``apfed.private`` is set.
VARIANTS_WITH_PRIVATE = ("apfed-mixed", "apfed-r", "apfed-c", "alone", "pooled")


def check_variant(method: str, *, where: str) -> None:
    """Refuse a method whose model is not trained by DP-SGD.

    Raises:
        ConfigError: what can be, and what to do.
    """
    if method not in VARIANTS_WITH_PRIVATE:
        raise ConfigError(
            f"{where}: apfed.private trains one network by DP-SGD, and the model of {method!r} is "
            "another, which may be of boosted trees or be chosen on rows: no epsilon could be "
            "told of it; leave private out, or write method = one of "
            f"{', '.join(VARIANTS_WITH_PRIVATE[:4])}"
        )


class _Whole(nn.Module):
    """Rows -> codes, what partners that contrast were sent of them, and outputs."""

    def __init__(self, encoder: nn.Module, projection: nn.Module | None, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.projection, self.head = encoder, projection, head

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        code_BD = self.encoder(x).flatten(1)
        projected = code_BD if self.projection is None else self.projection(code_BD)
        return code_BD, projected, self.head(code_BD)


class _Coding(nn.Module):
    """The network without outputs: no noise is put on a head that these rows do not move."""

    def __init__(self, encoder: nn.Module, projection: nn.Module | None) -> None:
        super().__init__()
        self.encoder, self.projection = encoder, projection

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code_BD = self.encoder(x).flatten(1)
        return code_BD, code_BD if self.projection is None else self.projection(code_BD)


class Solo(SavedAttributes, Unify):
    """The label owner's steps by DP-SGD, and what its rows have spent.

    Args:
        steps: the setting.
        codes: how its codes leave; None: as they are.
        x: (N, ...) all columns, by row.
        targets: the labels.
        solo: its networks.
        random: dropout's stream.
        local: its context.

    Raises:
        ConfigError: a network of which a row has no gradient of its own.
    """

    saved = ("_stepping", "_stopped")

    def __init__(
        self,
        steps: PrivateSteps,
        codes: Release | None,
        x: Tensor,
        targets: Targets,
        solo: SoloNetwork,
        random: RandomStream,
        local: Local,
    ) -> None:
        networks = solo.networks
        if any(isinstance(each, _BatchNorm) for each in networks.modules()):
            raise ConfigError(
                f"party {local.name!r}: private needs each row's own gradient, and its network "
                "normalises over a batch; take another encoder, or leave private out"
            )
        self.steps, self._codes = steps, codes or Release()
        self._x, self._targets, self._networks = x, targets, networks
        self._random, self._local, self._party = random, local, local.name
        self._whole = _Whole(solo.encoder, solo.projection, solo.head)
        self._coding = _Coding(solo.encoder, solo.projection)
        self._alone = _Whole(solo.encoder, None, solo.head)
        # The budget is of weights and codes together, and is held by ``pays``.
        uncapped = steps.model_copy(update={"epsilon": None})
        rng = local.generator("private steps")
        self._stepping = Stepping(uncapped, local.name, len(x), rng)
        self._stopped = False

    def open(self, parties: Sequence[str], trade_off: TradeOff) -> None:
        """Refuse partners whose answers follow from codes that are not counted.

        Raises:
            ConfigError: what to set.
        """
        weights = [weight_of(trade_off, party) for party in parties]
        if any(weights) and not self._codes.noise:
            raise ConfigError(
                f"party {self._party!r}: private counts what its model says of a row, and what a "
                "partner learned of a row's code comes back in its answers about others; set "
                "codes = { clip = ..., noise = ... } below [apfed], too"
            )

    def follow(self, step: Gradients) -> None:
        """Noised gradients stand at the networks' parameters."""
        for weight in self._networks.parameters():
            weight.grad = None
        labels_B = self._targets.of(step.rows_B)
        x_B = network_input(self._x[step.rows_B], labels_B.device)
        with self._random:
            self._step(step.rows_B, x_B, labels_B, step.helps)

    def _step(self, rows_B: Tensor, x_B: Tensor, labels_B: Tensor, helps: Sequence[Help]) -> None:
        asked = [each.rows_B for each in helps]
        rows_A = torch.cat(asked).unique() if asked else rows_B[:0]
        together = bool(torch.isin(rows_A, rows_B).all())
        rows_P = rows_B if together else rows_A
        pulls = [self._pull(rows_P, helps, projected=each) for each in (False, True)]
        if together and helps:
            self._stepping.gradient(self._whole, self._both, rows_B, x_B, labels_B, *pulls)
            return
        self._stepping.gradient(self._alone, self._task_loss, rows_B, x_B, labels_B)
        if not len(rows_A):
            return
        # Of a batch of its own: a row that stands in both moves two sums, and is counted twice.
        held = [(w, w.grad) for w in self._alone.parameters() if w.grad is not None]
        for weight, _ in held:
            weight.grad = None
        x_A = network_input(self._x[rows_A], x_B.device)
        self._stepping.gradient(self._coding, self._pulled, rows_A, x_A, *pulls)
        for weight, gradient in held:
            weight.grad = gradient if weight.grad is None else weight.grad + gradient

    @staticmethod
    def _pull(rows_P: Tensor, helps: Sequence[Help], *, projected: bool) -> Tensor:
        """(P, D) what partners returned for these rows, times P: a mean's sum again."""
        matched = [
            (each.rows_B, each.weight * each.gradient_BD)
            for each in helps
            if each.projected is projected
        ]
        if not matched:
            return torch.zeros(len(rows_P), 0)
        pull = torch.zeros(len(rows_P), matched[0][1].shape[1], device=matched[0][1].device)
        order = rows_P.argsort()
        for rows, gradient in matched:
            indices = order[torch.searchsorted(rows_P[order], rows)]
            pull.index_add_(0, indices.to(pull.device), gradient)
        return pull * len(rows_P)

    def _task_loss(self, call: Any, x: Tensor, label: Tensor) -> Tensor:
        return self._targets.loss_of(call(x)[2], label)

    def _pulled(self, call: Any, x: Tensor, pull: Tensor, projected: Tensor) -> Tensor:
        return self._along(call(x), pull, projected)

    def _both(self, call: Any, x: Tensor, label: Tensor, pull: Tensor, projected: Tensor) -> Tensor:
        outputs = call(x)
        return self._targets.loss_of(outputs[2], label) + self._along(outputs, pull, projected)

    def _along(self, outputs: Sequence[Tensor], pull: Tensor, projected: Tensor) -> Tensor:
        """<r, h>, of codes and of what they are projected to, as long as they left."""
        total = outputs[0].sum() * 0
        clip = self._codes.clip
        for code, each in zip(outputs[:2], (pull, projected), strict=True):
            if each.shape[-1]:
                length = torch.linalg.vector_norm(code, dim=1, keepdim=True)
                short = code if clip is None else code * (clip / length.clamp(min=clip))
                total = total + (short * each).sum()
        return total

    def pays(self, visits: int, sent: int) -> bool:
        """Whether an epoch is paid for that visits a row, and sends its code, so often."""
        steps = self.steps
        if steps.epsilon is None or self._epsilon(visits, sent) <= steps.epsilon:
            return True
        if not self._stepping.report()["releases"]:
            raise ConfigError(
                f"party {self._party!r}: the first epoch alone costs epsilon = "
                f"{self._epsilon(visits, sent):.3g} (delta = {steps.delta:g}), above "
                f"private.epsilon = {steps.epsilon:g}; raise private.noise or codes.noise, or the "
                "budget"
            )
        if not self._stopped:
            self._stopped = True
            _log.warning(
                "party %r: another epoch would take its model above its budget of epsilon = %g "
                "(delta = %g), of which %.3g is spent; training ends here",
                self._party, steps.epsilon, steps.delta, self._epsilon(),
            )  # fmt: skip
        return False

    def _epsilon(self, visits: int = 0, sent: int = 0) -> float:
        """Epsilon of the weights and of the codes sent to partners, after so many more of a row.

        The two add up at every order; the row that was visited most need not be the one whose
        codes were sent most, so that the sum is of no row less than it is.
        """
        precision = (self._stepping.report()["releases"] + visits) / (self.steps.noise / 2) ** 2
        if self._codes.noise:
            before = sum(each["releases"] for each in self._local.spent())
            precision += (before + sent) / (self._codes.noise / 2) ** 2
        return epsilon(precision, 1.0, self.steps.delta)

    def report(self) -> dict[str, Any]:
        """Epsilon, delta, releases, whether it is stopped; JSON-ready."""
        return {**self._stepping.report(), "epsilon": self._epsilon(), "stopped": self._stopped}
