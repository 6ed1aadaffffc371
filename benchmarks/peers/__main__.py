"""Peers and Dovetail on the same data, networks and batches, one after the other.

    python -m benchmarks.peers

MNIST: the label owner has the upper half of each digit, its partner the lower half; ``common`` has
the networks. First all of 60,000 digits are labelled, then 500 of 4,000. Each peer is installed
into an environment of its own (benchmarks/scratch/peers) from the pinned requirements beside this
file, and runs a program written here against its public interface. Each trains for a fixed time,
after its first steps, or so many epochs; scoring is not counted. All run on one machine, the
parties in processes of their own with one thread of PyTorch each: NVIDIA FLARE by its simulator,
messages through its server; Flower by its simulation engine, on Ray; Dovetail over gRPC with mutual
TLS. APFed-S runs in one process, by its defaults: its time is that of all it does, models chosen
and trained again on every label. "load" is how many programs wanted this machine's two cores
meanwhile: seconds compare within a table, not with an idle machine, nor with another table, which
may be of another run.

"partner gone" is the label owner's accuracy when its partner does not answer at prediction. Where a
head reads both parties' codes there is no way to predict then; the figure is with zeros in place of
the partner's.

Bytes of a step are both ways: for peers serialised messages, without what their transport adds; for
Dovetail all that its sockets carry, TLS and heartbeats included.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import _results
from benchmarks.peers import common
from benchmarks.peers.strips import prepare

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """A table of the page.

    Attributes:
        rows, labels: that train; None: all.
        goal: accuracy that the clock is stopped for.
        epochs: of the labelled rows, at most.
    """

    title: str
    goal: float
    epochs: int
    rows: int | None = None
    labels: int | None = None


CASES = {
    "all": Case("60,000 digits, all labelled", 0.90, 5),
    "few": Case("4,000 digits, 500 labelled", 0.75, 400, rows=4000, labels=500),
}


class SkipError(Exception):
    """Why a peer is not in the table."""


@dataclass(frozen=True)
class Peer:
    """A row of the table."""

    title: str
    program: str
    requirements: str | None  # None: this environment
    alone: bool  # whether the label owner can predict with its partner gone
    words: tuple[str, ...] = ()


PEERS = {
    "dovetail-apfed": Peer("Dovetail, APFed-C", "dovetail", None, True, ("--method", "apfed")),
    "dovetail-sealed": Peer("Dovetail, APFed-S", "dovetail", None, True, ("--method", "sealed")),
    "dovetail-vertical": Peer("Dovetail, classic vertical", "dovetail", None, False),
    "dovetail-alone": Peer(
        "Dovetail, learned alone", "dovetail", None, True, ("--method", "alone")
    ),
    "nvflare": Peer("NVIDIA FLARE, split learning", "nvflare", "nvflare.txt", False),
    "flower": Peer("Flower, vertical", "flower", "flower.txt", False),
    "secretflow": Peer("SecretFlow, split learning", "secretflow", "", False),
}


def environment(name: str, requirements: str, folder: Path) -> Path:
    """The Python of a peer's own environment, made on first use.

    Raises:
        SkipError: it cannot be installed.
    """
    python = folder / name / "bin" / "python"
    stamp = folder / name / "installed.txt"
    wanted = (HERE / requirements).read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {name}", flush=True)
    shutil.rmtree(folder / name, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    done = subprocess.run(
        [*install, "-r", str(HERE / requirements)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SkipError(f"pip cannot install {requirements}: {_last(done.stderr)}")
    stamp.write_text(wanted)
    return python


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"


def without_secretflow() -> str:
    """Why there is no SecretFlow here, as pip has it today."""
    for package in ("secretflow-fl", "spu==0.9.4.dev20250618"):
        asked = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--pre", "-q"]
        done = subprocess.run([*asked, package], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return f"pip has {package} by now, and no program is written here yet"
    return (
        "pip finds no secretflow-fl, to which its split learning moved, nor the development build "
        "of spu that secretflow 1.13 and 1.12, the last that contain it, require; 1.11.0b1 "
        "requires torch 2.1.2 with CUDA (a wheel of 670 MB without its libraries) and TensorFlow "
        "2.12 (586 MB), which is more than is installed here for one row"
    )


def run(name: str, case: Case, data: Path, seconds: float, folder: Path) -> dict[str, Any]:
    """What a peer's program told.

    Raises:
        SkipError: it cannot be had, or failed.
    """
    peer = PEERS[name]
    if name == "secretflow":
        raise SkipError(without_secretflow())
    if name == "dovetail-sealed" and case.labels is None:
        raise SkipError("it is made for few labels: with 60,000 nobody needs help")
    out = data.parent / f"{name}.json"
    out.unlink(missing_ok=True)  # of the table before
    settings = {
        **os.environ,
        "OMP_NUM_THREADS": str(common.THREADS),
        "PEERS_DATA": str(data),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ADDRESS": "local",  # not another program's, which runs on this machine
    }
    if peer.requirements is None:
        command = [sys.executable, "-m", f"benchmarks.peers.{peer.program}_peer"]
    else:
        python = environment(name, peer.requirements, folder)
        command = [str(python), str(HERE / f"{peer.program}_peer.py")]
        settings["PYTHONPATH"] = str(HERE)
    steps = case.epochs * (len(common.Data(data).labels) // common.BATCH_SIZE) // 50 * 50
    words = ["--data", str(data), "--out", str(out), "--steps", str(steps)]
    print(f"running {name}", flush=True)
    try:
        done = subprocess.run(
            [*command, *words, "--seconds", str(seconds), *peer.words],
            env=settings,
            capture_output=True,
            text=True,
            check=False,
            timeout=20 * seconds,
        )
    except subprocess.TimeoutExpired:
        raise SkipError(f"not done after {20 * seconds:.0f} s") from None
    if not out.exists():
        raise SkipError(f"it failed: {_last(done.stderr or done.stdout)}")
    reported: dict[str, Any] = json.loads(out.read_text())
    return reported


def row(peer: Peer, goal: float, reported: dict[str, Any]) -> dict[str, Any]:
    """A line of a table."""
    # Without the first steps, in which Ray and others start their processes.
    since = reported["warm_seconds"]
    reached = [seconds - since for _, seconds, score in reported["curve"] if score >= goal]
    rate, size = reported["samples_per_second"], reported["bytes_per_step"]
    return {
        "peer": peer.title,
        "version": reported["version"],
        "samples/s": "" if rate is None else f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}",
        "kB a step": f"{size / 1e3:.1f}" if size and "alone" not in peer.words else "",
        "steps": reported["steps"] or "",
        "accuracy %": f"{100 * reported['accuracy']:.1f}",
        f"s to {100 * goal:.0f} %": f"{reached[0]:.1f}" if reached else "not reached",
        "predicts alone": "yes" if peer.alone else "no",
        "partner gone %": f"{100 * reported['gone']:.1f}",
    }


def page(stored: dict[str, Any]) -> str:
    """The figures for people."""
    noted = ", ".join(f"{key} {value}" for key, value in stored["about"].items())
    text = f"# Peers on the same task\n\n`python -m benchmarks.peers`; {noted}.\n\n"
    assert __doc__ is not None
    text += "\n\n".join(__doc__.strip().split("\n\n")[2:]).replace("``", "`") + "\n\n"
    for name, reported in stored["peers"].items():
        case = CASES[name]
        rows = [row(PEERS[peer], case.goal, each) for peer, each in reported.items()]
        text += f"## {case.title}\n\n{_results.markdown(rows)}\n"
    skipped = [
        f"Left out: {PEERS[name].title}: {why}.\n" for name, why in stored["skipped"].items()
    ]
    return text + "\n".join(skipped)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="training of each [60]")
    parser.add_argument("--only", nargs="+", choices=PEERS, help="again; others stay on record")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument(
        "--environments", type=Path, default=HERE.parent / "scratch" / "peers", help="[scratch]"
    )
    given = parser.parse_args()
    torch.set_num_threads(common.THREADS)
    path = _results.FOLDER / "peers.json"
    before = json.loads(path.read_text()) if given.only else {"peers": {}, "skipped": {}}
    results: dict[str, dict[str, Any]] = before["peers"]
    skipped: dict[str, str] = before["skipped"]
    load = [os.getloadavg()[1]]
    with tempfile.TemporaryDirectory() as temporary:
        for title in given.cases:
            case = CASES[title]
            data = prepare(Path(temporary), case.rows, case.labels)
            results.setdefault(title, {})
            for name in given.only or PEERS:
                skipped.pop(name, None)
                try:
                    results[title][name] = run(name, case, data, given.seconds, given.environments)
                except SkipError as reason:
                    skipped[name] = str(reason)
                    print(f"{name} is left out: {reason}", flush=True)
                load.append(os.getloadavg()[1])
    between = f"{min(load):.1f} to {max(load):.1f}"
    about = {**_results.machine(), "seconds": given.seconds, "load": between}
    about = before.get("about", about)  # the oldest line's
    stored = {"about": about, "peers": results, "skipped": skipped}
    _results.FOLDER.mkdir(exist_ok=True)
    path.write_text(json.dumps(stored, indent=1) + "\n")
    text = page(stored)
    (_results.FOLDER / "peers.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
