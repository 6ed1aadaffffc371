"""[engine] with kind = "flare"."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from dovetail.node.engines import ElsewhereSection
from dovetail.settings.section import PartyName


class FlareSection(ElsewhereSection):
    """Partners at sites of an NVFlare federation, where the run is a job."""

    job: ClassVar[bool] = True
    opener: ClassVar[str] = "dovetail.companions.flare.export:not_here"
    kind: Literal["flare"]  # a job of NVIDIA FLARE
    sites: dict[PartyName, str] = Field(default_factory=dict)  # party -> site, if not the same
    # how long it waits for a partner that was lost; an aborted job ends its sites up to 10 s before
    # its driver, which must not go on without them
    grace_s: float | None = Field(default=15.0, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _a_site_each(self) -> FlareSection:
        for name in self.sites:
            if name not in self.partners:
                raise ValueError(f"sites names {name!r}, which is not among partners")
        if len(set(self.site_of().values())) < len(self.partners):
            raise ValueError(f"every partner has a site of its own, got {self.site_of()}")
        return self

    def site_of(self) -> dict[str, str]:
        """Partner -> the name of its site."""
        return {name: self.sites.get(name, name) for name in self.partners}
