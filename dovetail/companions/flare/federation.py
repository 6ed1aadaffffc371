"""An NVFlare federation on one machine: server and sites are processes, with mutual TLS.

What NVFlare's POC mode is for, but made by ``nvflare provision``, as real federations are: so the
user's ``~/.nvflare`` and a POC workspace of theirs stay as they are, ports are free ones, and
several can run at the same time.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any, Self

import psutil

from dovetail.companions.flare.site import write_resources
from dovetail.errors import NetworkError

#: The server's name, and where everything is.
SERVER = "localhost"

ADMIN = "admin@dovetail.local"

#: Seconds for server and sites to start: of a machine with much else to do.
START_S = 240.0

#: Seconds from one look at a job to the next.
LOOK_S = 0.5

_PROJECT = "dovetail"

_BUILDERS = [
    {
        "path": "nvflare.lighter.impl.workspace.WorkspaceBuilder",
        "args": {"template_file": ["master_template.yml"]},
    },
    {  # tcp is the fastest of the transports
        "path": "nvflare.lighter.impl.static_file.StaticFileBuilder",
        "args": {"config_folder": "config", "scheme": "tcp"},
    },
    {"path": "nvflare.lighter.impl.cert.CertBuilder", "args": {}},
    {"path": "nvflare.lighter.impl.signature.SignatureBuilder", "args": {}},
]


def provision(folder: Path, sites: Sequence[str]) -> Path:
    """Startup kits of a server, an admin and these sites; the folder that has one folder for each.

    Raises:
        NetworkError: NVFlare made none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    learn, admin = _free_ports(2)
    organisation = {"org": _PROJECT}
    server = {
        "name": SERVER,
        "type": "server",
        **organisation,
        "fed_learn_port": learn,
        "admin_port": admin,
    }
    clients = [{"name": name, "type": "client", **organisation} for name in sites]
    person = {"name": ADMIN, "type": "admin", **organisation, "role": "project_admin"}
    project = {
        "api_version": 3,
        "name": _PROJECT,
        "participants": [server, *clients, person],
        "builders": _BUILDERS,
    }
    (folder / "project.yml").write_text(
        json.dumps(project, indent=2), encoding="utf-8"
    )  # JSON is YAML
    done = subprocess.run(
        [sys.executable, "-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", "kits"],
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    made = sorted((folder / "kits" / _PROJECT).glob("prod_*"))
    if done.returncode or not made:
        raise NetworkError(f"nvflare provision has failed: {done.stdout}{done.stderr}")
    _keep_within(made[-1] / SERVER, folder)
    return made[-1]


def _keep_within(server: Path, folder: Path) -> None:
    """The server's jobs go below this folder, not where all servers of the machine have theirs."""
    resources = json.loads(
        (server / "local" / "resources.json.default").read_text(encoding="utf-8")
    )
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(
        folder / "snapshots"
    )
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(folder / "jobs")
    write_resources(server, resources)


def _free_ports(number: int) -> list[int]:
    probes = [socket.socket() for _ in range(number)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class FlareFederation:
    """Server and sites of ``provision``'s folder; whatever was started is ended with the context.

    Args:
        kits: the folder.
        environment: more variables of its processes.
    """

    def __init__(self, kits: Path, environment: Mapping[str, str] | None = None) -> None:
        self.kits = kits
        self._environment = dict(environment or {})
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._session: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *names: str) -> None:
        """Start the server or sites of these names."""
        for name in names:
            environment = {**os.environ, **self._environment, "PYTHONUNBUFFERED": "1"}
            here = str(Path(sys.executable).parent)
            environment["PATH"] = f"{here}{os.pathsep}{environment.get('PATH', '')}"
            with (self.kits / f"{name}.log").open("ab") as log:
                self._started[name] = subprocess.Popen(
                    ["bash", str(self.kits / name / "startup" / "sub_start.sh"), "--once"],
                    cwd=self.kits / name,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def stop(self) -> None:
        """End all, and the processes of jobs, which are in sessions of their own."""
        if self._session is not None:
            with suppress(Exception):
                self._session.close()
            self._session = None
        processes: list[psutil.Process] = []
        for process in self._started.values():
            with suppress(psutil.NoSuchProcess):
                parent = psutil.Process(process.pid)
                processes += [parent, *parent.children(recursive=True)]
        for each in psutil.process_iter(["cmdline"]):  # those whose parent has gone
            if any(str(self.kits) in word for word in each.info["cmdline"] or ()):
                processes.append(each)
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        for process in self._started.values():
            process.wait()
        self._started = {}

    def job_process(self, site: str, job: str) -> int | None:
        """The process of a job at a site, if there is one."""
        for each in psutil.process_iter(["cmdline"]):
            words = each.info["cmdline"] or ()
            if job in words and any(str(self.kits / site) in word for word in words):
                return int(each.pid)
        return None

    def ready(self, sites: Sequence[str], timeout_s: float = START_S) -> None:
        """Wait until the server answers and these sites have registered with it.

        Raises:
            NetworkError: they have not in time.
        """
        deadline = time.monotonic() + timeout_s
        missing, again = set(sites), set[str]()
        while missing:
            if time.monotonic() > deadline:
                raise NetworkError(
                    f"after {timeout_s:g} s NVFlare's server does not know {sorted(missing)}; see "
                    f"{self.kits}/*.log"
                )
            for name, process in list(self._started.items()):
                if process.poll() is not None:
                    if name in again:
                        raise NetworkError(
                            f"NVFlare's process of {name!r} has ended; see {self.kits}/{name}.log"
                        )
                    again.add(name)  # a site ends if the server cannot take it yet
                    self.start(name)
            with suppress(Exception):  # it is not there yet
                known = self._asked("get_system_info").client_info
                missing = set(sites) - {client.name for client in known}
            if missing:
                time.sleep(LOOK_S)

    def session(self) -> Any:
        """NVFlare's session of the admin."""
        if self._session is None:
            from nvflare.fuel.flare_api.flare_api import new_secure_session

            with redirect_stdout(io.StringIO()):  # it says that it connects
                self._session = new_secure_session(ADMIN, str(self.kits / ADMIN), timeout=5.0)
        return self._session

    def _asked(self, question: str, *arguments: str) -> Any:
        """The session's answer; a new one's where the server has ended an idle session."""
        from nvflare.fuel.flare_api.api_spec import SessionExpired

        try:
            return getattr(self.session(), question)(*arguments)
        except SessionExpired:
            self._session = None
            return getattr(self.session(), question)(*arguments)

    def submit(self, job: Path) -> str:
        """The id of this job, which now waits for its turn."""
        return str(self._asked("submit_job", str(job.resolve())))

    def status(self, job: str) -> str:
        """Status in NVFlare's words, for example RUNNING or FINISHED:COMPLETED."""
        return str(self._asked("get_job_meta", job).get("status", ""))

    def wait(
        self, job: str, timeout_s: float | None = None, look: Callable[[], None] = lambda: None
    ) -> str:
        """Status of the job once it has ended; ``look`` is called until then.

        Raises:
            NetworkError: it has not in time.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not re.match("FINISHED|FAILED|ABANDONED", status := self.status(job)):
            if deadline is not None and time.monotonic() > deadline:
                raise NetworkError(f"job {job} is {status} after {timeout_s:g} s")
            look()
            time.sleep(LOOK_S)
        return status

    def fetch(self, job: str, to: Path) -> Path:
        """Folder of the job at the server, downloaded: the run folder is in it, or why there is
        none."""
        to.mkdir(parents=True, exist_ok=True)
        return Path(self._asked("download_job_result", job, str(to))) / "workspace"


def end(process: int) -> None:
    """Kill one process at once."""
    os.kill(process, signal.SIGKILL)
