"""A loss for passive parties that is not the paper's."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def vicreg_loss(code_BD: Tensor, local_BD: Tensor) -> Tensor:
    """Bardes, Ponce, LeCun 2022, Eq. (6), divided by its 25: both codes of a sample are to be one.

    Each number of a code is to vary over the batch (standard deviation 1 or more), and no two of
    them together. No other sample is pushed away, so that samples of one class may be alike.
    """
    loss = F.mse_loss(code_BD, local_BD)
    if len(code_BD) < 2:  # nothing varies
        return loss
    for each_BD in (code_BD, local_BD):
        centred_BD = each_BD - each_BD.mean(dim=0)
        spread_D = (centred_BD.square().sum(dim=0) / (len(each_BD) - 1) + 1e-4).sqrt()
        covariance_DD = centred_BD.T @ centred_BD / (len(each_BD) - 1)
        off_DD = covariance_DD - covariance_DD.diag().diag()
        loss = loss + F.relu(1 - spread_D).mean()
        loss = loss + 0.04 * off_DD.square().sum() / each_BD.shape[1]
    return loss
