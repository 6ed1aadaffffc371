"""[engine] of a run file: where the parties are, and how they are reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from dovetail.settings.section import Address, PartyName, Precision, Section


class HereSection(Section):
    """Every party's rows are in this process."""

    elsewhere: ClassVar[bool] = False
    precision: Precision = "float32"  # how float32 tensors travel


class InProcessSection(HereSection):
    """Every party in this process."""

    kind: Literal["inprocess"] = "inprocess"  # all parties here


class RaySection(HereSection):
    """Parties split over processes on the machines of a Ray cluster, one for each free core."""

    kind: Literal["ray"]  # processes of a Ray cluster
    address: str = "auto"  # of the cluster; auto: this machine's, or one of its cores
    cpus: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # cores that a process takes


class ElsewhereSection(Section):
    """Partners on other machines."""

    elsewhere: ClassVar[bool] = True
    partners: tuple[PartyName, ...] = Field(min_length=1)  # names of the parties that take part
    name: PartyName | None = None  # of a driver without data; None: coordinator
    precision: Precision = "float32"  # how float32 tensors travel
    # how long the driver waits until all are there; None: for ever
    wait_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    # how long it waits for a partner that was lost; None: as long as its restart takes
    grace_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    max_message_mb: float = Field(
        default=256, gt=0, le=4096, allow_inf_nan=False
    )  # largest answer, in MiB
    # for an answer, unless the method sets a deadline of its own
    timeout_s: float = Field(default=30.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(set(self.partners)) < len(self.partners):
            raise ValueError(f"partners must be different names, got {list(self.partners)}")
        return self

    @property
    def max_message_bytes(self) -> int:
        return int(self.max_message_mb * 2**20)


class CertifiedSection(ElsewhereSection):
    """Partners with certificates of one authority, who join by ``dovetail join``."""

    certificates: str | None = None  # a folder; None: certificates/NAME beside the party file
    # A list of revoked certificates that must be there; None: the party file's, or crl.pem in the
    # folder of certificates if it is there.
    revoked: str | None = None


class StreamSection(CertifiedSection):
    """Partners who connect."""

    kind: Literal["stream"]  # gRPC with mutual TLS
    listen: Address  # address that partners connect to


class MailboxSection(CertifiedSection):
    """Partners who look for letters in a place that both sides reach."""

    kind: Literal["mailbox"]  # letters in a folder, a bucket or a relay
    place: str = Field(min_length=1)  # a folder (relative to the run file), bucket or relay
    proxy_ca: str | None = None  # PEM file: authority of a proxy that opens TLS
    poll_s: float = Field(default=10.0, gt=0, le=86400)  # seconds between looks
    # for an answer, whatever the method sets: a partner may look once a night
    timeout_s: float = Field(default=7 * 86400.0, gt=0, allow_inf_nan=False)


class FlareSection(ElsewhereSection):
    """Partners at sites of an NVFlare federation, where the run is a job."""

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


def _engine_kind(section: Any) -> Any:
    if isinstance(section, Mapping):
        return section.get("kind", "inprocess")
    return getattr(section, "kind", None)


EngineSection = Annotated[
    Annotated[InProcessSection, Tag("inprocess")]
    | Annotated[RaySection, Tag("ray")]
    | Annotated[StreamSection, Tag("stream")]
    | Annotated[MailboxSection, Tag("mailbox")]
    | Annotated[FlareSection, Tag("flare")],
    Discriminator(_engine_kind),
]
