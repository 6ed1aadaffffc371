"""Files as people have them: what is said of each is pasted as it stands, and then it works."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import data as dd
from dovetail.data.doubts import Doubt, doubts
from dovetail.errors import DataError
from dovetail.node.partyfile import open_site

NUM_ROWS = 60


def write(path: Path, *, encoding: str = "utf-8", delimiter: str = ",", **columns: Any) -> None:
    """A CSV file with ids, a label, a number that tells it, and these columns."""
    draw = np.random.default_rng(0)
    signal = draw.normal(size=NUM_ROWS)
    table = {
        "id": [f"C{row}" for row in range(NUM_ROWS)],
        "signal": [f"{each:.4f}" for each in signal],
        **columns,
        "bought": ["yes" if each > 0 else "no" for each in signal],
    }
    text = io.StringIO()
    rows = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    rows.writerow(table)
    rows.writerows(zip(*table.values(), strict=True))
    path.write_bytes(text.getvalue().encode(encoding))


def mostly(number: Callable[[int], str], *others: str) -> list[str]:
    """A column of numbers, of which one in twenty is another text."""
    return [
        others[row // 20 % len(others)] if others and row % 20 == 7 else number(row)
        for row in range(NUM_ROWS)
    ]


def paste(folder: Path, printed: str) -> None:
    """Run the command that a sentence ends with."""
    (command,) = re.findall(r"python -c .*", printed)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path}
    subprocess.run(["bash", "-c", command], cwd=folder, env=env, check=True)


def shell_word(word: str) -> str:
    """What a shell makes of a word in quotes."""
    command = ["bash", "-c", f"printf %s {word}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def paste_encode(party: Path, printed: str, column: str) -> None:
    """Write the line for a column where the sentence says, into a file without the section."""
    (line,) = {
        each.strip()
        for each in re.findall(r"write below \[party\.encode\]: (.*)", printed)
        if re.match(rf'"?{re.escape(column)}"? =', each)
    }
    party.write_text(f"{party.read_text()}\n[party.encode]\n{line}\n", encoding="utf-8")


PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "id"
label = "bought"
[policy]
algorithms = ["align", "apfed"]
drivers = ["{name}"]
"""


def write_party(folder: Path, name: str = "bank") -> Path:
    (folder / f"{name}.toml").write_text(PARTY.format(name=name))
    return folder / f"{name}.toml"


def predicted(dovetail: Any, folder: Path, table: str) -> list[dict[str, str]]:
    """The predictions of a party's own model for its own file."""
    (folder / "run.toml").write_text('method = "best-alone"\nparties = ["bank.toml"]\ntest = 0\n')
    done = dovetail("train", "run.toml", "-q")
    assert done.code == 0, done.err
    model = folder / "out" / "run" / "models" / "bank"
    done = dovetail("predict", model, table, "--id", "id", "--out", "said.csv", "-q")
    assert done.code == 0, done.err
    return list(csv.DictReader((folder / "said.csv").read_text().splitlines()))


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
@pytest.mark.usefixtures("brief_learners")
def test_a_file_of_a_windows_desk_is_read_after_the_command_that_is_printed(
    dovetail: Any, tmp_path: Path, encoding: str
) -> None:
    write(tmp_path / "bank.csv", town=["Zürich €"] * 30 + ["Genève"] * 30, encoding=encoding)
    refused = dovetail("init", "--table", "bank.csv", "--yes")
    assert refused.code == 2
    assert ("'Zürich'" in refused.err) == (encoding == "cp1252")
    paste(tmp_path, refused.err)
    made = dovetail("init", "--table", "bank-utf8.csv", "--name", "bank", "--yes")
    assert made.code == 0, made.err
    assert len(predicted(dovetail, tmp_path, "bank-utf8.csv")) == NUM_ROWS


