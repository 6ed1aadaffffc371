"""Runs of two processes over loopback TLS, one of them killed at random; each held to its twin.

    python -m tools.soak --minutes 10 --runs 200

Each run is of the default method on a small table, at new sites that have the same secrets:
so a run that ended has the weights of the one that nothing disturbs. Prints a line a run, and in
the end how many ended, hung, or printed a traceback; exit code 1 if one hung, or differs.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from dovetail.network.quota import Quota

#: Seconds after which a run hangs.
HANG_S = 240.0

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


class Pair:
    """A bank and a shop in a folder, and what is started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        (folder / "run.toml").write_text(RUN.format(port=self.port))
        self.outputs: list[Path] = []
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        output = self.folder / f"output-{len(self.outputs)}"
        self.outputs.append(output)
        command = [sys.executable, "-m", "dovetail", *words]
        with output.open("wb") as file:
            process = subprocess.Popen(command, cwd=self.folder, stdout=file, stderr=file)
        self.started.append(process)
        return process

    def join(self) -> subprocess.Popen[bytes]:
        return self.start("join", "shop.toml", "--driver", f"127.0.0.1:{self.port}")

    def train(self) -> subprocess.Popen[bytes]:
        """A run that begins, or goes on where it was stopped."""
        out = self.folder / "out"
        resume = ["--resume"] if out.is_dir() and any(out.iterdir()) else []
        return self.start("train", "run.toml", "--out", "out", *resume)

    def end(self) -> None:
        for each in self.started:
            if each.poll() is None:
                each.kill()
            each.wait()

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


def disturbed(pair: Pair, rng: random.Random, length_s: float) -> tuple[str, str]:
    """One run whose bank or shop is killed at random: how it ended, and who was killed."""
    shop, bank = pair.join(), pair.train()
    until = time.monotonic() + HANG_S
    kill_at, victim = (
        time.monotonic() + rng.uniform(0.2, 1.3) * length_s,
        rng.choice(["bank", "shop"]),
    )
    killed = ""
    while bank.poll() is None:
        if time.monotonic() > until:
            return "hung", killed
        if not killed and time.monotonic() > kill_at:
            killed = victim
            process = bank if victim == "bank" else shop
            process.send_signal(signal.SIGKILL)
            process.wait()
            time.sleep(rng.uniform(0.0, 2.0))
            if victim == "bank":
                bank = pair.train()
            else:
                shop = pair.join()
        time.sleep(0.05)
    return ("ended" if bank.returncode == 0 else f"code {bank.returncode}"), killed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng, counted = random.Random(given.seed), Counter[str]()
    until = time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as temporary:
        template = Path(temporary) / "template"
        template.mkdir()
        write(template)
        twin = Pair(Path(shutil.copytree(template, Path(temporary) / "twin")))
        before = time.monotonic()
        twin.join()
        assert twin.train().wait() == 0, twin.printed()
        length_s, weights = time.monotonic() - before, twin.weights()
        twin.end()
        for number in range(given.runs):
            if time.monotonic() > until:
                break
            pair = Pair(Path(shutil.copytree(template, Path(temporary) / f"run-{number}")))
            try:
                ended, killed = disturbed(pair, rng, length_s)
            finally:
                pair.end()
            found = [ended]
            if ended == "ended" and pair.weights() != weights:
                found.append("other weights")
            if "Traceback" in pair.printed():
                found.append("traceback")
            sql = "SELECT ifnull(max(times), 0) FROM numbers"
            ((numbers,),) = Quota(pair.folder / "shop.site").read(sql)
            if numbers > 1:
                found.append(f"{numbers} numbers a row")
            counted.update(found)
            print(f"run {number}: {killed or 'nobody'} killed: {', '.join(found)}", flush=True)
            if len(found) > 1 or ended != "ended":
                print(pair.printed()[-2000:], flush=True)
            shutil.rmtree(pair.folder)
    print(f"in all: {dict(counted)}")
    return int(bool(counted["hung"] or counted["other weights"] or counted["traceback"]))


if __name__ == "__main__":
    sys.exit(main())
