"""HyFEM's identities and corner cases: what must hold exactly, whatever the data."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hyfem_members import (
    EXTRACTORS,
    HELD,
    SHAPES,
    TASK,
    assert_same_bits,
    config,
    coordinator,
    made,
    member,
    members,
    rows,
    trained,
    weights,
)
from objective import objective
from torch import Tensor, nn

from dovetail.data import (
    Classification,
    Minibatches,
    PartyData,
    Regression,
    table_from_arrays,
)
from dovetail.errors import ConfigError, MessageError, PartyError, TrainingError
from dovetail.federated import Local, train
from dovetail.methods import hyfem
from dovetail.models import generator
from dovetail.models.blocks import ResNet, Unchanged
from dovetail.models.vectors import load_weights
from dovetail.network import Checkpoint, InProcess, Message


def slices(server: hyfem.Coordinator) -> dict[str, tuple[Tensor, Tensor]]:
    return {party: server.slice(party) for party in server.agreed.holdings}


def disagreement_of(server: hyfem.Coordinator) -> tuple[float, float]:
    """sum_m p_m r_1 and sum_m p_m r_2 of (6): what the server step makes smaller."""
    p, layout, shared = server.p(), server.agreed.layout, 0.0
    classifiers = []
    for party, held in server.agreed.holdings.items():
        theta, w = server.known[party]
        apart = (theta - server.slice(party)[0]).double()
        shared += 0.5 * p[party] * apart.square().sum().item()
        classifiers.append(layout.classifier(w, held.blocks, held.widths))
    model = server.server
    assignments = list(model.assignments.values())
    r_2 = objective(classifiers, assignments, layout.sizes, list(p.values()), model.classifier)
    return shared, r_2


def plain_steps(
    network: nn.Module,
    member: hyfem.Member,
    batches: Minibatches,
    steps: int,
    *,
    pull: float = 0.0,
    rate: float = 0.1,
    parameters: Callable[[nn.Module], Any] = lambda network: network.parameters(),
) -> None:
    """Gradient steps as somebody would write them who has read FedProx and not HyFEM."""
    chosen = list(parameters(network))
    start = [parameter.detach().clone() for parameter in chosen]
    for _ in range(steps):
        batch = next(batches)
        x = {name: block[batch] for name, block in member.blocks.items()}
        loss = F.cross_entropy(network(x), member.labels[batch])
        gradients = torch.autograd.grad(loss, chosen)
        with torch.no_grad():
            for parameter, gradient, target in zip(chosen, gradients, start, strict=True):
                parameter -= rate * (gradient + pull * (parameter - target))


def batches_of(name: str, num_rows: int = 12) -> Minibatches:
    return Minibatches(torch.arange(num_rows), 5, generator(0, name, "hyfem batches"))


# --- Corner cases: Remark 3 --------------------------------------------------------------------


def test_one_party_alone_makes_plain_gradient_steps():
    server = coordinator(("age", "blood"))
    server.config = hyfem.alone(config(mu_1=0.3, mu_2=0.2))
    clinic = member("clinic")
    engine = InProcess({"clinic": clinic}, driver="server")
    server.begin(server.federation(engine))
    network = copy.deepcopy(server.model().network)
    for number in (1, 2, 3):
        server.round(number, server.federation(engine))
    server.finish(engine)
    batches = batches_of("clinic")
    plain_steps(network, clinic, batches, 12)
    for name, value in clinic.model().network.state_dict().items():
        torch.testing.assert_close(value, network.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_matching_changes_nothing_for_one_party():
    one, two = coordinator(("age", "blood")), coordinator(("age", "blood"), match_rounds=0)
    matched, alone = member("clinic"), member("clinic")
    trained(one, {"clinic": matched})
    trained(two, {"clinic": alone})
    assert_same_bits(weights(matched.model()), weights(alone.model()))


def fedprox_by_hand(
    names: list[str], mu: float, rounds: int, *, frozen: bool, start: nn.Module
) -> nn.Module:
    """FedProx on one block: local steps pulled to the start of the round, then the mean."""

    def shared(network: nn.Module) -> list[nn.Parameter]:
        parts = network.extractors if frozen else network
        return list(parts.parameters())  # type: ignore[union-attr]

    whole = copy.deepcopy(start)
    parties = {name: member(name, ("age",)) for name in names}
    batches = {name: batches_of(name) for name in names}
    for _ in range(rounds):
        ends = []
        for name, party_member in parties.items():
            network = copy.deepcopy(whole)
            plain_steps(network, party_member, batches[name], 4, pull=mu, parameters=shared)
            ends.append(shared(network))
        with torch.no_grad():
            for parameter, *others in zip(shared(whole), *ends, strict=True):
                parameter.copy_(torch.stack([other.detach() for other in others]).mean(0))
    return whole


@pytest.mark.parametrize("mu", [0.0, 0.5], ids=["FedAvg", "FedProx"])
@pytest.mark.parametrize("frozen", [True, False], ids=["fixed classifier", "whole model"])
def test_one_block_is_fedprox_and_without_a_pull_fedavg(mu, frozen):
    names = ["clinic", "lab", "surgery"]
    settings = {"mu_1": mu, "classifier": "frozen"} if frozen else {}
    server = coordinator(("age",), **settings)
    if not frozen:
        server.config = hyfem.fedprox(server.config, mu)
    engine = InProcess({name: member(name, ("age",)) for name in names}, driver="server")
    server.begin(server.federation(engine))
    expected = fedprox_by_hand(names, mu, 3, frozen=frozen, start=server.model().network)
    for number in (1, 2, 3):
        server.round(number, server.federation(engine))
    for name, value in weights(server.model()).items():
        torch.testing.assert_close(value, expected.state_dict()[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["resnet-18", "resnet-34"])
def test_residual_networks_are_averaged_with_what_their_layers_saw(kind):
    # One block of pictures is FedAvg on the whole network, running means and variances included.
    rng, names = torch.Generator().manual_seed(0), ["clinic", "lab"]
    parties = {
        name: PartyData(
            name,
            np.arange(12),
            {"scan": torch.randn(12, 1, 16, 16, generator=rng)},
            torch.arange(12) % 3,
        )
        for name in names
    }

    def members() -> dict[str, hyfem.Member]:
        held = {name: hyfem.HyfemData(party, TASK, (5,)) for name, party in parties.items()}
        return {name: made(each) for name, each in held.items()}

    settings = hyfem.fedprox(config(batch_size=12, local_steps=1), 0.0)
    server = hyfem.Coordinator(TASK, {"scan": ResNet(2, kind=kind)}, settings, seed=0)
    engine = InProcess(members(), driver="server")
    server.begin(server.federation(engine))
    whole = copy.deepcopy(server.model().network)
    batches = {
        name: Minibatches(torch.arange(12), 12, generator(0, name, "hyfem batches"))
        for name in names
    }
    for number in (1, 2):
        server.round(number, server.federation(engine))
        ends = []
        for name, party in members().items():
            network = copy.deepcopy(whole).train()
            plain_steps(network, party, batches[name], 1)
            ends.append(network.state_dict())
        whole.load_state_dict(
            {key: sum(end[key] for end in ends) / len(ends) for key in ends[0]}  # type: ignore[misc]
        )
    for name, value in weights(server.model()).items():
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(value, whole.state_dict()[name], rtol=1e-4, atol=1e-5)
    moved = weights(server.model())["extractors.0.1.running_mean"]
    assert moved.abs().max() > 1e-3


@pytest.mark.slow
def test_with_a_large_mu_1_a_round_is_fedavgs_step_of_rate_1_over_mu_1():
    # Remark 3.3, in (7): one block, a classifier that no one trains. With a rate of 1 / mu_1 a
    # party's last step is from where the round began, by the gradient where it stands.
    names = ["clinic", "lab", "surgery"]

    def departure(mu: float, local_steps: int, rate: float) -> float:
        server = coordinator(
            ("age",), classifier="frozen", mu_1=mu, local_steps=local_steps, batch_size=12,
            learning_rate=rate, rounds=10,
        )  # fmt: skip
        parties = {name: member(name, ("age",)) for name in names}
        engine = InProcess(parties, driver="server")
        server.begin(server.federation(engine))
        start = server.server.extractors["age"].clone()
        network = copy.deepcopy(server.model().network)
        chosen = list(network.extractors.parameters())
        for number in range(1, 11):
            server.round(number, server.federation(engine))
            losses = [
                F.cross_entropy(network(dict(member.blocks)), member.labels)
                for member in parties.values()
            ]
            gradients = torch.autograd.grad(torch.stack(losses).mean(), chosen)
            with torch.no_grad():
                for parameter, gradient in zip(chosen, gradients, strict=True):
                    parameter -= rate * gradient
        fedavg = torch.cat([parameter.detach().flatten() for parameter in chosen])
        return float((server.server.extractors["age"] - fedavg).norm() / (fedavg - start).norm())

    assert departure(500.0, 6, 1 / 500) < 1e-3
    assert departure(500.0, 6, 1 / 500) < departure(50.0, 6, 1 / 50) / 5
    assert departure(0.0, 6, 1 / 500) > 1.0  # without the pull a round goes six times as far


def test_a_large_pull_brings_the_server_to_what_fedavg_minimises():
    # Remark 3.3, where it is a convex problem: one linear layer, and parties of different classes.
    # The server then stands where the gradient of the mean loss is zero, the nearer the larger mu.
    def labelled(name: str, classes: tuple[int, int]) -> PartyData:
        data = rows(name, ("age",))
        labels = torch.tensor(classes)[(data.blocks["age"][:, 0] > 0).long()]
        return PartyData(name, data.ids, data.blocks, labels)

    data = [labelled("a", (0, 1)), labelled("bb", (1, 2)), labelled("ccc", (2, 0))]

    def gradient_left(mu: float) -> float:
        settings = config(
            rounds=25, local_steps=6, batch_size=12, learning_rate=1 / (0.5 + mu), mu_2=mu
        )
        server = hyfem.Coordinator(TASK, {"age": Unchanged()}, settings, seed=0)
        trained(server, {each.name: made(hyfem.HyfemData(each, TASK, ())) for each in data})
        network = server.model().network
        losses = [F.cross_entropy(network(dict(each.blocks)), each.labels) for each in data]
        gradients = torch.autograd.grad(torch.stack(losses).mean(), list(network.parameters()))
        return torch.cat([gradient.flatten() for gradient in gradients]).norm().item()

    assert gradient_left(2.0) < gradient_left(0.0) / 3


def test_fedper_shares_extractors_and_keeps_classifiers():
    server = coordinator()
    server.config = hyfem.fedper(server.config)
    parties = members()
    trained(server, parties)
    clinic, surgery = (parties[name].model().network for name in ("clinic", "surgery"))
    for one, two in zip(
        clinic.extractors[0].parameters(), surgery.extractors[0].parameters(), strict=True
    ):
        assert torch.equal(one, two)  # both hold "age" first
    assert not torch.equal(clinic.classifier[-1].weight, surgery.classifier[-1].weight)
    with pytest.raises(TrainingError, match="the server has no classifier"):
        server.model()


def test_fedper_sends_no_classifier():
    server = coordinator(rounds=1)
    server.config = hyfem.fedper(server.config)
    engine = InProcess(members(), driver="server")
    list(train(server, engine))
    sent = [line for line in engine.ledger.lines() if line["message"] == "hyfem.Trained"]
    assert {line["from"] for line in sent} == set(HELD)
    for line in sent:
        shapes = {tensor["name"]: tensor["shape"] for tensor in line["tensors"]}
        assert list(shapes["classifier"]) == [0]


# --- Rates, means and scales -------------------------------------------------------------------


def server_of(**settings: Any) -> tuple[hyfem.Coordinator, dict[str, hyfem.Member]]:
    """A server and its parties after a whole training."""
    server, parties = coordinator(**settings), members()
    trained(server, parties)
    return server, parties


def test_a_cosine_begins_at_the_rate_and_falls_with_every_round():
    settings = config(schedule="cosine", rounds=4, learning_rate=0.2)
    rates = [settings.of_round(number).learning_rate for number in range(1, 5)]
    assert rates == pytest.approx([0.2, 0.2 * (2 + 2**0.5) / 4, 0.1, 0.2 * (2 - 2**0.5) / 4])
    assert config(rounds=4).of_round(4).learning_rate == config().learning_rate


def test_a_cosine_of_one_round_is_a_constant_rate():
    one, plain = server_of(rounds=1, schedule="cosine")[0], server_of(rounds=1)[0]
    assert_same_bits(weights(one.model()), weights(plain.model()))


def test_the_server_is_the_mean_over_its_last_rounds_and_parties_have_slices_of_that():
    after = [weights(server_of(rounds=number)[0].model()) for number in (2, 3)]
    server, parties = server_of(rounds=3, average_last=2)
    for name, value in weights(server.model()).items():
        torch.testing.assert_close(value, (after[0][name] + after[1][name]) / 2)
    for name, party in parties.items():
        assert_same_bits(weights(party.model()), weights(server.model_of(name)))


def test_a_mean_over_one_round_is_the_last():
    one, plain = server_of(average_last=1)[0], server_of()[0]
    assert_same_bits(weights(one.model()), weights(plain.model()))


def test_features_count_as_if_a_party_held_all_blocks():
    server, parties = server_of(rounds=1, scale_blocks=True)
    for party in parties.values():
        network, x = party.network, {name: block[:3] for name, block in party.blocks.items()}
        parts = [
            extractor(x[name]).flatten(1)
            for name, extractor in zip(network.blocks, network.extractors, strict=True)
        ]
        scaled = torch.cat(parts, dim=1) * (len(server.agreed.blocks) / len(parts))
        torch.testing.assert_close(network(x), network.classifier(scaled))


def of_two_classes() -> hyfem.Member:
    data = rows("clinic", HELD["clinic"])
    held = PartyData(data.name, data.ids, data.blocks, torch.arange(12) % 2)
    return made(hyfem.HyfemData(held, TASK, (5,)))


def test_a_party_unlearns_no_class_that_it_lacks():
    # FedRS with alpha = 0: the third logit has no part in the softmax, so its row stays as it was.
    begun = []
    for held_classes in (False, True):
        server, clinic = coordinator(("age", "blood"), held_classes=held_classes), of_two_classes()
        engine = InProcess({"clinic": clinic}, driver="server")
        server.begin(server.federation(engine))
        last, before = clinic.network.classifier[-1], server.slice("clinic")
        load_weights(clinic.network, *before)
        row, others = last.weight[2].clone(), copy.deepcopy(clinic.network)
        server.round(1, server.federation(engine))
        begun.append((torch.equal(row, last.weight[2]), clinic.network, others))
    (kept, _, _), (kept_held, trained_here, by_hand) = begun
    assert (kept, kept_held) == (False, True)
    batches, clinic = batches_of("clinic"), of_two_classes()
    for _ in range(4):
        batch = next(batches)
        logits = by_hand({name: block[batch] for name, block in clinic.blocks.items()})
        loss = F.cross_entropy(logits[:, :2], clinic.labels[batch])
        chosen = list(by_hand.parameters())
        with torch.no_grad():
            for weight, slope in zip(chosen, torch.autograd.grad(loss, chosen), strict=True):
                weight -= 0.1 * slope
    for one, two in zip(trained_here.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_parties_of_all_classes_learn_the_same_with_held_classes():
    one, two = server_of()[0], server_of(held_classes=True)[0]
    assert_same_bits(weights(one.model()), weights(two.model()))


def test_a_party_that_holds_all_blocks_is_scaled_by_nothing():
    servers = []
    for scale in (False, True):
        servers.append(coordinator(scale_blocks=scale))
        trained(servers[-1], {"clinic": member("clinic", tuple(SHAPES))})
    assert_same_bits(weights(servers[0].model()), weights(servers[1].model()))


def test_a_party_refuses_a_round_that_there_is_not():
    server, parties = coordinator(), members()
    engine = InProcess(parties, driver="server")
    server.begin(server.federation(engine))
    replies = engine.ask({"clinic": hyfem.Train(*server.slice("clinic"), 0)}, hyfem.Trained)
    assert "there is no round 0" in replies.failures["clinic"].cause


# --- The server step ---------------------------------------------------------------------------


@pytest.mark.parametrize("cost", ["pfnm", "distance"])
def test_the_server_step_does_not_raise_its_part_of_the_objective(cost):
    server = coordinator(cost=cost, mu_1=0.1, mu_2=0.1, width=7)
    engine = InProcess(members(), driver="server")
    server.begin(server.federation(engine))
    for _ in range(3):
        requests = {party: hyfem.Train(*sent, 1) for party, sent in slices(server).items()}
        for party, reply in engine.ask(requests, hyfem.Trained).items():
            server.known[party] = reply.extractors, reply.classifier
        shared, private = disagreement_of(server)
        server.combine()
        shared_after, local_after = disagreement_of(server)
        assert shared_after <= shared + 1e-9
        if cost == "distance":
            assert local_after <= private + 1e-9


def test_extractors_are_the_mean_over_the_parties_that_hold_the_block():
    server = coordinator(("age", "blood"))
    engine = InProcess(
        {
            "clinic": member("clinic"),
            "small": made(hyfem.HyfemData(rows("small", ("age",), num_rows=4), TASK, (5,))),
        },
        driver="server",
    )
    server.begin(server.federation(engine))
    assert server.p() == {"clinic": 0.75, "small": 0.25}
    server.round(1, server.federation(engine))
    ages = {party: server.known[party][0][:9] for party in ("clinic", "small")}
    expected = 0.75 * ages["clinic"] + 0.25 * ages["small"]
    torch.testing.assert_close(server.server.extractors["age"], expected)
    assert torch.equal(server.server.extractors["blood"], server.known["clinic"][0][9:])


def test_even_weights_count_every_party_alike():
    server = coordinator(weights="even")
    server.begin(server.federation(InProcess(members(), driver="server")))
    assert set(server.p().values()) == {1 / 3}


def test_a_partys_slice_predicts_as_the_server_does_where_its_width_is_the_servers():
    # Its blocks alone, the others zero, Eq. (14): in a first layer that is the slice of columns.
    server = coordinator()
    trained(server, members())
    for name, blocks in HELD.items():
        x = dict(rows(name, blocks).blocks)
        torch.testing.assert_close(server.model_of(name).outputs(x), server.model().outputs(x))


def test_rounds_beyond_match_rounds_keep_the_assignment():
    server = coordinator(match_rounds=1, width=8)
    engine = InProcess(members(), driver="server")
    server.begin(server.federation(engine))
    assignments = []
    for number in (1, 2, 3):
        server.round(number, server.federation(engine))
        assignments.append(
            {
                party: assignment[0].tolist()
                for party, assignment in server.server.assignments.items()
            }
        )
    assert assignments[0] == assignments[1] == assignments[2]


def test_parties_with_classifiers_of_their_own_are_matched_where_position_says_nothing():
    # All hold one block and the same rows, so that only the order of their neurons differs.
    def disagreement(match_rounds: int | None) -> float:
        settings = config(
            start="own", cost="distance", match_rounds=match_rounds, learning_rate=1e-6, rounds=1
        )
        server = hyfem.Coordinator(TASK, {"age": Unchanged()}, settings, seed=0)
        parties = {name: member(name, ("age",), widths=(8,)) for name in HELD}
        trained(server, parties)
        return disagreement_of(server)[1]

    assert disagreement(None) < 0.8 * disagreement(0)


def test_a_free_server_grows_to_all_neurons_at_most():
    server = coordinator(width="free", gamma=50.0)
    played = trained(server, members())
    assert 5 < played[-1].metrics["widths"][0] <= 15
    assert server.model().network.classifier[0].out_features == played[-1].metrics["widths"][0]


def test_classifiers_of_any_depth_and_of_different_widths_are_matched():
    parties = {
        name: member(name, widths=widths)
        for name, widths in zip(HELD, [(5, 3), (4, 4), (2, 3)], strict=True)
    }
    server = coordinator(width=(6, 5))
    trained(server, parties)
    assert server.server.widths == (6, 5)
    assert parties["surgery"].model().network.classifier[0].out_features == 2


@pytest.mark.trained
def test_linear_classifiers_and_unchanged_blocks_train():
    server = hyfem.Coordinator(TASK, dict.fromkeys(SHAPES, Unchanged()), config(rounds=12), seed=0)
    played = trained(server, members(widths=()))
    assert played[-1].losses["clinic"] < played[0].losses["clinic"]


@pytest.mark.trained
def test_a_regression_trains():
    task = Regression(0.0, 1.0)
    parties = {}
    for name, blocks in HELD.items():
        data = rows(name, blocks)
        labels = next(iter(data.blocks.values())).flatten(1).sum(1)
        parties[name] = made(hyfem.HyfemData(PartyData(name, data.ids, data.blocks, labels), task))
    server = hyfem.Coordinator(task, EXTRACTORS, config(rounds=40, learning_rate=0.02), seed=0)
    played = trained(server, parties)
    assert sum(played[-1].losses.values()) < sum(played[0].losses.values())


def test_going_on_from_own_weights_is_another_method_than_restarting():
    models = []
    for restart in (True, False):
        server = coordinator(restart=restart, mu_1=0.1, mu_2=0.1)
        trained(server, members())
        models.append(weights(server.model()))
    assert any(not torch.equal(models[0][name], models[1][name]) for name in models[0])


# --- A new party: Remark 2 ---------------------------------------------------------------------


def test_a_new_party_predicts_at_once_as_the_server_does_from_its_blocks():
    server = coordinator()
    parties = members()
    trained(server, parties)
    whole = server.model()
    newcomer = made(hyfem.HyfemData(rows("hospice", ("scan", "age")), TASK, (5,)))
    engine = InProcess({**parties, "hospice": newcomer}, driver="server")
    server.invite(server.federation(engine), "hospice")
    x = dict(rows("hospice", ("scan", "age")).blocks)
    torch.testing.assert_close(newcomer.model().outputs(x), whole.outputs(x))
    played = server.round(4, server.federation(engine))
    assert set(played.losses) == {*HELD, "hospice"}
    assert len(server.server.assignments["hospice"][0]) == 5


def test_a_new_party_wider_than_the_server_is_refused():
    server = coordinator()
    trained(server, members())
    engine = InProcess({"hospice": member("hospice", ("age",), widths=(9,))}, driver="server")
    with pytest.raises(PartyError, match=r"hidden widths \(9,\) exceed the server's \(5,\)"):
        server.invite(server.federation(engine), "hospice")


# --- Who does not answer, and who lies ---------------------------------------------------------


class Unwell:
    """A party that in some rounds does not answer, or answers nonsense."""

    def __init__(
        self, member: hyfem.Member, spoil: Callable[[int, hyfem.Trained], Message]
    ) -> None:
        self.member = member
        self.spoil = spoil
        self.accepts = member.accepts
        self.round = 0

    def handle(self, message: Message) -> Message:
        answer = self.member.handle(message)
        if isinstance(answer, hyfem.Trained):
            self.round += 1
            return self.spoil(self.round, answer)
        return answer


def _silent(number: int, answer: hyfem.Trained) -> Message:
    if number == 2:
        raise TrainingError("its disk is full")
    return answer


def _not_finite(number: int, answer: hyfem.Trained) -> Message:
    if number == 2:
        return hyfem.Trained(answer.extractors * float("nan"), answer.classifier, answer.loss)
    return answer


def _too_long(number: int, answer: hyfem.Trained) -> Message:
    if number == 2:
        return hyfem.Trained(answer.extractors, torch.zeros(3), answer.loss)
    return answer


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_silent, "its disk is full"),
        (_not_finite, "hyfem.Trained.extractors: a value in it is not finite"),
        (_too_long, "hyfem.Trained.classifier: expected shape"),
    ],
    ids=["silent", "not finite", "wrong shape"],
)
def test_a_party_that_does_not_answer_as_asked_is_named_and_keeps_its_place(spoil, reason):
    server = coordinator()
    parties: dict[str, Any] = members()
    parties["lab"] = Unwell(parties["lab"], spoil)
    engine = InProcess(parties, driver="server")
    known = []
    played = []
    for each in train(server, engine):
        played.append(each)
        known.append(server.known["lab"][0].clone())
    assert [set(each.missed) for each in played] == [set(), {"lab"}, set()]
    assert played[1].missed["lab"].startswith(reason)
    assert set(played[1].losses) == {"clinic", "surgery"}
    assert torch.equal(known[0], known[1])  # the weights it last sent
    assert not torch.equal(known[1], known[2])


def test_training_ends_where_nobody_answers():
    def never(number: int, answer: hyfem.Trained) -> Message:
        raise TrainingError("no power")

    server = coordinator()
    parties = {name: Unwell(each, never) for name, each in members().items()}
    with pytest.raises(TrainingError, match=r"round 1: no party answered as asked.*no power"):
        trained(server, parties)


def test_a_learning_rate_that_is_too_large_is_named():
    server = coordinator(learning_rate=1e20)
    with pytest.raises(TrainingError, match="lower learning_rate"):
        trained(server, members())


# --- Resume, and bytes -------------------------------------------------------------------------


SETTINGS = [
    {},
    {"restart": False, "mu_1": 0.1, "mu_2": 0.2, "momentum": 0.9},
    {"width": "free", "gamma": 20.0, "class_weights": True, "held_classes": True},
    {"classifier": "own"},
    {"cost": "distance", "match_rounds": 1, "width": 9},
    {"start": "own"},
    {"schedule": "cosine", "average_last": 3, "scale_blocks": True},
    {"choose": "loss", "patience": 4},
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: ",".join(settings) or "usual")
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(settings, tmp_path: Path):
    whole_server, whole = coordinator(rounds=4, **settings), members()
    whole_rounds = trained(whole_server, whole)

    stopped_server, stopped = coordinator(rounds=4, **settings), members()
    checkpoint = Checkpoint(tmp_path)
    run = train(stopped_server, InProcess(checkpoint.hosting(stopped), driver="server"), checkpoint)
    for _ in range(3):  # the third is played but not saved
        next(run)
    run.close()

    server, parties = coordinator(rounds=4, **settings), members()
    played = trained(server, parties, Checkpoint(tmp_path))
    assert [each.number for each in played] == [3, 4]
    assert played[-1].losses == whole_rounds[-1].losses
    for name in HELD:
        assert_same_bits(weights(parties[name].model()), weights(whole[name].model()))
    if settings.get("classifier") != "own":
        assert_same_bits(weights(server.model()), weights(whole_server.model()))


def test_a_party_that_lost_its_disk_goes_on_from_its_slice(tmp_path: Path):
    trained(coordinator(rounds=2), members(), Checkpoint(tmp_path))
    for path in (tmp_path / "parties" / "lab").iterdir():
        path.unlink()
    played = trained(coordinator(rounds=3), members(), Checkpoint(tmp_path))
    assert [(each.number, set(each.losses)) for each in played] == [(3, set(HELD))]


def test_a_party_that_lost_its_disk_and_cannot_begin_anew_is_left_out(tmp_path: Path):
    trained(coordinator(rounds=2), members(), Checkpoint(tmp_path))
    for path in (tmp_path / "parties" / "lab").iterdir():
        path.unlink()
    parties: dict[str, Any] = members()
    other = Classification(("no", "yes", "never"))
    parties["lab"] = made(hyfem.HyfemData(rows("lab", HELD["lab"]), other, (5,)))
    (played,) = trained(coordinator(rounds=3), parties, Checkpoint(tmp_path))
    assert set(played.losses) == {"clinic", "surgery"}
    assert played.missed["lab"].startswith("was sent hyfem.Train before training began")


def test_weights_through_bytes_are_the_same_bits():
    models = []
    for through_bytes in (False, True):
        server = coordinator()
        engine = InProcess(members(), driver="server", through_bytes=through_bytes)
        list(train(server, engine))
        models.append(weights(server.model()))
    assert_same_bits(*models)


def test_the_saved_server_predicts_from_whichever_blocks_there_are(tmp_path: Path):
    from dovetail.models import load

    server = coordinator()
    trained(server, members())
    again = load(server.model().save(tmp_path / "server"))
    for blocks in (("age",), ("age", "scan"), tuple(SHAPES)):
        x = dict(rows("anyone", blocks).blocks)
        assert torch.equal(again.outputs(x), server.model().outputs(x))


# --- Bad input ---------------------------------------------------------------------------------


def test_a_party_without_samples_is_refused():
    with pytest.raises(ConfigError, match="party 'clinic' has no labelled sample"):
        made(hyfem.HyfemData(rows("clinic", ("age",), num_rows=0), TASK))


def test_a_party_without_blocks_is_refused():
    with pytest.raises(ConfigError, match="party 'clinic' has no block"):
        made(hyfem.HyfemData(rows("clinic", ()), TASK))


def test_a_block_that_no_party_holds_is_refused():
    parties = {"clinic": member("clinic"), "other": member("other", ("age",))}
    with pytest.raises(ConfigError, match="no party holds the block 'scan'"):
        trained(coordinator(), parties)


def test_a_block_that_the_run_does_not_know_is_refused():
    with pytest.raises(PartyError, match="party 'lab': it holds a block 'scan'; this run's are"):
        trained(coordinator(("age", "blood")), members())


def test_a_class_that_no_party_holds_is_refused():
    parties = {}
    for name in HELD:
        data = rows(name, HELD[name])
        kept = data.with_labels_on((data.labels != 2).nonzero().flatten())
        parties[name] = made(hyfem.HyfemData(kept, TASK))
    with pytest.raises(ConfigError, match="no party has a sample of class 'perhaps'"):
        trained(coordinator(), parties)


def test_classifiers_of_different_depth_are_refused():
    parties = {**members(), "lab": member("lab", widths=(5, 5))}
    with pytest.raises(ConfigError, match="party 'lab' has a classifier of 2 hidden layers, party"):
        trained(coordinator(), parties)


def test_a_block_of_another_shape_is_refused():
    other = PartyData("lab", np.arange(3), {"age": torch.zeros(3, 7)}, torch.arange(3))
    parties = {**members(), "lab": made(hyfem.HyfemData(other, TASK, (5,)))}
    with pytest.raises(PartyError, match=r"its block 'age' has rows of shape \(7,\), other"):
        trained(coordinator(), parties)


def test_a_width_that_cannot_be_is_refused_before_training():
    with pytest.raises(ConfigError, match="must have at least 5 neurons"):
        trained(coordinator(width=4), members())
    with pytest.raises(ConfigError, match="width names 2 hidden layers"):
        trained(coordinator(width=(5, 5)), members())


def test_counts_of_classes_leave_a_party_only_when_asked_for():
    for asked, expected in ((False, (1, 1, 1)), (True, (4, 4, 4))):
        assert member("clinic").handle(hyfem.Hello(asked)).classes == expected


def test_a_party_refuses_a_slice_that_is_not_its_own():
    server = coordinator()
    parties = members()
    engine = InProcess(parties, driver="server")
    server.begin(server.federation(engine))
    _, private_slice = slices(server)["clinic"]
    replies = engine.ask({"clinic": hyfem.Train(torch.zeros(2), private_slice, 1)}, hyfem.Trained)
    assert "hyfem.Train.extractors: expected shape" in replies.failures["clinic"].cause


def beginning(*extractors: dict[str, Any]) -> hyfem.Begin:
    """As a server would have it that wants a party's memory."""
    return hyfem.Begin(
        config().model_dump_json(),
        tuple(json.dumps(each) for each in extractors),
        ("",) * len(extractors),
        json.dumps(TASK.to_json()),
        0,
        len(extractors),
    )


