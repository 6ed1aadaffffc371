"""Gains of a peer of APFed that breaks the protocol, against the limits in force.

Papers: Pasquini, Ateniese, Bernaschi, "Unleashing the Tiger: Inference Attacks on Split Learning",
CCS 2021 (FSHA, arXiv:2012.02670): who sends the gradients may have them train the other's encoder
into a feature space of the attacker's own, from which it decodes.

Four of these, each with ``KNOWN`` rows of the other side beside what an inversion is given:

    alike    a driver of APFed-C or -R sends the same code for every sample. Of a reconstruction the
             gradient is then J (x_hat - x), linear in the row, with one J for all; of a contrast it
             is linear in the partner's own code. A width of its choosing makes J injective.
    hijack   a driver of APFed-D or classic vertical learning trains the partner's encoder: codes of
             rows that it knows by a decoder, those of others by a critic, so that they look like
             the codes of rows that it knows.
    inverted a partner of APFed-C or -R returns gradients by which codes of rows that it knows are
             decoded best; ``SIZES`` times what the label owner takes for usual at the least, or
             what ``apfed.clip`` lets pass.
    regressed an owner of APFed-S encrypts columns that it knows in place of labels: what comes back
             is kernel ridge regression of these on the partner's own columns, for every row. Or
             ones at single rows, which read columns of the weights; logarithms of a kernel are
             distances to these rows.

Each is tried twice: within the limits of a site's default policy, and with them lifted: no fewest
rows, no most uses or starts, no ``apfed.clip``. The driver then starts again before every message,
so that one and the same network answers about all samples; steers four times as long; and a
partner's gradients may be of any length. What stands between the two is what the limits buy.

Departures from FSHA: rows that are known in place of a public table, so that there need be no pilot
network; binary cross-entropy in place of a Wasserstein critic; a few hundred steps. The decoder's
guess is one more view for the inversion of ``audit/attacks/columns.py``, so that the figure
compares with the honest one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.federated import Local
from dovetail.methods import apfed, vertical
from dovetail.methods.apfed import distil, sealed
from dovetail.methods.apfed.asked_rows import rows_of
from dovetail.methods.apfed.distil import AlignedRows
from dovetail.methods.apfed.local_data import LabelOwnerData, PartnerData
from dovetail.methods.apfed.numbers import UNLIMITED
from dovetail.methods.apfed.variants import label_owner_data, partner_data_of
from dovetail.methods.facets import audited
from dovetail.methods.facets.audited import MAX_ROWS, Poisoned, Scene, Steered, Threat
from dovetail.methods.facets.views import scaled, whitened
from dovetail.methods.limits import NO_LIMITS, Limited, Limits
from dovetail.methods.section import encoder_spec
from dovetail.methods.settings.apfed import RELEASED
from dovetail.methods.settings.shared import SealedLimits
from dovetail.methods.training import Training
from dovetail.models.learners.distil import Owner
from dovetail.models.learners.rows import NO_FOLD
from dovetail.models.losses import SquaredError
from dovetail.models.optimizers import Optimizer
from dovetail.models.randomness import generator
from dovetail.network import Engine, InProcess, Message

#: Rows of the other side that steering uses.
KNOWN = 100

#: Width of the codes that a driver makes up, and rows and steps of FSHA.
_WIDTH, _BATCH, _STEPS = 64, 64, 400

#: Messages of one code for all rows, and how many rows the driver knows.
_ALIKE_MESSAGES, _ALIKE_KNOWN = 6, (20, 100)

#: Targets of one question of APFed-S at the most, and the strength of its ridge.
_MOST_NUMBERS = 48

#: Of the largest number, the least that its logarithm is taken of.
_LEAST_KERNEL = 1e-9

#: Without limits: steps of FSHA.
_LONG = 1600

#: What the critic counts beside the decoder.
_CRITIC = 0.1

#: Multiples of the least gradient that the label owner takes for usual: what a partner returns.
SIZES = (10.0, 100.0)

#: With the limits lifted.
SIZES_LIFTED = (10.0, 100.0, 1000.0)

_ALIKE = Threat(
    "one code for all rows, then an inversion",
    "after FSHA (Pasquini et al. 2021)",
    f"{audited.KNOWN} rows of the other side; it sends what codes it likes",
    "the same from its own columns",
    "R2, mean over columns",
)
_REGRESSED = Threat(
    "known columns as targets, then an inversion",
    "ours",
    f"{audited.KNOWN} rows of the other side, and {KNOWN} to steer by; it encrypts what it likes",
    "the same from its own columns",
    "R2, mean over columns",
)
_HIJACK = Threat(
    "hijacked encoder, then an inversion",
    "FSHA (Pasquini et al. 2021)",
    f"{audited.KNOWN} rows of the other side, and {KNOWN} to steer by; it sends what it likes",
    "the same from its own columns",
    "R2, mean over columns",
)


def steered(
    task: Training, scene: Scene, variant: str, seed: int, limits: Limits
) -> Iterator[Steered | Poisoned]:
    """Findings of steering in one variant, within these limits of each partner."""
    for name in partner_data_of(task):
        peers = _Peers(task, scene, variant, seed, name, limits)
        if variant in ("apfed-mixed", "apfed-r", "apfed-c"):
            yield from _alike(peers)
            yield from _inverted(peers)
        elif variant in ("apfed-d", "tvfl"):
            yield from _hijack(peers)
        elif variant == "apfed":
            yield from _regressed(peers)


@dataclass(frozen=True, eq=False)
class _Peers:
    """A label owner and a partner, of whom one steers the other within limits."""

    task: Training
    scene: Scene
    variant: str
    seed: int
    party: str
    limits: Limits

    @property
    def lifted(self) -> bool:
        return self.limits == NO_LIMITS

    @property
    def owner(self) -> LabelOwnerData:
        return label_owner_data(self.task)

    @property
    def partner(self) -> PartnerData:
        """The partner's site in this variant."""
        data = self.task.kind.variant(self.variant).variant_data(self.task, self.variant)
        return partner_data_of(replace(self.task, party_data=data))[self.party]

    def limited(self) -> InProcess:
        """Engine that reaches the partner."""
        passive = self.partner.party(Local(self.party, device=self.task.device))
        return InProcess({self.party: Limited(passive, self.limits)}, driver=self.owner.name)

    def samples(self) -> Tensor:
        """The samples that the label owner shares with the partner."""
        return self.owner.alignment.shared(self.owner.name, self.party)

    def known(self, observed: str, rng: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """Samples that the other side knows, and columns that ``observed`` has of them."""
        samples = self.samples()
        chosen = samples[torch.randperm(len(samples), generator=rng)[:KNOWN]]
        return chosen, self.scene.columns_of(observed, "", chosen)


def _batches(samples: Tensor, size: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Batches without end."""
    size = min(len(samples), size)
    while True:
        order = samples[torch.randperm(len(samples), generator=rng)]
        for start in range(0, len(order) - size + 1, size):
            yield order[start : start + size]


def _alike(peers: _Peers) -> Iterator[Steered]:
    """A few messages about all shared samples at once, each with one code for all of them."""
    party, samples, engine = peers.party, peers.samples(), peers.limited()
    rng = generator(peers.seed, party, "alike")
    begin = apfed.Begin((_WIDTH,), _WIDTH, peers.seed)
    engine.ask({party: begin}, apfed.Ready).or_raise()
    gradients: list[Tensor] = []
    for _ in range(_ALIKE_MESSAGES):
        code_1D = 2 * torch.randn(1, _WIDTH, generator=rng)
        request = apfed.Codes(samples, code_1D.expand(len(samples), -1).clone())
        reply = engine.ask({party: request}, apfed.CodeGradient)
        if party in reply:
            gradients.append(reply[party].gradient_BD)
    if not gradients:
        return
    kept = torch.randperm(len(samples), generator=rng)[:MAX_ROWS]
    views = {"first": gradients[0][kept], "all": torch.cat(gradients, dim=1)[kept]}
    for known in _ALIKE_KNOWN:
        given = f"{known} rows of the other side; it sends what codes it likes"
        attack_name = f"{_ALIKE.attack}, {known} known rows"
        threat = replace(_ALIKE, attack=attack_name, given=given)
        owner = peers.owner.name
        yield Steered(owner, party, views, samples[kept], threat, "steered gradients", known)


#: Asks for codes of samples, after a step by the gradient of the last ones.
_Ask = Callable[[Tensor, Tensor | None], Tensor]


def _hijack(peers: _Peers) -> Iterator[Steered]:
    """FSHA: the partner's encoder learns to look like a pilot's, which the driver can decode."""
    party, samples, limits = peers.party, peers.samples(), peers.limits
    rng = generator(peers.seed, party, "hijack")
    ask, codes = _ask_of(peers)
    if ask is None:
        return  # it releases its columns once: there is nothing to steer
    known, x_KF = peers.known(party, rng)
    if x_KF is None:
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(peers.seed)
        width, wide = codes.shape[1], 128
        decoder = nn.Sequential(nn.Linear(width, wide), nn.ReLU(), nn.Linear(wide, x_KF.shape[1]))
        critic = nn.Sequential(nn.Linear(width, wide), nn.LeakyReLU(0.2), nn.Linear(wide, 1))
        decoding = Optimizer(decoder.parameters(), kind="adam", learning_rate=2e-3, fused=False)
        critical = Optimizer(critic.parameters(), kind="adam", learning_rate=1e-3, fused=False)
        half = max(_BATCH, limits.min_rows) // 2
        indices = _batches(torch.arange(len(known)), half, rng)
        others = _batches(samples[~torch.isin(samples, known)], half, rng)
        due: Tensor | None = None
        most = (limits.max_uses - 2) * len(known) // half if limits.max_uses else _LONG
        steps = min(_LONG if peers.lifted else _STEPS, most)
        for _ in range(steps):  # it is told how often it may ask
            index_B = next(indices)
            code_BD = ask(torch.cat([known[index_B], next(others)]), due)
            leaf = code_BD.clone().requires_grad_()
            mine, theirs = leaf[: len(index_B)], leaf[len(index_B) :]
            judged = _bce(critic(mine.detach()), 1) + _bce(critic(theirs.detach()), 0)
            critical.zero_grad()
            judged.backward()
            critical.step()
            distance = F.mse_loss(decoder(mine), x_KF[index_B])
            decoding.zero_grad()
            (distance + _CRITIC * _bce(critic(theirs), 1)).backward()
            decoding.step()
            due = leaf.grad
        parts = [ask(part, None) for part in samples.tensor_split(-(-len(samples) // 1000))]
        code_SD = torch.cat(parts)
        with torch.no_grad():
            decoded_SF = decoder(code_SD)
    views = {"codes": code_SD, "the decoder's guess": decoded_SF}
    views = {name: each[:MAX_ROWS] for name, each in views.items()}
    owner = peers.owner.name
    yield Steered(owner, party, views, samples[:MAX_ROWS], _HIJACK, "steered codes")


def _ask_of(peers: _Peers) -> tuple[_Ask | None, Tensor]:
    """Question that asks a partner for codes, and codes of a first batch for their width."""
    party, task, engine = peers.party, peers.task, peers.limited()
    samples = peers.samples()[: max(_BATCH, peers.limits.min_rows)]
    if peers.variant == "tvfl":
        engine.ask({party: vertical.Open(peers.seed)}, vertical.Opened).or_raise()

        def ask(samples_B: Tensor, gradient_BD: Tensor | None) -> Tensor:
            if gradient_BD is not None:
                step = vertical.CodeGradient(gradient_BD)
                engine.ask({party: step}, vertical.Updated).or_raise()
            request = vertical.Encode(samples_B, training=True, test=False)
            return engine.ask({party: request}, vertical.Codes).or_raise()[party].code_BD

        return ask, ask(samples, None)
    released = peers.partner.config.distil.release is not None
    if released or task.settings.distil.exchange == RELEASED:
        return None, torch.zeros(0, 0)
    begin = distil.Begin(("network",), 1, peers.owner.task.num_outputs, peers.seed)
    engine.ask({party: begin}, distil.Ready).or_raise()

    def asks(samples_B: Tensor, gradient_BD: Tensor | None) -> Tensor:
        due = torch.zeros(0, 0) if gradient_BD is None else gradient_BD
        request = distil.Encode(("network",), (), due, samples_B, training=True, test=False)
        return engine.ask({party: request}, distil.Codes).or_raise()[party].code_ND

    return asks, asks(samples, None)


def _regressed(peers: _Peers) -> Iterator[Steered]:
    """Findings of one question of APFed-S whose targets are the owner's knowledge of some rows."""
    party, local_data, owner = peers.party, peers.partner, peers.owner
    known, x_KF = peers.known(party, generator(peers.seed, party, "regressed"))
    if x_KF is None:
        return
    policy = SealedLimits() if local_data.sealed_limits is None else local_data.sealed_limits
    most = min(len(known) if peers.lifted else policy.numbers_per_row, _MOST_NUMBERS)
    local_data = replace(local_data, sealed_limits=UNLIMITED if peers.lifted else policy)
    components_KF = torch.from_numpy(whitened(scaled(x_KF.double().numpy()), width=most))
    chosen = {"its columns": components_KF, "single rows": torch.eye(len(known))[:, :most]}
    views = {}
    table = AlignedRows.of(owner.train.joined(), owner.name, owner.alignment)
    rows = rows_of(table.samples[party], known)
    for name, target_KT in chosen.items():
        targets_RT = torch.zeros(len(table.x_RF), target_KT.shape[1])
        targets_RT[rows] = target_KT.float()
        folds_R = torch.full((len(table.x_RF),), NO_FOLD)
        folds_R[rows] = torch.arange(len(rows)) % 4
        gradients = Owner(table.x_RF, targets_RT, folds_R, loss=SquaredError())
        table_of = AlignedRows(table.x_RF, {party: table.samples[party]})
        active = sealed.Active(gradients, table_of, None, Local(owner.name), seed=peers.seed)
        engine = {party: local_data.party(Local(party, device=peers.task.device))}
        active.ask_all(InProcess(engine, driver=owner.name))
        if party in active.numbers:
            views[name] = active.numbers[party]
    for name, number_RT in views.items():  # each is all that the policy gives
        held = ~number_RT.isnan().any(dim=1)
        asked = {name: number_RT[held]}
        if name == "single rows":  # logarithms of a kernel are distances
            sizes = asked[name].abs()
            least = max(_LEAST_KERNEL * float(sizes.max()), 1e-30)
            asked["logarithms"] = sizes.clamp(min=least).log()
        threat = replace(_REGRESSED, attack=f"{name} as targets, then an inversion")
        samples = table.samples[party][held]
        yield Steered(owner.name, party, asked, samples, threat, "steered numbers")


def _bce(judged_B1: Tensor, truth: float) -> Tensor:
    return F.binary_cross_entropy_with_logits(judged_B1, torch.full_like(judged_B1, truth))


class _Inverting(apfed.Passive):
    """A partner whose gradients make codes of rows that it knows easy to decode.

    Args:
        known: samples, and their columns at the label owner.
        size: the largest number of a row's gradient.
    """

    def steer(self, known: tuple[Tensor, Tensor], size: float) -> None:
        samples, x_KF = known
        self._size = size
        self._x_SF = torch.zeros(len(self.shared.rows_S), x_KF.shape[1])
        self._x_SF[samples] = x_KF
        self._known_S = torch.zeros(len(self.shared.rows_S), dtype=torch.bool)
        self._known_S[samples] = True
        self._decoder: nn.Module | None = None

    def loss(self, code_BD: Tensor, x: Tensor) -> Tensor:
        """The decoder's error on the rows that the attacker knows."""
        if self._decoder is None:
            wide = 128
            self._decoder = nn.Sequential(
                nn.Linear(code_BD.shape[1], wide), nn.ReLU(), nn.Linear(wide, self._x_SF.shape[1])
            )
            self.optimizer = Optimizer(
                self._decoder.parameters(), kind="adam", learning_rate=3e-3, weight_decay=0.0
            )
        known_B = self._known_S[self._asked]
        rebuilt = self._decoder(code_BD[known_B])
        return F.mse_loss(rebuilt, self._x_SF[self._asked][known_B], reduction="sum") / len(code_BD)

    def handle(self, message: Message) -> Message:
        if isinstance(message, apfed.Codes):
            self._asked = message.samples_B
        answer = super().handle(message)
        if isinstance(answer, apfed.CodeGradient):
            largest = answer.gradient_BD.abs().amax(dim=1, keepdim=True)
            scaled = answer.gradient_BD * (self._size / largest.clamp(min=1e-12))
            answer = apfed.CodeGradient(scaled.masked_fill(largest < 1e-12, 0.0))
        return answer


def _reaching(passive: apfed.Passive, driver: str) -> Callable[[str], Engine]:
    """Factory of the engine, where it is listened to."""
    return lambda _: InProcess({passive.name: passive}, driver=driver)


def _inverted(peers: _Peers) -> Iterator[Poisoned]:
    """The run as it is, with a partner that steers the label owner's encoder."""
    party, task, owner, lifted = peers.party, peers.task, peers.owner, peers.lifted
    if lifted:
        task = replace(task, settings=task.settings.model_copy(update={"clip": None}))
    known, x_KF = peers.known(owner.name, generator(peers.seed, party, "inverting"))
    if x_KF is None:
        return
    local_data, config = replace(peers, task=task).partner, task.settings
    loudest = 0.9 * config.clip if config.clip else max(SIZES)
    assert local_data.shared is not None
    for factor in SIZES_LIFTED if lifted else sorted({min(each, loudest) for each in SIZES}):
        name = f"gradients of {factor:g} times the usual"
        passive = _Inverting(
            local_data.shared,
            local_data.config.model_copy(update={"gradients": None}),
            encoder_spec(local_data.config.encoder),
            Local(party),
        )
        passive.steer((known, x_KF), factor * 0.1 / config.batch_size)
        loaded = replace(task.loaded, connect=_reaching(passive, owner.name))
        alone = replace(task, party_data={owner.name: owner}, loaded=loaded)
        yield Poisoned(alone, party, name)
