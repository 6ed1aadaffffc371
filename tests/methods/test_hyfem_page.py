"""HyFEM's page against Algorithms 1 to 3, written out a second time from the paper."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, relu

from dovetail.data import Classification, Minibatches, PartyData
from dovetail.federated import Local, train
from dovetail.methods.hyfem.hyfem import Coordinator, Member
from dovetail.methods.hyfem.local_data import HyfemData
from dovetail.methods.settings.hyfem import Config
from dovetail.models import Perceptron, derive_seed, generator
from dovetail.network import InProcess

NUM_FEATURES = {"age": 2, "blood": 3, "scan": 4}  # values of a block's row
NUM_EXTRACTED = {"age": 3, "blood": 4, "scan": 2}  # what its extractor makes of them
HELD = {"clinic": ("age", "blood"), "lab": ("scan", "blood"), "all": ("age", "blood", "scan")}
NUM_ROWS = {"clinic": 40, "lab": 55, "all": 21}
NUM_CLASSES, LR, STEPS, BATCH, SEED = 3, 0.1, 6, 8, 0

Rows = dict[str, Tensor]  # block -> rows of it
Layer = tuple[Tensor, Tensor]  # weight and bias


def data_of(name: str) -> tuple[Rows, Tensor]:
    rng, n = torch.Generator().manual_seed(len(name)), NUM_ROWS[name]
    x = {block: torch.randn(n, NUM_FEATURES[block], generator=rng) for block in HELD[name]}
    return x, torch.randint(NUM_CLASSES, (n,), generator=rng)


def client_update(
    theta: dict[str, Layer], w: list[Layer], x: Rows, y: Tensor, batches: Minibatches, mu: float
) -> tuple[dict[str, Layer], list[Layer]]:
    """Algorithm 2: Q perturbed steps from the server's slice, Eq. (8), (9)."""
    start = [*itertools.chain(*theta.values()), *itertools.chain(*w)]
    now = [each.clone().requires_grad_() for each in start]
    layers = list(zip(now[::2], now[1::2], strict=True))
    for _ in range(STEPS):
        rows = next(batches)
        h = [relu(linear(x[b][rows], *layer)) for b, layer in zip(theta, layers, strict=False)]
        out = torch.cat(h, dim=1)
        for layer in layers[len(theta) : -1]:
            out = relu(linear(out, *layer))
        gradients = torch.autograd.grad(cross_entropy(linear(out, *layers[-1]), y[rows]), now)
        with torch.no_grad():
            for value, gradient, anchor in zip(now, gradients, start, strict=True):
                gradient = gradient.add(value - anchor, alpha=mu) if mu else gradient
                value.add_(gradient, alpha=-LR)
    layers = [(weight.detach(), bias.detach()) for weight, bias in layers]
    return dict(zip(theta, layers, strict=False)), layers[len(theta) :]


def coordinates(blocks: tuple[str, ...]) -> list[int]:
    """Which inputs of the server's first layer a party's are, in the party's order."""
    begins = dict(zip(NUM_EXTRACTED, np.cumsum([0, *NUM_EXTRACTED.values()]), strict=False))
    return [int(begins[b]) + i for b in blocks for i in range(NUM_EXTRACTED[b])]


def rows_of(layer: Layer) -> np.ndarray:
    return torch.cat([layer[0], layer[1][:, None]], dim=1).numpy()


def gain_of(others: list[tuple[np.ndarray, np.ndarray]], neuron: np.ndarray, held: np.ndarray,
            num_parties: int) -> float:  # fmt: skip
    """-C(i, j), Eq. (20) by PFNM with sigma = sigma_0 = 1, mu_0 = 0, coordinate by coordinate.

    ``others`` are the rows matched to server neuron i so far, and which coordinates each has.
    """
    gain = 0.0
    for c in np.flatnonzero(held):
        total = sum(float(row[c]) for row, has in others if has[c])
        precision = 1.0 + sum(bool(has[c]) for _, has in others)
        gain += (total + float(neuron[c])) ** 2 / (precision + 1) - total**2 / precision
    n = len(others)
    return gain + (np.log(n / (num_parties - n)) if n else 2 * np.log(7.0 / num_parties))