@pytest.mark.parametrize(
    ("extractor", "words"),
    [
        ({"kind": "perceptron", "widths": [1 << 20, 1 << 20]}, "make networks of more than"),
        ({"kind": "perceptron", "widths": [1 << 40]}, "at most 1000 layers of width 16777216"),
        ({"kind": "perceptron", "widths": [1] * 2000}, "at most 1000 layers"),
        ({"kind": "resnet-18", "width": 1 << 13, "stem": "small"}, "make networks of more than"),
        (
            {"kind": "small-cnn", "channels": [8], "kernel": 3, "pool": 1 << 12},
            "make networks of more than",
        ),
    ],
)
def test_a_party_refuses_a_network_that_would_take_its_memory(extractor, words):
    surgery = made(hyfem.HyfemData(rows("surgery", ("scan",)), TASK, (5,)))
    with pytest.raises(MessageError, match=words):
        surgery.handle(beginning(extractor))
    assert not hasattr(surgery, "network")


def test_a_party_refuses_an_extractor_that_its_block_cannot_have():
    clinic = made(hyfem.HyfemData(rows("clinic", ("age",)), TASK, (5,)))
    with pytest.raises(MessageError, match="a ResNet-18 needs images"):
        clinic.handle(beginning({"kind": "resnet-18", "width": 8, "stem": "small"}))


