"""A partition is one class: in Python and in a run file, with the same mistakes told."""

from __future__ import annotations

from typing import Any

import pytest

import dovetail as dt
from dovetail.errors import ConfigError
from dovetail.methods.validation import validate
from dovetail.runs.runfile import DataSection

PARTIES = {"clinic": ["age"], "lab": ["marker", "tube"]}


def section(**partition: Any) -> DataSection:
    return validate(DataSection, {"source": "digits", "partition": partition}, where="run.toml")


def test_a_partition_in_python_is_that_of_a_run_file() -> None:
    made = dt.Columns(PARTIES, overlap=0.5)
    assert made == section(kind="columns", parties=PARTIES, overlap=0.5).partition
    assert repr(made) == f"Columns(parties={PARTIES}, overlap=0.5)"


def test_the_first_party_is_active_unless_one_is_named() -> None:
    assert dt.Columns(PARTIES).active_party() == "clinic"
    assert dt.Columns(PARTIES, active="lab").active_party() == "lab"
    assert section(kind="columns", parties=PARTIES).partition.active_party() == "clinic"


def test_one_glob_needs_no_list() -> None:
    made = dt.Columns({"clinic": "age", "lab": ["marker"]})
    assert dict(made.parties) == {"clinic": ("age",), "lab": ["marker"]}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"kind": "strips", "views": 0}, "run.toml: partition.views: input should be greater"),
        ({"kind": "strips", "views": 2, "axes": "width"}, "did you mean 'axis'"),
        ({"views": 2}, "the key 'partition.kind' is missing"),
    ],
)
def test_a_mistake_in_a_run_file_is_told_with_its_place(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        section(**keys)


def test_a_mistake_in_python_is_told_with_the_nearest_key() -> None:
    with pytest.raises(ConfigError, match=r"^dovetail.Strips: .*did you mean 'axis'"):
        dt.Strips(2, axes="width")  # type: ignore[call-arg]


@pytest.mark.parametrize("given", [(2, 1), (2,)])
def test_a_key_is_given_once(given: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="Strips takes views once, and other keys by name"):
        dt.Strips(*given, views=2)
