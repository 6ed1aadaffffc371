"""``examples/make_parties.py`` runs, and so does every command that it names."""

from __future__ import annotations

import os
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest

from dovetail import data as dd

SCRIPT = Path(__file__).parents[2] / "examples" / "make_parties.py"

#: Source -> the party with labels, its helpers, and of how many rows.
SOURCES = {
    "breast-cancer": ("clinic", ["lab", "registry"], 300),
    "adult": ("bank", ["employer", "insurer"], 1600),
}

#: Whom the party with labels meets later.
NEW = {"breast-cancer": "new-patients", "adult": "new-customers"}

#: Taken before the tests' fixtures hide it.
DATA = os.environ.get("DOVETAIL_DATA")


def make(folder: Path, *arguments: str) -> str:
    """What the script prints."""
    environment = {"DOVETAIL_DATA": DATA or ""}
    done = forked.script(folder, SCRIPT, *arguments, environment=environment)
    assert (done.code, done.err) == (0, "")
    return done.out


@pytest.mark.slow
@pytest.mark.usefixtures("brief_learners")
@pytest.mark.parametrize("source", SOURCES)
def test_the_commands_that_it_names_run(dovetail: Any, tmp_path: Path, source: str) -> None:
    if source == "adult" and not DATA:
        pytest.skip("Adult is not built in: set DOVETAIL_DATA")
    active, helpers, rows = SOURCES[source]
    printed = make(tmp_path, "--source", source, "--rows", str(rows))
    named = re.findall(r"(?:next: |^    )dovetail (.+)$", printed, re.MULTILINE)
    assert named == ["inspect parties/run.toml"]
    described = re.findall(r"^    dovetail (.+)$", SCRIPT.read_text(), re.MULTILINE)
    assert [line.split()[0] for line in described] == ["inspect", "align", "train", "predict"]
    for command in [*named, *described]:
        for name, other in zip(["clinic", "lab", "registry"], [active, *helpers], strict=True):
            command = command.replace(f"/{name}.toml", f"/{other}.toml")
        command = command.replace("new-patients", NEW[source])
        quick = ["--set", "apfed.distil.max_steps=5"] if "train" in command else []
        done = dovetail(*shlex.split(command), *quick)
        if "predict" in command and source == "adult":  # few rows do not have every country
            assert done.code == 2
            assert "column 'native-country'" in done.err
            assert "(--allow-unseen) takes them as missing" in done.err
            done = dovetail(*shlex.split(command), "--allow-unseen")
        assert done.code == 0, done.err
        if "inspect" in command:
            assert "Recommended: APFed\n" in done.out
            assert f"only {active} has labels" in " ".join(done.out.split())
        if "predict" in command:
            assert len(done.out.splitlines()) > 10
    assert (tmp_path / "out" / "clinics" / "seed-1" / "models" / active / "model.json").exists()


def test_the_same_seed_makes_the_same_parties_of_partly_the_same_people(tmp_path: Path) -> None:
    script = runpy.run_path(str(SCRIPT))
    for out in ("one", "two"):
        script["make"](script["DEALS"]["breast-cancer"], tmp_path / out, seed=3, rows=120)
    people = {}
    for name, count in (("clinic.csv", 96), ("lab.parquet", 72), ("registry.csv", 48)):
        one, two = (dd.read_table(tmp_path / out / name) for out in ("one", "two"))
        assert one.names == two.names
        for column in one.names:
            np.testing.assert_array_equal(one.column(column).values, two.column(column).values)
        ids = one.column("person").values.tolist()
        assert len(set(ids)) == count
        assert ids != sorted(ids)
        people[name] = set(ids)
    clinic, lab, registry = people.values()
    assert 0 < len(clinic & lab) < len(lab)
    assert 0 < len(clinic & lab & registry) < len(registry)
    assert len(clinic | lab | registry) <= 120
