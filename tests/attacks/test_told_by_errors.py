"""Refusals of a site name no value of its table, nor how many rows have it.

A coordinator of CHFL, or a server of HyFEM, makes up how common columns are encoded. What does not
fit was refused with the next value in row order, so that 201 questions read a column of 200 rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail import data as dd
from dovetail.alignment import columns
from dovetail.companions.survival.local_data import Times
from dovetail.companions.survival.section import MemberSection
from dovetail.errors import ConfigError, PartyError
from dovetail.methods import hyfem
from dovetail.methods.chfl import Description
from dovetail.methods.chfl import layers as chfl
from dovetail.network import InProcess
from dovetail.node.partyfile import open_site
from dovetail.node.runs import Runs
from dovetail.node.site_folder import Refusals
from dovetail.node.status_line import StatusLine

ROWS = 200
CLINIC = """
[party]
name = "clinic"
table = "clinic.csv"
id = "person"
label = "sick"

[policy]
drivers = ["hub"]
algorithms = ["chfl", "hyfem"]

[chfl]
test_share = 0.0
validation_share = 0.0
"""

Ask = Callable[..., str]


@pytest.fixture
def asked(tmp_path: Path) -> Ask:
    """Asks a site of 200 incomes between 1000 and 5000, and gives what it says, or its refusal."""
    incomes = np.round(np.random.default_rng(0).uniform(1000, 5000, ROWS), 2)
    table: dict[str, Any] = {
        "person": np.array([f"P-{row}" for row in range(ROWS)], dtype=object),
        "sick": np.array(["yes", "no"] * (ROWS // 2), dtype=object),
        "income": incomes,
    }
    dd.write_table(tmp_path / "clinic.csv", table)
    (tmp_path / "clinic.toml").write_text(CLINIC)
    folder = tmp_path / "clinic.site"
    folder.mkdir()
    teller = StatusLine("hub", quiet=True)
    refusals = Refusals(folder / "refusals.jsonl", teller.print)
    site = open_site(tmp_path / "clinic.toml")
    runs = Runs(site, folder, refusals, teller, torch.device("cpu"))

    def ask(method: str, message: Any, reply: Any) -> str:
        host = runs.open(f"r1/{method}/seed-0", method, "hub")
        replies = InProcess({"clinic": host}, driver="hub", through_bytes=True).ask(
            {"clinic": message}, reply
        )
        failed = replies.failures.get("clinic")
        return "" if failed is None else failed.cause

    return ask


def encoding(**column: Any) -> str:
    read = {"name": "income", "flag": False, **column}
    return json.dumps({"kind": "table", "party": "all", "columns": [read], "schema": {}})


NUMBER = {"kind": "number", "median": 0.0, "mean": 0.0, "scale": 1.0}
WRONG = [
    {"kind": "category", "categories": [], "other": False},
    {"kind": "category", "categories": ["1234.5"], "other": False},
    {**NUMBER, "scale": 1e-300},
    {**NUMBER, "mean": 1e9, "scale": 1e-300},
    {**NUMBER, "mean": 3000.0, "scale": 1e-38},
    {**NUMBER, "scale": -1.0},
]


@pytest.mark.parametrize("column", WRONG)
@pytest.mark.parametrize("method", ["chfl", "hyfem"])
def test_an_encoding_that_does_not_fit_reads_no_value(
    asked: Ask, method: str, column: dict[str, Any]
) -> None:
    if method == "chfl":
        settings = chfl.Config().model_dump_json()
        begin = chfl.Begin(settings=settings, seed=0, common=("income",), agreed=encoding(**column))
        said = asked(method, begin, chfl.Ready)
    else:
        assert asked(method, hyfem.Hello(count_classes=True), hyfem.Holding) == ""

        def told(task: str) -> str:
            settings = hyfem.Settings().model_dump_json()
            message = hyfem.Begin(settings, ("{}",), (encoding(**column),), task, 0, 1)
            return asked(method, message, hyfem.Ready)

        found = re.search(r"its labels are (.*), the server's are", told("x"))
        assert found
        said = told(found[1])
        assert said or column["kind"] == "category"
    if column["kind"] == "number":
        assert "'income' has no scale" in said or "greater than 0" in said
    assert not re.search(r"\d{4}|clinic\.csv| rows?\b", said), said


def test_a_refusal_of_small_groups_tells_neither_a_value_nor_a_number() -> None:
    wards = np.array(["north"] * 60 + ["HIV clinic"] * 3 + ["south"] * 37, dtype=object)
    counts = np.where(np.arange(100) < 7, np.arange(100.0), np.nan)
    table = dd.table_from_arrays("clinic", {"ward": wards, "cd4": counts})
    section = MemberSection(columns=("ward", "cd4"))
    times = Times("clinic", np.arange(1.0, 101.0), table, section, 16, "time")
    for ask in (lambda: times.groups("ward"), lambda: times.numbers(("cd4",))):
        with pytest.raises(PartyError, match="16 that its policy answers about") as refused:
            ask()
        assert not re.search(r"HIV|\b[37]\b", str(refused.value))


@pytest.mark.parametrize("classes", [("{x", "{y"), ("[" * 3000,), ('{"a":' * 3000,)])
def test_classes_that_are_no_json_are_refused(classes: tuple[str, ...]) -> None:
    def offered(names: tuple[str, ...]) -> Description:
        zero = torch.tensor([0])
        moments = torch.tensor([0.0]).double(), torch.tensor([1.0]).double()
        return Description(
            ("a",), ("numbers",), names, 10, torch.tensor([10]), zero, *moments, (), (), ()
        )

    described = {"one": offered(classes), "two": offered(('"no"', '"yes"'))}
    with pytest.raises(ConfigError, match="give both the same classes"):
        columns.agree_on(described, section="chfl")
