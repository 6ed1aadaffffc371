"""Whoever knows code, run file, widths and the seed on the wire tries to compute another's columns.

Each attack is made on a party without a site's secret, too, as simulated ones are: there it gets
everything, so that it is the secret that stops it and no mistake of the attack.
"""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from attackers import Town, town
from federations import PATIENCE_S
from torch import Tensor, nn

from dovetail.alignment import psi
from dovetail.data import Alignment, Classification, PartyData, SharedRows, table_from_arrays
from dovetail.federated import Local
from dovetail.methods import apfed, fedoptimus, hyfem, vertical
from dovetail.methods.apfed import distil
from dovetail.methods.chfl import layers as chfl
from dovetail.methods.fedoptimus.local_data import Columns
from dovetail.methods.settings.apfed import PartnerConfig
from dovetail.models import (
    ColumnsMlp,
    Head,
    Perceptron,
    RandomStream,
    Secret,
    derive_key,
    derive_seed,
    generator,
)
from dovetail.models.optimizers import Optimizer
from dovetail.network import Engine, InProcess, Message
from dovetail.network.stream import Stream
from dovetail.node.partyfile import open_site

#: The README's.
WIDTHS = (64, 32)
SEED, STEPS, BATCH = 0, 10, 64


def secret() -> bytes:
    return bytes(range(16))


#: Whose party has the secret, and whose has none.
SECRETS = pytest.mark.parametrize("site_secret", [None, secret], ids=["simulated", "at its site"])


def columns(num: int, num_columns: int, seed: int = 5) -> Tensor:
    return torch.randn(num, num_columns, generator=torch.Generator().manual_seed(seed))


def read(guess: Tensor, truth: Tensor) -> float:
    """Share of the rows that are known to a hundredth of a standard deviation, in every column."""
    return float(((guess - truth).abs().amax(dim=1) < 1e-2).double().mean())


# --- The driver reads a partner -------------------------------------------------------------------


def read_passive(network: Engine, party: str, config: apfed.PassiveConfig, rows: Tensor) -> float:
    """A driver of APFed reads a partner that reconstructs: the share of rows that it gets.

    It knows the partner's widths and rate, and computes its decoder from the seed that it sends.
    A gradient is linear in the partner's rows, given the decoder. Then it takes the partner's step.
    """
    code_shape, row_shape = (WIDTHS[-1],), tuple(rows.shape[1:])
    network.ask({party: apfed.Begin(code_shape, 0, SEED)}, apfed.Ready).or_raise()
    with RandomStream(SEED, party, "passive"):
        decoder = Perceptron(WIDTHS).decoder(code_shape, row_shape)
    optimizer = Optimizer.of(config, decoder.parameters())
    rng = torch.Generator().manual_seed(9)
    shares = []
    for _ in range(STEPS):
        samples = torch.randperm(len(rows), generator=rng)[:BATCH]
        code = torch.randn(BATCH, WIDTHS[-1], generator=rng)
        asked = {party: apfed.Codes(samples, code)}
        answers = network.ask(asked, apfed.CodeGradient, timeout_s=60).or_raise()
        gradient = answers[party].gradient_BD
        guess = decoder(code).detach()
        jacobian = torch.func.vmap(torch.func.jacrev(lambda h: decoder(h[None])[0]))(code).detach()
        scale = 2 / guess.numel()
        residual = torch.linalg.lstsq(
            jacobian.double().transpose(1, 2), (gradient / scale).double().unsqueeze(2)
        ).solution.squeeze(2)
        guessed = (guess - residual).float()
        shares.append(read(guessed, rows[samples]))
        optimizer.zero_grad()
        F.mse_loss(decoder(code), guessed).backward()
        optimizer.step()
    return sum(shares) / STEPS


