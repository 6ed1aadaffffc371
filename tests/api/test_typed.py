"""Settings are typed: editors complete them, and a type checker finds a wrong one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from mypy import api

from dovetail import methods
from tools.typed import PATH, module_text

ROOT = Path(__file__).parents[2]


def test_the_types_are_those_of_the_sections() -> None:
    assert ast.dump(ast.parse(PATH.read_text())) == ast.dump(ast.parse(module_text())), (
        "write them anew: make keys"
    )


@pytest.mark.parametrize("name", ["apfed", "chfl", "hyfem", "fedoptimus"])
def test_every_key_of_a_section_is_typed(name: str) -> None:
    titles = {each.lower(): each for each in ("APFed", "CHFL", "HyFEM", "FedOptimus")}
    (kind,) = (
        each
        for each in ast.parse(PATH.read_text()).body
        if isinstance(each, ast.ClassDef) and each.name == f"{titles[name]}Settings"
    )
    keys = {ast.unparse(each.target) for each in kind.body if isinstance(each, ast.AnnAssign)}
    assert keys == methods.method_of(name).Settings.model_fields.keys()


@pytest.mark.slow
def test_a_type_checker_finds_a_setting_that_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user.py").write_text(
        "import dovetail as dt\n"
        "dt.APFed(epochs=3, encoder=[64, 32], distil={'exchange': 'gradients'})\n"
        "dt.Party('a', 'a.csv', id='id', apfed={'loss': 'contrastive'})\n"
        "dt.CHFL(rounds=3)\n"
        "dt.APFed(epochz=3)\n"
        "dt.APFed(epochs='three')\n"
        "dt.Party('a', 'a.csv', id='id', apfed={'los': 'contrastive'})\n"
        "dt.HyFEM(schedule='cosin')\n"
    )
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    # What says the types, and nothing that these import: that takes most of a minute.
    says = ("__init__.pyi", "api/methods.py", "api/party.py", "api/settings.pyi")
    files = [str(tmp_path / "user.py"), *(str(ROOT / "dovetail" / name) for name in says)]
    reported, _, code = api.run(
        ["--config-file", str(ROOT / "pyproject.toml"), "--follow-imports=skip", *files]
    )
    lines = [line.split(":")[1] for line in reported.splitlines() if "user.py" in line]
    assert code == 1
    assert {*lines} == {"5", "6", "7", "8"}, reported
    assert 'Unexpected keyword argument "epochz"' in reported
