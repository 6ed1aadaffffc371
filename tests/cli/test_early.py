"""What is told before libraries are read, and that they are not.

    python tests/cli/test_early.py

writes ``dovetail/cli/keys.json`` anew after settings have changed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import duckdb
import pytest
from pydantic import BaseModel

from dovetail import cli
from dovetail.cli import precheck
from dovetail.cli.main import COMMANDS, module_of
from dovetail.errors import ConfigError, DataError, DovetailError
from dovetail.methods import METHODS, variants
from dovetail.node import partyfile
from dovetail.runs import runfile

KEYS = Path(cli.__file__).parent / "keys.json"

#: Libraries that take long to read, and the room that reads them.
HEAVY = {"torch", "sklearn", "duckdb", "numpy", "pandas", "grpc", "dovetail.methods"}

RUN = """
method = "apfed"

[data]
source = "breast-cancer"
test = 0.25

[data.partition]
kind = "columns"
active = "clinic"
parties = { clinic = ["mean *"], lab = ["worst *"] }

[apfed]
encoder = [8]
"""
PARTY = '[party]\nname = "lab"\ntable = "lab.csv"\nid = "patient"\n'


def keys_of(model: type[BaseModel]) -> dict[str, Any]:
    """The keys that a table of this model can have, and those below them."""
    assert model.model_config.get("extra") == "forbid"
    return {name: _below(field.annotation) for name, field in model.model_fields.items()}


def _below(annotation: Any) -> dict[str, Any] | None:
    """The keys of all alternatives; None where any key goes, or where there is no table."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return keys_of(annotation)
    if get_origin(annotation) not in (Union, UnionType):
        inner = get_args(annotation)
        return _below(inner[0]) if hasattr(annotation, "__metadata__") else None
    merged: dict[str, Any] = {}
    for each in get_args(annotation):
        if get_origin(each) in (dict, Mapping):
            return None
        for key, below in (_below(each) or {}).items():
            both = isinstance(below, dict) and isinstance(merged.get(key), dict)
            merged[key] = {**merged[key], **below} if both else below
    return merged or None


def all_keys() -> dict[str, Any]:
    """What ``keys.json`` is to hold: of Dovetail's own methods."""
    table = {name: METHODS[name] for name in ("apfed", "chfl", "hyfem", "fedoptimus", "survival")}
    run = tuple((name, method.Settings) for name, method in table.items())
    party_sections = tuple(
        (name, m.PartySettings) for name, m in table.items() if m.PartySettings is not None
    )
    return {
        "run": keys_of(runfile._of_sections(run)),
        "party": keys_of(partyfile._of_sections(party_sections)),
        "methods": [*variants()],
    }


def test_the_keys_told_early_are_those_of_the_settings() -> None:
    assert json.loads(KEYS.read_text()) == all_keys(), "python tests/cli/test_early.py writes them"


def test_the_list_of_commands_says_what_their_functions_say() -> None:
    for name, line in COMMANDS.items():
        command = getattr(module_of(name), name)
        help_text = command.__doc__ if name != "flare" else command.info.help
        assert " ".join(help_text.split("\n\n")[0].split()) == line


