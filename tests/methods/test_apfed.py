"""APFed's identities: what must hold exactly, whatever the data."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.data import Alignment, Classification, PartyData, Regression, SharedRows
from dovetail.errors import ConfigError, DovetailError, MessageError, PartyError, TrainingError
from dovetail.federated import Epoch, Local
from dovetail.methods import apfed
from dovetail.methods.apfed.networks import MAX_CODE_WIDTH
from dovetail.models import Convolutional, Head, Perceptron
from dovetail.network import InProcess, Message

NUM_ROWS = 24
WIDTHS = Perceptron((8, 6))
HEAD = Head((5,), dropout=0.5)
TASK = Classification(("no", "yes", "perhaps"))


def active_data(*, seed: int = 0, num_rows: int = NUM_ROWS) -> PartyData:
    rng = torch.Generator().manual_seed(seed)
    return PartyData(
        "clinic",
        np.arange(num_rows),
        {"columns": torch.randn(num_rows, 4, generator=rng)},
        torch.randint(3, (num_rows,), generator=rng),
    )


def full_alignment(*passives: str, num_rows: int = NUM_ROWS) -> Alignment:
    return Alignment({name: torch.arange(num_rows) for name in ("clinic", *passives)})


def passive_rows(name: str, num_columns: int = 3, num_rows: int = NUM_ROWS) -> Tensor:
    return torch.randn(
        num_rows, num_columns, generator=torch.Generator().manual_seed(len(name) + num_columns)
    )


def passives(
    losses: dict[str, str], alignment: Alignment | None = None, **settings: Any
) -> dict[str, apfed.Passive]:
    alignment = alignment or full_alignment(*losses)
    return {
        name: apfed.Passive(
            SharedRows(name, passive_rows(name), alignment.rows[name]),
            apfed.PassiveConfig(loss=loss, learning_rate=0.05, **settings),  # type: ignore[arg-type]
            WIDTHS,
            Local(name),
        )
        for name, loss in losses.items()
    }


def active(
    data: PartyData | None = None,
    alignment: Alignment | None = None,
    *,
    seed: int = 0,
    **settings: Any,
) -> apfed.Active:
    config = apfed.Config(**{"epochs": 3, "batch_size": 10, "learning_rate": 0.1, **settings})
    return apfed.Active(
        data or active_data(),
        alignment,
        TASK,
        config,
        Local("clinic"),
        seed=seed,
        encoder=WIDTHS,
        head=HEAD,
    )


def weights(party: apfed.Active) -> dict[str, Tensor]:
    return dict(party.model().network.state_dict())


def train_to_end(party: apfed.Active, engine: InProcess | None = None) -> list[Epoch]:
    return list(apfed.train(party, engine))


def assert_same_bits(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name


@pytest.mark.parametrize(
    "losses",
    [
        {"lab": "reconstruction"},
        {"lab": "contrastive"},
        {"lab": "reconstruction", "shop": "contrastive", "insurer": "contrastive"},
    ],
    ids=["R", "C", "mixed"],
)
@pytest.mark.parametrize("projection", [None, 4])
def test_one_federated_step_is_the_pooled_graphs_gradient_step(
    losses: dict[str, str], projection: int | None
) -> None:
    trade_off = {name: 0.5 + index for index, name in enumerate(losses)}
    party = active(
        alignment=full_alignment(*losses),
        trade_off=trade_off,
        projection=projection,
        momentum=0.0,
        weight_decay=0.0,
    )
    helpers = passives(losses, momentum=0.0, weight_decay=0.0)
    engine = InProcess(helpers, driver="clinic")
    party.begin(engine)

    # The same loss as one graph over copies of every party's network.
    batch = next(party.questions.labelled)
    party.questions.labelled.restore({**party.questions.labelled.state(), "position": 0})
    networks = {
        "active": [
            party.encoder,
            party.head,
            *([party.solo.projection] if party.solo.projection else []),
        ]
    }
    networks |= {name: [helper.network] for name, helper in helpers.items()}
    copies = {name: [_copy(each) for each in modules] for name, modules in networks.items()}
    code = copies["active"][0](party.x[batch]).flatten(1)
    with copy.copy(party.random):
        total = F.cross_entropy(copies["active"][1](code), party.targets.labels[batch])
    pulls = dict(trade_off)
    for name, helper in helpers.items():
        x = helper.shared.x[batch]
        sent = copies["active"][2](code) if party.questions.partners[name].projected else code
        if helper.config.loss == "contrastive":
            term = apfed.contrastive_loss(sent, copies[name][0](x).flatten(1), 1.0)
        else:
            term = F.mse_loss(copies[name][0](sent), x)
        pulls[name] *= math.sqrt(sent.shape[1] / code.shape[1])  # 1 of whole codes
        total = total + pulls[name] * term
    total.backward()

    party.step(engine)

    for name, modules in networks.items():
        rate = 0.1 if name == "active" else 0.05
        scale = 1.0 if name == "active" else pulls[name]  # L_p's own step has no lambda_p
        for module, copied in zip(modules, copies[name], strict=True):
            for after, before in zip(module.parameters(), copied.parameters(), strict=True):
                # Where nobody contrasts, nothing flows through the projection.
                moved = 0 if before.grad is None else rate * before.grad / scale
                expected = before - moved
                torch.testing.assert_close(after, expected, rtol=0, atol=1e-6)


def _copy(network: nn.Module) -> nn.Module:
    return copy.deepcopy(network)


@pytest.mark.parametrize("loss", ["reconstruction", "contrastive"])
def test_a_trade_off_of_zero_is_learning_alone_bit_for_bit(loss: str) -> None:
    alone = active()
    train_to_end(alone)
    helped = active(alignment=full_alignment("lab"), trade_off=0.0)
    train_to_end(helped, InProcess(passives({"lab": loss}), driver="clinic"))
    assert_same_bits(weights(alone), weights(helped))


def test_a_trade_off_of_zero_is_learning_alone_when_labels_are_missing_too() -> None:
    data = active_data().with_labels_on(torch.arange(0, NUM_ROWS, 3))
    alone = active(data, steps_per_epoch=4)
    train_to_end(alone)
    helped = active(data, full_alignment("lab"), trade_off=0.0, steps_per_epoch=4)
    train_to_end(helped, InProcess(passives({"lab": "contrastive"}), driver="clinic"))
    assert_same_bits(weights(alone), weights(helped))


def test_learning_alone_is_a_plain_training_loop() -> None:
    party = active(weight_decay=0.01)
    encoder, head = _copy(party.encoder), _copy(party.head)
    optimizer = torch.optim.SGD(
        [*encoder.parameters(), *head.parameters()], lr=0.1, momentum=0.9, weight_decay=0.01
    )
    batches = active(weight_decay=0.01).questions.labelled
    dropout = active(weight_decay=0.01).random
    for _ in range(3 * batches.steps_per_pass):
        rows = next(batches)
        with dropout:
            loss = F.cross_entropy(head(encoder(party.x[rows])), party.targets.labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    train_to_end(party)
    torch.testing.assert_close(party.encoder.state_dict(), encoder.state_dict())
    torch.testing.assert_close(party.head.state_dict(), head.state_dict())


def test_eq_14_agrees_with_its_transcription() -> None:
    rng = np.random.default_rng(0)
    h_a, h_p, tau = rng.normal(size=(5, 7)), rng.normal(size=(5, 7)), 0.3

    def s(one: np.ndarray, two: np.ndarray) -> float:
        return float(one @ two / (np.linalg.norm(one) * np.linalg.norm(two)))

    losses = []
    for i in range(5):
        below = sum(
            (j != i) * np.exp(s(h_a[i], h_a[j]) / tau) + np.exp(s(h_a[i], h_p[j]) / tau)
            for j in range(5)
        )
        losses.append(-np.log(np.exp(s(h_a[i], h_p[i]) / tau) / below))
    ours = apfed.contrastive_loss(torch.from_numpy(h_a), torch.from_numpy(h_p), tau)
    assert ours.item() == pytest.approx(np.mean(losses), rel=1e-12)


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6])
def test_the_cosine_of_short_codes_is_the_papers_where_a_party_says_so(size: float) -> None:
    rows = torch.arange(5)
    code = size * F.normalize(torch.randn(5, 6, generator=torch.Generator().manual_seed(1)))
    exact = passives({"lab": "contrastive"}, min_norm=1e-12)["lab"]
    exact.handle(apfed.Begin((6,), 0, seed=7))
    leaf = code.double().requires_grad_()
    local = exact.network(passive_rows("lab")[rows]).flatten(1).double().detach()
    ours = leaf / leaf.norm(dim=1, keepdim=True)  # Eq. (15); of the partner a code may be zeros
    theirs = local / local.norm(dim=1, keepdim=True).clamp(min=1e-12)
    across, within = ours @ theirs.T, ours @ ours.T
    below = across.exp().sum(1) + within.exp().sum(1) - math.e  # without j = i, Eq. (14)
    (below.log() - across.diagonal()).mean().backward()
    answer = exact.handle(apfed.Codes(rows, code))
    assert isinstance(answer, apfed.CodeGradient)
    assert leaf.grad is not None
    torch.testing.assert_close(
        size * answer.gradient_BD.double(), size * leaf.grad, rtol=1e-4, atol=1e-6
    )


def test_a_passive_answer_depends_on_the_message_and_its_own_state_only() -> None:
    message = apfed.Codes(torch.tensor([3, 1, 4]), torch.randn(3, 6))
    answers = []
    for noise in (0, 1):
        helper = passives({"lab": "contrastive"})["lab"]
        torch.manual_seed(noise)
        torch.rand(noise * 100)
        helper.handle(apfed.Begin((6,), 0, seed=7))
        first = helper.handle(message)
        second = helper.handle(message)
        assert isinstance(first, apfed.CodeGradient)
        assert isinstance(second, apfed.CodeGradient)
        answers.append((first.gradient_BD, second.gradient_BD))
    assert torch.equal(answers[0][0], answers[1][0])
    assert torch.equal(answers[0][1], answers[1][1])
    assert not torch.equal(answers[0][0], answers[0][1])  # its own step came between


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not() -> None:
    def run(seed: int) -> dict[str, Tensor]:
        party = active(alignment=full_alignment("lab"), seed=seed)
        train_to_end(party, InProcess(passives({"lab": "contrastive"}), driver="clinic"))
        return weights(party)

    assert_same_bits(run(3), run(3))
    assert not torch.equal(run(3)["encoder.1.weight"], run(4)["encoder.1.weight"])


@pytest.mark.parametrize("projection", [None, 4])
def test_through_bytes_is_directly(projection: int | None) -> None:
    def run(through_bytes: bool) -> dict[str, Tensor]:
        losses = {"lab": "reconstruction", "shop": "contrastive"}
        party = active(alignment=full_alignment(*losses), projection=projection)
        engine = InProcess(passives(losses), driver="clinic", through_bytes=through_bytes)
        train_to_end(party, engine)
        return weights(party)

    assert_same_bits(run(True), run(False))


def test_rows_are_asked_for_by_the_passives_own_place_for_them() -> None:
    shuffled = torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(1))
    alignment = Alignment({"clinic": torch.arange(NUM_ROWS), "lab": shuffled.argsort()})
    helper = passives({"lab": "contrastive"})["lab"]
    moved = apfed.Passive(
        SharedRows("lab", helper.shared.x[shuffled], alignment.rows["lab"]),
        helper.config,
        WIDTHS,
        Local("lab"),
    )
    in_order = active(alignment=full_alignment("lab"))
    train_to_end(in_order, InProcess({"lab": helper}, driver="clinic"))
    out_of_order = active(alignment=alignment)
    train_to_end(out_of_order, InProcess({"lab": moved}, driver="clinic"))
    assert_same_bits(weights(in_order), weights(out_of_order))


def test_each_passive_is_asked_for_the_rows_it_shares_and_no_others() -> None:
    half = torch.arange(NUM_ROWS)
    alignment = Alignment(
        {
            "clinic": torch.arange(NUM_ROWS),
            "lab": torch.where(half < 12, half, -1),
            "shop": torch.where(half >= 8, half - 8, -1),
        }
    )
    for overlap, expected in {
        "pairwise": {"lab": set(range(12)), "shop": set(range(8, 24))},
        "common": {"lab": set(range(8, 12)), "shop": set(range(8, 12))},
    }.items():
        asked: dict[str, set[int]] = {"lab": set(), "shop": set()}
        helpers = {
            name: _Listening(helper, asked[name])
            for name, helper in passives(
                {"lab": "contrastive", "shop": "contrastive"}, alignment
            ).items()
        }
        party = active(alignment=alignment, overlap=overlap)
        train_to_end(party, InProcess(helpers, driver="clinic"))
        assert asked == expected


class _Listening:
    """A passive party that notes which samples it is asked for."""

    accepts = apfed.Passive.accepts

    def __init__(self, party: apfed.Passive, asked: set[int]) -> None:
        self.party, self.asked = party, asked

    def handle(self, message: Message) -> Message:
        if isinstance(message, apfed.Codes):
            self.asked.update(message.samples_B.tolist())
        return self.party.handle(message)


class _Failing(_Listening):
    """A passive party that fails, or lies, in some of its steps."""

    def __init__(self, party: apfed.Passive, how: str) -> None:
        super().__init__(party, set())
        self.how, self.step = how, 0

    def handle(self, message: Message) -> Message:
        reply = super().handle(message)
        if not isinstance(reply, apfed.CodeGradient):
            return reply
        self.step += 1
        if self.step % 2:
            return reply
        if self.how == "fails":
            raise TrainingError("its disk is full")
        if self.how == "type":
            return apfed.Ready(False)
        gradient = reply.gradient_BD
        return apfed.CodeGradient(gradient[:, 1:] if self.how == "shape" else gradient * torch.nan)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("fails", "its disk is full"),
        ("type", "expected apfed.CodeGradient, got apfed.Ready"),
        ("shape", r"expected shape \(10, 6\)"),
        ("nan", "the gradient is not finite"),
    ],
)
def test_a_passive_that_fails_or_lies_is_left_out_of_that_step(how: str, why: str) -> None:
    party = active(alignment=full_alignment("lab"))
    helper = _Failing(passives({"lab": "contrastive"})["lab"], how)
    epochs = train_to_end(party, InProcess({"lab": helper}, driver="clinic"))
    assert sum(epoch.missed.get("lab", 0) for epoch in epochs) == 4  # every other of 9 steps
    assert re.search(why, epochs[0].reasons["lab"])
    assert "step 2" in epochs[0].reasons["lab"]
    for value in weights(party).values():
        assert value.isfinite().all()


def test_who_is_left_out_is_told_at_once_and_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    party = active(alignment=full_alignment("lab"), epochs=8)
    helper = _Failing(passives({"lab": "contrastive"})["lab"], "fails")
    epochs = train_to_end(party, InProcess({"lab": helper}, driver="clinic"))
    assert sum(epoch.missed.get("lab", 0) for epoch in epochs) == 12
    messages = [each.getMessage() for each in caplog.records if each.name.endswith("federation")]
    assert messages == [
        "party 'lab' is left out of epoch 1, step 2: its disk is full",
        "party 'lab' is left out of epoch 7, step 2: its disk is full (left out 10 times so far)",
    ]


def test_the_contrast_needs_codes_of_one_width() -> None:
    helper = passives({"lab": "contrastive"})["lab"]
    narrow = apfed.Passive(helper.shared, helper.config, Perceptron((8, 5)), Local("lab"))
    party = active(alignment=full_alignment("lab"))
    with pytest.raises(PartyError, match=r"'lab'.*is 6, that of this party's encoder is another"):
        train_to_end(party, InProcess({"lab": narrow}, driver="clinic"))


@pytest.mark.parametrize(
    ("loss", "begin"),
    [
        ("reconstruction", apfed.Begin((MAX_CODE_WIDTH,), 0, 0)),
        ("contrastive", apfed.Begin((6,), MAX_CODE_WIDTH, 0)),
    ],
)
def test_a_network_that_would_be_too_large_is_refused_before_it_is_made(
    loss: str, begin: apfed.Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    linear = nn.Linear

    class Watched(linear):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(0 if self.weight.is_meta else self.weight.nbytes)

    helper = passives({"lab": loss})["lab"]
    monkeypatch.setattr(nn, "Linear", Watched)
    with pytest.raises(MessageError, match="more than 268435456 bytes of parameters"):
        helper.handle(begin)
    assert made
    assert max(made) < 1000
    helper.handle(apfed.Begin((6,), 0, 0))  # and it is still there


def test_a_projection_lets_widths_differ_and_cuts_what_is_sent() -> None:
    helper = passives({"lab": "contrastive"})["lab"]
    narrow = apfed.Passive(helper.shared, helper.config, Perceptron((8, 5)), Local("lab"))
    party = active(alignment=full_alignment("lab"), projection=2)
    engine = InProcess({"lab": narrow}, driver="clinic")
    train_to_end(party, engine)
    shapes = {
        tuple(tensor["shape"])
        for line in engine.ledger.lines()
        for tensor in line["tensors"]
        if tensor["name"] == "code_BD"
    }
    assert shapes == {(10, 2), (4, 2)}


def test_any_module_may_be_handed_in() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 6)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.linear(x[:, :2]) + self.linear(x[:, 2:4])
            return out

    config = apfed.Config(epochs=2, batch_size=10)
    helper = passives({"lab": "contrastive"})["lab"]
    given = apfed.Passive(helper.shared, helper.config, nn.Linear(3, 6), Local("lab"))
    party = apfed.Active(
        active_data(),
        full_alignment("lab"),
        TASK,
        config,
        Local("clinic"),
        seed=0,
        encoder=Halves(),
        head=nn.Linear(6, 3),
    )
    train_to_end(party, InProcess({"lab": given}, driver="clinic"))
    assert len(party.model().predictions(party.x).values) == NUM_ROWS


def test_a_passive_network_may_be_a_function_of_the_shapes() -> None:
    seen = []

    def decoder(code_shape: tuple[int, ...], row_shape: tuple[int, ...]) -> nn.Module:
        seen.append((code_shape, row_shape))
        return nn.Linear(code_shape[0], row_shape[0])

    helper = passives({"lab": "reconstruction"})["lab"]
    given = apfed.Passive(helper.shared, helper.config, decoder, Local("lab"))
    party = active(alignment=full_alignment("lab"))
    train_to_end(party, InProcess({"lab": given}, driver="clinic"))
    assert seen == [((6,), (3,))]


def test_image_networks_reconstruct_strips_of_odd_height() -> None:
    layers = Convolutional(channels=(4, 5, 6), kernels=(5, 4, 5), strides=(1, 2, 1))
    rng = torch.Generator().manual_seed(0)
    strips = torch.randint(256, (2, 12, 3, 11, 16), dtype=torch.uint8, generator=rng)
    data = PartyData("clinic", np.arange(12), {"strip": strips[0]}, torch.arange(12) % 3)
    alignment = full_alignment("lab", num_rows=12)
    helper = apfed.Passive(
        SharedRows("lab", strips[1], alignment.rows["lab"]),
        apfed.PassiveConfig(loss="reconstruction"),
        layers,
        Local("lab"),
    )
    party = apfed.Active(
        data,
        alignment,
        TASK,
        apfed.Config(epochs=1),
        Local("clinic"),
        seed=0,
        encoder=layers,
        head=HEAD,
    )
    epochs = train_to_end(party, InProcess({"lab": helper}, driver="clinic"))
    assert not epochs[0].missed


def test_a_number_can_be_the_label() -> None:
    data = active_data()
    x = data.joined()
    data = replace(data, labels=x[:, 0] * 2 - x[:, 1])
    party = apfed.Active(
        data,
        full_alignment("lab"),
        Regression(mean=10.0, scale=2.0),
        apfed.Config(epochs=200, batch_size=24, learning_rate=0.02, trade_off=0.1),
        Local("clinic"),
        seed=0,
        encoder=Perceptron((16,)),
        head=Head(()),
    )
    helper = apfed.Passive(
        SharedRows("lab", passive_rows("lab"), torch.arange(NUM_ROWS)),
        apfed.PassiveConfig(loss="reconstruction"),
        Perceptron((16,)),
        Local("lab"),
    )
    train_to_end(party, InProcess({"lab": helper}, driver="clinic"))
    values = party.model().predictions(x).values
    wanted = (x[:, 0] * 2 - x[:, 1]).double().numpy() * 2 + 10
    assert np.corrcoef(values, wanted)[0, 1] > 0.98


def test_a_loss_that_is_not_finite_names_the_party_and_the_step() -> None:
    party = active(learning_rate=1e30)
    with pytest.raises(TrainingError, match=r"'clinic': its loss is .* epoch 1, step \d.*1e\+30"):
        train_to_end(party)


def test_a_passive_whose_loss_is_not_finite_is_named_and_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    alignment = full_alignment("lab")
    helper = apfed.Passive(
        SharedRows("lab", passive_rows("lab") * 1e30, alignment.rows["lab"]),
        apfed.PassiveConfig(loss="reconstruction"),
        WIDTHS,
        Local("lab"),
    )
    epochs = train_to_end(active(alignment=alignment), InProcess({"lab": helper}, driver="clinic"))
    assert epochs[0].missed == {"lab": 3}
    assert epochs[0].reasons["lab"].endswith(": its loss is not finite; lower its learning_rate")
    assert "reconstruction loss is inf; lower its learning_rate (" in caplog.text  # at its site


def test_an_active_party_needs_a_label() -> None:
    data = active_data().with_labels_on(torch.empty(0, dtype=torch.int64))
    with pytest.raises(ConfigError, match="'clinic' has no labelled row"):
        active(data)


def test_common_overlap_is_training_on_the_common_rows_alone() -> None:
    alignment = Alignment(
        {"clinic": torch.arange(NUM_ROWS), "lab": torch.arange(NUM_ROWS).masked_fill_(_odd(), -1)}
    )
    helper = passives({"lab": "contrastive"}, alignment)["lab"]
    common = active(alignment=alignment, overlap="common")
    train_to_end(common, InProcess({"lab": helper}, driver="clinic"))

    rows = (~_odd()).nonzero().flatten()
    alignment = full_alignment("lab", num_rows=len(rows))
    helper = apfed.Passive(
        SharedRows("lab", helper.shared.x[rows], alignment.rows["lab"]),
        helper.config,
        WIDTHS,
        Local("lab"),
    )
    smaller = active(active_data().take(rows), alignment)
    train_to_end(smaller, InProcess({"lab": helper}, driver="clinic"))
    assert_same_bits(weights(common), weights(smaller))


def _odd() -> Tensor:
    return torch.arange(NUM_ROWS) % 2 == 1


def test_common_overlap_needs_a_label_among_the_common_rows() -> None:
    half = torch.arange(NUM_ROWS)
    alignment = Alignment({"clinic": half, "lab": torch.where(half < 12, half, -1)})
    party = active(
        active_data().with_labels_on(torch.arange(12, NUM_ROWS)), alignment, overlap="common"
    )
    with pytest.raises(ConfigError, match="none of the 12 rows that all parties share"):
        train_to_end(party, InProcess(passives({"lab": "contrastive"}, alignment), driver="clinic"))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (apfed.Begin((), 0, seed=0), "no codes have shape"),
        (apfed.Begin((6,), -1, seed=0), "projected width -1"),
        (apfed.Codes(torch.zeros(2), torch.zeros(2, 6)), r"samples_B: expected .* torch.int64"),
        (apfed.Codes(torch.tensor([0]), torch.zeros(2, 6)), r"code_BD: expected shape \(1, 6\)"),
        (apfed.Codes(torch.tensor([99]), torch.zeros(1, 6)), "'lab' was asked for samples outside"),
    ],
)
def test_a_passive_refuses_messages_that_cannot_be_meant(message: Message, why: str) -> None:
    helper = passives({"lab": "contrastive"})["lab"]
    helper.handle(apfed.Begin((6,), 0, seed=0))
    with pytest.raises(DovetailError, match=why):
        helper.handle(message)


def test_an_empty_overlap_names_the_party() -> None:
    alignment = Alignment({"clinic": torch.arange(NUM_ROWS), "lab": torch.full((NUM_ROWS,), -1)})
    party = active(alignment=alignment)
    with pytest.raises(ConfigError, match="'lab' shares no sample with 'clinic'"):
        train_to_end(party, InProcess(passives({"lab": "contrastive"}), driver="clinic"))


def test_trade_offs_by_party_must_name_every_party() -> None:
    party = active(alignment=full_alignment("lab"), trade_off={"shop": 1.0})
    with pytest.raises(ConfigError, match=r"names \['shop'\] but not party 'lab'"):
        train_to_end(party, InProcess(passives({"lab": "contrastive"}), driver="clinic"))
