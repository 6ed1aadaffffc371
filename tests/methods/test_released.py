"""APFed-D without gradients: columns leave once and noised, labels not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dovetail.data import Alignment, SharedRows
from dovetail.errors import PartyError
from dovetail.federated import Local
from dovetail.methods.apfed import distil, teaching
from dovetail.methods.settings.apfed import DistilConfig as Config
from dovetail.methods.settings.apfed import PartnerConfig
from dovetail.models.learners import NO_FOLD, hard_targets, make_folds
from dovetail.models.learners.distil import Owner
from dovetail.network import InProcess
from dovetail.network.inprocess import overheard
from dovetail.privacy import epsilon
from dovetail.settings.privacy import Once

CONFIG = Config(folds=2, exchange="released", teachers=("linear",))
ONCE = Once(width=2, noise=0.5)


def made(rows: int = 120, labels: int = 80) -> tuple[Owner, Tensor]:
    """An owner, and a partner whose columns go together and say the class."""
    rng = torch.Generator().manual_seed(0)
    x, hidden = torch.randn(rows, 3, generator=rng), torch.randn(rows, 1, generator=rng)
    partner = hidden + 0.3 * torch.randn(rows, 5, generator=rng)
    classes = (0.3 * x[:, 0] + hidden[:, 0] > 0).long()
    folds = torch.full((rows,), NO_FOLD)
    folds[:labels] = make_folds(classes[:labels], CONFIG.folds, seed=0)
    return Owner(x, hard_targets(classes, 2, regression=False), folds), partner


def everyone(owner: Owner) -> Tensor:
    return torch.arange(len(owner.x_RF))


def active_of(owner: Owner, rows: Tensor, config: Config = CONFIG) -> distil.Active:
    alignment = Alignment({"bank": everyone(owner), "lab": rows})
    table = distil.AlignedRows.of(owner.x_RF, "bank", alignment)
    return distil.Active(owner, table, None, config, Local("bank"), seed=0)


def partner_of(x: Tensor, rows: Tensor, once: Once | None = ONCE) -> distil.Partner:
    shared = SharedRows("lab", x, rows)
    return distil.Partner(shared, shared, PartnerConfig(release=once), Local("lab"))


def taught(owner: Owner, partner: Tensor, rows: Tensor) -> tuple[distil.Active, list[bytes]]:
    active = active_of(owner, rows)
    asked: list[bytes] = []
    engine = InProcess({"lab": partner_of(partner, rows)}, driver="bank")
    with overheard(lambda driver, party, request, answer: asked.append(repr(request).encode())):
        list(teaching.train(active, engine))
    return active, asked


def test_a_teacher_learns_from_what_is_released_and_only_of_rows_that_are():
    owner, partner = made()
    rows = everyone(owner).clone()
    rows[100:] = -1
    active, _ = taught(owner, partner, rows)
    assert active.teacher_outputs is not None
    (outputs_KRC,) = active.teacher_outputs.train.values()
    assert outputs_KRC[:, 100:].isnan().all()
    assert not outputs_KRC[:, :100].isnan().any()
    held_out = outputs_KRC[owner.folds_R[:80], torch.arange(80)].argmax(dim=1)
    right = (held_out == owner.targets_RC[:80].argmax(dim=1)).float().mean()
    assert right > 0.75  # its own columns alone say 0.6 of it


def test_what_is_asked_is_the_same_whatever_the_labels_are():
    owner, partner = made()
    others = replace(owner, targets_RC=owner.targets_RC.flip(1))
    everybody = everyone(owner)
    assert taught(owner, partner, everybody)[1] == taught(others, partner, everybody)[1]


def test_however_often_it_is_asked_a_row_says_the_same_and_counts_once():
    owner, x = made()
    partner = partner_of(x, everyone(owner))
    begin = distil.Begin(("released",), 1, 2, seed=0)
    ask = distil.Encode(
        ("released",), (), torch.zeros(0, 0), torch.arange(20), training=False, test=False
    )
    first = begun = None
    for seed in (0, 1):
        begun = partner.handle(replace(begin, seed=seed))
        for _ in range(2):
            codes = partner.handle(ask)
            assert isinstance(codes, distil.Codes)
            first = codes.code_ND if first is None else first
            assert torch.equal(codes.code_ND, first)
    assert isinstance(begun, distil.Ready)
    assert begun.code_widths == (2,)
    assert partner.released is not None
    report = partner.released.report()
    assert report["releases"] == 1
    assert report["epsilon"] == epsilon(1, 0.25, 1e-5)
    # Of rows without noise none is longer than the clip.
    bare = partner_of(x, everyone(owner), Once(width=2, noise=0.0))
    bare.handle(begin)
    assert bare.released is not None
    assert bare.released.code_ND.norm(dim=1).max() <= 1 + 1e-6


def test_a_partner_that_releases_once_trains_no_joint_model():
    owner, x = made()
    active = active_of(owner, everyone(owner), Config(folds=2, exchange="gradients"))
    engine = InProcess({"lab": partner_of(x, everyone(owner))}, driver="bank")
    with pytest.raises(PartyError, match=r'set apfed.distil.exchange = "released"'):
        list(teaching.train(active, engine))
