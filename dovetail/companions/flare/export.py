"""A run as a job of an NVFlare federation: its folder, and such a federation on this machine."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from dovetail.companions.flare import site as site_files
from dovetail.companions.flare.section import FlareSection
from dovetail.data.wording import count_text
from dovetail.errors import ConfigError, NetworkError
from dovetail.methods import coordinated
from dovetail.methods.aligning import label_owner
from dovetail.methods.base import Site
from dovetail.node.driver import Reach
from dovetail.node.partyfile import open_sites
from dovetail.node.proposal import Proposal, Signature, signature_path
from dovetail.runs.runfile import RunFile, check_run
from dovetail.runs.search import check_no_job

#: A job's name and its folder's, as NVFlare takes them.
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")

#: A site's name, as NVFlare takes it; its own names are none.
_SITE = re.compile(r"(?!server$|localhost$)[A-Za-z0-9][A-Za-z0-9-]{0,61}")

#: In the server's part of a job: the proposal that it is of; beside it, what parties say of it.
PROPOSAL = "proposal.json"

#: NVFlare's parts of a job have so many seconds to begin: reading a large table takes some.
_SYNC_S = 600

#: NVFlare would end a job so long after a site's process of it has; the method decides who is
#: missed, and whether it can go on without.
NEVER_S = 1e9


def write_job(
    run: RunFile,
    out: Path,
    *,
    seeds: tuple[int, ...] = (),
    resume: str = "",
    align: bool = False,
    agreed: tuple[Proposal, Mapping[str, Signature]] | None = None,
) -> None:
    """The run as an NVFlare job: names of classes and the run file, no code.

    ``agreed`` is the proposal that it is of, and what all its parties say of it.

    Raises:
        ConfigError: a folder that holds something else, or a name that NVFlare does not take.
    """
    assert isinstance(run.engine, FlareSection)
    check_no_job(run)
    if not _NAME.fullmatch(out.name):
        raise ConfigError(
            f"--out is also the job's name, of letters, digits, dots and dashes; got {out.name!r}"
        )
    if out.exists() and not (out / "meta.json").exists() and (out.is_file() or any(out.iterdir())):
        raise ConfigError(f"{out} holds other files; name an empty folder with --out")
    sites = list(run.engine.site_of().values())
    server, at_sites = out / "app_server" / "config", out / "app_sites" / "config"
    for folder in (server, at_sites):
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.mkdir(parents=True)
    (server / "run.toml").write_text(tomli_w.dumps(job_settings(run, seeds)), encoding="utf-8")
    if agreed is not None:
        proposal, signatures = agreed
        (server / PROPOSAL).write_text(proposal.text, encoding="utf-8")
        for party, signature in signatures.items():
            signature_path(server / PROPOSAL, party).write_text(signature.text, encoding="utf-8")
    meta = {
        "name": out.name,
        "resource_spec": {},
        "min_clients": len(sites),
        "mandatory_clients": sites,
        "deploy_map": {"app_server": ["server"], "app_sites": sites},
    }
    controller = {"server_obj_id": "_server", "sync_task_timeout": _SYNC_S}
    driver = {"resume": resume, "align": align}
    _write_json(out / "meta.json", meta)
    _write_json(
        server / "config_fed_server.json",
        {
            "format_version": 2,
            "dead_client_grace_period": NEVER_S,
            "workflows": [
                {"id": "controller", "path": site_files.CONTROLLER, "args": controller},
            ],
            "components": [{"id": "_server", "path": site_files.DRIVER, "args": driver}],
        },
    )
    executor = {"path": site_files.EXECUTOR, "args": {"client_obj_id": "_client"}}
    _write_json(
        at_sites / "config_fed_client.json",
        {
            "format_version": 2,
            "executors": [{"tasks": ["*"], "executor": executor}],
            "components": [{"id": "_client", "path": site_files.PARTY, "args": {}}],
        },
    )


def job_settings(run: RunFile, seeds: tuple[int, ...] = ()) -> dict[str, Any]:
    """Settings of a job's run file: those of the run, without paths of this machine."""
    if seeds:
        run = run.model_copy(update={"seed": None, "seeds": seeds})
    return run.model_dump(
        mode="json",
        exclude_unset=True,
        exclude_none=True,
        exclude={"parties", "sha256", "recipes", "track"},
    )


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


# --- One machine ----------------------------------------------------------------------------------


