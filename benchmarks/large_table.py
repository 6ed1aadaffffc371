"""Training from tables of ever more rows by 40 columns: processor time, and memory against 4 GiB.

    python -m benchmarks.large_table
    python -m benchmarks.large_table --rows 10000000 --methods apfed-mixed

Writes a bank's Parquet file of so many rows, and those of partners with a fifth of them: a shop
that knows other columns of these people, and a branch that knows the same columns of others.
``dovetail train`` reads, encodes, trains, scores the test rows and saves the model, in a process of
its own; for APFed with the alignment that ``dovetail align`` would leave. "alone" is the network
that the bank trains by itself (the learner of APFed-D): numbers become 17 features each; of
FedOptimus the bank's table is dealt to two owners of columns and two of labels. APFed-S, with all
local baselines (trees, linear, network), has a label on 10,000 of the bank's rows: these copy the
rows that they learn from. Seconds of training are a pass over each party's rows of CHFL, HyFEM and
FedOptimus, 500 steps of APFed, all of APFed-S. What is planned follows from the last two that were
measured. What was measured before is kept beside it, with its day. "in memory" has no columns in
files.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import torch

from benchmarks import _results
from dovetail.alignment.stored import StoredRows, digest, save_rows

LIMIT_MIB = 4096
PLANNED, LEAST = 10_000_000, 1_000_000  # from no fewer rows
ROWS = (250_000, 500_000, 1_000_000, 2_000_000)
LOWER = (50_000, 200_000, 800_000)

PARTIES = {
    "bank": """
label = "bought"

[policy]
algorithms = ["align", "apfed-mixed", "chfl", "hyfem"]

[chfl]
test_share = 0.1

[hyfem]
test_share = 0.1
""",
    "shop": """
[policy]
algorithms = ["align", "apfed", "apfed-mixed"]

[apfed]
encoder = [64, 32]
""",
}
PARTIES["branch"] = PARTIES["bank"]

NETWORK = """
steps_per_epoch = 500
batch_size = 256
learning_rate = 0.02
"""

#: Method -> the run file, and the rows that are measured.
RUNS = {
    "apfed-mixed": (
        f"""
method = "apfed-mixed"
parties = ["bank.toml", "shop.toml"]
test = 0.1
evaluate_every = 0
[apfed]
encoder = [64, 32]
epochs = 1
{NETWORK}
""",
        ROWS,
    ),
    "apfed": (
        """
method = "apfed"
parties = ["bank.toml", "shop.toml"]
test = 0.1
""",
        (1_000_000, 3_000_000),
    ),
    "alone": (
        """
method = "network"
parties = ["bank.toml"]
test = 0.1
""",
        ROWS[:2],
    ),
    **{
        method: (
            f"""
method = "{method}"
parties = ["bank.toml", "branch.toml"]
[{method}]
rounds = 1
batch_size = 1024
""",
            LOWER,
        )
        for method in ("chfl", "hyfem")
    },
    "fedoptimus": (
        """
method = "fedoptimus"
[data]
source = "bank.parquet"
label = "bought"
id = "person"
test = 0.1
partition = { kind = "owners", data_owners = 2, label_owners = 2 }
[fedoptimus]
epochs = 1
batch_size = 1024
""",
        LOWER,
    ),
}

#: Rows with a label in APFed-S.
LABELS = 10_000

#: The same in memory, as far as it fits.
IN_MEMORY = ", in memory"
RUNS |= {f"{each}{IN_MEMORY}": (run, (1_000_000,)) for each, (run, _) in RUNS.items()}

#: Runs the command and then tells its peak memory (not ru_maxrss, which a child inherits).
TRAIN = """
import re, runpy, sys
if sys.argv[2] == "True":
    from dovetail.data import stored
    stored.IN_MEMORY_BYTES = stored.NUMBERS_BYTES = 1 << 60
sys.argv = ["dovetail", "train", sys.argv[1], "--out", "out", "--quiet"]
try:
    runpy.run_module("dovetail.cli.main", run_name="__main__")
