"""What a partner of APFed has, by its own file or as a partition deals it, and its sides."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from dovetail.data import Input, SharedRows
from dovetail.methods import apfed, vertical
from dovetail.methods.apfed.distil import Partner
from dovetail.methods.apfed.stacks import PartnerConfig
from dovetail.methods.limits import NO_LIMITS, Limits
from dovetail.models import EncoderSpec, Secret


@dataclass(frozen=True)
class PartnerHome:
    """A partner's own settings, and what it answers messages with: the same whoever dealt its rows.

    Attributes:
        config: loss, rate and releases of its network.
        network: of APFed and of classic vertical learning.
        distil: its networks of APFed-D.
        limits: of its policy.
    """

    config: apfed.PassiveConfig
    network: EncoderSpec
    distil: PartnerConfig = field(default_factory=PartnerConfig)
    limits: Limits = NO_LIMITS

    def with_loss(self, loss: Literal["reconstruction", "contrastive"]) -> PartnerHome:
        """The same, helping with this loss."""
        return replace(self, config=self.config.model_copy(update={"loss": loss}))

    def passive(
        self,
        shared: SharedRows,
        *,
        device: torch.device | None = None,
        secret: Secret | None = None,
    ) -> apfed.Passive:
        """Its side of APFed."""
        return apfed.Passive(shared, self.config, self.network, device=device, secret=secret)

    def member(
        self,
        shared: SharedRows,
        test: SharedRows | None,
        *,
        device: torch.device | None = None,
        secret: Secret | None = None,
    ) -> vertical.Member:
        """Its side of classic vertical learning."""
        return vertical.Member(
            shared,
            test,
            self.config,
            self.network,
            codes=self.config.codes,
            device=device,
            secret=secret,
        )

    def partner(
        self,
        shared: SharedRows,
        test: SharedRows | None,
        *,
        input: Input | None = None,
        secret: Secret | None = None,
    ) -> Partner:
        """Its side of APFed-D."""
        return Partner(shared, test, self.distil, input=input, secret=secret)
