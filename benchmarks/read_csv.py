"""Reading a CSV file of a million rows by 40 columns: by rules for kinds, and as DuckDB guesses.

    python -m benchmarks.read_csv

30 columns of numbers (a tenth of one's values missing), 4 of categories, 3 of dates in ISO 8601,
two of codes and an id. Each way makes NumPy arrays of all columns: ``rules`` by ``dd.read_table``,
which takes the texts and decides each column's kind from all of them (docs/party-file.md);
``sniffer`` by DuckDB's ``read_csv`` alone, whose types are a guess from the file's first rows, with
no missing texts, no one date for all sources and no row named that does not fit. Dovetail before
the rules (the commit before 77c73502) guessed, too, and took 10.5 and 11.2 seconds of the processor
for this file, where the rules took 11.1 twice.
Ways take turns, each time in a process of its own; seconds are the median
of the turns, of the processor and of the clock, from the open file to the last array. ``ratio`` is
of the processor's seconds.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb

from benchmarks import _results
from dovetail import data as dd

ROWS, TURNS = 1_000_000, 3
NUMBERS, CATEGORIES, DATES, CODES = 30, 4, 3, 2


def write(path: Path, num_rows: int) -> None:
    """The table, with the same values each time."""
    columns = ["'p' || lpad(i::VARCHAR, 8, '0') AS id"]
    columns += ["if(i % 10 = 0, NULL, i % 97) AS x0"]
    columns += [f"round(hash(i, {n}) / 1e18 - {n}, 4) AS x{n}" for n in range(1, NUMBERS)]
    columns += [
        f"['north', 'east', 'south', 'west'][1 + (hash(i, {n}) % 4)::BIGINT] AS c{n}"
        for n in range(CATEGORIES)
    ]
    columns += [f"DATE '2020-01-01' + (hash(i, {n}) % 2000)::INTEGER AS d{n}" for n in range(DATES)]
    columns += [f"'K' || (hash(i, {n}) % 5000)::VARCHAR AS k{n}" for n in range(CODES)]
    query = f"SELECT {', '.join(columns)} FROM range({num_rows}) AS r(i)"
    duckdb.sql(f"COPY ({query}) TO '{path}' (HEADER)")


def by_rules(path: Path) -> int:
    """How many columns were read."""
    table = dd.read_table(path)
    for name in table.names:
        table.column(name, dd.kinds.ID if name == "id" else table.reading(name))
    return len(table.names)


def by_sniffer(path: Path) -> int:
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE data AS SELECT * FROM read_csv('{path}')")
    names = [row[0] for row in connection.execute("DESCRIBE data").fetchall()]
    for name in names:
        connection.execute(f"SELECT {name} FROM data").fetchnumpy()
    return len(names)


WAYS = {"sniffer": by_sniffer, "rules": by_rules}


def measure(way: str, path: Path) -> dict[str, float]:
    """What one reading takes, in this process."""
    clock, processor = time.perf_counter(), time.process_time()
    assert WAYS[way](path) == 1 + NUMBERS + CATEGORIES + DATES + CODES
    return {
        "processor s": time.process_time() - processor,
        "clock s": time.perf_counter() - clock,
        "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--turn", nargs=2, metavar=("WAY", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        print(json.dumps(measure(options.turn[0], Path(options.turn[1]))))
        return
    turns: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        write(path, options.rows)
        size = path.stat().st_size / 2**20
        for _ in range(TURNS):
            for way, found in turns.items():
                words = [sys.executable, "-m", "benchmarks.read_csv", "--turn", way, str(path)]
                done = subprocess.run(words, check=True, capture_output=True, text=True)
                found.append(json.loads(done.stdout))
    rows: list[dict[str, Any]] = [
        {"way": way, "rows": options.rows, "file MiB": size}
        | {name: statistics.median(each[name] for each in found) for name in found[0]}
        for way, found in turns.items()
    ]
    for row in rows:
        row["ratio"] = row["processor s"] / rows[0]["processor s"]
    _results.write("read_csv", "Reading a CSV file by rules, and as DuckDB guesses", rows)


if __name__ == "__main__":
    main()