def test_a_file_that_is_neither_is_to_be_saved_anew(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,a\n1,\x81\x8d\n")
    with pytest.raises(DataError, match="not UTF-8 text, nor Windows-1252; save it as CSV"):
        dd.read_table(tmp_path / "a.csv")


_MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'


def write_workbook(path: Path, rows: list[list[str]]) -> None:
    """A workbook of texts, in as few parts as Excel's format has."""
    head = '<?xml version="1.0"?>'
    main = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    cells = "".join(
        "<row>" + "".join(f'<c t="inlineStr"><is><t>{text}</t></is></c>' for text in row) + "</row>"
        for row in rows
    )
    link = (
        '<Relationships xmlns="{}/relationships"><Relationship Id="r1" Type="{}/{}" Target="{}"/>'
    )
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types">'
        '<Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{kind}.sheet.main+xml"/>'
        f'<Override PartName="/xl/sheet.xml" ContentType="{kind}.worksheet+xml"/></Types>',
        "_rels/.rels": link.format(package, main, "officeDocument", "xl/workbook.xml")
        + "</Relationships>",
        "xl/_rels/workbook.xml.rels": link.format(package, main, "worksheet", "sheet.xml")
        + "</Relationships>",
        "xl/workbook.xml": f'<workbook {_MAIN} xmlns:r="{main}"><sheets>'
        '<sheet name="a" sheetId="1" r:id="r1"/></sheets></workbook>',
        "xl/sheet.xml": f"<worksheet {_MAIN}><sheetData>{cells}</sheetData></worksheet>",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, head + text)


@pytest.mark.usefixtures("brief_learners")
def test_a_workbook_is_read_after_the_command_that_is_printed(
    dovetail: Any, tmp_path: Path
) -> None:
    write(tmp_path / "rows.csv", zip=[f"{row:05d}" for row in range(NUM_ROWS)])
    rows = list(csv.reader((tmp_path / "rows.csv").read_text().splitlines()))
    write_workbook(tmp_path / "bank.xlsx", rows)
    write_party(tmp_path)
    party = (tmp_path / "bank.toml").read_text()
    (tmp_path / "bank.toml").write_text(party.replace("bank.csv", "bank.xlsx"))
    for command in (["init", "--table", "bank.xlsx", "--yes"], ["inspect", "bank.toml"]):
        refused = dovetail(*command)
        assert refused.code == 2
        assert "it is an Excel workbook or another archive; save the sheet as CSV" in refused.err
    nowhere = dovetail("init", "--table", "bnak.xlsx", "--yes")
    assert (nowhere.code, "there is no file bnak.xlsx; check the path" in nowhere.err) == (2, True)
    pytest.importorskip("openpyxl")
    paste(tmp_path, refused.err)
    write_party(tmp_path)
    assert dd.read_table(tmp_path / "bank.csv").stored("zip").values[1] == "00001"
    assert len(predicted(dovetail, tmp_path, "bank.csv")) == NUM_ROWS


