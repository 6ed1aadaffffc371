"""A Flight SQL server over DuckDB, for tests: what an ADBC driver asks of one that only reads."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.flight as flight

#: List -> its columns that the protocol says are never missing.
_NEVER_MISSING = {
    "CommandGetCatalogs": ("catalog_name",),
    "CommandGetDbSchemas": ("db_schema_name",),
    "CommandGetTables": ("table_name", "table_type"),
}

_URL = b"type.googleapis.com/arrow.flight.protocol.sql."


def _field(number: int, value: bytes) -> bytes:
    """A protobuf message's field of bytes."""
    head, size = bytes([number << 3 | 2]), len(value)
    while size > 0x7F:
        head += bytes([size & 0x7F | 0x80])
        size >>= 7
    return head + bytes([size]) + value


def _fields(message: bytes) -> dict[int, bytes]:
    """A protobuf message's fields of bytes by their numbers; others are passed over."""
    found, at = {}, 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        number, kind = divmod(varint(), 8)
        size = varint()
        if kind == 2:
            found[number] = message[at : at + size]
            at += size
    return found


def _packed(name: bytes, value: bytes) -> bytes:
    return _field(1, _URL + name) + _field(2, value)


def _unpacked(message: bytes) -> tuple[str, dict[int, bytes]]:
    """The name of what an ``Any`` holds, and its fields."""
    fields = _fields(message)
    return fields[1].removeprefix(_URL).decode(), _fields(fields.get(2, b""))


class _Basic(flight.ServerMiddlewareFactory):
    """Who says name and password has a token, which later calls show."""

    def __init__(self, user: str, password: str) -> None:
        super().__init__()
        word = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._allowed = {f"Basic {word}".rstrip("="), "Bearer token"}

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> flight.ServerMiddleware:
        given = headers.get("authorization", [""])[0]
        if given.rstrip("=") not in self._allowed:  # some clients leave the padding out
            raise flight.FlightUnauthenticatedError("invalid username or password")
        return _Token()


class _Token(flight.ServerMiddleware):
    def sending_headers(self) -> dict[str, str]:
        return {"authorization": "Bearer token"}


class _Open(flight.ServerAuthHandler):
    """The handshake itself asks nothing: ``_Basic`` has looked at its header."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None: ...

    def is_valid(self, token: bytes) -> str:
        return ""


class Server(flight.FlightServerBase):
    """Tables of a DuckDB connection."""

    def __init__(self, database: duckdb.DuckDBPyConnection, user: str, password: str) -> None:
        middleware = {"basic": _Basic(user, password)}
        super().__init__("grpc://127.0.0.1:0", auth_handler=_Open(), middleware=middleware)
        self._database = database

    def _made(self, command: bytes) -> pa.Table:
        name, fields = _unpacked(command)
        never = _NEVER_MISSING.get(name, ())
        listed = {
            "CommandGetCatalogs": "SELECT 'clinic' AS catalog_name",
            "CommandGetDbSchemas": "SELECT 'clinic' AS catalog_name, 'main' AS db_schema_name",
            "CommandGetTables": "SELECT 'clinic' AS catalog_name, 'main' AS db_schema_name, "
            "table_name, 'TABLE' AS table_type FROM duckdb_tables() ORDER BY table_name",
        }
        if name in ("CommandPreparedStatementQuery", "CommandStatementQuery"):
            query = fields[1].decode()
        elif name in listed:
            query = listed[name]
        else:
            raise NotImplementedError(name)
        try:
            made = self._database.cursor().sql(query).to_arrow_table()
        except duckdb.Error as error:
            raise flight.FlightServerError(str(error)) from None
        # The driver refuses a list whose columns may be missing where the protocol says never.
        fields = [each.with_nullable(each.name not in never) for each in made.schema]
        return made.cast(pa.schema(fields))

    def get_flight_info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        table = self._made(descriptor.command)
        endpoint = flight.FlightEndpoint(descriptor.command, [])
        return flight.FlightInfo(table.schema, descriptor, [endpoint], table.num_rows, -1)

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.RecordBatchStream:
        return flight.RecordBatchStream(self._made(ticket.ticket))

    def do_action(self, context: Any, action: flight.Action) -> list[bytes]:
        if action.type != "CreatePreparedStatement":
            return []
        _, fields = _unpacked(action.body.to_pybytes())
        made = _field(1, fields[1])  # the query is its own handle
        return [_packed(b"ActionCreatePreparedStatementResult", made)]


@contextmanager
def flight_sql(database: duckdb.DuckDBPyConnection, user: str, password: str) -> Iterator[int]:
    """A server of these tables; gives its port."""
    with Server(database, user, password) as server:
        yield server.port
