"""A party goes online, and answers one driver until it is told to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import torch

from dovetail import methods
from dovetail.errors import ConfigError
from dovetail.methods.party import Site
from dovetail.methods.section import ADDRESS
from dovetail.network import credentials, renewal
from dovetail.network.certificates import certificate_name
from dovetail.network.dialling import AS_EVER, Way, serve
from dovetail.network.host import Host
from dovetail.network.identity import Certified
from dovetail.network.ledger import LedgerFile
from dovetail.network.patience import raise_descriptor_limit
from dovetail.network.renewal import Renewed
from dovetail.site.home import (
    Home,
    Refusals,
    Runs,
    certificates_of,
    home_of,
    logged,
    revoked_of,
    threads_end,
)
from dovetail.site.teller import Teller

#: Seconds until a signal is noticed, and from one look of the status line to the next.
TICK_S = 0.2


def serve_site(
    site: Site,
    address: str,
    *,
    driver: str | None,
    stopped: Callable[[], bool],
    way: Way = AS_EVER,
    certificates: Path | None = None,
    home: Path | None = None,
    device: torch.device | None = None,
    quiet: bool = False,
) -> None:
    """Serve one driver until told to stop.

    Args:
        site: the party.
        address: where the driver listens, HOST:PORT.
        driver: its name, the one in its certificate; None: the only one that the policy names.
        stopped: asked again and again whether to stop.
        way: how the driver is reached.
        certificates: their folder; None: ``certificates/NAME`` beside the party file.
        home: what the party keeps; None: ``STEM.site`` beside the party file.
        device: where it computes.
        quiet: print nothing.

    Raises:
        ConfigError: an address, driver, certificate or home that will not do.
        NetworkError: see ``dialling.serve``.
    """
    check_address(address)
    driver = _driver(site, driver)
    raise_descriptor_limit()
    shown = Renewed.load(certificates or certificates_of(site), site.name, revoked=revoked_of(site))
    stop = threading.Event()
    with (
        Home(home or home_of(site.path)) as kept,
        logged(kept.path / "join.log"),
        Teller(driver, quiet=quiet) as teller,
        LedgerFile(kept.path / "ledger.jsonl", site.name) as ledger,
        threads_end(),
        _Warnings(teller.say),
    ):
        refusals = Refusals(kept.path / "refusals.jsonl", teller.say)
        computing = device or torch.device("cpu")
        identity = Certified(shown)
        runs = Runs(site, kept.path, refusals, teller, computing, identity)
        host = Host(
            site.name,
            runs.open,
            admit=site.policy.admit,
            on_refusal=refusals.record,
            ledger=ledger,
            max_bytes=site.policy.section.max_message_bytes,
            identity=identity,
            on_restart=runs.restarted,
        )
        for line in describe(site, driver, address, kept.path):
            teller.line(line)
        with ThreadPoolExecutor(1, "dovetail-serve") as pool:
            serving = pool.submit(
                serve,
                host,
                address,
                shown,
                driver=driver,
                stop=stop,
                way=way,
                on_event=teller.event,
            )
            try:
                while not (stopped() or serving.done()):
                    wait([serving], timeout=TICK_S)
                    teller.tick()
            finally:  # also when Ctrl-C ends the wait
                stop.set()
            serving.result()
        teller.stopped(ledger.last_hash)


class _Warnings(logging.Handler):
    """What is warned of certificates while it runs, each once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say
        self._loggers = [logging.getLogger(each.__name__) for each in (credentials, renewal)]

    def __enter__(self) -> _Warnings:
        for each in self._loggers:
            each.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._loggers:
            each.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())


def check_address(address: str) -> None:
    """Refuse what is no address.

    Raises:
        ConfigError: what one looks like.
    """
    if not ADDRESS.fullmatch(address):
        raise ConfigError(
            f"--driver takes HOST:PORT, for example bank.example.org:7443, got {address!r}"
        )


def _driver(site: Site, chosen: str | None) -> str:
    """Whose certificate the driver must show.

    Raises:
        ConfigError: nobody was named, several are, or the policy would refuse them.
    """
    drivers = site.policy.section.drivers
    if chosen is None:
        if drivers is None or len(drivers) != 1:
            named = ", ".join(drivers or ()) or "none"
            raise ConfigError(
                f"{site.where}: say who drives with --name NAME, the name in the driver's "
                f"certificate; policy.drivers names {named}"
            )
        (chosen,) = drivers
    site.policy.check_driver(chosen)
    return certificate_name(chosen)


def describe(site: Site, driver: str, address: str, home: Path) -> Iterator[str]:
    """What the party will and will not agree to; nothing of its table but its size."""
    policy = site.policy.section
    num_columns = len([name for names in site.table.blocks.values() for name in names])
    columns = f", {num_columns} columns" if num_columns else ""
    yield f"{site.name!r} joins {driver!r} at {address}"
    yield f"  table      {site.table.num_rows:,} rows{columns}"
    known = {each.policy for each in site.policy.algorithms.values()}
    agreed = [name for name in policy.algorithms if name in known]
    yield f"  agrees to  {', '.join(agreed) or 'nothing'}"
    if "align" in agreed:
        least = f", with sets of {policy.min_ids:,} ids or more" if policy.min_ids else ""
        most = f"{policy.max_alignments:,} times and with {site.max_ids:,} ids in all a day"
        yield f"  aligns by  {' or '.join(policy.align_modes) or 'no mode'}{least}, {most}"
    for method in methods.every().values():
        for line in method.describe(site, agreed):
            yield f"  {line}"
    if {"apfed", "apfed-d", "tvfl"} & set(agreed):
        yield (
            f"  answers    about {policy.min_rows:,} different samples or more in a message, and "
            f"about one {policy.max_uses:,} times a run"
        )
    yield (
        f"  begins     a run {policy.max_begins:,} time{'s' if policy.max_begins > 1 else ''}, "
        f"{policy.max_runs_per_day:,} runs of {driver!r} in 24 hours, each with a new network"
    )
    if policy.messages is not None:
        yield f"  messages   {', '.join(policy.messages) or 'none'}"
    yield (
        f"  refuses    all else, and messages above {policy.max_message_mb:g} MB or "
        f"{policy.max_rows:,} rows"
    )
    yield (
        f"  allows     a driver's runs {policy.max_memory_mb:,g} MB of memory and "
        f"{policy.max_disk_mb:,g} MB of disk together"
    )
    yield (
        f"  keeps      {home}/ (ledger.jsonl, refusals.jsonl, alignments.json, runs.jsonl, "
        "join.log, secret)"
    )
