import gzip
import re
import weakref

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.data import loaded, read_table, table_from_arrays, tables, write_table
from dovetail.data.loaded import Loaded
from dovetail.data.survey import doubts_in
from dovetail.errors import DataError
from dovetail.settings.sources import is_query


@pytest.fixture
def csv(tmp_path):
    def write(text, name="people.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def read(table, name):
    column = table.column(name)
    assert column.missing.dtype == bool
    return [
        None if missing else value
        for value, missing in zip(column.values.tolist(), column.missing.tolist(), strict=True)
    ]


def test_a_csv_file_has_typed_columns(csv):
    table = read_table(
        csv("age,income,born,job\n30,1.5,1970-01-03,clerk\n,nan,,\n7,2,1970-01-01,?\n")
    )
    assert table.names == ("age", "income", "born", "job")
    assert table.num_rows == 3
    assert read(table, "age") == [30, None, 7]
    assert read(table, "income") == [1.5, None, 2]
    assert read(table, "born") == [2, None, 0]
    assert read(table, "job") == ["clerk", None, None]
    assert table.column("job").is_text
    assert not table.column("age").is_text


def test_text_is_trimmed(csv):
    table = read_table(csv('job,age\n" clerk ",1\n ?,2\n"  ",3\n'))
    assert read(table, "job") == ["clerk", None, None]


def test_a_question_mark_among_numbers_is_a_missing_number(csv):
    assert read(read_table(csv("a,b\n1,x\n?,x\n3,x\n")), "a") == [1, None, 3]


def test_yes_and_true_stay_as_they_are_written(csv):
    table = read_table(csv("a,b\nyes,true\nno,false\n"))
    assert read(table, "a") == ["yes", "no"]
    assert read(table, "b") == ["true", "false"]


def test_types_come_from_all_rows_of_a_csv_file(csv):
    table = read_table(csv("a,b\n" + "1,1\n" * 30000 + "late,1\n"))
    assert table.column("a").is_text
    assert table.column("a").values[-1] == "late"


def test_tsv_and_gzip_files_are_read(csv, tmp_path):
    assert read(read_table(csv("a\tb\n1\tx\n", "t.tsv")), "b") == ["x"]
    with gzip.open(tmp_path / "t.csv.gz", "wt") as file:
        file.write("a,b\n1,x\n")
    assert read(read_table(tmp_path / "t.csv.gz"), "b") == ["x"]


def test_a_query_is_a_table_in_its_own_order(csv):
    path = csv("a\n1\n3\n2\n")
    table = read_table(f"SELECT a, a * 2 AS b, a > 1 AS c FROM '{path}' ORDER BY a DESC;")
    assert read(table, "a") == [3, 2, 1]
    assert read(table, "b") == [6, 4, 2]
    assert read(table, "c") == ["true", "true", "false"]


@pytest.mark.parametrize(
    "query",
    [
        "-- the younger\nFROM '{path}' -- first",
        "/* a; b */ (SELECT * FROM '{path}')",
        "from '{path}' select *;",
        "/**/ WITH t AS (FROM '{path}') SELECT * FROM t; -- all",
        "SELECT\"a\" FROM '{path}'",
    ],
)
def test_a_query_may_begin_with_a_comment_a_bracket_or_from(csv, query):
    source = query.format(path=csv("a\n1\n2\n"))
    assert is_query(source)
    assert read(read_table(source), "a") == [1, 2]


@pytest.mark.parametrize(
    "path", ["from.csv", "selected.csv", "with/a.csv", "(1).csv", "--.csv", "from", "/*.csv", ""]
)
def test_a_path_is_no_query(path):
    assert not is_query(path)


@pytest.mark.parametrize("comment", ["--", "/*", "(", "/**/", "--\n", "/*/"])
def test_many_comments_are_told_from_a_query_at_once(comment):
    assert not is_query(comment * 20_000)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT 1; {copy}", "must be one SELECT statement, got SELECT and COPY: SELECT 1; COPY"),
        ("-- \nSELECT 1; SELECT 2", "must be one SELECT statement, got SELECT and SELECT: "),
        ("WITH a AS (SELECT 1) INSERT INTO b FROM a", "one SELECT statement, got INSERT: WITH"),
        ("WITH a AS ({copy}) SELECT 1 AS b", "cannot read WITH a AS "),
        ("FROM (WITH a AS ({copy}) SELECT 1 AS b)", "cannot read FROM "),
        ("SELECT 1; SET lock_configuration = false", "got SELECT and SET"),
        ("FROM 'https://localhost/a.csv'", "cannot read FROM 'https://localhost/a.csv': "),
    ],
)
def test_a_query_reads_and_does_nothing_else(tmp_path, query, words):
    written = tmp_path / "written.csv"
    with pytest.raises(DataError, match=words) as raised:
        read_table(query.format(copy=f"COPY (SELECT 1) TO '{written}'"))
    assert "\n" not in str(raised.value)
    assert not written.exists()


