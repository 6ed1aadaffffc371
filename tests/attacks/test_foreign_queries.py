"""Run files and party files of somebody else: what can their SELECT read here?"""

import os

import duckdb
import numpy as np
import pytest

from dovetail.data import read_party_table, read_table, write_table
from dovetail.errors import ConfigError, DataError
from dovetail.node.partyfile import open_site
from dovetail.runs.runfile import read_settings
from dovetail.runs.setup import read_pooled


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that a file came in, with a table, beside what is nobody's business."""
    came, secret, work = (tmp_path / name for name in ("came", "secret", "work"))
    for each in (came, secret, work, came / "more", came / "shop.site"):
        each.mkdir()
    columns = {"id": np.arange(6), "x": np.arange(6.0), "y": np.arange(6) % 2}
    for path in (came / "t.csv", came / "more" / "u.csv", came / "b.parquet", secret / "s.csv"):
        write_table(path, columns)
    write_table(came / "shop.site" / "state.csv", columns)
    (came / "shop.key").write_text("-----BEGIN PRIVATE KEY-----\n")
    for name in ("passwords", "notes.txt"):
        (secret / name).write_text("id,x,y\n1,hunter2,0\n")
    (came / "link.csv").symlink_to(secret / "s.csv")
    (came / "linked").symlink_to(secret)
    (came / "key.csv").symlink_to(secret / "passwords")
    write_table(work / "w.csv", columns)
    (work / "to-came").symlink_to(came)
    (work / "pw.csv").symlink_to(secret / "passwords")
    (came / "~").mkdir()
    write_table(came / "~" / "s.csv", columns)
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(secret))
    return came


READS = [
    "SELECT * FROM read_text('{secret}/passwords')",
    "SELECT * FROM read_csv('{secret}/passwords', header = true)",
    "SELECT * FROM '{secret}/notes.txt'",
    "SELECT * FROM '{secret}/*.csv'",
    "SELECT * FROM '../secret/?.csv'",
    "SELECT * FROM 'link.csv'",
    "SELECT * FROM '/proc/self/cwd/../came/link.csv'",
    "SELECT * FROM '{work}/to-came/link.csv'",
    "SELECT * FROM '{came}/link.csv'",
    "SELECT * FROM 'linked/s.csv'",
    "SELECT * FROM '{came}/linked/*.csv'",
    "SELECT * FROM '{came}/*/s.csv'",
    "SELECT * FROM '{came}/*nk.csv'",
    "SELECT * FROM 'key.csv'",
    "SELECT * FROM read_csv(['t.csv', 'linked/s.csv'])",
    "SELECT * FROM read_csv('{secret}' || '/s.csv')",
    "SELECT * FROM query('FROM ''{secret}/s' || '.csv''')",
    "SELECT * FROM sniff_csv(concat('{secret}', '/s.csv'))",
    "SELECT *, 'link.csv' AS a FROM read_csv('{secret}' || '/s.csv')",
    "SELECT * FROM read_text('{work}/pw.csv')",
    "SELECT * FROM 'file:{secret}/s.csv'",
    "SELECT * FROM read_text('file:' || '{secret}/notes.txt')",
    "SELECT * FROM glob('file:{secret}/*.csv')",
    "SELECT * FROM '~/s.csv'",
    "SELECT * FROM read_text('~' || '/notes.txt')",
    "SELECT * FROM '~/*.csv'",
    "SELECT file AS x FROM glob('{secret}/*')",
    "SELECT file AS x FROM glob('*')",
    "SELECT file AS x FROM glob('{came}/*/../../secret/*.csv')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/proc/self/environ')",
    "SELECT * FROM read_text('shop.key')",
    "SELECT * FROM read_csv('shop.key', header = false)",
    "SELECT * FROM 'shop.site/state.csv'",
    "SELECT * FROM 'w.csv'",
    "SELECT * FROM 'https://127.0.0.1:9/x.csv'",
    "SELECT * FROM 's3://bucket/x.parquet'",
]
WRITES = [
    "COPY (SELECT 1) TO '{came}/w.csv'",
    "WITH x AS (COPY (SELECT 1) TO '{came}/w.csv') SELECT 1 AS a",
    "SELECT * FROM query('COPY (SELECT 1) TO ''{came}/w.csv''')",
    "ATTACH '{came}/w.csv'",
    "SELECT 1; ATTACH '{came}/w.csv'",
    "INSTALL httpfs",
    "SELECT 1; SET allowed_directories = ['/']",
    "SELECT * FROM query('SET enable_external_access = true')",
]


