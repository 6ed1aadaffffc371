"""``dovetail serve`` beside a bare Starlette handler that calls onnxruntime on the same file.

``DOVETAIL_DATA=... python -m benchmarks.serve [--seconds 5]`` asks both, of a model of Adult,
over real sockets, one row a request, with 1, 16 and 64 clients, in turns; then rows a second of
whole batches. Server and clients share this machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._results import write

#: What the bare handler is: parse, one run of the file, answer.
BARE = """
import json, sys
import numpy as np, onnxruntime, uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options)
kinds = {
    each.name: np.float64 if each.type == "tensor(double)" else object
    for each in session.get_inputs()
}

async def predict(request):
    rows = json.loads(await request.body())
    feeds = {
        name: np.array([[row[name]] for row in rows], dtype=kind) for name, kind in kinds.items()
    }
    values, probabilities = session.run(None, feeds)
    both = zip(values.tolist(), probabilities.tolist())
    return JSONResponse(
        {"predictions": [{"prediction": v, "probabilities": p} for v, p in both]}
    )

app = Starlette(routes=[Route("/predict", predict, methods=["POST"])])
uvicorn.run(app, port=int(sys.argv[2]), log_level="error", access_log=False)
"""


async def _client(port: int, body: bytes, until: float, took: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    asked = (
        b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        + f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    while time.perf_counter() < until:
        began = time.perf_counter()
        writer.write(asked)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise SystemExit(head.decode())
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        took.append(time.perf_counter() - began)
    writer.close()


async def _ask(port: int, clients: int, body: bytes, seconds: float) -> list[float]:
    took: list[float] = []
    until = time.perf_counter() + seconds
    await asyncio.gather(*(_client(port, body, until, took) for _ in range(clients)))
    return took


def _wait(port: int) -> None:
    import socket

    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"nothing listens on {port}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--learner", default="boosting", help="of Adult: linear, boosting, network")
    given = parser.parse_args()
    from benchmarks.export import models, table_of
    from dovetail.companions.service.export import export
    from dovetail.data import TableEncoder

    kind = f"APFed-D, {given.learner}"
    model = next(value for name, value in models("adult") if name == kind)
    table = table_of("adult")
    encoder = next(each for each in model.inputs.values() if isinstance(each, TableEncoder))
    raw = encoder.raw(table)
    rows = [
        {
            name: (value[row] if value.dtype.kind == "O" else float(value[row]))
            for name, value in raw.items()
        }
        for row in range(min(2000, table.num_rows))
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export(model, path)
        (Path(folder) / "bare.py").write_text(BARE)
        ports = {"dovetail serve": 8461, "bare Starlette": 8462}
        servers = [
            subprocess.Popen(
                [sys.executable, "-m", "dovetail.cli.main", "serve", str(path), "--port", "8461"],
                env=env,
                stderr=subprocess.DEVNULL,
            ),
            subprocess.Popen([sys.executable, f"{folder}/bare.py", str(path), "8462"], env=env),
        ]
        lines: list[dict[str, Any]] = []
        try:
            for port in ports.values():
                _wait(port)
            for clients, size in ((1, 1), (16, 1), (64, 1), (1, 2000)):
                body = json.dumps(rows[:size]).encode()
                took: dict[str, list[float]] = {name: [] for name in ports}
                for _ in range(given.turns):
                    for name, port in ports.items():
                        took[name] += asyncio.run(_ask(port, clients, body, given.seconds))
                medians = {name: statistics.median(value) for name, value in took.items()}
                for name, value in took.items():
                    seconds = given.seconds * given.turns
                    lines.append(
                        {
                            "clients": clients,
                            "rows a request": size,
                            "server": name,
                            "median ms": round(1000 * medians[name], 2),
                            "p99 ms": round(1000 * sorted(value)[int(0.99 * len(value))], 2),
                            "rows a second": round(len(value) * size / seconds),
                            "median beside bare": round(
                                medians[name] / medians["bare Starlette"], 2
                            ),
                        }
                    )
        finally:
            for server in servers:
                server.kill()
                server.wait()
    write("serve", "dovetail serve beside a bare handler", lines)


if __name__ == "__main__":
    main()