def test_a_query_cannot_have_an_extension_loaded():
    names = "'autoload_known_extensions', 'autoinstall_known_extensions', 'lock_configuration'"
    table = read_table(f"SELECT name, value FROM duckdb_settings() WHERE name IN ({names})")
    settings = dict(zip(read(table, "name"), read(table, "value"), strict=True))
    assert settings["autoload_known_extensions"] == "false"
    assert settings["autoinstall_known_extensions"] == "false"
    assert settings["lock_configuration"] == "true"


def test_times_of_any_precision_are_days():
    time = "1970-01-02 12:00:00"
    kinds = ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMPTZ")
    offset = {"TIMESTAMPTZ": "+00"}
    asked = ", ".join(f"'{time}{offset.get(kind, '')}'::{kind} AS {kind}" for kind in kinds)
    table = read_table(f"SELECT {asked}")
    assert [read(table, name) for name in table.names] == [[1.5]] * 5


def test_a_random_query_is_run_once():
    table = read_table("WITH t AS (SELECT random() AS a FROM range(20)) SELECT a, a AS b FROM t")
    assert read(table, "a") == read(table, "b")
    assert read(table, "a") == read(table, "a")


def test_a_path_may_have_quotes_and_brackets(tmp_path):
    folder = tmp_path / "it's [1]*"
    folder.mkdir()
    for name in ("a.csv", "a.parquet"):
        write_table(folder / name, {"a": np.array([1, 2])})
        assert read(read_table(folder / name), "a") == [1, 2]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_what_is_written_is_read_back(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    columns = {
        "a b": np.array([1.5, np.nan, -2]),
        'say "hi"': np.array(['x,"y"', None, "ä"], dtype=object),
        "n": np.array([3, 2, 1], dtype=np.uint8),
        "t": np.array(["p", "q", "r"]),
        "d": np.array(["1970-01-02", "1969-12-31", "NaT"], dtype="datetime64[D]"),
    }
    write_table(path, columns)
    table, memory = read_table(path), table_from_arrays("memory", columns)
    assert table.names == memory.names == tuple(columns)
    for name in columns:
        assert read(table, name) == read(memory, name)
    assert read(table, "a b") == [1.5, None, -2]
    assert read(table, "d") == [1, -1, None]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@settings(max_examples=25)
@given(
    numbers=st.lists(st.one_of(st.none(), st.floats(-1e9, 1e9)), min_size=1, max_size=12),
    data=st.data(),
)
def test_parquet_keeps_any_numbers_and_texts(tmp_path_factory, numbers, data):
    size = len(numbers)
    texts = data.draw(
        st.lists(st.one_of(st.none(), st.text("ab ?ü,\"'")), min_size=size, max_size=size)
    )
    columns = {
        "x": np.array([np.nan if number is None else number for number in numbers]),
        "t": np.array([*texts, "end"], dtype=object)[:-1],
    }
    path = tmp_path_factory.mktemp("t") / "t.parquet"
    write_table(path, columns)
    table = read_table(path)
    assert read(table, "x") == numbers
    trimmed = [text if text is None else text.strip() for text in texts]
    assert read(table, "t") == [None if text in ("", "?") else text for text in trimmed]


def test_late_text_among_numbers_is_written_as_text(tmp_path):
    values = np.array([1] * 3000 + ["late"], dtype=object)
    write_table(tmp_path / "t.parquet", {"a": values})
    assert read(read_table(tmp_path / "t.parquet"), "a")[-2:] == ["1", "late"]


def test_arrays_in_memory_follow_the_same_rules():
    table = table_from_arrays(
        "memory",
        {
            "mixed": np.array([1, None, 2.5, float("nan")], dtype=object),
            "whole": np.array([1, None, 2, 3], dtype=object),
            "text": np.array([" a ", None, "?", 3], dtype=object),
            "flag": np.array([True, False, True, True]),
        },
    )
    assert read(table, "mixed") == [1, None, 2.5, None]
    assert read(table, "whole") == [1, None, 2, 3]
    assert table.column("whole").values.dtype == np.int64
    assert read(table, "text") == ["a", None, None, "3"]
    assert read(table, "flag") == ["true", "false", "true", "true"]


def test_taken_rows_of_taken_rows_are_rows_of_the_table():
    table = table_from_arrays("memory", {"a": np.arange(10)})
    twice = table.take(np.array([7, 5, 3])).take(np.array([2, 0, 0]))
    assert twice.num_rows == 3
    assert read(twice, "a") == [3, 7, 7]
    assert read(twice.without([]), "a") == [3, 7, 7]


def test_patterns_select_names_in_table_order():
    names = ["mean area", "mean size", "worst area", "-odd", "a[1]"]
    table = table_from_arrays("memory", {name: np.ones(1) for name in names})
    assert table.select(["worst *", "mean *", "mean area"]) == [
        "mean area",
        "mean size",
        "worst area",
    ]
    assert table.select(["* area", "-worst *"]) == ["mean area"]
    assert table.select(["-worst *", "* area"]) == ["mean area"]
    assert table.select(["-mean *", "-worst *"]) == ["-odd", "a[1]"]
    assert table.select(["-odd", "a[1]"]) == ["-odd", "a[1]"]
    assert table.select([]) == []


def test_names_can_be_left_out():
    table = table_from_arrays("memory", {"a": np.ones(1), "b": np.ones(1)}).without(["a"])
    assert table.names == ("b",)
    with pytest.raises(DataError, match="no column 'a' in memory"):
        table.column("a")


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda t: t.column("incom"), "no column 'incom' in memory; did you mean 'income'"),
        (lambda t: t.select(["incom*e*x"]), "no column of memory matches"),
        (lambda t: t.select(["Age"]), "no column of memory matches 'Age'; did you mean 'age'"),
        (lambda t: t.select(["-agee"]), "matches 'agee'; did you mean 'age'"),
        (lambda t: t.without(["zzz"]), r"no column 'zzz' in memory; there are \['age', 'income'\]"),
    ],
)
def test_an_unknown_column_is_refused_with_the_nearest(ask, words):
    table = table_from_arrays("memory", {"age": np.ones(1), "income": np.ones(1)})
    with pytest.raises(DataError, match=words):
        ask(table)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "people.csv is empty"),
        ("a,b\n", "people.csv has no rows"),
        ("a,b,a\n1,2,3\n", "people.csv has more than one column 'a'"),
        ("a,A\n1,2\n", "people.csv has more than one column 'A'"),
    ],
)
def test_a_csv_file_that_cannot_be_used_is_refused(csv, text, words):
    with pytest.raises(DataError, match=words):
        read_table(csv(text))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere.csv", "there is no file nowhere.csv"),
        ("people.xlxs", "a table's name ends in .csv, .tsv, .csv.gz, .parquet"),
        ("SELECT 1 AS a, 2 AS a", "more than one column 'a'"),
        ("SELECT * FROM nowhere", "cannot read SELECT .* nowhere"),
        ("SELECT 1 AS a WHERE false", "has no rows"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused(source, words):
    with pytest.raises(DataError, match=words):
        read_table(source)


def test_a_csv_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "people.csv"
    path.write_bytes(b"a,b\n\xff\xfe,2\n")
    with pytest.raises(DataError, match=r"cannot read .*people\.csv: it is not UTF-8 text; .*1252"):
        read_table(path)


@pytest.mark.parametrize(
    ("name", "begins", "words"),
    [
        ("people.csv", "a,b\n1,2\n".encode("utf-16"), "it is text in UTF-16; save it as UTF-8"),
        ("people.csv", b"PK\x03\x04\x00\x01\xff\xfe", "it is an Excel workbook or another archive"),
        ("people.csv", b"PAR1\x15\x04\xff\xfe\x00", "it is a Parquet file; give it the ending"),
        ("people.parquet", b"a,b\n1,2\n", "it is no Parquet file; give it the ending"),
        ("people.csv", b"a,b,c\n1,2,3\n1,2\n", r"line 3 of .*people.csv has 2 fields where .* 3"),
    ],
)
def test_a_file_of_another_kind_is_told_as_what_it_is(tmp_path, name, begins, words):
    path = tmp_path / name
    path.write_bytes(begins)
    with pytest.raises(DataError, match=words):
        read_table(path)


def test_numbers_with_decimal_commas_are_numbers_where_no_comma_separates(csv):
    table = read_table(csv("id;weight;group;picked\n1;2,5;a;1,2\n2;?;b;3\n3;4;a;\n"))
    assert read(table, "weight") == [2.5, None, 4]
    assert read(table, "group") == ["a", "b", "a"]
    mixed = read_table(csv("id;weight;picked\n1;2.5;1,2\n2;3.5;3\n"))  # 1,2: two of a choice
    assert read(mixed, "weight") == [2.5, 3.5]
    assert read(mixed, "picked") == ["1,2", "3"]


def test_a_broken_parquet_file_is_refused(tmp_path):
    path = tmp_path / "broken.parquet"
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match=r"cannot read .*broken\.parquet"):
        read_table(path)


