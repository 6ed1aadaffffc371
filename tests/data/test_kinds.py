"""A value is read the same whatever rows stand beside it, and whatever it is stored in."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import dovetail as dt
from dovetail import data as dd
from dovetail.data import kinds
from dovetail.data.doubts import doubts
from dovetail.data.frames import table_from_frame
from dovetail.data.kinds import Reading
from dovetail.data.preprocessing import Encode
from dovetail.errors import DataError
from dovetail.models import card
from dovetail.settings.encode import Asked


def csv_of(folder: Path, text: str, name: str = "t.csv") -> dd.Table:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return dd.read_table(path)


def column_csv(folder: Path, *values: str) -> dd.Table:
    return csv_of(folder, "a,b\n" + "".join(f'"{value}",1\n' for value in values))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2.5", "-3", "+4", ".5", "6."], "number"),
        (["1", "2", "", "?"], "number"),
        (["1.5", "2e-7", "1E50"], "number"),
        (["99999", "1e+05"], "number"),
        (["1E50", "1E17"], "text"),
        (["1E50", "12"], "text"),
        (["1_000", "2"], "text"),
        (["0x10", "2"], "text"),
        (["1,000", "2"], "text"),
        (["1.5", "nan"], "number"),
        (["2020-05-21", "2021-01-01T23:30", "2021-01-01 23:30:00.5+02:00"], "date"),
        (["2020-05-21T23:30:00Z"], "date"),
        (["2020-02-30", "2020-02-01"], "text"),
        (["12/25/2020"], "text"),
        (["03-01-02", "03-25-10"], "text"),
        (["20200521", "20200522"], "number"),
        (["true", "FALSE"], "boolean"),
        (["yes", "no"], "text"),
        (["", "?"], "text"),
    ],
)
def test_a_kind_is_a_function_of_the_texts(tmp_path: Path, values: list[str], kind: str) -> None:
    assert column_csv(tmp_path, *values).reading("a").kind == kind
    frame = table_from_frame(pd.DataFrame({"a": values}))
    assert frame.reading("a").kind == kind


_TEXTS = st.one_of(
    st.sampled_from(
        ["1E50", "1e+05", "-.5", "5.", "1_000", "nan", "-inf", "Infinity", "0x1", "", "?", " 7 "]
    ),
    st.floats().map(repr),
    st.integers(-(10**30), 10**30).map(str),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
    st.text("0123456789+-.eE_, ", max_size=8),
    st.text("0123456789-T:Z+ ./", max_size=26),
    st.datetimes().map(lambda at: at.isoformat()),
    st.datetimes().map(lambda at: at.isoformat(" ")),
    st.datetimes(timezones=st.just(timezone(timedelta(hours=-3, minutes=-30)))).map(str),
    st.datetimes(timezones=st.just(UTC)).map(lambda at: at.isoformat().replace("+00:00", "Z")),
    st.dates().map(str),
    st.text(max_size=4),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_TEXTS, min_size=1, max_size=30))
@example(["9999-12-31T23:59:59.999999-23:59", "0001-01-01T00:00:00+23:59", "0000-01-01"])
@example(["2020-01-01T00:00:00.123456789", "1969-12-31T23:59:59.9999999"])
@example(["1e400", "123456789012345678901234567890", "9007199254740993"])
def test_duckdb_and_python_read_a_text_alike(texts: list[str]) -> None:
    texts = [text for text in texts if "\x00" not in text and text.isprintable()]
    rows = pd.DataFrame({"a": np.array([*texts, "x"], dtype=object), "b": 1})
    connection = duckdb.connect()
    connection.execute("CREATE TABLE given AS SELECT * FROM rows")
    for reading in (kinds.NUMBERS, kinds.DATES, kinds.TEXT, kinds.CATEGORY, kinds.WORDS):
        for text in texts:
            query = f"SELECT a FROM given WHERE rowid = {texts.index(text)}"
            loaded = connection.execute(f"CREATE OR REPLACE TABLE data AS {query}")
            one = dd.tables.read_made(loaded, "one", ["a"]).cells("a", reading)
            other = table_from_frame(rows[rows.a == text].head(1)).cells("a", reading)
            np.testing.assert_array_equal(one.values, other.values, err_msg=repr(text))
            np.testing.assert_array_equal(one.missing, other.missing, err_msg=repr(text))
            assert one.unfit == other.unfit, (text, reading)
            if reading.kind in ("number", "date"):
                value = kinds.one_number(text, reading)
                assert (value is None) == bool(one.unfit), text
                if value is not None:
                    np.testing.assert_equal(value, float(one.values[0]))
            else:
                assert kinds.one_text(text, reading) == one.values[0], text


def test_dates_in_another_format_are_declared(tmp_path: Path) -> None:
    table = column_csv(tmp_path, "12/25/2020", "04/03/2018", "")
    asked = table.asking(Asked({"a": Encode(kind="date", format="%m/%d/%Y")}))
    column = asked.column("a")
    days = [
        (datetime(*each) - datetime(1970, 1, 1)).days for each in ((2020, 12, 25), (2018, 4, 3))
    ]
    assert column.is_date
    assert column.values[:2].tolist() == days
    assert column.missing[2]
    odd = column_csv(tmp_path, "12/25/2020", "25/12/2020").asking(asked.asked)
    with pytest.raises(DataError, match=r"row 1 has '25/12/2020', expected a date such as 01/31/"):
        odd.column("a")


def test_declared_texts_are_missing(tmp_path: Path) -> None:
    table = column_csv(tmp_path, "1", "NA", "-999", "3")
    asked = table.asking(Asked({"a": Encode(missing=("NA", "-999"))}))
    assert asked.column("a").missing.tolist() == [False, True, True, False]
    numbers = table_from_frame(pd.DataFrame({"a": [1, -999]})).asking(asked.asked)
    assert numbers.column("a").missing.tolist() == [False, True]


@pytest.mark.parametrize(
    ("decimal", "without", "fit", "unfit"),
    [
        (
            ",",
            [".", "%"],
            {"1.865,16 %": 1865.16, "1865,16": 1865.16, "-1.000.000": -1e6, "777": 777},
            ["1865.16", "1.865.16", "0.123", ".5", "1..234", "1234.567"],
        ),
        (
            ".",
            [",", "$", " "],
            {"-$ 1,234.5": -1234.5, "1 234": 1234},
            ["1,5", "1,00,000", "1,234 567"],
        ),
        (".", ["."], {"1.234": 1234}, ["1.5"]),
        (".", ["kg", "g", " "], {"1 234 kg": 1234, "kg 5": 5}, ["5 kg 300 g"]),
    ],
)
def test_between_digits_a_mark_parts_thousands(
    tmp_path: Path, decimal: Any, without: list[str], fit: dict[str, float], unfit: list[str]
) -> None:
    encode = Encode(kind="number", decimal=decimal, without=tuple(without))
    asked = Asked({"a": encode})
    assert column_csv(tmp_path, *fit).asking(asked).column("a").values.tolist() == [*fit.values()]
    for text in unfit:
        with pytest.raises(DataError, match=f"row 0 has '{re.escape(text)}', expected a number"):
            column_csv(tmp_path, text).asking(asked).column("a")


def test_an_error_shows_how_thousands_are_parted(tmp_path: Path) -> None:
    encode = Encode(kind="number", decimal=",", without=("%", "."))
    table = column_csv(tmp_path, "1865.16").asking(Asked({"a": encode}))
    with pytest.raises(DataError, match=r"a number with a decimal comma such as 1\.234,5$"):
        table.column("a")


def test_an_offset_is_taken_off_in_every_source(tmp_path: Path) -> None:
    text = "2020-05-21T23:30:00+02:00"
    moment = datetime.fromisoformat(text)
    frame = pd.DataFrame({"a": [moment]})
    frame.to_parquet(tmp_path / "t.parquet")
    expected = kinds.days("2020-05-21T21:30")
    tables = [
        column_csv(tmp_path, text),
        table_from_frame(pd.DataFrame({"a": [text]})),
        table_from_frame(frame),
        table_from_frame(pl.DataFrame({"a": [text]})),
        dd.read_table(tmp_path / "t.parquet"),
        dd.read_table(f"SELECT '{text}' AS a"),
        dd.read_table(f"SELECT TIMESTAMPTZ '{text}' AS a"),
    ]
    for table in tables:
        assert table.column("a").values.tolist() == [expected], table.description


@pytest.mark.parametrize("whole", [2**53 + 1, 2**63 + 5, 2**64 - 1, 10**19])
def test_ids_of_any_width_are_their_digits(tmp_path: Path, whole: int) -> None:
    decimal = duckdb.sql(f"SELECT {whole}::DECIMAL(20,0) AS a, 1 AS b")
    decimal.write_parquet(str(tmp_path / "d.parquet"))
    duckdb.sql(f"SELECT {whole}::UBIGINT AS a, 1 AS b").write_parquet(str(tmp_path / "u.parquet"))
    tables = [
        column_csv(tmp_path, str(whole)),
        dd.read_table(tmp_path / "d.parquet"),
        dd.read_table(tmp_path / "u.parquet"),
        dd.read_table(f"SELECT {whole}::HUGEINT AS a, 1 AS b"),
        table_from_frame(pd.DataFrame({"a": np.array([whole], dtype=np.uint64)})),
        table_from_frame(pd.DataFrame({"a": [whole]}, dtype=object)),
        table_from_frame(pd.DataFrame({"a": [Decimal(whole)]})),
        table_from_frame(pl.DataFrame({"a": [whole]}, schema={"a": pl.UInt64})),
    ]
    for table in tables:
        ids = dd.datasets.read_ids("t", "a", table.column("a", kinds.ID))
        assert [str(each) for each in ids] == [str(whole)], table.description


def test_numbers_and_dates_of_other_types_are_no_ids(tmp_path: Path) -> None:
    whole = pd.DataFrame({"id": [1.0, 2.0], "x": [1, 2]})
    with pytest.raises(DataError, match=r"numbers with a point, such as 1\.0.*pandas makes them"):
        dt.Party("a", whole, id="id")
    dates = pd.DataFrame({"id": pd.to_datetime(["2020-01-01", "2020-01-02"]), "x": [1, 2]})
    with pytest.raises(DataError, match="holds dates; ids are text or whole numbers"):
        dt.Party("a", dates, id="id")
    csv_of(tmp_path, "id,x\n007,1\n7,2\n1.0,3\n")
    ids = dt.Party("a", tmp_path / "t.csv", id="id").site.table.ids
    assert ids.tolist() == ["007", "7", "1.0"]


_IDS = st.one_of(
    st.integers(0, 30).map(str),
    st.integers(0, 30).map(lambda each: f"{each:03d}"),
    st.builds("{:02d}-{:02d}-{:02d}".format, *[st.integers(1, 3)] * 2, st.integers(1, 31)),
    st.sampled_from(["1E5", "1e5", "1.0", "2020-01-01", "true", "TRUE", "Zürich", "A1", "a1"]),
    st.integers(2**63 - 2, 2**64).map(str),
)


@pytest.mark.slow
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sets(_IDS, min_size=1, max_size=12), st.sets(_IDS, min_size=1, max_size=12), st.data())
def test_aligned_are_the_ids_that_both_wrote(
    tmp_path: Path, first: set[str], second: set[str], data: st.DataObject
) -> None:
    first, second = first | {"shared"}, second | {"shared"}
    parties = []
    for name, ids in (("a", sorted(first)), ("b", sorted(second))):
        frame = pd.DataFrame({"id": ids, "x": range(len(ids))})
        how = data.draw(st.sampled_from(["csv", "parquet", "frame"]), label=name)
        source: Any = tmp_path / f"{name}.{how}"
        if how == "csv":
            frame.to_csv(source, index=False)
        elif how == "parquet":
            frame.to_parquet(source)
        else:
            source = frame
        parties.append(dt.Party(name, source, id="id"))
    assert dt.align(parties, count=True).shared == {"b": len(first & second)}


def test_person_numbers_that_look_like_dates_join_nobody_else(tmp_path: Path) -> None:
    ids = {"a": ["03-01-02", "02-03-01", "03-25-10"], "b": ["03-01-02", "01-02-03", "02-03-01"]}
    parties = []
    for name, each in ids.items():
        csv_of(tmp_path, "id,x\n" + "".join(f"{i},1\n" for i in each), f"{name}.csv")
        parties.append(dt.Party(name, tmp_path / f"{name}.csv", id="id"))
    assert dt.align(parties, count=True).shared == {"b": 2}


@pytest.mark.parametrize("content", ["\n", "\n\n\n"])
def test_a_file_of_empty_lines_is_refused_in_a_sentence(tmp_path: Path, content: str) -> None:
    with pytest.raises(DataError, match="has no column names in its first line"):
        csv_of(tmp_path, content)


# --- A model's rows ------------------------------------------------------------------------------


def training_rows(num_rows: int = 160) -> pd.DataFrame:
    """A table of all kinds, every value as text."""
    rng = np.random.default_rng(0)
    day = pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, num_rows), "D")
    x = rng.normal(size=num_rows)
    rows = {
        "id": [f"p{i}" for i in range(num_rows)],
        "seen": day.strftime("%m/%d/%Y"),
        "iso": day.strftime("%Y-%m-%d"),
        "at": [each.isoformat() + "+02:00" for each in day],
        "written": day.strftime("%d.%m.%Y"),
        "code": rng.choice(["1E50", "1E51", "2E60", "CA40"], num_rows),
        "many": [f"{i % 120}E{i % 7}" if i % 5 else f"C{i}" for i in range(num_rows)],
        "branch": rng.choice(["01", "02", "10", "A1"], num_rows),
        "plz": rng.choice(["01067", "10115", "80331"], num_rows),
        "x": [f"{each:.4f}" for each in x],
        "huge": [str(2**63 + int(each)) for each in rng.integers(0, 1000, num_rows)],
        "gaps": np.where(rng.random(num_rows) < 0.2, "", rng.integers(0, 9, num_rows).astype(str)),
        "na": np.where(rng.random(num_rows) < 0.2, "NA", rng.integers(0, 9, num_rows).astype(str)),
        "member": rng.choice(["true", "FALSE"], num_rows),
        "town": rng.choice(["Zürich", "São Paulo", "NA"], num_rows),
        "paid": [f"{1000 + 7 * i:,}.5 %" for i in range(num_rows)],
        "branch of": [("Retail", "retail", "Trade ")[i % 3] for i in range(num_rows)],
        "remark": [
            ("none", f"{'too long for a page, ' * 3}she said")[i % 2] for i in range(num_rows)
        ],
        "y": np.where(x + (day.month > 6) + rng.normal(size=num_rows) > 0.5, "yes", "no"),
    }
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("kinds")
    rows = training_rows()
    rows.to_csv(folder / "clinic.csv", index=False)
    other = pd.DataFrame({"id": rows.id, "z": np.random.default_rng(1).normal(size=len(rows))})
    encode = {
        "seen": {"kind": "date", "format": "%m/%d/%Y"},
        "na": {"missing": ["NA"]},
        "paid": {"kind": "number", "decimal": ".", "without": [",", "%"]},
        "branch of": {"lowercase": True},
    }
    clinic = dt.Party(
        "clinic", folder / "clinic.csv", id="id", label="y", encode=encode, categorical=["plz"]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = dt.fit(dt.APFed(), [clinic, dt.Party("lab", other, id="id")], test=0.25)
    for name in ("clinic", "joint"):
        run.models[name].save(folder / name)
    return {name: dt.load(folder / name) for name in ("clinic", "joint")}


@pytest.fixture(scope="module")
def model(models: Any) -> Any:
    return models["clinic"]


def test_a_joint_models_answer_does_not_depend_on_the_rows_beside_it(models: Any) -> None:
    rng = np.random.default_rng(0)
    codes = {n: rng.normal(size=(600, *shape)) for n, shape in models["joint"].shapes.items()}
    codes["lab"][::3] = np.nan
    x = {name: torch.from_numpy(values).float() for name, values in codes.items()}
    whole = models["joint"].predict_proba(x)
    for size in (1, 2, 40, 599):
        rows = rng.permutation(600)[:size]
        some = {name: values[rows] for name, values in x.items()}
        np.testing.assert_array_equal(models["joint"].predict_proba(some), whole[rows])


def test_the_card_says_how_each_column_is_read(model: Any, tmp_path: Path) -> None:
    written = card.card(model.save(tmp_path / "model"))
    read_as = {each["name"]: each["read_as"] for each in written["columns"]}
    assert read_as["seen"]["format"] == "%m/%d/%Y"
    assert read_as["na"] | {"rule": ""} == {
        "kind": "number",
        "decimal": ".",
        "missing": ("NA",),
        "rule": "",
    }
    page = card.markdown(json.loads(json.dumps(written)))
    for row in (
        "| seen | date, %m/%d/%Y | date | 2020-01-0",
        "| iso | date, ISO 8601 | date | ",
        "| na | number, no value: NA | number | ",
        '| paid | number, without "," "%" | number | 1',
        "| branch of | text, in lower case | category | retail, trade | ",
        "| remark | text | category | none, too long for a page, too long for a page... | 0 |",
        "| code | text | category | ",
        "| plz | category | category | ",
    ):
        assert row in page, page


def stored_as(rows: pd.DataFrame, how: str, folder: Path) -> Any:
    """These rows in a file or DataFrame."""
    if how == "csv":
        rows.to_csv(folder / "rows.csv", index=False)
        return folder / "rows.csv"
    if how == "parquet":
        rows.to_parquet(folder / "rows.parquet")
        return folder / "rows.parquet"
    return pl.from_pandas(rows) if how == "polars" else rows


def answers(model: Any, rows: pd.DataFrame, how: str, folder: Path) -> np.ndarray:
    return np.asarray(model.predict_proba(stored_as(rows, how, folder)))


@pytest.mark.slow
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.integers(0, 159), min_size=1, max_size=40, unique=True),
    st.sampled_from(["csv", "parquet", "frame", "polars"]),
)
def test_a_rows_answer_does_not_depend_on_the_rows_beside_it(
    model: Any, tmp_path: Path, rows: list[int], how: str
) -> None:
    table = training_rows().drop(columns="y")
    (encoder,) = model.inputs.values()
    inputs = encoder.transform(table_from_frame(table)).numpy()
    whole = answers(model, table, "csv", tmp_path)
    for chosen in (rows, rows[:1]):
        part = table.iloc[chosen]
        got = answers(model, part, how, tmp_path)
        np.testing.assert_array_equal(got, whole[chosen])
        source = stored_as(part, how, tmp_path)
        read = dd.read_table(source) if isinstance(source, Path) else table_from_frame(source)
        np.testing.assert_array_equal(encoder.transform(read).numpy(), inputs[chosen])


def test_values_of_other_types_mean_the_same_or_are_refused(model: Any) -> None:
    rows = training_rows().drop(columns="y").head(8)
    expected = np.asarray(model.predict_proba(rows))
    days = pd.to_datetime(rows.iso)
    typed = {
        "iso": days,
        "seen": pd.to_datetime(rows.seen, format="%m/%d/%Y"),
        "x": rows.x.astype(float),
        "gaps": pd.to_numeric(rows.gaps),
        "member": rows.member.str.lower() == "true",
        "town": rows.town.str.normalize("NFD"),
        "huge": rows.huge.astype("uint64"),
        "at": pd.to_datetime(rows["at"]),
    }
    for name, values in typed.items():
        np.testing.assert_array_equal(
            np.asarray(model.predict_proba(rows.assign(**{name: values}))), expected, name
        )
    for odd in (days.astype("int64") // 10**6, (days - pd.Timestamp(0)).dt.days):
        with pytest.raises(DataError, match=r"'iso' .*: row 0 has '\d+', expected a date"):
            model.predict_proba(rows.assign(iso=odd))
    late = rows.assign(seen=["25/12/2020", *rows.seen[1:]])
    with pytest.raises(DataError, match=r"'seen' .*row 0 has '25/12/2020', expected a date such"):
        model.predict_proba(late)
    partial = model.predictions(late, partial=True)
    why = "column 'seen': '25/12/2020' is not a date such as 01/31/2026 (%m/%d/%Y)"
    assert partial.errors is not None
    assert list(partial.errors) == [why, *[""] * 7]
    np.testing.assert_array_equal(np.asarray(partial.values)[1:], model.predict(rows)[1:])


def test_a_saved_model_says_how_its_columns_are_read(model: Any) -> None:
    (encoder,) = model.inputs.values()
    kinds_of = {name: each.kind for name, each in encoder.schema.items()}
    assert kinds_of["seen"] == "date"
    assert encoder.schema["seen"].format == "%m/%d/%Y"
    assert kinds_of["code"] == kinds_of["written"] == kinds_of["town"] == "text"
    assert kinds_of["plz"] == "category"
    assert kinds_of["na"] == kinds_of["huge"] == "number"
    assert encoder.schema["na"] == Reading("number", missing=("NA",))
    assert math.isfinite(encoder.fitted[encoder.columns.index("huge")].mean)


def test_a_model_of_an_earlier_version_warns_of_its_dates(model: Any) -> None:
    (encoder,) = model.inputs.values()
    stored = encoder.to_json()
    del stored["schema"]
    with pytest.warns(UserWarning, match="earlier version and does not say how dates"):
        old = dd.TableEncoder.from_json(stored)
    assert old.schema["seen"] == kinds.DATES
    assert old.schema["code"] == kinds.CATEGORY
    assert old.schema["member"] == kinds.WORDS


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["12/25/2020", "01/02/2020"], 'format = "%m/%d/%Y"'),
        (["25.12.2020", "01.02.2020"], 'format = "%d.%m.%Y"'),
        (["8/27/2014 11:29", "9/1/2014 9:05"], 'format = "%m/%d/%Y %H:%M"'),
        (["27.08.14 11:29:07", "01.09.14 09:05:00"], 'format = "%d.%m.%y %H:%M:%S"'),
        (["05.12.2020", "01.02.2020"], "month first: all fit both"),
        (["01", "02"], "zeros before digits"),
        (["1E50", "1E17"], "if these are numbers"),
        (["1.5", "1E5"], "exponents without sign"),
        (["1", "2", "3", "NA"], '[party.encode]: a = { missing = ["NA"] }'),
        (["a", "A", "b"], "differ in capitals alone"),
        (["3.760", "777", "10.280"], 'decimal = ",", without = ["."]'),
        (["3.760", "777", "0", "-10.280"], "three digits follow each point; if 3.760 is"),
        (
            ["1", "2.5", "-999", "-999"],
            "2 rows have -999, far from all others; if it is no value: ",
        ),
        (["1", "2", "999", "999.0"] * 2, 'a = { missing = ["999", "999.0"] }'),
        (["2024-01-31", "31.01.2024"], 'ways, such as "2024-01-31" and "31.01.2024"; write all as'),
        (["31.01.2024", "31/01/2024"], "dates written in several ways"),
        (["31.01.2024", "31.01.2024 10:30"], "dates written in several ways"),
        (["05/06/2024", "01/31/2024", "31/01/2024"], 'such as "31/01/2024" and "01/31/2024"'),
        (["2024-01-31", "2024-02-01", "20240202"], 'such as "2024-01-31" and "20240202"'),
        (["2024/01/31", "2024/02/01"], 'format = "%Y/%m/%d"'),
        (["31.01.2024", "01.02.2024", "00.00.0000"], 'missing = ["00.00.0000"]'),
        (["2024-01-31", "2024-02-01", "NA"], '33.3 % of it is text: "NA"; the others are dates'),
    ],
)
def test_what_can_be_read_in_two_ways_is_remarked(
    tmp_path: Path, values: list[str], words: str
) -> None:
    table = column_csv(tmp_path, *values)
    (doubt,) = doubts(table.reading("a"), Counter(values))
    assert words in doubt.sentence("a")


@pytest.mark.parametrize(
    "values",
    [
        ["3.760", "1.459", "10.280"],  # a price of a litre
        ["3.760", "0.777", "1"],
        ["3.76", "2.125", "5"],
        ["1.250", "1000", "3.760"],
        ["0", "1.234", "3.760"],
        ["1", "2", "999"],
        ["97", "98", "99", "99"],
        ["1", "500", "999", "999"],
        ["1", "2", "-1", "-1"],
        ["99", "99", "99"],
        ["20-45-67", "20-33-99"],
        ["2024-01-31", "soon", "late", "2024-02-01"],
    ],
)
def test_what_is_most_likely_right_is_not_remarked(tmp_path: Path, values: list[str]) -> None:
    assert doubts(column_csv(tmp_path, *values).reading("a"), Counter(values)) == []


def test_a_line_keeps_what_the_partys_file_says(tmp_path: Path) -> None:
    values = ["1,5 %", "2 %", "NA", "-999 %", "-999 %"]
    encode = Encode(kind="number", decimal=",", without=("%",), missing=("NA",))
    table = column_csv(tmp_path, *values).asking(Asked({"a": encode}))
    (doubt,) = doubts(table.reading("a"), Counter(values))
    line = 'a = { kind = "number", decimal = ",", without = ["%"], missing = ["NA", "-999 %"] }'
    assert doubt.line("a") == line


# --- Files as they come ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,x\n2,y\n",
        "a,b,\n1,x,\n2,y,\n",
        "a,b\n1,x,\n2,y,\n",
        "sep=;\na;b\n1;x\n2;y\n",
        "\n\na\tb\n1\tx\n2\ty\n",
        '\ufeff"a"|"b"\r\n"1"|"x"\r\n2|y\r\n',
        "a,b\n1,x\r\n2,y\n",
    ],
)
def test_a_file_is_read_by_its_first_line(tmp_path: Path, text: str) -> None:
    table = csv_of(tmp_path, text)
    assert table.names == ("a", "b")
    assert table.column("a").values.tolist() == [1, 2]
    assert table.column("b").values.tolist() == ["x", "y"]


def test_rows_that_get_wider_are_named_and_no_header_is_lost(tmp_path: Path) -> None:
    rows = "".join(f"{i},1\n" for i in range(3000)) + "1,2,3\n" * 3000
    with pytest.raises(DataError, match=r"line 3002 of .* has 3 fields where the first line has 2"):
        csv_of(tmp_path, "a,b\n" + rows)


def test_decimal_commas_are_the_tables_or_declared(tmp_path: Path) -> None:
    table = csv_of(tmp_path, "a;b\n1,5;2\n,25;3\n")
    assert table.reading("a") == Reading("number", decimal=",")
    assert table.column("a").values.tolist() == [1.5, 0.25]
    mixed = csv_of(tmp_path, "a;b\n1,5;2.5\n,25;3\n")
    assert mixed.reading("a").kind == "text"
    quoted = column_csv(tmp_path, "1,5", "2")
    asked = quoted.asking(Asked({"a": Encode(kind="number", decimal=",")}))
    assert asked.column("a").values.tolist() == [1.5, 2]
    # A model of points reads a file whose delimiter leaves it commas.
    assert table.column("a", kinds.NUMBERS).values.tolist() == [1.5, 0.25]


#: Numbers, what nearly is one, and what has a line's end in it.
NEARLY = st.one_of(
    st.from_regex(kinds.NUMBER, fullmatch=True),
    st.sampled_from(
        ["007", "1E50", "1e+5", "nan", "-inf", "1,5", "true", "2024-02-29", "1\n2", "1\n"]
    ),
    st.text(max_size=3),
)


@given(st.lists(st.from_regex(kinds.NUMBER, fullmatch=True)) | st.lists(NEARLY))
def test_texts_look_together_as_each_does_alone(texts: list[str]) -> None:
    alone = Counter[str]()
    for text in texts:
        alone.update(kinds._counted([text]))
    assert vars(kinds.looks(iter(texts))) == {name: alone[name] for name in vars(kinds.Looks())}


def test_many_texts_are_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [str(number / 4) for number in range(50)] + ["1E5"]
    whole = kinds.looks(texts)
    monkeypatch.setattr(kinds, "_AT_ONCE", 7)
    assert kinds.looks(texts) == whole
    assert (whole.number, whole.points, whole.bare) == (51, 50, 1)


@pytest.mark.parametrize("text", ["0" * 100_000 + "A1", "1" * 100_000 + "."])
def test_a_long_text_is_looked_at_once(text: str) -> None:
    texts = [f"{number:05d}" for number in range(2000)]
    looks = kinds.looks([*texts, text])  # else this takes minutes, or for ever
    assert looks.present == 2001
    assert looks.number == 2000 + text.endswith(".")
    assert looks.zeros == 2000
