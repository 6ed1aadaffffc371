"""Steps of many small networks at once: written-out gradients, ``torch.func`` and autograd.

    python -m benchmarks.stacked

For CHFL a step is a batch of each of K members: loss, gradient and Adam step of the common columns,
then of the members' own. For FedOptimus it is a batch of each of N replicas of a data owner's
network: embeddings, gradients from embeddings' gradients, optimizer step. Sizes are those of
``chfl_round`` and ``fedoptimus_step``.

"written" is ``StackedColumns`` and ``StackedReplicas``. "vmap" is ``torch.func``: the same modules
through ``functional_call`` under ``vmap``, gradients by ``grad_and_value`` or ``vjp``. "autograd"
is batched products in torch's own operations, with its own backward. All have one fused optimizer;
"vmap" and "autograd" have it on one tensor a layer, and every network here reads as many features
(the written ones also take networks that differ). "looped" is one network after the other.

The ways take turns, step by step, and what each computes is compared with the written one's before
anything is timed. Times are processor seconds of the one thread that computes, which a busy machine
disturbs less than wall time; least and median of many steps, and the ratios of both.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vjp, vmap

from benchmarks import _results
from dovetail.models import ColumnsSpec, StackedColumns, StripCnn
from dovetail.models.owners import DenseNetwork
from dovetail.models.replicas import LoopedReplicas, StackedReplicas

NUM_COMMON, NUM_CLASSES, WIDTHS, BATCH = 16, 7, (512, 256, 128), 64
STRIP, EMBEDDING, ROWS = (1, 2, 28), 64, 128
#: Where a library's way takes at most so many times as long in all rows, ours goes.
AT_MOST = 1.1

#: A step; gives what must be alike in all ways.
Step = Callable[[], Tensor]
Parameters = dict[str, Tensor]


def adam(tensors: Sequence[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(list(tensors), lr=1e-3, fused=True)


def leaves(state: Parameters) -> Parameters:
    return {name: value.detach().clone().requires_grad_() for name, value in state.items()}


def stepped(
    optimizer: torch.optim.Optimizer, tensors: Sequence[Tensor], gradients: Sequence[Tensor]
) -> None:
    for tensor, gradient in zip(tensors, gradients, strict=True):
        # Fused optimizers read gradients in memory's order, whatever their strides.
        tensor.grad = gradient.contiguous()
    optimizer.step()


# --- CHFL: K common columns and K own ones --------------------------------------------------------


class Members:
    """K members' networks and a batch of each; the same in every way."""

    def __init__(self, num: int) -> None:
        torch.manual_seed(0)
        self.num_unique = max(1, 38 // num)
        indices = tuple(range(NUM_COMMON)), tuple(range(NUM_COMMON, NUM_COMMON + self.num_unique))
        self.networks = [ColumnsSpec(*indices, WIDTHS, NUM_CLASSES).build() for _ in range(num)]
        self.x = torch.randn(num, BATCH, NUM_COMMON)
        self.x_unique = torch.randn(num, BATCH, self.num_unique)
        self.labels_KB = torch.randint(NUM_CLASSES, (num, BATCH))
        self.weights_KB = torch.full((num, BATCH), 1 / BATCH)

    def state(self, column: str) -> Parameters:
        """Stacked parameters, each a leaf."""
        parameters, _ = stack_module_state([getattr(network, column) for network in self.networks])
        return leaves(parameters)


def written_members(members: Members) -> Step:
    stack = StackedColumns(members.networks, BATCH)
    assert stack.unique is not None
    optimizers = adam([stack.common.flat]), adam([stack.unique.flat])
    batch = members.labels_KB, members.weights_KB

    def step() -> Tensor:
        losses = stack.common_gradient(members.x, *batch)
        optimizers[0].step()
        joint_losses = stack.joint_gradient(members.x, members.x_unique, *batch)
        optimizers[1].step()
        return torch.stack([losses, joint_losses])

    return step


def weighted(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    return (F.cross_entropy(logits, labels, reduction="none") * weights).sum()


def vmap_members(members: Members) -> Step:
    common, unique = members.state("common"), members.state("unique")
    column, network = members.networks[0].common, members.networks[0].unique
    assert network is not None
    optimizers = adam(list(common.values())), adam(list(unique.values()))

    def loss(values: Parameters, x: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        return weighted(functional_call(column, values, (x,)), labels, weights)

    class Outputs(nn.Module):
        """What the joint network reads of the common column."""

        def __init__(self) -> None:
            super().__init__()
            self.column = column

        def forward(self, x: Tensor) -> list[Tensor]:
            return self.column.outputs(x)

    def outputs(values: Parameters, x: Tensor) -> list[Tensor]:
        named = {f"column.{name}": value for name, value in values.items()}
        z: list[Tensor] = functional_call(Outputs(), named, (x,))
        return z

    def joint_loss(
        values: Parameters, z: list[Tensor], x: Tensor, labels: Tensor, weights: Tensor
    ) -> Tensor:
        return weighted(z[-1] + functional_call(network, values, (x, z)), labels, weights)

    common_gradient = vmap(grad_and_value(loss))
    unique_gradient = vmap(grad_and_value(joint_loss))
    batch = members.labels_KB, members.weights_KB

    def step() -> Tensor:
        with torch.no_grad():
            gradients, losses = common_gradient(common, members.x, *batch)
            stepped(optimizers[0], [*common.values()], [gradients[name] for name in common])
            z = vmap(outputs)(common, members.x)
            gradients, joint_losses = unique_gradient(unique, z, members.x_unique, *batch)
            stepped(optimizers[1], [*unique.values()], [gradients[name] for name in unique])
        return torch.stack([losses, joint_losses])

    return step


def autograd_members(members: Members) -> Step:
    common = [as_product(value) for value in members.state("common").values()]
    state = members.state("unique")
    layers = [as_product(value) for name, value in state.items() if name.startswith("layers")]
    laterals = [as_product(value) for name, value in state.items() if name.startswith("lat")]
    unique = [*layers, *laterals]
    optimizers = adam(common), adam(unique)
    labels = members.labels_KB.flatten()

    def outputs(x: Tensor) -> list[Tensor]:
        z: list[Tensor] = []
        for weight, bias in pairs(common):
            x = torch.baddbmm(bias, F.relu(x) if z else x, weight)
            z.append(x)
        return [*(F.relu(each) for each in z[:-1]), z[-1]]

    def losses_of(logits: Tensor) -> Tensor:
        losses = F.cross_entropy(logits.flatten(0, 1), labels, reduction="none")
        return (losses.view_as(members.weights_KB) * members.weights_KB).sum(1)

    def step() -> Tensor:
        losses = losses_of(outputs(members.x)[-1])
        stepped(optimizers[0], common, torch.autograd.grad(losses.sum(), common))
        with torch.no_grad():
            z = outputs(members.x)
        x = members.x_unique
        for i, (weight, bias) in enumerate(pairs(layers)):
            x = torch.baddbmm(bias, F.relu(x) if i else x, weight)
            if i:
                x = torch.baddbmm(x, z[i - 1], laterals[i - 1])
        joint_losses = losses_of(z[-1] + x)
        stepped(optimizers[1], unique, torch.autograd.grad(joint_losses.sum(), unique))
        return torch.stack([losses.detach(), joint_losses.detach()])

    return step


def looped_members(members: Members) -> Step:
    networks = members.networks
    columns = [[*network.common.parameters()] for network in networks]
    uniques = [[*network.unique.parameters()] for network in networks if network.unique is not None]
    optimizers = [(adam(one), adam(other)) for one, other in zip(columns, uniques, strict=True)]

    def step() -> Tensor:
        losses = []
        for k, network in enumerate(networks):
            batch = members.labels_KB[k], members.weights_KB[k]
            loss = weighted(network.common(members.x[k]), *batch)
            stepped(optimizers[k][0], columns[k], torch.autograd.grad(loss, columns[k]))
            with torch.no_grad():
                z = network.common.outputs(members.x[k])
            joint = weighted(network.joint(members.x_unique[k], z), *batch)
            stepped(optimizers[k][1], uniques[k], torch.autograd.grad(joint, uniques[k]))
            losses.append(torch.stack([loss.detach(), joint.detach()]))
        return torch.stack(losses, 1)

    return step


def as_product(value: Tensor) -> Tensor:
    """A stacked parameter as a batched product wants it: (K, I, O), and (K, 1, O) for a bias."""
    shaped = value.detach()[:, None] if value.dim() == 2 else value.detach().mT
    return shaped.contiguous().requires_grad_()


def pairs(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))


# --- FedOptimus: N replicas of a bottom network ---------------------------------------------------


class Bottoms:
    """A data owner's network, a batch for each of its replicas, and what label owners answer."""

    def __init__(self, num: int, channels: int, hidden: int) -> None:
        torch.manual_seed(0)
        self.num = num
        spec = StripCnn(channels=channels, hidden=hidden)
        self.network: DenseNetwork = spec.build(STRIP, EMBEDDING)
        self.x = [torch.randint(256, (ROWS, *STRIP), dtype=torch.uint8) for _ in range(num)]
        self.gradients = [torch.randn(ROWS, EMBEDDING) / ROWS for _ in range(num)]

    def state(self) -> Parameters:
        return leaves(stack_module_state([self.network] * self.num)[0])

    def inputs(self) -> Tensor:
        return torch.stack(self.x).float().div_(255)


def sgd(tensors: Sequence[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(tensors), lr=0.01, momentum=0.9, fused=True)


def replicas(kind: type[StackedReplicas] | type[LoopedReplicas]) -> Callable[[Bottoms], Step]:
    def way(bottoms: Bottoms) -> Step:
        each = kind(bottoms.network, bottoms.num)
        optimizer = sgd([each.values])

        def step() -> Tensor:
            embeddings = each.forward(bottoms.x)
            each.backward(bottoms.gradients)
            optimizer.step()
            return embeddings.detach()

        return step

    return way


def vmap_replicas(bottoms: Bottoms) -> Step:
    state, network = bottoms.state(), bottoms.network
    optimizer = sgd([*state.values()])

    def embedded(values: Parameters, x: Tensor) -> Tensor:
        result: Tensor = functional_call(network, values, (x,))
        return result

    def step() -> Tensor:
        x = bottoms.inputs()
        with torch.no_grad():
            out, backward, *_ = vjp(lambda values: vmap(embedded)(values, x), state)
            (gradients,) = backward(torch.stack(bottoms.gradients))
            stepped(optimizer, [*state.values()], [gradients[name] for name in state])
        return torch.as_tensor(out).flatten(0, 1)

    return step


def autograd_replicas(bottoms: Bottoms) -> Step:
    """The convolution as one of N groups."""
    state, conv = bottoms.state(), bottoms.network.conv
    assert conv is not None
    optimizer, num = sgd([*state.values()]), bottoms.num
    weight, bias, *linears = state.values()

    def step() -> Tensor:
        x = torch.stack([rows.float().div_(255) for rows in bottoms.x], 1).flatten(1, 2)
        groups = {"padding": conv.padding, "stride": conv.stride, "groups": num}
        maps = F.relu(F.conv2d(x, weight.flatten(0, 1), bias.flatten(), **groups))  # type: ignore[arg-type]
        rows = maps.view(ROWS, num, -1).transpose(0, 1)
        for index, (matrix, local_bias) in enumerate(pairs(linears)):
            rows = torch.baddbmm(local_bias[:, None], F.relu(rows) if index else rows, matrix.mT)
        gradients = torch.autograd.grad(rows, [*state.values()], torch.stack(bottoms.gradients))
        stepped(optimizer, [*state.values()], gradients)
        return rows.detach().flatten(0, 1)

    return step


# --- Measuring ------------------------------------------------------------------------------------


def milliseconds(ways: dict[str, Step], num_steps: int) -> dict[str, list[float]]:
    """Processor time of each step of each way, taking turns; all ways compute the same."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    order = itertools.cycle([list(ways), list(ways)[::-1]])
    for number in range(num_steps + 2):
        results = {}
        for name in next(order):
            started = time.thread_time()
            results[name] = ways[name]()
            if number >= 2:  # the first ones allocate
                taken[name].append(1e3 * (time.thread_time() - started))
        for name, result in results.items() if number < 2 else ():
            torch.testing.assert_close(
                result, results["written"], rtol=1e-3, atol=1e-4, msg=f"{name} differs"
            )
    return taken


def row(what: str, taken: dict[str, list[float]]) -> dict[str, object]:
    least = {name: min(times) for name, times in taken.items()}
    median = {name: statistics.median(times) for name, times in taken.items()}
    library = [name for name in taken if name not in ("written", "looped")]
    return {
        "networks": what,
        **{f"{name} ms": median[name] for name in taken},
        **{f"{name} least ms": least[name] for name in taken},
        **{f"{name} / written": median[name] / median["written"] for name in library},
        **{f"{name} / written, least": least[name] / least["written"] for name in library},
        "at most": AT_MOST,
    }


MEMBERS = {
    "written": written_members,
    "vmap": vmap_members,
    "autograd": autograd_members,
    "looped": looped_members,
}
REPLICAS = {
    "written": replicas(StackedReplicas),
    "vmap": vmap_replicas,
    "autograd": autograd_replicas,
    "looped": replicas(LoopedReplicas),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="timed steps of each way [40]")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for num in (5, 50):
        ways = {name: make(Members(num)) for name, make in MEMBERS.items()}
        taken = milliseconds(ways, given.steps if num < 50 else given.steps // 2)
        rows.append(row(f"CHFL, {num} members", taken))
    for num, channels, hidden in ((5, 16, 64), (5, 8, 32), (10, 16, 64)):
        made = {name: make(Bottoms(num, channels, hidden)) for name, make in REPLICAS.items()}
        taken = milliseconds(made, 2 * given.steps)
        rows.append(row(f"FedOptimus, {num} replicas, {channels} channels", taken))
    _results.write("stacked", "Stacked networks: written out, torch.func, autograd", rows)


if __name__ == "__main__":
    main()
