"""FedOptimus: many owners of columns, several owners of labels, the useful ones chosen.

Shrivastava et al.: "FedOptimus: Optimizing Vertical Federated Learning for Scalability and
Efficiency", Algorithm 1, in the Multi-VFL setting of Mugunthan et al. 2021.

Data owner d has columns of all samples, label owner n the labels of its own. Data owner d keeps
one replica of its bottom model for each label owner; label owner n has a top model, which reads
the mean of the data owners' embeddings. In a round each label owner makes K minibatch steps with
the data owners that were chosen; then replicas and tops are averaged, and the average is stepped
by momentum.

    h_n = 1/|S_t| sum_(d in S_t) f_(w_dn)(x_d)                             line 10
    w_bar = sum_n (n_n / n) w_n                                            FedAvg
    m' = beta m + (1 - beta) (w_t - w_bar),  w_hat = w_t - eta m'          FedAvgM, lines 11, 12
    w_(t+1) = (1 - alpha) w_t + alpha w_hat                                SlowMo, line 13

    Paper        Here                        Shape    Lives at
    x_d          DataOwner.shared            (N, ..)  data owner d
    w_d          DataOwner.replicas          (N, P)   data owner d; never leaves it
    embedding    Embeddings.embedding_BE     (B, E)   data owner d; sent to the coordinator
    h_n          Learn.mean_BE               (B, E)   coordinator; sent to label owner n
    dl/dh_n      Learned.gradient_BE         (B, E)   label owner n; sent on to the data owners
    top of n     LabelOwner.top              (P,)     label owner n; sent to be averaged
    S_t, P_t     ``choose``, Config.share
    K            Config.sync_every, Config.iterate_average
    beta, mu     Config.beta                 (the paper's text and Algorithm 1)
    alpha        Config.alpha; gamma = 1 - alpha
    eta, eta^g   Config.learning_rate, Config.server_learning_rate
    form of m'   Config.server_momentum

    Letters: N label owners, D data owners, B rows of a minibatch, E embedding width, P parameters,
    S samples of an order that a label owner shares with all data owners.

The coordinator has no data. It sees embeddings, their gradients, which samples a batch has, and
the tops; labels stay with their owners.

Messages are pipelined, so that a step is two questions and no more: a data owner is sent the
gradient of one step with the samples of the next, and a label owner names its next batch as it
answers. ``messages`` has those with which a run starts, ends and is scored, and receipts.

Layers, each of which says what it adds: ``server`` (steps on averages), ``selection`` and
``choosing`` (lines 4, 5), ``ensemble`` (members, the best epoch), ``asking`` (who is missing),
``evaluation`` (scores), and ``data_owner``, ``label_owner``, ``coordinator`` (checks, what leaves,
intervals of times to an event, models, resuming).

Departures from the paper, which leaves much open:
    - Replicas of a data owner's bottom model are averaged where they are, tops by the coordinator:
      the w_t of the paper is one model. ``average_tops = False`` lets each label owner keep its
      own.
    - "K-step averaging" is K steps between two averages in the text (``sync_every``, after Zhou and
      Cong 2018) and the mean of the last K iterates in line 8 (``iterate_average``).
    - SlowMo is an interpolation in the text ("interpolate"), a pull to the initial weights in
      line 13 ("initial"), and in its source, Wang et al. 2019, a slow momentum ("momentum").
    - alpha = 1 - gamma is a reading: the paper says of both that they control the influence of the
      parties' updates, and gives gamma = 0.01. At alpha = 0.01 a run hardly leaves its w_0.
    - FedAvgM has a second form in its source, Hsu et al. 2019 (the paper's reference 11): v' =
      beta v + (w_t - w_bar), without 1 - beta (``server_momentum = "undamped"``). "corrected"
      divides m' by 1 - beta^(t+1), as Adam does.
    - eta of FedAvgM is not given apart from the parties' 0.001; 1 steps the whole way.
    - The optimizers of the parties go on over an average; only weights are averaged (``reset``).
    - A data owner that does not answer in time is left out of that step's mean, and asked again in
      the next. A label owner that does not answer has no batch in the next steps until it does.
    - SGD as printed learns slowly from embeddings that are averaged over many owners;
      ``optimizer = "adam"`` is not in the paper.
"""

from typing import Any

import torch
from pydantic import Field

