"""Training from a table of 5 million rows by 20 columns: time, and peak memory against 4 GiB.

    python -m benchmarks.large_table

Writes a bank's Parquet file of so many rows and a shop's of a fifth of them, with the alignment
that ``dovetail align`` would leave, and runs ``dovetail train`` on them in a process of its own:
reads, encodes, trains one epoch of APFed-C, scores the test rows, saves the model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import numpy as np
import torch

from benchmarks import _results
from dovetail.alignment.stored import StoredRows, digest, save_rows

LIMIT_MIB = 4096

BANK = """
[party]
name = "bank"
table = "bank.parquet"
id = "person"
label = "bought"
"""

SHOP = """
[party]
name = "shop"
table = "shop.parquet"
id = "person"

[apfed]
encoder = [64, 32]
"""

RUN = """
method = "apfed"
parties = ["bank.toml", "shop.toml"]
test = 0.1
evaluate_every = 0
[apfed]
encoder = [64, 32]
epochs = 1
steps_per_epoch = 500
batch_size = 256
learning_rate = 0.02
"""

#: Runs the command and then tells its peak memory (not ru_maxrss, which a child inherits).
TRAIN = """
import re, runpy, sys
sys.argv = ["dovetail", "train", "run.toml", "--out", "out", "--quiet"]
try:
    runpy.run_module("dovetail.cli.main", run_name="__main__")
except SystemExit as done:
    assert not done.code, done.code
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def write_tables(folder: Path, num_rows: int) -> None:
    """Both parties' files. The label is a noisy function of three columns."""
    numbers = ", ".join(f"(random() + v{i % 3})::DOUBLE AS x{i}" for i in range(16))
    connection = duckdb.connect()
    connection.execute(
        "COPY (SELECT person, "
        "CASE WHEN v0 + v1 + random() > 1.5 THEN 'yes' ELSE 'no' END AS bought, "
        "['north', 'south', 'east', 'west'][1 + person % 4] AS region, "
        "CASE WHEN random() < 0.1 THEN NULL ELSE v2 * 100 END AS income, "
        f"{numbers} FROM (SELECT range AS person, random() AS v0, random() AS v1, random() AS v2 "
        f"FROM range({num_rows}))) TO '{folder}/bank.parquet'"
    )
    others = ", ".join(f"random() AS y{i}" for i in range(5))
    connection.execute(
        f"COPY (SELECT range * 5 AS person, {others} FROM range({num_rows // 5})) "
        f"TO '{folder}/shop.parquet'"
    )
    for name, text in {"bank.toml": BANK, "shop.toml": SHOP, "run.toml": RUN}.items():
        (folder / name).write_text(text)


def write_alignment(folder: Path, num_rows: int) -> None:
    """What ``dovetail align`` would write, known here without comparing ids."""
    bank, shop = np.arange(num_rows), np.arange(num_rows // 5) * 5
    rows_of_shop = torch.full((num_rows,), -1)
    rows_of_shop[torch.from_numpy(shop)] = torch.arange(len(shop))
    for name, ids, rows in (("bank", bank, torch.arange(num_rows)), ("shop", shop, rows_of_shop)):
        path = folder / f"{name}.aligned.safetensors"
        save_rows(path, StoredRows(name, "known", rows, digest(ids)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000, help="[5000000]")
    num_rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tables(folder, num_rows)
        write_alignment(folder, num_rows)
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", TRAIN], cwd=folder, check=True, capture_output=True, text=True
        )
        seconds = time.perf_counter() - started
        result = json.loads((folder / "out" / "result.json").read_text())
        row = {
            "rows": num_rows,
            "columns": 20,
            "Parquet MB": (folder / "bank.parquet").stat().st_size / 1e6,
            "seconds": seconds,
            "of these training": result["seconds"],
            "auc": result["parties"]["bank"]["auc"],
            "peak MiB": int(done.stdout.split()[-1]) / 1024,
            "at most MiB": LIMIT_MIB,
        }
    _results.write("large_table", "Training from a large table", [row])


if __name__ == "__main__":
    main()
