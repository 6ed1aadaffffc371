"""HyFEM: any columns, any rows.

Zhang, Yin, Chen, Hong: "Hybrid Federated Learning for Feature & Sample Heterogeneity: Algorithms
and Implementation", Transactions on Machine Learning Research, 04/2024.

Each party has some blocks of some samples, and their labels; no party need have all blocks or all
classes, and no two need share a sample. A party's model is one extractor for each of its blocks
and a classifier over their features. The server, which has no data, has an extractor for every
block and a classifier over all; a party's classifier is a pruned copy of it, and which neurons are
whose is found by matching.

    min sum_m p_m (f_m(Theta_m, w_m) + mu_1 r_1 + mu_2 r_2)   Eq. (6)
    r_1 = 1/2 |Theta_m - P_m Theta_0|^2                       Eq. (4)
    r_2 = 1/2 |w_m - Pi_m w_0|^2                              Eq. (5), (18)

    Q steps at party m, from the server's slice:              Eq. (8), (9), Algorithm 2
        Theta_m <- Theta_m - eta (dF_m/dTheta_m + mu_1 (Theta_m - P_m Theta_0))
        w_m     <- w_m     - eta (dF_m/dw_m     + mu_2 (w_m - Pi_m w_0))
    theta_{0,i} = sum p_m theta_{m,i} / sum p_m over the parties that hold block i   Eq. (10)
    min over Pi, w_0 of sum_m p_m/2 |w_m - Pi_m w_0|^2        Eq. (11), Algorithm 3
    the cost of matching neuron j to neuron i                 Eq. (20), in models/matching.py

    Paper            Here                           Lives at
    x_m, y           Member.blocks, .labels         party m
    Theta_m, w_m     Member.network                 party m; sent to the server after Q steps
    P_m              Holding.blocks                 both
    Theta_0          Coordinator.server.extractors  server; party m is sent P_m Theta_0
    w_0              Coordinator.server.classifier  server; party m is sent Pi_m w_0
    Pi_m             Coordinator.server.assignments server; see models/matching.py
    p_m              Coordinator.p                  server
    T, Q, eta        Config.rounds, .local_steps, .learning_rate
    P                Config.sweeps                  times M
    mu_1, mu_2       Config.mu_1, .mu_2

    Letters: M parties, B rows of a minibatch, E weights of a party's extractors, W of its
    classifier.

What leaves a party: its weights and mean loss after each round, and before the first what
``agreement.py`` says. Layers send more only where a run asks: ``layers.py``, ``calibration.py``.

Departures from the paper:
    - Algorithm 2 restarts each party at the server's slice in every round (line 2), Eq. (22a)
      goes on from its own weights: ``restart`` is True or False.
    - Parties begin at the server's weights (Alg. 1 line 1), so that neuron j of each is neuron j of
      all.
    - "Sweeps": Algorithm 3 picks a random party P times, Algorithm 2 goes over all of them P
      times. Here each sweep goes over all, one after the other in random order.
    - Alg. 3 line 5's inverse does not exist for a weight that no party holds: it is 0 (only where
      parties differ in width, or the server's grows).
    - Eq. (20) leaves the cost open. "pfnm" is Yurochkin et al.'s; "distance" is what an assignment
      adds to (11), so that the server step never raises it.
    - The server's width is fixed, as Theorem 1 assumes, unless ``width = "free"``.
    - A party that does not answer by the deadline, or not as asked, keeps its last known part in
      (6): the server step uses the weights it last sent, or began with. The round names it.
    - A momentum or Adam state starts again each round, because the parameters were replaced.
    - After the last round each party is sent its slice once more (line 9): that is its model.
    - BatchNorm's running means are averaged like weights, but not pulled.
    - What is beside the paper is in layers, off by default: ``Settings`` lists them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from dovetail.federated import Federation, end, handles, read_settings
from dovetail.federated import Round as BaseRound
from dovetail.methods.hyfem.agreement import Agreeing, Begin, Holder, Ready
from dovetail.methods.settings.hyfem import Config
from dovetail.models import derive_seed, matching, pull
from dovetail.models.blocks import BlocksNetwork
from dovetail.models.matching import Assignments
from dovetail.models.optimizers import Optimizer
from dovetail.models.slices import split_blocks
from dovetail.models.vectors import load_weights, weights_of
from dovetail.network import Message, Values

# Theta and w, each as one vector: block after block, layer after layer.
Extractors = Annotated[Tensor, Values(torch.float32, "E", means="weights")]
Classifier = Annotated[Tensor, Values(torch.float32, "W", means="weights")]


# --- What crosses the boundary -----------------------------------------------------------------


class Train(Message):
    """Server -> party: P_m Theta_0 and Pi_m w_0, from where it makes Q steps (Alg. 1 line 4)."""

    extractors: Extractors
    classifier: Classifier
    number: int  # of the round, from 1


class Trained(Message):
    """Party -> server: Theta_m and w_m after its steps (line 5), and their mean loss f_m."""

    extractors: Extractors
    classifier: Classifier  # empty if it keeps its own
    loss: float


class Finish(Message):
    """Server -> party: its slice of the server's model, to use alone (line 9)."""

    extractors: Extractors
    classifier: Classifier


