"""``dovetail serve`` beside bare Starlette handlers that call onnxruntime or LightGBM.

``DOVETAIL_DATA=... python -m benchmarks.serve [--seconds 5]`` asks all, of a model of Adult,
over real sockets, one row a request, with 1, 16 and 64 clients, in turns; then rows a second of
whole batches. Dovetail serves a run's folder, which PyTorch and NumPy answer, and the exported
file. The bare handlers check nothing: one calls onnxruntime on that file, one LightGBM on as many
trees of as many leaves, which it grew from the same rows. Server and clients share this machine's
cores, so processor time of the server says more than the clock where others work beside.
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

import numpy as np

from benchmarks._results import write
from benchmarks.export import LABELLED, models, table_of
from dovetail.companions.service.export import export
from dovetail.data import TableEncoder
from dovetail.data.tables import Table
from dovetail.models.learners.boosting import FEW_ROWS
from dovetail.models.learners.boosting_model import BoostedTrees

#: What the bare handlers are: parse, one call of the library, answer.
BARE = """
import json, sys
import numpy as np, uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

{library}

async def predict(request):
    rows = json.loads(await request.body())
    both = zip(*answered(rows))
    return JSONResponse(
        {{"predictions": [{{"prediction": v, "probabilities": p}} for v, p in both]}}
    )

app = Starlette(routes=[Route("/predict", predict, methods=["POST"])])
uvicorn.run(app, port=int(sys.argv[2]), log_level="error", access_log=False)
"""

ONNX = """
import onnxruntime

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options)
kinds = {
    each.name: np.float64 if each.type == "tensor(double)" else object
    for each in session.get_inputs()
}

def answered(rows):
    feeds = {
        name: np.array([[row[name]] for row in rows], dtype=kind) for name, kind in kinds.items()
    }
    values, probabilities = session.run(None, feeds)
    return values.tolist(), probabilities.tolist()
"""

LIGHTGBM = """
import lightgbm

booster = lightgbm.Booster(model_file=sys.argv[1])
kinds = json.load(open(sys.argv[1] + ".json"))

def answered(rows):
    x = np.array(
        [[k.get(row[n], -1) if k else row[n] for n, k in kinds.items()] for row in rows], float
    )
    chances = booster.predict(x, num_threads=1)
    return (chances > 0.5).tolist(), np.stack([1 - chances, chances], axis=1).tolist()
"""


def _grow(table: Table, trees: int, path: Path) -> None:
    """Write LightGBM's file of so many trees, and what its columns are."""
    import lightgbm

    train = table.take(np.arange(LABELLED))
    names = [name for name in table.names if name not in ("income", "split")]
    kinds: dict[str, dict[str, int]] = {}
    for name in names:
        values = train.column(name).values
        text = values.dtype.kind == "O"
        kinds[name] = {each: at for at, each in enumerate(sorted(set(values)))} if text else {}
    x = np.array(
        [
            [kinds[name].get(v, -1) if kinds[name] else v for v in train.column(name).values]
            for name in names
        ],
        float,
    ).T
    label = train.column("income").values
    grown = lightgbm.train(
        {"objective": "binary", "num_threads": 1, "verbose": -1, **vars(FEW_ROWS[0])},
        lightgbm.Dataset(x, label == label[0]),
        trees,
    )
    grown.save_model(path)
    path.with_name(f"{path.name}.json").write_text(json.dumps(kinds))


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


def _processor_s(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    trees = [each for each in model.network.modules() if isinstance(each, BoostedTrees)]
    num_trees = sum(len(each.forest().roots_T) for each in trees)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export(model, path)
        model.save(Path(folder) / "saved")
        _grow(table, num_trees or 100, Path(folder) / "model.txt")
        serve = [sys.executable, "-m", "dovetail.cli.main", "serve"]
        commands = {
            "dovetail serve, folder": [*serve, f"{folder}/saved", "--port"],
            "dovetail serve, .onnx": [*serve, str(path), "--port"],
        }
        for name, library, file in (("onnxruntime", ONNX, path), ("LightGBM", LIGHTGBM, None)):
            program = Path(folder) / f"bare-{name}.py"
            program.write_text(BARE.format(library=library))
            file = file or Path(folder) / "model.txt"
            commands[f"bare {name}"] = [sys.executable, str(program), str(file)]
        ports = dict(zip(commands, range(8461, 8500), strict=False))
        servers = {
            name: subprocess.Popen([*command, str(ports[name])], env=env, stderr=subprocess.DEVNULL)
            for name, command in commands.items()
        }
        lines: list[dict[str, Any]] = []
        try:
            for port in ports.values():
                _wait(port)
                asyncio.run(_ask(port, 1, json.dumps(rows[:1]).encode(), 1.0))  # warm
            for clients, size in ((1, 1), (16, 1), (64, 1), (1, 2000)):
                body = json.dumps(rows[:size]).encode()
                took: dict[str, list[float]] = {name: [] for name in ports}
                used = dict.fromkeys(ports, 0.0)
                for _ in range(given.turns):
                    for name, port in ports.items():
                        before = _processor_s(servers[name].pid)
                        took[name] += asyncio.run(_ask(port, clients, body, given.seconds))
                        used[name] += _processor_s(servers[name].pid) - before
                costs = {name: 1000 * used[name] / len(value) for name, value in took.items()}
                for name, value in took.items():
                    seconds = given.seconds * given.turns
                    lines.append(
                        {
                            "clients": clients,
                            "rows a request": size,
                            "server": name,
                            "p50 ms": round(1000 * statistics.median(value), 2),
                            "p99 ms": round(1000 * sorted(value)[int(0.99 * len(value))], 2),
                            "rows a second": round(len(value) * size / seconds),
                            "processor ms": round(costs[name], 3),
                            "beside bare onnxruntime": round(
                                costs[name] / costs["bare onnxruntime"], 2
                            ),
                        }
                    )
        finally:
            for server in servers.values():
                server.kill()
                server.wait()
    write("serve", "dovetail serve beside bare handlers", lines)


if __name__ == "__main__":
    main()
