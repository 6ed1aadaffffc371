"""HyFEM with all its layers; see ``settings.py``."""

from __future__ import annotations

from typing import ClassVar

from dovetail.methods.hyfem.calibration import CalibratingCoordinator
from dovetail.methods.hyfem.inviting import InvitingCoordinator
from dovetail.methods.hyfem.last_rounds import AveragingCoordinator
from dovetail.methods.hyfem.several import SeveralMember
from dovetail.methods.hyfem.times import TimesCoordinator
from dovetail.methods.hyfem.variants import VariantCoordinator, VariantMember
from dovetail.methods.settings.hyfem import Config, Settings


class Member(SeveralMember, VariantMember):
    """A party's side of a run."""

    settings: ClassVar[type[Config]] = Settings
    config: Settings


class Coordinator(
    # The mean over the last rounds is taken, then calibrated, then sent.
    AveragingCoordinator,
    CalibratingCoordinator,
    InvitingCoordinator,
    VariantCoordinator,
    TimesCoordinator,
):
    """The server of a run."""