class Finished(Message):
    """Party -> server: it has its model."""


# --- What a party executes ---------------------------------------------------------------------


class Member(Holder):
    """Party m: blocks of its samples, and their labels."""

    saved = ("network", "started", "batches")
    settings: ClassVar[type[Config]] = Config
    config: Config
    network: BlocksNetwork

    @handles
    def begin(self, ask: Begin) -> Ready:
        """Make its network."""
        self.config = read_settings(self.settings, ask, ask.settings)
        self.spec = self.agree(ask)
        self.network = self.local.build(self.spec.build, "hyfem")
        self.network.rows_lack = self.rows_lack_a_block()
        rows, size = self.training_rows(), self.config.batch_size
        self.batches = self.local.batches(rows, size, "hyfem batches")
        self.started = False  # its weights are not the server's yet
        self.bound_steps(self.config.private)
        return Ready()

    @handles
    def update(self, ask: Train) -> Trained:
        """Alg. 2, ClientUpdate."""
        self.take(ask, load=self.config.restart or not self.started)  # line 2, or Eq. (22a)
        self.started = True
        network, config = self.network.train(), self.config
        extractors, classifier = network.extractors.parameters, network.classifier.parameters

        def regularise() -> None:
            pull(extractors(), self.theta_0, config.mu_1)  # Eq. (4)
            pull(classifier(), self.w_0, config.mu_2)  # Eq. (5)

        trained = [each for each in network.parameters() if each.requires_grad]
        optimizer, losses = Optimizer.of(config.of_round(ask.number), trained), []
        self.visit(config.local_steps)
        for _ in range(config.local_steps):  # lines 3-6
            rows_B = next(self.batches)
            batch = self.batch(rows_B)
            step = self.local.step(optimizer, network, self.loss, rows_B, *batch, pull=regularise)
            losses.append(step)
        weights = self.weights()
        return self.local.with_cost(Trained(*weights, self.mean_loss(losses, *weights)))

    @handles
    def finish(self, ask: Finish) -> Finished:
        """Take its slice over."""
        self.started = True
        self.take(ask, load=True)
        return Finished()

    @torch.no_grad()
    def take(self, sent: Train | Finish, *, load: bool) -> None:
        """Take what was sent: it pulls from here on, and is loaded if ``load``."""
        kept = weights_of(self.network)
        load_weights(self.network, sent.extractors, sent.classifier)
        self.theta_0 = [each.detach().clone() for each in self.network.extractors.parameters()]
        self.w_0 = [each.detach().clone() for each in self.network.classifier.parameters()]
        if not load:
            load_weights(self.network, *kept)

    def weights(self) -> tuple[Tensor, Tensor]:
        """Theta_m and w_m, as they are sent."""
        return weights_of(self.network)


# --- What the server executes: Algorithm 1 -----------------------------------------------------


