"""``dovetail flare``: a run as a job of an NVFlare federation, or of one on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail.experiment.flarerun import simulate, simulated, write_job
from dovetail.experiment.grid import run_name
from dovetail.experiment.runfile import load_run
from dovetail.site import flaresite
from dovetail.site.engines import FlareSection
from dovetail.site.partyfile import open_site


def need_nvflare() -> None:
    """Refuse to go on without NVFlare.

    Raises:
        ConfigError: it is not installed.
    """
    if find_spec("nvflare") is None:
        raise ConfigError(
            "dovetail flare needs NVIDIA FLARE, which is not installed here: "
            "pip install 'dovetail[flare]'"
        )


# --- Export ---------------------------------------------------------------------------------------


def run_export(
    path: Path,
    *,
    out: Path,
    recipe: str | None,
    overrides: tuple[str, ...],
    seeds: tuple[int, ...],
    resume: str,
    align: bool,
    quiet: bool,
) -> None:
    """Write a run's job folder."""
    need_nvflare()
    run = load_run(path, recipe=recipe, overrides=overrides)
    if not isinstance(run.engine, FlareSection):
        raise ConfigError(
            f'{path} is no run of an NVFlare federation; write [engine] kind = "flare" and '
            'partners = ["shop"], or try it on this machine: dovetail flare simulate RUN'
        )
    write_job(run, out, seeds=seeds, resume=resume, align=align)
    if not quiet:
        sites = ", ".join(run.engine.site_of().values())
        print(f"Job folder: {out} (server, {sites})")
        print(f"Next: nvflare job submit -j {out} --startup-kit ADMIN_KIT")


# --- A site ---------------------------------------------------------------------------------------


def run_site(
    folder: Path, *, party: Path | None, driver: str | None, runs: Path | None, quiet: bool
) -> None:
    """Tell a site, or the server, which party it is, and let it run Dovetail's jobs."""
    said: dict[str, str | None] = {"driver": driver}
    if party is not None:
        open_site(party)  # its mistakes are told now
        said["party"] = str(party.resolve())
    if runs is not None:
        said["runs"] = str(runs.resolve())
    for path in flaresite.prepare_site(folder, said):
        if not quiet:
            print(f"wrote {path}")
    if not quiet:
        print("Next: restart the site, so that NVFlare reads its resources again")


# --- One machine ----------------------------------------------------------------------------------


def run_simulate(
    path: Path,
    *,
    out: Path | None,
    recipe: str | None,
    overrides: tuple[str, ...],
    seeds: tuple[int, ...],
    resume: bool,
    align: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run it as a job of a federation of processes here, each with its own party file."""
    need_nvflare()
    run, files, driver = simulated(path, load_run(path, recipe=recipe, overrides=overrides))
    from dovetail.cli.output import console, result_table
    from dovetail.experiment.train import check_folder

    out = out or Path("out") / (run_name(path) + (f"-{recipe}" if recipe else ""))
    if (out / "run.toml").resolve() == path.resolve():
        raise ConfigError(f"{out} holds the run file {path} itself; name another with --out")
    check_folder(out)

    def say(text: str) -> None:
        if not (quiet or as_json):
            print(f"dovetail: {text}", file=sys.stderr, flush=True)

    simulate(
        run,
        files,
        driver,
        out,
        name=run_name(path),
        seeds=seeds,
        resume=resume,
        align=align,
        say=say,
    )
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    _tell_missed(result)
    if as_json:
        print(json.dumps(result, indent=2))
    elif not quiet:
        console().print(result_table(result))
        console().print(f"Run folder: {out}", highlight=False, markup=False, soft_wrap=True)


def _tell_missed(result: Mapping[str, Any]) -> None:
    for party, missed in result.get("missed", {}).items():
        unit = "steps" if "steps" in missed else "rounds"
        print(
            f"dovetail: party {party!r} was left out of {missed[unit]} of {missed['of']} {unit}; "
            f"first in {missed['first']}",
            file=sys.stderr,
        )
