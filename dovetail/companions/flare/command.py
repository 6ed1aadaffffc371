"""Run on NVIDIA FLARE: as a job of a federation that has it, or of one here."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from dovetail.cli import precheck
from dovetail.cli.command import documented
from dovetail.cli.options import check_one_way
from dovetail.errors import ConfigError

flare = typer.Typer(
    name="flare",
    help=(
        "Run on NVIDIA FLARE: as a job of a federation that has it, or of one here.\n\n"
        "Needs pip install 'dovetail-fl[flare]'. See docs/flare.md."
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)


@flare.command("export")
@documented
def flare_export(
    run: Path,
    out: Annotated[Path, typer.Option()],
    recipe: str | None = None,
    overrides: list[str] | None = None,
    seed: list[int] | None = None,
    resume: Annotated[str, typer.Option(metavar="JOB")] = "",
    align: bool = False,
    proposal: Path | None = None,
    quiet: bool = False,
) -> None:
    """Write a run as an NVFlare job folder, to be submitted with NVFlare's own tools.

    The job has the run file and names of classes; no code, no data and no path of this machine.
    Each site reads its own party file (dovetail flare site), and answers what its policy allows.

    Args:
        run: a run file (TOML) with [engine] kind = "flare".
        out: the job's folder; its name is the job's.
        resume: go on with the run of this job, by its id.
    """
    precheck.check_run(run, overrides)
    from dovetail.companions.flare.export import write_job
    from dovetail.companions.flare.section import FlareSection
    from dovetail.runs.proposing import read_agreed
    from dovetail.runs.runfile import load_run

    _need_nvflare()
    run_file = load_run(run, recipe=recipe, overrides=tuple(overrides or ()))
    if not isinstance(run_file.engine, FlareSection):
        raise ConfigError(
            f'{run} is no run of an NVFlare federation; write [engine] kind = "flare" and '
            'partners = ["shop"], or try it on this machine: dovetail flare simulate RUN'
        )
    seeds = tuple(seed or ())
    agreed = read_agreed(run_file, seeds or run_file.all_seeds(), proposal, where=str(run))
    write_job(run_file, out, seeds=seeds, resume=resume, align=align, agreed=agreed)
    if not quiet:
        sites = ", ".join(run_file.engine.site_of().values())
        print(f"Job folder: {out} (server, {sites})")
        print(f"Next: nvflare job submit -j {out} --startup-kit ADMIN_KIT")


@flare.command("site")
@documented
def flare_site(
    folder: Path,
    party: Path | None = None,
    driver: str | None = None,
    runs: Path | None = None,
    quiet: bool = False,
) -> None:
    """Set which party an NVFlare site is, and let it run Dovetail's jobs.

    Writes local/dovetail.toml, and adds the classes that Dovetail's jobs name to class_allow_list
    in local/resources.json.

    Args:
        folder: a site's or the server's folder, with startup/ and local/.
        party: its party file; at the server that of who has the labels.
        driver: at a site: who runs the server; None: the one in policy.drivers.
        runs: at the server: where runs are kept; None: FOLDER/dovetail-runs.
    """
    from dovetail.companions.flare.site import loose, prepare_site
    from dovetail.node.partyfile import open_site

    site: dict[str, str | None] = {"driver": driver}
    if party is not None:
        open_site(party)  # its mistakes are told now
        site["party"] = str(party.resolve())
    if runs is not None:
        site["runs"] = str(runs.resolve())
    for path in prepare_site(folder, site):
        if not quiet:
            print(f"wrote {path}")
    for line in loose(folder):
        print(f"note: {line}", file=sys.stderr)
    if not quiet:
        print("Next: restart the site, so that NVFlare reads its resources again")


@flare.command("simulate")
@documented
def flare_simulate(
    run: Path,
    out: Path | None = None,
    recipe: str | None = None,
    overrides: list[str] | None = None,
    seed: list[int] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    align: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Run it as a job of an NVFlare federation on this machine: server and sites as processes.

    Made with `nvflare provision`, with mutual TLS, and gone at the end. Weights are those of
    `dovetail train` with the same seed. Of a run file with [data], each party's table and file are
    first split, into OUT-parties.

    Args:
        run: a run file (TOML), with every party's file or with [data].
        resume: go on with what was stopped.
    """
    check_one_way(resume=resume, overwrite=overwrite)
    precheck.check_run(run, overrides)
    from dovetail.api.scores import Scores
    from dovetail.cli.output import print_line, show
    from dovetail.companions.flare.export import simulate, simulated
    from dovetail.files import run_folder, run_name
    from dovetail.runs.runfile import load_run
    from dovetail.runs.splitting import deal
    from dovetail.runs.train import check_folder, check_free, check_participation

    _need_nvflare()
    loaded = load_run(run, recipe=recipe, overrides=tuple(overrides or ()))
    out = out or run_folder(run, recipe)
    if loaded.data is not None:
        loaded = deal(loaded, out.with_name(f"{out.name}-parties"), where=str(run))
    run_file, files, driver = simulated(run, loaded)
    check_folder(out, run)
    if not (resume or overwrite):
        numbers = tuple(seed or ()) or run_file.all_seeds()
        check_free(out, *(out / f"seed-{number}" for number in numbers))

    def show_line(text: str) -> None:
        if not (quiet or as_json):
            print(f"dovetail: {text}", file=sys.stderr, flush=True)

    simulate(
        run_file,
        files,
        driver,
        out,
        name=run_name(run),
        seeds=tuple(seed or ()),
        resume=resume,
        align=align,
        print_line=show_line,
    )
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    _print_missed(result)
    if as_json:
        print(json.dumps(result, indent=2))
    elif not quiet:
        show(Scores(result))
        print_line(f"Run folder: {out}")
    check_participation(run_file, out, result)


def _need_nvflare() -> None:
    """Refuse to go on without NVFlare.

    Raises:
        ConfigError: it is not installed.
    """
    if find_spec("nvflare") is None:
        raise ConfigError(
            "dovetail flare needs NVIDIA FLARE, which is not installed here: "
            "pip install 'dovetail-fl[flare]'"
        )


def _print_missed(result: Mapping[str, Any]) -> None:
    from dovetail.methods.outcome import missed_text

    for party, missed in result.get("missed", {}).items():
        text = missed_text(party, missed)
        print(f"dovetail: {text}; first in {missed['first']}", file=sys.stderr)
