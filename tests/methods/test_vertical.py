"""Classic vertical learning is the pooled network, cut at the codes."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.data import Alignment, Classification, PartyData, Regression, SharedRows, Task
from dovetail.errors import ConfigError, PartyError, TrainingError
from dovetail.federated import Local
from dovetail.methods import vertical
from dovetail.methods.substitutes import predict_alone
from dovetail.models import Head, Perceptron, Unchanged
from dovetail.network import InProcess, Message

NUM_ROWS, NUM_TEST = 24, 7
WIDTHS = Perceptron((8, 6))
HEAD = Head((5,), dropout=0.5)
TASK = Classification(("no", "yes", "perhaps"))
PARTNERS = ("lab", "shop")


def rows_of(name: str, num_rows: int = NUM_ROWS) -> Tensor:
    """Three columns at the lab, four elsewhere."""
    rng = torch.Generator().manual_seed(len(name) + num_rows)
    return torch.randn(num_rows, 3 if name == "lab" else 4, generator=rng)


def local_data(labels: Tensor | None = None) -> PartyData:
    given = torch.randint(3, (NUM_ROWS,), generator=torch.Generator().manual_seed(0))
    return PartyData(
        "clinic",
        np.arange(NUM_ROWS),
        {"columns": rows_of("clinic")},
        given if labels is None else labels,
    )


def full_alignment(*partners: str) -> Alignment:
    return Alignment({name: torch.arange(NUM_ROWS) for name in ("clinic", *partners)})


def config(**settings: Any) -> vertical.Config:
    return vertical.Config(**{"epochs": 3, "batch_size": 10, "learning_rate": 0.1, **settings})


def members(
    *names: str, alignment: Alignment | None = None, widths: Perceptron = WIDTHS, **settings: Any
) -> dict[str, vertical.Member]:
    alignment = alignment or full_alignment(*names)
    return {
        name: vertical.Member(
            SharedRows(name, rows_of(name), alignment.rows[name]),
            SharedRows(name, rows_of(name, NUM_TEST), torch.arange(NUM_TEST)),
            config(**settings),
            widths,
            Local(name),
        )
        for name in names
    }


def owner(
    *names: str,
    data: PartyData | None = None,
    alignment: Alignment | None = None,
    task: Task = TASK,
    head: Head = HEAD,
    **settings: Any,
) -> vertical.Owner:
    return vertical.Owner(
        data or local_data(),
        alignment or full_alignment(*names),
        task,
        config(**settings),
        Local("clinic"),
        seed=0,
        encoder=WIDTHS,
        head=head,
    )


def trained(*names: str, **settings: Any) -> tuple[vertical.Owner, InProcess]:
    party = owner(*names, **settings)
    engine = InProcess(members(*names), driver="clinic")
    list(vertical.train(party, engine))
    return party, engine


@pytest.mark.parametrize("names", [("lab",), PARTNERS])
@pytest.mark.parametrize("task", [TASK, Regression(0.0, 1.0)], ids=["class", "number"])
def test_one_step_is_the_pooled_graphs_gradient_step(names: tuple[str, ...], task: Task) -> None:
    plain = {"momentum": 0.0, "weight_decay": 0.0}
    labels = None if task is TASK else rows_of("clinic")[:, 0]
    party = owner(*names, data=local_data(labels), task=task, **plain)
    helpers = members(*names, **plain)
    engine = InProcess(helpers, driver="clinic")
    party.begin(engine)

    batch = next(party.rows.batches)
    party.rows.restore({**party.rows.state(), "position": 0})
    networks = [party.encoder, *(helper.encoder for helper in helpers.values()), party.head]
    active, *theirs, head = copies = copy.deepcopy(networks)
    codes = [active(party.x[batch])]
    codes += [
        network(helper.shared.x[batch])
        for network, helper in zip(theirs, helpers.values(), strict=True)
    ]
    with copy.copy(party.random):  # the same dropout
        outputs = head(torch.cat(codes, dim=1))
    target = party.targets.labels[batch]
    loss = F.cross_entropy(outputs, target) if task is TASK else F.mse_loss(outputs[:, 0], target)
    loss.backward()

    assert party.step(engine)[0] == pytest.approx(loss.item(), rel=1e-6)

    for network, copied in zip(networks, copies, strict=True):
        for after, before in zip(network.parameters(), copied.parameters(), strict=True):
            assert before.grad is not None
            expected = before - 0.1 * before.grad
            torch.testing.assert_close(after, expected, rtol=0, atol=1e-6)


def test_a_server_with_labels_alone_learns_from_its_partners_codes() -> None:
    """Section 2's independent server: the pooled graph over the partners' codes, step for step."""
    nothing = PartyData("clinic", np.arange(NUM_ROWS), {"columns": torch.empty(NUM_ROWS, 0)},
                        local_data().labels)  # fmt: skip
    party = vertical.Owner(
        nothing, full_alignment(*PARTNERS), TASK, config(momentum=0.0, weight_decay=0.0),
        Local("clinic"), seed=0, encoder=Unchanged(), head=Head((5,), dropout=0.0),
    )  # fmt: skip
    helpers = members(*PARTNERS, momentum=0.0, weight_decay=0.0)
    engine = InProcess(helpers, driver="clinic")
    party.begin(engine)
    assert party.head[0].in_features == 2 * 6
    networks = [*(helper.encoder for helper in helpers.values()), party.head]
    *theirs, head = copies = copy.deepcopy(networks)
    plain = torch.optim.SGD([each for net in copies for each in net.parameters()], lr=0.1)
    for _ in range(2):
        batch = next(party.rows.batches)
        codes = [
            network(helper.shared.x[batch])
            for network, helper in zip(theirs, helpers.values(), strict=True)
        ]
        plain.zero_grad()
        F.cross_entropy(head(torch.cat(codes, dim=1)), party.targets.labels[batch]).backward()
        plain.step()
    party.rows.restore({**party.rows.state(), "position": 0})
    for _ in range(2):
        party.step(engine)
    for network, copied in zip(networks, copies, strict=True):
        for after, expected in zip(network.parameters(), copied.parameters(), strict=True):
            torch.testing.assert_close(after, expected, rtol=0, atol=1e-6)
    outputs = vertical.predict(party, engine, torch.empty(3, 0), torch.tensor([5, 0, 3]))
    assert outputs.shape == (3, 3)


def test_predictions_with_partners_present_are_the_pooled_graphs() -> None:
    party, engine = trained(*PARTNERS)
    parts = {name: engine._parties[name] for name in PARTNERS}
    x, samples = rows_of("clinic", NUM_TEST), torch.tensor([5, 0, 3])
    codes = [party.encoder(x[samples])]
    for name, member in parts.items():
        assert isinstance(member, vertical.Member)
        codes.append(member.encoder.eval()(rows_of(name, NUM_TEST)[samples]))
    expected = party.head.eval()(torch.cat(codes, dim=1))
    outputs = vertical.predict(party, engine, x[samples], samples)
    torch.testing.assert_close(outputs, expected)


def test_predictions_change_no_weights_and_no_later_step() -> None:
    def run(*, predicts: bool) -> dict[str, Tensor]:
        party = owner("lab")
        engine = InProcess(members("lab"), driver="clinic")
        for _ in vertical.train(party, engine):
            if predicts:
                vertical.predict(party, engine, rows_of("clinic", NUM_TEST), torch.arange(NUM_TEST))
                predict_alone(party, rows_of("clinic", NUM_TEST))
        return dict(party.head.state_dict())

    assert_same_bits(run(predicts=True), run(predicts=False))


@pytest.mark.parametrize("widths", [(8, 6), (8, 9)], ids=["codes as wide", "codes wider"])
def test_the_three_substitutes_are_these(widths: tuple[int, int]) -> None:
    party = owner(*PARTNERS)
    engine = InProcess(members(*PARTNERS, widths=Perceptron(widths)), driver="clinic")
    list(vertical.train(party, engine))
    x = rows_of("clinic", NUM_TEST)
    num_codes = widths[-1]
    party.encoder.eval()
    party.head.eval()
    with torch.no_grad():
        code = party.encoder(x)
        mean = party.encoder(party.x).mean(dim=0)  # (6,), over the training rows
    if num_codes != 6:
        mean = mean.mean().expand(num_codes)

    def with_partners(*codes: Tensor) -> Tensor:
        with torch.no_grad():
            out: Tensor = party.head(torch.cat([code, *codes], dim=1))
        return out

    outputs = predict_alone(party, x)
    assert list(outputs) == ["zeros", "average", "random"]
    zeros = torch.zeros(NUM_TEST, num_codes)
    torch.testing.assert_close(outputs["zeros"], with_partners(zeros, zeros))
    same = mean.expand(NUM_TEST, -1)
    torch.testing.assert_close(outputs["average"], with_partners(same, same))
    assert not torch.allclose(outputs["random"], outputs["zeros"])
    again = predict_alone(party, x)["random"]
    assert torch.equal(outputs["random"], again)  # drawn by the run's seed


def test_random_substitutes_are_standard_normal() -> None:
    class Shows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, 6:]

    party, _ = trained("lab")
    party.head = Shows()  # type: ignore[assignment]
    drawn = predict_alone(party, torch.zeros(3000, 4))["random"]
    assert drawn.shape == (3000, 6)
    assert drawn.mean().item() == pytest.approx(0, abs=0.03)  # 4 / sqrt(18000)
    assert drawn.std().item() == pytest.approx(1, abs=0.03)


class _Listening:
    """A member that notes what it is asked for, and perhaps fails or lies."""

    accepts = vertical.Member.accepts

    def __init__(self, member: vertical.Member, how: str = "") -> None:
        self.member, self.how, self.asked = member, how, set[int]()

    def handle(self, message: Message) -> Message:
        reply = self.member.handle(message)
        if isinstance(message, vertical.Encode):
            self.asked.update(message.samples_B.tolist())
        if isinstance(reply, vertical.Codes):
            if self.how == "fails":
                raise TrainingError("its disk is full")
            if self.how == "type":
                return vertical.Updated()
            if self.how == "shape":
                return vertical.Codes(reply.code_BD[:, 1:])
            if self.how == "nan":
                return vertical.Codes(reply.code_BD * torch.nan)
        if isinstance(reply, vertical.Updated) and self.how == "update":
            raise TrainingError("its memory is full")
        return reply


def test_rows_without_a_label_or_a_match_are_not_trained_on() -> None:
    rows = torch.arange(NUM_ROWS)
    alignment = Alignment(
        {
            "clinic": rows,
            "lab": torch.where(rows < 16, rows, -1),
            "shop": torch.where(rows >= 8, rows, -1),
        }
    )
    data = local_data().with_labels_on(torch.arange(0, NUM_ROWS, 3))
    listening = {
        name: _Listening(member) for name, member in members(*PARTNERS, alignment=alignment).items()
    }
    party = owner(*PARTNERS, data=data, alignment=alignment)
    list(vertical.train(party, InProcess(listening, driver="clinic")))
    for member in listening.values():
        assert member.asked == {9, 12, 15}  # every third of 8..15


def test_without_such_rows_there_is_nothing_to_train_on() -> None:
    nowhere = Alignment({"clinic": torch.arange(NUM_ROWS), "lab": torch.full((NUM_ROWS,), -1)})
    with pytest.raises(ConfigError, match="no row of 'clinic' has both a label and a match"):
        owner("lab", alignment=nowhere)


def test_a_label_owner_needs_labels() -> None:
    with pytest.raises(ConfigError, match="'clinic' has no labelled row"):
        owner("lab", data=replace(local_data(), labels=None))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("fails", "its disk is full"),
        ("update", "its memory is full"),
        ("type", "expected vertical.Codes, got vertical.Updated"),
        ("shape", r"vertical.Codes.code_BD: expected shape \(10, 6\)"),
        ("nan", "its codes are not finite"),
    ],
)
def test_a_member_that_fails_or_lies_stops_training_with_its_name(how: str, why: str) -> None:
    parties = members(*PARTNERS)
    engine = InProcess(
        {"lab": parties["lab"], "shop": _Listening(parties["shop"], how)}, driver="clinic"
    )
    with pytest.raises(PartyError, match=f"^party 'shop': {why}") as caught:
        list(vertical.train(owner(*PARTNERS), engine))
    assert caught.value.party == "shop"


def test_a_member_without_test_rows_says_so() -> None:
    party = owner("lab")
    member = members("lab")["lab"]
    member.test = None
    engine = InProcess({"lab": member}, driver="clinic")
    list(vertical.train(party, engine))
    with pytest.raises(PartyError, match="'lab': it has no test table to predict from"):
        vertical.predict(party, engine, rows_of("clinic", 2), torch.arange(2))


@pytest.mark.parametrize(
    "message",
    [vertical.Encode(torch.arange(2), True, False), vertical.CodeGradient(torch.zeros(2, 6))],
)
def test_a_member_that_never_began_says_so(message: Message) -> None:
    words = r"'lab'.* was sent vertical\.\w+ before training began, or was restarted since; go on w"
    with pytest.raises(PartyError, match=words):
        members("lab")["lab"].handle(message)


def test_a_gradient_for_codes_that_were_not_sent_is_refused() -> None:
    member = members("lab")["lab"]
    member.handle(vertical.Open(0))
    with pytest.raises(TrainingError, match="a gradient for codes it did not send"):
        member.handle(vertical.CodeGradient(torch.zeros(2, 6)))


def test_a_loss_that_is_not_finite_names_the_party_and_the_step() -> None:
    party = owner("lab", learning_rate=1e30)
    words = r"'clinic': its loss is \w+ in epoch 1, step \d; lower the learning_rate \(1e\+30\)"
    with pytest.raises(TrainingError, match=words):
        list(vertical.train(party, InProcess(members("lab"), driver="clinic")))


def test_a_members_rate_that_is_too_high_is_blamed_on_the_member() -> None:
    engine = InProcess(members("lab", learning_rate=1e38), driver="clinic")
    with pytest.raises((PartyError, TrainingError), match=re.escape("'lab'")):
        list(vertical.train(owner("lab", epochs=20), engine))


def test_the_same_seed_gives_the_same_bits() -> None:
    first, second = (dict(trained(*PARTNERS)[0].head.state_dict()) for _ in range(2))
    assert_same_bits(first, second)


def test_through_bytes_is_directly() -> None:
    def run(through_bytes: bool) -> dict[str, Tensor]:
        party, helpers = owner(*PARTNERS), members(*PARTNERS)
        engine = InProcess(helpers, driver="clinic", through_bytes=through_bytes)
        list(vertical.train(party, engine))
        networks = {"head": party.head, "own": party.encoder, "lab": helpers["lab"].encoder}
        return {
            f"{part}.{name}": weights
            for part, network in networks.items()
            for name, weights in network.state_dict().items()
        }

    assert_same_bits(run(True), run(False))


def test_an_epoch_is_a_pass_or_as_many_steps_as_asked_for() -> None:
    for settings, expected in (({}, 3), ({"steps_per_epoch": 5}, 5)):
        party = owner("lab", **settings)
        epochs = list(vertical.train(party, InProcess(members("lab"), driver="clinic")))
        assert [(epoch.number, epoch.num_steps) for epoch in epochs] == [
            (number, expected) for number in (1, 2, 3)
        ]


def assert_same_bits(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name
