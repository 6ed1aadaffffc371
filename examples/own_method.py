"""FedSGD (McMahan et al., arXiv:1602.05629v4, section 2): gradients of all parties, added up."""

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dovetail.cli.main import main
from dovetail.methods import METHODS, Driver, Method, Party, Round, handles, pooled
from dovetail.models import ColumnsSpec
from dovetail.network import Message, Weights
from dovetail.settings.section import Section


class Settings(Section):  # [fedsgd] of a run file
    widths: tuple[int, ...] = (16,)
    rounds: int = 100
    learning_rate: float = 0.5


class Begin(Message):  # coordinator -> party
    widths: tuple[int, ...]
    seed: int


class Parameters(Message):  # coordinator -> party; and back, those that all begin with
    weights_P: Weights


class Gradient(Message):  # party -> coordinator
    gradient_P: Weights
    num_rows: int


class Finish(Parameters):  # coordinator -> party: the last weights
    pass


class Member(Party):  # a party: its rows stay in here
    saved = ("net",)

    def __init__(self, data, local):
        self.data, self.x_NF = data, data.x_NF[:, : data.common]

    @handles
    def begin(self, ask: Begin):
        indices, outputs = tuple(range(self.data.common)), self.data.task.num_outputs
        self.spec = ColumnsSpec(indices, (), ask.widths, outputs)
        self.net = self.local.build(self.spec.build, "fedsgd", alike=True)
        return Parameters(parameters_to_vector(self.net.parameters()).detach())

    @handles
    def gradient(self, ask: Parameters):
        weights = list(self.net.parameters())
        vector_to_parameters(ask.weights_P, weights)
        loss = cross_entropy(self.net(self.x_NF), self.data.labels_N, reduction="sum")
        return Gradient(parameters_to_vector(torch.autograd.grad(loss, weights)), len(self.x_NF))

    @handles
    def finish(self, ask: Finish):
        vector_to_parameters(ask.weights_P, self.net.parameters())
        return ask

    def model(self):
        return self.data.model(self.net, self.spec)


class Server(Driver):  # the coordinator
    saved = ("weights_P",)
    weights_P = None

    def __init__(self, settings, seed):
        self.settings, self.seed, self.num_rounds = settings, seed, settings.rounds

    def begin(self, network):
        begin = Begin(self.settings.widths, self.seed)
        first, *_ = self.ask(network, begin, Parameters).values()
        self.weights_P = first.weights_P

    def round(self, number, network):
        replies = self.ask(network, Parameters(self.weights_P), Gradient).values()
        mean_P = sum(reply.gradient_P for reply in replies) / sum(r.num_rows for r in replies)
        self.weights_P = self.weights_P - self.settings.learning_rate * mean_P
        return Round(metrics={"gradient": float(mean_P.norm())})

    def finish(self, network):
        self.ask(network, Finish(self.weights_P), Finish)


class FedSgd(Method):  # what `dovetail` has to know
    name = "fedsgd"
    variants = {"fedsgd": "FedSGD, predicts alone", "pooled-sgd": "SGD, all rows in one place"}
    partitions = ("common-unique",)
    Settings, Side = Settings, Member

    def driver(self, variant, settings, seed):
        return Server(settings, seed)

    def variant_data(self, variant, party_data):
        return pooled(party_data) if variant == "pooled-sgd" else party_data


if __name__ == "__main__":  # python own_method.py train run.toml
    METHODS["fedsgd"] = FedSgd()
    main()
