"""CHFL: what the common column may and may not depend on, and rounds in which members fail."""

import copy
from dataclasses import astuple, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from dovetail.data import Classification, PartyData, agree, summarise, table_from_arrays
from dovetail.errors import ConfigError, MessageError, PartyError, TrainingError
from dovetail.federated import Federation, Local, play_round
from dovetail.methods.chfl import layers as chfl
from dovetail.methods.chfl.stacked import StackedInProcess
from dovetail.methods.chfl.variant_settings import Trial, local_best, search_grid
from dovetail.models import Column, RandomStream, generator, load
from dovetail.network import Checkpoint, InProcess

TASK = Classification((0, 1, 2))
COMMON = ("age", "dose")
SMALL = {"widths": (6, 4), "rounds": 3, "local_epochs": 2, "batch_size": 8, "learning_rate": 0.01}


def rows_of(index, num_rows, num_unique, *, name=None, num_validation=10, task=TASK):
    """Random rows whose class depends on common and own features."""
    rng = np.random.default_rng([7, index])
    total = num_rows + num_validation
    x = torch.from_numpy(rng.normal(size=(total, 2 + num_unique))).float()
    labels = ((x[:, 0] > 0).long() + (x.sum(dim=1) > 0.3).long()).clamp(max=2)
    names = (*COMMON, *(f"own {index}.{i}" for i in range(num_unique)))
    table = table_from_arrays(f"t{index}", dict(zip(names, x.numpy().T, strict=True)))
    ids = np.arange(total) + 1000 * index
    data = PartyData(name or f"p{index}", ids, labels=labels, tables={"columns": table})
    return chfl.ChflData(
        data.take(torch.arange(num_rows)),
        task,
        COMMON,
        data.take(torch.arange(num_rows, total)) if num_validation else None,
    )


def agreed_of(party_data):
    """How these encode their common columns, as a coordinator tells them."""
    described = {
        local_data.name: chfl.Member(local_data, Local(local_data.name)).handle(chfl.Describe())
        for local_data in party_data
    }
    return chfl.agree_on(described, chfl.Config())[1]


#: Sizes that differ, so that last batches differ too; the last party has nothing of its own.
ROWS = [rows_of(1, 21, 3), rows_of(2, 23, 2), rows_of(3, 30, 1), rows_of(4, 24, 0)]


def federation(rows=ROWS):
    return {local_data.name: chfl.Member(local_data, Local(local_data.name)) for local_data in rows}


def run(config=None, rows=ROWS, engine=InProcess, seed=5, **changes):
    """Coordinator, members and rounds of a whole training."""
    config = config or chfl.Config(**{**SMALL, **changes})
    members = federation(rows)
    coordinator = chfl.Coordinator(config, seed=seed)
    rounds = list(chfl.train(coordinator, engine(members, driver="hub")))
    return coordinator, members, rounds


def trajectory(rows=ROWS, engine=InProcess, **changes):
    """theta_c after each round."""
    members = federation(rows)
    coordinator = chfl.Coordinator(chfl.Config(**{**SMALL, **changes}), seed=5)
    network = engine(members, driver="hub")
    return [coordinator.common_P.clone() for _ in chfl.train(coordinator, network)]


def assert_same_weights(one, other):
    for name, weights in one.columns.state_dict().items():
        torch.testing.assert_close(weights, other.columns.state_dict()[name], rtol=0, atol=0)


# --- What the common column depends on ---------------------------------------------------------


def fedavg(rows, config, seed):
    """Algorithm 1 written out once more, on common columns: theta after each round."""
    with RandomStream(seed, "common column"):
        column = Column.build(2, config.widths, 3)
    orders = [generator(seed, local_data.name, "batches") for local_data in rows]
    features = [local_data.prepare(COMMON, agreed_of(rows)).x[:, :2] for local_data in rows]
    thetas = []
    for _ in range(config.rounds):
        start = copy.deepcopy(column.state_dict())
        summed = {name: torch.zeros_like(value).double() for name, value in start.items()}
        for local_data, local_x, rng in zip(rows, features, orders, strict=True):
            column.load_state_dict(start)
            optimizer = torch.optim.Adam(column.parameters(), lr=config.learning_rate, fused=True)
            for _ in range(config.local_epochs):
                order = torch.randperm(local_data.train.num_rows, generator=rng)
                for batch in order.split(config.batch_size):
                    x, labels = local_x[batch], local_data.train.labels[batch]
                    optimizer.zero_grad()
                    F.cross_entropy(column(x), labels).backward()
                    optimizer.step()
            for name, value in column.state_dict().items():
                summed[name] += value.double() * (1 / len(rows))
        column.load_state_dict({name: value.float() for name, value in summed.items()})
        thetas.append(torch.cat([p.detach().flatten() for p in column.parameters()]).clone())
    return thetas


@pytest.mark.slow
@pytest.mark.parametrize("method", ["chfl", "common", "simple"])
def test_the_common_column_is_fedavg_on_common_columns_bit_for_bit(method):
    for theta, expected in zip(
        trajectory(method=method), fedavg(ROWS, chfl.Config(**SMALL), 5), strict=True
    ):
        assert torch.equal(theta, expected)


def test_the_common_column_does_not_depend_on_mu():
    assert torch.equal(trajectory(mu=0.0)[-1], trajectory(mu=0.7)[-1])