#: Reads the command and nothing else; for each line, a copy of this process is the command.
FRESH = f"""
import json, os, sys
from dovetail.cli.main import main
for line in sys.stdin:
    folder, words = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        for place, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), place)
        sys.argv = ["dovetail", *words]
        try:
            main()
        finally:
            print("loaded:", *sorted({HEAVY!r} & sys.modules.keys()))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def typed() -> Iterator[Callable[[Path, list[str]], tuple[int, str, str]]]:
    """What ``dovetail WORDS`` in a folder ends with and prints, in a process that is as fresh as
    one of its own: that takes a third of a second of processor time to start."""
    command = [sys.executable, "-c", FRESH]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        given, output = process.stdin, process.stdout
        assert given
        assert output

        def run(folder: Path, words: list[str]) -> tuple[int, str, str]:
            given.write(json.dumps([str(folder), words]) + "\n")
            given.flush()
            code = int(output.readline())
            return code, (folder / "out").read_text(), (folder / "err").read_text()

        yield run
        given.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    "words",
    [
        ["train", "nowhere.toml"],
        ["train", "run.toml"],
        ["train", "good.toml", "--set", "apfed.epoch=3"],
        ["demo", "--sed", "3"],
        ["inspect", "nowhere.toml"],
        ["value", "nowhere.toml"],
        ["align", "nowhere.toml", "lab.toml"],
        ["join", "nowhere.toml", "--driver", "localhost:1"],
        ["join", "lab.toml", "--driver", "localhost:1"],
        ["train", "wrong.toml"],
        ["train", "parties.toml"],
        ["align", "empty.toml", "lab.toml"],
        ["align", "columns.toml", "lab.toml"],
        ["serve", "nowhere"],
        ["predict", "nowhere", "rows.csv"],
        ["report", "nowhere"],
        ["ledger", "verify", "--record", "lab.toml"],
        ["ledger", "lab.toml"],
        ["align", "twice.toml", "lab.toml"],
        ["join", "rows.toml", "--driver", "localhost:1", "--name", "bank"],
        ["join", "rows.toml", "--driver", "localhost", "--name", "bank"],
    ],
    ids=" ".join,
)
def test_a_mistake_reads_no_library(
    words: list[str], typed: Callable[[Path, list[str]], tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "good.toml").write_text(RUN)
    (tmp_path / "run.toml").write_text(RUN + "hed = [8]\n")
    (tmp_path / "lab.toml").write_text(PARTY + 'tabel = "b"\n')
    (tmp_path / "wrong.toml").write_text(RUN.replace('"apfed"', '"apfedd"'))
    (tmp_path / "parties.toml").write_text('method = "apfed"\nparties = ["no.toml", "lab.toml"]')
    (tmp_path / "lab.csv").write_text("")
    (tmp_path / "empty.toml").write_text(PARTY)
    (tmp_path / "rows.csv").write_text("person,age\n1,2\n")
    (tmp_path / "twice.csv").write_text("patient,age\na1,1\na1,2\n")
    (tmp_path / "twice.toml").write_text(PARTY.replace("lab.csv", "twice.csv"))
    (tmp_path / "rows.toml").write_text(
        PARTY.replace("lab.csv", "rows.csv").replace("patient", "person")
    )
    (tmp_path / "columns.toml").write_text(PARTY.replace("lab.csv", "rows.csv"))
    code, out, err = typed(tmp_path, words)
    assert out.endswith("loaded:\n"), out + err
    assert code == 2
    assert "Traceback" not in err


def check_words(
    error: type[DovetailError],
    late: Callable[[Path], object],
    soon: Callable[[Path], None],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both refuse this file in the same words."""
    with pytest.raises(error) as full:
        late(path)
    monkeypatch.setattr(precheck, "_is_late", lambda: False)
    with pytest.raises(error) as quick:
        soon(path)
    assert str(quick.value) == str(full.value)


def test_a_mistake_is_told_early_in_the_words_it_has_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [
        ("encoder = [8]", "encodr = [8]"),
        ("encoder = [8]", "encoder = { channels = [3], kernel = [1], strides = [1] }"),
        ('active = "clinic"', 'active = "clinic"\nactiv = "lab"'),
        ("[apfed]", "[apfd]"),
        ("test = 0.25", "tset = 0.25"),
        ('method = "apfed"', 'method = "apfedd"'),
    ]
    for old, new in changes:
        path = tmp_path / "run.toml"
        path.write_text(RUN.replace(old, new))
        check_words(ConfigError, runfile.load_run, precheck.check_run, path, monkeypatch)


def test_every_run_file_here_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precheck, "_is_late", lambda: False)
    root = Path(cli.__file__).parent.parent.parent
    files = [path for path in root.glob("runs/**/*.toml") if "\n[[grid]]" not in path.read_text()]
    assert len(files) > 3
    for path in files:
        precheck.check_run(path)


def test_ids_that_may_be_the_same_are_left_to_who_reads_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precheck, "_is_late", lambda: False)
    path = tmp_path / "lab.toml"
    path.write_text(PARTY)
    for ids in (["1", "01"], ["1.0", "1"], ["?", "?"], ["b 1", " b 1"], ["", ""], ["b1", "b2"]):
        (tmp_path / "lab.csv").write_text("patient,age\n" + "".join(f"{each},1\n" for each in ids))
        precheck.check_party(path)


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("", ("", "")),
        ("patient,age\n1,2\n", ('id = "patient"', 'id = "patent"')),
        ("patient,age\n1,2\n", ('id = "patient"', 'id = "patient"\nlabel = "ill"')),
        ("patient,age\n1,2\n", ("lab.csv", "nowhere.csv")),
        ("patient,age\n1,2\n", ("lab.csv", "nowhere.parquet")),
        ("patient,age\n1,2\n2,2\n1,2\n", ("", "")),
        ("patient,age\nb1,2\nb1,2\nb1,2\n", ("lab.csv", "lab.parquet")),
    ],
)
def test_a_table_is_told_early_in_the_words_it_has_later(
    table: str, change: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lab.csv").write_text(table)
    if table:
        duckdb.read_csv(str(tmp_path / "lab.csv")).write_parquet(str(tmp_path / "lab.parquet"))
    path = tmp_path / "lab.toml"
    path.write_text(PARTY.replace(*change))
    check_words(DataError, partyfile.open_site, precheck.check_party, path, monkeypatch)


if __name__ == "__main__":
    KEYS.write_text(json.dumps(all_keys(), indent=1) + "\n")