from dovetail.federated import handles
from dovetail.methods.fedoptimus import messages
from dovetail.methods.fedoptimus.coordinator import RunDriver
from dovetail.methods.fedoptimus.data_owner import DataParty
from dovetail.methods.fedoptimus.label_owner import LabelParty
from dovetail.methods.fedoptimus.requests import Averaging, Requests
from dovetail.methods.fedoptimus.server import Iterates, ServerOptimizer, weighted_mean
from dovetail.methods.settings.fedoptimus import Config
from dovetail.models.optimizers import Optimizer
from dovetail.network import Engine, Integers, Message, Numbers

# --- What crosses the boundary -----------------------------------------------------------------


class Draw(Message):
    """Coordinator -> label owner: which samples are your next batch? (asked only at first)"""


class Batch(Message):
    """Label owner -> coordinator: its batch, which stays the same until it is learned."""

    batch: int  # 1, 2, ...
    samples_B: Integers  # places in its shared order


class Gradient(Message):
    """Coordinator -> data owner, as part of the next two: step along this gradient.

    ``gradient_BE`` is that of the mean embedding divided by how many were in the mean, one label
    owner's rows after the other's; ``learned`` counts them, 0 for a label owner that did not
    answer. It belongs to the batches of step ``previous``; 0: there is no gradient.
    """

    round: int
    previous: int
    gradient_BE: messages.Gradients
    learned: tuple[int, ...]


class Step(Gradient):
    """Coordinator -> data owner: step along the gradient, then embed the next batches (line 7)."""

    step: int  # 1, 2, ...
    samples_B: Integers  # one label owner's after the other's
    sizes: tuple[int, ...]


class Average(Gradient):
    """Coordinator -> data owner: step along the round's last gradient; then average.

    ``keep``: the average is the best so far, and stays unless a better one follows.
    """

    keep: bool = False


class Learn(Message):
    """Coordinator -> label owner: the mean embedding of its batch (line 10); learn from it."""

    batch: int
    mean_BE: Numbers
    give_top: bool  # the round ends: the reply has the top's weights


class Learned(Message):
    """Label owner -> coordinator: dl/dh, and its next batch; the top only if asked for.

    ``held_out``: the batch's losses, each by the member that leaves the row out, as if one left out
    each row; 0 without patience.
    """

    loss: float
    held_out: float
    gradient_BE: messages.Gradients
    batch: int  # the next one, as in ``Batch``
    samples_B: Integers
    top_P: messages.Top


class TakeTop(Message):
    """Coordinator -> label owner: the top after this round; ``keep`` as in ``Average``."""

    round: int
    top_P: messages.Top
    keep: bool = False


# --- What a data owner executes ----------------------------------------------------------------


class DataOwner(DataParty):
    """A party with columns: a bottom model with one replica for each label owner."""

    saved = ("replicas", "optimizer", "server", "iterates", "open_round", "kept_P")

    @handles
    def begin(self, ask: messages.BeginData) -> messages.DataReady:
        """w_0 of its bottom model (line 1)."""
        self.config = self.open(ask)
        self.replicas = self.build(self.config)
        self.optimizer = Optimizer.of(self.config, [self.replicas.values])
        self.server = ServerOptimizer(self.config, self.replicas.weights_NP[0])
        self.iterates = Iterates(self.config.iterate_average)
        return messages.DataReady()

    @handles
    def step(self, ask: Step) -> messages.Embeddings:
        """Learn from the last batches, and embed the next (line 7)."""
        rows_B, x = self.rows(ask)  # what cannot be is refused before anything is learned
        if self.open_round not in (None, ask.round):
            self.average()  # it did not hear of the end of that round
        self.follow(ask)
        self.expect(ask)
        return self.send(rows_B, self.replicas.forward(x))

    @handles
    def end_round(self, ask: Average) -> messages.Averaged:
        """Learn from the round's last batches, and average."""
        self.check(ask)
        self.follow(ask)
        self.average()
        self.keep(ask.keep)
        return messages.Averaged(ask.round)

    def follow(self, ask: Gradient) -> None:
        """CLIENTUPDATE: each replica steps along dl/dh_n of its label owner's batch (line 7)."""
        if gradients := self.due(ask):
            self.replicas.backward(gradients)
            self.replicas.step(self.optimizer, ask.learned)
            self.iterates.add(self.replicas.weights_NP)

    def average(self) -> None:
        """Replicas become one model again."""
        last_NP = self.iterates.mean(self.replicas.weights_NP)  # line 8
        self.spread(self.server.step(weighted_mean(last_NP, self.num_rows)))  # lines 11 to 13
        if self.config.reset:
            self.optimizer.reset()


# --- What a label owner executes ---------------------------------------------------------------


