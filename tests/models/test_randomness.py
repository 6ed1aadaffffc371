"""Each party's random numbers are its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dovetail.models import RandomStream, derive_seed, generator


def test_the_global_generator_is_as_it_was() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    before = torch.rand(2)
    with RandomStream(0, "bank"):
        torch.rand(100)
    assert torch.equal(torch.cat([before, torch.rand(2)]), expected)


def test_the_global_generator_is_as_it_was_after_an_error() -> None:
    state = torch.get_rng_state()

    def fails() -> None:
        with RandomStream(0, "bank"):
            torch.rand(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert torch.equal(torch.get_rng_state(), state)


def test_a_stream_goes_on_where_it_was_left() -> None:
    with RandomStream(0, "bank"):
        whole = torch.rand(5)
    stream = RandomStream(0, "bank")
    parts: list[Tensor] = []
    for num_drawn in (2, 3):
        with stream:
            parts.append(torch.rand(num_drawn))
        torch.rand(7)  # somebody else's
    assert torch.equal(torch.cat(parts), whole)


def test_two_interleaved_streams_are_two_separate_ones() -> None:
    def draw(order: str) -> dict[str, list[float]]:
        streams = {name: RandomStream(1, name) for name in "ab"}
        drawn: dict[str, list[float]] = {"a": [], "b": []}
        for name in order:
            with streams[name]:
                drawn[name].append(torch.rand(()).item())
        return drawn

    assert draw("abab") == draw("aabb") == draw("bbaa")


def test_draws_depend_on_the_seed_and_the_purpose_alone() -> None:
    def draw(seed: int, *purpose: str) -> Tensor:
        with RandomStream(seed, *purpose):
            return torch.rand(3)

    assert torch.equal(draw(3, "bank", "networks"), draw(3, "bank", "networks"))
    others = [draw(4, "bank", "networks"), draw(3, "shop", "networks"), draw(3, "bank")]
    for other in others:
        assert not torch.equal(draw(3, "bank", "networks"), other)


def test_layers_and_dropout_draw_from_the_stream() -> None:
    def draw() -> tuple[Tensor, Tensor]:
        with RandomStream(0, "bank"):
            layer = torch.nn.Linear(3, 3)
            return layer.weight.detach(), torch.nn.functional.dropout(torch.ones(50))

    for one, two in zip(draw(), draw(), strict=True):
        assert torch.equal(one, two)


def test_seeds_of_distinct_purposes_are_unrelated() -> None:
    seeds = {derive_seed(seed, *name) for seed in (0, 1, -1) for name in ((), ("a",), ("a", "b"))}
    assert len(seeds) == 9
    assert derive_seed(1, "1") != derive_seed(11)  # the parts are kept apart
    assert all(0 <= seed < 2**56 for seed in seeds)


def test_a_generator_is_its_seeds() -> None:
    draws = [torch.rand(2, generator=generator(0, "x")) for _ in range(2)]
    assert torch.equal(*draws)