def test_a_column_of_lists_is_refused_when_it_is_read():
    table = read_table("SELECT [1, 2] AS many, 1 AS one")
    assert read(table, "one") == [1]
    with pytest.raises(DataError, match=r"'many' .* has the type INTEGER\[\]"):
        table.column("many")


@pytest.mark.parametrize(
    ("name", "columns", "words"),
    [
        ("t.xlsx", {"a": np.ones(1)}, "must end in .csv or .parquet"),
        ("t.csv", {}, "one length"),
        ("t.csv", {"a": np.ones(1), "b": np.ones(2)}, "one length"),
        ("t.csv", {"a": np.ones(1), "A": np.ones(1)}, "more than one column 'A'"),
        ("no/t.csv", {"a": np.ones(1)}, "there is no folder"),
        ("t.csv", {"a": np.ones(1, dtype=complex)}, "cannot write"),
    ],
)
def test_a_table_that_cannot_be_written_is_refused(tmp_path, name, columns, words):
    with pytest.raises(DataError, match=words):
        write_table(tmp_path / name, columns)
    assert list(tmp_path.iterdir()) == []


def test_arrays_of_two_lengths_are_no_table():
    with pytest.raises(DataError, match="memory needs columns of one length"):
        table_from_arrays("memory", {"a": np.ones(1), "b": np.ones(2)})


