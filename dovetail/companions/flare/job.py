"""The two parts of a Dovetail job on NVIDIA FLARE: ``Driver`` at the server, ``Party`` at a site.

A job has no code and no settings of a party: it names these two classes, which every site has
installed and must list in its ``class_allow_list``, and brings a run file. What a site holds and
agrees to is in its own party file, which its own ``local/dovetail.toml`` names:

    SITE/local/dovetail.toml       party = "/srv/shop/shop.toml"
                                   driver = "bank"      who runs the server; policy.drivers knows it
    SERVER/local/dovetail.toml     party = "/srv/bank/bank.toml"    of methods that a party drives
                                   runs = "/srv/bank/runs"          run folders, one for each job

The driver of APFed is the active party, which has the labels; so the server of a federation that
runs APFed is the active party's own, and reads its table there. A coordinator needs no table, and
its server no ``dovetail.toml``.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey, FLMetaKey, WorkspaceConstants
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.collab import collab

from dovetail.companions.flare import calls as flare
from dovetail.companions.flare.calls import Answers
from dovetail.companions.flare.export import PROPOSAL
from dovetail.companions.flare.section import FlareSection
from dovetail.companions.flare.site import SITE_FILE
from dovetail.errors import ConfigError, DovetailError, NetworkError
from dovetail.files import read_toml
from dovetail.methods import coordinated
from dovetail.methods.base import SILENT, Progress, Site
from dovetail.methods.validation import validate
from dovetail.models.computing import device
from dovetail.network.calls import Call, Calls
from dovetail.network.certificates import certificate_name
from dovetail.network.host import Host
from dovetail.network.ledger import LedgerFile
from dovetail.network.sessions import Lines
from dovetail.node import driver as driving
from dovetail.node.hosting import opened_home
from dovetail.node.partyfile import open_site
from dovetail.node.site_folder import site_folder_of
from dovetail.runs.proposing import read_agreed
from dovetail.runs.runfile import RunFile, TrackSection, check_run
from dovetail.runs.train import Agreed, Drive, check_participation, train_seeds
from dovetail.settings.section import PartyName, Section

#: In a job's folder at the server, and so in what is downloaded: the run folder.
RESULT = "dovetail"

#: Beside it, if the run came to nothing: why. In a site's folder, why its party could not begin.
CAUSE = "dovetail-failed.txt"

#: Seconds for a job's process to leave the folder that the next one's takes.
LEAVE_S = 30.0


class SiteSection(Section):
    """Settings in ``local/dovetail.toml``; paths are relative to it.

    Attributes:
        party: the party file.
        driver: whom the party's policy knows the federation's server as; the only name in its
            policy.drivers, where that has one.
        site: what the party keeps; STEM.site beside its file, or of a coordinator COORDINATOR.site
            in the server's folder.
        device: where a site computes; at the server the run file says.
        runs: at the server, where run folders are kept; "dovetail-runs" in its folder.
        run: at a server that runs one job only, that job's run folder.
    """

    party: str | None = None
    driver: PartyName | None = None
    site: str | None = None
    device: str = "cpu"
    runs: str | None = None
    run: str | None = None


def read_site(local: Path) -> SiteSection:
    """Settings in a site's ``local`` folder; none if there is no file.

    Raises:
        ConfigError: what does not fit.
    """
    path = local / SITE_FILE
    if not path.exists():
        return SiteSection()
    section = validate(SiteSection, read_toml(path), where=str(path))
    paths = {key: getattr(section, key) for key in ("party", "site", "runs", "run")}
    absolute = {key: str((local / value).resolve()) for key, value in paths.items() if value}
    return section.model_copy(update=absolute)


# --- At a site ------------------------------------------------------------------------------------


class Party:
    """Answers the driver as ``dovetail join`` would: policy, replay check and ledger in force."""

    @collab.init  # type: ignore[untyped-decorator]
    def start(self) -> None:
        """Open the party's file, table and site; an error goes to whoever asks."""
        flare.quiet()
        self._stack = ExitStack()
        # Where a site's process is killed, NVFlare would end the job at every site, as if it had
        # failed; the method decides who can be done without. So this process has ended well, by
        # the file that NVFlare asks first, until NVFlare itself writes there that it has not.
        run = Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id()))
        (run / FLMetaKey.PROCESS_RC_FILE).write_text(f"{JobReturnCode.SUCCESS}\n", encoding="utf-8")
        # NVFlare sends warnings of its own log to the server; what Dovetail logs stays at its site.
        logging.getLogger("dovetail").propagate = False
        local = Path(collab.workspace.get_site_config_dir())
        root = Path(collab.workspace.get_root_dir())
        (root / CAUSE).unlink(missing_ok=True)
        name, driver = "", ""
        try:
            with ExitStack() as stack:
                section = read_site(local)
                if section.party is None:
                    raise ConfigError(
                        f"its site has no {SITE_FILE} that names its party file; dovetail flare "
                        "site FOLDER --party FILE writes it"
                    )
                site = open_site(Path(section.party))
                name, driver = site.name, _driver_of(site, section)
                site_folder = Path(section.site) if section.site else site_folder_of(site.path)
                computing = device(section.device)
                opened = opened_home(
                    site, site_folder, None, [driver], computing, quiet=True, wait_s=LEAVE_S
                )
                host: Host | DovetailError = stack.enter_context(opened).host
                self._stack = stack.pop_all()
        except DovetailError as error:  # may name files of this machine, which stay here
            (root / CAUSE).write_text(f"{error}\n", encoding="utf-8")
            host = NetworkError(f"it cannot begin; {CAUSE} in its site's folder says why")
        self._answers = Answers(name, driver, host)

    @collab.publish  # type: ignore[untyped-decorator]
    def handle(self, request: bytes) -> bytes:
        """The answer to one message; to an empty one, who is here."""
        return self._answers.handle(request, collab.caller)

    @collab.final  # type: ignore[untyped-decorator]
    def stop(self) -> None:
        """Leave the site."""
        self._answers.leave()
        self._stack.close()


