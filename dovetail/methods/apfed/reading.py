"""Reader of APFed's messages and those of classic vertical learning, for an audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from dovetail.methods import apfed, vertical
from dovetail.methods.apfed import distil, sealed
from dovetail.methods.facets.audited import Channel, Logits, Seen, Weights
from dovetail.methods.settings.apfed import PassiveConfig
from dovetail.network.messages import Message

#: What an attacker of APFed-C takes a partner's settings to be, how often it goes round, and by
#: how much codes may still move that it has found.
_CONTRAST, _ROUNDS, _SETTLED = PassiveConfig(), 40, 1e-3

#: An attacker of APFed-D reads so many members of the teacher; the others are of one kind.
MEMBERS = 4


class Reading:
    """APFed, -D, -S and classic vertical learning: between a label owner and its partners."""

    def __init__(self) -> None:
        self._asked: dict[str, Tensor] = {}  # partner -> samples whose codes it sent last
        self._stacks: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]]] = {}
        self._members = 1
        self._outputs = 1
        self._sent: dict[str, tuple[str, ...]] = {}  # partner -> stacks of those codes
        self._answered: dict[str, Tensor] = {}  # partner -> those codes, its own

    def __call__(
        self, driver: str, party: str, request: Message, answer: Message
    ) -> Iterable[Seen | Logits | Weights]:
        if isinstance(request, apfed.Codes) and isinstance(answer, apfed.CodeGradient):
            samples = request.samples_B
            yield Seen(Channel(party, driver, "codes"), samples, request.code_BD)
            yield Seen(Channel(driver, party, "gradients"), samples, answer.gradient_BD)
            both = torch.cat([answer.gradient_BD.cpu(), request.code_BD.detach().cpu()], dim=1)
            yield Seen(Channel(driver, party, "gradients beside its codes"), samples, both)
            behind = codes_behind(request.code_BD, answer.gradient_BD)
            if behind is not None:
                yield Seen(Channel(driver, party, "codes behind gradients"), samples, behind)
        elif isinstance(request, vertical.Encode) and isinstance(answer, vertical.Codes):
            if request.training:
                self._asked[party] = request.samples_B
                yield Seen(Channel(driver, party, "codes"), request.samples_B, answer.code_BD)
        elif isinstance(request, vertical.CodeGradient):
            samples = self._asked.pop(party)
            yield Seen(Channel(party, driver, "gradients"), samples, request.gradient_BD)
        elif isinstance(request, distil.Begin) and isinstance(answer, distil.Ready):
            self._members, self._outputs = request.members, request.num_outputs
            self._stacks[party] = request.stacks, request.stacks, answer.code_widths
            self._asked.pop(party, None)
        elif isinstance(request, distil.Encode) and isinstance(answer, distil.Codes):
            yield from self._distil(driver, party, request, answer)
        elif isinstance(request, sealed.Begin):
            channel = Channel(party, driver, "ciphertexts")
            yield Seen(channel, request.labelled_L, _sealed_view(request))

    def _distil(
        self, driver: str, party: str, request: distil.Encode, answer: distil.Codes
    ) -> Iterator[Seen | Logits]:
        """Gradients of the codes sent last; codes of a whole table when the teacher is trained."""
        if request.gradient_ND.numel() and party in self._asked:
            samples_KB = self._asked[party].reshape(self._members, -1)
            gradient = request.gradient_ND.reshape(self._members, samples_KB.shape[1], -1)
            linear = self._linear(party, gradient)
            yield from self._logits(driver, party, samples_KB, gradient)
            for samples_B, local_BD, out_BC in zip(samples_KB, gradient, linear, strict=True):
                if local_BD.shape[1] == self._width(
                    party
                ):  # a stack that stopped is no longer there
                    yield Seen(Channel(party, driver, "gradients"), samples_B, local_BD)
                yield Seen(Channel(party, driver, "output gradients"), samples_B, out_BC)
        self._asked.pop(party, None)
        if request.test:
            return
        if request.training:
            self._asked[party] = request.samples_N
            self._sent[party] = request.stacks
            self._answered[party] = answer.code_ND
        samples_KB = request.samples_N.reshape(self._members, -1)
        codes = answer.code_ND.reshape(self._members, samples_KB.shape[1], -1)
        if not request.training and bool((samples_KB == samples_KB[0]).all()):
            together = codes[:MEMBERS].permute(1, 0, 2).flatten(1)
            yield Seen(Channel(driver, party, "codes"), samples_KB[0], together)

    def _logits(
        self, driver: str, party: str, samples_KB: Tensor, gradient_KBD: Tensor
    ) -> Iterator[Logits]:
        """The owner's part of the linear stack's logits; of one output nothing is known of it."""
        if "linear" not in self._sent[party] or self._outputs < 2:
            return
        part = self._parts(party)["linear"]
        local_KBD = self._answered[party].reshape(gradient_KBD.shape)
        channel = Channel(party, driver, "logits")
        for member, samples_B in enumerate(samples_KB):
            value_BC = owner_logits(gradient_KBD[member][:, part], local_KBD[member][:, part])
            yield Logits(channel, member, samples_B, value_BC)

    def _width(self, party: str) -> int:
        _, stacks, widths = self._stacks[party]
        return sum(widths) + len(stacks) * self._outputs

    def _linear(self, party: str, gradient_KBD: Tensor) -> Tensor:
        """(K, B, C) the gradient of the outputs themselves, summed over stacks."""
        total = torch.zeros(*gradient_KBD.shape[:2], self._outputs)
        for part in self._parts(party).values():
            total += gradient_KBD[..., part]
        return total

    def _parts(self, party: str) -> dict[str, slice]:
        """Stack that was asked for last -> where its outputs stand."""
        _, stacks, widths = self._stacks[party]
        of = dict(zip(stacks, widths, strict=True))
        parts, start = {}, 0
        for name in self._sent[party]:
            start += of[name]
            parts[name] = slice(start, start + self._outputs)
            start += self._outputs
        return parts


def _sealed_view(request: sealed.Begin) -> Tensor:
    """(L, D) what a partner of APFed-S has of each labelled row: its fold, its place, and the
    coefficients at its place in the first of its ciphertexts."""
    num = len(request.labelled_L)
    folds_LK = torch.nn.functional.one_hot(request.folds_L, int(request.folds_L.max()) + 1)
    index_L1 = torch.arange(num).float()[:, None] / num
    parts = -(-num // request.block)
    value_PN = np.ascontiguousarray(request.targets_PV.numpy()[:parts]).view("<u8")
    at_L = np.arange(num)
    residues_L1 = value_PN[at_L // request.block, at_L % request.block][:, None]
    shares = torch.from_numpy(residues_L1 / 2.0**64).float()
    return torch.cat([folds_LK.float(), index_L1, shares], dim=1)


def codes_behind(code_BD: Tensor, gradient_BD: Tensor) -> Tensor | None:
    """(B, D) directions of the partner's codes whose contrast (Eq. 16) has this gradient.

    The gradient is -v + A v + (W + W^T) u, across u and by 1 / (B tau |code|), of directions u of
    the codes sent and v of the partner's; A and W are shares in the contrast, of which A depends
    on v. So v follows in a few rounds, with the length that is left along u. None: no contrast by
    the default temperature has this gradient.
    """
    tau, floor = _CONTRAST.temperature, _CONTRAST.min_norm
    code_BD, gradient_BD = (
        each.detach().cpu().float().flatten(1) for each in (code_BD, gradient_BD)
    )
    if code_BD.shape != gradient_BD.shape or len(code_BD) < 2:
        return None
    length_B1 = code_BD.norm(dim=1, keepdim=True).clamp(min=floor)
    u_BD = code_BD / length_B1
    within_BB = (u_BD @ u_BD.T / tau).exp().fill_diagonal_(0.0)
    told_BD = len(code_BD) * tau * length_B1 * gradient_BD
    v_BD = u_BD
    for _ in range(_ROUNDS):
        across_BB = (u_BD @ v_BD.T / tau).exp()
        total_B1 = (across_BB + within_BB).sum(dim=1, keepdim=True)
        w_BB = within_BB / total_B1
        pull_BD = (across_BB / total_B1) @ v_BD + (w_BB + w_BB.T) @ u_BD
        tangent_BD = pull_BD - (pull_BD * u_BD).sum(dim=1, keepdim=True) * u_BD - told_BD
        square_B1 = tangent_BD.square().sum(dim=1, keepdim=True)
        before_BD, along_B1 = v_BD, (1 - square_B1).clamp(min=0.0).sqrt()
        v_BD = tangent_BD / square_B1.sqrt().clamp(min=1.0) + along_B1 * u_BD
        if float((v_BD - before_BD).abs().max()) < _SETTLED:
            return torch.as_tensor(v_BD)
    return None


def owner_logits(gradient_BC: Tensor, local_BC: Tensor) -> Tensor:
    """(B, C - 1) the others' part of each logit, against the first class's.

    Args:
        gradient_BC: of the outputs, of a mean over a batch; rows of zeros are fillers.
        local_BC: the attacker's own part of the outputs.
    """
    real = gradient_BC.abs().sum(dim=1) > 0
    error_BC = gradient_BC.double() * real.sum()  # p - y
    label_B = error_BC.argmin(dim=1)
    p_BC = error_BC + torch.nn.functional.one_hot(label_B, error_BC.shape[1])
    logit_BC = p_BC.clamp(min=1e-7).log() - local_BC.double()
    return (logit_BC - logit_BC[:, :1])[:, 1:].masked_fill(~real[:, None], torch.nan)