@pytest.mark.parametrize(
    ("glob", "offered"),
    [
        ("meen *", "mean *"),
        ("wurst*", "worst*"),
        ("* eror", "* error"),
        ("mean areas*", "mean area*"),
    ],
)
def test_a_glob_that_matches_nothing_offers_one_that_does(glob, offered):
    names = ["mean area", "mean radius", "worst area", "radius error"]
    table = table_from_arrays("cells", dict.fromkeys(names, np.ones(1)))
    words = re.escape(f"no column of cells matches {glob!r}; did you mean {offered!r}?")
    with pytest.raises(DataError, match=words):
        table.select([glob])
    assert table.select([offered])


def test_true_and_false_are_the_same_words_wherever_they_come_from(csv, tmp_path):
    path = tmp_path / "t.parquet"
    duckdb.sql(
        "SELECT * FROM (VALUES (true, 'yes'), (false, 'no'), (NULL, 'no')) AS t(a, b)"
    ).write_parquet(str(path))
    stored = read_table(path)
    written = read_table(csv("a,b\nTrue,yes\nFalse,no\n,no\n"))
    given = table_from_arrays("t", {"a": np.array([True, False, None], dtype=object)})
    for table in (stored, written, given):
        assert read(table, "a") == ["true", "false", None]
    assert read(stored, "b") == read(written, "b") == ["yes", "no", "no"]
    kept = read_table(csv("a,b\nTrue,1\nperhaps,2\n", "other.csv"))
    assert read(kept, "a") == ["True", "perhaps"]  # a word among others stays as it is


def test_the_index_that_pandas_writes_is_no_column(tmp_path):
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "t.parquet"
    pandas.DataFrame({"age": [3, 4, 5]}).iloc[[2, 0, 1]].to_parquet(path)
    table = read_table(path)
    assert table.names == ("age",)
    assert table.index == table.take(np.array([0])).index == ("__index_level_0__",)
    assert read(table, "__index_level_0__") == [2, 0, 1]  # where it is asked for by name


