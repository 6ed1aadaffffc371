"""A room under a hundred open pages and a scraper: its memory and answers a second stay flat.

    python -m benchmarks.room [--minutes 10]

A hundred clients hold the line of events open, a scraper asks for the page again and again, and a
run's files change every second, so that every page is told. Printed and kept for each tenth of the
time: resident memory of the room's process, answers of the page a second, events a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from benchmarks import _results

PAGES = 100

RUN = 'method = "alone"\n[data]\nsource = "breast-cancer"\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(_measured(Path(folder), minutes * 60))
    _results.write("room", "A room under a hundred open pages and a scraper", rows)


async def _measured(folder: Path, seconds: float) -> list[dict[str, float]]:
    for number in range(20):
        run = folder / "out" / f"run-{number}"
        run.mkdir(parents=True)
        (run / "run.toml").write_text(RUN)
    started = [sys.executable, "-c", "from dovetail.cli.main import main; main()"]
    room = subprocess.Popen(
        [*started, "room", "out", "--port", "0", "--quiet"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert room.stdout is not None
    address = room.stdout.readline().strip()
    found = re.match(r"(http://[^/]+)/\?token=(\S+)", address)
    assert found is not None, address
    counts = {"answers": 0, "events": 0}
    try:
        limits = httpx.Limits(max_connections=PAGES + 10)
        async with httpx.AsyncClient(base_url=found[1], limits=limits, timeout=None) as client:
            await client.get("/", params={"token": found[2]}, follow_redirects=True)
            jobs = [asyncio.create_task(_page(client, counts)) for _ in range(PAGES)]
            jobs += [asyncio.create_task(_scraper(client, counts))]
            jobs += [asyncio.create_task(_changes(folder / "out" / "run-0"))]
            rows = await _looked_at(psutil.Process(room.pid), counts, seconds)
            for job in jobs:
                job.cancel()
    finally:
        room.terminate()
        room.wait()
    return rows


async def _page(client: httpx.AsyncClient, counts: dict[str, int]) -> None:
    async with client.stream("GET", "/events") as answer:
        async for line in answer.aiter_lines():
            counts["events"] += line.startswith("event:")


async def _scraper(client: httpx.AsyncClient, counts: dict[str, int]) -> None:
    while True:
        answer = await client.get("/")
        assert answer.status_code == 200
        counts["answers"] += 1


async def _changes(run: Path) -> None:
    number = 0
    with (run / "metrics.jsonl").open("a") as file:
        while True:
            number += 1
            line = {"variant": "alone", "epoch": number, "seconds": 1.0, "accuracy": 0.5}
            file.write(json.dumps(line) + "\n")
            file.flush()
            await asyncio.sleep(1.0)


async def _looked_at(
    process: psutil.Process, counts: dict[str, int], seconds: float
) -> list[dict[str, float]]:
    rows = []
    await asyncio.sleep(5.0)  # all pages are open
    for part in range(10):
        before, began = dict(counts), time.monotonic()
        await asyncio.sleep(seconds / 10)
        passed = time.monotonic() - began
        rows.append(
            {
                "minute": round((part + 1) * seconds / 600, 2),
                "MB": round(process.memory_info().rss / 1e6, 1),
                "answers a second": round((counts["answers"] - before["answers"]) / passed, 1),
                "events a second": round((counts["events"] - before["events"]) / passed, 1),
            }
        )
        print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    main()