class LabelOwner(LabelParty):
    """A party with labels: a top model on the mean of the data owners' embeddings."""

    saved = ("top", "optimizer", "iterates", "batches", "number", "batch", "kept_P")

    @handles
    def begin(self, ask: messages.BeginLabels) -> messages.LabelsReady:
        """w_0 of its top, which is every label owner's (line 1)."""
        self.config = self.open(ask)
        self.top = self.build(ask, self.config)
        self.optimizer = Optimizer.of(self.config, self.top.parameters())
        self.iterates = Iterates(self.config.iterate_average)
        self.batches = self.minibatches(self.config)
        return self.ready()

    @handles
    def draw(self, ask: Draw) -> Batch:
        """Draw the next batch."""
        self.batch = next(self.batches) if self.batch is None else self.batch
        return Batch(self.number, self.batch)

    @handles
    def learn(self, ask: Learn) -> Learned:
        """Make a step of the top on h_n (line 7)."""
        mean_BE = self.mean(ask)
        loss, held_out = self.loss(mean_BE)
        self.follow(loss)
        self.iterates.add(self.top)
        gradient_BE, losses = self.bounded(mean_BE.grad), self.capped(loss.item(), held_out)
        top_P = self.iterates.mean(self.top).cpu() if ask.give_top else torch.empty(0)  # line 8
        self.number, self.batch = self.number + 1, next(self.batches)
        return self.send(Learned(*losses, gradient_BE, self.number, self.batch, top_P))

    @handles
    def take_top(self, ask: TakeTop) -> messages.TopTaken:
        """Go on from all label owners' top (line 3)."""
        self.take(ask)
        if self.config.reset:
            self.optimizer.reset()
        return messages.TopTaken(ask.round)


# --- What the coordinator executes: Algorithm 1 ------------------------------------------------


class Coordinator(RunDriver):
    """Drives a run, and has no data: means of embeddings, the global top, who takes part."""

    def round(self, number: int, network: Engine) -> Averaging:
        """Play a round of Algorithm 1.

        Raises:
            ConfigError: a choice of nobody, or of somebody who is no data owner.
            TrainingError: no data owner, or no label owner, answered in a step.
        """
        config, owners = self.config, self.label_owners
        requests = self.asking(network, f" in round {number}")
        participants = self.select(number, network)  # lines 4 and 5
        nothing = Gradient(number, 0, torch.empty(0, config.embedding), (0,) * len(owners))
        gradients = dict.fromkeys(participants, nothing)
        for k in range(1, config.sync_every + 1):
            self.step += 1
            without = dict.fromkeys((n for n in owners if n not in self.batches), Draw())
            batches = self.due_batches(requests, requests.ask(without, Batch, self.check_batch))
            samples_B = torch.cat([batch.samples_B for batch in batches.values()])
            sizes = tuple(len(batches[n].samples_B) if n in batches else 0 for n in owners)
            asked: dict[str, Any] = {"step": self.step, "samples_B": samples_B, "sizes": sizes}
            steps = {d: Step(**vars(gradients[d]), **asked) for d in participants}
            mean_BE, answered = requests.mean(steps, len(samples_B), config.embedding)  # 7, 10
            means = dict(zip(owners, mean_BE.split(sizes), strict=True))
            give = k == config.sync_every and config.average_tops
            learn = {n: Learn(batch.batch, means[n], give) for n, batch in batches.items()}
            learned = requests.ask(learn, Learned, self.check_learned(means, give))
            self.note(requests, learned)
            gradient_BE = torch.cat([each.gradient_BE for each in learned.values()])
            rows = tuple(len(learned[n].gradient_BE) if n in learned else 0 for n in owners)
            gradient = Gradient(number, self.step, gradient_BE / len(answered), rows)
            gradients = {d: gradient if d in answered else nothing for d in participants}
        keep, judged = self.judge(number)
        averages = {d: Average(**vars(gradients[d]), keep=keep) for d in participants}
        requests.ask(averages, messages.Averaged)  # lines 8, 11 to 13 of the bottoms
        if config.average_tops:  # and of the tops
            tops_NP = torch.stack([each.top_P for each in learned.values()])
            self.top.step(weighted_mean(tops_NP, [self.ready[n].num_rows for n in learned]))
            self.hand_out(owners, requests, number, keep=keep)
        return self.played(requests, participants, judged)

    def hand_out(self, to: tuple[str, ...], requests: Requests, number: int, *, keep: bool) -> None:
        """These label owners go on from the global top (line 3)."""
        requests.ask(dict.fromkeys(to, TakeTop(number, self.top.w_P, keep)), messages.TopTaken)