@pytest.mark.parametrize("num_rows", [40, 1500])
def test_doubts_about_many_columns_take_few_queries(tmp_path, monkeypatch, num_rows):
    """A query looks at all columns: one for each of 5,000 took half a minute."""
    lines = [[f"c{at}" for at in range(300)]]
    lines += [
        [f"{row}.{at}" if at % 3 else f"w{row % 5}" for at in range(300)] for row in range(num_rows)
    ]
    (tmp_path / "wide.csv").write_text("".join(f"{','.join(line)}\n" for line in lines))
    wide = read_table(tmp_path / "wide.csv")
    queries, run = [], Loaded._run
    monkeypatch.setattr(
        Loaded, "_run", lambda self, query: queries.append(query) or run(self, query)
    )
    assert not [*doubts_in(wide, wide.names)]
    assert len(queries) <= 4 * -(-300 // 64)
    for name in ("c7", "c9"):  # again, and of other kinds
        stored = [f"{row}.7" if name == "c7" else f"w{row % 5}" for row in range(num_rows)]
        assert wide.stored(name).values.tolist() == stored
    assert wide.column("c7").values.tolist() == [float(f"{row}.7") for row in range(num_rows)]


def test_a_large_table_keeps_no_texts_of_a_column_that_was_read(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{row}.5,w{row}\n" for row in range(40)))
    monkeypatch.setattr(loaded, "MAX_WHOLE_VALUES", 0)
    table = read_table(tmp_path / "t.csv")
    for name in table.names:
        values = weakref.ref(table.stored(name).values)
        assert values() is None


def test_a_table_of_many_columns_is_read_as_one_of_few(tmp_path, monkeypatch):
    path = tmp_path / "wide.parquet"
    numbers = ", ".join(
        f"case when i % {k + 2} = 0 then null else i * {k}.5 end AS n{k}" for k in range(60)
    )
    duckdb.sql(
        f"COPY (SELECT {numbers}, 'a ' || i AS name, i % 2 = 0 AS yes, DATE '1980-03-07' + i::INT "
        f"AS day, [i] AS list FROM range(20) t(i)) TO '{path}' (FORMAT parquet)"
    )
    wide = read_table(path)
    monkeypatch.setattr(loaded, "MANY_COLUMNS", 1000)
    narrow = read_table(path)
    for name in narrow.names:
        if name == "list":
            continue
        one, other = wide.column(name), narrow.column(name)
        np.testing.assert_array_equal(one.values, other.values)
        np.testing.assert_array_equal(one.missing, other.missing)
        assert one.reading == other.reading
    with pytest.raises(DataError, match=r"column 'list' of .* is neither number, date nor text"):
        wide.column("list")


def test_texts_of_a_long_table_are_shared_and_the_same(tmp_path, monkeypatch):
    texts = ["it's", None, " north ", "?", "", "north", 'a "b"', "it's"]
    written = np.array(texts, dtype=object)
    write_table(tmp_path / "t.parquet", {"a": written, "b": np.array([None] * 8, dtype=object)})
    plain = read_table(tmp_path / "t.parquet")
    words = np.array(["TRUE", "false", None, "True"] * 2, dtype=object)
    write_table(tmp_path / "words.parquet", {"a": words})
    plainly = read(read_table(tmp_path / "words.parquet"), "a")
    before = {name: plain.column(name) for name in ("a", "b")}
    monkeypatch.setattr(loaded, "_LONG", 1)
    for name, column in before.items():
        shared = read_table(tmp_path / "t.parquet").column(name)
        np.testing.assert_array_equal(shared.missing, column.missing)
        assert shared.values.tolist() == column.values.tolist()
    assert len({id(text) for text in read_table(tmp_path / "t.parquet").column("a").values}) == 4
    assert read(read_table(tmp_path / "words.parquet"), "a") == plainly
    monkeypatch.setattr(loaded, "_FEW_TEXTS", 2)
    assert read(read_table(tmp_path / "t.parquet"), "a") == read(plain, "a")


def test_a_type_and_a_decision_are_read_once(tmp_path, monkeypatch):
    columns = {"n": np.arange(4.0), "d": np.array(["2024-01-01"] * 4), "t": np.array(["a"] * 4)}
    write_table(tmp_path / "t.parquet", columns)
    table = read_table(tmp_path / "t.parquet")
    asked = []
    monkeypatch.setattr(
        loaded.Loaded, "_run", lambda self, query, run=loaded.Loaded._run: asked.append(query)
        or run(self, query)
    )  # fmt: skip
    kinds_found = {name: table.reading(name).kind for name in columns}
    assert kinds_found == {"n": "number", "d": "date", "t": "text"}
    assert not any('"n"' in query for query in asked)  # its type says so
    once = len(asked)
    assert {name: table.reading(name).kind for name in columns} == kinds_found
    assert len(asked) == once


def test_different_values_are_found_as_numpy_finds_them():
    for values in (np.array(["b", "a", "", "b"], dtype=object), np.array([3.0, np.nan, 1, 3])):
        distinct_values, indices = tables.distinct(values)
        expected, expected_indices = np.unique(values, return_inverse=True)
        np.testing.assert_array_equal(distinct_values, expected)
        np.testing.assert_array_equal(indices, expected_indices)
