"""Classes of several parties' tables that differ in case alone are told, whatever learns them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from member_files import MEMBERS, SETTINGS, write_members
from owner_files import NAMES, write_owners

ONE = "the classes 'malignant' (at north) and 'Malignant' (at south) differ in case or blanks alone"
TWO = "and count as different ones; if they are one, write it alike in all tables"


def write(folder: Path, method: str, spelled: str) -> Path:
    """Two parties with labels, of which south spells one so; the run file."""
    names = MEMBERS[:2] if method != "fedoptimus" else NAMES
    if method == "fedoptimus":
        write_owners(folder)
    else:
        write_members(folder, method, names)
    table = folder / "south.csv"
    table.write_text(table.read_text().replace("malignant", spelled))
    declared = r"\nclasses = .*"  # by the files of HyFEM
    for name in names:
        path = folder / f"{name}.toml"
        path.write_text(re.sub(declared, "", path.read_text()))
    files = ", ".join(f'"{name}.toml"' for name in names)
    run = folder / "run.toml"
    settings = re.sub(declared, "", SETTINGS[method])
    run.write_text(f'method = "{method}"\nparties = [{files}]\n{settings}')
    return run


@pytest.mark.parametrize("method", ["hyfem", "fedoptimus"])
def test_a_method_of_all_parties_classes_warns_of_two_that_may_be_one(
    dovetail: Any, tmp_path: Path, method: str
) -> None:
    run = write(tmp_path, method, "Malignant")
    done = dovetail("train", run, "--out", "out", "--set", f"{method}.rounds=1")
    assert done.code == 0, done.err
    assert f"{ONE} {TWO}" in done.err
    assert done.err.count("differ in case") == 1


@pytest.mark.parametrize("method", ["hyfem", "fedoptimus"])
def test_classes_that_are_spelled_alike_or_otherwise_are_not_told(
    dovetail: Any, tmp_path: Path, method: str
) -> None:
    for spelled in ("malignant", "Malign"):
        run = write(tmp_path, method, spelled)
        done = dovetail("train", run, "--out", spelled, "--set", f"{method}.rounds=1")
        assert done.code == 0, done.err
        assert "differ in case" not in done.err


def test_chfl_which_needs_the_same_classes_says_that_they_differ_in_case_alone(
    dovetail: Any, tmp_path: Path
) -> None:
    run = write(tmp_path, "chfl", "Malignant")
    done = dovetail("train", run, "--out", "out", "-q")
    assert done.code == 2
    assert "all members need one label set (Eq. 3)" in done.err
    assert ONE in done.err


@pytest.mark.parametrize("method", ["hyfem", "chfl"])
def test_inspect_tells_it_before_anything_is_trained(
    dovetail: Any, tmp_path: Path, method: str
) -> None:
    run = write(tmp_path, method, "Malignant")
    done = dovetail("inspect", run)
    assert ONE in " ".join(done.out.split())
