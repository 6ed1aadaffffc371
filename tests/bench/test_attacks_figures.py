"""The figures of results/bench/attacks.md are those of the record, and the audit holds in each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.attacks import METHODS, RUNS, WITHIN, table_of

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benchmarks" / "results" / "attacks.jsonl"
ROWS = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]


def test_the_table_of_attacks_is_the_record():
    text = (RECORD.parent / "bench" / "attacks.md").read_text(encoding="utf-8")
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


#: Method of SECURITY.md's first table -> that of the record, and what it tells, in this order.
FRONT = {
    "APFed-S": ("apfed", ["bureau: columns", "bureau: labels", "bank: columns"]),
    "APFed-D, `released`": ("apfed-d, released", ["bank: columns"]),
    "APFed-D, `gradients`": ("apfed-d, gradients", ["bureau: columns", "bank: columns"]),
    "APFed-R": ("apfed-r", ["bureau: columns", "bureau: labels", "bank: columns"]),
    "APFed-C": ("apfed-c", ["bureau: columns", "bureau: labels", "bank: columns"]),
    "classic vertical learning": ("classic vertical", ["bank: columns"]),
    "CHFL": ("chfl", ["coordinator: membership"]),
    "HyFEM": ("hyfem", ["server: membership"]),
    "FedOptimus": ("fedoptimus", ["coordinator: columns"]),
}


@pytest.mark.parametrize("name", FRONT)
def test_the_first_page_of_security_says_what_the_record_says(name):
    """The best of all attackers on credit, and in brackets what follows without messages."""
    method, targets = FRONT[name]
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^\| \**{re.escape(name)}\**(?:,.*?)? \| (.*)$", text, re.MULTILINE)
    shown = re.findall(r"(\d\.\d\d) \((\d\.\d\d)\)", line)
    expected = []
    for target in targets:
        (row,) = (
            each
            for each in ROWS
            if (each["table"], each["method"]) == ("credit", method)
            and each["who learns"].startswith(target)
        )
        best = max(row["audit"], row["others"])
        expected.append((f"{best:.2f}", f"{row['without']:.2f}"))
    assert shown == expected
