"""What inspect says to expect, and that a hidden number is told from none and from refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail import data as dd
from dovetail.data import Classification, Regression
from dovetail.runs.expected_gain import MEASURED, expected

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_score_that_rises_with_labels_says_how_often_partners_then_helped() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(60, 30, generator=rng)
    labels = (x[:, :8].sum(1) + torch.randn(60, generator=rng) > 0).long()
    task = Classification(("no", "yes"))
    forecast = expected("bank", x, labels, task, unlabelled=500)
    assert forecast is not None
    assert (forecast.score, forecast.labels, forecast.rises) == ("auc", 60, True)
    assert forecast.at_half < forecast.at_all < 1
    seen, hint = forecast.sentences()
    assert "with 30 labels" in seen
    assert "More labels raise the score, and 500 shared rows have none. In 17 of 34" in hint
    few = expected("bank", x, labels, task, unlabelled=10)
    assert few is not None
    assert "only 10 shared rows have none" in few.sentences()[1]


@pytest.mark.slow
def test_a_score_that_is_as_high_with_half_the_labels_promises_little() -> None:
    x = torch.linspace(-1, 1, 400)[:, None]
    gain = expected("bank", x, (x[:, 0] > 0).long(), Classification((0, 1)), unlabelled=500)
    assert gain is not None
    assert "expect little of partners" in gain.sentences()[1]
    assert "look for a column that is known only once the label is" in gain.sentences()[1]
    values = expected("bank", x, x[:, 0] * 2, Regression(0.0, 1.0), unlabelled=None)
    assert values is not None
    assert values.score == "r2"
    assert values.at_all > 0.99


def test_a_score_that_rises_by_less_than_it_varies_is_flat() -> None:
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(60, 3, generator=rng)
    labels = (x[:, 0] + 2 * torch.randn(60, generator=rng) > 0).long()
    forecast = expected("bank", x, labels, Classification(("no", "yes")), unlabelled=500)
    assert forecast is not None
    assert 0.01 < forecast.at_all - forecast.at_half < forecast.spread
    assert not forecast.rises
    assert forecast.sentences()[1] == (
        "More labels hardly raise the score. In 12 of 33 measured settings like this the solo "
        "model gained a point or more."
    )


def test_the_hit_rates_that_are_printed_are_those_on_record() -> None:
    lines = (ROOT / "benchmarks/results/forecast.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 75
    for kind, (gained, total) in MEASURED.items():
        same = [row["gained"] for row in rows if row["forecast"] == kind]
        assert (sum(same), len(same)) == (gained, total), kind
    assert {row["forecast"] for row in rows} == {*MEASURED, "none"}
    page = (ROOT / "docs/parties.md").read_text()
    for kind in ("rising", "flat"):
        assert "{} of {}".format(*MEASURED[kind]) in page


def test_too_few_labels_say_nothing() -> None:
    x = torch.randn(12, 3)
    assert expected("bank", x, torch.arange(12) % 2, Classification((0, 1)), unlabelled=9) is None


def write_party(folder: Path, name: str, ids: np.ndarray, more: str = "", **columns: Any) -> None:
    dd.write_table(folder / f"{name}.csv", {"id": ids, **columns})
    text = f'[party]\nname = "{name}"\ntable = "{name}.csv"\nid = "id"\n{more}'
    (folder / f"{name}.toml").write_text(text)


@pytest.mark.slow
def test_none_hidden_and_refused_are_three_things(dovetail: Any, tmp_path: Path) -> None:
    ids = np.arange(40)
    owner = {"a": ids * 1.0, "y": (ids % 2).astype(np.int64)}
    write_party(tmp_path, "bank", ids, 'label = "y"\n', **owner)
    write_party(tmp_path, "shop", ids + 35, b=ids * 2.0)  # shares five
    write_party(tmp_path, "lab", ids + 500, c=ids * 2.0)  # shares none
    refuses = '[policy]\nalgorithms = ["apfed-mixed"]\n'
    write_party(tmp_path, "club", ids, refuses, d=ids * 2.0)
    write_party(tmp_path, "mill", ids, e=ids * 2.0)
    (tmp_path / "mill.csv").write_text("customer,e\n1,2\n2,3\n")
    files = [f"{name}.toml" for name in ("bank", "shop", "lab", "club", "mill")]
    done = dovetail("inspect", *files, "--private", "--hide-below", 10)
    assert done.code == 0, done.err
    rows = {line.split()[0]: line for line in done.out.splitlines() if line.split()}
    assert "fewer than 10 (hidden)" in rows["shop"]
    assert " none" in rows["lab"]
    assert " refused" in rows["club"]
    assert "column missing" in rows["mill"]
    assert "party 'mill': no column 'id'" in done.err
    values = dovetail("inspect", *files, "--private", "--hide-below", 10, "--json").out
    overlaps = json.loads(values)["overlaps"]
    assert overlaps["shared"] == {"lab": 0}
    assert overlaps["not_shown"] == {
        "shop": "fewer than 10 (hidden)",
        "club": "refused",
        "mill": "column missing",
    }
    open_ = dovetail("inspect", *files[:2], "--hide-below", 10)
    assert "fewer than 10 (hidden)" in open_.out
    assert "◆" not in open_.out  # a picture would tell
    aligned = dovetail("align", *files[:3], "--hide-below", 10)
    assert aligned.code == 0, aligned.err
    assert "fewer than 10 (hidden)" in aligned.out
    assert "none" in aligned.out