class Coordinator(Agreeing):
    """The server, which has no data."""

    saved: ClassVar[tuple[str, ...]] = ("agreed", "server", "known", "combined")
    config: Config
    combined = 0  # rounds so far

    def start(self) -> None:
        """Line 1; parties begin at their slices."""
        self.server = self.agreed.initial(self.config, self.seed, self.name)
        self.known = {party: self.slice(party) for party in self.agreed.holdings}

    def round(self, number: int, federation: Federation) -> Round:
        """Lines 3-9; closes at the deadline with who answered."""
        asked = {party: Train(*self.slice(party), number) for party in self.agreed.holdings}
        sizes = {party: self.sizes(sent) for party, sent in asked.items()}
        timeout_s = self.config.timeout_s
        replies = federation.ask(asked, Trained, timeout_s=timeout_s, of_party=sizes)  # lines 3-5
        for party, reply in replies.some(f"round {number}").items():
            self.known[party] = reply.extractors, reply.classifier
        self.combine()  # lines 6-8
        losses = {party: reply.loss for party, reply in replies.items()}
        return Round(metrics={"loss": statistics.fmean(losses.values())}, losses=losses)

    def sizes(self, sent: Train) -> dict[str, int]:
        """Party -> number of weights that are to come back."""
        return {"E": len(sent.extractors), "W": len(sent.classifier)}

    def finish(self, federation: Federation) -> None:
        """Line 9: each party's slice, to use alone."""
        asked = {party: Finish(*self.slice(party)) for party in self.agreed.holdings}
        end(federation, asked, Finished, timeout_s=self.config.timeout_s)

    def slice(self, party: str) -> tuple[Tensor, Tensor]:
        """P_m Theta_0 and Pi_m w_0."""
        blocks, server = self.agreed.holdings[party].blocks, self.server
        theta = torch.cat([server.extractors[block] for block in blocks])
        return theta, self.agreed.layout.slice_of(
            server.classifier, blocks, server.assignments[party]
        )

    def combine(self) -> None:
        """The server step, of what each party last sent."""
        self.combined += 1
        p, parties, theta_0 = self.p(), self.agreed.holdings, self.server.extractors
        sent = {m: split_blocks(self.known[m][0], parties[m].blocks, theta_0) for m in parties}
        for block in self.agreed.blocks:  # line 7, the exact minimum of (10)
            theta = {m: part[block] for m, part in sent.items() if block in part}
            total = sum((p[m] * theta[m].double() for m in theta), torch.zeros(()))
            theta_0[block] = (total / sum(p[m] for m in theta)).float()
        self.match(list(p.values()))  # line 8, the minimum of (11)

    def match(self, p: Sequence[float]) -> None:
        """Algorithm 3: Pi and w_0, of the classifiers w_m."""
        server, layout = self.server, self.agreed.layout
        parties = self.agreed.holdings.items()
        w = [layout.classifier(self.known[m][1], held.blocks, held.widths) for m, held in parties]
        assignments = self.assign(w, p, start=list(server.assignments.values()))
        server.assignments = dict(zip(server.assignments, assignments, strict=True))
        server.classifier = matching.average(
            w, assignments, layout.sizes, p, self.output_weights()
        )  # line 9

    def output_weights(self) -> np.ndarray | None:
        """(M, C) weights in rows of the output layer; None: p_m."""
        return None

    def assign(
        self, w: Sequence[matching.Classifier], p: Sequence[float], start: Assignments | None
    ) -> Assignments:
        """Algorithm 3 lines 3-8."""
        seed = derive_seed(self.seed, self.name, "matching", str(self.combined))
        sizes, rng = self.agreed.layout.sizes, np.random.default_rng(seed)
        return matching.match_by(self.config, w, sizes, p, rng=rng, start=start)


@dataclass(frozen=True, kw_only=True)
class Round(BaseRound):
    """Result of one round.

    Attributes:
        losses: party -> mean of f_m over its steps, of those that answered.
    """

    losses: Mapping[str, float]