def test_no_gradient_of_the_joint_loss_reaches_the_common_column():
    member = federation()["p1"]
    chfl.Coordinator(chfl.Config(**SMALL), seed=5).begin(
        Federation(InProcess({"p1": member}, driver="hub"))
    )
    parameters = list(member.columns.common.parameters())
    seen = []

    class Watching(torch.optim.SGD):
        def step(self, closure=None):
            seen.append([p.grad.clone() for p in parameters])

    member.config = member.config.model_copy(update={"local_epochs": 1})
    member.unique_optimizer = Watching(member.columns.unique.parameters(), lr=1.0)
    member.common_optimizer = lambda: torch.optim.SGD(parameters, lr=0.0)
    batches = copy.deepcopy(member.batches)
    member.learn()

    for gradients in seen:  # right after the joint loss went back
        rows = next(batches)
        loss = F.cross_entropy(member.columns.common(member.x_common[rows]), member.labels[rows])
        for gradient, expected in zip(
            gradients, torch.autograd.grad(loss, parameters), strict=True
        ):
            assert torch.equal(gradient, expected)
    assert len(seen) == 3


def test_with_mu_0_no_lateral_weight_matters():
    _, members, _ = run(mu=0.0)
    member = members["p1"]
    x = member.prepared.x
    before = member.columns(x)
    for lateral in member.columns.unique.laterals:
        torch.nn.init.normal_(lateral.weight, std=100.0)
    assert torch.equal(member.columns(x), before)


def test_with_mu_0_columns_meet_only_in_the_sum_of_their_outputs():
    _, members, _ = run(mu=0.0)
    columns = members["p1"].columns
    x = members["p1"].prepared.x
    unique = torch.nn.Sequential(*[Column(columns.unique.layers)])
    torch.testing.assert_close(columns(x), columns.common(x[:, :2]) + unique(x[:, 2:]))


def test_the_joint_output_is_equations_6_and_7():
    _, members, _ = run(mu=0.5)
    columns, x = members["p2"].columns, members["p2"].prepared.x
    common, unique = columns.common.layers, columns.unique
    c1 = F.relu(common[0](x[:, :2]))
    c2 = F.relu(common[1](c1))
    u1 = F.relu(unique.layers[0](x[:, 2:]))
    u2 = F.relu(unique.layers[1](u1) + 0.5 * c1 @ unique.laterals[0].weight.T)
    u3 = unique.layers[2](u2) + 0.5 * c2 @ unique.laterals[1].weight.T
    torch.testing.assert_close(columns(x), common[2](c2) + u3)


def test_gate_0_is_common_and_gate_1_is_the_joint_network():
    _, members, _ = run(gate=True)
    columns, x = members["p1"].columns, members["p1"].prepared.x
    z_common = columns.common.outputs(x[:, :2])
    columns.gate.fill_(0.0)
    assert torch.equal(columns(x), z_common[-1])
    columns.gate.fill_(1.0)
    assert torch.equal(columns(x), columns.joint(x[:, 2:], z_common))


def test_the_gate_changes_no_weight():
    gated, plain = run(gate=True, choose="last")[1], run(choose="last")[1]
    for name, member in plain.items():
        weights = gated[name].columns.state_dict()
        for key, value in member.columns.state_dict().items():
            assert torch.equal(value, weights[key])


def gates_of(member):
    """Gate -> its loss on the validation rows."""
    (x, labels), losses = member.prepared.validation, {}
    for gate in chfl.GATES:
        member.columns.gate = torch.tensor(gate)
        outputs = member.columns(x).detach()
        losses[gate] = float(F.cross_entropy(outputs, labels))
    return losses


def test_a_gate_has_the_least_loss_on_validation_rows_and_leans_to_common_where_they_are_few():
    _, members, _ = run(gate=True, choose="last")
    chosen = {n: float(m.columns.gate) for n, m in members.items() if m.columns.gate is not None}
    assert len(set(chosen.values())) > 1  # each its own
    for name, gate in chosen.items():
        losses = gates_of(members[name])
        num_rows = len(members[name].prepared.validation[1])
        assert gate == pytest.approx(min(losses, key=losses.get) * num_rows / (num_rows + 30))
        assert gate < 0.5  # of few rows


def test_without_validation_rows_a_gate_is_1():
    rows = [rows_of(1, 21, 3, num_validation=0), rows_of(2, 23, 2, num_validation=0)]
    _, members, _ = run(rows=rows, gate=True)
    assert members["p1"].columns.gate == 1


def test_a_member_keeps_the_gate_of_the_round_that_was_chosen(tmp_path):
    coordinator, members, rounds = run(gate=True, rounds=6)
    accuracies = rounds[coordinator.best_round.number - 1].accuracies
    for name, member in members.items():
        assert member.scored().accuracy == accuracies[name]
    member = members["p1"]
    member.columns.gate.fill_(0.25)  # what a file keeps
    member.model().save(tmp_path / "model")
    x = member.prepared.x
    assert torch.equal(load(tmp_path / "model").outputs(x), member.model().outputs(x))


def test_an_own_column_that_starts_at_zero_says_nothing_at_first():
    member = federation()["p1"]
    opening = chfl.agree_on({"p1": member.handle(chfl.Describe())}, chfl.Config())
    settings = chfl.Config(**SMALL, zero_start=True).model_dump_json()
    member.handle(chfl.Begin(settings, 5, *opening))
    columns, x = member.columns, member.prepared.x
    assert torch.equal(columns(x), columns.common(x[:, :2]))
    member.learn()
    assert columns.unique.laterals[0].weight.any()  # and learns for all that


