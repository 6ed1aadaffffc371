"""Patients of an OMOP CDM: a row each, as told by hand; the leak of days after the index date."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from benchmarks import omop
from dovetail.node.partyfile import open_site

OMOP = Path(__file__).parents[2] / "examples" / "omop"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hospitals' CDMs and party files; read only."""
    folder = tmp_path_factory.mktemp("hospitals")
    for number, name in enumerate(("north", "south")):
        given = ["--patients", "350", "--seed", str(number), "--first", str(1 + 1000 * number)]
        script = [sys.executable, str(OMOP / "make_cdm.py"), str(folder / name), *given]
        subprocess.run(script, check=True)
        text = (OMOP / "hospital.toml").read_text().replace("NAME", name)
        (folder / f"{name}.toml").write_text(text)
    return folder


@pytest.fixture
def hospitals(written: Path, tmp_path: Path) -> Path:
    """A copy of them, to change."""
    return Path(shutil.copytree(written, tmp_path, dirs_exist_ok=True))


def events(folder: Path, table: str, day: str, value: str = "NULL") -> dict[int, list[Any]]:
    query = f"SELECT person_id, {day}::DATE, {value} FROM '{folder / table}.parquet'"
    found: dict[int, list[Any]] = {}
    for person, at, number in duckdb.sql(query).fetchall():
        found.setdefault(person, []).append((at, number))
    return found


def test_a_row_is_what_was_known_of_a_patient_at_the_index_date(hospitals: Path) -> None:
    folder = hospitals / "north"
    diagnosed = events(folder, "condition_occurrence", "condition_start_date")
    visits = events(folder, "visit_occurrence", "visit_start_date")
    sugars = events(folder, "measurement", "measurement_date", "value_as_number")
    table = open_site(hospitals / "north.toml").table
    assert table.ids.tolist() == sorted(diagnosed)
    assert list(table.blocks.values()) == [("age", "gender", "visits", "hba1c", "metformin")]
    assert table.labels is not None
    read = {name: table.x.column(name) for name in ("visits", "hba1c")}
    for row, person in enumerate(table.ids.tolist()):
        index = min(at for at, _ in diagnosed[person])
        before = [at for at, _ in visits.get(person, []) if 0 <= (index - at).days <= 365]
        sugar = [x for at, x in sugars[person] if 0 <= (index - at).days <= 365]
        back = any(0 < (at - index).days <= 180 for at, _ in visits.get(person, []))
        assert read["visits"].values[row] == len(before)
        assert read["hba1c"].missing[row] == (not sugar)
        if sugar:
            assert read["hba1c"].values[row] == pytest.approx(np.mean(sugar))
        assert table.labels.values[row] == ("yes" if back else "no")


def test_inspect_tells_of_what_was_not_known_at_the_index_date(
    hospitals: Path, dovetail: Callable[..., Any]
) -> None:
    done = dovetail("inspect", "north.toml", "south.toml", "--json")
    assert done.code == 0
    assert "index date" not in done.err
    assert json.loads(done.out)["parties"][0]["rows"] == 300
    path = hospitals / "north.toml"
    whole = path.read_text()
    window = "AND p.index_date\n"
    assert whole.count(window) == 1
    path.write_text(whole.replace(window, "AND p.index_date + INTERVAL 90 DAY\n"))
    said = " ".join(dovetail("inspect", "north.toml", "south.toml").err.split())
    assert "party 'north': 'last_known' is after the index date in" in said
    assert "look back from the index date only" in said
    path.write_text(whole.replace('index_date = "index_date"', 'index_date = "age"'))
    assert "which has no dates" in dovetail("inspect", "north.toml", "south.toml").err


@pytest.mark.trained
@pytest.mark.slow
def test_hospitals_train_on_their_own_format(
    hospitals: Path, dovetail: Callable[..., Any], brief_learners: None
) -> None:
    for method in ("chfl", "hyfem"):
        run = f'method = "{method}"\nparties = ["north.toml", "south.toml"]\nbaselines = []\n'
        (hospitals / "run.toml").write_text(run + f"[{method}]\nrounds = 3\n")
        done = dovetail("train", "run.toml", "--out", method, "--quiet")
        assert done.code == 0, done.err
        result = json.loads((hospitals / method / "result.json").read_text())
        assert all(0.5 < scores["auc"] <= 1 for scores in result["parties"].values())


@pytest.mark.slow
def test_a_laboratory_helps_a_hospital_each_on_its_own_format(
    tmp_path: Path, dovetail: Callable[..., Any], brief_learners: None
) -> None:
    omop.write(tmp_path, patients=700, seed=1)
    done = dovetail("train", "run.toml", "--out", "helped", "--quiet")
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "helped" / "result.json").read_text())["recovered"]
    assert found["joint"] > found["alone"] + 0.05
    assert (tmp_path / "helped" / "models" / "hospital").is_dir()
    predicted = dovetail("inspect", "hospital.toml", "laboratory.toml")
    assert "index date" not in predicted.err