@pytest.mark.parametrize("query", [*READS, *WRITES])
def test_a_query_of_a_file_opens_nothing_elsewhere(folder, query):
    before = sorted(folder.iterdir())
    query = query.format(secret=folder.parent / "secret", came=folder, work=folder.parent / "work")
    with pytest.raises(DataError) as refused:
        read_table(query, folders=[folder])
    assert "hunter2" not in str(refused.value)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT * FROM 't.csv'", 6),
        ("SELECT * FROM '{came}/t.csv'", 6),
        ("SELECT * FROM 'more/u.csv'", 6),
        ("SELECT * FROM 'more/../t.csv'", 6),
        ("SELECT * FROM read_csv('t.csv', header = true) ORDER BY x", 6),
        ("SELECT * FROM 'b.parquet'", 6),
        ("SELECT * FROM 'more/*.csv'", 6),
        ("SELECT * FROM '{came}/mor*/*.csv'", 6),
        ("SELECT a.x, b.y FROM 't.csv' a JOIN read_parquet('b.parquet') b USING (id)", 6),
        ("SELECT * FROM read_csv(['t.csv', 'more/u.csv'])", 12),
        ("SELECT i AS x FROM range(7) t(i)", 7),
    ],
)
def test_a_query_of_a_file_opens_tables_of_its_folder(folder, query, rows):
    assert read_table(query.format(came=folder), folders=[folder]).num_rows == rows


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT * FROM '{secret}/s.csv'", 6),
        ('SELECT * FROM "{secret}/s.csv"', 6),
        ("SELECT * FROM '../secret/s.csv'", 6),
        ("SELECT * FROM '{came}/more/../../secret/s.csv'", 6),
        ("SELECT * FROM 't.csv' WHERE x IN (SELECT x FROM '{secret}/s.csv' WHERE x < 2)", 2),
        ("SELECT * FROM read_csv(['{secret}/s.csv', 't.csv'])", 12),
        ("SELECT * FROM query('FROM ''{secret}/s.csv''')", 6),
    ],
)
def test_a_query_of_a_file_opens_tables_whose_path_it_has_in_full(folder, query, rows):
    query = query.format(secret=folder.parent / "secret", came=folder)
    assert read_table(query, folders=[folder]).num_rows == rows


def test_a_query_names_tables_from_its_file_wherever_it_is_run(folder, monkeypatch):
    monkeypatch.chdir("/")
    source = "FROM '../secret/s.csv' UNION ALL FROM 'more/../../work/w.csv'"
    assert read_table(source, folders=[folder]).num_rows == 12


def test_tables_beside_one_that_is_named_in_full_stay_closed(folder):
    secret = folder.parent / "secret"
    write_table(secret / "n.csv", {"id": np.arange(2)})
    query = f"SELECT * FROM '{secret}/s.csv', (FROM read_csv('{secret}/' || 'n.csv'))"
    with pytest.raises(
        DataError, match=r"n\.csv is not in .*: write the whole path, or its folder in"
    ):
        read_table(query, folders=[folder])


def test_a_folder_that_the_file_names_is_read_too(folder):
    secret = folder.parent / "secret"
    assert read_table(f"SELECT * FROM '{secret}/s.csv'", folders=[folder, secret]).num_rows == 6
    assert read_table("SELECT * FROM 'link.csv'", folders=[folder, secret]).num_rows == 6
    assert read_table("SELECT * FROM 's.csv'", folders=[folder, secret]).num_rows == 6
    with pytest.raises(DataError, match="may open tables"):
        read_table(f"SELECT * FROM read_text('{secret}/passwords')", folders=[folder, secret])
    table = read_party_table(
        "shop", "SELECT * FROM 's.csv'", id="id", folder=folder, folders=["../secret"]
    )
    assert table.num_rows == 6