NUMBERS: dict[str, tuple[list[str], str]] = {
    "NA": (mostly(lambda row: f"{row * 7.5}", "NA"), 'is text: "NA"; the others are numbers'),
    "#N/A": (mostly(str, "#N/A"), 'is text: "#N/A"'),
    "backslash": (mostly(str, r"\N"), r'is text: "\\N"'),
    "-": (mostly(str, "-"), 'is text: "-"'),
    "unknown": (mostly(str, "unknown", "n.a."), '5.0 % of it is text: "unknown", "n.a."'),
    "thousands": (mostly(lambda row: f"{row + 1},234.5"), 'seems to be numbers with ","'),
    "thousands alone": (mostly(lambda row: f"{row + 1},234"), 'seems to be numbers with ","'),
    "points": (mostly(lambda row: f"{row + 1}.234,5"), 'numbers with "." with a decimal comma'),
    "blanks": (mostly(lambda row: f"{row + 1} 234,5"), 'numbers with " " with a decimal comma'),
    "no-break": (mostly(lambda row: f"{row + 1}\xa0234"), r'numbers with "\u00a0"'),
    "Swiss": (mostly(lambda row: f"{row + 1}'234.5"), 'numbers with "\'"'),
    "per cent": (mostly(lambda row: f"{row} %"), 'numbers with "%"'),
    "euros": (mostly(lambda row: f"€ {row + 1},234.50", "n/a"), '5.0 % of it is text: "n/a"'),
    "decimal comma": (mostly(lambda row: f"{row},5", "NA"), "numbers with a decimal comma"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_beside_texts_or_with_marks_are_numbers_once_the_line_is_pasted(
    dovetail: Any, tmp_path: Path, name: str
) -> None:
    values, words = NUMBERS[name]
    write(tmp_path / "bank.csv", **{"net income": values})
    party = write_party(tmp_path)
    done = dovetail("inspect", "bank.toml")
    assert words in done.out
    assert 'write below [party.encode]: "net income" = {' in done.out
    paste_encode(party, done.out, "net income")
    table = open_site(party).table.x
    assert isinstance(table, dd.Table)
    column = table.column("net income")
    assert not column.is_text
    others = sum(not any(map(str.isdigit, text)) for text in values)
    assert column.missing.sum() == others
    first = table.column("net income").values[1]
    digits = re.sub(r"[^0-9]", "", values[1])
    assert re.sub(r"[^0-9]", "", f"{first:g}") == digits.rstrip("0") or f"{first:g}" == digits
    made = dovetail("init", "--table", "bank.csv", "--yes", "--out", "made")
    assert f"read so:  'net income' {words.split(' is text')[0]}" in made.out or words in made.out
    site = open_site(tmp_path / "made" / "bank.toml")
    assert isinstance(site.table.x, dd.Table)
    np.testing.assert_array_equal(site.table.x.column("net income").values, column.values)


@pytest.mark.usefixtures("brief_learners")
def test_training_says_so_too_and_predicts_the_same_texts(dovetail: Any, tmp_path: Path) -> None:
    rate = mostly(lambda row: f"{row * 37 % 100} %", "-")
    write(tmp_path / "bank.csv", rate=rate, kind=["Retail", "retail ", "RETAIL"] * 20)
    party = write_party(tmp_path)
    predicted(dovetail, tmp_path, "bank.csv")
    said = dovetail("train", "run.toml", "--overwrite").err
    assert "party 'bank': 'rate': 5.0 % of it is text" in said
    paste_encode(party, said, "rate")
    done = dovetail("inspect", "bank.toml").out
    assert '"Retail", "retail", "RETAIL" differ in capitals alone and are 3 categories' in done
    (line,) = re.findall(r"write below \[party\.encode\]: (kind = .*)", done)
    party.write_text(f"{party.read_text()}{line}\n")
    assert "differ in capitals" not in dovetail("inspect", "bank.toml").out
    assert dovetail("train", "run.toml", "--overwrite", "-q").code == 0
    model = tmp_path / "out" / "run" / "models" / "bank"
    new = (tmp_path / "bank.csv").read_text().replace("retail ", "ReTaIl")
    (tmp_path / "new.csv").write_text(new)
    done = dovetail("predict", model, "new.csv", "--id", "id", "--out", "new-said.csv", "-q")
    assert done.code == 0, done.err
    done = dovetail("predict", model, "bank.csv", "--id", "id", "--out", "said.csv", "-q")
    assert (tmp_path / "new-said.csv").read_text() == (tmp_path / "said.csv").read_text()


def test_what_could_be_read_in_another_way_is_printed_by_init_inspect_and_train(
    dovetail: Any, tmp_path: Path
) -> None:
    days = [f"2024-01-{row % 28 + 1:02d}" for row in range(NUM_ROWS)]
    write(
        tmp_path / "bank.csv",
        seen=[day if row % 2 else ".".join(day.split("-")[::-1]) for row, day in enumerate(days)],
        paid=[f"{row + 1}.{row:03d}" if row % 3 else "777" for row in range(NUM_ROWS)],
        lab=mostly(str, "-999"),
        plz=[("01067", "10115", "80331")[row % 3] for row in range(NUM_ROWS)],
    )
    made = dovetail("init", "--table", "bank.csv", "--yes").out
    inspected = dovetail("inspect", "bank.toml").out
    ways = 'has dates written in several ways, such as "01.01.2024" and "2024-01-02"; write all as'
    for name, words in {
        "seen": f"{ways} YYYY-MM-DD\n",
        "paid": "three digits follow each point; if 2.001 is a thousand or more: write below",
        "lab": "3 rows have -999, far from all others; if it is no value: write below",
        "plz": "zeros before digits, as codes have; if it is one: write below",
    }.items():
        assert f"  look at:  {name!r} {words}" in made
        assert f"    {name}: {words}" in inspected
    assert f"'seen': {ways}" in dovetail("train", "run.toml").err
    paste_encode(tmp_path / "bank.toml", inspected, "lab")
    assert "-999" not in dovetail("inspect", "bank.toml").out


def test_a_number_to_predict_beside_texts_is_one_as_init_writes_it(
    dovetail: Any, tmp_path: Path
) -> None:
    write(tmp_path / "bank.csv", income=mostly(lambda row: f"{row * 7.5}", "NA", "n.a."))
    made = dovetail("init", "--table", "bank.csv", "--label", "income", "--name", "bank", "-y")
    assert "57 rows have one: regression" in made.out
    assert "read so:  'income' 5.0 % of it is text" in made.out
    site = open_site(tmp_path / "bank.toml")
    assert site.table.required_labels.missing.sum() == 3


@pytest.mark.usefixtures("brief_learners")
def test_a_label_in_capitals_and_without_a_value_is_read_as_the_pasted_line_says(
    dovetail: Any, tmp_path: Path
) -> None:
    answers = ["ja", "nein", "Ja", "nein", "NA", "JA", "nein", "ja", "nein", "nein"] * 6
    write(tmp_path / "bank.csv", kauft=answers)
    words = '\'kauft\' 10.0 % of it is \'NA\'; if that means no value; "ja", "Ja", "JA" differ in'
    assert (
        f"look at:  {words}"
        in dovetail("init", "--table", "bank.csv", "--label", "kauft", "-y").out
    )
    party = tmp_path / "bank.toml"
    paste_encode(party, dovetail("inspect", "bank.toml").out, "kauft")
    assert "bank has the classes nein 55.6 %, ja 44.4 %" in dovetail("inspect", "bank.toml").out
    done = dovetail("train", "run.toml", "--set", "test=0.3", "-q")
    assert done.code == 0, done.err
    model = tmp_path / "out" / "run" / "models" / "bank"
    done = dovetail("predict", model, "bank.csv", "--out", "said.csv")
    assert "against the column 'kauft' (54 of 60 rows have it)" in done.err
    assert "count as wrong" not in done.err


@pytest.mark.usefixtures("brief_learners")
@pytest.mark.parametrize("positive", [None, "nein"])
def test_a_threshold_and_precision_are_of_the_class_that_says_yes_or_is_named(
    dovetail: Any, tmp_path: Path, positive: str | None
) -> None:
    write(tmp_path / "bank.csv", kauft=["ja", "nein", "nein"] * 20)
    party = write_party(tmp_path)
    encode = "" if positive is None else f'[party.encode]\nkauft = {{ positive = "{positive}" }}\n'
    party.write_text(party.read_text().replace('"bought"', '"kauft"') + encode)
    named = positive or "ja"
    (tmp_path / "run.toml").write_text(
        'method = "best-alone"\nparties = ["bank.toml"]\ntest = 0.25\nthreshold = "f1"\n'
    )
    done = dovetail("train", "run.toml")
    assert done.code == 0, done.err
    assert f"bank: '{named}' is said from a probability of" in done.out + done.err
    model = tmp_path / "out" / "run" / "models" / "bank"
    assert f"'{named}' is said from" in dovetail("predict", model, "bank.csv").err
    assert dovetail("report", "out/run", "--out", "page.html").code == 0
    words = f"average precision of &#39;{named}&#39;"
    assert words in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            'bought = { positive = "maybe" }',
            r"'maybe' must be one of two classes; the label has \['no",
        ),
        ('age = { positive = "1" }', r"encode of 'age': positive is for the label; leave it out"),
    ],
)
def test_a_positive_class_that_is_none_is_refused(
    dovetail: Any, tmp_path: Path, line: str, words: str
) -> None:
    write(tmp_path / "bank.csv", age=[*map(str, range(60))])
    party = write_party(tmp_path)
    party.write_text(f"{party.read_text()}[party.encode]\n{line}\n")
    (tmp_path / "run.toml").write_text('method = "best-alone"\nparties = ["bank.toml"]\n')
    done = dovetail("train", "run.toml")
    assert done.code == 2
    assert re.search(words, done.err), done.err


