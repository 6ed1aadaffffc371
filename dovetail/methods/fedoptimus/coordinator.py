"""The coordinator besides Algorithm 1: it opens and ends runs, checks, scores and resumes."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from dovetail.alignment.times import agree_times
from dovetail.data.survival import MOST_INTERVALS
from dovetail.errors import ConfigError, MessageError, PartyError, TrainingError
from dovetail.federated import Driver, end
from dovetail.methods.fedoptimus.ensemble import BestEpoch
from dovetail.methods.fedoptimus.evaluation import asked_sums
from dovetail.methods.fedoptimus.masked import MaskedAsking, Numbered
from dovetail.methods.fedoptimus.messages import (
    BeginData,
    BeginLabels,
    DataReady,
    FinishData,
    Finished,
    FinishLabels,
    GiveHeldOut,
    HeldOut,
    LabelsReady,
    TakeTimes,
    TimesTaken,
    Validate,
)
from dovetail.methods.fedoptimus.requests import Averaging, Requests, check_finite, num_bytes
from dovetail.methods.fedoptimus.server import ServerOptimizer
from dovetail.methods.fedoptimus.settings import MAX_WIDTH
from dovetail.methods.outcome import goodness_of_error
from dovetail.methods.settings.fedoptimus import Config
from dovetail.models import RandomStream, Secret, derive_key, generator, key_of
from dovetail.models.vectors import vector_of
from dovetail.network import Engine, State, check_shape

_log = logging.getLogger(__name__)


class Choose(Protocol):
    """Choice of who takes part in each round (lines 4 and 5), if that is no random share."""

    def __call__(self, number: int, network: Engine, /) -> Sequence[str]:
        """Names of the data owners of a round."""

    def report(self) -> Mapping[str, Any]:
        """Report on the last choice, for its round's line; {} if nothing is new."""

    def state(self) -> State: ...
    def restore(self, state: State) -> None: ...


class Due(NamedTuple):
    """A label owner's next batch, which stays the same until it is learned.

    Attributes:
        batch: 1, 2, ...
        samples_B: places in its shared order.
    """

    batch: int
    samples_B: Tensor


def due(answers: Mapping[str, Any]) -> dict[str, Due]:
    """Label owner -> the batch that its answer names."""
    return {owner: Due(each.batch, each.samples_B) for owner, each in answers.items()}


