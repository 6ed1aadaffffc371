"""CHFL's network: what its spec says, keeps and refuses."""

import pytest
import torch

from dovetail.errors import ConfigError, ModelError
from dovetail.models import ColumnsSpec

SPEC = ColumnsSpec((0, 2), (1, 3, 4), (6, 5), 3, 0.5)


def test_a_spec_comes_back_from_json():
    for spec in (
        SPEC,
        ColumnsSpec((1,), (), (4,), 2),
        ColumnsSpec((0,), (1,), (4,), 2, 0.0, "input"),
    ):
        assert ColumnsSpec.from_json(spec.to_json()) == spec


def test_weights_fit_a_network_built_from_the_stored_spec():
    network = SPEC.build()
    again = ColumnsSpec.from_json(SPEC.to_json()).build()
    again.load_state_dict(network.state_dict())
    x = torch.randn(4, 5)
    assert torch.equal(again(x), network(x))


def test_a_network_built_without_memory_takes_stored_weights():
    network = SPEC.build()
    with torch.device("meta"):
        again = SPEC.build()
    again.load_state_dict(network.state_dict(), assign=True)
    x = torch.randn(4, 5)
    assert torch.equal(again(x), network(x))


def test_each_column_reads_its_own_features():
    network = SPEC.build()
    x = torch.randn(4, 5)
    other = x.clone()
    other[:, [1, 3, 4]] = 0
    common = network.common(x[:, [0, 2]])
    assert torch.equal(network.common(other[:, [0, 2]]), common)
    assert not torch.equal(network(x), network(other))


def test_lateral_weights_are_drawn_after_all_others():
    specs = [ColumnsSpec((0,), (1,), (6, 5), 3, 0.5, join) for join in ("sum", "sum")]
    torch.manual_seed(0)
    layers = [w.clone() for w in specs[0].build_unique().layers.parameters()]
    torch.manual_seed(0)
    without = ColumnsSpec((0,), (1,), (6, 5), 3, 0.0).build_unique()
    assert all(torch.equal(a, b) for a, b in zip(layers, without.layers.parameters(), strict=True))


def test_the_simple_method_reads_class_probabilities_beside_the_own_features():
    spec = ColumnsSpec((0, 1), (2,), (4,), 3, join="input")
    network = spec.build()
    x = torch.randn(5, 3)
    probabilities = network.common(x[:, :2]).softmax(dim=1)
    layers = network.unique.layers
    expected = layers[1](torch.relu(layers[0](torch.cat([probabilities, x[:, 2:]], dim=1))))
    assert torch.equal(network(x), expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"common": ()}, "one or more common features"),
        ({"common": (0,), "unique": (0,)}, "each feature once"),
        ({"widths": ()}, "positive widths"),
        ({"widths": (0,)}, "positive widths"),
        ({"mu": 1.1}, "mu must lie in .0, 1., got 1.1"),
        ({"join": "product"}, "'sum' or 'input', got 'product'"),
    ],
)
def test_a_network_that_cannot_be_is_refused(changes, words):
    fields = {"common": (0,), "unique": (1,), "widths": (4,), "num_outputs": 2, **changes}
    with pytest.raises(ConfigError, match=words):
        ColumnsSpec(**fields)


@pytest.mark.parametrize("change", [{"mu": "much"}, {"common": 3}, {"widths": []}])
def test_a_stored_spec_that_cannot_be_is_a_model_error(change):
    with pytest.raises(ModelError, match="the model's columns cannot be read"):
        ColumnsSpec.from_json({**SPEC.to_json(), **change})


def test_a_stored_spec_that_lacks_a_field_is_a_model_error():
    stored = SPEC.to_json()
    del stored["widths"]
    with pytest.raises(ModelError, match="widths"):
        ColumnsSpec.from_json(stored)
