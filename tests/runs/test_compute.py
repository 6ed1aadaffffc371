"""``compute = "bf16"``: every method takes it, and who has no such arithmetic is told so."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.errors import ConfigError
from dovetail.models import computing, threads
from dovetail.runs.runfile import check_run
from dovetail.runs.train import train_seeds

DIGITS = '[data]\nsource = "digits-images"\ntest = 0.5\nrows = 600\n'
CONVOLUTIONAL = "encoder = { channels = [6], kernels = [3], strides = [1] }"
RUNS = {
    "apfed": f"""
        {DIGITS}
        partition = {{ kind = "strips", views = 2, active = 1 }}
        [apfed]
        {CONVOLUTIONAL}
        head = [16]
        epochs = 4
        learning_rate = 0.02
        [passive]
        {CONVOLUTIONAL}
        """,
    "chfl": """
        [data]
        source = "breast-cancer"
        test = 0.5
        [data.partition]
        kind = "common-unique"
        parties = 3
        common = 0.5
        validation = 0.25
        [chfl]
        widths = [16, 8]
        rounds = 10
        local_epochs = 1
        """,
    "hyfem": """
        [data]
        source = "breast-cancer"
        test = 0.5
        [data.partition]
        kind = "blocks"
        blocks = { mean = ["mean *"], worst = ["worst *"], error = ["* error"] }
        assignment = [
            { party = "north", blocks = ["mean", "error"], classes = [1, 2] },
            { party = "south", blocks = ["worst", "error"], classes = [1, 2] },
        ]
        [hyfem]
        rounds = 20
        local_steps = 5
        batch_size = 32
        learning_rate = 0.1
        widths = { "*" = [16] }
        """,
    "fedoptimus": f"""
        {DIGITS}
        partition = {{ kind = "owners", label_owners = 2, data_owners = 4, skew = 10.0 }}
        [fedoptimus]
        epochs = 8
        batch_size = 32
        learning_rate = 0.01
        bottom = {{ kind = "strip-cnn", channels = 6, kernel = 3, hidden = 16 }}
        embedding = 16
        top = [16]
        """,
}


def trained(method: str, compute: str, folder: Path) -> list[float]:
    """Each party's accuracy and loss on its test rows."""
    text = f'method = "{method}"\ncompute = "{compute}"\nevaluate_every = 0\ncheckpoint_every = 0\n'
    run = check_run(tomllib.loads(text + RUNS[method]), where="run.toml")
    result = train_seeds(run, folder, (0,), resume=False)
    scores = result["variants"][method]["scores"][method].values()
    return [each[name] for name in ("accuracy", "log_loss") for each in scores]


@pytest.mark.trained
@pytest.mark.slow
@pytest.mark.usefixtures("brief_learners")
@pytest.mark.parametrize("method", RUNS)
def test_every_method_learns_the_same_in_bfloat16(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing, "has_bf16", lambda _: True)  # imitated, where there is none
    monkeypatch.setattr(computing, "_LEAST", defaultdict(int))  # networks this small, too
    usual = trained(method, "float32", tmp_path / "usual")
    narrow = trained(method, "bf16", tmp_path / "narrow")
    half = len(usual) // 2
    accuracy, in_bf16 = fmean(usual[:half]), fmean(narrow[:half])
    assert accuracy > 0.5, (usual, narrow)
    assert usual != narrow
    assert abs(accuracy - in_bf16) < 0.05, (usual, narrow)


def test_a_processor_without_bfloat16_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing, "has_bf16", lambda _: False)
    with pytest.raises(ConfigError, match="has no arithmetic in bfloat16"):
        trained("chfl", "bf16", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_products_are_narrow_forwards_and_backwards_and_nothing_else_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(computing, "has_bf16", lambda _: True)
    monkeypatch.setattr(computing, "_LEAST", defaultdict(int))
    x, weight = torch.randn(3, 4), torch.randn(2, 4, requires_grad=True)
    out = torch.empty(1, 3, 2)
    with computing.computing("bf16", torch.device("cpu")):
        y = F.linear(x, weight)
        torch.bmm(x[None], weight.detach().T[None], out=out)
        (sum_,) = (x @ x.T).sum()[None]
    y.sum().backward()
    assert y.dtype == out.dtype == torch.float32
    narrow = (x.bfloat16() @ weight.bfloat16().T).float()
    torch.testing.assert_close(y, narrow, rtol=0.01, atol=0.01)
    assert torch.equal(out[0], y)
    assert weight.grad is not None
    assert torch.equal(weight.grad, weight.grad.bfloat16().float())
    assert torch.equal(sum_, (x @ x.T).sum())


def test_threads_compute_in_the_numbers_of_the_one_that_waits_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(computing, "has_bf16", lambda _: True)
    monkeypatch.setattr(computing, "_LEAST", defaultdict(int))
    x = torch.randn(8, 8)

    def products() -> list[Tensor]:
        return threads.side_by_side([lambda _: F.linear(x, x)] * 3, workers=2)

    usual = products()
    with computing.computing("bf16", torch.device("cpu")):
        narrow, here = products(), F.linear(x, x)
    assert all(torch.equal(each, F.linear(x, x)) for each in [*usual, *products()])
    assert all(torch.equal(each, here) for each in narrow)
    assert not torch.equal(narrow[0], usual[0])


def test_products_too_small_to_gain_stay_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computing, "has_bf16", lambda _: True)
    rng = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng)

    # Multiplications: 4,194,304 are the first of a linear layer or batched product to be narrow,
    # 16,777,216 of a convolution.
    products = [
        (F.linear, drawn(256, 128), drawn(127, 128), False),
        (F.linear, drawn(256, 128), drawn(128, 128), True),
        (torch.bmm, drawn(4, 64, 128), drawn(4, 128, 127), False),
        (torch.bmm, drawn(4, 64, 128), drawn(4, 128, 128), True),
        (F.conv2d, drawn(4, 4, 64, 64), drawn(15, 4, 4, 4), False),
        (F.conv2d, drawn(4, 4, 64, 64), drawn(16, 4, 4, 4), True),
        (F.conv_transpose2d, drawn(4, 4, 64, 64), drawn(4, 15, 4, 4), False),
        (F.conv_transpose2d, drawn(4, 4, 64, 64), drawn(4, 16, 4, 4), True),
    ]
    for product, x, weight, narrow in products:
        usual = product(x, weight)
        with computing.computing("bf16", torch.device("cpu")):
            ours = product(x, weight)
        assert ours.dtype == torch.float32
        assert torch.equal(ours, usual) != narrow, (product, weight.shape)


def test_a_product_into_memory_is_computed_in_bfloat16_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computing, "has_bf16", lambda _: True)
    x, weight = torch.randn(128, 896), torch.randn(64, 896)
    usual, narrow = torch.empty(128, 64), torch.empty(128, 64)
    torch.mm(x, weight.T, out=usual)
    with computing.computing("bf16", torch.device("cpu")):
        torch.mm(x, weight.T, out=narrow)
    expected = (x.bfloat16() @ weight.bfloat16().T).float()
    torch.testing.assert_close(narrow, expected, rtol=0.01, atol=0.01)
    assert not torch.allclose(narrow, usual, rtol=1e-4, atol=1e-4)
