"""JSON Schema of run files and party files: what ships fits it, and mistakes do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dovetail.files import grid_cells, read_run
from dovetail.runs.keys import schema_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run() -> Draft202012Validator:
    schema = json.loads(json.dumps(schema_of("run")))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.fixture(scope="module")
def party() -> Draft202012Validator:
    schema = json.loads(json.dumps(schema_of("party")))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def errors(validator: Draft202012Validator, values: Any) -> list[str]:
    return [error.message for error in validator.iter_errors(values)]


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("runs/*/*.toml")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_run_files_that_ship_fit(run: Draft202012Validator, path: Path) -> None:
    names = [f"{path}:{cell}" for cell in [*grid_cells(path)][::5]] or [path]
    assert [errors(run, read_run(Path(name))) for name in names] == [[]] * len(names)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"method": "apfed-x"}, "apfed-x"),
        ({"method": "apfed-mixed", "apfed": {"epochz": 3}}, "epochz"),
        ({"method": "apfed-mixed", "apfed": {"epochs": "three"}}, "three"),
        ({"baselines": []}, "method"),
    ],
)
def test_a_mistake_is_found(run: Draft202012Validator, values: Any, word: str) -> None:
    assert any(word in message for message in errors(run, values))


def test_a_party_file_is_checked(party: Draft202012Validator) -> None:
    good = {"party": {"name": "shop", "table": "visits.csv", "id": "customer"}}
    assert errors(party, good) == []
    assert errors(party, {**good, "policy": {"min_row": 3}})
    assert errors(party, {"party": {"name": "shop", "table": "visits.csv"}})


def test_each_key_has_its_meaning() -> None:
    schema = schema_of("party")
    table = schema["$defs"]["PartySection"]["properties"]
    assert table["id"]["description"].startswith("the column that names each sample")
