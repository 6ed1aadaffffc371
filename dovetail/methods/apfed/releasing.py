"""APFed-D's teacher at the label owner alone, beside what partners release (``released.py``)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from dovetail.errors import MessageError, PartyError
from dovetail.federated import Epoch
from dovetail.methods.apfed import distil
from dovetail.methods.limits import limits_of
from dovetail.methods.settings.apfed import RELEASED
from dovetail.models import derive_seed
from dovetail.models.learners import LEARNERS, Rows, first_fold_only, make_folds
from dovetail.network import Engine, check_shape

#: Rows of a message, and folds of a member's rows, one of which ends its training.
_ROWS, _FOLDS = 16_384, 4


def learn(active: distil.Active, network: Engine) -> Iterator[Epoch]:
    """Asks each partner once, and learns the teacher at its site: ``active.teacher_outputs``, or
    ``why_not``; one epoch of one step.
    """
    started = time.perf_counter()
    if not active.find_rows():
        return
    active.copies = 1
    parts = []
    for party in active.partners:
        try:
            parts.append(_codes(active, network, party))
        except PartyError as failure:
            active.leave_out(failure.party, failure.cause, network)
    if not active.find_rows():
        return
    x_RF = torch.cat([active.owner.x_RF, *parts], dim=1)
    active.teacher_outputs = distil.TeacherOutputs(
        {name: _teacher(active, name, x_RF) for name in active.config.teachers}, None
    )
    active.number = 1
    seconds = time.perf_counter() - started
    yield Epoch(number=1, seconds=seconds, num_steps=1, reasons=dict(active.lost))


def _codes(active: distil.Active, network: Engine, party: str) -> Tensor:
    """(R, D) of all the owner's rows; zeros, which is their mean, where the partner has none.

    Raises:
        PartyError: it does not answer as asked.
        ConfigError: it shares fewer rows than it answers about.
    """
    num_outputs = active.owner.num_outputs
    begin = distil.Begin((RELEASED,), 1, num_outputs, active.local.seed)
    ready = network.ask({party: begin}, distil.Ready).or_raise()
    active.allow(limits_of(ready))
    widths = ready[party].code_widths
    if len(widths) != 1 or not 1 <= widths[0] <= 2**16:
        raise PartyError(party, f"{ready[party].wire_name()}: no width of one code")
    samples_R = active.train.samples[party]
    # By samples' numbers, which are drawn: a table's own order is often that of its labels.
    rows = samples_R.argsort()[int((samples_R < 0).sum()) :]
    code_RD = torch.zeros(len(samples_R), widths[0])
    # Of about the same size: a small last one could be about fewer samples than it answers.
    for part in rows.tensor_split(-(-len(rows) // _ROWS)):
        request = distil.Encode(
            (RELEASED,), (), torch.zeros(0, 0), samples_R[part], training=False, test=False
        )
        timeout_s = active.config.timeout_s
        answer = network.ask({party: request}, distil.Codes, timeout_s=timeout_s).or_raise()[party]
        try:
            check_shape(answer, "code_ND", (len(part), widths[0]), torch.float32)
        except MessageError as cause:
            raise PartyError(party, str(cause)) from None
        if not answer.code_ND.isfinite().all():
            raise PartyError(party, "its codes are not finite")
        code_RD[part] = answer.code_ND
    return code_RD


def _teacher(active: distil.Active, name: str, x_RF: Tensor) -> Tensor:
    """(K, R, C) outputs of each fold's model, NaN in rows that no partner has."""
    owner = active.owner
    num_outputs = owner.num_outputs
    outputs_KRC = torch.full((owner.num_folds, len(x_RF), num_outputs), torch.nan)
    shared = active.aligned_R
    for fold in range(owner.num_folds):
        rows = active.rows_N[owner.folds_R[active.rows_N] != fold]
        targets_NC = owner.targets_RC[rows]
        seed = derive_seed(active.local.seed, RELEASED, name, str(fold))
        classes_N = targets_NC[:, 0] if owner.regression else targets_NC.argmax(dim=1)
        folds_N = make_folds(
            classes_N, min(_FOLDS, len(rows)), seed=seed, regression=owner.regression
        )
        learnt = LEARNERS[name].fit(
            Rows(
                x_RF[rows], targets_NC, first_fold_only(folds_N), owner.weights(rows, targets_NC),
                loss=owner.loss,
            ),
            seed=seed,
            encode_on=x_RF[shared],
        )  # fmt: skip
        outputs_KRC[fold, shared] = learnt.outputs(x_RF[shared])
    return outputs_KRC
