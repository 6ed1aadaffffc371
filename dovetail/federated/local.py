"""A party's context: what its site gives its side of a run.

Random numbers that nobody else can compute, a network's size limit, seeded minibatches, steps and
releases that are noised and counted within the budget of its policy. A method's page says what is
drawn, stepped and sent; this layer says how, the same for every method.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from dovetail.data import Minibatches
from dovetail.errors import ConfigError, MessageError, PartyError
from dovetail.federated import group
from dovetail.models import RandomStream, Secret, generator, key_of
from dovetail.models.optimizers import Optimizer
from dovetail.network import Message, State, noted
from dovetail.privacy import Budget, Releasing, Stepping, epsilon, released_to, within
from dovetail.settings.privacy import PrivateSteps, Release

if TYPE_CHECKING:
    from dovetail.privacy import SecretSums

N = TypeVar("N", bound=nn.Module | None)
M = TypeVar("M", bound=Message)

_log = logging.getLogger(__name__)

#: The most that the networks of one run may take at a party, in bytes of parameters.
MAX_PARAMETER_BYTES = 2**28

#: Batches whose rows are copied together: all of a pass would be the table again.
_BATCHES_AT_ONCE = 64


#: A batch's loss: (network, *batch, reduction=...) -> a number. ``reduction`` is "mean" over the
#: batch, or "sum": a row's loss within a private step, where the batch is that row.
Loss = Callable[..., Tensor]


class Local:
    """Context that a party's site gives its side of a run. A party is not made without one.

    Args:
        name: the party's.
        device: where it computes.
        secret: what its site mixes into random numbers, asked again whenever training starts; None
            in simulation, whose numbers follow from the run's seed.
        lasting: the same in all runs of its site; None in simulation.
        budget: of its policy; None: nothing that leaves is capped.
        sums: names of those it sums with (None: anybody who is certified) -> its side of the run's
            secret sums; None where nothing of them is kept.
        max_bytes: of the parameters of all networks that are built in one run.
    """

    def __init__(
        self,
        name: str,
        *,
        device: torch.device | None = None,
        secret: Secret | None = None,
        lasting: bytes | None = None,
        budget: Budget | None = None,
        sums: Callable[[Collection[str] | None], SecretSums | None] = lambda members: None,
        max_bytes: int = MAX_PARAMETER_BYTES,
    ) -> None:
        self.name = name
        self.device = device or torch.device("cpu")
        self.secret = secret
        self.lasting = lasting
        self.budget = budget
        self.sums = sums
        self.seed = 0
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._key: bytes | None = None
        self._has_key = False
        self._stepping: Stepping | None = None
        self._steps_are_bounded = False
        self._granted = 0  # steps that the budget has allowed together
        self._releases: dict[str, Releasing] = {}
        self._once: list[Mapping[str, Any]] = []  # released before the run, and what that has cost
        self._unbounded: set[str] = set()  # releases that leave as they are, by its own file

    def begin(self, seed: int) -> None:
        """Training starts, or starts again; called before the party's own ``begin``.

        What was counted stays counted.
        """
        self.seed = seed
        self._has_key = False
        self._num_bytes = 0
        self._granted = 0

    # --- Random numbers --------------------------------------------------------------------------

    @property
    def key(self) -> bytes | None:
        """Key that is mixed into random numbers since training started; None in simulation."""
        if not self._has_key:
            self._key, self._has_key = key_of(self.secret), True
        return self._key

    def stream(self, *purpose: str) -> RandomStream:
        """A context whose global random numbers are this party's own, for one purpose."""
        return RandomStream(self.seed, self.name, *purpose, secret=self.key, device=self.device)

    def generator(self, *purpose: str) -> torch.Generator:
        """A generator of this party's own, for one purpose."""
        return generator(self.seed, self.name, *purpose, secret=self.key)

    def _noise(self, purpose: str) -> torch.Generator | None:
        """Where noise comes from: in simulation the seed; None, at a site: the system."""
        return generator(self.seed, self.name, purpose) if self.key is None else None

    # --- Networks and batches --------------------------------------------------------------------

    def build(self, make: Callable[[], N], *purpose: str, alike: bool = False) -> N:
        """A network with random weights from a stream of its own, on the party's device.

        Args:
            make: makes it; called first where it takes no memory, to measure it. None: there is
                to be none.
            purpose: of the stream. Two networks of two purposes do not depend on each other.
            alike: every party of the run draws these weights, which are no secret: a common start.

        Raises:
            MessageError: with the networks before it, more than the size limit; or a network that
                cannot be.
        """
        try:
            with torch.device("meta"):
                measured = make()
        except (ConfigError, RuntimeError) as error:
            raise MessageError(str(error)) from None
        if measured is None:
            return measured
        self.take(sum(each.nbytes for each in measured.parameters()))
        mine = RandomStream(self.seed, *purpose) if alike else self._stream(*purpose)
        with mine:
            network = make()
        assert network is not None
        network.to(self.device)
        return network

    def _stream(self, *purpose: str) -> RandomStream:
        return RandomStream(self.seed, self.name, *purpose, secret=self.key)

    def take(self, num_bytes: int) -> None:
        """Count parameters that are about to be made.

        Raises:
            MessageError: all of this run together take more than the limit.
        """
        self._num_bytes += num_bytes
        if self._num_bytes > self._max_bytes:
            raise MessageError(
                f"the run's settings make networks of more than {self._max_bytes} bytes of "
                "parameters here"
            )

    def batches(
        self, rows_N: Tensor, batch_size: int, *purpose: str, least: int = 1
    ) -> Minibatches:
        """Endless shuffled (B,) batches of these rows; a party names them in ``saved``."""
        return Minibatches(
            rows_N,
            batch_size,
            self.generator(*purpose or ("batches",)),
            least=least,
            party=self.name,
        )

    def passes(
        self, batches: Minibatches, num: int, *tensors: Tensor
    ) -> Iterator[tuple[Tensor, ...]]:
        """Whole passes over the rows: (B,) rows of each batch, and of each tensor these rows.

        The budget is asked once for all ``num`` visits of a row: if it has not so many left, their
        steps move nothing.
        """
        self.visit(num, steps=num * batches.steps_per_pass)
        for _ in range(num):
            each = [next(batches) for _ in range(batches.steps_per_pass)]
            for start in range(0, len(each), _BATCHES_AT_ONCE):
                chunk = each[start : start + _BATCHES_AT_ONCE]
                sizes = [len(batch) for batch in chunk]
                rows = torch.cat(chunk).to(self.device)
                parts = rows, *(tensor[rows] for tensor in tensors)
                yield from zip(*(part.split(sizes) for part in parts), strict=True)

    # --- Steps -----------------------------------------------------------------------------------

    def bound_steps(
        self,
        setting: PrivateSteps | None,
        asked: PrivateSteps | None,
        *,
        num_rows: int,
        what: str,
        key: str,
    ) -> None:
        """Say how networks are trained whose weights leave; what was counted before stays so.

        Args:
            setting: as the party's file says; None: as the run asks.
            asked: as the run asks; None: as they are.
            num_rows: of its training.
            what: what leaves, in an error's words: "weights of its common tower".
            key: the setting, and where it stands.

        Raises:
            ConfigError: a budget, and no noise; or a run that asks for more than it.
        """
        steps = within(self.budget, setting, asked, what=what, key=key)
        self._steps_are_bounded = True
        if steps is not None and self._stepping is None:
            self._stepping = Stepping(steps, self.name, num_rows, self._noise("private steps"))

    @property
    def is_private(self) -> bool:
        """Whether steps of networks whose weights leave are noised."""
        return self._stepping is not None

    @property
    def is_capped(self) -> bool:
        """Whether exact losses and scores stay here: they would reveal what noise is to hide."""
        return self.is_private or self.budget is not None

    def visit(self, times: int, *, steps: int) -> None:
        """Ask the budget once, for all visits of a row in the next so many steps."""
        allowed = self._stepping is None or self._stepping.allowed(times)
        self._granted = steps if allowed else -steps

    def step(
        self,
        optimizer: Optimizer | torch.optim.Optimizer,
        network: nn.Module,
        loss: Loss,
        rows_B: Tensor,
        *batch: Any,
        pull: Callable[[], None] | None = None,
    ) -> Tensor:
        """The mean loss of a batch, before the step that it makes of weights that leave.

        The gradient is the batch's, or, where steps are private, that of DP-SGD, and counted. Once
        the budget is spent nothing moves. Processes of ``torchrun`` compute a part each, and
        private steps whole (``group.py``).

        Args:
            optimizer: of the network's parameters.
            loss: of (network, *batch).
            rows_B: the batch's rows, to be counted.
            pull: adds to gradients what does not depend on rows.

        Raises:
            ConfigError: a budget, and ``bound_steps`` was not called.
        """
        if self.budget is not None and not self._steps_are_bounded:
            raise ConfigError(
                "has a budget (policy.privacy), and this method's steps are not noised"
            )
        optimizer.zero_grad()
        together = group.current()
        if self._stepping is None and together is not None:
            value = together.step(network, loss, len(rows_B), batch)
        elif self._stepping is None:
            value = loss(network, *batch, reduction="mean")
            value.backward()
        elif self._may_step(self._stepping):

            def of_row(call: Callable[..., Any], *row: Any) -> Tensor:
                return loss(call, *row, reduction="sum")

            value = self._stepping.gradient(network, of_row, rows_B, *batch)
        else:
            with torch.no_grad():
                return loss(network, *batch, reduction="mean")
        if pull is not None:
            pull()
        optimizer.step()
        return value.detach()

    @staticmethod
    def descend(optimizer: Optimizer | torch.optim.Optimizer, loss: Tensor) -> Tensor:
        """The loss, and a step of weights that stay here."""
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def _may_step(self, stepping: Stepping) -> bool:
        if self._granted < 0:
            self._granted += 1
            return False
        if self._granted:
            self._granted -= 1
            return True
        return stepping.allowed(1)

    # --- Releases --------------------------------------------------------------------------------

    def bound_releases(
        self,
        setting: Release | None,
        asked: Release | None = None,
        *,
        what: str,
        key: str,
        purpose: str = "released",
    ) -> None:
        """Say how rows of one kind leave; what was counted before stays so.

        Args:
            setting: as the party's file says; None: as the run asks.
            asked: as the run asks; None: as they are.
            what: the kind: "codes", "gradients".
            key: the setting, and where it stands.
            purpose: of the noise's stream in simulation.

        Raises:
            ConfigError: a budget, and no noise; or a run that asks for more than it.
        """
        release = within(self.budget, setting, asked, what=f"its {what}", key=key)
        if release is None:
            self._unbounded.add(what)
            return
        text, before = f"{what} of {self.name!r}", self._releases.get(what)
        self._releases[what] = Releasing(release, text, self._noise(purpose), before)

    def released_once(self, what: str, receiver: str, cost: Mapping[str, Any]) -> None:
        """Note a release that was noised before the run: its answers are functions of it alone."""
        self._once.append({"to": receiver, "what": what, **cost})

    def allows(self, what: str, receiver: str, samples_B: Tensor, *, times: int = 1) -> bool:
        """Whether one more release of these samples is within the budget."""
        released = self._releases.get(what)
        return released is None or released.allowed(receiver, samples_B, times=times)

    def release(
        self,
        what: str,
        receiver: str,
        samples_B: Tensor,
        rows_BD: Tensor,
        *,
        times: int = 1,
        or_zeros: bool = False,
    ) -> Tensor:
        """These rows as they may leave: as they are, or clipped and noised, and counted.

        Args:
            what: as ``bound_releases`` was told.
            receiver: for whom they are.
            samples_B: whose rows they are.
            times: how many of the rows one sample moves.
            or_zeros: once the budget is spent zeros leave, which say nothing.

        Raises:
            PartyError: the budget is spent, and not ``or_zeros``.
            ConfigError: a budget, and ``bound_releases`` was not called.
        """
        released = self._releases.get(what)
        if released is None:
            if self.budget is not None and what not in self._unbounded:
                raise ConfigError(f"has a budget (policy.privacy), and its {what} are not noised")
            return rows_BD
        if released.allowed(receiver, samples_B, times=times):
            return released(receiver, samples_B, rows_BD, times=times)
        if or_zeros:
            return torch.zeros_like(rows_BD)
        raise PartyError(self.name, "has spent its budget of epsilon, and answers no more")

    def release_sum(
        self,
        sum_P: Tensor,
        setting: PrivateSteps | None,
        asked: PrivateSteps | None,
        *,
        what: str,
        key: str,
    ) -> tuple[Tensor, float]:
        """A sum over rows, each of which adds at most 1 to one of its numbers, as it may leave
        once: as it is, or noised and counted; and the noise's deviation.

        Args:
            sum_P: the sum.
            setting: as the party's file says; None: as the run asks.
            asked: as the run asks; None: as it is.
            what: the sum, in an account's words.
            key: the setting, and where it stands.

        Raises:
            ConfigError: a budget, and no noise or too little of it.
        """
        steps = within(self.budget, setting, asked, what=f"its {what}", key=key)
        if steps is None:
            return sum_P, 0.0
        # Another row in a row's place moves the sum by sqrt(2); counted as 2, as all else here.
        cost = epsilon(1, steps.noise / 2, steps.delta)
        if steps.epsilon is not None and cost > steps.epsilon:
            raise ConfigError(
                f"noise = {steps.noise:g} on its {what} costs epsilon = {cost:.3g}, and "
                f"{steps.epsilon:g} is allowed; set more noise in {key}"
            )
        report = {"epsilon": cost, "delta": steps.delta, "releases": 1, "stopped": False}
        self.released_once(what, "the driver", report)
        rng = self._noise(what) or generator(0, what, secret=secrets.token_bytes(32))
        return sum_P + steps.noise * torch.randn(sum_P.shape, generator=rng), steps.noise

    def with_cost(self, message: M, what: str = "", receiver: str = "") -> M:
        """The message, with what its release or its weights have cost so far in its ledger line."""
        if what:
            released = self._releases.get(what)
            once = next(iter(self._once), None)  # what follows from it costs nothing more
            return noted(message, once if released is None else released.cost(receiver))
        return noted(message, None if self._stepping is None else self._stepping.report())

    # --- What it has cost, and its state ---------------------------------------------------------

    def spent(self) -> list[dict[str, Any]]:
        """Privacy costs of what left noised: "to" whom, "what", cost so far; JSON-ready."""
        steps = [] if self._stepping is None else [self._stepping.report()]
        accounts = [{"to": "the coordinator", "what": "weights", **each} for each in steps]
        for what, released in self._releases.items():
            accounts += released_to(released, what)
        return accounts + [dict(each) for each in self._once]

    def at_least(self, releases: int) -> None:
        """Every row was released so often, or more, whatever its state says."""
        for mechanism in (self._stepping, *self._releases.values()):
            if mechanism is not None:
                mechanism.at_least(releases)

    def state(self) -> State:
        """State: what was counted, and the generator of a simulation's noise."""
        stepping = self._stepping
        return {
            "steps": None if stepping is None else stepping.state(),
            "releases": {what: each.state() for what, each in self._releases.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there, after ``begin``; what was counted since stays counted."""
        if self._stepping is not None and state["steps"] is not None:
            self._stepping.restore(state["steps"])
        for what, released in self._releases.items():
            if what in state["releases"]:
                released.restore(state["releases"][what])