def _driver_of(site: Site, section: SiteSection) -> str:
    """Whom the policy knows the server as.

    Raises:
        ConfigError: nobody says, or the policy refuses it.
    """
    drivers = site.policy.section.drivers
    named: str | None = section.driver
    if named is None and drivers is not None and len(drivers) == 1:
        (named,) = drivers
    if named is None:
        raise ConfigError(
            f"its {SITE_FILE} does not say who runs the federation's server; write driver = NAME, "
            "the name that policy.drivers has"
        )
    site.policy.check_driver(named)
    return certificate_name(named)


# --- At the server --------------------------------------------------------------------------------


class Driver:
    """Trains as ``dovetail train`` would, with the job's sites as partners.

    Args:
        resume: the job whose run goes on; "" starts a run of this job's own.
        align: align again before training, also where an alignment is kept.
    """

    def __init__(self, resume: str = "", align: bool = False) -> None:
        self._resume = resume
        self._align = align

    @collab.main  # type: ignore[untyped-decorator]
    def run(self) -> dict[str, Any]:
        """Train every seed; the result, whose run folder is in the job's folder."""
        flare.quiet()
        job = collab.fl_ctx.get_job_id()
        workspace = collab.workspace
        root, folder = Path(workspace.get_root_dir()), Path(workspace.get_run_dir(job))
        try:
            if self._resume and not re.fullmatch(r"[\w-]{1,100}", self._resume):
                raise ConfigError(f"resume takes the id of a job, got {self._resume!r}")
            section = read_site(Path(workspace.get_site_config_dir()))
            config = Path(workspace.get_app_config_dir(job))
            run = job_run(config / "run.toml", section)
            proposal = config / PROPOSAL
            there = proposal if proposal.exists() else None
            agreed = read_agreed(run, run.all_seeds(), there, where="the job's run file")
            runs = Path(section.runs) if section.runs else root / "dovetail-runs"
            kept = Path(section.run) if section.run else runs / (self._resume or job)
            if self._resume and not kept.is_dir():
                raise ConfigError(f"there is no run of a job {self._resume!r} at this server")
            if not section.run:  # else a server of one job's person only
                claim_run(kept, _submitter(folder), resume=self._resume)
            calls = flare.collab_calls(_flare(run).site_of(), collab.clients)
            result = train_seeds(
                run,
                kept,
                run.all_seeds(),
                resume=bool(self._resume),
                overwrite=True,  # a job's folder is its own; of one's own, who submits has decided
                drive=self._drive(calls, section, root, agreed),
                agreed=agreed,
            )
            # What a run goes on from stays at the server's own.
            shutil.copytree(
                kept,
                folder / RESULT,
                ignore=shutil.ignore_patterns("checkpoint", ".lock*"),
                dirs_exist_ok=True,
            )
            if not section.run:  # else who submitted it looks there himself
                check_participation(run, Path(RESULT), result)
        except DovetailError as error:
            (folder / CAUSE).write_text(f"{error}\n", encoding="utf-8")
            raise
        return result

    def _drive(
        self,
        calls: dict[str, Call],
        section: SiteSection,
        root: Path,
        agreed: Agreed | None,
    ) -> Drive:
        """Opens the driver of a run: its own party file, or none, and lines to the sites."""

        def drive(
            run: RunFile, *, talk: Progress = SILENT
        ) -> AbstractContextManager[driving.Driver | driving.Coordinator | None]:
            engine = _flare(run)

            def reach(driver: str, ledger: LedgerFile) -> Lines:
                most_bytes = engine.max_message_bytes
                return Calls(calls, driver=driver, max_message_bytes=most_bytes, ledger=ledger)

            if coordinated(run.method):
                name = certificate_name(driving.coordinator_name(engine))
                site_folder = Path(section.site) if section.site else root / f"{name}.site"
                return driving.Coordinator(engine, site_folder, reach, talk=talk, wait_s=LEAVE_S)
            assert run.parties is not None
            site = open_site(Path(run.parties[0]))
            driver = driving.Driver(site, engine, reach, talk=talk, wait_s=LEAVE_S)
            if agreed is not None:  # before it aligns
                driver.agreed(*agreed)
            return self._aligned(driver)

        return drive

    @contextmanager
    def _aligned(self, driver: driving.Driver) -> Iterator[driving.Driver]:
        with driver:
            if self._align:
                driver.align()
            yield driver


