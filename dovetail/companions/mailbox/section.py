"""[engine] with kind = "mailbox"."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from dovetail.node.engines import CertifiedSection


class MailboxSection(CertifiedSection):
    """Partners who look for letters in a place that both sides reach."""

    opener: ClassVar[str] = "dovetail.companions.mailbox.opening:letters"
    joiner: ClassVar[str] = "dovetail.companions.mailbox.joining:join"
    patient: ClassVar[bool] = True
    kind: Literal["mailbox"]  # letters in a folder, a bucket or a relay
    place: str = Field(min_length=1)  # a folder (relative to the run file), bucket or relay
    proxy_ca: str | None = None  # PEM file: authority of a proxy that opens TLS
    # the most seconds between looks; soon after a letter they are less
    poll_s: float = Field(default=10.0, gt=0, le=86400)
    # for an answer, whatever the method sets: a partner may look once a night
    timeout_s: float = Field(default=7 * 86400.0, gt=0, allow_inf_nan=False)

    @property
    def where(self) -> str:
        """The place where letters lie."""
        return self.place
