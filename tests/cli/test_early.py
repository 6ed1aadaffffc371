"""What is told before libraries are read, and that they are not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dovetail import cli
from dovetail.cli import precheck
from dovetail.cli.main import COMMANDS, function_of, others
from dovetail.errors import ConfigError, DataError
from dovetail.methods import variants
from dovetail.node import partyfile

#: Libraries that take long to read.
HEAVY = {"torch", "sklearn", "scipy", "lightgbm", "duckdb", "numpy", "pandas", "grpc"}

RUN = """
method = "apfed-mixed"

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


READ = f"""
import sys
from dovetail.methods import variants
from dovetail.methods.settings import RECORDS
from dovetail.node.partysections import party_file
from dovetail.runs.runfile import run_file
for file in (run_file(), party_file()):
    file.model_json_schema()
    assert not [name for name in RECORDS if name not in file.model_fields]
print(*variants(), *sorted({HEAVY!r} & sys.modules.keys()))
"""


def test_settings_of_all_methods_are_read_without_a_library() -> None:
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*variants()]


def test_the_list_of_commands_says_what_their_functions_say() -> None:
    for name, line in {**COMMANDS, **others()}.items():
        command = function_of(name)
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
    (tmp_path / "wrong.toml").write_text(RUN.replace('"apfed-mixed"', '"apfedd"'))
    (tmp_path / "parties.toml").write_text(
        'method = "apfed-mixed"\nparties = ["no.toml", "lab.toml"]'
    )
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


def test_a_mistake_in_a_run_file_is_told_with_what_was_meant(tmp_path: Path) -> None:
    changes = [
        ("encoder = [8]", "encodr = [8]", "unknown key 'apfed.encodr'; did you mean 'encoder'?"),
        (
            "encoder = [8]",
            "encoder = { channels = [3], kernel = [1], strides = [1] }",
            "unknown key 'apfed.encoder.kernel'; did you mean 'kernels'?",
        ),
        ("encoder = [8]", "encoder = [0]", "apfed.encoder: an encoder needs one or more positive"),
        (
            'active = "clinic"',
            'active = "clinic"\nactiv = "lab"',
            "unknown key 'data.partition.activ'; did you mean 'active'?",
        ),
        ("[apfed]", "[apfd]", "unknown key 'apfd'; did you mean 'apfed'?"),
        ("test = 0.25", "tset = 0.25", "unknown key 'data.tset'; did you mean 'test'?"),
        ("test = 0.25", "test = 2", "data.test: input should be less than 1, got 2"),
        ('method = "apfed-mixed"', 'method = "apfedd"', "got 'apfedd'; did you mean 'apfed-d'?"),
    ]
    path = tmp_path / "run.toml"
    for old, new, words in changes:
        path.write_text(RUN.replace(old, new))
        with pytest.raises(ConfigError) as told:
            precheck.check_run(path)
        assert str(path) in str(told.value)
        assert words in str(told.value)


def test_every_run_file_here_passes() -> None:
    root = Path(cli.__file__).parent.parent.parent
    files = [path for path in root.glob("runs/**/*.toml") if "\n[[grid]]" not in path.read_text()]
    assert len(files) > 3
    for path in files:
        precheck.check_run(path)


def test_ids_that_may_be_the_same_are_left_to_who_reads_the_table(tmp_path: Path) -> None:
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
        ("patient,age\nb1,2\nb1,2\nb1,2\n", ("", "")),
    ],
)
def test_a_table_is_told_early_in_the_words_it_has_later(
    table: str, change: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "lab.csv").write_text(table)
    path = tmp_path / "lab.toml"
    path.write_text(PARTY.replace(*change))
    with pytest.raises(DataError) as late:
        partyfile.open_site(path)
    with pytest.raises(DataError) as soon:
        precheck.check_party(path)
    assert str(soon.value) == str(late.value)
