"""docs/attacks.md's figures are those of the record, and the audit holds in each."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.attacks import METHODS, RUNS, WITHIN, table_of

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benchmarks" / "results" / "attacks.jsonl"
ROWS = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]


def test_the_table_in_security_is_the_record():
    text = (ROOT / "docs" / "attacks.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"<!-- attacks -->\n(.*?)<!-- /attacks -->", text, re.DOTALL)
    assert shown == table_of(ROWS)


def test_every_method_is_there_on_both_tables():
    assert {(row["table"], row["method"]) for row in ROWS} == {
        (table, method) for table in RUNS for method in METHODS
    }


def test_no_held_back_attacker_is_far_above_the_audit():
    """Within 0.1 of R2, and 5 points of labels and members."""
    for row in ROWS:
        _, target = row["who learns"].split(": ")
        reach = WITHIN[target.split(" of ")[0]] + 0.005  # figures are rounded
        assert row["audit"] >= row["others"] - reach, row


def test_the_audit_says_none_only_where_nobody_is_above_the_base():
    for row in ROWS:
        if row["verdict"] == "none":
            assert row["others"] - row["without"] < 0.1, row
