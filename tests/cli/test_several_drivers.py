"""One process of a party, two drivers that train with it at the same time."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from federations import PATIENCE_S, free_port
from same_secrets import as_in_one_process
from test_driver import Clinics, federation, result

from dovetail.network.certificates import tls_name
from dovetail.network.quota import Quota

sys.path.insert(0, str(Path(__file__).parents[1] / "network"))
import middlemen

__all__ = ["federation"]

pytestmark = pytest.mark.network

ALONE = (('"alone", "tvfl"', ""), ('"lab", "registry"', '"lab"'), ("epochs = 2", "epochs = 60"))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@contextmanager
def by_name(folder: Path, port: int, ports: dict[str, int]) -> Iterator[str]:
    """Debian's haproxy in front of several drivers, as docs/network-team.md shows it."""
    text = f"""
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend dovetail
    bind 127.0.0.1:{port}
    tcp-request inspect-delay 5s
    tcp-request content accept if {{ req.ssl_hello_type 1 }}
"""
    for name in ports:
        text += f"    use_backend {name} if {{ req.ssl_sni -i {tls_name(name)} }}\n"
    for name, to in ports.items():
        text += f"backend {name}\n    server {name} 127.0.0.1:{to}\n"
    (folder / "haproxy.cfg").write_text(text)
    program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin") or ""
    command = [program, "-db", "-q", "-f", str(folder / "haproxy.cfg")]
    with middlemen.started(command, port):
        yield f"127.0.0.1:{port}"


def test_two_drivers_train_with_one_process_as_each_would_alone(
    federation: Clinics,
    dovetail: Any,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    folder = federation.folder
    # A second driver, with rows of its own: every other one of the clinic's.
    text = (folder / "clinic.toml").read_text().replace('"clinic"', '"hospital"')
    (folder / "hospital.toml").write_text(text.replace("clinic.csv", "hospital.csv"))
    lines = (folder / "clinic.csv").read_text().splitlines(keepends=True)
    (folder / "hospital.csv").write_text("".join([lines[0], *lines[1::2]]))
    assert dovetail("certificates", "hospital", "--driver", "hospital", "-q").code == 0
    federation.dealt.change(
        "lab.toml", ("[apfed]", "[policy]\ntogether = true\nmax_alignments = 2\n\n[apfed]")
    )
    ports = {"clinic": federation.port, "hospital": free_port()}
    runs = {}
    for name, port in ports.items():
        settings = (("clinic.toml", f"{name}.toml"), (str(federation.port), str(port)))
        runs[name] = federation.write_run(*ALONE, *settings, name=f"{name}-run.toml")
    addresses = [
        word for name, port in ports.items() for word in ("--driver", f"{name}=127.0.0.1:{port}")
    ]
    if not middlemen.installed("haproxy"):  # both behind one port, told apart by the name in TLS
        stack = request.getfixturevalue("stack")
        one = stack.enter_context(by_name(folder, free_port(), ports))
        addresses = [word for name in ports for word in ("--driver", f"{name}={one}")]
    lab = federation.start("join", "lab.toml", *addresses)
    drivers = {name: federation.start("train", run, "--out", name) for name, run in runs.items()}
    deadline = time.monotonic() + PATIENCE_S
    while not all(len(federation.lines(name)) > 0 for name in drivers):
        assert time.monotonic() < deadline, lab.printed()
    assert all(len(federation.lines(name)) < 60 for name in drivers)  # at the same time
    for name, driver in drivers.items():
        assert driver.ended() == 0, driver.printed()
        assert result(folder / name)["missed"] == {}
        assert f"(apfed-mixed) begins, of '{name}'" in lab.printed()

    # Each is what it is with nobody else there.
    as_in_one_process(monkeypatch.setattr)
    for name, run in runs.items():
        here = run.read_text().replace(f'["{name}.toml"]', f'["{name}.toml", "lab.toml"]')
        start, end = here.index("[engine]"), here.index("[apfed]")
        (folder / "here.toml").write_text(here[:start] + here[end:])
        done = dovetail("train", "here.toml", "--out", f"{name}-here", "-q")
        assert done.code == 0, done.err
        apart, alone = (
            (folder / out / "models" / name / "model.safetensors").read_bytes()
            for out in (name, f"{name}-here")
        )
        assert apart == alone

    # The two alignments are counted together, in one book.
    again = dovetail("align", runs["hospital"], "-q")
    assert again.code == 2
    assert "'hospital', with all drivers together, has aligned 2 times within 24 hours" in again.err
    for table in ("alignments", "begins"):
        counted = Quota(folder / "lab.site").read(f"SELECT driver FROM {table} ORDER BY driver")
        assert counted == [("clinic",), ("hospital",)]
    lab.signal(signal.SIGINT)
    assert lab.ended() == 0
    assert "stopped; the ledger's last hash is" in lab.printed()


@pytest.mark.parametrize(
    ("drivers", "words"),
    [
        (("127.0.0.1:1", "lab=127.0.0.1:2"), "with several drivers each has its name"),
        (("bank=127.0.0.1:1", "bank=127.0.0.1:2"), "--driver names 'bank' twice"),
        (("bank=127.0.0.1",), r"--driver takes HOST:PORT, for example"),
    ],
)
def test_a_mistake_in_naming_drivers_is_one_sentence(
    federation: Clinics, dovetail: Any, drivers: tuple[str, ...], words: str
) -> None:
    named = [word for each in drivers for word in ("--driver", each)]
    done = dovetail("join", "lab.toml", *named)
    assert done.code == 2
    assert words in done.err
