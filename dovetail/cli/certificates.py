"""``dovetail certificates``: who may speak with whom over the network."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.output import console, print_text
from dovetail.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from dovetail.node.issuing import Folder


#: Why a certificate is revoked, in the words of RFC 5280.
REASONS = (
    "keyCompromise",
    "cACompromise",
    "affiliationChanged",
    "superseded",
    "cessationOfOperation",
    "unspecified",
)


def certificates(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    driver: list[str] | None = None,
    host: list[str] | None = None,
    out: Path = Path("certificates"),
    days: Annotated[int, typer.Option(min=1, max=3650)] = 365,
    request: bool = False,
    sign: Path | None = None,
    renew: bool = False,
    renew_ca: bool = False,
    revoke: bool = False,
    reason: Annotated[
        str, typer.Option(help=f"Why they are revoked: {', '.join(REASONS)}.")
    ] = "keyCompromise",
    serial: str | None = None,
    force: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Make the certificates that parties on several machines know each other by.

    To try things out, everything at once, with the authority (CA) if there is none yet:

    dovetail certificates bank shop --driver bank --host bank.example.org

    Hand certificates/shop/ to the shop: ca.pem, shop.pem and shop.key, all it needs.

    Companies that keep their keys to themselves take three steps. The bank, whose authority signs:

    dovetail certificates bank --driver bank --host bank.example.org

    The shop, whose key never leaves it; it sends shop.csr to the bank:

    dovetail certificates shop --request

    The bank, which sends ca.pem and shop.pem back:

    dovetail certificates shop --sign shop.csr

    Before they end: dovetail certificates shop --renew. Without names: list the certificates.

    After a key was lost: dovetail certificates shop --revoke, and send crl.pem to everybody.
    Running commands read new files within seconds, and close connections of revoked certificates.

    Args:
        names: parties' names; None: list those in --out.
        driver: which of them drives, so that the others connect to it; repeat for several.
        host: an address the driver listens on, for other tools; repeat for several.
        out: the folder of certificates.
        days: how long they are valid.
        request: make my key here, and a request to be signed.
        sign: sign this request of the party named.
        renew: new certificates; the old stay valid until they end.
        renew_ca: a new authority, believed beside the old one.
        revoke: their certificates no longer count: a list for all.
        serial: revoke this certificate only, not all of the party's.
        force: make a new key instead of the one there is.
    """
    from dovetail.network.certificates import host_name
    from dovetail.node import issuing
    from dovetail.node.issuing import Folder

    now = datetime.now(UTC)
    folder, parties = Folder(out), tuple(names or ())
    drivers, hosts = tuple(driver or ()), tuple(host or ())
    ways = {
        "--request": request,
        "--sign": sign,
        "--renew": renew,
        "--renew-ca": renew_ca,
        "--revoke": revoke,
    }
    asked = [way for way, chosen in ways.items() if chosen]
    if len(asked) > 1:
        raise ConfigError(f"give one of {' and '.join(asked)}: each is a step of its own")
    _check_names(parties, drivers, hosts, asked)
    for name in parties:
        folder.of(name)
    for address in hosts:
        host_name(address)
    if serial is not None and not (revoke and len(parties) == 1):
        raise ConfigError("--serial goes with --revoke and one party's name")
    if reason not in REASONS:
        raise ConfigError(f"--reason takes one of {', '.join(REASONS)}, got {reason!r}")
    terms = issuing.Terms(drivers=drivers, hosts=hosts, days=days, force=force, now=now)
    if revoke:
        result = issuing.revoke(folder, parties, reason, days, serial=serial, now=now)
    elif renew_ca:
        result = issuing.renew_authority(folder, now)
    elif request:
        result = {
            "requests": {name: issuing.request(folder, name, force=force) for name in parties}
        }
    elif sign is not None:
        result = issuing.sign(folder, parties, sign, terms)
    elif parties:
        result = issuing.issue(folder, parties, terms, renew=renew)
    else:
        result = issuing.listed(folder)
    if as_json:
        print(json.dumps(result, indent=2))
    elif quiet:
        return
    elif "listed" in result:
        console().print(_table(result, folder, now))
    else:
        print_text("certificates.txt", folder=folder, **result)


def _check_names(
    names: tuple[str, ...], drivers: tuple[str, ...], hosts: tuple[str, ...], asked: list[str]
) -> None:
    way = asked[0] if asked else ""
    if way in ("--request", "--sign", "--renew") and not names:
        raise ConfigError(f"{way} needs the party's name: dovetail certificates shop {way}")
    if way == "--renew-ca" and names:
        raise ConfigError("--renew-ca is for all parties; leave their names out")
    if len(set(names)) < len(names):
        raise ConfigError(f"name each party once, got {list(names)}")
    strangers = [name for name in drivers if name not in names]
    if strangers:
        raise ConfigError(
            f"--driver says {strangers[0]!r}, which is none of the parties named: "
            f"{', '.join(names) or 'none'}"
        )
    if (drivers or hosts) and way == "--revoke":
        raise ConfigError("--revoke takes names only; leave --driver and --host out")
    if drivers and way == "--request":
        raise ConfigError("who drives is said by whoever signs; leave --driver out of --request")
    if hosts and way == "--request":
        raise ConfigError("hosts are said by whoever signs; leave --host out of --request")
    if hosts and not drivers and way != "--renew":
        raise ConfigError("--host is where a driver listens; say who drives with --driver NAME")


def _table(result: dict[str, Any], folder: Folder, now: datetime) -> Table:
    from dovetail.api.shown import lined_table

    listed = dict(result["listed"])
    if "authority" in result:
        listed = {"ca": {"driver": None, "hosts": [], **result["authority"]}, **listed}
    rows = []
    for name, row in listed.items():
        may = "sign" if name == "ca" else "listen and dial" if row["driver"] else "dial"
        expires = row["expires"]
        if expires is None:
            may, expires = "", "waits for a certificate"
        elif expires <= f"{now:%Y-%m-%d}":
            expires += " (expired)"
        rows.append((name, may, ", ".join(row["hosts"]), expires))
    head = ("name", "may", "hosts", "expires")
    return lined_table(head, rows, left=range(4), title=f"Certificates in {folder.path}")
