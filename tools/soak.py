"""Runs of two processes over loopback TLS, one of them killed at random; each held to its twin.

    python -m tools.soak --minutes 10 --runs 200
    python -m tools.soak --record soak.jsonl        # goes on where an earlier one was ended
    python -m tools.soak --warm                     # several times as many runs in the time

Each run is of the default method on a small table, at new sites that have the same secrets:
so a run that ended has the weights of the one that nothing disturbs. Prints a line a run, and in
the end how many ended, hung, or printed a traceback; exit code 1 if one hung, differs, or answered
for a row twice. With --record each run is a line of that file as soon as it is over, and those that
stand there count. With --warm, processes are forked from a server that has read the libraries,
which is most of what a command does here: it is killed in its work more often than in its start.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.network.quota import Quota

#: Seconds after which a run hangs, and of a machine with much else to do as many times its twin's.
HANG_S = 240.0
HANG_TIMES = 6.0

#: Outcomes of a run that are faults; one that ends with a sentence and code 2 is none.
MUST_NOT_BE = ("hung", "other weights", "traceback", "count passed")

RUN = """
method = "apfed"
baselines = []
parties = ["bank.toml"]
test = 0.3

[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = ["shop"]
wait_s = 60

[apfed.distil]
folds = 3
students = ["linear"]
"""

PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "customer"
{label}
[policy]
algorithms = ["align", "apfed"]
drivers = ["bank"]
min_rows = 1
"""


_forked = multiprocessing.get_context("forkserver")
_forked.set_forkserver_preload(
    [
        "dovetail.cli.main",
        "dovetail.cli.join",
        "dovetail.cli.train",
        "dovetail.methods.apfed",
        "dovetail.runs.train",
        "dovetail.node.join",
        "dovetail.network.stream",
        "dovetail.alignment.psi",
        "sklearn.metrics",
        "torch.fx.experimental.symbolic_shapes",
    ]
)


def _command(folder: Path, output: Path, words: Sequence[str]) -> None:
    """``dovetail WORDS`` in a forked process."""
    os.chdir(folder)
    with output.open("wb") as file:
        for standard in (1, 2):
            os.dup2(file.fileno(), standard)
    sys.argv = ["dovetail", *words]
    from dovetail.cli.main import main

    main()


class Started:
    """A command that runs in a process of its own."""

    def __init__(self, folder: Path, output: Path, words: Sequence[str], *, warm: bool) -> None:
        self._process: Any
        output.touch()
        if warm:
            self._process = _forked.Process(target=_command, args=(folder, output, words))
            self._process.start()
            return
        command = [sys.executable, "-m", "dovetail", *words]
        with output.open("wb") as file:
            self._process = subprocess.Popen(command, cwd=folder, stdout=file, stderr=file)

    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        if isinstance(self._process, subprocess.Popen):
            return self._process.poll()
        code: int | None = self._process.exitcode
        return code

    def ended(self) -> int:
        """Its exit code, when it has ended."""
        while (code := self.code()) is None:
            time.sleep(0.02)
        return code

    def kill(self) -> None:
        """Kill it, if it runs."""
        if self.code() is None:
            os.kill(self._process.pid, signal.SIGKILL)
        self.ended()


class Pair:
    """A bank and a shop in a folder, and what is started there."""

    def __init__(self, folder: Path, *, warm: bool = False) -> None:
        self.folder, self.warm = folder, warm
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        (folder / "run.toml").write_text(RUN.format(port=self.port))
        self.outputs: list[Path] = []
        self.started: list[Started] = []

    def start(self, *words: str) -> Started:
        output = self.folder / f"output-{len(self.outputs)}"
        self.outputs.append(output)
        self.started.append(Started(self.folder, output, words, warm=self.warm))
        return self.started[-1]

    def join(self) -> Started:
        return self.start("join", "shop.toml", "--driver", f"127.0.0.1:{self.port}")

    def train(self) -> Started:
        """A run that begins, or goes on where it was stopped."""
        out = self.folder / "out"
        resume = ["--resume"] if out.is_dir() and any(out.iterdir()) else []
        return self.start("train", "run.toml", "--out", "out", *resume)

    def end(self) -> None:
        for each in self.started:
            each.kill()

    def weights(self) -> bytes:
        return (self.folder / "out/models/bank/model.safetensors").read_bytes()

    def printed(self) -> str:
        return "".join(each.read_text(errors="replace") for each in self.outputs)


def write(folder: Path) -> None:
    """Tables, party files, certificates and secrets."""
    rng = np.random.default_rng(0)
    x_NF = rng.normal(size=(240, 4))
    label_N = (x_NF.sum(axis=1) + rng.normal(size=240) > 0).astype(int)
    for name, columns in (("bank", (0, 1)), ("shop", (2, 3))):
        with (folder / f"{name}.csv").open("w") as file:
            file.write(f"customer,a,b{',gone' if name == 'bank' else ''}\n")
            for row in range(240):
                values = ",".join(f"{x_NF[row, each]:.4f}" for each in columns)
                file.write(f"C{row},{values}{f',{label_N[row]}' if name == 'bank' else ''}\n")
        label = 'label = "gone"' if name == "bank" else ""
        (folder / f"{name}.toml").write_text(PARTY.format(name=name, label=label))
        site = folder / f"{name}.site"
        site.mkdir(mode=0o700)
        (site / "secret").touch(mode=0o600)
        (site / "secret").write_text(name.encode().hex().ljust(32, "0"))
    words = ["certificates", "bank", "shop", "--driver", "bank", "--host", "127.0.0.1", "-q"]
    subprocess.run([sys.executable, "-m", "dovetail", *words], cwd=folder, check=True)


def disturbed(pair: Pair, rng: random.Random, length_s: float) -> tuple[str, str, float]:
    """One run whose bank or shop is killed at random: how it ended, who was killed, and when."""
    shop, bank = pair.join(), pair.train()
    until = time.monotonic() + max(HANG_S, HANG_TIMES * length_s)
    after_s, victim = rng.uniform(0.2, 1.1) * length_s, rng.choice(["bank", "shop"])
    kill_at, killed = time.monotonic() + after_s, ""
    while bank.code() is None:
        if time.monotonic() > until:
            return "hung", killed, after_s
        if not killed and time.monotonic() > kill_at:
            killed = victim
            (bank if victim == "bank" else shop).kill()
            time.sleep(rng.uniform(0.0, 2.0))
            if victim == "bank":
                bank = pair.train()
            else:
                shop = pair.join()
        time.sleep(0.05)
    return ("ended" if bank.code() == 0 else f"code {bank.code()}"), killed, after_s


def recorded(path: Path | None) -> list[dict[str, Any]]:
    """Runs that stand in a record; a last line that was cut off is none."""
    if path is None or not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def outcome(pair: Pair, ended: str, weights: bytes) -> list[str]:
    """How a run ended, and each thing about it that must not be."""
    found = [ended]
    if ended == "ended" and pair.weights() != weights:
        found.append("other weights")
    if "Traceback" in pair.printed():
        found.append("traceback")
    sql = "SELECT ifnull(max(times), 0) FROM numbers"
    ((numbers,),) = Quota(pair.folder / "shop.site").read(sql)
    if numbers > 1:
        found.append("count passed")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--record", type=Path, help="file that gets a line a run")
    given = parser.parse_args()
    done = recorded(given.record)
    until = time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as temporary:
        template = Path(temporary) / "template"
        template.mkdir()
        write(template)
        for name in ("first", "twin")[not given.warm :]:  # the first also starts the server
            twin = Pair(Path(shutil.copytree(template, Path(temporary) / name)), warm=given.warm)
            before = time.monotonic()
            twin.join()
            assert twin.train().ended() == 0, twin.printed()
            length_s, weights = time.monotonic() - before, twin.weights()
            twin.end()
        for number in range(len(done), given.runs):
            if time.monotonic() > until:
                break
            rng = random.Random(f"{given.seed}:{number}")
            copied = shutil.copytree(template, Path(temporary) / f"run-{number}")
            pair = Pair(Path(copied), warm=given.warm)
            try:
                ended, killed, after_s = disturbed(pair, rng, length_s)
            finally:
                pair.end()
            found = outcome(pair, ended, weights)
            done.append({"run": number, "killed": killed, "after_s": after_s, "found": found})
            if given.record is not None:
                with given.record.open("a") as file:
                    file.write(json.dumps(done[-1]) + "\n")
            who = f"{killed} killed after {after_s:.1f} s" if killed else "nobody killed"
            print(f"run {number}: {who}: {', '.join(found)}", flush=True)
            if found != ["ended"]:
                print(pair.printed()[-2000:], flush=True)
            shutil.rmtree(pair.folder)
    counted = Counter(each for run in done for each in run["found"])
    victims = Counter(run["killed"] or "nobody" for run in done)
    print(f"{len(done)} runs: {dict(counted)}; killed: {dict(victims)}")
    return int(any(counted[each] for each in MUST_NOT_BE))


if __name__ == "__main__":
    sys.exit(main())