def test_the_callers_own_query_opens_what_its_user_may(folder):
    assert read_table(f"SELECT * FROM '{folder.parent}/secret/s.csv'").num_rows == 6


#: How a file names a table -> the words by which it is refused; "" if it is opened.
NAMED = {
    "t.csv": "",
    "{secret}/s.csv": "",
    "../secret/s.csv": "",
    "link.csv": r"came/link\.csv is a link to {secret}/s\.csv, which is not in .*; name that file",
    "linked/s.csv": r"came/linked/s\.csv is a link to {secret}/s\.csv, which is not in ",
    "shop.site/state.csv": "is in a party's site folder, which has keys and states",
}


@pytest.mark.parametrize("how", ["{}", "SELECT * FROM '{}'"], ids=["path", "query"])
@pytest.mark.parametrize(("name", "words"), NAMED.items(), ids=NAMED)
def test_a_path_and_a_query_of_a_file_open_the_same(folder, how, name, words):
    secret = folder.parent / "secret"
    source, words = how.format(name.format(secret=secret)), words.format(secret=secret)
    party, run = folder / "shop.toml", folder / "run.toml"
    party.write_text(f'[party]\nname = "shop"\nid = "id"\ntable = "{source}"\n')
    partition = '{ kind = "columns", active = "a", parties = { a = ["x"], b = ["x"] } }'
    run.write_text(
        f'method = "apfed-mixed"\n[data]\nlabel = "y"\nid = "id"\ntest = 0.5\n'
        f'partition = {partition}\nsource = "{source}"\n'
    )
    reads = (lambda: open_site(party).table, lambda: read_pooled(read_settings(run).data)[0])
    for each in reads:
        if not words:
            assert each().num_rows == 6
            continue
        with pytest.raises((DataError, ConfigError), match=words):
            each()
    for path in (party, run):
        path.write_text(path.read_text() + 'folders = ["../secret"]\n')
    if "link" in name:
        assert [each().num_rows for each in reads] == [6, 6]


def test_shares_behind_a_link_out_of_the_folder_stay_closed(folder):
    run = folder / "run.toml"
    run.write_text(
        'method = "apfed-mixed"\n[data]\nsource = "t.csv"\n'
        'partition = { kind = "blocks", assignment = "link.csv" }\n'
    )
    run.write_text(run.read_text() + "folders = 3\n")
    with pytest.raises(ConfigError, match=r"assignment: .*link\.csv is a link to .*; name that"):
        read_settings(run)


@pytest.mark.parametrize("source", ["delta:linked", "sqlite:///linked"])
def test_a_url_of_a_file_follows_no_link_out_of_the_folder(folder, source):
    with pytest.raises(DataError, match=r"linked is a link to .*; name that file itself, or"):
        read_party_table("shop", source, id="id", folder=folder)


@pytest.mark.parametrize(
    "more",
    ['images = "linked"', '[party.encode.x]\nkind = "picture"\nmodel = "m:m"\nfolder = "linked"'],
)
def test_pictures_behind_a_link_out_of_the_folder_stay_closed(folder, more):
    party = folder / "shop.toml"
    party.write_text(f'[party]\nname = "shop"\nid = "id"\ntable = "t.csv"\n{more}\n')
    with pytest.raises(DataError, match=r"linked is a link to .*; name that file itself, or"):
        open_site(party)


def test_duckdb_says_which_file_it_refuses(tmp_path):
    """What the judge reads; with other words nothing at all would be opened."""
    name = str(tmp_path / 'a "b" - file system.csv')
    write_table(tmp_path / "t.csv", {"a": np.arange(2)})
    os.rename(tmp_path / "t.csv", name)
    assert read_table(f"SELECT * FROM '{name}'", folders=[tmp_path]).num_rows == 2
    with duckdb.connect() as connection:
        connection.execute("SET enable_external_access = false")
        with pytest.raises(duckdb.PermissionException, match="Cannot access file"):
            connection.execute(f"SELECT * FROM '{name}'")
