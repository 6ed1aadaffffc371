"""Probes of an orchestrator: whether a running process is alive, ready, and how it is doing.

    GET /health    200 while the process answers at all
    GET /ready     200 if it can do its work now, else 503 with a line that says why not
    GET /metrics   Prometheus' text format

Plain HTTP without a password, for the machine itself or a cluster's network: no answer has a
table's content, an id or a score, but names of parties and runs' counts. The address is the
operator's; nothing listens unless one is named.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any, Self, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dovetail.errors import ConfigError
from dovetail.network.addresses import check_address

#: Value of the label, or values of several; "" where there is no label.
K = TypeVar("K", bound=str | tuple[str, ...])
F = TypeVar("F", CounterMetricFamily, GaugeMetricFamily)


def gauge(name: str, about: str, labels: str, figures: Mapping[K, float]) -> GaugeMetricFamily:
    """A figure that goes up and down, by these labels ("" for none, else with blanks between)."""
    return _filled(GaugeMetricFamily(name, about, labels=labels.split()), figures)


def counter(name: str, about: str, labels: str, figures: Mapping[K, float]) -> CounterMetricFamily:
    """A figure that only grows, by these labels."""
    return _filled(CounterMetricFamily(name, about, labels=labels.split()), figures)


def _filled(family: F, figures: Mapping[K, float]) -> F:
    for key, figure in figures.items():
        labels: tuple[str, ...] = key if isinstance(key, tuple) else (key,) if key else ()
        family.add_metric(labels, figure)
    return family


#: Seconds that a connection has to say what it asks.
REQUEST_S = 5.0

#: Connections at a time; of more the one that has been there longest is closed, so that those who
#: connect and say nothing, or a byte now and then, do not keep a prober out.
MAX_REQUESTS = 16


class Probes:
    """Answers probes at an address while the context is open.

    Args:
        address: "HOST:PORT".
        why_not_ready: "" if the process can do its work now, else what it waits for.
        metrics: read again for each scrape.

    Raises:
        ConfigError: on entering, if nothing can listen there.
    """

    def __init__(
        self,
        address: str,
        *,
        why_not_ready: Callable[[], str],
        metrics: Callable[[], Iterable[Metric]],
    ) -> None:
        check_address(address)
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]") or "127.0.0.1", int(port))
        registry = CollectorRegistry()
        registry.register(_Collector(metrics))
        handler = type(
            "Handler",
            (_Handler,),
            {"why_not_ready": staticmethod(why_not_ready), "registry": registry},
        )
        self._handler: type[_Handler] = handler
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        try:
            self._server = _Server(self._address, self._handler)
        except OSError as error:
            where = f"{self._address[0]}:{self._address[1]}"
            raise ConfigError(
                f"cannot answer probes at {where}: {error.strerror or error}; name another address "
                "with --health"
            ) from None
        threading.Thread(
            target=self._server.serve_forever, daemon=True, name="dovetail-probes"
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _Collector(Collector):
    def __init__(self, metrics: Callable[[], Iterable[Metric]]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics()


class _Server(ThreadingMixIn, HTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}  # the oldest first
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
            if len(self._open) > MAX_REQUESTS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread ends by that
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        super().process_request_thread(request, client_address)
        with self._lock:
            self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A prober that hangs up is no news."""


class _Handler(BaseHTTPRequestHandler):
    why_not_ready: Callable[[], str]
    registry: CollectorRegistry
    timeout = REQUEST_S
    server_version = "dovetail"
    sys_version = ""

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/health":
                self._answer(HTTPStatus.OK, "ok\n")
            case "/ready":
                why_not = self.why_not_ready()
                status = HTTPStatus.SERVICE_UNAVAILABLE if why_not else HTTPStatus.OK
                self._answer(status, f"{why_not or 'ready'}\n")
            case "/metrics":
                self._answer(HTTPStatus.OK, generate_latest(self.registry).decode())
            case _:
                self._answer(HTTPStatus.NOT_FOUND, "there are /health, /ready and /metrics\n")

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """No line for each probe."""
