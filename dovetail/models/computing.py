"""Where networks are computed, and in which numbers: float32, or their products in bfloat16.

``compute = "bf16"`` makes the products of layers (linear, convolutions, the batched ones of many
small networks) in bfloat16, forwards and backwards, and adds them up in float32 where the processor
does. Weights, what an optimizer keeps, losses, normalisation and all that travels stay float32: a
method, its messages and its files know nothing of it. As ``torch.autocast`` does, but only for
products, since a message of other numbers would not be the one that was agreed on; and not for
small ones, which it would only slow down.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import local
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dovetail.errors import ConfigError
from dovetail.settings.models import Compute


def device(name: str) -> torch.device:
    """The device of this name.

    Raises:
        ConfigError: no such device here.
    """
    try:
        target = torch.device(name)
        torch.zeros(1, device=target).item()  # the meta device has no values
    except (RuntimeError, AssertionError):
        available = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        raise ConfigError(f"there is no device {name!r} here; there is {available}") from None
    return target


#: What computes a product -> the same that makes a new tensor.
_PRODUCTS: dict[Any, Callable[..., Tensor]] = {
    **{each: each for each in (F.linear, F.conv1d, F.conv2d, F.conv_transpose2d)},
    **{each: each for each in (torch.mm, torch.addmm, torch.bmm, torch.baddbmm)},
    torch.Tensor.baddbmm_: torch.baddbmm,
}

#: Multiplications below which a product stays in float32: to make its factors narrow, and its
#: result wide again, takes longer than is gained (benchmarks/results/compute_products.md).
_LEAST = {
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv_transpose2d), 2**24),
    **dict.fromkeys((F.linear, torch.mm, torch.addmm, torch.bmm, torch.baddbmm), 2**22),
}

#: A processor's features that multiply bfloat16: of Intel and AMD, and of Arm.
_FEATURES = ("avx512_bf16", "amx_bf16", "avx10_2", "bf16", "sve_bf16")


def computing(compute: Compute, device: torch.device) -> AbstractContextManager[Any]:
    """Within it, networks of this thread are computed so.

    Raises:
        ConfigError: bfloat16 where the device has none.
    """
    if compute == "float32":
        return nullcontext()
    if not has_bf16(device):
        raise ConfigError(
            f'compute = "bf16": {device.type!r} here has no arithmetic in bfloat16 and would only '
            'imitate it, more slowly than float32; leave compute out, or say compute = "float32"'
        )
    return _Narrow()


def has_bf16(device: torch.device) -> bool:
    """Whether it multiplies bfloat16 by itself."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        features = torch.cpu.get_capabilities()
        return any(features.get(each) for each in _FEATURES)
    return False


class _Here(local):
    """The modes of a thread: PyTorch's are a thread's, too."""

    narrow = False


_here = _Here()


def is_narrow() -> bool:
    """Whether products of this thread are computed in bfloat16."""
    return _here.narrow


def narrow_too() -> None:
    """Computes the products of this thread in bfloat16 until it ends."""
    _Narrow().__enter__()


class _Narrow(TorchFunctionMode):
    """Computes the products of float32 in bfloat16, and gives float32."""

    def __enter__(self) -> Self:
        _here.narrow = True
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        _here.narrow = False
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        product = _PRODUCTS.get(func)
        if product is None or args[0].dtype != torch.float32:
            return func(*args, **kwargs)
        first, second = args[1:3] if product in (torch.addmm, torch.baddbmm) else args[:2]
        if _num_multiplications(product, first, second) < _LEAST[product]:
            return func(*args, **kwargs)
        out = args[0] if func is torch.Tensor.baddbmm_ else kwargs.get("out")
        named = {name: _narrow(value) for name, value in kwargs.items() if name != "out"}
        result = product(*map(_narrow, args), **named).float()
        return result if out is None else out.copy_(result)


def _num_multiplications(product: Any, first: Tensor, second: Tensor) -> int:
    """About how many multiplications a product takes: a convolution's at each input position."""
    if product is F.linear:
        return first.numel() * second.shape[0]
    if product in (torch.mm, torch.addmm, torch.bmm, torch.baddbmm):
        return first.numel() * second.shape[-1]
    # A weight is (outputs, inputs, ...), of a transposed convolution (inputs, outputs, ...).
    return first.shape[0] * first[0, 0].numel() * second.numel()


def _narrow(value: Any) -> Any:
    is_float = isinstance(value, Tensor) and value.dtype == torch.float32
    return value.bfloat16() if is_float else value