# --- Raw columns ----------------------------------------------------------------------------------


def offering(summary: str) -> hyfem.Holding:
    return hyfem.Holding(("age",), ("",), (summary,), (5,), 4, (1, 1, 1))


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        ("{", "cannot be read"),
        ("{}", "it has no column"),
        ('{"years": {"count": 1, "missing": 0, "mean": NaN, "squares": 0}}', "years"),
        ('{"years": {"count": 1, "missing": 0, "mean": 1, "squares": -1}}', "years"),
        ('{"years": {"counts": {"old": -1}, "missing": 0}}', "years"),
        ("", "neither a shape nor a summary"),
    ],
)
def test_a_summary_that_cannot_be_is_its_partys_fault(summary: str, words: str):
    with pytest.raises(PartyError, match=words) as refused:
        coordinator(("age",)).hold({"clinic": offering(summary)})
    assert refused.value.party == "clinic"


def test_columns_are_encoded_by_the_rows_of_all_and_a_newcomer_takes_that_encoding():
    def newcomer_of(name: str, years: list[float]) -> hyfem.Member:
        tables = {"age": table_from_arrays(name, {"years": np.array(years)})}
        data = PartyData(name, np.arange(3), labels=torch.arange(3), tables=tables)
        return made(hyfem.HyfemData(data, TASK, (5,)))

    parties = {"clinic": newcomer_of("clinic", [1, 2, 3]), "lab": newcomer_of("lab", [5, 6, 7])}
    newcomer = newcomer_of("surgery", [100, 200, 300])
    server = coordinator(("age",))
    trained(server, parties)
    everyone = InProcess({**parties, "surgery": newcomer}, driver="server")
    server.invite(server.federation(everyone), "surgery")
    pooled = np.array([1, 2, 3, 5, 6, 7])
    (column,) = server.agreed.encodings["age"].to_json()["columns"]
    assert (column["mean"], column["scale"]) == (pooled.mean(), pytest.approx(pooled.std()))
    for party in (*parties.values(), newcomer):
        (local_column,) = party.model().inputs["age"].to_json()["columns"]
        agreed = {key: value for key, value in column.items() if key != "seen"}
        assert {key: local_column[key] for key in agreed} == agreed
    restored = coordinator(("age",))
    restored.restore(copy.deepcopy(server.state()))
    assert restored.agreed.encodings["age"].to_json() == server.agreed.encodings["age"].to_json()


