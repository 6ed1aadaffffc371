"""README's recipe for two machines by copy and paste, on bank marketing: does it learn.

    python -m benchmarks.recipe [--rows 6000] [--shared 0.8] [--labels 500] [--keep FOLDER]

The files and commands are read from README.md; only the host becomes this one. The bank has the
personal columns and the label, the shop what was said on the telephone. Two processes, two folders,
TLS, private set intersection. Prints test scores of the model that predicts alone, of the best one
without help, logistic regression and boosted trees of the same rows and columns, and of the joint
model.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dovetail import data as dd

README = Path(__file__).parents[1] / "README.md"
BANK = ("age", "job", "marital", "education", "default", "balance", "housing", "loan")
SHOP = ("contact", "day", "month", "duration", "campaign", "pdays", "previous", "poutcome")
#: What is printed of ``result.json``.
REPORTED = ("apfed", "best-alone", "linear", "boosting", "network", "majority", "joint")


def blocks() -> tuple[str, str]:
    """The shell blocks of the bank and of the shop."""
    section = README.read_text().split("## A bank and a shop on two machines")[1]
    bank, shop = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)[:2]
    return bank, shop


def tables(bank: Path, shop: Path, *, rows: int, shared: float, labels: int) -> None:
    """customers.csv, new-customers.csv and visits.csv."""
    rng = np.random.default_rng(0)
    table = dd.read_table(Path(os.environ["DOVETAIL_DATA"]) / "bank_marketing.parquet")
    drawn = rng.permutation(table.num_rows)[: rows + 200]
    columns = {name: table.column(name).values for name in (*BANK, *SHOP, "y")}
    people = np.array([f"c{number:05d}" for number in range(len(drawn))], dtype=object)
    bank_columns = {name: columns[name][drawn] for name in BANK}
    bought = columns["y"][drawn].astype(object)
    known = np.zeros(len(drawn), dtype=bool)
    known[rng.permutation(rows)[: labels or rows]] = True
    bought[~known] = ""
    train, new = slice(0, rows), slice(rows, None)
    dd.write_table(
        bank / "customers.csv",
        {
            "customer": people[train],
            **{n: v[train] for n, v in bank_columns.items()},
            "bought": bought[train],
        },
    )
    dd.write_table(
        bank / "new-customers.csv",
        {"customer": people[new], **{n: v[new] for n, v in bank_columns.items()}},
    )
    there = np.sort(rng.permutation(rows)[: round(shared * rows)])
    dd.write_table(
        shop / "visits.csv",
        {"customer": people[there], **{n: columns[n][drawn][there] for n in SHOP}},
    )


def paste(block: str, folder: Path, words: str, log: Path) -> subprocess.Popen[bytes]:
    """The block's commands, those of ``words`` at most, in a shell of their own."""
    script = block.split(words)[0] if words else block
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with log.open("ab") as file:
        return subprocess.Popen(
            ["bash", "-e", "-c", script],
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdout=file,
            stderr=file,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--shared", type=float, default=0.8, help="share that the shop knows")
    parser.add_argument("--labels", type=int, default=0, help="rows with a label; 0: all")
    parser.add_argument("--keep", type=Path, help="leave all in this folder")
    asked = parser.parse_args()
    folder = Path(asked.keep or tempfile.mkdtemp())
    bank, shop = folder / "bank", folder / "shop"
    for current in (bank, shop):
        current.mkdir(parents=True)
    tables(bank, shop, rows=asked.rows, shared=asked.shared, labels=asked.labels)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    at_bank, at_shop = (
        text.replace("bank.example.org", "localhost").replace("7443", str(port))
        for text in blocks()
    )
    log = folder / "log.txt"
    begun = time.monotonic()
    certificates = paste(at_bank, bank, "# hand certificates/shop/", log)
    assert certificates.wait(120) == 0, log.read_text()
    (shop / "certificates").mkdir()
    shutil.copytree(bank / "certificates" / "shop", shop / "certificates" / "shop")
    joined = paste(at_shop, shop, "dovetail ledger", log)
    commands = at_bank.split("# hand certificates/shop/")[1].partition("\n")[2]
    try:
        trained = paste(commands, bank, "", log)
        assert trained.wait() == 0, log.read_text()
    finally:
        joined.terminate()
        joined.wait(60)
    (result,) = (bank / "out").rglob("result.json")
    written = json.loads(result.read_text())
    scores = {"apfed": written["parties"], **written["baselines"]}
    print(shlex.join(["python", "-m", "benchmarks.recipe", *sys.argv[1:]]))
    print(f"{time.monotonic() - begun:.0f} s; test AUC:")
    for name in REPORTED:
        if name in scores:
            current = scores[name].get("bank", scores[name])  # a baseline's stand by themselves
            print(f"  {name:12} {100 * current['auc']:.1f}")
    if not asked.keep:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