def test_only_the_own_column_has_its_weight_decay():
    plain, decayed = run(choose="last")[1]["p1"], run(choose="last", unique_weight_decay=1.0)[1]
    columns = decayed["p1"].columns
    assert torch.equal(plain.common_vector(), decayed["p1"].common_vector())
    norms = [c.unique.layers[0].weight.norm() for c in (columns, plain.columns)]
    assert norms[0] < norms[1]


def test_the_own_columns_decay_counts_less_beside_more_rows():
    config = chfl.Config(unique_weight_decay=0.01, weight_decay=0.5, batch_size=64)
    decays = [config.of_unique(num_batches).weight_decay for num_batches in (1, 4, 40)]
    assert decays == pytest.approx([0.01, 0.01, 0.001])
    assert chfl.Config(weight_decay=0.5).of_unique(40).weight_decay == 0.5


def test_settings_by_party_are_its_own_and_no_others():
    config = chfl.Config(**SMALL, by_party={"p1": {"mu": 0.25}, "p2": {"learning_rate": 0.1}})
    _, members, _ = run(config)
    assert [member.config.mu for member in members.values()] == [0.25, 1.0, 1.0, 1.0]
    assert members["p2"].config.learning_rate == 0.1
    assert all(not member.config.by_party for member in members.values())
    _, stacked, _ = run(config, engine=StackedInProcess)
    for name, member in members.items():
        for key, value in member.columns.state_dict().items():
            other = stacked[name].columns.state_dict()[key]
            torch.testing.assert_close(other, value, atol=1e-4, rtol=1e-4)
    with pytest.raises(ConfigError, match="by_party has settings of 'nobody', who is no member"):
        run(by_party={"nobody": {"mu": 0.5}})
    with pytest.raises(ValidationError, match="by_party sets"):
        chfl.Config(by_party={"p1": {"rounds": 3.0}})


def test_each_party_takes_the_trial_that_is_best_on_its_own_rows():
    trials = [
        Trial(chfl.Config(mu=mu), {"mu": mu}, 0.5, 0.5, accuracies, 1, 1, 0.0)
        for mu, accuracies in ((0.3, {"a": 0.9, "b": 0.1}), (1.0, {"a": 0.2, "b": 0.7}))
    ]
    assert local_best(trials) == {"by_party": {"a": {"mu": 0.3}, "b": {"mu": 1.0}}}


def test_one_party_is_training_alone():
    theta = trajectory(rows=ROWS[:1])
    assert torch.equal(theta[-1], fedavg(ROWS[:1], chfl.Config(**SMALL), 5)[-1])


def test_a_member_without_columns_of_its_own_ends_with_the_common_column():
    coordinator, members, _ = run(choose="last")
    assert members["p4"].columns.unique is None
    assert torch.equal(members["p4"].common_vector(), coordinator.common_P)


def test_learning_alone_sends_no_weight():
    members = federation()
    network = InProcess(members, driver="hub")
    list(chfl.train(chfl.Coordinator(chfl.Config(**SMALL, method="local"), seed=5), network))
    assert members["p1"].spec.common == (0, 1, 2, 3, 4)  # all of its columns
    shapes = [
        tensor["shape"]
        for line in network.ledger.lines()
        for tensor in line["tensors"]
        if tensor["name"] == "common_P"
    ]
    assert shapes
    assert all(shape == [0] for shape in shapes)


def test_learning_alone_depends_on_the_others_by_how_common_columns_are_encoded_only(monkeypatch):
    _, together, _ = run(method="local", choose="last")
    agreed = agreed_of(ROWS)
    monkeypatch.setattr(chfl, "agree_on", lambda described, config: (COMMON, agreed))
    _, alone, _ = run(method="local", choose="last", rows=ROWS[:1])
    assert_same_weights(together["p1"], alone["p1"])


def test_the_proximal_term_keeps_members_near_the_average():
    free, held = trajectory(method="common"), trajectory(method="common", proximal=1000.0)
    start = chfl.Coordinator(chfl.Config(**SMALL), seed=5)
    start.common_P = start.initial(2, 3)
    assert (held[0] - start.common_P).norm() < 0.5 * (free[0] - start.common_P).norm()


# --- What the server does ----------------------------------------------------------------------


class Scripted:
    """A member that answers with given weights."""

    accepts = chfl.Member.accepts

    def __init__(self, theta, num_rows, *, accuracy=0.5, classes=("0", "1"), kinds=("numbers",)):
        self.theta, self.num_rows, self.accuracy = theta, num_rows, accuracy
        self.classes, self.kinds = classes, kinds
        self.received = []
        self.scores = {}

    def handle(self, message):
        self.received.append(message)
        match message:
            case chfl.Describe():
                ones = torch.ones(1, dtype=torch.int64)
                return chfl.Description(
                    ("age",),
                    self.kinds,
                    self.classes,
                    self.num_rows,
                    ones,
                    ones - 1,
                    ones.double(),
                    ones.double(),
                    (),
                    (),
                    (),
                )
            case chfl.Begin():
                return chfl.Ready(1)
            case chfl.Average():
                return self.scores.get(message.number, chfl.Scored(self.accuracy, 4, 0.0))
            case chfl.Train():
                if self.theta is None:
                    raise TrainingError("it has no power")
                return chfl.Trained(torch.tensor(self.theta), 1.0, 2.0)
            case chfl.Finish():
                return chfl.Finished(message.best)
        raise AssertionError(message)


