"""Classes and columns with names that a spreadsheet or a browser would run."""

import csv
import os
import re
import stat

import forked
import numpy as np
import pandas as pd
import pytest
from learned import clinic_table, fitted_model

from dovetail.data.formulas import formulas_in, is_formula, without_formulas
from dovetail.models.card import card, write_card
from dovetail.models.learners.linear import Linear

CLASSES = ("=cmd|'/C calc'!A0", "@SUM(1+1)<script>alert(4)</script>")
HOSTILE = "<img src=x onerror=alert(1)> [a](javascript:alert(2)) ![b](http://127.0.0.1:9/x) |"


@pytest.fixture(scope="module")
def table():
    frame = clinic_table(400).rename(columns={"age": HOSTILE}).drop(columns=["cost"])
    frame["ill"] = np.where(frame["ill"] == "yes", *CLASSES)
    frame["job"] = frame["job"].replace("cook", "<b>{{7*7}}</b>")
    frame["id"] = [f"=ID({number})" for number in range(len(frame))]
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("hostile") / "clinic"
    model = fitted_model(table.drop(columns=["id"]), [Linear()])
    model.save(path)
    write_card(path, card(path, rows=table, by=["job"]))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_predictions_are_what_they_are_and_formulas_are_reported(folder, table, tmp_path, suffix):
    rows, out = tmp_path / "rows.csv", tmp_path / f"out{suffix}"
    table.drop(columns=["ill"]).to_csv(rows, index=False)
    done = forked.command(tmp_path, "predict", folder, rows, "--id", "id", "--out", out)
    assert done.code == 0, done.err
    assert re.search(r"a spreadsheet would run \d+ of the texts \(.*--spreadsheet", done.err)
    read = pd.read_csv(out) if suffix == ".csv" else pd.read_parquet(out)
    assert set(read["ill"]) == set(CLASSES)  # a program joins and compares by these
    assert read["id"].tolist() == table["id"].tolist()


def test_for_a_spreadsheet_no_cell_is_a_formula(folder, table, tmp_path):
    rows, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    table.drop(columns=["ill"]).to_csv(rows, index=False)
    done = forked.command(
        tmp_path, "predict", folder, rows, "--id", "id", "--out", out, "--spreadsheet"
    )
    assert done.code == 0, done.err
    assert "a spreadsheet would run" not in done.err
    with out.open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert len(cells) > 1200
    assert not [cell for cell in cells if is_formula(cell)]
    assert sum(cell.startswith("'=ID(") for cell in cells) == len(table)


def test_numbers_are_no_formulas():
    plain = {"a": np.array(["-3", "+49 (0)151", "- 1.5", "x=1"], dtype=object), "b": np.arange(4)}
    assert formulas_in(plain) == []
    assert without_formulas(plain)["a"].tolist() == plain["a"].tolist()
    assert formulas_in({"+a": np.array(["\t=1", "-1+2", "＝1"], dtype=object)}) == [
        "+a",
        "\t=1",
        "-1+2",
        "＝1",
    ]


def test_no_name_is_markup_in_a_models_card(folder):
    text = (folder / "card.md").read_text()
    assert not re.search(r"<\s*[a-zA-Z/!]", text)  # no tag
    assert not re.search(r"(?<!\\)\[", text)  # no link or picture
    assert "&lt;img src=x" in text
    for rows in re.findall(r"(?:^\|.*\n)+", text, re.M):  # a name makes no cell
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows.splitlines()}) == 1


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such modes")
def test_what_has_statistics_of_rows_is_its_owners_alone(folder):
    for name in ("model.json", "card.json", "card.md"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