@pytest.mark.slow
@SECRETS
def test_a_driver_reads_a_partner_s_rows_unless_its_home_has_a_secret(
    site_secret: Secret | None,
) -> None:
    rows = columns(300, 10)
    config = apfed.PassiveConfig(loss="reconstruction")
    shared = SharedRows("shop", rows, torch.arange(len(rows)))
    shop = apfed.Passive(shared, config, Perceptron(WIDTHS), Local("shop", secret=site_secret))
    share = read_passive(InProcess({"shop": shop}, driver="bank"), "shop", config, rows)
    assert share == 0 if site_secret else share == 1


def read_contrastive(network: Engine, party: str, rows: Tensor, *, begins: int) -> float:
    """A driver of APFed-C reads a partner of which it sees only how codes shall move.

    Each ``Begin`` with another seed gives another network over the same rows. The gradients are
    functions of these rows that the driver can compute: Gauss and Newton's method finds the rows.
    """
    num_rows, num_columns, widths, temperature = 16, rows.shape[1], (24, 12), 0.5
    rng = torch.Generator().manual_seed(9)
    sent, seen, encoders = [], [], []
    for seed in range(begins):
        network.ask({party: apfed.Begin(widths[-1:], 0, seed)}, apfed.Ready).or_raise()
        with RandomStream(seed, party, "passive"):
            encoders.append(Perceptron(widths).encoder((num_columns,)).double())
        code = torch.randn(num_rows, widths[-1], generator=rng)
        asked = {party: apfed.Codes(torch.arange(num_rows), code)}
        answer = network.ask(asked, apfed.CodeGradient).or_raise()[party]
        sent.append(code.double())
        seen.append(answer.gradient_BD.double())
    target = torch.cat(seen).flatten()

    def residual(x: Tensor) -> Tensor:
        gradients = []
        for code, encoder in zip(sent, encoders, strict=True):
            local_code = encoder(x.view(num_rows, num_columns))
            loss = partial(apfed.contrastive_loss, local_BD=local_code, tau=temperature)
            gradients.append(torch.func.grad(loss)(code))
        return (torch.cat(gradients).flatten() - target) / target.std()

    x = 0.5 * torch.randn(num_rows * num_columns, generator=rng, dtype=torch.double)
    error, damping = residual(x).detach().square().sum(), 1.0
    for _ in range(15):
        jacobian = torch.func.jacfwd(residual)(x).detach()
        normal = jacobian.T @ jacobian
        damped = normal + damping * (normal.diag() + 1e-9).diag()
        tried = x - torch.linalg.solve(damped, jacobian.T @ residual(x).detach())
        now = residual(tried).detach().square().sum()
        x, error, damping = (tried, now, damping / 5) if now < error else (x, error, damping * 4)
    return read(x.view(num_rows, num_columns).float(), rows[:num_rows])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's own, in jacfwd
@SECRETS
def test_a_driver_reads_a_partner_that_contrasts_by_eight_begins_unless_its_home_has_a_secret(
    site_secret: Secret | None,
) -> None:
    rows = columns(60, 5)
    config = apfed.PassiveConfig(loss="contrastive", temperature=0.5)
    shared = SharedRows("shop", rows, torch.arange(len(rows)))
    shop = apfed.Passive(shared, config, Perceptron((24, 12)), Local("shop", secret=site_secret))
    share = read_contrastive(InProcess({"shop": shop}, driver="bank"), "shop", rows, begins=8)
    assert share == 0 if site_secret else share == 1


@pytest.mark.network
def test_a_driver_reads_no_row_of_a_shop_that_joined(tmp_path: Path) -> None:
    with town(tmp_path).ending() as federation:
        assert isinstance(federation, Town)
        federation.write(num_rows=300)
        federation.change("shop.toml", ("encoder = [16, 8]", f"encoder = {list(WIDTHS)}"))
        site = open_site(tmp_path / "shop.toml")
        x = site.table.encoded(site.fit_input()).joined()
        ids = [f"P-{number:04d}" for number in range(300)]
        with Stream(
            f"127.0.0.1:{federation.port}",
            driver="bank",
            credentials=federation.credentials("bank"),
            parties=["shop"],
        ) as stream:
            federation.join("shop")
            stream.wait(PATIENCE_S)
            aligned = psi.align(stream.engine("a1"), ids).alignment.rows
            config = apfed.PassiveConfig(loss="reconstruction")
            engine = stream.engine("a1/apfed/seed-0")
            # Both tables have one order, so the attacker's row of a sample is the shop's: to score.
            assert read_passive(engine, "shop", config, x[aligned["bank"]]) == 0
        secret_file = tmp_path / "shop.site" / "secret"
        assert secret_file.stat().st_mode & 0o777 == 0o600
        digits = secret_file.read_text().strip()
        for path in tmp_path.rglob("*"):  # neither sent nor logged, nor in what travels
            if path.is_file() and path != secret_file:
                data = path.read_bytes()
                assert digits.encode() not in data, path
                assert bytes.fromhex(digits) not in data, path