def scripted(members, **changes):
    config = chfl.Config(widths=(1,), rounds=1, **changes)  # six parameters: 1 x 1 + 1, 1 x 2 + 2
    coordinator = chfl.Coordinator(config, seed=0)
    rounds = list(chfl.train(coordinator, InProcess(members, driver="hub")))
    return coordinator.common_P.tolist(), rounds[-1]


def test_rows_that_cannot_be_counted_and_columns_that_are_none_are_refused():
    offered = Scripted([0.0] * 6, 30).handle(chfl.Describe())
    offered.check()
    one = {"categories": ("red",), "category_columns": (0,), "category_counts": (2,)}
    replace(offered, **one).check()
    for changes, words in (
        ({"num_rows": -3}, "a number of rows is negative"),
        ({"counts_C": -offered.counts_C}, "a number of rows is negative"),
        ({**one, "category_counts": (-1,)}, "a number of rows is negative"),
        ({**one, "category_columns": (1,)}, "a category is of a column that is none"),
    ):
        with pytest.raises(MessageError, match=words):
            replace(offered, **changes).check()


def test_the_average_is_even_or_by_rows():
    members = {"a": Scripted([0.0] * 6, 30), "b": Scripted([4.0] * 6, 10)}
    assert scripted(members)[0] == [2.0] * 6
    assert scripted(members, weights="samples")[0] == [1.0] * 6  # (0 x 30 + 4 x 10) / 40


def test_a_member_that_fails_is_left_out_and_weights_are_shared_among_the_others():
    members = {
        "a": Scripted([1.0] * 6, 30),
        "b": Scripted(None, 50),
        "c": Scripted([5.0] * 6, 10),
    }
    theta, last = scripted(members, weights="samples")
    assert theta == [2.0] * 6  # (1 x 30 + 5 x 10) / 40
    assert last.participants == ("a", "c")
    assert last.missed == {"b": "it has no power"}


@pytest.mark.parametrize("wrong", [[float("nan")] * 6, [float("inf")] * 6, [1.0] * 5])
def test_a_member_that_lies_is_left_out_and_named(wrong):
    members = {"a": Scripted([1.0] * 6, 30), "liar": Scripted(wrong, 50)}
    theta, last = scripted(members)
    assert theta == [1.0] * 6
    assert last.missed.keys() == {"liar"}
    assert "common_P" in last.missed["liar"] or "not finite" in last.missed["liar"]


def test_an_impossible_accuracy_is_left_out_and_named():
    members = {"a": Scripted([1.0] * 6, 30), "liar": Scripted([1.0] * 6, 30, accuracy=7.0)}
    _, last = scripted_with_honest_begin(members)
    assert last.accuracies == {"a": 0.5}
    assert "no accuracy" in last.missed["liar"]


def scripted_with_honest_begin(members):
    accuracies = {name: member.accuracy for name, member in members.items()}
    for member in members.values():
        member.accuracy = 0.5
    coordinator = chfl.Coordinator(chfl.Config(widths=(1,), rounds=1), seed=0)
    network = InProcess(members, driver="hub")
    network = coordinator.federation(network)
    coordinator.begin(network)
    for name, member in members.items():
        member.accuracy = accuracies[name]
    return coordinator, play_round(coordinator, 1, network)


def test_a_round_that_nobody_finishes_says_why():
    with pytest.raises(TrainingError, match=r"no party finished round 1 .a: it has no power"):
        scripted({"a": Scripted(None, 3)})


def test_only_participants_train_but_all_are_scored():
    _, members, rounds = run(participation=0.5, rounds=4)
    assert all(len(done.participants) == 2 for done in rounds)
    assert len({done.participants for done in rounds}) > 1
    assert all(done.accuracies.keys() == members.keys() for done in rounds)


def test_a_member_that_missed_an_average_gets_it_before_it_trains_again():
    members = federation()
    away = members["p2"]
    handle = away.handle
    missing = []

    def sometimes(message):
        if isinstance(message, chfl.Average) and message.number == 1 and not missing:
            missing.append(message)
            raise TrainingError("it was away")
        return handle(message)

    away.handle = sometimes
    coordinator = chfl.Coordinator(chfl.Config(**SMALL), seed=5)
    rounds = list(chfl.train(coordinator, InProcess(members, driver="hub")))
    assert rounds[0].missed == {"p2": "it was away"}
    assert rounds[1].participants == ("p1", "p2", "p3", "p4")
    assert torch.equal(coordinator.common_P, trajectory()[-1])


# --- The round that is kept --------------------------------------------------------------------


def test_members_keep_the_parameters_of_the_best_mean_round():
    coordinator, members, rounds = run(rounds=6)
    best = max(rounds, key=lambda done: done.metrics["validation"])  # the first of equals
    assert coordinator.best_round.number == best.number
    assert {name: member.scored().accuracy for name, member in members.items()} == best.accuracies


@pytest.mark.parametrize(("choose", "best"), [("mean", 1), ("loss", 2)])
def test_by_loss_five_rows_do_not_count_as_forty_five(choose, best):
    few, many = Scripted([0.0] * 6, 10), Scripted([0.0] * 6, 90)
    few.scores = {1: chfl.Scored(1.0, 5, 0.1), 2: chfl.Scored(0.6, 5, 0.9)}
    many.scores = {1: chfl.Scored(0.5, 45, 0.8), 2: chfl.Scored(0.8, 45, 0.3)}
    config = chfl.Config(widths=(1,), rounds=2, choose=choose)
    coordinator = chfl.Coordinator(config, seed=0)
    rounds = list(chfl.train(coordinator, InProcess({"a": few, "b": many}, driver="hub")))
    assert coordinator.best_round.number == best
    assert coordinator.scores()["a"] == {"validation": few.scores[best].accuracy}
    if choose == "loss":  # (5 x 0.9 + 45 x 0.3) / 50
        assert rounds[-1].metrics["validation_loss"] == pytest.approx(0.36)


