"""``dovetail room``: a page for one party, or for the runs of a driver."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.options import LogKind


def room(
    of: Annotated[Path, typer.Argument(metavar="PARTY.toml|RUNS")] = Path("out"),
    driver: Annotated[list[str] | None, typer.Option(metavar="HOST:PORT")] = None,
    run_files: Path = Path("."),
    at_a_time: Annotated[int, typer.Option(min=1)] = 1,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8450,
    tls: Path | None = None,
    identity_header: Annotated[str, typer.Option(metavar="NAME")] = "",
    certificates: Path | None = None,
    site_folder: Path | None = None,
    health: str | None = None,
    log: LogKind = LogKind.TEXT,
    quiet: bool = False,
) -> None:
    """Open a page on this machine, for a party or for a driver's runs.

    dovetail room shop.toml --driver bank.example.org:7443

    A data owner reads, signs or refuses proposals, sees what has left and what was refused, and
    starts and stops answering drivers.

    dovetail room out

    A driver compares runs, reads reports and audits, tries models, and starts and stops runs. Needs
    pip install 'dovetail-fl[serve]'.

    Args:
        of: a party file, or a folder of runs.
        driver: of a party: where its driver listens, as of dovetail join.
        run_files: of runs: the folder of run files that may be trained.
        at_a_time: of runs: how many train at once.
        host: where to listen.
        port: 0 takes a free one.
        tls: folder of ca.pem, NAME.pem, NAME.key: only who has a certificate is let in.
        identity_header: the header in which a reverse proxy says who asks.
    """
    from contextlib import nullcontext

    from dovetail.errors import ConfigError
    from dovetail.lazy import needed
    from dovetail.network.addresses import check_address
    from dovetail.network.logs import json_lines

    if health is not None:
        check_address(health)
    with needed("a room", "'dovetail-fl[serve]'"):
        import python_multipart  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    from dovetail.companions.room.driver import DriverRoom
    from dovetail.companions.room.owner import OwnerRoom
    from dovetail.companions.room.serving import run

    made: OwnerRoom | DriverRoom
    if of.suffix == ".toml":
        made = OwnerRoom(
            of, drivers=driver or (), certificates=certificates, site_folder=site_folder
        )
    elif driver or certificates or site_folder:
        raise ConfigError(
            f"{of} is no party file (.toml), and --driver, --certificates and --site are of one"
        )
    else:
        made = DriverRoom(of, run_files=run_files, at_a_time=at_a_time)
    with json_lines(made.title) if log is LogKind.JSON else nullcontext():
        run(
            made,
            host=host,
            port=port,
            certificates=tls,
            identity_header=identity_header,
            health=health,
            quiet=quiet,
        )
