"""Codes of one class pushed apart, so that few labels and clusters say little of the others.

Zheng, Chen, Lyu, Fu, Fu, Wang, Zheng, Yin, "Protecting Split Learning by Potential Energy Loss",
IJCAI 2024 (arXiv:2210.09617): rows of a class repel each other as charges of one sign do. Here

    L_pe = mean over pairs i != j of one class of  1 / |h_i - h_j|

with codes on a sphere, so that they cannot flee from each other without end: they go to where the
classes meet, and what is learned from few of them is wrong about the others. It is no guarantee.

Which form this is: written by the paper's idea, not checked against its equation. The distance is
the chord between directions, on a sphere of radius 1 and in the loss alone, so that codes are as
they were where the loss is not set; the mean is over all pairs of a batch; distances below
``LEAST`` count as that. SecretFlow's adds up, class by class, the pairs' sum over the number of
rows, by Euclidean distance or by the angle after layer normalisation: there the loss grows with the
batch, so that weights of one are not weights of the other.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

#: The distance of two directions below which they repel each other no more strongly.
LEAST = 1e-2


def potential_energy(code_BD: Tensor, labels_B: Tensor) -> Tensor:
    """Mean over pairs of one class of the inverse distance of their directions; 0 without a pair.

    >>> import torch
    >>> one = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])
    >>> round(float(potential_energy(one, torch.tensor([1, 0, 1]))), 4)  # opposite: 1 / 2
    0.5
    """
    code_BD = F.normalize(code_BD.flatten(1), dim=1)
    alike_BB = labels_B.unsqueeze(0) == labels_B.unsqueeze(1)
    alike_BB = alike_BB.to(code_BD.device).fill_diagonal_(fill_value=False)
    if not alike_BB.any():
        return code_BD.sum() * 0
    squared_BB = 2 - 2 * code_BD @ code_BD.T
    return squared_BB[alike_BB].clamp(min=LEAST**2).rsqrt().mean()
