"""``dovetail init``: what it proposes, what it writes, and that this trains as it stands."""

from __future__ import annotations

import io
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import data as dd
from dovetail.data.survey import propose_id, propose_label, propose_task, survey
from dovetail.node.partyfile import open_site


def write_tables(folder: Path) -> None:
    """A bank's and a shop's, with columns that teach nothing among them."""
    rng = np.random.default_rng(0)
    people = np.array([f"C{number:05d}" for number in rng.permutation(240)], dtype=object)
    income, visits = rng.normal(size=240), rng.normal(size=240)
    bought = np.where(income + 2 * visits + rng.normal(size=240) > 0, "yes", "no").astype(object)
    notes = np.array([f"called on day {n}, no answer {n}" for n in range(240)], dtype=object)
    dd.write_table(
        folder / "customers.csv",
        {
            "customer": people,
            "income": income,
            "country": np.full(240, "DE", dtype=object),
            "contract_id": np.arange(240) + 7000,
            "notes": np.where(np.arange(240) < 230, notes, "none"),
            "bought": bought,
        },
    )
    dd.write_table(folder / "visits.csv", {"customer": people[::-1], "visits": visits[::-1]})


def test_a_table_is_surveyed(tmp_path: Path) -> None:
    write_tables(tmp_path)
    columns = survey(dd.read_table(tmp_path / "customers.csv"))
    why = {column.name: column.why_not for column in columns}
    assert why["country"] == "is the same in every row"
    assert why["contract_id"] == "differs in every row, as an id does"
    (notes,) = (column for column in columns if column.name == "notes")
    assert notes.advice == "is free text, read as hashed words"
    assert why["notes"] == why["income"] == why["bought"] == ""
    assert propose_id(columns) == "customer"
    assert propose_label(columns, besides=["customer"]) == "bought"
    assert propose_task(columns[-1]) == "classification"
    assert propose_task(columns[1]) == "regression"


@pytest.mark.parametrize(
    ("last", "proposed"),
    [("empty in half", "last"), ("full", "sex"), ("called", "progression")],
)
def test_the_label_that_is_proposed(tmp_path: Path, last: str, proposed: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=200)
    if last == "empty in half":
        values[::2] = np.nan
    name = "progression" if last == "called" else "last"
    table = {"sex": rng.integers(0, 2, 200), "age": rng.normal(size=200), name: values}
    dd.write_table(tmp_path / "table.csv", table)
    assert propose_label(survey(dd.read_table(tmp_path / "table.csv"))) == proposed


def test_a_partner_elsewhere_has_a_name_that_a_certificate_can_carry(
    dovetail: Any, tmp_path: Path
) -> None:
    write_tables(tmp_path)
    made = dovetail("init", "--table", "customers.csv", "--partners", "süd", "--yes")
    assert (made.code, (tmp_path / "run.toml").exists()) == (2, False)
    assert "a certificate cannot carry the name 'süd'" in made.err


@pytest.mark.slow
def test_two_parties_write_their_files_and_train_as_these_stand(
    dovetail: Any, tmp_path: Path
) -> None:
    write_tables(tmp_path)
    shop = dovetail("init", "--table", "visits.csv", "--role", "partner", "--driver", "customers")
    assert shop.code == 0, shop.err
    assert "dovetail join visits.toml --driver HOST:PORT" in shop.out
    bank = dovetail("init", "--table", "customers.csv", "--partners", "visits", "--yes")
    assert bank.code == 0, bank.err
    assert "look at:  'notes' is free text, read as hashed words" in bank.out
    values = tomllib.loads((tmp_path / "customers.toml").read_text())
    assert values["party"] == {
        "name": "customers",
        "table": "customers.csv",
        "id": "customer",
        "label": "bought",
        "task": "classification",
        "columns": ["*", "-country", "-contract_id"],
    }
    text = (tmp_path / "customers.toml").read_text()
    assert "# max_alignments = 20" in text
    done = dovetail("train", "run.toml", "--set", "apfed.distil.max_steps=20", "--json")
    assert done.code == 0, done.err
    assert (tmp_path / "out" / "run" / "models" / "customers" / "model.json").exists()


def test_of_two_columns_that_are_called_as_labels_are_the_last_is_proposed_and_it_is_said(
    dovetail: Any, tmp_path: Path
) -> None:
    """In a bank's table who has defaulted is a column, and who bought, the last, the label."""
    rng = np.random.default_rng(0)
    answers = np.array(["no", "yes"], dtype=object)
    table = {
        "client": np.arange(100),
        "default": answers[rng.integers(0, 2, 100)],
        "balance": rng.normal(size=100),
        "y": answers[rng.integers(0, 2, 100)],
    }
    dd.write_table(tmp_path / "bank.csv", table)
    done = dovetail("init", "--table", "bank.csv", "-y")
    assert done.code == 0, done.err
    words = "label 'y': 2 different values, 100 rows have one: classification; proposed: --label"
    assert words in done.out
    done = dovetail("init", "--table", "bank.csv", "-y", "--force", "--label", "default")
    assert "label 'default': 2 different values, 100 rows have one: classification\n" in done.out


