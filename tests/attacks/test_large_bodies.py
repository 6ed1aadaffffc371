"""Bodies that unpack to gigabytes, or that stop before their end, at a service in its process."""

import contextlib
import http.client
import io
import re
import socket
import struct
import threading
import time

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from learned import clinic_table, fitted_model
from serving import serving

from dovetail.companions.service.bodies import read_body
from dovetail.errors import DataError
from dovetail.models.learners.linear import Linear

MIB = 2**20
PARQUET = "application/vnd.apache.parquet"
ROW = {"age": [51.5], "job": ["cook"], "smoker": [True], "admitted": ["2024-05-01"]}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bodies")
    fitted_model(clinic_table(300), [Linear()]).save(folder / "clinic")
    with serving(folder / "clinic", folder / "log") as (address, pid):
        host, port = address.removeprefix("http://").split(":")
        yield host, int(port), psutil.Process(pid)


def parquet(*, coded=False, **columns):
    body = io.BytesIO()
    table = pa.table({**{name: pa.array(each) for name, each in ROW.items()}, **columns})
    pq.write_table(table, body, compression="zstd", use_dictionary=coded, write_statistics=False)
    return body.getvalue()


def lying(body, size, number):
    """The file with another size in its metadata."""
    length = struct.unpack("<I", body[-8:-4])[0]
    pages, metadata = body[: -8 - length], body[-8 - length : -8]
    wanted = _varint(2 * size)
    assert wanted in metadata
    digits = [(2 * number) >> 7 * index & 127 for index in range(len(wanted))]
    forged = bytes(
        [each | 128 for each in digits[:-1]] + digits[-1:]
    )  # as long, with zeros in front
    metadata = metadata.replace(wanted, forged)
    return pages + metadata + struct.pack("<I", len(metadata)) + b"PAR1"


def _varint(number):
    encoded = b""
    while number > 127:
        encoded += bytes([number & 127 | 128])
        number >>= 7
    return encoded + bytes([number])


@contextlib.contextmanager
def watched(process):
    """The most memory, in MiB, above what the process has now."""
    before, most, stopped = process.memory_info().rss, [0.0], threading.Event()

    def watch():
        while not stopped.wait(0.01):
            most[0] = max(most[0], (process.memory_info().rss - before) / MIB)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        stopped.set()
        thread.join()


def post(served, body, kind):
    host, port, _ = served
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=120)) as asked:
        asked.request("POST", "/predict", body, {"content-type": kind})
        reply = asked.getresponse()
        return reply.status, reply.read().decode()


LONG = 300 * MIB


@pytest.mark.network
@pytest.mark.parametrize(
    ("columns", "why"),
    [  # made in the test: every process that looks for tests would hold a gigabyte
        (lambda: {"job": pa.array(["a" * LONG])}, "columns take .* bytes unpacked"),
        (lambda: {"job": pa.array([b"a" * LONG])}, "columns take .* bytes unpacked"),
        (lambda: {"job": pa.array([["a" * LONG]])}, "columns take .* bytes unpacked"),
        (lambda: {"job": pa.array([{"a": "a" * LONG}])}, "columns take .* bytes unpacked"),
        (lambda: {"age": pa.array([np.zeros(50_000_000, np.int8)])}, "has the type TINYINT"),
    ],
    ids=["text", "binary", "texts in a list", "a text in a struct", "a list of nothing but 0"],
)
def test_a_parquet_body_that_would_unpack_to_much_is_refused_unread(served, columns, why):
    body = parquet(**columns(), coded=why.endswith("TINYINT"))
    assert len(body) < 200_000
    with watched(served[2]) as most:
        status, reply = post(served, body, PARQUET)
    assert status == 422
    assert re.search(why, reply)
    assert most[0] < 100


@pytest.mark.network
def test_a_page_that_is_longer_than_the_metadata_say_is_not_unpacked(served):
    body = parquet(job=pa.array(["a" * LONG]))
    metadata = pq.read_metadata(io.BytesIO(body)).row_group(0)
    chunk = next(
        each
        for each in (metadata.column(i) for i in range(metadata.num_columns))
        if each.path_in_schema == "job"
    )
    body = lying(body, chunk.total_uncompressed_size, 1000)
    with watched(served[2]) as most:
        status, reply = post(served, body, PARQUET)
    assert status == 422, reply
    assert "Out of Memory" in reply
    assert most[0] < 100


def test_more_rows_than_the_metadata_say_are_not_read():
    body = io.BytesIO()
    many = pa.table({"age": pa.array([7] * 1_000_000)})
    pq.write_table(many, body, compression="zstd", write_statistics=False)
    few = read_body(lying(body.getvalue(), 1_000_000, 9), ".parquet", most_rows=9, columns=["age"])
    assert few.num_rows == len(few.column("age").values) == 9
    with pytest.raises(DataError, match="1000000 rows, more than the 20"):
        read_body(body.getvalue(), ".parquet", most_rows=20, columns=["age"])


def test_a_list_of_two_thousand_million_columns_is_not_made():
    body = io.BytesIO()
    pq.write_table(pa.table({"age": [1, 2]}), body)
    length = struct.unpack("<I", body.getvalue()[-8:-4])[0]
    metadata = body.getvalue()[-8 - length : -8]
    schema = metadata.index(b"\x19")
    forged = metadata[: schema + 1] + bytes([0xF0 | metadata[schema + 1] & 15])
    forged += _varint(2**31 - 1) + metadata[schema + 2 :]
    content = body.getvalue()[: -8 - length] + forged + struct.pack("<I", len(forged)) + b"PAR1"
    with pytest.raises(DataError, match="the body cannot be read as parquet"):
        read_body(content, ".parquet", most_rows=20, columns=["age"])


def test_a_csv_body_of_far_more_lines_or_of_one_long_line_is_refused_at_once():
    for content, why in (
        (b"age\n" + b"1\n" * 5_000_000, "the body has 5000001 lines"),
        (b"age\n" + b"9" * 15 * MIB, "a line of the body has 15728640 bytes"),
        (b"age\n" + b'"' * 8 * MIB, "a line of the body has 8388608 bytes"),
    ):
        began = time.process_time()
        with pytest.raises(DataError, match=why):
            read_body(content, ".csv", most_rows=20_000, columns=["age"])
        assert time.process_time() - began < 2  # DuckDB takes 4 s and more to refuse each


@pytest.mark.network
def test_forty_large_bodies_that_stop_before_their_end_take_little_memory(served):
    host, port, process = served
    blob = b"[" + b" " * (15 * MIB)
    head = (
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % (len(blob) + 10)
    )
    with contextlib.ExitStack() as stack, watched(process) as most:
        left = {}
        for _ in range(40):
            stalled = stack.enter_context(socket.create_connection((host, port)))
            stalled.sendall(head)
            stalled.setblocking(False)
            left[stalled] = memoryview(blob)
        until = time.monotonic() + 5
        while time.monotonic() < until:  # all that the service takes
            for stalled, rest in left.items():
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    left[stalled] = rest[stalled.send(rest[:MIB]) :]
        body = b'{"age": 51.5, "job": "cook", "smoker": true, "admitted": "2024-05-01"}'
        assert post(served, body, "application/json")[0] == 200
    assert most[0] < 100  # 40 bodies would be 600