def test_members_say_the_loss_that_rounds_are_compared_by():
    coordinator, members, rounds = run(rounds=6, choose="loss")
    losses = [done.metrics["validation_loss"] for done in rounds]
    assert coordinator.best_round.number == 1 + losses.index(min(losses))
    scored = [member.scored() for member in members.values()]  # as they are kept
    num_rows = sum(each.num_rows for each in scored)
    mean = sum(each.num_rows * each.loss for each in scored) / num_rows
    assert mean == pytest.approx(min(losses))


def test_each_member_may_keep_its_own_best_round():
    _, members, rounds = run(rounds=6, choose="each")
    for name, member in members.items():
        assert member.scored().accuracy == max(done.accuracies[name] for done in rounds)


def test_without_validation_rows_the_last_round_is_kept():
    rows = [rows_of(1, 21, 3, num_validation=0), rows_of(2, 23, 2, num_validation=0)]
    coordinator, members, rounds = run(rows=rows, patience=1)
    assert ["validation" in done.metrics for done in rounds] == [False] * 3
    assert torch.equal(members["p1"].common_vector(), coordinator.common_P)


def test_patience_ends_training_when_rounds_no_longer_improve():
    _, _, rounds = run(rounds=30, patience=2, learning_rate=1e-9)
    assert [done.number for done in rounds] == [1, 2, 3]


def test_a_search_tries_every_combination_and_puts_the_best_first():
    noted = []
    trials = search_grid(
        chfl.Config(**SMALL),
        {"learning_rate": [1e-6, 0.02], "mu": [0.0, 1.0]},
        lambda config: InProcess(federation(), driver="hub"),
        seed=5,
        observe=noted.append,
    )
    assert [trial.changed for trial in noted] == [
        {"learning_rate": rate, "mu": mu} for rate in (1e-6, 0.02) for mu in (0.0, 1.0)
    ]
    assert trials[0].accuracy == max(trial.accuracy for trial in noted)
    assert trials[0].config.learning_rate == trials[0].changed["learning_rate"]


# --- Stacked -----------------------------------------------------------------------------------

#: As many batches each, so that all are in one stack.
ALIKE = [rows_of(index, 20 + index, index % 3 + 1) for index in range(1, 5)]

SETTINGS = [
    {},
    {"mu": 0.3, "optimizer": "sgd"},
    {"mu": 0.0},
    {"method": "common", "proximal": 0.1},
    {"method": "simple"},
    {"method": "local"},
    {"participation": 0.7, "rounds": 4},
    {"gate": True, "zero_start": True, "unique_weight_decay": 0.01},
]


@pytest.mark.slow
@pytest.mark.parametrize("changes", SETTINGS, ids=str)
def test_stacked_members_learn_what_looped_ones_learn(changes):
    _, looped, slow = run(rows=ALIKE, **changes, choose="last")
    _, stacked, fast = run(rows=ALIKE, **changes, choose="last", engine=StackedInProcess)
    for name, member in looped.items():
        for key, weights in member.columns.state_dict().items():
            torch.testing.assert_close(
                stacked[name].columns.state_dict()[key], weights, rtol=1e-4, atol=1e-5
            )
    assert [done.participants for done in slow] == [done.participants for done in fast]
    losses = [done.metrics["loss"] for done in slow]
    assert [done.metrics["loss"] for done in fast] == pytest.approx(losses, rel=1e-4)