def inverted(encoder: nn.Module, code: Tensor, num_columns: int, rng: torch.Generator) -> Tensor:
    """Rows with these codes: Levenberg and Marquardt's method, from several starts at once."""
    encoder = encoder.double().eval()
    code = code.double()
    starts = 4
    best = torch.zeros(len(code), num_columns, dtype=torch.double)
    least = torch.full((len(code),), math.inf, dtype=torch.double)
    jacobian_of = torch.func.vmap(torch.func.jacrev(lambda x: encoder(x[None])[0]))
    for _ in range(starts):
        x = torch.randn(len(code), num_columns, generator=rng, dtype=torch.double)
        damping = torch.full((len(code), 1, 1), 1e-2, dtype=torch.double)
        error = (encoder(x).detach() - code).square().sum(dim=1)
        for _ in range(20):
            jacobian = jacobian_of(x).detach()
            residual = (encoder(x).detach() - code).unsqueeze(2)
            normal = jacobian.transpose(1, 2) @ jacobian
            eye = torch.eye(num_columns, dtype=torch.double)
            step = torch.linalg.solve(normal + damping * eye, jacobian.transpose(1, 2) @ residual)
            tried = x - step.squeeze(2)
            now = (encoder(tried).detach() - code).square().sum(dim=1)
            better = now < error
            x = torch.where(better.unsqueeze(1), tried, x)
            error = torch.where(better, now, error)
            damping = torch.where(better.view(-1, 1, 1), damping / 5, damping * 5).clamp(1e-12, 1e6)
        best = torch.where((error < least).unsqueeze(1), x, best)
        least = least.minimum(error)
    return best.float()


@pytest.mark.slow
@SECRETS
def test_a_label_owner_reads_a_member_s_rows_unless_its_home_has_a_secret(
    site_secret: Secret | None,
) -> None:
    """Classic vertical learning: the first codes of a network that the seed gives."""
    rows = columns(BATCH, 10)
    shared = SharedRows("shop", rows, torch.arange(len(rows)))
    shop = vertical.Member(
        shared, None, vertical.Config(), Perceptron(WIDTHS), Local("shop", secret=site_secret)
    )
    network = InProcess({"shop": shop}, driver="bank")
    network.ask({"shop": vertical.Open(SEED)}, vertical.Opened).or_raise()
    asked = vertical.Encode(torch.arange(len(rows)), training=False, test=False)
    codes = network.ask({"shop": asked}, vertical.Codes).or_raise()["shop"].code_BD
    with RandomStream(SEED, "shop", "member"):
        encoder = Perceptron(WIDTHS).encoder((10,))
    guess = inverted(encoder, codes, 10, torch.Generator().manual_seed(1))
    assert read(guess, rows) == 0 if site_secret else read(guess, rows) > 0.7


