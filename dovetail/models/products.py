"""Products of float32 by the faster of the two libraries that PyTorch has on a processor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail.models.computing import is_narrow


def _one_dnn() -> Any:
    """oneDNN's linear layer as ``torch.compile`` calls it; None where it cannot be called so.

    ``F.linear`` is MKL's, which makes no use of AVX-512 on an AMD EPYC; oneDNN, which PyTorch takes
    for convolutions, does: 80 us instead of 150 for 128 rows, 896 inputs and 64 outputs. By
    ``Tensor.to_mkldnn``, which is public and copies, it is 115 to 140. What is not public may be
    another one tomorrow, so it is tried before it is trusted.
    """
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        call = torch.ops.mkldnn._linear_pointwise
        x, bias = torch.arange(6.0).reshape(2, 3), torch.arange(2.0)
        right = torch.equal(call(x, x, bias, "none", [], ""), x @ x.T + bias)
    except Exception:  # whatever it says, there is another way
        return None
    return call if right else None


_ONE_DNN = _one_dnn()

#: Multiplications below which oneDNN gains nothing.
_LARGE = 4_000_000


def _is_one_dnns(x: Tensor, outputs: int) -> bool:
    """Whether it is to multiply (B, I) by (I, O)."""
    return (
        _ONE_DNN is not None
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.numel() * outputs >= _LARGE
        and not is_narrow()
    )


def _by_one_dnn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # It reads a bias as if it lay in one piece.
    piece = bias if bias is None else bias.contiguous()
    product: Tensor = _ONE_DNN(x, weight, piece, "none", [], "")
    return product


def linear_into(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """``F.linear`` of (B, I) and (O, I), which no gradient follows, into memory that is there."""
    if _is_one_dnns(x, len(weight)):
        out.copy_(_by_one_dnn(x, weight, bias))
    elif bias is None:
        torch.mm(x, weight.T, out=out)
    else:
        torch.addmm(bias, x, weight.T, out=out)


def batched_into(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """x W, or x W + b, of (K, B, I), (K, I, O) and (K, 1, O), into memory."""
    if _is_one_dnns(x[0], weight.shape[2]):
        for k, part in enumerate(out):
            part.copy_(_by_one_dnn(x[k], weight[k].T, None if bias is None else bias[k, 0]))
    elif bias is None:
        torch.bmm(x, weight, out=out)
    else:
        torch.baddbmm(bias, x, weight, out=out)


def add_batched(out: Tensor, x: Tensor, weight: Tensor, scale: float) -> None:
    """``scale`` x W of (K, B, I) and (K, I, O), added to what is there."""
    if _is_one_dnns(x[0], weight.shape[2]):
        for k, part in enumerate(out):
            part.add_(_by_one_dnn(x[k], weight[k].T, None), alpha=scale)
    else:
        out.baddbmm_(x, weight, alpha=scale)