def simulate(
    run: RunFile,
    files: Mapping[str, Path],
    driver: str,
    out: Path,
    *,
    name: str,
    seeds: tuple[int, ...],
    resume: bool,
    align: bool,
    print_line: Callable[[str], None],
) -> None:
    """Run it as a job of a federation of processes here, each with its own party file.

    Raises:
        NetworkError: the job came to nothing, and why.
    """
    from dovetail.companions.flare.federation import SERVER, FlareFederation, provision

    assert isinstance(run.engine, FlareSection)
    with tempfile.TemporaryDirectory(prefix="dovetail-flare-") as temporary:
        folder = Path(temporary)
        site_of = run.engine.site_of()
        print_line(f"NVFlare starts a server and {count_text(len(site_of), 'site')} here")
        kits = provision(folder, list(site_of.values()))
        for party_name, site in site_of.items():
            party = {"party": str(files[party_name].resolve()), "driver": driver}
            site_files.prepare_site(kits / site, party)
        driver_file = files.get(driver)
        site_files.prepare_site(
            kits / SERVER,
            {
                "party": None if driver_file is None else str(driver_file.resolve()),
                "site": None if driver_file is not None else str(Path(f"{driver}.site").resolve()),
                "run": str(out.resolve()),
            },
        )
        job = folder / (name if _NAME.fullmatch(name) else "run")
        write_job(run, job, seeds=seeds, resume="this" if resume else "", align=align)
        with FlareFederation(kits) as federation:
            federation.start(SERVER, *site_of.values())
            federation.ready(list(site_of.values()))
            number = federation.submit(job)
            print_line(
                f"job {number} is submitted; {out}/metrics.jsonl has a line per epoch or round"
            )
            status = federation.wait(number, look=_HowFar(out, print_line))
            if status != "FINISHED:COMPLETED":
                raise NetworkError(_why(federation.fetch(number, folder / "fetched"), status))


class _HowFar:
    """Says after 10, 20, 40, ... seconds how far a run that others write has come.

    Args:
        out: its folder, or that of its seeds.
        print_line: told.
    """

    def __init__(self, out: Path, print_line: Callable[[str], None]) -> None:
        self._out = out
        self._print = print_line
        self._since, self._began = time.time(), time.monotonic()
        self._next_s = 10.0

    def __call__(self) -> None:
        seconds = time.monotonic() - self._began
        if seconds < self._next_s:
            return
        self._next_s = min(2 * self._next_s, self._next_s + 600)
        self._print(f"after {seconds:.0f} s: {self._far()}")

    def _far(self) -> str:
        progress = "no epoch or round is done yet"
        written = [(path.stat().st_mtime, path) for path in self._out.rglob("metrics.jsonl")]
        for when, path in sorted(written):
            if when < self._since:  # of a run that was here before
                continue
            for text in path.read_text(encoding="utf-8").splitlines(keepends=True):
                line = json.loads(text) if text.endswith("\n") else {}
                for unit in {"epoch", "round"} & line.keys():
                    progress = f"{unit} {line[unit]} of {line['variant']} is done"
        return progress


def not_here(*_: object) -> Reach:
    """No lines: a job's driver is started by its federation.

    Raises:
        ConfigError: always, with what to do instead.
    """
    raise ConfigError(
        "the run is a job of an NVFlare federation: dovetail flare export RUN --out DIR makes "
        "it, and dovetail flare simulate RUN runs it here"
    )


def simulated(path: Path, run: RunFile) -> tuple[RunFile, dict[str, Path], str]:
    """A run as a job here, each party's file, and who drives.

    Raises:
        ConfigError: it has no party files, or not one for every partner.
    """
    if run.parties is None:
        raise ConfigError(
            f"{path} names no party files; to run it here as an NVFlare job each party needs one: "
            "parties = [...] (examples/make_parties.py deals a data set out to files)"
        )
    if run.engine.joined:
        raise ConfigError(
            f'{path} is a run over "{run.engine.kind}"; write [engine] kind = "flare"'
        )
    sites: dict[str, Site] = open_sites(tuple(Path(file) for file in run.parties))
    section = run.engine
    if coordinated(run.method):
        driver = (section.name if isinstance(section, FlareSection) else None) or "coordinator"
        partners = list(sites)
    else:
        driver = label_owner(sites, run.active, where=str(path))
        partners = [name for name in sites if name != driver]
    if isinstance(section, FlareSection):
        partners = list(section.partners)
    for name in partners:
        if name not in sites:
            raise ConfigError(f"{path}: parties has no file of {name!r}, which is a partner")
    engine: dict[str, Any] = section.model_dump(exclude_unset=True, exclude_none=True)
    named = {
        name: f"site-{index}" for index, name in enumerate(partners, 1) if not _SITE.fullmatch(name)
    }
    engine |= {"kind": "flare", "partners": partners, "sites": named}
    settings = job_settings(run) | {"engine": engine}
    files = {name: site.path for name, site in sites.items()}
    return check_run(settings, where=str(path)), files, driver


def _why(fetched: Path, status: str) -> str:
    """Why a job came to nothing."""
    cause = fetched / "dovetail-failed.txt"
    if cause.exists():
        return cause.read_text(encoding="utf-8").strip()
    log = fetched / "error_log.txt"
    lines = log.read_text(encoding="utf-8").strip().splitlines()[-1:] if log.exists() else []
    return f"the job has ended {status}{': ' if lines else ''}{''.join(lines)}"
