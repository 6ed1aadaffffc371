"""Losses for passive parties that the paper does not write down, of codes of the same samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch.nn.functional as F
from torch import Tensor

#: COMPLETER's alpha: how much clusters of one size are worth.
EVEN = 9.0


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


def clustering_loss(code_BD: Tensor, local_BD: Tensor) -> Tensor:
    """COMPLETER's loss of multi-view clustering (Lin et al., CVPR 2021, Eq. 3 and 4): -I - alpha H.

    A softmax makes a code the probabilities of D clusters. Both parties' clusters of a sample are
    to say as much of each other as they can, and clusters are to be of one size. The paper's
    section 6.3 names such a loss and leaves it open.
    """
    a_BD, p_BD = code_BD.softmax(dim=1), local_BD.softmax(dim=1)
    joint_DD = a_BD.T @ p_BD / len(code_BD)
    joint_DD = ((joint_DD + joint_DD.T) / 2).clamp(min=1e-9)
    even_D = (1 + EVEN) * joint_DD.sum(dim=0).log()
    return -(joint_DD * (joint_DD.log() - even_D - even_D[:, None])).sum()


#: ``loss`` of a passive party's settings -> what it asks of both codes of its samples.
CODE_LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "vicreg": vicreg_loss,
    "clustering": clustering_loss,
}