class RunDriver(Driver):
    """A run without its rounds, which ``Coordinator`` plays.

    Between rounds ``predicting``'s ``joint``, ``score`` and ``predict`` use the model; at the end
    owners learn that it is over.

    Args:
        config: the run's settings.
        data_owners, label_owners: names of the parties.
        seed: of everything random here and at the parties.
        secret: of its site; what label owners begin with is derived from it. None in simulation.
        choose: the data owners of a round (lines 4 and 5); None: a random ``Config.share`` of them.

    Attributes:
        participants: whose embeddings the tops know: the data owners that were chosen last, or all.
        ready: label owner -> what it said when training began.
        batches: label owner -> its next batch.
        step: of all rounds.
        top: steps on the average of the tops; known when training has started.
        measured: label owner -> scores that it has reported, if it is elsewhere.
        held_out: label owner -> how good its model is on samples that it kept out.
    """

    top: ServerOptimizer

    def __init__(
        self,
        config: Config,
        *,
        data_owners: Sequence[str],
        label_owners: Sequence[str],
        seed: int,
        secret: Secret | None = None,
        choose: Choose | None = None,
    ) -> None:
        key = key_of(secret)
        self._top_start = "" if key is None else derive_key(key, str(seed), "top").hex()
        for names, kind in ((data_owners, "data"), (label_owners, "label")):
            if not names or len(set(names)) < len(names):
                raise ConfigError(
                    f"a run needs one {kind} owner or more, each named once, got {list(names)}"
                )
        self.config = config
        self.data_owners = tuple(data_owners)
        self.label_owners = tuple(label_owners)
        self.participants = self.data_owners
        self.seed = seed
        self.choose = choose
        self.ready: dict[str, LabelsReady] = {}
        self.batches: dict[str, Due] = {}
        self.step = 0
        self.num_rounds = config.rounds or 0  # of epochs known when training has begun
        self.measured: dict[str, dict[str, float]] = {}
        self.scored_without: set[str] = set()  # data owners, as was said last
        self.held_out: dict[str, float] = {}
        self._num_outputs = 0
        self._rng = generator(seed, "participation")
        self._best = BestEpoch(config.patience)
        self._sums = Numbered()

    def hand_out(self, to: tuple[str, ...], requests: Requests, number: int, *, keep: bool) -> None:
        """These label owners go on from the global top; the page's."""
        raise NotImplementedError

    def asking(self, network: Engine, where: str = "") -> Requests:
        """How it asks: in the clear, or with means under masks."""
        config = self.config
        if not config.secure:
            return Requests(network, config.timeout_s, where)
        return MaskedAsking(network, config.timeout_s, where, config.quorum, self._sums)

    # --- Which rounds there are --------------------------------------------------------------

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which the largest shard is passed over once; known when training has started."""
        rows = max(ready.num_rows for ready in self.ready.values())
        return -(-rows // self.config.batch_size)

    def due(self, number: int, every: int) -> bool:
        """Whether an epoch (or round) that is to be scored ended with this round."""
        if self.config.rounds is not None:
            return super().due(number, every)
        steps, before = self.steps_per_epoch * every, self.step - self.config.sync_every
        return number == self.num_rounds or (
            every > 0 and self.step // steps > max(before, 0) // steps
        )

    def ended(self, number: int) -> bool:
        """Whether the best epoch lies too far back."""
        return self._best.ended

    def judge(self, number: int) -> tuple[bool, dict[str, float]]:
        """Whether the best epoch so far ended with this round, and its held-out loss."""
        before, steps = self.step - self.config.sync_every, self.steps_per_epoch
        return self._best.judge(number, self.step // steps - before // steps)

    # --- Who takes part ----------------------------------------------------------------------

    def participants_of(self, label_owner: str) -> tuple[str, ...]:
        """The data owners whose embeddings this label owner's top knows."""
        return self.participants

    def select(self, number: int, network: Engine) -> tuple[str, ...]:
        """The data owners of a round: lines 4 and 5.

        Raises:
            ConfigError: a choice of nobody, or of somebody who is no data owner.
        """
        if self.choose is None:
            return self.draw_participants()
        chosen = set(self.choose(number, network))
        unknown = chosen - set(self.data_owners)
        if unknown or not chosen:
            raise ConfigError(
                f"round {number} is to be learned with {sorted(chosen) or 'nobody'}; choose one or "
                f"more of the data owners {list(self.data_owners)}"
            )
        before = self.participants
        self.participants = tuple(owner for owner in self.data_owners if owner in chosen)
        if self.participants != before:  # what was kept knows others
            self._best.forget()
        return self.participants

    def draw_participants(self) -> tuple[str, ...]:
        """A random share of the data owners, one at least (line 5 without scores)."""
        num = max(1, round(self.config.share * len(self.data_owners)))
        if num >= len(self.data_owners):
            return self.data_owners
        chosen = torch.randperm(len(self.data_owners), generator=self._rng)[:num].sort().values
        return tuple(self.data_owners[index] for index in chosen.tolist())

    # --- Begin, resume, finish ---------------------------------------------------------------

    def begin_data(self) -> BeginData:
        """Message to every data owner, when the label owners are ready."""
        ready = [self.ready[owner] for owner in self.label_owners]
        return BeginData(
            self.config.model_dump_json(),
            self.seed,
            self.label_owners,
            tuple(each.num_samples for each in ready),
            tuple(each.num_rows for each in ready),
        )

    def begin_labels(self) -> BeginLabels:
        """Message to every label owner."""
        return BeginLabels(self.config.model_dump_json(), self.seed, self._top_start)

    def start(self, num_outputs: int) -> None:
        """The global top before the first round, as every label owner draws it too."""
        self._num_outputs = num_outputs
        steps = self.config.epochs * self.steps_per_epoch  # the last epoch's last round is whole
        self.num_rounds = self.config.rounds or -(-steps // self.config.sync_every)  # line 2
        with RandomStream(self.seed, "top", secret=self.begin_labels().secret()):
            top = self.config.top_of(num_outputs).build()
        self.top = ServerOptimizer(self.config, vector_of(top))

    def begin(self, network: Engine) -> None:
        """Open the run with every owner.

        Raises:
            ConfigError: label owners whose labels do not say the same.
            PartyError: one cannot begin.
        """
        labels = dict.fromkeys(self.label_owners, self.begin_labels())
        ready = network.ask(labels, LabelsReady).or_raise()
        first, *others = self.label_owners
        for owner, each in ready.items():
            if min(each.num_rows, each.num_samples) < 1 or each.num_test < 0:
                raise PartyError(owner, f"says that it has {each.num_rows} training samples")
        self.ready = self.agree(ready, network)
        for owner in others:
            if self.ready[owner].task != self.ready[first].task:
                raise ConfigError(
                    f"all label owners learn one task, but {first!r} has {self.ready[first].task} "
                    f"and {owner!r} {self.ready[owner].task}; give both the same classes or "
                    "labels, in one order, or of numbers the same label_scale"
                )
        self.ready = {owner: self.ready[owner] for owner in self.label_owners}
        data = dict.fromkeys(self.data_owners, self.begin_data())
        network.ask(data, DataReady).or_raise()
        self.start(_num_outputs(first, self.ready[first].task))

    def agree(self, ready: Mapping[str, LabelsReady], network: Engine) -> dict[str, LabelsReady]:
        """Replies of label owners, with the intervals of times that they then agreed on."""
        offered = {owner: _ends(each.task) for owner, each in ready.items()}
        if not all(offered.values()):
            return dict(ready)
        times = agree_times(offered, MOST_INTERVALS)
        message = TakeTimes(torch.tensor(times, dtype=torch.float64))
        network.ask(dict.fromkeys(ready, message), TimesTaken).or_raise()
        task = json.dumps({"kind": "survival", "ends": times})
        return {owner: replace(each, task=task) for owner, each in ready.items()}

    def begin_again(self, behind: Mapping[str, int], network: Engine) -> None:
        """Owners that lost their disk take part again, from their beginning."""
        for name in behind:  # it stands at an older batch
            self.batches.pop(name, None)
        lost = [name for name, step in behind.items() if step == 0]
        data = [owner for owner in self.data_owners if owner in lost]
        labels = [owner for owner in self.label_owners if owner in lost]
        network.ask(dict.fromkeys(data, self.begin_data()), DataReady)
        network.ask(dict.fromkeys(labels, self.begin_labels()), LabelsReady)
        if self.config.average_tops and labels:
            self.hand_out(tuple(labels), Requests(network, None), 0, keep=False)
        times = _ends(self.ready[self.label_owners[0]].task)
        if times and labels:
            message = TakeTimes(torch.tensor(times, dtype=torch.float64))
            network.ask(dict.fromkeys(labels, message), TimesTaken)

    def finish(self, network: Engine) -> None:
        """Let owners know that their models are whole, so that each keeps its own.

        A data owner that the tops do not know is not told: no mean has a use for its network.
        """
        timeout_s = self.config.timeout_s
        if self.config.decide is not None:
            self.held_out = self._validated(network)
        labels = dict.fromkeys(self.label_owners, FinishLabels())
        end(network, labels, Finished, timeout_s=timeout_s)
        data = dict.fromkeys(self.participants, FinishData())
        end(network, data, Finished, timeout_s=timeout_s)

    def state(self) -> State:
        """State that the next round depends on."""
        return {
            "owners": [list(self.data_owners), list(self.label_owners)],
            "participants": list(self.participants),
            "ready": {owner: asdict(ready) for owner, ready in self.ready.items()},
            "batches": {owner: due._asdict() for owner, due in self.batches.items()},
            "step": self.step,
            "num_outputs": self._num_outputs,
            "top": self.top.state(),
            "rng": self._rng.get_state(),
            "choice": None if self.choose is None else self.choose.state(),
            "measured": self.measured,
            "held_out": self._best.state(),
            **({"sums": self._sums.last} if self.config.secure else {}),
        }

    def restore(self, state: State) -> None:
        """Go on from there.

        Raises:
            ConfigError: the state is of a run with other owners.
        """
        owners = [list(self.data_owners), list(self.label_owners)]
        if [list(names) for names in state["owners"]] != owners:
            raise ConfigError(
                f"the saved run is of owners {state['owners']}, this one of {owners}; resume with "
                "the same, or start anew with --overwrite"
            )
        self.participants = tuple(state["participants"])
        self.ready = {owner: LabelsReady(**ready) for owner, ready in state["ready"].items()}
        self.batches = {owner: Due(**due) for owner, due in state["batches"].items()}
        self.step = state["step"]
        self.start(state["num_outputs"])
        self.top.restore(state["top"])
        self._rng.set_state(state["rng"])
        if self.choose is not None:
            self.choose.restore(state["choice"])
        self.measured = dict(state["measured"])
        self._best.restore(state["held_out"])
        self._sums.resume(state.get("sums", 0))

    # --- What answers must be, and what they report ------------------------------------------

    def check_batch(self, owner: str, message: Any) -> None:
        """Refuse a batch that cannot be.

        Raises:
            MessageError: naming what it has.
        """
        samples_B, most = message.samples_B, self.config.batch_size
        check_shape(message, "samples_B", (samples_B.numel(),), torch.int64)
        num_samples = self.ready[owner].num_samples
        if not 0 < len(samples_B) <= most:
            raise MessageError(
                f"{message.wire_name()}: a batch has 1 to {most} samples, got {len(samples_B)}"
            )
        if not 0 <= int(samples_B.min()) <= int(samples_B.max()) < num_samples:
            raise MessageError(
                f"{message.wire_name()}: samples outside the {num_samples} it shares"
            )

    def check_learned(
        self, means: Mapping[str, Tensor], give_top: bool
    ) -> Callable[[str, Any], None]:
        """Function of a label owner's name and its ``Learned`` that refuses one that cannot be
        learned from.

        Args:
            means: label owner -> the mean embedding that it was sent.
            give_top: whether it was asked for its top.
        """
        return partial(self._check_learned, means, give_top)

    def _check_learned(
        self, means: Mapping[str, Tensor], give_top: bool, owner: str, message: Any
    ) -> None:
        check_shape(message, "gradient_BE", tuple(means[owner].shape), torch.float32)
        check_finite(message, "gradient_BE")
        if not (math.isfinite(message.loss) and math.isfinite(message.held_out)):
            raise MessageError(f"{message.wire_name()}: the loss is not finite")
        self.check_batch(owner, message)
        num = len(self.top.w_P) if give_top else 0
        check_shape(message, "top_P", (num,), torch.float32)
        check_finite(message, "top_P")

    def due_batches(self, requests: Requests, drawn: Mapping[str, Any]) -> dict[str, Due]:
        """Label owner -> its next batch: what it has just drawn, or named before.

        Raises:
            TrainingError: no label owner has one.
        """
        self.batches |= due(drawn)
        requests.need(self.batches, "label owner has a batch")
        return {n: self.batches[n] for n in self.label_owners if n in self.batches}

    def note(self, requests: Requests, learned: Mapping[str, Any]) -> None:
        """Count losses of batches, of each ``Learned``, and remember the batches that come next.

        Raises:
            TrainingError: nobody has learned.
        """
        requests.need(learned, "label owner answered")
        self.batches = due(learned)
        for owner, each in learned.items():
            requests.losses.setdefault(owner, []).append(each.loss / self.config.members)
            self._best.add(each.held_out, len(each.gradient_BE))

    def played(
        self, requests: Requests, participants: tuple[str, ...], judged: Mapping[str, float]
    ) -> Averaging:
        """Result of the round."""
        means = {owner: sum(each) / len(each) for owner, each in requests.losses.items()}
        metrics: dict[str, Any] = {
            "step": self.step,
            "loss": sum(means.values()) / len(means),
            "steps": self.config.sync_every,
            "bytes": num_bytes(requests.network),
            **judged,
        }
        if self.choose is not None and (why := self.choose.report()):
            metrics |= {"participants": list(participants), **why}
        return Averaging(
            metrics=metrics,
            missed=dict(requests.missed),
            reasons=requests.missed.reasons,
            losses=means,
            participants=participants,
        )

    # --- Scores ------------------------------------------------------------------------------

    def scores(self) -> Mapping[str, Mapping[str, float]]:
        """Label owner -> scores that it has reported."""
        return self.measured

    def judged(self, network: Engine) -> dict[str, float]:
        """Label owner -> how good its model is on samples that it kept out of training."""
        return dict(self.held_out)

    def _validated(self, network: Engine) -> dict[str, float]:
        """Label owner -> how good, of those who answer; each then decides what is asked for."""
        scores = {}
        timeout_s = self.config.timeout_s
        asked = dict.fromkeys(self.label_owners, GiveHeldOut())
        for owner, reply in network.ask(asked, HeldOut, timeout_s=timeout_s).items():
            samples_N = reply.samples_N
            if not len(samples_N):
                continue
            try:
                scores[owner] = self._validate(owner, samples_N, self.asking(network))
            except (PartyError, TrainingError) as failure:  # the others' models are whole
                _log.warning("%s decides nothing on rows that it kept out: %s", owner, failure)
        return scores

    def _validate(self, owner: str, samples_N: Tensor, requests: Requests) -> float:
        """How good a label owner's model is on these samples, the last of which let it decide.

        Raises:
            PartyError: it does not answer, or not with what can be.
            TrainingError: no data owner answers.
        """
        measured = asked_sums(Validate, owner, samples_N, self.participants, self.config, requests)
        is_class = json.loads(self.ready[owner].task)["kind"] == "classification"
        num = len(samples_N)
        return measured.num_right / num if is_class else goodness_of_error(measured.loss / num)


def _num_outputs(owner: str, task: str) -> int:
    try:
        described = json.loads(task)
        named = {"classification": "classes", "quantiles": "shares"}
        if described["kind"] in ("regression", "survival", "counts", "amounts"):
            return 1
        num = len(described[named.get(described["kind"], "labels")])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise PartyError(owner, "does not say what its labels are") from None
    if not 1 <= num <= MAX_WIDTH:
        raise PartyError(owner, f"says that it has {num} classes, labels or quantiles")
    return num


def _ends(task: str) -> list[float]:
    """Where intervals of times would end, of a label owner's task; none of other labels."""
    try:
        described = json.loads(task)
        ends = described["ends"] if described["kind"] == "survival" else []
        return [float(end) for end in ends]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []
