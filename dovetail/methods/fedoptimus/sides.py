"""An owner's side of a run, of what it has: in training and in a selection."""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail.data import MultiLabel, MultiTarget, Survival
from dovetail.errors import ConfigError
from dovetail.federated import Local
from dovetail.methods import fedoptimus, selection
from dovetail.methods.facets.valued import classes_of
from dovetail.methods.fedoptimus.local_data import Columns, OwnerData


def side_of(local_data: OwnerData, local: Local) -> fedoptimus.DataOwner | fedoptimus.LabelOwner:
    """An owner's side of a run: in simulation, of a party file in this process, at a site."""
    if local.name != local_data.name:  # of "alone": each label owner has data owners of its own
        local = Local(local_data.name, device=local.device, budget=local_data.budget)
    if isinstance(local_data, Columns):
        return fedoptimus.DataOwner(local_data, local)
    return fedoptimus.LabelOwner(local_data, local)


def chooser_of(
    local_data: OwnerData, features: selection.Features | None
) -> selection.DataOwner | selection.LabelOwner:
    """An owner's side of a selection; a label owner's is on the rows that it trains on.

    A data owner whose embeddings are summed in secret only gives no distance without masks either.

    Args:
        features: what a data owner measures distances in; None: its columns.

    Raises:
        ConfigError: a label that is neither one class nor one number.
    """
    if isinstance(local_data, Columns):
        shared = local_data.shared

        def columns(label_owner: str, samples_B: Tensor) -> Tensor:
            x = shared[label_owner][samples_B]
            return x.float().div_(255) if x.dtype == torch.uint8 else x.float()

        masked_only = local_data.summing.secure
        return selection.DataOwner(local_data.name, features or columns, masked_only=masked_only)
    if isinstance(local_data.task, Survival | MultiLabel | MultiTarget):
        raise ConfigError(
            f"label owner {local_data.name!r}: [fedoptimus.selection] chooses data owners by "
            "mutual information with one class or number, and its label is "
            f'{local_data.task.predicts}; leave the selection out (variant = "paper" has it)'
        )
    labels_N = classes_of(local_data.task, local_data.labels_S[local_data.trained])
    return selection.LabelOwner(local_data.name, local_data.trained, labels_N)
