"""What three partners of a bank are worth by ``dovetail value``, solo and joint.

    python -m benchmarks.partner_value

Credit card clients of ``DOVETAIL_DATA``: the bank has limit, sex, education, marriage, age and
1,000 labels of 4,000 rows; partners have repayment status, payments, and three columns of noise.
APFed-S, three seeds, every set of partners. The result goes to ``results/partner_value.jsonl``, the
table to docs/value.md.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import _results
from dovetail.api.valuing import value

RUN = '''
method = "apfed"
seeds = [0, 1, 2]
[data]
source = """
SELECT *,
       sin(ID * 12.9898) * 43758.5453 % 1 AS noise_1,
       sin(ID * 78.233) * 24634.6345 % 1 AS noise_2,
       sin(ID * 37.719) * 9631.4531 % 1 AS noise_3
FROM 'FOLDER/default_credit.parquet'
"""
label = "default.payment.next.month"
id = "ID"
folders = ["FOLDER"]
test = 0.25
rows = 4000
labels = 1000
categorical = ["SEX", "EDUCATION", "MARRIAGE"]
[data.partition]
kind = "columns"
active = "bank"
[data.partition.parties]
bank = ["LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE"]
bureau = ["PAY_[0-6]"]
payments = ["PAY_AMT*"]
noise = ["noise_*"]
'''

#: Column of docs/value.md -> measure of ``value.json``.
COLUMNS = {
    "mutual information": "mi",
    "solo: leave-one-out": "loo",
    "solo: Shapley": "shapley",
    "joint: leave-one-out": "joint_loo",
    "joint: Shapley": "joint_shapley",
}

MARKER = "figures partner_value.jsonl"


def table(found: Mapping[str, Any]) -> str:
    """As docs/value.md has it."""
    lines = [f"| partner | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for partner, values in found["partners"].items():
        cells = [
            f"{values[each]['mean']:.3f} ± {values[each]['std']:.3f}" for each in COLUMNS.values()
        ]
        lines.append(f"| {partner} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "credit.toml"
        path.write_text(RUN.replace("FOLDER", os.environ["DOVETAIL_DATA"]), encoding="utf-8")
        found = value(path, quiet=True).to_json()
    line = {**_results.machine(), **found}
    (_results.FOLDER / "partner_value.jsonl").write_text(json.dumps(line) + "\n")
    _results.insert(_results.DOCS / "value.md", MARKER, table(found))


if __name__ == "__main__":
    main()
