"""Stacked networks: their hand-written gradients are autograd's, and their memory is shared."""

import copy

import pytest
import torch
import torch.nn.functional as F

from dovetail.models import ColumnsSpec, StackedColumns, StackedOptimizer

ROWS = (5, 3, 4)  # of each network's batch


def networks(mu, join):
    """Three networks with 3, 1 and 2 features of their own."""
    torch.manual_seed(0)
    return [
        ColumnsSpec((0, 1), tuple(range(2, 2 + num_private)), (6, 5), 4, mu, join).build()
        for num_private in (3, 1, 2)
    ]


def padded(parts):
    """Side by side, zeros where one is smaller."""
    stacked = torch.zeros(len(parts), *(max(p.shape[i] for p in parts) for i in range(2)))
    for k, part in enumerate(parts):
        stacked[k, : part.shape[0], : part.shape[1]] = part
    return stacked


@pytest.mark.parametrize(("mu", "join"), [(1.0, "sum"), (0.4, "sum"), (0.0, "sum"), (0.0, "input")])
def test_stacked_losses_and_gradients_are_those_of_each_network_alone(mu, join):
    plain = networks(mu, join)
    stack = StackedColumns(plain, 5)
    private = [network.unique_indices for network in plain]
    rows = [torch.randn(num, 2 + len(indices)) for num, indices in zip(ROWS, private, strict=True)]
    labels = [torch.randint(4, (num,)) for num in ROWS]
    labels_KB = torch.zeros(3, 5, dtype=torch.int64)
    weights_KB = torch.zeros(3, 5)
    for k, num in enumerate(ROWS):
        labels_KB[k, :num] = labels[k]
        weights_KB[k, :num] = 1 / num
    x, x_unique = padded([r[:, :2] for r in rows]), padded([r[:, 2:] for r in rows])

    common_losses = stack.common_gradient(x, labels_KB, weights_KB)
    joint_losses = stack.joint_gradient(x, x_unique, labels_KB, weights_KB)

    expected_common, expected_local = [], []
    for k, network in enumerate(plain):
        loss = F.cross_entropy(network.common(rows[k][:, :2]), labels[k])
        expected_common.append(torch.autograd.grad(loss, list(network.common.parameters())))
        joint = F.cross_entropy(network(rows[k]), labels[k])
        expected_local.append(torch.autograd.grad(joint, network.unique.trained()))
        torch.testing.assert_close(common_losses[k], loss.detach())
        torch.testing.assert_close(joint_losses[k], joint.detach())
    for parameters, expected in ((stack.common, expected_common), (stack.unique, expected_local)):
        torch.testing.assert_close(parameters.flat.grad, parameters.pack(expected))


def test_stacking_changes_no_weight_and_steps_reach_each_network():
    plain = networks(1.0, "sum")
    before = [{k: v.clone() for k, v in network.state_dict().items()} for network in plain]
    stack = StackedColumns(plain, 5)
    for factor in (1, 2):
        with torch.no_grad():
            stack.common.flat.mul_(factor)
        for network, old in zip(plain, before, strict=True):
            for name, weights in network.state_dict().items():
                scale = factor if name.startswith("common") else 1
                assert torch.equal(weights, old[name] * scale)


def test_weights_given_to_one_network_are_those_that_the_stack_steps():
    plain = networks(1.0, "sum")
    stack = StackedColumns(plain, 5)
    plain[1].load_state_dict({k: v + 1 for k, v in plain[1].state_dict().items()})
    held = [network.unique.trained() for network in plain]
    assert torch.equal(stack.unique.flat, stack.unique.pack(held))


def test_released_networks_keep_their_weights_and_share_no_memory():
    plain = networks(1.0, "sum")
    stack = StackedColumns(plain, 5)
    before = [{k: v.clone() for k, v in network.state_dict().items()} for network in plain]
    assert stack.unique.holds()
    stack.common.release()
    stack.unique.release()
    assert not stack.unique.holds()
    with torch.no_grad():
        stack.common.flat.zero_()
        stack.unique.flat.zero_()
    for network, old in zip(plain, before, strict=True):
        for name, weights in network.state_dict().items():
            assert weights.is_contiguous()
            assert torch.equal(weights, old[name])


def test_a_networks_tensor_starts_where_torch_would_have_put_it():
    plain = networks(1.0, "sum")
    StackedColumns(plain, 5)
    for network in plain:
        for weights in network.state_dict().values():
            assert weights.data_ptr() % 64 == 0


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_a_stacked_optimizer_goes_on_where_the_own_ones_are_and_they_where_it_is(kind):
    plain, alone = networks(1.0, "sum"), networks(1.0, "sum")
    settings = {"momentum": 0.9} if kind is torch.optim.SGD else {}

    def build(parameters):
        return kind(parameters, lr=0.1, **settings)

    held, apart = ([network.unique.trained() for network in each] for each in (plain, alone))
    optimizers, expected = ([build(parameters) for parameters in each] for each in (held, apart))

    def step_alone(optimizers, parameters, gradients):
        for optimizer, each, given in zip(optimizers, parameters, gradients, strict=True):
            for parameter, gradient in zip(each, given, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()

    gradients = [[torch.randn_like(p) for p in each] for each in held]
    step_alone(optimizers, held, gradients)
    step_alone(expected, apart, gradients)

    stack = StackedColumns(plain, 5)
    stacked = StackedOptimizer(stack.unique, build, optimizers)
    stack.unique.flat.grad.copy_(stack.unique.pack(gradients))
    stacked.optimizer.step()
    stacked.share()
    step_alone(expected, apart, gradients)
    assert stacked.holds()

    stacked.release()
    stack.unique.release()
    step_alone(optimizers, held, gradients)
    step_alone(expected, apart, gradients)
    for mine, others in zip(held, apart, strict=True):
        for one, other in zip(mine, others, strict=True):
            torch.testing.assert_close(one, other)


def test_a_restored_optimizer_is_no_longer_the_stacks():
    plain = networks(1.0, "sum")
    stack = StackedColumns(plain, 5)
    optimizers = [torch.optim.Adam(network.unique.trained()) for network in plain]
    stacked = StackedOptimizer(stack.unique, torch.optim.Adam, optimizers)
    stacked.optimizer.step()
    stacked.share()
    assert stacked.holds()
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[1].state_dict()))
    assert not stacked.holds()
