"""A product by either library is the same one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dovetail.models import computing, products


def test_a_library_that_is_called_otherwise_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changed:
        def _linear_pointwise(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return x @ weight.T

    monkeypatch.setattr(torch.ops, "mkldnn", Changed(), raising=False)
    assert products._one_dnn() is None


@pytest.mark.parametrize("has_one_dnn", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_product_is_that_of_linear(
    has_one_dnn: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_one_dnn:
        monkeypatch.setattr(products, "_ONE_DNN", None)
    x, weight, bias = (torch.randn(size, dtype=dtype) for size in ((128, 896), (64, 896), (64,)))
    back = torch.randn(128, 64, dtype=dtype)
    apart = torch.randn(64, 2, dtype=dtype)[:, 0]
    calls = [
        (x, weight, bias),
        (x, weight, apart),
        (x, weight),
        (back.T, x.T),
        (back, weight.T),
        (x[:9], weight, bias),
    ]
    for args in calls:
        expected = F.linear(*args)
        out = torch.full_like(expected, torch.nan)
        products.linear_into(out, *args)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("has_one_dnn", [True, False])
def test_batched_products_are_those_of_bmm(
    has_one_dnn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_one_dnn:
        monkeypatch.setattr(products, "_ONE_DNN", None)
    x, weight, bias = (torch.randn(size) for size in ((3, 64, 512), (3, 512, 256), (3, 1, 256)))
    above = torch.randn(3, 64, 256)
    for args in (
        (x, weight, bias),
        (x, weight),
        (x.mT, above),
        (above, weight.mT),
        (x[:, :9], weight),
    ):
        expected = torch.bmm(*args[:2]) + (bias if len(args) > 2 else 0)
        out = torch.full_like(expected, torch.nan)
        products.batched_into(out, *args)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)
    out = above.clone()
    products.add_batched(out, x, weight, 0.5)
    torch.testing.assert_close(out, above + 0.5 * x @ weight, rtol=1e-5, atol=1e-4)


def test_products_in_bfloat16_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computing, "has_bf16", lambda _: True)
    x, weight = torch.randn(128, 896), torch.randn(64, 896)
    usual, narrow = torch.empty(128, 64), torch.empty(128, 64)
    products.linear_into(usual, x, weight)
    with computing.computing("bf16", torch.device("cpu")):
        products.linear_into(narrow, x, weight)
    expected = (x.bfloat16() @ weight.bfloat16().T).float()
    torch.testing.assert_close(narrow, expected, rtol=0.01, atol=0.01)
    assert not torch.allclose(narrow, usual, rtol=1e-4, atol=1e-4)
