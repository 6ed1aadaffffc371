"""A party's site, open: what answers there, whatever carries its messages."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from prometheus_client.core import Metric

from dovetail.data import Table
from dovetail.methods.base import Site
from dovetail.models.threads import one_thread
from dovetail.network import credentials, renewal
from dovetail.network.host import Host
from dovetail.network.ledger import LedgerFile
from dovetail.network.renewal import Certified
from dovetail.network.retry import raise_descriptor_limit
from dovetail.node import site_folder as sites
from dovetail.node.parked import Parked
from dovetail.node.probes import Probes, gauge
from dovetail.node.runs import Runs
from dovetail.node.status_line import StatusLine
from dovetail.node.warnings import Warned


def shown_by(site: Site, certificates: Path | None) -> Certified:
    """Credentials of a party: what it shows, and whom it believes.

    Raises:
        ConfigError: certificates that will not do.
    """
    folder = certificates or sites.certificates_of(site)
    return Certified.load(folder, site.name, revoked=sites.revoked_of(site))


@dataclass(frozen=True)
class OpenSite:
    """A site that this process has open.

    Attributes:
        path: the folder.
        host: answers.
        teller: reports to whoever watches.
        refusals: what was refused.
        shown: what the party shows.
    """

    path: Path
    host: Host
    teller: StatusLine
    refusals: sites.Refusals
    shown: Certified | None

    def probes(self, address: str | None) -> AbstractContextManager[object]:
        """Answers probes and Prometheus at an address, while the context is open; None: nowhere.

        Raises:
            ConfigError: nothing can listen there.
        """
        if address is None:
            return nullcontext()
        return Probes(address, why_not_ready=self.teller.why_not_ready, metrics=self._metrics)

    def _metrics(self) -> Iterator[Metric]:
        yield from (*self.teller.metrics(), *self.refusals.metrics())
        if self.shown is not None:
            about = "Unix time at which the certificate expires."
            expires = self.shown.credentials.expires.timestamp()
            yield gauge("dovetail_certificate_expiry_seconds", about, "", {"": expires})


@contextmanager
def opened_home(
    site: Site,
    site_folder: Path,
    shown: Certified | None,
    drivers: Collection[str],
    device: torch.device | None,
    quiet: bool,
    parked: Parked | None = None,
    *,
    wait_s: float = 0.0,
) -> Iterator[OpenSite]:
    """The party's site, while the context is open.

    Args:
        site: the party.
        site_folder: the folder.
        shown: what it shows; None: no certificate, where others say who is who.
        drivers: whom it answers.
        device: where it computes; None: on the processor.
        quiet: print nothing.
        parked: keeps what runs are in between messages; None: this process stays.
        wait_s: how long to wait for another process to leave the folder.

    Raises:
        ConfigError: a site that another process uses, or that will not do.
    """
    raise_descriptor_limit()
    with (
        site.computing(),
        sites.SiteFolder(site_folder, wait_s=wait_s) as kept,
        sites.logged(kept.path / "join.log"),
        StatusLine(*drivers, quiet=quiet) as teller,
        LedgerFile(kept.path / "ledger.jsonl", site.name) as ledger,
        sites.threads_end(),
        one_thread() if isinstance(site.table.x, Table) else nullcontext(),
        Warned((credentials, renewal), teller.print, once=False),
    ):
        refusals = sites.Refusals(kept.path / "refusals.jsonl", teller.print)
        computing = device or torch.device("cpu")
        runs = Runs(
            *(site, kept.path, refusals, teller, computing, shown, parked),
            letter=lambda driver: host.letter(driver),
        )
        host = Host(
            site.name,
            runs.open,
            admit=site.policy.admit,
            on_refusal=refusals.record,
            ledger=ledger,
            max_bytes=site.policy.section.max_message_bytes,
            identity=shown,
            on_restart=runs.restarted,
            account=runs.account,
            on_notice=runs.noticed,
        )
        yield OpenSite(kept.path, host, teller, refusals, shown)
        teller.stopped(ledger.last_hash)