@SECRETS
def test_a_coordinator_reads_a_data_owner_s_rows_unless_its_home_has_a_secret(
    site_secret: Secret | None,
) -> None:
    """FedOptimus: embeddings come to the coordinator in the clear, the first ones of the seed."""
    rows = columns(BATCH, 6)
    config = fedoptimus.Config(embedding=32)
    bottom = ColumnsMlp((64,))
    shared = {"north": SharedRows("shop", rows, torch.arange(len(rows)))}
    held = Columns("shop", shared, bottom)
    shop = fedoptimus.DataOwner(held, Local("shop", secret=site_secret))
    network = InProcess({"shop": shop}, driver="coordinator")
    begin = fedoptimus.messages.BeginData(
        config.model_dump_json(), SEED, ("north",), (BATCH,), (BATCH,)
    )
    network.ask({"shop": begin}, fedoptimus.messages.DataReady).or_raise()
    asked = fedoptimus.messages.Embed("north", torch.arange(BATCH), test=False)
    answer = network.ask({"shop": asked}, fedoptimus.messages.Embeddings).or_raise()["shop"]
    with RandomStream(SEED, "shop", "bottom"):
        network_of_seed = bottom.build((6,), config.embedding)
    codes = next(iter(answer.tensors().values()))
    guess = inverted(network_of_seed, codes, 6, torch.Generator().manual_seed(1))
    assert read(guess, rows) == 0 if site_secret else read(guess, rows) > 0.7


# --- A partner reads the driver -------------------------------------------------------------------


class Curious:
    """A partner that keeps what the driver sends, and asks for nothing."""

    accepts = (apfed.Begin, apfed.Codes)

    def __init__(self) -> None:
        self.begin: apfed.Begin | None = None
        self.codes: list[apfed.Codes] = []

    def handle(self, message: Message) -> Message:
        if isinstance(message, apfed.Begin):
            self.begin = message
            return apfed.Ready(False)
        assert isinstance(message, apfed.Codes)
        self.codes.append(message)
        return apfed.CodeGradient(torch.zeros_like(message.code_BD))


@pytest.mark.slow
@SECRETS
def test_a_partner_reads_the_driver_s_rows_unless_its_home_has_a_secret(
    site_secret: Secret | None,
) -> None:
    rows = columns(256, 10)
    labels = (rows[:, 0] + rows[:, 3] > 0).long()
    everybody = torch.arange(len(rows))
    bank = apfed.Active(
        PartyData("bank", everybody.numpy(), {"own": rows}, labels),
        Alignment({"bank": everybody, "shop": everybody}),
        Classification(("no", "yes")),
        apfed.Config(epochs=1),
        Local("bank", secret=site_secret),
        seed=SEED,
        encoder=Perceptron(WIDTHS),
        head=Head((64,)),
    )
    shop = Curious()
    list(apfed.train(bank, InProcess({"shop": shop}, driver="bank")))
    assert shop.begin is not None
    with RandomStream(shop.begin.seed, "bank", "networks"):
        encoder = Perceptron(WIDTHS).encoder((10,))
    shares = []
    for step in shop.codes[:4]:
        guess = inverted(encoder, step.code_BD, 10, torch.Generator().manual_seed(1))
        shares.append(read(guess, rows[step.samples_B]))
    assert shares[0] > 0.6 if site_secret is None else shares == [0, 0, 0, 0]

    # The seed alone also gave the order of batches, and so which row of the table a sample is.
    order = torch.randperm(256, generator=generator(SEED, "bank", "labelled batches"))
    guessed = (order[: len(shop.codes[0].samples_B)] == shop.codes[0].samples_B).double().mean()
    assert guessed == 1 if site_secret is None else guessed < 0.1


# --- Nothing that a site draws follows from what travels ------------------------------------------


def test_no_state_of_a_stream_is_among_the_four_billion_that_seeds_give() -> None:
    """PyTorch fills its state from 32 bits by a recurrence, which anybody could try out."""

    def words(made: torch.Generator) -> list[int]:
        state = bytes(made.get_state().tolist())[24:]
        return [int.from_bytes(state[8 * i : 8 * i + 8], "little") for i in range(624)]

    def of_a_seed(state: list[int]) -> bool:
        following = [
            (1812433253 * (before ^ (before >> 30)) + index) % 2**32
            for index, before in enumerate(state[:-1], start=1)
        ]
        return following == state[1:]

    assert of_a_seed(words(generator(SEED, "shop", "passive")))
    assert not of_a_seed(words(generator(SEED, "shop", "passive", secret=secret())))