except SystemExit as done:
    assert not done.code, done.code
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def write_tables(folder: Path, num_rows: int, every: int = 1) -> None:
    """All parties' files. The label is a noisy function of three columns; every so many has one."""
    numbers = ", ".join(f"(random() + v{i % 3})::DOUBLE AS x{i}" for i in range(36))
    connection = duckdb.connect()

    def people(start: int, stop: int) -> str:
        return (
            "SELECT person, "
            f"CASE WHEN person % {every} > 0 THEN NULL "
            "WHEN v0 + v1 + random() > 1.5 THEN 'yes' ELSE 'no' END AS bought, "
            "['north', 'south', 'east', 'west'][1 + person % 4] AS region, "
            "CASE WHEN random() < 0.1 THEN NULL ELSE v2 * 100 END AS income, "
            f"{numbers} FROM (SELECT range AS person, random() AS v0, random() AS v1, "
            f"random() AS v2 FROM range({start}, {stop}))"
        )

    others = ", ".join(f"random() AS y{i}" for i in range(5))
    for name, query in {
        "bank": people(0, num_rows),
        "branch": people(num_rows, num_rows + num_rows // 5),
        "shop": f"SELECT range * 5 AS person, {others} FROM range({num_rows // 5})",
    }.items():
        connection.execute(f"COPY ({query}) TO '{folder}/{name}.parquet'")
        head = f'[party]\nname = "{name}"\ntable = "{name}.parquet"\nid = "person"'
        (folder / f"{name}.toml").write_text(head + PARTIES[name])


def write_alignment(folder: Path, num_rows: int) -> None:
    """What ``dovetail align`` would write, known here without comparing ids."""
    bank, shop = np.arange(num_rows), np.arange(num_rows // 5) * 5
    rows_of_shop = torch.full((num_rows,), -1)
    rows_of_shop[torch.from_numpy(shop)] = torch.arange(len(shop))
    for name, ids, rows in (("bank", bank, torch.arange(num_rows)), ("shop", shop, rows_of_shop)):
        path = folder / f"{name}.aligned.safetensors"
        save_rows(path, StoredRows(name, "known", rows, digest(ids)))


def measured(method: str, num_rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        is_sealed = method.partition(",")[0] == "apfed"
        write_tables(folder, num_rows, num_rows // LABELS if is_sealed else 1)
        write_alignment(folder, num_rows)
        (folder / "run.toml").write_text(RUNS[method][0])
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", TRAIN, "run.toml", str(method.endswith(IN_MEMORY))],
            cwd=folder,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = json.loads((folder / "out" / "result.json").read_text())
        peak = int(done.stdout.split()[-1]) / 1024
        return {
            "method": method,
            "rows": num_rows,
            "what": "measured",
            "columns": 40,
            "Parquet MB": (folder / "bank.parquet").stat().st_size / 1e6,
            "processor s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "training s": result["variants"][result["method"]]["seconds"],
            "auc": next(iter(result["parties"].values()))["auc"],
            "peak MiB": peak,
            "bytes a value": peak * 2**20 / num_rows / 40,
            "at most MiB": LIMIT_MIB,
        }


def planned(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Ten million, by the line through the last two."""
    one, two = rows[-2], rows[-1]
    steps = (PLANNED - two["rows"]) / (two["rows"] - one["rows"])
    keys = ("Parquet MB", "processor s", "peak MiB")
    grown: dict[str, Any] = {key: two[key] + steps * (two[key] - one[key]) for key in keys}
    grown |= {"training s": None, "auc": None}  # nobody has seen it
    each = grown["peak MiB"] * 2**20 / PLANNED / 40
    return {**two, **grown, "rows": PLANNED, "what": "planned", "bytes a value": each}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", help="of each method; else its own")
    parser.add_argument("--methods", nargs="+", default=list(RUNS), choices=list(RUNS))
    asked = parser.parse_args()
    for method in asked.methods:
        for num in asked.rows or RUNS[method][1]:
            write(measured(method, num))


def write(row: dict[str, Any]) -> None:
    """Put what was measured last among what was measured before, each with its day and version."""
    rows: list[dict[str, Any]] = []
    row |= {key: _results.machine()[key] for key in ("date", "commit")}
    path = _results.FOLDER / "large_table.jsonl"  # before() would leave the days out
    lines = path.read_text().splitlines() if path.is_file() else []
    before = [{key: each.get(key) for key in row} for each in map(json.loads, lines)]
    for method in RUNS:
        by_rows = {each["rows"]: each for each in [*before, row] if each["method"] == method}
        by_rows = {num: each for num, each in sorted(by_rows.items()) if each["what"] == "measured"}
        rows += by_rows.values()
        if len(by_rows) > 1 and LEAST <= max(by_rows) < PLANNED:
            rows.append(planned(list(by_rows.values())))
    _results.write("large_table", "Training from a large table", rows)


if __name__ == "__main__":
    main()
