"""``dovetail align``: which rows are the same sample, found privately, kept at each home."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from dovetail.cli.output import console
from dovetail.errors import ConfigError
from dovetail.experiment.grid import read_run
from dovetail.experiment.runfile import RunFile, load_run
from dovetail.face.talk import talk_of
from dovetail.methods.validation import validate
from dovetail.site.driver import stream_driver
from dovetail.site.engines import StreamSection
from dovetail.site.overlaps import aligned_here, counted_here, starter_of, with_driver
from dovetail.site.partyfile import open_site, open_sites


@dataclass(frozen=True)
class Elsewhere:
    """What the command line says of partners on other machines."""

    partners: str | None = None
    listen: str | None = None
    certificates: Path | None = None
    wait_s: float | None = None
    timeout_s: float | None = None

    def section(
        self,
        run: RunFile | None,
        paths: tuple[Path, ...],
        initiator: str | None,
        *,
        where: str = "dovetail align",
    ) -> StreamSection | None:
        """Where to listen and for whom; None if all parties are here.

        Raises:
            ConfigError: half of what it takes, or what does not go with it.
        """
        given = {
            "--partners": self.partners,
            "--listen": self.listen,
            "--certificates": self.certificates,
            "--wait": self.wait_s,
            "--timeout": self.timeout_s,
        }
        said = [name for name, value in given.items() if value is not None]
        if run is not None and said:
            raise ConfigError(f"a run file says in [engine] who is elsewhere; leave {said[0]} out")
        section = None if run is None or run.engine.kind != "stream" else run.engine
        if said:
            if self.partners is None or self.listen is None:
                raise ConfigError(
                    f"{said[0]} is for partners on other machines: give --partners and --listen, "
                    "for example --partners shop --listen 0.0.0.0:7443"
                )
            values = {
                "kind": "stream",
                "listen": self.listen,
                "partners": tuple(name.strip() for name in self.partners.split(",")),
                "certificates": None if self.certificates is None else str(self.certificates),
                "wait_s": self.wait_s,
                **({} if self.timeout_s is None else {"timeout_s": self.timeout_s}),
            }
            section = validate(StreamSection, values, where=where)
        if section is not None and len(paths) > 1:
            raise ConfigError("name one party file, the driver's own; --partners names the others")
        if section is not None and initiator is not None:
            raise ConfigError("the driver starts; leave --initiator out")
        return section


def run_align(
    paths: tuple[Path, ...],
    *,
    elsewhere: Elsewhere,
    initiator: str | None,
    count: bool,
    workers: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Align these parties, keep each one's part at its home, print the overlaps."""
    show = not (quiet or as_json)
    run = load_run(paths[0]) if len(paths) == 1 and "party" not in read_run(paths[0]) else None
    if run is not None:
        if run.parties is None:
            raise ConfigError(f"{paths[0]} has no party files to align; it deals out one data set")
        paths = tuple(map(Path, run.parties))
    section = elsewhere.section(run, paths, initiator)
    if section is not None:
        with stream_driver(open_site(paths[0]), section, talk=talk_of(shown=show)) as driver:
            result = with_driver(driver, count=count, workers=workers)
    else:
        sites = open_sites(paths)
        if len(sites) < 2:
            raise ConfigError(
                "name two party files or more: dovetail align bank.toml shop.toml; or where the "
                "others are elsewhere: dovetail align bank.toml --partners shop --listen HOST:PORT"
            )
        starter = initiator or starter_of(sites)
        if starter not in sites:
            raise ConfigError(f"--initiator is {starter!r}; parties are {sorted(sites)}")
        act = counted_here if count else aligned_here
        result = act(sites, starter, workers=workers, talk=talk_of(shown=show))
    if as_json:
        print(json.dumps(result, indent=2))
    elif not quiet:
        console().print(_table(result))
        console().print(_learned(result), highlight=False, markup=False, soft_wrap=True)


def _table(result: dict[str, Any]) -> Table:
    starter = result["initiator"]
    table = Table(title=Text(f"Shared with {starter!r}"), title_justify="left")
    for name, justify in (("party", "left"), ("rows", "right"), ("shared", "right"), ("", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    own = result["rows"][starter]
    table.add_row(Text(starter), f"{own:,}", "", "")
    for name, shared in result["shared"].items():
        table.add_row(Text(name), f"{result['rows'][name]:,}", f"{shared:,}", f"{shared / own:.1%}")
    if "shared_by_all" in result:
        shared = result["shared_by_all"]
        table.add_row("all of them", "", f"{shared:,}", f"{shared / own:.1%}")
    return table


def _learned(result: dict[str, Any]) -> str:
    """What each side knows now that it did not know before."""
    starter = result["initiator"]
    if result["mode"] == "cardinality":
        return (
            f"{starter!r} has learned how many rows each partner has and shares; each partner how "
            f"many rows {starter!r} has. Nobody has learned which."
        )
    files = ", ".join(result["files"].values())
    if len(result["files"]) == 1:
        kept = f"Each party keeps its own part at home; {starter!r}: {files}"
    else:
        kept = f"Each party's part is beside its party file: {files}"
    return (
        f"{starter!r} has learned which of its rows each partner has; each partner which of its "
        f"rows {starter!r} has. Nothing else (docs/alignment.md).\n{kept}\n"
        "Next: dovetail train RUN"
    )
