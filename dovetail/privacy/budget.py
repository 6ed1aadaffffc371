"""Budget of a party's policy for what a run may release of one of its samples, whatever the run
asks."""

from __future__ import annotations

from typing import Protocol, TypeVar

from dovetail.errors import ConfigError
from dovetail.settings.privacy import PrivateSteps, Release

R = TypeVar("R", Release, PrivateSteps)


class Budget(Protocol):
    """``policy.privacy`` of a party file."""

    @property
    def epsilon(self) -> float:
        """The most that one sample may cost in one run."""

    @property
    def delta(self) -> float:
        """Delta of that epsilon."""


def within(
    budget: Budget | None, cap: R | None, asked: R | None, *, what: str, key: str
) -> R | None:
    """How it leaves: as the party's own file says, else as the run does; never above the budget.

    Args:
        budget: of the party's policy; None: nothing is capped.
        cap: of its file.
        asked: of the run.
        what: what leaves, in an error's words.
        key: the setting, and where it stands.

    Raises:
        ConfigError: a budget, and no noise; or a run that asks for more than it.
    """
    setting = cap or asked
    if budget is None:
        return setting
    allowed = f"its policy.privacy allows epsilon = {budget.epsilon:g} of a sample in a run"
    if setting is None or not setting.noise:
        raise ConfigError(f"{allowed}, and {what} would leave without noise; set {key}")
    if cap is None and setting.epsilon is not None and setting.epsilon > budget.epsilon:
        raise ConfigError(
            f"{allowed}, and the run asks for {setting.epsilon:g} of {what}; lower its epsilon"
        )
    epsilon = budget.epsilon if setting.epsilon is None else min(budget.epsilon, setting.epsilon)
    return setting.model_copy(update={"epsilon": epsilon, "delta": budget.delta})