def server_rows(
    ws: list[list[Layer]], m: int, layer: int, pi: list[np.ndarray], sizes: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of party m's layer over the server's inputs, the bias last, and which it has."""
    rows = rows_of(ws[m][layer])
    inputs = coordinates(list(HELD.values())[m]) if layer == 0 else list(pi[layer - 1])
    full, has = np.zeros((len(rows), sizes[layer] + 1)), np.zeros(sizes[layer] + 1, dtype=bool)
    full[:, [*inputs, sizes[layer]]] = rows
    has[[*inputs, sizes[layer]]] = True
    return full, has


def match(ws: list[list[Layer]], pis: list[list[np.ndarray]], number: int,
          sizes: list[int]) -> list[list[np.ndarray]]:  # fmt: skip
    """Algorithm 3: each party in turn is matched to what the others make, layer by layer."""
    seed = derive_seed(SEED, "server", "matching", str(number))
    for m in np.random.default_rng(seed).permutation(len(ws)):
        new: list[np.ndarray] = []
        for layer in range(len(sizes) - 1):
            server_neurons, held = server_rows(ws, m, layer, new, sizes)
            matched: list[list[tuple[np.ndarray, np.ndarray]]] = [
                [] for _ in range(sizes[layer + 1])
            ]
            for other in set(range(len(ws))) - {m}:
                rows, has = server_rows(ws, other, layer, pis[other], sizes)
                for j, i in enumerate(pis[other][layer]):
                    matched[i].append((rows[j], has))
            gains = np.array(
                [
                    [gain_of(those, row, held, len(ws)) for row in server_neurons]
                    for those in matched
                ]
            )
            empty = [i for i, those in enumerate(matched) if not those]
            for rank, i in enumerate(empty):
                gains[i] -= 2 * np.log(rank + 1)
            if empty:  # Eq. (18): a neuron that nobody else can fill is taken
                gains[empty] += 1 + len(server_neurons) * (gains.max() - gains.min())
            indices, neurons = linear_sum_assignment(gains, maximize=True)
            new.append(indices[np.argsort(neurons)])
        pis[m] = new
    return pis


def average(ws: list[list[Layer]], pis: list[list[np.ndarray]], p: list[float],
            sizes: list[int]) -> list[np.ndarray]:  # fmt: skip
    """Alg. 3 line 9: each weight's mean over the parties that have it."""
    server = []
    ends = [*sizes[1:], NUM_CLASSES]
    for layer, num_out in enumerate(ends):
        total, mass = (np.zeros((num_out, sizes[layer] + 1)) for _ in range(2))
        for m, pi in enumerate(pis):
            rows, has = server_rows(ws, m, layer, pi, sizes)
            indices = pi[layer] if layer < len(pi) else np.arange(NUM_CLASSES)
            for j, i in enumerate(indices):
                total[i, has] += p[m] * rows[j, has]
                mass[i, has] += p[m]
        server.append(np.divide(total, mass, out=total, where=mass > 0))
    return server


def slice_of(server: list[np.ndarray], blocks: tuple[str, ...], pi: list[np.ndarray],
             sizes: list[int]) -> list[Layer]:  # fmt: skip
    """Pi_m w_0"""
    layers = []
    for layer, rows in enumerate(server):
        outputs = pi[layer] if layer < len(pi) else np.arange(NUM_CLASSES)
        inputs = coordinates(blocks) if layer == 0 else list(pi[layer - 1])
        part = torch.from_numpy(rows[np.ix_(outputs, [*inputs, sizes[layer]])]).float()
        layers.append((part[:, :-1].contiguous(), part[:, -1].contiguous()))
    return layers


def flat(layers: list[Layer]) -> Tensor:
    return torch.from_numpy(np.concatenate([rows_of(layer).ravel() for layer in layers]))


def parts_of(vector: Tensor, shapes: list[tuple[int, int]], *, bias_last: bool) -> list[Layer]:
    """Layers of (outputs, inputs): each weight, then its bias, or each row with its bias."""
    layers = []
    for part, (out, num_in) in zip(
        vector.split([out * (num_in + 1) for out, num_in in shapes]), shapes, strict=True
    ):
        if bias_last:
            rows = part.view(out, num_in + 1)
            layers.append((rows[:, :-1].contiguous(), rows[:, -1].contiguous()))
        else:
            layers.append((part[: out * num_in].view(out, num_in), part[out * num_in :]))
    return layers


@pytest.mark.parametrize("mu", [0.0, 0.1])
@pytest.mark.parametrize(
    ("widths", "server"),
    [
        ({"clinic": (7,), "lab": (7,), "all": (7,)}, (7,)),
        # Two neurons that nobody has are as good as each other: here is one at most.
        ({"clinic": (6,), "lab": (5,), "all": (6,)}, (7,)),
        ({"clinic": (5, 4), "lab": (5, 4), "all": (5, 4)}, (5, 4)),
    ],
    ids=["one width", "several widths", "two layers"],
)
def test_the_page_computes_algorithms_1_to_3(
    mu: float, widths: dict[str, tuple[int, ...]], server: tuple[int, ...]
) -> None:
    task, rounds = Classification(("no", "yes", "perhaps")), 4
    data = {name: data_of(name) for name in HELD}
    party_data = {
        name: HyfemData(PartyData(name, np.arange(len(y)), x, y), task, widths[name])
        for name, (x, y) in data.items()
    }
    members = {name: Member(local_data, Local(name)) for name, local_data in party_data.items()}
    config = Config(
        rounds=rounds, local_steps=STEPS, batch_size=BATCH, learning_rate=LR, mu_1=mu, mu_2=mu,
        width=server,
    )  # fmt: skip
    extractors = {block: Perceptron((size,)) for block, size in NUM_EXTRACTED.items()}
    page = Coordinator(task, extractors, config, seed=SEED)
    playing = train(page, InProcess(members, driver="server"))

    # Line 1 is the page's: where both begin.
    begun = Coordinator(task, extractors, config, seed=SEED)
    begun.hold({name: member.hold(begun.hello()) for name, member in members.items()})
    shapes = [(NUM_EXTRACTED[block], NUM_FEATURES[block]) for block in NUM_EXTRACTED]
    theta_0 = {
        block: parts_of(vector, [shape], bias_last=False)[0]
        for (block, vector), shape in zip(begun.server.extractors.items(), shapes, strict=True)
    }
    w_0, pis = begun.server.classifier, [list(each) for each in begun.server.assignments.values()]
    sizes = [sum(NUM_EXTRACTED.values()), *server]
    p = [NUM_ROWS[name] / sum(NUM_ROWS.values()) for name in HELD]
    batches = {
        name: Minibatches(torch.arange(n), BATCH, generator(SEED, name, "hyfem batches"))
        for name, n in NUM_ROWS.items()
    }
    for number in range(1, rounds + 1):
        thetas, ws = [], []
        for m, (name, blocks) in enumerate(HELD.items()):
            slices = {b: theta_0[b] for b in blocks}, slice_of(w_0, blocks, pis[m], sizes)
            theta, w = client_update(*slices, *data[name], batches[name], mu)
            thetas.append(theta)
            ws.append(w)
        for block in theta_0:  # line 7
            having = [m for m, theta in enumerate(thetas) if block in theta]
            theta_0[block] = tuple(  # type: ignore[assignment]
                (
                    sum((p[m] * thetas[m][block][i].double() for m in having), torch.zeros(()))
                    / sum(p[m] for m in having)
                ).float()
                for i in range(2)
            )
        pis = match(ws, pis, number, sizes)  # line 8
        w_0 = average(ws, pis, p, sizes)
        next(playing)
        for (weight, bias), vector in zip(
            theta_0.values(), page.server.extractors.values(), strict=True
        ):
            torch.testing.assert_close(torch.cat([weight.flatten(), bias]), vector)
        for mine, layer in zip(w_0, page.server.classifier, strict=True):
            assert np.array_equal(mine, layer)
    list(playing)
    for m, (name, blocks) in enumerate(HELD.items()):  # line 9
        layers = [theta_0[block] for block in blocks] + slice_of(w_0, blocks, pis[m], sizes)
        network = members[name].network
        wanted = itertools.chain(*layers)
        for parameter, value in zip(network.parameters(), wanted, strict=True):
            torch.testing.assert_close(parameter, value)
