"""Seconds until a user's mistake is answered, and in which words.

    python -m benchmarks.mistakes [--beside FOLDER]

Processor seconds of the whole command in a process of its own, of a compiled copy of the package,
as pip installs it; "beside" is another checkout's, in the same run by turns.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import duckdb

from benchmarks import _results
from benchmarks._installed import installed

#: What a mistake's answer need not read.
HEAVY = ("torch", "sklearn", "grpc", "numpy", "duckdb", "cryptography")
TARGET_S = 0.5
FILES = {
    "bank.csv": "id,age,ill\n" + "".join(f"{row},{row},{row % 2}\n" for row in range(60)),
    "shop.csv": "id,spent\n" + "".join(f"{row},{row}\n" for row in range(60)),
    "twice.csv": "id,spent\n" + "".join(f"{row // 2},{row}\n" for row in range(60)),
    "empty.csv": "",
    "bank.toml": '[party]\nname = "bank"\ntable = "bank.csv"\nid = "id"\nlabel = "ill"\n',
    "unlabelled.toml": '[party]\nname = "bank"\ntable = "bank.csv"\nid = "id"\nlabel = "sick"\n',
    "run.toml": 'method = "apfed"\nparties = ["bank.toml", "shop.toml"]\nbaseline = ["alone"]\n',
    "method.toml": 'method = "apfedd"\nparties = ["bank.toml", "shop.toml"]\n',
    **{
        f"{name}.toml": f'[party]\nname = "shop"\ntable = "{table}"\nid = "{column}"\n'
        for name, table, column in (
            ("shop", "shop.csv", "id"),
            ("column", "shop.csv", "customer"),
            ("twice", "twice.csv", "id"),
            ("empty", "empty.csv", "id"),
            ("gone", "nowhere.csv", "id"),
            ("stored", "nowhere.parquet", "id"),
            ("pieces", "twice.parquet", "id"),
        )
    },
}
MISTAKES = {
    "no such run file": "train nowhere.toml",
    "unknown key": "train run.toml",
    "unknown method": "train method.toml",
    "no such table": "align bank.toml gone.toml",
    "wrong id column": "align bank.toml column.toml",
    "repeated ids": "align bank.toml twice.toml",
    "empty table": "align bank.toml empty.toml",
    "no such label": "align unlabelled.toml shop.toml",
    "no such model to serve": "serve nowhere",
    "no such model to predict with": "predict nowhere bank.csv",
    "no such run to report": "report nowhere",
    "a record that is none": "ledger verify --record bank.toml",
    "no such parquet table": "align bank.toml stored.toml",
    "repeated ids in a parquet table": "align bank.toml pieces.toml",
    "no certificate": "join shop.toml --driver localhost:7443 --name bank",
    "no driver named": "join shop.toml --driver localhost:7443",
    "an address that is none": "join shop.toml --driver localhost --name bank",
    "a certificate of another": "join shop.toml --driver localhost:7443 --name bank "
    "--certificates certificates/bank",
}


def answered(words: str, folder: Path, path: Path) -> tuple[float, str]:
    """Processor seconds, and what is said."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "dovetail.cli.main", *words.split()],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, done.stderr.strip().splitlines()[-1].removeprefix("dovetail: ")


def read(words: str, folder: Path, path: Path) -> list[str]:
    """Which of the heavy libraries are read until then."""
    script = (
        "import sys; from dovetail.cli.main import main\n"
        f"try: main()\nfinally: print(*(each for each in {HEAVY!r} if each in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words.split()],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=Path, help="a folder with another version's dovetail/")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, text in FILES.items():
            (folder / name).write_text(text)
        ids = "SELECT range // 2 AS id, range AS spent FROM range(60)"
        duckdb.execute(f"COPY ({ids}) TO '{folder / 'twice.parquet'}' (FORMAT parquet)")
        (folder / "certificates" / "bank").mkdir(parents=True)
        here = installed(Path(__file__).parents[1], folder / "here")
        beside = given.beside and installed(given.beside, folder / "beside")
        for mistake, words in MISTAKES.items():
            row: dict[str, Any] = {"mistake": mistake, "dovetail": words}
            if beside is not None:
                row["beside s"] = answered(words, folder, beside)[0]
            spent, answer = answered(words, folder, here)
            row["reads"] = " ".join(read(words, folder, here)) or "none"
            answer = answer.replace(f"{folder}/", "")
            rows.append({**row, "cpu s": spent, "at most": TARGET_S, "said": answer})
    _results.write("mistakes", "Until a mistake is answered", rows)


if __name__ == "__main__":
    main()
