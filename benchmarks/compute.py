"""Steps and rounds of each method in bfloat16 against the same in float32.

    python -m benchmarks.compute

What a run computes with ``compute = "bf16"``, in process, on random pixels and columns in the
papers' shapes; ratios are only of a processor that multiplies bfloat16 by itself, and without one
this ends with a sentence. The bare networks, forwards and backwards with their optimizer, stand
beside: what is gained without a method around them, and what ``torch.autocast`` makes of the same.
A second table has single products, forwards and backwards, with their factors made narrow and
their results wide again: what no method can beat, and from what size on it pays. All ways of a case
take turns, on one thread; milliseconds are of the processor, ratios those of the medians.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import _results, apfed_step, chfl_round, fedoptimus_step, hyfem_round
from benchmarks._turns import medians
from dovetail.errors import ConfigError
from dovetail.methods import fedoptimus
from dovetail.models import TABLE_3, TABLE_4, Head, ResNet, StripCnn
from dovetail.models import computing as computing_module
from dovetail.models.computing import computing

TARGET = 0.5
CPU = torch.device("cpu")
Call = Callable[[], object]
Context = Callable[[], AbstractContextManager[Any]]

WAYS: dict[str, Context] = {
    "float32": nullcontext,
    "bf16": lambda: computing("bf16", CPU),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


def bare(network: nn.Module, shape: tuple[int, ...]) -> Call:
    """A step of one network on a batch of 64."""
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, fused=True)
    x, labels = torch.rand(64, *shape), torch.randint(10, (64,))

    def step() -> None:
        loss = F.cross_entropy(network(x).float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def with_head(encoder: nn.Module, shape: tuple[int, ...], width: int) -> nn.Module:
    with torch.no_grad():
        size = encoder(torch.zeros(1, *shape)).flatten(1).shape[1]
    return nn.Sequential(encoder, nn.Flatten(), Head((width,), 0.5).build(size, 10))


def hyfem_of(case: str) -> Call:
    return hyfem_round.make(case, num_steps=4)[0]


#: Case -> a step or round of it.
BARE: dict[str, Callable[[], Call]] = {
    "Table 3's network": lambda: bare(
        with_head(TABLE_3.encoder((1, 14, 28)), (1, 14, 28), 256), (1, 14, 28)
    ),
    "Table 4's network": lambda: bare(
        with_head(TABLE_4.encoder((3, 16, 32)), (3, 16, 32), 50), (3, 16, 32)
    ),
    "ResNet-18": lambda: bare(
        with_head(ResNet().encoder((3, 32, 32)), (3, 32, 32), 64), (3, 32, 32)
    ),
}
IMAGES: dict[str, Callable[[], Call]] = {
    "APFed-R, Table 3": lambda: apfed_step.dovetail_step("reconstruction", 64),
    "APFed-C, Table 3": lambda: apfed_step.dovetail_step("contrastive", 64),
    "FedOptimus, 14 x 5 strips": lambda: fedoptimus_step.dovetail_steps(
        fedoptimus.Config(), StripCnn()
    ),
    "HyFEM, Fashion-MNIST, 4 blocks": lambda: hyfem_of("Fashion-MNIST, 4 blocks"),
    "HyFEM, CIFAR-10, 12 blocks": lambda: hyfem_of("CIFAR-10, 12 blocks"),
}
TABLES: dict[str, Callable[[], Call]] = {
    "CHFL, 5 members": lambda: chfl_round.Dovetail(5, 256, stacked=True).round,
}


def linear(batch: int, inputs: int, outputs: int) -> Call:
    weight = torch.randn(outputs, inputs, requires_grad=True)
    return _pass(lambda x: F.linear(x, weight), (batch, inputs), weight)


def batched(num: int, batch: int, inputs: int, outputs: int) -> Call:
    weight = torch.randn(num, inputs, outputs, requires_grad=True)
    return _pass(lambda x: torch.bmm(x, weight), (num, batch, inputs), weight)


def convolution(channels: int, outputs: int, height: int, width: int, kernel: int) -> Call:
    weight = torch.randn(outputs, channels, kernel, kernel, requires_grad=True)
    shape = (64, channels, height, width)
    return _pass(lambda x: F.conv2d(x, weight, padding="same"), shape, weight)


def _pass(product: Callable[[Tensor], Tensor], shape: tuple[int, ...], weight: Tensor) -> Call:
    """A product and both its gradients."""
    x = torch.randn(shape, requires_grad=True)
    above = torch.randn_like(product(x))
    return lambda: torch.autograd.grad(product(x), (x, weight), above)


#: Product -> its multiplications, and how it is made.
PRODUCTS: dict[str, tuple[int, Callable[[], Call]]] = {
    **{
        f"linear, {b} rows, {i} -> {o}": (b * i * o, partial(linear, b, i, o))
        for b, i, o in (
            (64, 64, 64), (64, 384, 64), (1024, 64, 64), (128, 896, 64), (64, 2048, 256),
            (512, 512, 512), (64, 15360, 256),
        )
    },
    **{
        f"batched, {n} x {b} rows, {i} -> {o}": (n * b * i * o, partial(batched, n, b, i, o))
        for n, b, i, o in ((5, 128, 64, 64), (50, 64, 64, 64), (5, 64, 512, 256))
    },
    **{
        f"convolution {k} x {k}, {c} -> {o} channels, {h} x {w}, 64 images": (
            64 * c * o * h * w * k * k,
            partial(convolution, c, o, h, w, k),
        )
        for c, o, h, w, k in (
            (3, 16, 14, 14, 3), (16, 32, 7, 7, 3), (1, 32, 14, 28, 5), (3, 32, 16, 32, 5),
            (32, 32, 14, 14, 3), (32, 64, 12, 26, 5), (256, 256, 8, 8, 3),
        )
    },
}  # fmt: skip


def time_products(num: int) -> list[dict[str, Any]]:
    rows = []
    for what, (multiplications, make) in PRODUCTS.items():
        least, computing_module._LEAST = computing_module._LEAST, defaultdict(int)
        try:
            measured = time_case(make, num, ("float32", "bf16"))
        finally:
            computing_module._LEAST = least
        rows.append(
            {
                "product": what,
                "million multiplications": multiplications / 1e6,
                **{f"{name} ms": milliseconds for name, milliseconds in measured.items()},
                "bf16 of float32": measured["bf16"] / measured["float32"],
            }
        )
    return rows


def time_case(
    make: Callable[[], Call], num: int, ways: Sequence[str] = tuple(WAYS)
) -> dict[str, float]:
    """Median milliseconds of each way, each with networks of its own, taking turns."""

    def within(way: Context) -> Call:
        with way():
            call = make()

        def timed() -> None:
            with way():
                call()

        return timed

    seconds = medians({name: within(WAYS[name]) for name in ways}, num, first=2)
    return {name: taken * 1e3 for name, taken in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=15, help="timed steps of each [15]")
    given = parser.parse_args()
    torch.set_num_threads(1)
    try:
        computing("bf16", CPU)
    except ConfigError as error:
        raise SystemExit(str(error)) from None
    rows = []
    for what, cases in (("bare", BARE), ("images", IMAGES), ("a table", TABLES)):
        # What a method sends is float32, so autocast is of bare networks alone.
        ways = tuple(WAYS) if what == "bare" else ("float32", "bf16")
        for case, make in cases.items():
            measured = time_case(make, given.steps, ways)
            autocast = measured.get("autocast")
            rows.append(
                {
                    "of": what,
                    "case": case,
                    "float32 ms": measured["float32"],
                    "bf16 ms": measured["bf16"],
                    "bf16 of float32": measured["bf16"] / measured["float32"],
                    "at most": "" if what == "a table" else TARGET,
                    "autocast of float32": autocast / measured["float32"] if autocast else "",
                }
            )
    _results.write("compute", "Steps in bfloat16 against float32", rows)
    products = time_products(given.steps)
    _results.write("compute_products", "Products in bfloat16 against float32", products)


if __name__ == "__main__":
    main()
