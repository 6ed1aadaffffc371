"""APFed-S on patients of an OMOP CDM: a hospital, and a laboratory that measured their blood sugar.

    python -m benchmarks.omop

``examples/omop``: 2,000 made-up patients, a CDM for each party, one row a patient by each party's
own query. The hospital, without the HbA1c, predicts who returns. AUC on a quarter of its rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _results

OMOP = Path(__file__).parents[1] / "examples" / "omop"
SEEDS = (1, 2, 3)

RUN = """
method = "apfed"
parties = ["hospital.toml", "laboratory.toml"]
test = 0.25
"""


def write(folder: Path, *, patients: int, seed: int) -> None:
    """Both parties' CDMs and files, and the run file."""
    for name in ("hospital", "laboratory"):
        script = [sys.executable, str(OMOP / "make_cdm.py"), str(folder / name)]
        made = [*script, "--patients", str(patients), "--seed", str(seed)]
        subprocess.run(made, check=True)
    hospital = (OMOP / "hospital.toml").read_text().replace("NAME", "hospital")
    columns = 'columns = ["-last_known"'
    (folder / "hospital.toml").write_text(hospital.replace(columns, f'{columns}, "-hba1c"'))
    (folder / "laboratory.toml").write_text((OMOP / "laboratory.toml").read_text())
    (folder / "run.toml").write_text(RUN)


def measured(seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, patients=2000, seed=seed)
        command = [sys.executable, "-m", "dovetail.cli.main", "train", "run.toml", "--quiet"]
        subprocess.run([*command, "--out", "out"], cwd=folder, check=True)
        found = json.loads((folder / "out" / "result.json").read_text())["recovered"]
        percent = {key: 100 * found[key] for key in ("alone", "solo", "joint")}
        return {"seed": seed, "test rows": found["rows"], **percent}


def main() -> None:
    _results.write("omop", "APFed-S on an OMOP CDM", [measured(seed) for seed in SEEDS])


if __name__ == "__main__":
    main()