def test_files_that_are_there_are_not_replaced(dovetail: Any, tmp_path: Path) -> None:
    write_tables(tmp_path)
    words = ("init", "--table", "customers.csv", "--yes", "--name", "bank")
    assert dovetail(*words).code == 0
    before = (tmp_path / "bank.toml").read_text()
    again = dovetail(*words, "--label", "income", "--task", "regression")
    assert again.code == 2
    assert "are there already; name another folder" in again.err
    assert (tmp_path / "bank.toml").read_text() == before
    assert dovetail(*words, "--label", "income", "--force").code == 0
    assert 'task = "regression"' in (tmp_path / "bank.toml").read_text()


def test_a_table_here_is_named_from_the_folder_of_the_files(dovetail: Any, tmp_path: Path) -> None:
    write_tables(tmp_path)
    done = dovetail("init", "--table", "customers.csv", "--out", "files/new", "--yes")
    assert done.code == 0, done.err
    values = tomllib.loads((tmp_path / "files" / "new" / "customers.toml").read_text())
    assert values["party"]["table"] == "../../customers.csv"


def test_a_partner_elsewhere_is_named_in_the_engine(dovetail: Any, tmp_path: Path) -> None:
    write_tables(tmp_path)
    done = dovetail("init", "--table", "customers.csv", "--partners", "shop,lab", "--quiet")
    assert (done.code, done.out) == (0, ""), done.err
    values = tomllib.loads((tmp_path / "run.toml").read_text())
    engine = {"kind": "stream", "listen": "0.0.0.0:7443", "partners": ["shop", "lab"]}
    assert values["engine"] == engine
    assert values["parties"] == ["customers.toml"]
    looked = dovetail("inspect", "run.toml")
    assert looked.code == 0, looked.err
    assert "Partners on other machines: shop, lab. Their tables stay there" in looked.out
    assert "  dovetail align run.toml --count\n" in looked.out
    assert "None of the four" not in looked.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "--table is missing"),
        (("--table", "no.csv"), "there is no file no.csv"),
        (("--table", "photos"), "photos is no table"),
        (("--table", "customers.csv", "--id", "who"), "there is no column 'who'; there are custo"),
        (("--table", "customers.csv", "--id", "custmer"), "'custmer'; did you mean 'customer'?"),
        (("--table", "customers.csv", "--id", "bought"), "does not name each row"),
        (("--table", "customers.csv", "--role", "boss"), "--role is owner or partner"),
        (("--table", "visits.csv", "--role", "partner"), "--driver is missing"),
        (("--table", "visits.csv"), "or --role partner for a table without one"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    dovetail: Any, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    write_tables(tmp_path)
    done = dovetail("init", *words)
    assert done.code == 2
    assert sentence in done.err
    assert not list(tmp_path.glob("*.toml"))


def test_what_is_not_said_is_asked_at_a_terminal(
    dovetail: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    write_tables(tmp_path)
    # table, role, id (as proposed), label (as proposed), task (as proposed), name, partners
    answers = ["customers.csv", "owner", "", "", "", "bank", "shop, lab"]
    monkeypatch.setattr("sys.stdin", Terminal("\n".join(answers) + "\n"))
    done = dovetail("init", "--out", "files")
    assert done.code == 0, done.err  # a table that is here, told from the folder of the files
    party = tomllib.loads((tmp_path / "files" / "bank.toml").read_text())["party"]
    assert party["table"] == "../customers.csv"
    monkeypatch.setattr("sys.stdin", Terminal("\n".join(answers) + "\n"))
    done = dovetail("init")
    assert done.code == 0, done.err
    assert "Column to predict [bought]" in done.out
    assert "hand each partner its folder" in done.out
    party = tomllib.loads((tmp_path / "bank.toml").read_text())["party"]
    assert (party["name"], party["id"], party["label"]) == ("bank", "customer", "bought")
    assert tomllib.loads((tmp_path / "run.toml").read_text())["engine"]["partners"] == [
        "shop",
        "lab",
    ]


def test_events_are_offered_where_ids_repeat_and_there_are_days(
    dovetail: Any, tmp_path: Path
) -> None:
    lines = [f"{row % 9},2026-01-{1 + row:02},{row}" for row in range(27)]
    (tmp_path / "payments.csv").write_text("\n".join(["customer,day,amount", *lines]) + "\n")
    done = dovetail(
        "init", "--table", "payments.csv", "--role", "partner", "--driver", "bank", "-y"
    )
    assert done.code == 0, done.err
    assert "'customer' is in several rows: 9 different, 3 rows in the middle one" in done.out
    site = open_site(tmp_path / "payments.toml")
    assert site.party.events is not None
    assert site.table.num_rows == 9
    assert "amount_sum_365d" in site.table.blocks["columns"]


def test_rare_classes_are_said(dovetail: Any, tmp_path: Path) -> None:
    rows = [f"c{n},{n % 7},{'yes' if n < 3 else 'no'}" for n in range(100)]
    (tmp_path / "people.csv").write_text("\n".join(["customer,a,bought", *rows]) + "\n")
    done = dovetail("init", "--table", "people.csv", "--label", "bought", "-y")
    assert "no 97.0 %, yes 3.0 % (3 rows: too few to learn or score it well" in done.out
    assert dovetail("demo", "--tables").code == 0
    assert (tmp_path / "visits.csv").exists()
    assert "customers.csv, visits.csv" in dovetail("demo", "--tables").err