def claim_run(kept: Path, submitter: str, *, resume: str) -> None:
    """Note who submitted the job whose run is kept there; refuse another who goes on with it.

    Raises:
        ConfigError: it is somebody else's.
    """
    path = kept.with_name(f"{kept.name}.owner")
    if not resume:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{submitter}\n", encoding="utf-8")
        return
    owner = path.read_text(encoding="utf-8").strip() if path.exists() else None
    if owner is None or owner != submitter:
        raise ConfigError(
            f"the run of job {resume!r} was not submitted by {submitter or 'nobody'!r}; who "
            f"submitted it may go on with it, or at this server whoever writes the name to {path}"
        )


def _submitter(folder: Path) -> str:
    """Name and organisation of who submitted a job, as NVFlare has authenticated them.

    Raises:
        ConfigError: NVFlare does not say.
    """
    meta = collab.fl_ctx.get_prop(FLContextKey.JOB_META)
    if not isinstance(meta, dict):
        try:
            path = folder / WorkspaceConstants.JOB_META_FILE
            meta = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            meta = None
    named = meta.get(JobMetaKey.SUBMITTER_NAME.value) if isinstance(meta, dict) else None
    if not named:
        raise ConfigError("NVFlare does not say who submitted this job, so it is not run here")
    assert isinstance(meta, dict)
    return f"{named}, {meta.get(JobMetaKey.SUBMITTER_ORG.value, '')}"


def _flare(run: RunFile) -> FlareSection:
    assert isinstance(run.engine, FlareSection)  # of every job's run file
    return run.engine


def job_run(path: Path, section: SiteSection) -> RunFile:
    """The run of a job's run file, with the driver's own party file.

    No file that it names is opened: who submits jobs would read the server's own in errors.

    Raises:
        ConfigError: what does not fit; a method that a party drives, and a server that is no
            party's.
    """
    return _of_job(check_run(read_toml(path), where="the job's run file"), section)


def _of_job(run: RunFile, section: SiteSection) -> RunFile:
    """The run with the driver's own party file."""
    if not isinstance(run.engine, FlareSection):
        raise ConfigError('a job\'s run file has [engine] kind = "flare"')
    # Where a run is watched is the server's own business: a job names no place to write to. Nor
    # whose files are read: their digests would be in the run folder.
    run = run.model_copy(update={"track": TrackSection(), "parties": None})
    if coordinated(run.method):
        return run
    if section.party is None:
        raise ConfigError(
            f"{run.method!r} is driven by the party with labels, and this server's "
            f"local/{SITE_FILE} names no party file; dovetail flare site FOLDER --party FILE "
            "writes it"
        )
    return run.model_copy(update={"parties": (os.path.abspath(section.party),)})
