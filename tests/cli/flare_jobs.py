"""Processes of NVFlare's jobs, forked from one that has read the libraries once.

A job begins a process at the server and at every site, which is most of its work: each would read
PyTorch, NVFlare and Dovetail anew. Where ``launching`` says so they are forked in place of begun,
with the same arguments, variables and folder, in a session of their own.
"""

from __future__ import annotations

import array
import importlib
import json
import os
import runpy
import select
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path

from forked import context
from same_secrets import as_in_one_process

#: What NVFlare begins as ``python -u -m MODULE ARGUMENTS``.
_MODULES = (
    "nvflare.private.fed.app.client.worker_process",
    "nvflare.private.fed.app.server.runner_process",
)

#: Read by every process of the federation as it starts: homes draw what one process draws, and
#: while there is a server that forks, NVFlare asks it for the processes of jobs.
CHANGES = """
import importlib.util
import sys


def same_secrets(module):
    from same_secrets import as_in_one_process

    as_in_one_process()


def forked_jobs(module):
    from flare_jobs import spawn

    begin = module.spawn_process
    module.spawn_process = lambda words, variables: spawn({server!r}, begin, words, variables)


CHANGED = {{
    "dovetail.companions.flare.job": same_secrets,
    "nvflare.app_common.job_launcher.process_launcher": forked_jobs,
}}


class Finder:
    def find_spec(self, name, path=None, target=None):
        change = CHANGED.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        read = spec.loader.exec_module

        def read_and_change(module):
            read(module)
            sys.path += {tests!r}
            change(module)

        spec.loader.exec_module = read_and_change
        return spec


sys.meta_path.insert(0, Finder())
"""


def write_changes(folder: Path, server: Path) -> None:
    """What the processes read that have this folder in their PYTHONPATH."""
    folder.mkdir(exist_ok=True)
    here = Path(__file__).parent
    tests = [str(here), str(here.parent / "network")]
    (folder / "sitecustomize.py").write_text(CHANGES.format(tests=tests, server=str(server)))


# --- In NVFlare's processes of the server and the sites -------------------------------------------


def spawn(server: Path | str, begin, words, variables):  # type: ignore[no-untyped-def]
    """The process of a job, forked by ``server`` or, where there is none, begun as ever."""
    from nvflare.utils.process_utils import ProcessAdapter

    class Forked(ProcessAdapter):  # type: ignore[misc]
        """A process whose server tells how it ended."""

        def _poll_pid(self) -> int | None:
            if self._return_code is None and select.select([asked], [], [], 0)[0]:
                self.wait()
            return self._return_code  # type: ignore[no-any-return]

        def wait(self) -> None:
            if self._return_code is None:
                (self._return_code,) = struct.unpack("i", asked.recv(4))

    if not Path(server).exists():
        return begin(words, variables)
    asked = socket.socket(socket.AF_UNIX)
    asked.connect(str(server))
    text = json.dumps([words, variables, os.getcwd()]).encode()
    standard = array.array("i", [1, 2]).tobytes()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, standard)]
    asked.sendmsg([struct.pack("i", len(text))], rights)
    asked.sendall(text)
    (pid,) = struct.unpack("i", asked.recv(4))
    return Forked(pid=pid)


# --- The process that forks -----------------------------------------------------------------------


def _serve(path: Path, events: Connection) -> None:
    """Forks until the other end of ``events`` is closed; a word from there ends what still runs."""
    for name in (*_MODULES, "dovetail.companions.flare.job"):
        importlib.import_module(name)
    as_in_one_process()
    for name in _MODULES:  # to be run as a program
        del sys.modules[name]
    running: dict[int, tuple[ForkProcess, socket.socket]] = {}  # its sentinel -> job, who asked
    with socket.socket(socket.AF_UNIX) as listens:
        listens.bind(str(path))
        listens.listen()
        events.send("ready")
        while True:
            for each in wait([listens, events, *running]):
                if each is events:
                    _end(running)
                    try:
                        events.send(events.recv())
                    except EOFError:
                        return
                elif isinstance(each, int):
                    job, asked = running.pop(each)
                    job.join()
                    with asked, suppress(OSError):  # whoever asked may have ended
                        asked.send(struct.pack("i", job.exitcode))
                else:
                    asked, _ = listens.accept()
                    job = _forked(asked)
                    running[job.sentinel] = job, asked


def _end(running: Mapping[int, tuple[ForkProcess, socket.socket]]) -> None:
    """Kill jobs; whoever asked for one learns of it as of any that ends."""
    for job, _ in running.values():
        job.kill()
        job.join()


def _forked(asked: socket.socket) -> ForkProcess:
    head, rights, _, _ = asked.recvmsg(4, socket.CMSG_SPACE(8))
    (left,) = struct.unpack("i", head)
    text = b""
    while len(text) < left:
        text += asked.recv(left - len(text))
    standard = array.array("i", rights[0][2])
    job = get_context("fork").Process(target=_job, args=(standard, *json.loads(text)))
    job.start()
    for file in standard:
        os.close(file)
    asked.send(struct.pack("i", job.pid))
    return job


def _job(
    standard: array.array[int], words: list[str], variables: dict[str, str], folder: str
) -> None:
    os.setsid()
    for target, file in zip((1, 2), standard, strict=True):
        os.dup2(file, target)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    sys.path[:0] = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = words[words.index("-m") + 1 :]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


@contextmanager
def launching(server: Path) -> Iterator[Callable[[], None]]:
    """Within it, processes of jobs are forked by the server at this path; ends those that run."""
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(server, theirs))
    process.start()
    theirs.close()
    try:
        assert ours.recv() == "ready"

        def end_jobs() -> None:
            ours.send("end")
            assert ours.recv() == "end"

        yield end_jobs
    finally:
        server.unlink(missing_ok=True)
        ours.close()
        process.join()
