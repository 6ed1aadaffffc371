"""Parties on other machines: a driver listens for them, and each of them joins."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from dovetail.alignment.stored import load_rows
from dovetail.api.party import Party
from dovetail.errors import AlignmentError, ConfigError
from dovetail.methods.base import SILENT, Progress, Site
from dovetail.methods.validation import validate
from dovetail.models.computing import device as device_of
from dovetail.network.addresses import drivers_of
from dovetail.node.driver import Coordinator, Driver
from dovetail.node.engines import ElsewhereSection, StreamSection
from dovetail.node.join import serve_site
from dovetail.node.reach import coordinator, party_driver

if TYPE_CHECKING:
    from dovetail.api.settings import ListenKeys


class Partners:
    """Partners who connect, while the context is open; made by ``listen``.

    The lines open with the first ``fit``, when it is known who drives, and stay open: another
    ``fit`` by the same party need not wait, or align, again.
    """

    def __init__(self, section: ElsewhereSection) -> None:
        self.section = section
        self._stack = ExitStack()
        self._open: tuple[Site | None, Driver | Coordinator] | None = None

    def __enter__(self) -> Partners:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._open = None
        self._stack.close()

    def __deepcopy__(self, memo: Any) -> Partners:
        """Itself: scikit-learn's ``clone`` copies what an estimator is given."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without its connections: unpickled it listens again, when it is needed."""
        return Partners, (self.section,)

    def __repr__(self) -> str:
        return f"<partners {', '.join(self.section.partners)} at {self.section.where}>"

    # --- For dovetail.fit ---------------------------------------------------------------------

    @contextmanager
    def driving(
        self, site: Site | None, *, resume: bool, talk: Progress = SILENT
    ) -> Iterator[Driver | Coordinator]:
        """Whoever drives: the party that is here, or a coordinator without data."""
        if self._open is not None and not _is_same(self._open[0], site):
            self.close()
        if self._open is None:
            driver: Driver | Coordinator
            if site is None:
                driver = coordinator(self.section, talk=talk)
            else:
                driver = party_driver(site, self.section, talk=talk)
            self._stack.enter_context(driver)
            self._open = site, driver
            if isinstance(driver, Driver) and not resume:
                _forget_other_rows(driver)
        yield self._open[1]


def _is_same(before: Site | None, now: Site | None) -> bool:
    if before is None or now is None:
        return before is now
    return before.name == now.name and before.table is now.table


def _forget_other_rows(driver: Driver) -> None:
    """Align again where what was kept is of other rows or partners: a notebook's rows change."""
    path = driver.stored_path
    if not path.exists():
        return
    try:
        stored = load_rows(path, driver.name, driver.site.table.ids)
    except AlignmentError:
        path.unlink()
        return
    if not set(driver.partners) <= {*stored.alignment().rows}:
        path.unlink()


def listen(
    address: str,
    partners: Sequence[str],
    *,
    certificates: str | Path | None = None,
    **keys: Unpack[ListenKeys],
) -> Partners:
    """Partners on other machines, for ``fit(..., partners=...)``.

        with dt.listen("0.0.0.0:7443", ["lab"]) as partners:
            run = dt.fit(dt.APFed(), [clinic], partners=partners)

    Args:
        address: where they connect, HOST:PORT.
        partners: their names, as their certificates have them.
        certificates: folder of the driver's own; None: ``certificates/NAME``.
        keys: others of [engine] of a run file. ``name``: of a coordinator without data.
            ``precision``: how float32 tensors travel: "float32", "bfloat16", ... ``wait_s``: how
            long they are waited for, else until they come. ``grace_s``: how long a step waits for
            one that is lost (5). ``timeout_s``: how long an answer may take (30).
            ``max_message_mb``: of an answer (256).

    Raises:
        ConfigError: values that do not fit.
    """
    values: dict[str, Any] = {
        "kind": "stream",
        "listen": address,
        "partners": [partners] if isinstance(partners, str) else list(partners),
        **keys,
    }
    if certificates is not None:
        values["certificates"] = str(Path(certificates).absolute())
    _quiet_grpc()
    return Partners(validate(StreamSection, values, where="dovetail.listen"))


def join(
    party: Party | str | Path,
    address: str,
    *,
    driver: str | None = None,
    certificates: str | Path | None = None,
    site_folder: str | Path | None = None,
    device: str = "cpu",
    stop: threading.Event | None = None,
    quiet: bool = False,
) -> None:
    """Go online as a party, and answer one driver, until ``stop`` is set or Ctrl-C.

    Only what the party's policy allows is answered. What leaves it is counted in its ledger.

    Args:
        party: who joins; or its party file.
        address: where the driver listens, HOST:PORT.
        driver: its name, as its certificate has it; None: the only one that the policy names.
        certificates: folder of the party's own; None: ``certificates/NAME``.
        site_folder: what the party keeps; None: ``NAME.site``.
        device: where it computes.
        stop: ends it, when somebody sets it.
        quiet: print nothing.

    Raises:
        ConfigError: an address, driver, certificate or site that will not do.
        NetworkError: the driver cannot be believed, or refuses this party.
    """
    site = party.site if isinstance(party, Party) else Party.read(party).site
    ended = stop or threading.Event()
    _quiet_grpc()
    try:
        serve_site(
            site,
            drivers_of(site.where, site.policy.section.drivers, (address,), driver),
            stopped=ended.is_set,
            certificates=None if certificates is None else Path(certificates),
            site_folder=None if site_folder is None else Path(site_folder),
            device=device_of(device),
            quiet=quiet,
        )
    except KeyboardInterrupt:
        return


def _quiet_grpc() -> None:
    """Turn gRPC's log lines off: our errors report what they say."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def check_here(partners: Partners, sites: Sequence[Site], *, coordinated: bool) -> Site | None:
    """The party that drives, of those that are here.

    Raises:
        ConfigError: too many or too few.
    """
    there = ", ".join(partners.section.partners)
    if coordinated:
        if sites:
            raise ConfigError(
                f"dovetail.fit: a coordinator without data drives this method, and every party "
                f"joins it ({there}); give parties=[]"
            )
        return None
    if len(sites) != 1:
        raise ConfigError(
            f"dovetail.fit: with partners elsewhere ({there}) give the one party that drives, the "
            f"one with labels; got {[site.name for site in sites]}"
        )
    return sites[0]
