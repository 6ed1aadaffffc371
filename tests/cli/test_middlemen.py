"""Runs through proxies and balancers: the same weights, and a sentence where one does not let."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from federations import free_port
from same_secrets import as_in_one_process
from test_driver import Clinics, federation, result, weights

sys.path.insert(0, str(Path(__file__).parents[1] / "network"))
import middlemen

__all__ = ["federation"]

pytestmark = pytest.mark.network


@contextmanager
def ours(folder: Path, to: int) -> Iterator[tuple[str, str]]:
    """A proxy that asks for a password, and a balancer, of this file's own."""
    proxy = middlemen.connects(allowed=(to,), user="party:secret")
    balancer = middlemen.balances(to)
    try:
        yield f"http://party:secret@127.0.0.1:{proxy.port}", f"127.0.0.1:{balancer.port}"
        assert set(proxy.seen) == {f"CONNECT 127.0.0.1:{to} HTTP/1.1"} or set(proxy.seen) == {
            f"CONNECT 127.0.0.1:{to} HTTP/1.0"
        }
        assert min(proxy.carried, balancer.carried) > 50_000  # the run went this way
    finally:
        proxy.close()
        balancer.close()


@contextmanager
def debians(folder: Path, to: int) -> Iterator[tuple[str, str]]:
    """Addresses of tinyproxy and haproxy."""
    missing = middlemen.installed("tinyproxy", "haproxy")
    if missing:
        pytest.skip(f"{' and '.join(missing)} is not installed: apt-get install tinyproxy haproxy")
    with ExitStack() as stack:
        proxy = stack.enter_context(middlemen.tinyproxy(folder, free_port(), to))
        balancer = stack.enter_context(middlemen.haproxy(folder, free_port(), to))
        yield proxy, balancer
        log = (folder / "tinyproxy.log").read_text()
        assert f"CONNECT 127.0.0.1:{to}" in log


@pytest.mark.parametrize("between", [ours, debians])
def test_a_run_through_a_proxy_and_a_balancer_gives_the_same_weights(
    federation: Clinics, dovetail: Any, between: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_in_one_process(monkeypatch.setattr)
    folder = federation.folder
    with between(folder, federation.port) as (proxy, balancer):
        direct = f"127.0.0.1:{federation.port}"
        lab = federation.start(
            "join", "lab.toml", "--driver", direct, "--name", "clinic", "--proxy", proxy
        )
        registry = federation.start(
            "join", "registry.toml", "--driver", balancer, "--name", "clinic", "--proxy", "none"
        )
        done = dovetail("train", federation.write_run(), "--out", "apart", "-q")
        assert (done.code, done.err) == (0, "")
        for partner in (lab, registry):
            partner.signal(signal.SIGINT)
            assert partner.ended() == 0, partner.printed()
    dovetail("train", federation.write_here(), "--out", "here", "-q")
    assert weights(folder / "apart") == weights(folder / "here")
    assert result(folder / "apart")["missed"] == {}
    assert "party:secret" not in lab.printed()


def test_a_proxy_that_does_not_let_through_is_named(federation: Clinics) -> None:
    proxy = middlemen.connects(allowed=())
    address = f"127.0.0.1:{federation.port}"
    joining = ("join", "lab.toml", "--driver", address, "--name", "clinic")
    lab = federation.start(*joining, "--proxy", f"http://127.0.0.1:{proxy.port}")
    lab.wait_for(f"the proxy does not let it through to clinic at {address} .*403")
    lab.wait_for(f"allow CONNECT to {address}")
    lab.signal(signal.SIGINT)
    assert lab.ended() == 0
    proxy.close()


@pytest.mark.parametrize("proxy", ["proxy.example.org:3128", "https://proxy:1", "http://a/b"])
def test_a_proxy_that_is_none_is_one_sentence(
    federation: Clinics, dovetail: Any, proxy: str
) -> None:
    done = dovetail("join", "lab.toml", "--driver", "127.0.0.1:1", "--proxy", proxy)
    assert done.code == 2
    assert "--proxy takes http://HOST:PORT of a proxy, or none to go without" in done.err


def test_the_units_are_ones_that_systemd_takes(tmp_path: Path) -> None:
    if middlemen.installed("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    examples = Path(__file__).parents[2] / "examples" / "systemd"
    units = sorted(examples.glob("*.service"))
    assert {unit.name for unit in units} == {"dovetail-join@.service", "dovetail-serve@.service"}
    for unit in units:  # the program is where this one is
        program = Path(sys.executable).with_name("dovetail")
        text = unit.read_text().replace("/opt/dovetail/bin/dovetail", str(program))
        (tmp_path / unit.name.replace("@", "@shop")).write_text(text)
    named = [str(path) for path in sorted(tmp_path.glob("*.service"))]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *named], capture_output=True, text=True
    )
    lines = [line for line in done.stderr.splitlines() if "dovetail" in line]
    assert (done.returncode, lines) == (0, []), done.stderr
