"""Two network namespaces, ``a`` and ``b``, joined by a link that is slow and loses packets.

Where the kernel has netem: a veth pair with netem at both ends. Elsewhere a relay in userland: a
process that holds a TUN device of each namespace and moves IP packets between them as netem would.
Each waits for the delay, is lost by chance, or finds the queue full; order is kept. The relay's
chance is seeded, netem's is the kernel's own. Packets are 1500 bytes, as on the internet.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import select
import shutil
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

ADDRESS = {"a": "10.87.0.1", "b": "10.87.0.2"}
QUEUE = 2000  # packets under way in each direction; one more is dropped
TUN = Path("/dev/net/tun")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def available() -> str | None:
    """Why there can be no such link on this machine; None if there can."""
    if sys.platform != "linux" or os.geteuid():
        return "network namespaces take Linux and root"
    if not shutil.which("ip"):
        return "there is no ip command (iproute2)"
    space = f"dovetail-{os.getpid()}-try"
    if subprocess.run(["ip", "netns", "add", space], capture_output=True).returncode:
        return "this machine allows no new network namespace"
    linked = TUN.exists() or _netem(space, "lo", 0, 0)
    _run("ip", "netns", "del", space)
    return None if linked else f"the kernel has neither netem nor {TUN}"


class LossyLink:
    """The link, while its ``with`` lasts: delay one way, chance of loss from 0 to 1."""

    def __init__(self, delay_ms: float, loss: float, seed: int, *, mtu: int = 1500) -> None:
        self.delay_ms, self.loss, self.seed, self.mtu = delay_ms, loss, seed, mtu
        self.spaces = {side: f"dovetail-{os.getpid()}-{id(self):x}-{side}" for side in ADDRESS}
        self.relay: subprocess.Popen[str] | None = None  # None: netem

    def __enter__(self) -> LossyLink:
        # Those of a test that was killed.
        for space, process in re.findall(r"^(dovetail-(\d+)-\S+)", _run("ip", "netns"), re.M):
            if not Path("/proc", process).exists():
                _run("ip", "netns", "del", space)
        try:
            for space in self.spaces.values():
                _run("ip", "netns", "add", space)
                _run("ip", "-n", space, "link", "set", "lo", "up")
            if _netem(self.spaces["a"], "lo", 0, 0):
                self._join_by_netem()
            else:
                settings = (self.delay_ms, self.loss, self.seed, self.mtu, *self.spaces.values())
                argv = [sys.executable, __file__, *map(str, settings)]
                pipe = subprocess.PIPE
                self.relay = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)
                self._ask("count")  # answered when its devices are up
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.relay is not None:
            self.relay.kill()  # its devices go with it
            self.relay.communicate()
        for space in self.spaces.values():
            subprocess.run(["ip", "netns", "del", space], capture_output=True)

    def command(self, side: str, argv: list[str]) -> list[str]:
        """The command line that runs ``argv`` on that side."""
        return ["ip", "netns", "exec", self.spaces[side], *argv]

    def cut(self) -> None:
        """From now on every packet is lost, and nobody is told."""
        self._lose(1)

    def mend(self) -> None:
        """From now on the link is as it was at first."""
        self._lose(self.loss)

    def counts(self) -> tuple[int, int]:
        """Packets passed and dropped so far, both ways together."""
        if self.relay is not None:
            passed, dropped = self._ask("count").split()
            return int(passed), int(dropped)
        asked = [("tc", "-n", space, "-s", "-j", "qdisc", "show") for space in self.spaces.values()]
        shown = [each for ask in asked for each in json.loads(_run(*ask)) if each["dev"] == "link"]
        return sum(each["packets"] for each in shown), sum(each["drops"] for each in shown)

    def _lose(self, loss: float) -> None:
        if self.relay is not None:
            self._ask(f"loss {loss}")
        elif not all(_netem(space, "link", self.delay_ms, loss) for space in self.spaces.values()):
            raise RuntimeError("tc did not change the link")

    def _ask(self, question: str) -> str:
        assert self.relay is not None
        assert self.relay.stdin is not None
        assert self.relay.stdout is not None
        print(question, file=self.relay.stdin, flush=True)
        answer = self.relay.stdout.readline()
        if not answer:
            raise RuntimeError("the relay ended; its reason is on standard error")
        return answer

    def _join_by_netem(self) -> None:
        a, b = self.spaces.values()
        peer = ("peer", "name", "link", "netns", b)
        _run("ip", "-n", a, "link", "add", "link", "type", "veth", *peer)
        for side, space in self.spaces.items():
            # Or the kernel hands over 64 KiB at once, and netem loses them at once.
            _run("ip", "-n", space, "link", "set", "link", "gso_max_segs", "1")
            _up(space, "link", side, self.mtu)
        self._lose(self.loss)


def _run(*argv: str) -> str:
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout


def _up(space: str, device: str, side: str, mtu: int) -> None:
    ip = ("ip", "-n", space)
    # addrgenmode: no IPv6, which would talk by itself and be counted.
    _run(*ip, "link", "set", device, "addrgenmode", "none", "mtu", str(mtu), "txqueuelen", "2000")
    _run(*ip, "addr", "add", f"{ADDRESS[side]}/24", "dev", device)
    _run(*ip, "link", "set", device, "up")


def _netem(space: str, device: str, delay_ms: float, loss: float) -> bool:
    """Puts netem there, or changes it; False where the kernel has none."""
    tc = ["tc", "-n", space, "qdisc", "replace", "dev", device, "root", "netem"]
    tc += ["limit", str(QUEUE), "delay", f"{delay_ms}ms", "loss", f"{100 * loss}%"]
    return bool(shutil.which("tc")) and not subprocess.run(tc, capture_output=True).returncode


def _tun(space: str, side: str, mtu: int) -> int:
    """A TUN device of that namespace, held by this process."""
    device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    name = f"dove{os.getpid()}{side}"
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    _run("ip", "link", "set", name, "netns", space)
    _up(space, name, side, mtu)
    return device


def _relay(delay_s: float, loss: float, seed: int, mtu: int, spaces: list[str]) -> None:
    chance = random.Random(seed).random
    devices = [_tun(space, side, mtu) for space, side in zip(spaces, ADDRESS, strict=True)]
    other = dict(zip(devices, reversed(devices), strict=True))
    under_way: dict[int, deque[tuple[float, bytes]]] = {device: deque() for device in devices}
    passed = dropped = 0
    while True:
        due = min((queue[0][0] for queue in under_way.values() if queue), default=None)
        wait = None if due is None else max(0.0, due - time.monotonic())
        for ready in select.select([0, *devices], [], [], wait)[0]:
            if ready == 0:
                words = sys.stdin.readline().split()
                if not words:  # who started the relay is gone
                    return
                if words[0] == "loss":
                    loss = float(words[1])
                print(passed, dropped, flush=True)
                continue
            queue = under_way[other[ready]]
            try:
                for _ in range(64):  # then look at the others
                    packet = os.read(ready, mtu)
                    if chance() < loss or len(queue) >= QUEUE:
                        dropped += 1
                    else:
                        queue.append((time.monotonic() + delay_s, packet))
            except BlockingIOError:
                pass  # no more for now
        for device, queue in under_way.items():
            while queue and queue[0][0] <= time.monotonic():
                os.write(device, queue.popleft()[1])
                passed += 1


if __name__ == "__main__":
    delay_ms, loss, seed, mtu, *spaces = sys.argv[1:]
    _relay(float(delay_ms) / 1e3, float(loss), int(seed), int(mtu), spaces)
