"""FedSGD (McMahan et al., arXiv:1602.05629v4, section 2): gradients of all parties, added up."""

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dovetail.cli.main import main
from dovetail.experiment import Round, model_of
from dovetail.methods import METHODS, OwnMethod
from dovetail.methods.section import Section
from dovetail.models import ColumnsSpec, RandomStream
from dovetail.network import InProcess, Message


class Settings(Section):  # [fedsgd] of a run file
    widths: tuple[int, ...] = (16,)
    rounds: int = 100
    learning_rate: float = 0.5


@dataclass(frozen=True, eq=False)
class Weights(Message):  # coordinator -> party
    weights_P: torch.Tensor


@dataclass(frozen=True, eq=False)
class Gradient(Message):  # party -> coordinator
    gradient_P: torch.Tensor
    num_rows: int


class Member:  # a party: its rows stay in here
    accepts = (Weights,)

    def __init__(self, x_NF, labels_N, net):
        self.x_NF, self.labels_N, self.net = x_NF, labels_N, net

    def handle(self, message):
        weights = list(self.net.parameters())
        vector_to_parameters(message.weights_P, weights)
        loss = cross_entropy(self.net(self.x_NF), self.labels_N, reduction="sum")
        gradient_P = parameters_to_vector(torch.autograd.grad(loss, weights))
        return Gradient(gradient_P, len(self.x_NF))


def step(net, engine, learning_rate):  # the coordinator's part of a round
    weights_P = parameters_to_vector(net.parameters()).detach()
    replies = engine.ask(dict.fromkeys(engine.parties, Weights(weights_P)), Gradient).or_raise()
    mean_P = sum(r.gradient_P for r in replies.values()) / sum(r.num_rows for r in replies.values())
    vector_to_parameters(weights_P - learning_rate * mean_P, net.parameters())


class FedSgd(OwnMethod):  # what `dovetail` has to know
    name = "fedsgd"
    stages = {"fedsgd": "FedSGD, predicts alone", "pooled-sgd": "SGD, all rows in one place"}
    partitions = ("common-unique",)
    Settings = Settings

    def rounds(self, stage, data, settings, seed):
        places = tuple(range(len(data.common_features)))  # of each party's features the first
        spec = ColumnsSpec(places, (), settings.widths, data.task.num_outputs)
        with RandomStream(seed, "fedsgd"):
            net = spec.build()
        rows = {p.name: (p.joined()[:, places], p.labels) for p in data.train.parties.values()}
        if stage == "pooled-sgd":
            rows = {"pooled": [torch.cat(parts) for parts in zip(*rows.values(), strict=True)]}
        members = {name: Member(*held, spec.build()) for name, held in rows.items()}
        engine = InProcess(members, driver="coordinator")
        models = {name: model_of(data, name, net, spec) for name in data.train.parties}
        for number in range(1, settings.rounds + 1):
            step(net, engine, settings.learning_rate)
            yield Round(number, settings.rounds, models, engine.ledger)


if __name__ == "__main__":  # python own_method.py train run.toml
    METHODS["fedsgd"] = FedSgd()
    main()
