"""Probes over real sockets: health, readiness, metrics, and who asks too much."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from dovetail.api.progress import Probed
from dovetail.errors import ConfigError
from dovetail.methods.base import Progress
from dovetail.network.client import Event
from dovetail.network.logs import json_lines, of_run
from dovetail.node import probes
from dovetail.node.probes import Probes
from dovetail.node.status_line import StatusLine

pytestmark = pytest.mark.network


def one() -> Iterator[Metric]:
    family = GaugeMetricFamily("answer", "The answer.")
    family.add_metric([], 42)
    yield family


def figures(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_probes_say_alive_ready_and_how_it_goes() -> None:
    waiting = ["waiting for bank"]
    with Probes("127.0.0.1:0", why_not_ready=lambda: "".join(waiting), metrics=one) as served:
        url = f"http://127.0.0.1:{served.port}"
        assert httpx.get(f"{url}/health").status_code == 200
        not_yet = httpx.get(f"{url}/ready")
        assert (not_yet.status_code, not_yet.text) == (503, "waiting for bank\n")
        waiting.clear()
        assert httpx.get(f"{url}/ready").status_code == 200
        assert figures(httpx.get(f"{url}/metrics").text)["answer",] == 42
        assert httpx.get(f"{url}/../etc/passwd").status_code == 404
        assert httpx.post(f"{url}/health").status_code == 501


def test_connections_that_ask_nothing_keep_nobody_out_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes._Handler, "timeout", 0.2)
    with Probes("127.0.0.1:0", why_not_ready=str, metrics=one) as served:
        address = ("127.0.0.1", served.port)
        silent = [socket.create_connection(address) for _ in range(4 * probes.MAX_REQUESTS)]
        for each in silent:
            each.settimeout(10)
            assert each.recv(1) == b""  # closed, at once or after its time
            each.close()
        assert httpx.get(f"http://127.0.0.1:{served.port}/health").status_code == 200


def test_an_address_that_is_taken_is_one_sentence() -> None:
    with Probes("127.0.0.1:0", why_not_ready=str, metrics=one) as served:
        again = Probes(f"127.0.0.1:{served.port}", why_not_ready=str, metrics=one)
        with pytest.raises(ConfigError, match="name another address with --health"), again:
            pass


def test_a_party_counts_what_each_driver_asked() -> None:
    line = StatusLine("bank", "clinic", quiet=True)
    assert line.why_not_ready() == "waiting for bank, clinic"
    line.event(Event("connected", "hello"), "bank")
    assert line.why_not_ready() == "waiting for clinic"
    for number in range(40):  # more runs than are kept
        activity = line.run(f"run-{number}", "psi", "bank")
        activity.num_messages, activity.sent_bytes = 2, 10
    figures: dict[tuple[str, ...], float] = {
        (sample.name, *sample.labels.values()): sample.value
        for family in line.metrics()
        for sample in family.samples
    }
    assert figures["dovetail_party_runs_total", "bank"] == 40
    assert figures["dovetail_party_messages_total", "bank"] == 80
    assert figures["dovetail_party_bytes_total", "bank", "out"] == 400
    assert figures["dovetail_driver_connected", "clinic"] == 0


def test_a_driver_counts_rounds_and_partners() -> None:
    progress = Probed(Progress())
    with progress.waiting("here") as waiting:
        waiting(["shop"], ["lab"])
    assert progress.why_not_ready() == "waiting for lab"
    with progress.epochs("seed 0") as bars:
        bars("apfed", 30, {"epoch": 1, "loss": 0.5})
        bars("apfed", 30, {"epoch": 2, "loss": 0.25})
    figures: dict[Any, float] = {
        (sample.name, *sample.labels.values()): sample.value
        for family in progress.metrics()
        for sample in family.samples
    }
    assert figures["dovetail_rounds_done", "apfed"] == 2
    assert figures["dovetail_rounds_planned", "apfed"] == 30
    assert figures["dovetail_loss", "apfed"] == 0.25
    assert figures["dovetail_partner_connected", "lab"] == 0


def test_a_party_that_joins_answers_probes_and_logs_json(tmp_path: Path) -> None:
    (tmp_path / "visits.csv").write_text("customer,spent\na,1\nb,2\n")
    (tmp_path / "shop.toml").write_text(
        """
        [party]
        name = "shop"
        table = "visits.csv"
        id = "customer"

        [policy]
        drivers = ["bank"]
        """
    )
    dovetail = [sys.executable, "-m", "dovetail.cli.main"]
    made = [*dovetail, "certificates", "bank", "shop", "--driver", "bank"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    health = ["--health", f"127.0.0.1:{port}", "--log", "json"]
    command = [*dovetail, "join", "shop.toml", "--driver", "127.0.0.1:1", *health]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as joined:
        try:
            ready = None
            for _ in range(600):
                with contextlib.suppress(httpx.TransportError):
                    ready = httpx.get(f"http://127.0.0.1:{port}/ready")
                    break
                time.sleep(0.1)
            assert ready is not None
            assert ready.status_code == 503
            assert ready.text == "waiting for bank\n"
            figures_there = figures(httpx.get(f"http://127.0.0.1:{port}/metrics").text)
            assert figures_there["dovetail_driver_connected", "bank"] == 0
            assert figures_there["dovetail_certificate_expiry_seconds",] > time.time()
        finally:
            joined.send_signal(signal.SIGINT)
        assert joined.stderr is not None
        lines = [json.loads(line) for line in joined.stderr.read().splitlines()]
    assert joined.returncode == 0
    assert {line["party"] for line in lines} == {"shop"}


def test_log_lines_are_json_with_party_and_run() -> None:
    written = StringIO()
    log = logging.getLogger("dovetail.somewhere")
    with json_lines("shop", written):
        with of_run("2026/apfed"):
            log.info("it says %s", '"hello"\nand more')
        log.warning("no run")
    first, second = map(json.loads, written.getvalue().splitlines())
    assert first["party"] == second["party"] == "shop"
    assert (first["run"], second["run"]) == ("2026/apfed", "")
    assert first["message"] == 'it says "hello"\nand more'
    assert second["level"] == "warning"
