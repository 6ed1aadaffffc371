"""A place by the name that a user gives it: a folder, a bucket (s3://), or a relay (https://)."""

from __future__ import annotations

from pathlib import Path

from dovetail.companions.mailbox.bucket import Bucket
from dovetail.companions.mailbox.folder import Folder
from dovetail.companions.mailbox.places import Place
from dovetail.companions.mailbox.relay import Relay
from dovetail.companions.mailbox.section import MailboxSection
from dovetail.companions.mailbox.sending import Mailbox
from dovetail.errors import ConfigError
from dovetail.methods.base import Progress
from dovetail.network.renewal import Certified
from dovetail.node.driver import Reach


def open_place(where: str, shown: Certified, proxy_ca: Path | None = None) -> Place:
    """The place of this name.

    Args:
        where: a folder, a bucket, or a relay's address.
        shown: what this party shows, and whom it believes.
        proxy_ca: authority of a proxy that opens TLS on the way to a relay.

    Raises:
        ConfigError: no place is called so.
        PlaceError: it is not there.
    """
    if where.startswith("https://"):
        return Relay(where, shown, proxy_ca=proxy_ca)
    if proxy_ca is not None:
        raise ConfigError(
            f"proxy_ca is for https://HOST:PORT of a relay, got {where!r}; leave it out"
        )
    if where.startswith("s3://"):
        return Bucket(where)
    if "://" in where:
        raise ConfigError(
            "a mailbox is a folder that both sides reach, s3://BUCKET/PREFIX, or https://HOST:PORT "
            f"of a relay; name one of these, got {where!r}"
        )
    return Folder(Path(where))


def letters(section: MailboxSection, shown: Certified, talk: Progress) -> Reach:
    """A driver's lines by letter."""
    proxy_ca = Path(section.proxy_ca) if section.proxy_ca else None
    return lambda driver, ledger: Mailbox(
        open_place(section.place, shown, proxy_ca),
        parties=section.partners,
        driver=driver,
        identity=shown,
        show=talk.warn,
        poll_s=section.poll_s,
        max_message_bytes=section.max_message_bytes,
        ledger=ledger,
    )
