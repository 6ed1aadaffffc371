"""How a driver reaches its partners: they connect to it, or letters lie in a place that both
reach."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name

from dovetail.errors import ConfigError
from dovetail.methods.base import SILENT, Progress, Site
from dovetail.network.certificates import (
    certificate_name,
    every_name,
    hosts_of,
    may_listen,
    read_certificates,
    tls_name,
)
from dovetail.network.ledger import LedgerFile
from dovetail.network.renewal import Certified
from dovetail.network.sessions import Lines
from dovetail.network.stream import Stream
from dovetail.node.driver import Coordinator, Driver, Reach, check_partners, coordinator_name
from dovetail.node.engines import CertifiedSection, ElsewhereSection, StreamSection
from dovetail.node.site_folder import certificates_of, revoked_of, threads_end

_log = logging.getLogger(__name__)


def party_driver(site: Site, section: ElsewhereSection, *, talk: Progress = SILENT) -> Driver:
    """A party that drives partners elsewhere.

    Raises:
        ConfigError: see ``Driver``; certificates that will not do.
    """
    return Driver(site, section, site_reaches(site, section, talk=talk), talk=talk)


def site_reaches(site: Site, section: ElsewhereSection, *, talk: Progress = SILENT) -> Reach:
    """A party's lines to partners, shown its certificate and heeding its list of revoked ones.

    Raises:
        ConfigError: it is its own partner, or what ``reaches`` raises.
    """
    check_partners(site, section)
    shown = None
    if isinstance(section, CertifiedSection):
        folder = section.certificates or certificates_of(site)
        shown = _credentials(Path(folder), site.name, section.revoked or revoked_of(site))
    return _reach(section, shown, talk)


def coordinator(section: ElsewhereSection, *, talk: Progress = SILENT) -> Coordinator:
    """A driver without data, of its name, with its site and certificates here.

    Raises:
        ConfigError: see ``Coordinator``; certificates that will not do.
    """
    name = certificate_name(coordinator_name(section))
    shown = None
    if isinstance(section, CertifiedSection):
        folder = section.certificates or Path("certificates") / name
        shown = _credentials(Path(folder), name, section.revoked)
    return Coordinator(section, Path(f"{name}.site"), _reach(section, shown, talk), talk=talk)


def _reach(section: ElsewhereSection, shown: Certified | None, talk: Progress) -> Reach:
    """Lines to partners, by what the engine's package has for it."""
    reach: Reach = resolve_name(section.opener)(section, shown, talk)
    return reach


def listening(section: StreamSection, shown: Certified, talk: Progress) -> Reach:
    """Connections that partners make."""

    @contextmanager
    def listen(driver: str, ledger: LedgerFile) -> Iterator[Lines]:
        with (
            threads_end(),
            Stream(
                section.listen,
                driver=driver,
                credentials=shown,
                parties=section.partners,
                max_message_bytes=section.max_message_bytes,
                ledger=ledger,
            ) as stream,
        ):
            yield stream

    return listen


def _credentials(folder: Path, name: str, revoked: str | Path | None) -> Certified:
    """The driver's certificate and key.

    Raises:
        ConfigError: files that are missing or do not belong together, or a certificate that is for
            those who connect.
    """
    found = Certified.load(folder, name, revoked=None if revoked is None else Path(revoked))
    leaf = read_certificates(found.credentials.certificate, where="the certificate")[0]
    if not may_listen(leaf):
        raise ConfigError(
            f"{folder}: the certificate of {name!r} is for a party that joins, and no partner "
            "would believe it of a driver; make one that drives: dovetail certificates "
            f"{name} --driver {name} --renew"
        )
    if tls_name(name) not in every_name(leaf):
        _log.warning(
            "the certificate of %s does not have the name %s, so its partners join with %s",
            name,
            tls_name(name),
            f"--tls-name {(hosts_of(leaf) or ('HOST',))[0]}",
        )
    return found
