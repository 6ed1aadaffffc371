"""Bodies that strangers send: how many bytes at once, and what a CSV or Parquet body may become.

A body of 120 kB can unpack to gigabytes. So sizes are looked at before anything is unpacked: those
of the file's metadata here, those of its pages by DuckDB (``data/duck.py``), which has little
memory for all bodies together.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace

import duckdb
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from dovetail import data as dd
from dovetail.companions.service.rows import check_count
from dovetail.data.duck import bounded_cursor, first_line
from dovetail.errors import DataError
from dovetail.settings.sources import literal, quoted

#: A body of fewer bytes does not wait for others: the socket's buffers hold as many anyway.
SMALL = 2**16
#: A body that others wait for brings so many bytes in so many seconds.
_LEAST, _EACH_S = 2**16, 2.0

#: The most bytes of the columns of a Parquet body once they are unpacked, and of its texts, each
#: row's by itself.
_MOST_BYTES, _MOST_TEXT_BYTES = 2**27, 2**26
#: So many columns may a body have that the model does not, and as many again as it has.
_MOST_OTHERS = 1000
#: The longest line of a CSV body, and how many lines a row may take.
_MOST_LINE, _MOST_LINES = 2**21, 4


class BodyGate:
    """Lets few large bodies in at once.

    Args:
        in_flight: bytes of bodies that are held together, but for small ones.
    """

    def __init__(self, in_flight: int) -> None:
        self._most = self._free = in_flight
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        #: Held while a large body is unpacked.
        self.alone = asyncio.Lock()

    @asynccontextmanager
    async def body(self, request: Request, *, most: int, within_s: float) -> AsyncIterator[bytes]:
        """A request's body; its bytes count until the block ends.

        Args:
            most: bytes of it.
            within_s: seconds for it to come, and before that for others to go.

        Raises:
            HTTPException: 400 none, 408 too late, 413 too large, 503 too many others.
            ClientDisconnect: who asks went away.
        """
        length = request.headers.get("content-length", "")
        size = int(length[:20]) if length.isdigit() else most
        if length.isdigit() and size > most:
            raise _too_large(most)
        size = 0 if size <= SMALL else min(size, self._most)
        content = bytearray()
        # A body that is announced and does not come takes no place from one that does.
        whole = await self._read(request, content, most, within_s, until=SMALL)
        await self._enter(size, within_s)
        try:
            if not whole:
                await self._read(request, content, most, within_s)
            if not content:
                raise HTTPException(400, "the body is empty; send rows, as GET /schema says them")
            yield bytes(content)
        finally:
            self._leave(size)

    async def _enter(self, size: int, within_s: float) -> None:
        if not size or (not self._waiting and size <= self._free):
            self._free -= size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            async with asyncio.timeout(within_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._leave(size)
            elif (size, turn) in self._waiting:
                self._waiting.remove((size, turn))
                self._leave(0)
            if isinstance(error, TimeoutError):
                raise HTTPException(
                    503, "too many large bodies at once; ask again", headers={"retry-after": "5"}
                ) from None
            raise

    def _leave(self, size: int) -> None:
        self._free += size
        while self._waiting and self._waiting[0][0] <= self._free:
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._free -= size
                turn.set_result(None)

    async def _read(
        self,
        request: Request,
        content: bytearray,
        most: int,
        within_s: float,
        *,
        until: int | None = None,
    ) -> bool:
        """Put on what comes, to the end or until there are so many bytes; whether it is whole."""
        loop = asyncio.get_running_loop()
        late = HTTPException(408, f"the body did not come within {within_s:g} s")
        due, before = loop.time() + _EACH_S, len(content)
        last = loop.time() + within_s
        while True:
            try:
                async with asyncio.timeout_at(min(due, last)):
                    message = await request.receive()
            except TimeoutError:
                if loop.time() >= last:
                    raise late from None
                if until is None and self._waiting and len(content) - before < _LEAST:
                    raise HTTPException(
                        408, "the body came too slowly while others waited; send it again"
                    ) from None
                due, before = loop.time() + _EACH_S, len(content)
                continue
            if loop.time() >= last:
                raise late
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            content += message.get("body", b"")
            if len(content) > most:
                raise _too_large(most)
            if not message.get("more_body", False):
                return True
            if until is not None and len(content) >= until:
                return False


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"the body is larger than {most} bytes; send several")


def read_body(content: bytes, suffix: str, *, most_rows: int, columns: Collection[str]) -> dd.Table:
    """A CSV or Parquet body as a table, of whose columns only these can be read.

    Raises:
        DataError: it cannot be read as one, or would be too large.
    """
    if suffix == ".csv":
        _check_lines(content, most_rows, len(columns))
    cursor, folder = bounded_cursor()
    with cursor, tempfile.NamedTemporaryFile(dir=folder, suffix=suffix) as file:
        file.write(content)
        file.flush()
        try:
            if suffix == ".parquet":
                _check_unpacked(cursor, file.name, columns)
            table = dd.read_table(file.name, cursor=cursor.cursor(), columns=columns)
            check_count(table.num_rows, most_rows)  # before any value is read
            if suffix == ".parquet":
                _check_texts(cursor, file.name, columns)
            return replace(
                table.in_memory(name for name in table.names if name in columns),
                description="the body",
            )
        except DataError as error:
            said = str(error).replace(file.name, "the body")
            if "python -c" in said:  # a command for who has the file
                said = "the body is no CSV in UTF-8; send it so"
            raise DataError(said) from None
        except duckdb.Error as error:
            why = first_line(error).replace(file.name, "the body")
            raise DataError(f"the body cannot be read as {suffix[1:]} ({why})") from None
        except (ValueError, UnicodeDecodeError, OverflowError) as error:
            raise DataError(f"the body cannot be read as {suffix[1:]} ({error})") from None


def _check_lines(content: bytes, most_rows: int, num_columns: int) -> None:
    """Refuse what DuckDB would look at for seconds."""
    lines = content.splitlines()
    if len(lines) > _MOST_LINES * (most_rows + 1):
        raise DataError(
            f"the body has {len(lines)} lines, and one request may have {most_rows} rows; send "
            "several"
        )
    longest = max(map(len, lines), default=0)
    if longest > _MOST_LINE:
        raise DataError(f"a line of the body has {longest} bytes, and may have {_MOST_LINE}")
    num = max((line.count(mark) for line in lines for mark in b",;|\t"), default=0)
    _check_width(num, num_columns)


def _check_width(num: int, num_columns: int) -> None:
    """Refuse far more columns than are read: DuckDB takes minutes of 100,000 in a small file."""
    if num > 2 * num_columns + _MOST_OTHERS:
        raise DataError(
            f"the body has {num} columns, and the model {num_columns}; send those of GET /schema"
        )


def _check_unpacked(cursor: duckdb.DuckDBPyConnection, path: str, columns: Collection[str]) -> None:
    """Refuse columns that are too long by the file's own metadata; nothing is unpacked."""
    file = literal(path)
    row = cursor.execute(f"SELECT count(*) FROM parquet_schema({file})").fetchone()
    _check_width(int(row[0]) - 1 if row else 0, len(columns))
    names = ", ".join(map(literal, columns))
    row = cursor.execute(
        # "a, list, element" is a part of a column a
        "SELECT sum(total_uncompressed_size) FROM "
        f"parquet_metadata({file}) WHERE list_contains([{names}], split_part(path_in_schema, "
        f"', ', 1)) OR list_contains([{names}], path_in_schema)"
    ).fetchone()
    num_bytes = int(row[0] or 0) if row else 0
    _check_bytes("columns", num_bytes, _MOST_BYTES)


def _check_bytes(what: str, num_bytes: int, most: int) -> None:
    if num_bytes > most:
        raise DataError(
            f"the body's {what} take {num_bytes} bytes unpacked, more than the {most} that one "
            "request may have; send fewer rows at a time, and no column of long texts"
        )


def _check_texts(cursor: duckdb.DuckDBPyConnection, path: str, columns: Collection[str]) -> None:
    """Refuse texts that are short in the file, as each is there once, and long in the rows."""
    read = f"read_parquet({literal(path)})"
    described = cursor.execute(f"DESCRIBE SELECT * FROM {read}").fetchall()
    texts = [quoted(name) for name, kind, *_ in described if kind == "VARCHAR" and name in columns]
    if not texts:
        return
    asked = ", ".join(f"sum(strlen({name}))" for name in texts)
    sums = cursor.execute(f"SELECT {asked} FROM {read}").fetchone() or ()
    num_bytes = sum(int(each or 0) for each in sums)
    _check_bytes("texts", num_bytes, _MOST_TEXT_BYTES)
