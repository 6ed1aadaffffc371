"""[engine] of a run file: where the parties are, and how they are reached.

Engines of companions and of other packages are sections, too, registered as ``dovetail.engines``;
one is imported when a file names its kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, Union

from pydantic import Discriminator, Field, Tag, model_validator

from dovetail import entries
from dovetail.errors import ConfigError
from dovetail.files import did_you_mean
from dovetail.settings.section import Address, PartyName, Precision, Section


class EngineSection(Section):
    """[engine] of a run file.

    Attributes:
        elsewhere: partners are on other machines.
        joined: partners elsewhere run ``dovetail join``.
        job: the run is a job, and every party's file stays at its site.
    """

    elsewhere: ClassVar[bool] = False
    joined: ClassVar[bool] = False
    job: ClassVar[bool] = False
    kind: str
    precision: Precision = "float32"  # how float32 tensors travel


class HereSection(EngineSection):
    """Every party's rows are in this process."""


class InProcessSection(HereSection):
    """Every party in this process."""

    kind: Literal["inprocess"] = "inprocess"  # all parties here


class RaySection(HereSection):
    """Parties split over processes on the machines of a Ray cluster, one for each free core."""

    kind: Literal["ray"]  # processes of a Ray cluster
    address: str = "auto"  # of the cluster; auto: this machine's, or one of its cores
    cpus: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # cores that a process takes


class ElsewhereSection(EngineSection):
    """Partners on other machines.

    Attributes:
        opener: "module:function" of what opens the driver's lines, called with the section, the
            driver's certificate (None of one without) and a ``Progress``; it gives a ``Reach``.
        joiner: "module:function" of what answers drivers at a party, for ``dovetail join``.
        patient: an answer may take a night, so the driver waits for partners without end.
    """

    elsewhere: ClassVar[bool] = True
    opener: ClassVar[str]
    joiner: ClassVar[str] = ""
    patient: ClassVar[bool] = False
    partners: tuple[PartyName, ...] = Field(min_length=1)  # names of the parties that take part
    name: PartyName | None = None  # of a driver without data; None: coordinator
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
            raise ValueError(
                f"partners must be different names, got {list(self.partners)}; name each once"
            )
        return self

    @property
    def max_message_bytes(self) -> int:
        return int(self.max_message_mb * 2**20)

    @property
    def where(self) -> str:
        """The place where partners are waited for, in words."""
        return "their sites"


class CertifiedSection(ElsewhereSection):
    """Partners with certificates of one authority, who join by ``dovetail join``."""

    joined: ClassVar[bool] = True
    certificates: str | None = None  # a folder; None: certificates/NAME beside the party file
    # A list of revoked certificates that must be there; None: the party file's, or crl.pem in the
    # folder of certificates if it is there.
    revoked: str | None = None


class StreamSection(CertifiedSection):
    """Partners who connect."""

    opener: ClassVar[str] = "dovetail.node.reach:listening"
    kind: Literal["stream"]  # gRPC with mutual TLS
    listen: Address  # address that partners connect to

    @property
    def where(self) -> str:
        """The address where partners connect."""
        return self.listen


#: Kind -> its section, of the engines that the core has.
CORE: Mapping[str, type[EngineSection]] = {
    "inprocess": InProcessSection,
    "ray": RaySection,
    "stream": StreamSection,
}


def kinds() -> list[str]:
    """Every engine's kind: the core's, and what installed packages have."""
    return [*CORE, *entries.registered("engines")]


def section_of(kind: str) -> type[EngineSection]:
    """The section of an engine of this kind.

    Raises:
        ConfigError: there is none, or a package's cannot be loaded.
    """
    if kind in CORE:
        return CORE[kind]
    if kind not in entries.registered("engines"):
        raise ConfigError(
            f"there is no engine {kind!r}{did_you_mean(kind, kinds())}; a run file can name "
            f"{', '.join(kinds())}"
        )
    section = entries.load("engines", kind)
    if not (isinstance(section, type) and issubclass(section, EngineSection)):
        where = entries.where("engines", entries.registered("engines")[kind])
        raise ConfigError(f"{where} names {section!r}; it is to name a subclass of EngineSection")
    return section


def elsewhere_section(kind: str) -> type[ElsewhereSection]:
    """The section of an engine whose partners are elsewhere.

    Raises:
        ConfigError: as ``section_of``.
    """
    section = section_of(kind)
    assert issubclass(section, ElsewhereSection)
    return section


def _engine_kind(section: Any) -> Any:
    if isinstance(section, Mapping):
        return section.get("kind", "inprocess")
    return getattr(section, "kind", None)


@cache
def any_engine() -> Any:
    """The type of [engine] of any kind; imports what installed packages have."""
    tagged = tuple(Annotated[section_of(kind), Tag(kind)] for kind in kinds())
    return Annotated[Union[tagged], Discriminator(_engine_kind)]  # noqa: UP007  a tuple's