# --- Calibration ---------------------------------------------------------------------------------


def skewed(name: str, blocks: tuple[str, ...], classes: tuple[int, ...], **settings: Any) -> Any:
    """A party that has some classes only, which lie apart."""
    rng = torch.Generator().manual_seed(len(name))
    labels = torch.tensor(classes).repeat(60)
    x = {
        block: torch.randn(len(labels), *SHAPES[block], generator=rng)
        + 2.0 * (labels - 1).view(-1, *[1] * len(SHAPES[block]))
        for block in blocks
    }
    part = PartyData(name, np.arange(len(labels)), x, labels)
    return made(hyfem.HyfemData(part, TASK, (5,), **{"moments": True, **settings}))


def skewed_members(**settings: Any) -> dict[str, hyfem.Member]:
    classes = {"clinic": (0, 1), "lab": (1, 2), "surgery": (0, 2)}
    return {
        name: skewed(name, HELD[name], classes_here, **settings)
        for name, classes_here in classes.items()
    }


def right_of(server: hyfem.Coordinator, parties: Mapping[str, hyfem.Member]) -> int:
    """Judged rows that parties' slices have right."""
    num_right = 0
    for name, party in parties.items():
        judged = party.judged
        outputs = server.model_of(name).outputs({b: x[judged] for b, x in party.blocks.items()})
        num_right += int((outputs.argmax(dim=1) == party.labels[judged]).sum())
    return num_right