def test_members_with_other_numbers_of_batches_train_in_stacks_of_their_own():
    looped, stacked = trajectory(), trajectory(engine=StackedInProcess)
    torch.testing.assert_close(stacked[-1], looped[-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_threads", [2, 3, 8])
def test_stacked_members_learn_the_same_bits_on_any_number_of_threads(num_threads):
    rows = [rows_of(index, 20 + index % 5, index % 3 + 1) for index in range(1, 10)]
    expected = trajectory(rows=rows, engine=StackedInProcess)
    torch.set_num_threads(num_threads)
    try:
        thetas = trajectory(rows=rows, engine=StackedInProcess)
        assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(1)
    assert all(map(torch.equal, thetas, expected))


def test_stacking_leaves_the_ledger_as_it_is():
    ledgers = []
    for engine in (InProcess, StackedInProcess):
        network = engine(federation(), driver="hub")
        list(chfl.train(chfl.Coordinator(chfl.Config(**SMALL), seed=5), network))
        ledgers.append(list(network.ledger.lines()))
    assert ledgers[0] == ledgers[1]


def together(config, members):
    coordinator = chfl.Coordinator(config, seed=5)
    return coordinator, StackedInProcess(members, driver="hub")


def test_a_member_asked_alone_between_stacked_rounds_shows_its_weights_as_they_are():
    members = federation(ALIKE)
    coordinator, network = together(chfl.Config(**SMALL), members)
    network = coordinator.federation(network)
    coordinator.begin(network)
    member, seen = members["p1"], []
    for number in (1, 2, 3):
        play_round(coordinator, number, network)
        seen.append(torch.cat([p.detach().flatten() for p in member.columns.unique.trained()]))
        assert torch.equal(member.common_vector(), coordinator.common_P)
        steps = {float(state["step"]) for state in member.unique_optimizer.state.values()}
        assert steps == {number * 2 * member.batches.steps_per_pass}
        other = chfl.Member(ALIKE[0], Local(ALIKE[0].name))
        other.restore(copy.deepcopy(member.state()))
        assert_same_weights(other, member)
        assert astuple(other.scored()) == astuple(member.scored())
        with torch.no_grad():
            expected = other.columns(other.prepared.x)
            torch.testing.assert_close(member.model().network(member.prepared.x), expected)
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


@pytest.mark.parametrize("method", ["chfl", "local"])
def test_a_member_restored_between_stacked_rounds_goes_on_as_if_it_had_not_been(method):
    config = chfl.Config(**SMALL, method=method, choose="last")
    runs = []
    for restored in (False, True):
        members = federation(ALIKE)
        coordinator, network = together(config, members)
        network = coordinator.federation(network)
        coordinator.begin(network)
        for number in (1, 2, 3):
            play_round(coordinator, number, network)
            if restored:
                members["p2"].restore(copy.deepcopy(members["p2"].state()))
        runs.append(members)
    for name, member in runs[0].items():
        assert_same_weights(runs[1][name], member)


def test_a_member_that_failed_in_a_round_is_stacked_again_in_the_next():
    runs = []
    for engine in (InProcess, StackedInProcess):
        members = federation(ALIKE)
        coordinator = chfl.Coordinator(chfl.Config(**SMALL, choose="last"), seed=5)
        network = engine(members, driver="hub")
        away = members["p2"]
        handle = away.handle

        def absent(message, handle=handle):
            if isinstance(message, chfl.Average) and message.number == 1:
                raise TrainingError("it was away")
            return handle(message)

        network = coordinator.federation(network)
        coordinator.begin(network)
        away.handle = absent
        first = play_round(coordinator, 1, network)
        assert first.missed == {"p2": "it was away"}
        away.can_train = lambda message: False  # as if it were still behind
        away.handle = handle
        second = play_round(coordinator, 2, network)
        assert "p2" not in second.participants
        del away.can_train
        third = play_round(coordinator, 3, network)
        assert third.participants == ("p1", "p2", "p3", "p4")
        runs.append(members)
    for name, member in runs[0].items():
        for key, weights in member.columns.state_dict().items():
            torch.testing.assert_close(
                runs[1][name].columns.state_dict()[key], weights, rtol=1e-4, atol=1e-5
            )


def test_after_the_last_round_members_lie_apart():
    _, members, _ = run(rows=ALIKE, engine=StackedInProcess)
    stores = [
        parameter.untyped_storage().data_ptr()
        for member in members.values()
        for parameter in member.columns.parameters()
    ]
    assert len(set(stores)) == len(stores)


# --- Summed in secret --------------------------------------------------------------------------


def test_a_secret_sum_is_the_average():
    plain, secret = trajectory(), trajectory(secure=True)
    for expected, theta in zip(plain, secret, strict=True):
        torch.testing.assert_close(theta, expected, rtol=1e-5, atol=1e-6)


class Silent:
    """A member that gives its key and then falls."""

    def __init__(self, member):
        self.member = member
        self.accepts = member.accepts
        self.averages = []

    def handle(self, message):
        if isinstance(message, chfl.Average):
            self.averages.append(message.common_P.clone())
        if isinstance(message, chfl.GiveShare):
            raise TrainingError("it fell")
        return self.member.handle(message)


def test_a_member_lost_after_keys_were_exchanged_costs_the_sum_of_that_round_and_no_other():
    members = federation()
    coordinator = chfl.Coordinator(chfl.Config(**{**SMALL, "rounds": 2}, secure=True), seed=5)
    silent = Silent(members["p2"])
    network = InProcess({**members, "p2": silent}, driver="hub")
    rounds = chfl.train(coordinator, network)
    first = next(rounds)
    assert (first.participants, first.missed) == ((), {"p2": "it fell"})
    assert torch.equal(coordinator.common_P, silent.averages[0])

    thetas = []
    for name in ("p1", "p3", "p4"):
        # A member goes on from its own batches and own column, and from the theta_c it had.
        other = federation()[name]
        other.restore(members[name].state())
        other.handle(chfl.Train(2))
        thetas.append(other.common_vector())
    second = next(rounds)
    assert second.participants == ("p1", "p3", "p4")  # not p2, which cost the last sum
    torch.testing.assert_close(coordinator.common_P, sum(thetas) / 3, rtol=1e-5, atol=1e-6)


def test_a_secret_sum_needs_three_members():
    with pytest.raises(TrainingError, match="needs three or more members, round 1 has 2 left"):
        run(secure=True, rows=ROWS[:2])


LASTING = {**SMALL, "rounds": 2, "secure": True, "quorum": 0.5}


def test_a_sum_that_outlives_lost_members_is_the_average():
    plain, secret = trajectory(), trajectory(secure=True, quorum=0.5)
    for expected, theta in zip(plain, secret, strict=True):
        torch.testing.assert_close(theta, expected, rtol=1e-5, atol=1e-6)


class Falls:
    """A member that falls where it is asked for this, in the first round."""

    def __init__(self, member, at):
        self.member, self.at, self.accepts = member, at, member.accepts

    def handle(self, message):
        if isinstance(message, self.at) and message.number == 1:
            raise TrainingError("it fell")
        return self.member.handle(message)


@pytest.mark.parametrize(
    ("at", "is_in"),
    [
        (chfl.GiveKeys, False),
        (chfl.GiveParts, False),
        (chfl.GiveMasked, False),
        (chfl.GiveOpened, True),  # its values had come
    ],
)
def test_a_lost_member_costs_its_own_part_and_not_the_round(at, is_in):
    members = federation()
    others = federation()
    coordinator = chfl.Coordinator(chfl.Config(**LASTING), seed=5)
    network = InProcess({**members, "p2": Falls(members["p2"], at)}, driver="hub")
    rounds = chfl.train(coordinator, network)
    first = next(rounds)
    left = ("p1", "p2", "p3", "p4") if is_in else ("p1", "p3", "p4")
    assert first.participants == left
    assert first.missed == {"p2": "it fell"}
    plain = chfl.Coordinator(chfl.Config(**{**SMALL, "rounds": 2}), seed=5)
    clear = InProcess(others, driver="hub")
    next(chfl.train(plain, clear))
    expected = sum(_vector_after(others, name, plain) for name in left) / len(left)
    torch.testing.assert_close(coordinator.common_P, expected, rtol=1e-5, atol=1e-6)
    assert next(rounds).participants == ("p1", "p2", "p3", "p4")  # and it is back


def _vector_after(members, name, coordinator):
    """What this member had trained in round 1: from a federation of its own."""
    fresh = federation()
    alone = chfl.Coordinator(chfl.Config(**{**SMALL, "rounds": 1}), seed=5)
    kept = {}
    for each, member in fresh.items():
        handle = member.handle

        def spy(message, each=each, handle=handle):
            answer = handle(message)
            if isinstance(answer, chfl.Trained):
                kept[each] = answer.common_P.clone()
            return answer

        member.handle = spy
    list(chfl.train(alone, InProcess(fresh, driver="hub")))
    return kept[name]


def test_where_too_few_are_left_the_average_stays_as_it_was():
    members = federation()
    falling = {name: Falls(members[name], chfl.GiveMasked) for name in ("p1", "p2")}
    coordinator = chfl.Coordinator(chfl.Config(**LASTING), seed=5)
    rounds = chfl.train(coordinator, InProcess({**members, **falling}, driver="hub"))
    first = next(rounds)
    assert first.participants == ()
    assert set(first.missed) == {"p1", "p2"}
    assert next(rounds).participants == ("p1", "p2", "p3", "p4")


def test_a_member_s_own_quorum_counts():
    members = federation()
    members["p3"].sums.quorum = 0.8  # of four: all
    falling = {"p2": Falls(members["p2"], chfl.GiveMasked)}
    coordinator = chfl.Coordinator(chfl.Config(**LASTING), seed=5)
    first = next(chfl.train(coordinator, InProcess({**members, **falling}, driver="hub")))
    assert first.participants == ()
    with pytest.raises(TrainingError, match="needs three or more members, round 1 has 2 left"):
        run(secure=True, quorum=0.5, rows=ROWS[:2])


def test_in_a_secret_sum_no_weight_leaves_a_member_unmasked():
    members = federation()
    sent = []
    for member in members.values():
        handle = member.handle

        def spy(message, handle=handle, member=member):
            answer = handle(message)
            sent.append((member, answer))
            return answer

        member.handle = spy
    coordinator = chfl.Coordinator(chfl.Config(**{**SMALL, "rounds": 1}, secure=True), seed=5)
    list(chfl.train(coordinator, InProcess(members, driver="hub")))
    assert all(not len(a.common_P) for _, a in sent if isinstance(a, chfl.Trained))
    shares = [a.masked_P for _, a in sent if isinstance(a, chfl.Share)]
    assert len(shares) == 4
    for share in shares:  # uniform over 2^64, where weights would stay below 2^34
        assert share.abs().double().median() > 2.0**60


# --- Resuming ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"method": "local"}, {"participation": 0.5}], ids=str)
@pytest.mark.parametrize("engine", [InProcess, StackedInProcess])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path, engine, changes):
    config = chfl.Config(**{**SMALL, "rounds": 4, **changes})
    rows = ROWS if engine is InProcess else ALIKE
    expected, whole, _ = run(config, rows=rows, engine=engine)

    for stop in (True, False):
        members = federation(rows)
        checkpoint = Checkpoint(tmp_path)
        coordinator = chfl.Coordinator(config, seed=5)
        network = engine(checkpoint.hosting(members), driver="hub")
        for done in chfl.train(coordinator, network, checkpoint):
            if stop and done.number == 3:  # saved: rounds 1 and 2
                break
    assert torch.equal(coordinator.common_P, expected.common_P)
    assert coordinator.best_round.number == expected.best_round.number
    for name, member in members.items():
        assert_same_weights(member, whole[name])


def test_a_member_that_lost_its_disk_joins_again(tmp_path):
    config = chfl.Config(**SMALL)
    for stop in (True, False):
        members = federation()
        checkpoint = Checkpoint(tmp_path)
        network = InProcess(checkpoint.hosting(members), driver="hub")
        rounds = []
        for done in chfl.train(chfl.Coordinator(config, seed=5), network, checkpoint):
            rounds.append(done)
            if stop and done.number == 2:
                break
        for path in (tmp_path / "parties" / "p2").iterdir():
            if stop:
                path.unlink()
    assert rounds[-1].participants == ("p1", "p2", "p3", "p4")


# --- Members that do not fit together ----------------------------------------------------------


def test_without_a_common_column_training_is_refused():
    rows = [ROWS[0], replace(ROWS[1], common=("own 2.0",))]
    with pytest.raises(ConfigError, match=r"no common column .Eq. 4.*'p2' offers .'own 2.0'"):
        run(rows=rows)


def test_label_sets_that_differ_are_refused():
    rows = [ROWS[0], replace(ROWS[1], task=Classification((0, 1, 2, 3)))]
    with pytest.raises(ConfigError, match="3 is a class at only one of 'p1' and 'p2'"):
        run(rows=rows)


def test_a_party_with_fewer_rows_than_a_batch_takes_all_of_them_in_a_step():
    _, fitting, _ = run(batch_size=30)  # the most that any has
    _, members, _ = run(batch_size=500)
    assert [len(next(member.batches)) for member in members.values()] == [21, 23, 30, 24]
    for name, member in members.items():
        assert_same_weights(member, fitting[name])


@pytest.mark.parametrize("mu", [-0.1, 1.5, float("nan")])
def test_mu_lies_in_0_to_1(mu):
    with pytest.raises(ValidationError, match="mu"):
        chfl.Config(mu=mu)


def test_a_column_that_is_not_there_cannot_be_offered():
    with pytest.raises(ConfigError, match="'p1' has no column 'height' to share"):
        replace(ROWS[0], common=("height",))


def test_only_columns_offered_can_be_common():
    member = federation()["p1"]
    settings = chfl.Config(**SMALL).model_dump_json()
    network = InProcess({"p1": member}, driver="hub")
    begin = chfl.Begin(settings, 0, ("own 1.0",), "")
    with pytest.raises(PartyError, match=r"it does not offer .'own 1.0'"):
        network.ask({"p1": begin}, chfl.Ready).or_raise()


@pytest.mark.parametrize("widths", [(2**14, 2**14), (2**25,), (1,) * 1001, (10**12, 10**12)])
def test_a_network_that_would_be_too_large_is_refused_before_it_is_made(widths, monkeypatch):
    monkeypatch.setattr(chfl.ColumnsSpec, "build_common", _only_on_meta(chfl.ColumnsSpec))
    settings = chfl.Config(**{**SMALL, "widths": widths}).model_dump_json()
    with pytest.raises(MessageError, match=r"268435456 bytes of parameters|at most 1000 layers"):
        federation()["p1"].handle(chfl.Begin(settings, 0, COMMON, agreed_of(ROWS)))


def _only_on_meta(spec):
    made = spec.build_common

    def build_common(self):
        assert torch.empty(0).is_meta
        return made(self)

    return build_common


def test_a_member_that_has_not_begun_says_so():
    with pytest.raises(PartyError, match=r"was sent chfl.Train before training began"):
        federation()["p1"].handle(chfl.Train(1))


# --- Raw tables --------------------------------------------------------------------------------


def table_rows(index, num_rows, **columns):
    rng = np.random.default_rng(index)
    jobs = np.array(["cook", "nurse", "smith"], dtype=object)
    arrays = {
        "own": rng.normal(size=num_rows),
        "age": rng.normal(40 + index, 10, size=num_rows),
        "job": jobs[rng.integers(0, 2 + index % 2, num_rows)],
        **columns,
    }
    labels = torch.from_numpy(rng.integers(0, 3, num_rows))
    table = table_from_arrays(f"t{index}", arrays)
    data = PartyData(f"p{index}", np.arange(num_rows), labels=labels, tables={"columns": table})
    return chfl.ChflData(data, TASK, ("age", "job"))


def encodings(encoder):
    """How its columns are encoded, without what each party's own rows had of them."""
    columns = encoder.to_json()["columns"]
    own = ("seen", "limits")
    return [{key: value for key, value in each.items() if key not in own} for each in columns]


def test_raw_common_columns_are_encoded_alike_and_as_if_pooled():
    ages = [np.array([10.0, np.nan, 30.0] * 8), np.array([50.0, 70.0] * 10)]
    rows = [table_rows(1, 24, age=ages[0]), table_rows(2, 20, age=ages[1])]
    _, members, _ = run(rows=rows)
    inputs = [member.prepared.input for member in members.values()]
    assert inputs[0].feature_names[:4] == inputs[1].feature_names[:4]
    age, job = encodings(inputs[0])[:2]
    assert encodings(inputs[1])[:2] == [age, job]
    pooled = np.concatenate(ages)
    assert age["mean"] == pytest.approx(np.nanmean(pooled))
    assert age["scale"] == pytest.approx(np.nanstd(pooled))
    assert age["flag"]
    assert job["categories"] == ["cook", "nurse", "smith"]


def test_the_exchange_of_statistics_is_what_the_partition_computes():
    rows = [table_rows(1, 24), table_rows(2, 20)]
    _, members, _ = run(rows=rows)
    expected = agree(
        {
            local_data.name: summarise(local_data.table, local_data.common, party=local_data.name)
            for local_data in rows
        }
    )
    for member in members.values():
        assert encodings(member.prepared.input)[:2] == encodings(expected)


def test_a_common_column_of_another_type_is_refused():
    rows = [table_rows(1, 24), table_rows(2, 20, age=np.array(["old", "new"] * 10, dtype=object))]
    with pytest.raises(ConfigError, match="'age' holds numbers at 'p1' but categories at 'p2'"):
        run(rows=rows)


# --- The model ---------------------------------------------------------------------------------


def test_a_members_model_predicts_alone_after_being_saved(tmp_path):
    _, members, _ = run()
    member = members["p1"]
    model = member.model()
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    x = member.prepared.x
    with torch.no_grad():
        assert torch.equal(loaded.network(x), member.columns(x))
