"""APFed written once more, without parties, messages and layers: the page gives the same bits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.data import Alignment, Classification, PartyData, SharedRows
from dovetail.federated import Local
from dovetail.methods import apfed
from dovetail.models import Head, Perceptron, derive_seed
from dovetail.network import InProcess

ROWS, BATCH, EPOCHS, SEED = 200, 32, 3, 3
WIDTHS, CLASSES, TRADE_OFF, TAU = (8, 6), 3, 0.7, 0.5
PARTNERS = {"lab": 3, "shop": 5}  # party -> columns


def table(name: str, width: int) -> Tensor:
    return torch.randn(ROWS, width, generator=torch.Generator().manual_seed(len(name)))


LABELS = torch.randint(CLASSES, (ROWS,), generator=torch.Generator().manual_seed(9))


class Drawn:
    """Torch's global random numbers, those of one purpose while the context is open."""

    def __init__(self, *purpose: str) -> None:
        self.state = torch.Generator().manual_seed(derive_seed(SEED, *purpose)).get_state()

    def __enter__(self) -> None:
        self.outer = torch.get_rng_state()
        torch.set_rng_state(self.state)

    def __exit__(self, *_: object) -> None:
        self.state = torch.get_rng_state()
        torch.set_rng_state(self.outer)


def layers(*widths: int) -> list[nn.Module]:
    pairs = itertools.pairwise(widths)
    return [layer for pair in pairs for layer in (nn.Linear(*pair), nn.ReLU())]


def contrast(h_BD: Tensor, local_BD: Tensor) -> Tensor:
    """Eq. (14) to (16): each row against its own sample's code among all others."""
    h_BD, local_BD = (F.normalize(each, dim=1, eps=1e-2) for each in (h_BD, local_BD))
    across, within = h_BD @ local_BD.T / TAU, h_BD @ h_BD.T / TAU
    others = within.masked_fill(torch.eye(len(h_BD)).bool(), -torch.inf)
    scores = torch.cat([across, others], dim=1)
    return F.cross_entropy(scores, torch.arange(len(h_BD)))


def sgd(network: nn.Module, rate: float = 0.05, decay: float = 1e-4) -> torch.optim.Optimizer:
    weights = network.parameters()
    return torch.optim.SGD(weights, lr=rate, momentum=0.9, weight_decay=decay, fused=True)


def reference(
    losses: dict[str, str], head_rate: float = 0.05, head_decay: float = 1e-4
) -> dict[str, Tensor]:
    """Weights of the label owner and of every partner after training; "l1" is Eq. (12) so."""
    x, tables = table("clinic", 4), {name: table(name, PARTNERS[name]) for name in losses}
    with Drawn("clinic", "networks"):
        encoder = nn.Sequential(nn.Flatten(), *layers(4, *WIDTHS))
        head = nn.Sequential(*layers(6, 5), nn.Dropout(0.5), nn.Linear(5, CLASSES))
    partners = {}
    for name, loss in losses.items():
        with Drawn(name, "passive"):
            if loss == "contrastive":
                partners[name] = nn.Sequential(nn.Flatten(), *layers(PARTNERS[name], *WIDTHS))
            else:
                partners[name] = nn.Sequential(*layers(6, 8), nn.Linear(8, PARTNERS[name]))
    follows = {name: sgd(network) for name, network in partners.items()}
    follow, follow_head = sgd(encoder), sgd(head, head_rate, head_decay)  # alpha_A, alpha_T
    dropout = Drawn("clinic", "labelled")
    order = torch.Generator().manual_seed(derive_seed(SEED, "clinic", "labelled batches"))
    for _ in range(EPOCHS):
        for rows in torch.randperm(ROWS, generator=order).split(BATCH):
            h = encoder(x[rows])  # Eq. (5)
            leaf = h.detach().requires_grad_()
            with dropout:
                F.cross_entropy(head(leaf), LABELS[rows]).backward()  # Eq. (6)
            assert leaf.grad is not None
            total = leaf.grad.clone()
            for name, loss in losses.items():
                sent = h.detach().requires_grad_()
                if loss == "contrastive":
                    code = partners[name](tables[name][rows])  # Eq. (13)
                    contrast(sent, code).backward()
                else:
                    error = F.l1_loss if loss == "l1" else F.mse_loss
                    error(partners[name](sent), tables[name][rows]).backward()  # Eq. (12)
                assert sent.grad is not None
                total.add_(sent.grad, alpha=TRADE_OFF)  # Eq. (9)
                follows[name].step()  # Eq. (10)
                follows[name].zero_grad()
            h.backward(total)
            for each in (follow, follow_head):
                each.step()  # Eq. (10)
                each.zero_grad()
    networks = {"encoder": encoder, "head": head, **partners}
    return {f"{n}.{k}": w for n, net in networks.items() for k, w in net.state_dict().items()}


def named(loss: str) -> dict[str, str]:
    return {"loss": "reconstruction", "norm": "l1"} if loss == "l1" else {"loss": loss}


@pytest.mark.parametrize(
    ("losses", "head"),
    [
        ({"lab": "contrastive", "shop": "contrastive"}, ()),
        ({"lab": "reconstruction", "shop": "reconstruction"}, ()),
        ({"lab": "reconstruction", "shop": "contrastive"}, ()),
        ({"lab": "l1", "shop": "contrastive"}, (0.01, 0.1)),
    ],
    ids=["C", "R", "mixed", "L1 and a rate of the head"],
)
def test_the_page_gives_the_bits_of_a_plain_loop(
    losses: dict[str, str], head: tuple[float, ...]
) -> None:
    everybody = torch.arange(ROWS)
    alignment = Alignment(dict.fromkeys(("clinic", *losses), everybody))
    data = PartyData("clinic", np.arange(ROWS), {"columns": table("clinic", 4)}, LABELS)
    settings = {"learning_rate": 0.05, "momentum": 0.9, "weight_decay": 1e-4}
    of_head = dict(zip(("head_learning_rate", "head_weight_decay"), head, strict=False))
    active = apfed.Active(
        data,
        alignment,
        Classification(("a", "b", "c")),
        apfed.Config(epochs=EPOCHS, batch_size=BATCH, trade_off=TRADE_OFF, **settings, **of_head),  # type: ignore[arg-type]
        Local("clinic"),
        seed=SEED,
        encoder=Perceptron(WIDTHS),
        head=Head((5,), dropout=0.5),
    )
    passives = {
        name: apfed.Passive(
            SharedRows(name, table(name, PARTNERS[name]), everybody),
            apfed.PassiveConfig(**named(loss), temperature=TAU, **settings),  # type: ignore[arg-type]
            Perceptron(WIDTHS),
            Local(name),
        )
        for name, loss in losses.items()
    }
    for _ in apfed.train(active, InProcess(passives, driver="clinic")):
        pass
    networks = {"encoder": active.encoder, "head": active.head}
    networks |= {name: party.network for name, party in passives.items()}
    expected = reference(losses, *head)
    given = {f"{n}.{k}": w for n, net in networks.items() for k, w in net.state_dict().items()}
    assert given.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(given[name], weight), name
