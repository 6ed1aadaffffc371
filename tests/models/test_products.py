"""A product by either library is the same one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dovetail.models import products


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
