"""People without a common id: match keys by private set intersection, and splink in the clear.

    python -m benchmarks.match_keys [--peer-python PYTHON] [--clinic 100000 --registry 80000 ...]

The tables are those of ``examples/dirty_twins.py``. Both parties are in one process, which is a
process of its own, from files to files. PYTHON is an interpreter with splink and pandas, which sees
both tables unblinded; without one it is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._results import write

ROOT = Path(__file__).parents[1]

SPLINK = """
import sys, json, duckdb
import splink.comparison_library as cl
from splink import DuckDBAPI, Linker, SettingsCreator, block_on

folder = sys.argv[1]
con = duckdb.connect()
names = "lower(given) AS given, postcode, national_id, person"
l = con.sql(f"SELECT clinic_number AS unique_id, lower(surname) AS surname, birth_date, {names} "
            f"FROM read_csv('{folder}/clinic.csv', all_varchar = true)").df()
r = con.sql("SELECT registry_number AS unique_id, "
            "regexp_replace(lower(surname), '^(dr|prof)[.] ', '') AS surname, "
            f"strftime(strptime(birth_date, '%d.%m.%Y'), '%Y-%m-%d') AS birth_date, {names} "
            f"FROM read_csv('{folder}/registry.csv', all_varchar = true)").df()
settings = SettingsCreator(
    link_type="link_only",
    blocking_rules_to_generate_predictions=[
        block_on("national_id"), block_on("surname", "given"), block_on("birth_date", "postcode"),
        block_on("birth_date", "surname"), block_on("birth_date", "given"),
        block_on("surname", "postcode"),
    ],
    comparisons=[
        cl.JaroWinklerAtThresholds("surname", [0.9, 0.7]),
        cl.JaroWinklerAtThresholds("given", [0.9, 0.7]),
        cl.LevenshteinAtThresholds("birth_date", [1, 2]),
        cl.ExactMatch("postcode"), cl.ExactMatch("national_id"),
    ],
    additional_columns_to_retain=["person"],
)
db = DuckDBAPI()
tables = [db.register(l, dataset_display_name="l"), db.register(r, dataset_display_name="r")]
linker = Linker(tables, settings)
strict = [block_on("national_id"), block_on("surname", "given", "birth_date")]
linker.training.estimate_probability_two_random_records_match(strict, recall=0.7)
linker.training.estimate_u_using_random_sampling(max_pairs=1e6)
for rule in (block_on("surname", "given"), block_on("birth_date", "postcode")):
    linker.training.estimate_parameters_using_expectation_maximisation(rule)
found = linker.inference.predict(threshold_match_probability=0.9).as_pandas_dataframe()
found = found.sort_values("match_probability", ascending=False)
found = found.drop_duplicates("unique_id_l").drop_duplicates("unique_id_r")
both = len(set(l.person) & set(r.person))
right = int((found.person_l == found.person_r).sum())
print(json.dumps({"matched": len(found), "right": right, "in_both": both}))
"""


def measured(command: list[str]) -> tuple[dict[str, Any], float, float]:
    """What it prints last, and its seconds by the clock and of the processor."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    text = done.stdout.strip()
    return json.loads(text if text.startswith("{\n") else text.splitlines()[-1]), seconds, used


def row(
    what: str, counts: dict[str, Any], seconds: float | None, used: float | None
) -> dict[str, Any]:
    recall, matched = counts["right"] / counts["in_both"], counts["matched"]
    return {
        "by": what,
        "matched": matched,
        "recall": recall,
        "precision": f"{counts['right'] / matched:.5f}" if matched else "",
        "seconds": "" if seconds is None else round(seconds, 1),
        "processor s": "" if used is None else round(used, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clinic", type=int, default=100_000)
    parser.add_argument("--registry", type=int, default=80_000)
    parser.add_argument("--both", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer-python")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sizes = ("clinic", "registry", "both", "seed")
        words = [word for name in sizes for word in (f"--{name}", str(getattr(given, name)))]
        script = [sys.executable, str(ROOT / "examples" / "dirty_twins.py"), "--out", folder]
        subprocess.run([*script, *words], check=True, stdout=subprocess.DEVNULL)
        files = [f"{folder}/clinic.toml", f"{folder}/registry.toml"]
        command = [sys.executable, "-m", "dovetail.cli.main", "align", *files, "--json"]
        result, seconds, used = measured(command)
        truth = result["truth"]["registry"]
        rows, matched, right = [], 0, 0
        keys = result["keys"]["registry"]
        for key, of_key in zip(keys, truth["right_by_key"], strict=True):
            matched, right = matched + key["matched"], right + of_key
            counts = {**truth, "matched": matched, "right": right}
            last = key is keys[-1]
            what = f"{'' if key is keys[0] else 'and '}{key['key']}"
            rows.append(row(what, counts, *((seconds, used) if last else (None, None))))
        if given.peer_python:
            counts, seconds, used = measured([given.peer_python, "-c", SPLINK, folder])
            rows.append(row("splink, in the clear", counts, seconds, used))
    write(
        "match_keys",
        f"Dirty twins: {given.both:,} people at both a clinic of {given.clinic:,} and a registry "
        f"of {given.registry:,}",
        rows,
    )


if __name__ == "__main__":
    main()