def test_a_line_of_encode_is_toml_whatever_the_names_are() -> None:
    import tomllib

    doubt = Doubt("", {"missing": ["\\N", 'a"b', "\xa0", "é"]})
    assert tomllib.loads(doubt.line("a b.c")) == {"a b.c": dict(doubt.encode)}


def test_a_comma_before_three_digits_may_part_thousands(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id;a\n" + "".join(f"{n};{n},234\n" for n in range(1, 30)))
    table = dd.read_table(tmp_path / "a.csv")
    (doubt,) = doubts(table.reading("a"), {"1,234": 1, "2,234": 1})
    assert doubt.line("a") == 'a = { kind = "number", decimal = ".", without = [","] }'


# --- Ids ------------------------------------------------------------------------------------------


def write_shop(path: Path, ids: list[str], **columns: list[str]) -> None:
    """A partner's CSV file of these ids."""
    rows = {"id": ids, "visits": [str(len(each) % 3 + row) for row, each in enumerate(ids)]}
    lines = zip(*{**rows, **columns}.values(), strict=True)
    path.write_text("\n".join([",".join({**rows, **columns}), *map(",".join, lines)]) + "\n")


def paste_table(party: Path, printed: str) -> None:
    """Put the query that a sentence ends with into the party file, in the place of its table."""
    (line,) = set(re.findall(r"table = .*", printed))
    text, num = re.subn(r"(?m)^table = .*$", lambda _: line, party.read_text())
    assert num == 1
    party.write_text(text)


def partner_file(name: str) -> str:
    return (
        PARTY.format(name=name)
        .replace('label = "bought"\n', "")
        .replace(f'drivers = ["{name}"]', 'drivers = ["bank"]')
    )


@pytest.mark.parametrize("command", ["inspect", "align", "train"])
@pytest.mark.usefixtures("brief_learners", "brief_expectation")
def test_repeated_ids_are_listed_and_one_row_of_each_is_kept_by_the_query(
    dovetail: Any, tmp_path: Path, command: str
) -> None:
    write(tmp_path / "bank.csv")
    write_party(tmp_path)
    ids = [f"C{row}" for row in range(NUM_ROWS)]
    write_shop(tmp_path / "shop.csv", [*ids, "C3", "C3", "C7 "])
    party = tmp_path / "shop.toml"
    party.write_text(partner_file("shop"))
    (tmp_path / "run.toml").write_text('method = "tvfl"\nparties = ["bank.toml", "shop.toml"]\n')
    files = ["run.toml"] if command == "train" else ["bank.toml", "shop.toml"]
    refused = dovetail(command, *files)
    assert refused.code == 2
    assert "3 of 63 ids are repeated, such as 'C3', 'C7'; each row must be one" in refused.err
    paste_table(party, refused.err)
    site = open_site(party)
    assert sorted(site.table.ids.tolist()) == sorted(ids)
    assert isinstance(site.table.x, dd.Table)
    assert not site.table.x.column("visits").is_text
    if command != "train":
        done = dovetail(command, *files)
        assert done.code == 0, done.err


def test_init_lists_repeated_ids_and_takes_the_query_that_it_prints(
    dovetail: Any, tmp_path: Path
) -> None:
    write_shop(tmp_path / "my shop.csv", ["C1", "C2", "C1", "C3"] * 5)
    refused = dovetail("init", "--table", "my shop.csv", "--id", "id", "--role", "partner")
    assert refused.code == 2
    assert "17 of 20 ids are repeated, such as 'C1', 'C2', 'C3'" in refused.err
    (option,) = re.findall(r"--table (\".*\")", refused.err)
    query = shell_word(option)
    made = dovetail("init", "--table", query, "--id", "id", "--driver", "bank", "--name", "shop")
    assert made.code == 0, made.err
    assert open_site(tmp_path / "shop.toml").table.ids.tolist() == ["C1", "C2", "C3"]


def test_a_dataframe_with_repeated_ids_is_told_what_keeps_one_row_of_each() -> None:
    import pandas as pd

    import dovetail as dt

    df = pd.DataFrame({"id": [1, 2, 1], "a": [1.0, 2.0, 3.0]})
    with pytest.raises(DataError, match=r"such as '1'; .* of each: (df\.drop_\S+)$") as refused:
        dt.Party("a", df, id="id")
    advice = str(refused.value).rpartition(": ")[2]
    assert dt.Party("a", eval(advice, {"df": df}), id="id").site.table.num_rows == 2


@pytest.mark.usefixtures("brief_learners", "brief_expectation")
def test_zeros_before_ids_are_one_sentence_in_every_command_and_its_query_takes_them_off(
    dovetail: Any, tmp_path: Path
) -> None:
    people = range(9_970, 9_970 + NUM_ROWS)
    write(tmp_path / "bank.csv", id=[str(each) for each in people])
    made = dovetail("init", "--table", "bank.csv", "--id", "id", "--label", "bought", "-y")
    assert made.code == 0
    assert "WARNING" not in made.out
    write_shop(tmp_path / "shop.csv", [f"{each:05d}" for each in people])
    partner = ["init", "--table", "shop.csv", "--id", "id", "--role", "partner", "--driver", "bank"]
    made = dovetail(*partner)
    sentence = (
        "party 'shop': ids such as '09970' begin with zeros, and 30 of 60 are ids of 'bank'; "
        "without the zeros 60 are: table = "
    )
    assert sentence in made.out
    owner = dovetail(
        *["init", "--table", "bank.csv", "--id", "id", "--label", "bought"],
        *["--partners", "shop", "-y", "--force"],
    )
    assert sentence in owner.out
    (tmp_path / "tvfl.toml").write_text('method = "tvfl"\nparties = ["bank.toml", "shop.toml"]\n')
    for command in (["inspect", "run.toml"], ["align", "bank.toml", "shop.toml"]):
        done = dovetail(*command)
        assert done.code == 0, done.err
        assert sentence in done.err
    trained = dovetail("train", "run.toml", "-q")
    assert sentence in trained.err
    paste_table(tmp_path / "shop.toml", trained.err)
    done = dovetail("align", "bank.toml", "shop.toml")
    assert "begin with zeros" not in done.err
    assert re.search(r"shop\W+60\W+60\W+100", done.out)


def test_ids_of_which_none_is_shared_but_for_zeros_end_training_with_that_sentence(
    dovetail: Any, tmp_path: Path
) -> None:
    write(tmp_path / "bank.csv", id=[f"{each:04d}" for each in range(1, NUM_ROWS + 1)])
    write_party(tmp_path)
    write_shop(tmp_path / "shop.csv", [str(each) for each in range(1, NUM_ROWS + 1)])
    (tmp_path / "shop.toml").write_text(partner_file("shop"))
    (tmp_path / "run.toml").write_text('method = "apfed"\nparties = ["bank.toml", "shop.toml"]\n')
    done = dovetail("train", "run.toml", "-q")
    assert done.code == 2
    last = done.err.splitlines()[-1]
    assert "party 'bank': ids such as '0001' begin with zeros, and 0 of 60 are ids of" in last
    paste_table(tmp_path / "bank.toml", last)
    assert open_site(tmp_path / "bank.toml").table.ids[0] == 1
