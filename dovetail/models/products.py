"""Products of float32 by the faster of the two libraries that PyTorch has on a processor."""

from __future__ import annotations

import torch
from torch import Tensor

#: ``F.linear`` is MKL's, which makes no use of AVX-512 on an AMD EPYC; oneDNN, which PyTorch takes
#: for convolutions, does: 80 us instead of 150 for 128 rows, 896 inputs and 64 outputs. This is how
#: ``torch.compile`` calls it; by ``Tensor.to_mkldnn``, which copies, it is 115 to 140.
_ONE_DNN = (
    getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if torch.backends.mkldnn.is_available()
    else None
)

#: Multiplications below which oneDNN gains nothing.
_LARGE = 4_000_000


def linear_into(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """``F.linear`` of (B, I) and (O, I), which no gradient follows, into memory that is there."""
    if (
        _ONE_DNN is not None
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.numel() * len(weight) >= _LARGE
    ):
        out.copy_(_ONE_DNN(x, weight, bias, "none", [], ""))
    elif bias is None:
        torch.mm(x, weight.T, out=out)
    else:
        torch.addmm(bias, x, weight.T, out=out)
