"""A party goes online, and answers drivers until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import torch

from dovetail import methods
from dovetail.errors import NetworkError
from dovetail.methods.base import Site
from dovetail.network.client import AS_EVER, Way, serve
from dovetail.network.retry import since_start_s
from dovetail.node.hosting import opened_home, shown_by
from dovetail.node.site_folder import site_folder_of
from dovetail.node.status_line import StatusLine

#: Seconds until a signal is noticed, and from one look of the status line to the next.
TICK_S = 0.2


def serve_site(
    site: Site,
    addresses: Mapping[str, str],
    *,
    stopped: Callable[[], bool],
    ways: Mapping[str, Way] | None = None,
    certificates: Path | None = None,
    site_folder: Path | None = None,
    device: torch.device | None = None,
    quiet: bool = False,
    health: str | None = None,
) -> None:
    """Serve one driver or several until told to stop.

    They share the site: its ledger, its secret, and what the policy counts. Messages are answered
    one at a time, so that what one driver trains is what it would be without the others.

    Args:
        site: the party.
        addresses: driver's name, the one in its certificate -> where it listens; see
            ``drivers_of``.
        stopped: asked again and again whether to stop.
        ways: driver's name -> how it is reached; as the environment says, of those that it lacks.
        certificates: their folder; None: ``certificates/NAME`` beside the party file.
        site_folder: what the party keeps; None: ``STEM.site`` beside the party file.
        device: where it computes.
        quiet: print nothing.
        health: "HOST:PORT" where it answers probes and Prometheus; None: nowhere.

    Raises:
        ConfigError: an address, driver, certificate or site that will not do.
        NetworkError: see ``dialling.serve``; of the last driver that is left.
    """
    stop = threading.Event()
    shown = shown_by(site, certificates)
    with (
        opened_home(
            site, site_folder or site_folder_of(site.path), shown, addresses, device, quiet
        ) as opened,
        opened.probes(health),
        ThreadPoolExecutor(len(addresses), "dovetail-serve") as pool,
    ):
        for line in describe(site, addresses, opened.path):
            opened.teller.line(line)
        opened.teller.line(f"  started    in {since_start_s():.1f} s")
        serving = {
            pool.submit(
                serve,
                opened.host,
                address,
                shown,
                driver=driver,
                stop=stop,
                way=(ways or {}).get(driver, AS_EVER),
                on_event=partial(opened.teller.event, driver=driver),
            ): driver
            for driver, address in addresses.items()
        }
        try:
            _wait(serving, stopped, opened.teller)
        finally:  # also when Ctrl-C ends the wait
            stop.set()


def _wait(
    serving: dict[Future[None], str], stopped: Callable[[], bool], teller: StatusLine
) -> None:
    """Wait until told to stop; a driver that ends its line for good ends no other's.

    Raises:
        NetworkError: why the last line has ended.
    """
    while not stopped():
        ended, _ = wait(serving, timeout=TICK_S, return_when=FIRST_COMPLETED)
        for each in ended:
            driver = serving.pop(each)
            if not serving:
                each.result()
                return
            error = each.exception()
            if error is not None and not isinstance(error, NetworkError):
                raise error
            teller.print(f"no more joined to {driver}: {error}")
        teller.tick()


def describe(site: Site, addresses: Mapping[str, str], site_folder: Path) -> Iterator[str]:
    """Sentences on what the party will and will not agree to; nothing of its table but its size."""
    policy = site.policy.section
    num_columns = len([name for names in site.table.blocks.values() for name in names])
    columns = f", {num_columns} columns" if num_columns else ""
    for driver, address in addresses.items():
        yield f"{site.name!r} joins {driver!r} at {address}"
    whose = "all drivers together" if policy.together else " or of ".join(map(repr, addresses))
    yield f"  table      {site.table.num_rows:,} rows{columns}"
    known = {each.policy for each in site.policy.algorithms.values()}
    agreed = [name for name in policy.algorithms if name in known]
    yield f"  agrees to  {', '.join(agreed) or 'nothing'}"
    if "align" in agreed:
        least = f", with sets of {policy.min_ids:,} ids or more" if policy.min_ids else ""
        most = f"{policy.max_alignments:,} times and with {site.max_ids:,} ids in all a day"
        yield f"  aligns by  {' or '.join(policy.align_modes) or 'no mode'}{least}, {most}"
    for method in methods.every().values():
        for line in method.proposed.describe(site, agreed):
            yield f"  {line}"
    if {"apfed-mixed", "apfed-d", "tvfl"} & set(agreed):
        yield (
            f"  answers    about {policy.min_rows:,} different samples or more in a message, and "
            f"about one {policy.max_uses:,} times a run"
        )
    yield (
        f"  starts     {policy.max_runs_per_day:,} runs of {whose} in 24 hours, each "
        f"{'once' if policy.max_begins == 1 else f'{policy.max_begins:,} times'}"
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
        f"  keeps      {site_folder}/ (ledger.jsonl, refusals.jsonl, site.sqlite, join.log, secret)"
    )