def test_networks_of_apfed_d_at_a_site_are_no_function_of_the_seed() -> None:
    rows = SharedRows("shop", columns(40, 4), torch.arange(40))
    asked = distil.Encode(
        ("network",), (), torch.zeros(0, 0), torch.arange(40), training=False, test=False
    )

    def codes(site_secret: Secret | None) -> Tensor:
        shop = distil.Partner(rows, None, PartnerConfig(), Local("shop", secret=site_secret))
        shop.handle(distil.Begin(("network",), 1, 1, SEED))
        answer = shop.handle(asked)
        assert isinstance(answer, distil.Codes)
        return answer.code_ND

    assert torch.equal(codes(None), codes(None))  # in simulation runs repeat
    assert not torch.allclose(codes(None), codes(secret))


class Members:
    """Parties of CHFL and HyFEM, whose weights are their own until they are sent."""

    @staticmethod
    def chfl(site_secret: Secret | None) -> chfl.Member:
        task = Classification(("no", "yes"))
        x, labels = columns(40, 4), torch.arange(40) % 2
        table = table_from_arrays("shop", dict(zip("abcd", x.numpy().T, strict=True)))
        data = PartyData("shop", torch.arange(40).numpy(), labels=labels, tables={"columns": table})
        member = chfl.Member(
            chfl.ChflData(data, task, ("a", "b")), Local("shop", secret=site_secret)
        )
        config = chfl.Config(widths=(8, 8), batch_size=8)
        described = member.handle(chfl.Describe())
        assert isinstance(described, chfl.Description)
        opening = chfl.agree_on({"shop": described}, config)
        member.handle(chfl.Begin(config.model_dump_json(), SEED, *opening))
        return member

    @staticmethod
    def hyfem(site_secret: Secret | None) -> hyfem.Member:
        task = Classification(("no", "yes"))
        data = PartyData(
            "shop", torch.arange(40).numpy(), {"own": columns(40, 4)}, torch.arange(40) % 2
        )
        member = hyfem.Member(hyfem.HyfemData(data, task, (8,)), Local("shop", secret=site_secret))
        settings = hyfem.Settings(batch_size=8).model_dump_json()
        extractor = json.dumps(Perceptron((8,)).to_json())
        task_text = json.dumps(task.to_json())
        member.handle(hyfem.Begin(settings, (extractor,), ("",), task_text, SEED, 1))
        return member


@pytest.mark.parametrize("method", ["chfl", "hyfem"])
def test_a_member_s_own_weights_and_batches_do_not_follow_from_the_seed(method: str) -> None:
    def drawn(site_secret: Secret | None) -> list[Tensor]:
        member = getattr(Members, method)(site_secret)
        network = member.columns if method == "chfl" else member.network
        return [*network.parameters(), next(member.batches).double()]

    one, two, at_site = drawn(None), drawn(None), drawn(secret)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    weights = [(a, b) for a, b in zip(one, at_site, strict=True) if a.numel() > 1]
    assert not any(torch.equal(a, b) for a, b in weights)


def test_a_stream_with_a_secret_repeats_and_no_two_are_alike() -> None:
    def first(purpose: str, key: bytes, seed: int = SEED) -> list[float]:
        drawn: list[float] = torch.rand(4, generator=generator(seed, purpose, secret=key)).tolist()
        return drawn

    key, other = secret(), derive_key(secret(), "other")
    assert first("passive", key) == first("passive", key)
    assert len({tuple(first(*each)) for each in (("a", key), ("b", key), ("a", other))}) == 3
    assert first("a", key) != first("a", key, 1)
    whole = torch.rand(100_000, generator=generator(SEED, "a", secret=key))
    assert whole.mean().item() == pytest.approx(0.5, abs=0.005)
    assert whole.std().item() == pytest.approx(math.sqrt(1 / 12), abs=0.005)
    assert derive_seed(SEED, "a") == derive_seed(SEED, "a")