@pytest.mark.slow
def test_a_calibrated_classifier_is_kept_only_where_more_judged_rows_are_right() -> None:
    kept = {}
    for rate in (0.003, 0.3):  # hardly trained, and trained well
        changed = {"calibrate": True, "rounds": 6, "local_steps": 12, "learning_rate": rate}
        server, parties = coordinator(**changed), skewed_members()
        trained(server, parties)
        report = server.calibrated
        assert report is not None
        assert report["rows"] == sum(len(member.judged) for member in parties.values()) == 36
        assert report["kept"] == (report["after"] > report["before"])
        assert right_of(server, parties) == max(report["before"], report["after"])
        assert server.model().about["calibrated"] == report
        kept[rate] = report["kept"]
    assert kept[0.003]


@pytest.mark.slow
def test_judged_rows_take_no_part_in_training_or_moments() -> None:
    server, parties = coordinator(calibrate=True), skewed_members()
    trained(server, parties)
    lab = parties["lab"]
    assert not set(lab.judged.tolist()) & set(lab.learned.tolist())
    assert len(lab.judged) + len(lab.learned) == 120
    moments = lab.handle(hyfem.GiveMoments(slices(server)["lab"][0]))
    assert isinstance(moments, hyfem.Moments)
    assert moments.counts_C.tolist() == [0, 54, 54]
    network = copy.deepcopy(lab.network)
    x = {block: lab.blocks[block][lab.learned] for block in lab.data.blocks}
    features = network.joined(x)[lab.labels[lab.learned] == 1]
    torch.testing.assert_close(moments.means_CD[1], features.mean(dim=0))
    wanted = torch.cov(features.T, correction=0)
    torch.testing.assert_close(moments.covariances_CDD[1], wanted, rtol=1e-3, atol=1e-4)


def test_a_party_whose_file_does_not_allow_it_tells_no_moments() -> None:
    with pytest.raises(PartyError, match=r"its file does not say hyfem\.moments = true"):
        trained(coordinator(calibrate=True), skewed_members(moments=False))
    server, parties = coordinator(), skewed_members()
    trained(server, parties)
    with pytest.raises(ConfigError, match=r"asked for moments in a run without hyfem\.calibrate"):
        parties["lab"].handle(hyfem.GiveMoments(slices(server)["lab"][0]))


@pytest.mark.slow
def test_a_party_that_lies_about_its_moments_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    class Liar(hyfem.Member):
        def handle(self, message: Message) -> Message:
            answer = super().handle(message)
            if isinstance(answer, hyfem.Moments):
                return hyfem.Moments(-answer.counts_C, answer.means_CD, answer.covariances_CDD)
            return answer

    parties = skewed_members()
    parties["lab"] = Liar(parties["lab"].data, Local("lab"))
    server = coordinator(calibrate=True)
    trained(server, parties)
    assert "lab's moments are left out: hyfem.Moments.counts_C: a count is negative" in caplog.text
    assert server.calibrated is not None
