"""A party's table is what its file names: ids, columns or images, perhaps a label."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dovetail import data as dd
from dovetail.data import PartyTable, read_party_table
from dovetail.data.doubts import label_doubts
from dovetail.errors import DataError
from dovetail.settings.encode import Encode

COLUMNS: dict[str, Any] = {
    "person": np.array(["P-3", "P-1", "P-2"], dtype=object),
    "age": np.array([30, 10, 20]),
    "job": np.array(["cook", None, "smith"], dtype=object),
    "income": np.array([1.5, np.nan, 2.5]),
    "sick": np.array(["yes", "no", None], dtype=object),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one set of people in every kind of table."""
    dd.write_table(tmp_path / "people.csv", COLUMNS)
    dd.write_table(tmp_path / "people.parquet", COLUMNS)
    with sqlite3.connect(tmp_path / "people.db") as connection:
        connection.execute("CREATE TABLE p (person TEXT, age INT, job TEXT, income REAL, sick)")
        rows = zip(*(values.tolist() for values in COLUMNS.values()), strict=True)
        connection.executemany("INSERT INTO p VALUES (?, ?, ?, ?, ?)", rows)
    connection.close()
    return tmp_path


def read(folder: Path, source: str = "people.csv", **settings: Any) -> PartyTable:
    return read_party_table("shop", source, folder=folder, **{"id": "person", **settings})


def refuse(folder: Path, words: str, source: str = "people.csv", **settings: Any) -> None:
    with pytest.raises(DataError, match=words) as raised:
        read(folder, source, **settings)
    assert str(raised.value).count("party 'shop'") == 1


SOURCES = {
    "csv": "people.csv",
    "parquet": "people.parquet",
    "query": "SELECT * FROM 'people.parquet'",
    "sqlite": "sqlite:///people.db",
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_every_kind_of_table_gives_the_same(folder: Path, source: str) -> None:
    table = read(folder, source, label="sick")
    assert table.ids.tolist() == ["P-3", "P-1", "P-2"]
    assert table.ids.dtype.kind == "U"
    assert isinstance(table.x, dd.Table)
    assert table.x.names == ("age", "job", "income")
    assert dict(table.blocks) == {"columns": ("age", "job", "income")}
    assert table.x.column("age").values.tolist() == [30, 10, 20]
    assert table.x.column("job").missing.tolist() == [False, True, False]
    assert table.label == "sick"
    assert table.labels is not None
    assert table.labels.values.tolist() == ["yes", "no", ""]
    assert table.labels.missing.tolist() == [False, False, True]


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_path_is_relative_to_the_folder_and_an_absolute_one_is_not(
    folder: Path, source: str
) -> None:
    absolute = source.replace("people.", f"{folder}/people.")
    folders = [str(folder)]  # what a SELECT may open besides
    assert read(folder / "elsewhere", absolute, folders=folders).num_rows == 3
    refuse(folder / "elsewhere", "there is no|cannot read|No files found", source)


def test_without_a_label_nothing_is_one(folder: Path) -> None:
    table = read(folder)
    assert (table.label, table.labels) == (None, None)
    assert isinstance(table.x, dd.Table)
    assert "sick" in table.x.names


def test_taking_rows_takes_them_everywhere(folder: Path) -> None:
    table = read(folder, label="sick").take(np.array([2, 0]))
    assert (table.num_rows, table.ids.tolist()) == (2, ["P-2", "P-3"])
    assert isinstance(table.x, dd.Table)
    assert table.x.column("age").values.tolist() == [20, 30]
    assert table.labels is not None
    assert table.labels.missing.tolist() == [True, False]


@pytest.mark.parametrize("source", ["labels.csv", "labels.parquet"])
def test_a_label_is_read_as_the_partys_file_says(tmp_path: Path, source: str) -> None:
    answers = np.array(["ja", "Ja", "nein", "NA", "-"], dtype=object)
    dd.write_table(tmp_path / source, {"person": np.arange(5), "a": np.ones(5), "y": answers})
    plain = read(tmp_path, source, label="y")
    assert plain.label_about == {}
    (doubt,) = label_doubts(plain.required_labels)
    assert doubt.line("y") == 'y = { missing = ["NA", "-"], lowercase = true }'
    table = read(tmp_path, source, label="y", encode={"y": Encode(**doubt.encode)})
    assert table.required_labels.values.tolist() == ["ja", "ja", "nein", "", ""]
    assert table.labelled_rows().tolist() == [0, 1, 2]
    assert label_doubts(table.required_labels) == []
    assert table.label_about == {"label_encode": {"y": {"missing": ["NA", "-"], "lowercase": True}}}


def test_a_label_of_numbers_beside_a_declared_text_has_numbers(tmp_path: Path) -> None:
    codes = np.array(["0", "1", "NA", "1"], dtype=object)
    dd.write_table(tmp_path / "y.csv", {"person": np.arange(4), "y": codes})
    table = read(tmp_path, "y.csv", label="y", encode={"y": Encode(missing=("NA",))})
    assert table.fit_task(kind="classification") == dd.Classification((0, 1))


def test_what_encode_cannot_say_of_a_label_is_refused(folder: Path) -> None:
    words = (
        "encode of the label 'sick' takes missing, lowercase and positive, got kind; leave it out"
    )
    refuse(folder, words, label="sick", encode={"sick": Encode(kind="category")})


def test_rows_are_encoded_as_their_columns_are_and_labels_as_the_task_says(folder: Path) -> None:
    table = read(folder, label="sick", columns=["age"])
    data = table.encoded(table.fit_input(), dd.Classification(("no", "yes")))
    assert data.blocks["own"].flatten().tolist() == pytest.approx([1.5**0.5, -(1.5**0.5), 0])
    assert data.labels is not None
    assert data.labels.tolist() == [1, 0, -1]
    assert table.encoded(table.fit_input()).labels is None


def test_columns_are_chosen_by_globs(folder: Path) -> None:
    assert read(folder, columns=["age", "in*"]).blocks == {"columns": ("age", "income")}
    assert read(folder, columns=["-sick"]).blocks == {"columns": ("age", "job", "income")}
    refuse(
        folder, r"no column of .*people\.csv matches 'agee'; did you mean 'age'", columns=["agee"]
    )


def test_blocks_name_their_columns(folder: Path) -> None:
    blocks = {"money": ["income"], "person": ["job", "age"]}
    table = read(folder, blocks=blocks)
    assert dict(table.blocks) == {"money": ("income",), "person": ("age", "job")}
    fitted = table.fit_input()
    assert isinstance(fitted, dd.TableEncoder)
    assert list(fitted.columns) == ["income", "age", "job"]
    refuse(folder, "'incme'; did you mean 'income'", blocks={"money": ["incme"]})


def test_a_column_in_two_blocks_is_refused(folder: Path) -> None:
    words = "party 'shop': column 'age' is in two blocks; name it in one"
    refuse(folder, words, blocks={"a": ["age", "job"], "b": ["income", "age"]})


# --- Ids ------------------------------------------------------------------------------------------


def people(folder: Path, **columns: Any) -> Path:
    count = len(next(iter(columns.values())))
    arrays = {name: np.array(values, dtype=object) for name, values in columns.items()}
    dd.write_table(folder / "people.parquet", {**arrays, "x": np.arange(count)})
    return folder


def test_whole_numbers_are_integer_ids(tmp_path: Path) -> None:
    dd.write_table(tmp_path / "people.csv", {"person": np.array([7, 5]), "x": np.ones(2)})
    ids = read(tmp_path).ids
    assert (ids.dtype, ids.tolist()) == (np.int64, [7, 5])


def test_several_columns_are_one_id_without_collisions(tmp_path: Path) -> None:
    people(tmp_path, family=["a", "ab"], name=["bc", "c"])
    table = read(tmp_path, "people.parquet", id=("family", "name"))
    assert len(set(table.ids.tolist())) == 2
    assert isinstance(table.x, dd.Table)
    assert table.x.names == ("x",)
    # The same parts give the same id at another party, whatever else it has.
    (tmp_path / "people.csv").write_text("name,family,y\nc,ab,1\nd,ab,2\n")
    other = read(tmp_path, id=("family", "name"))
    assert other.ids[0] == table.ids[1]
    # In the other order they are another id.
    assert read(tmp_path, id=("name", "family")).ids[0] != table.ids[1]


def test_numbers_and_text_make_one_id_together(tmp_path: Path) -> None:
    people(tmp_path, site=["a", "a", "b"], number=[1, 11, 1])
    one = read(tmp_path, "people.parquet", id=("site", "number")).ids
    (tmp_path / "people.csv").write_text("site,number,y\na,1,1\na,11,2\nb,1,0\nc,,0\n")
    refuse(tmp_path, r"'site \+ number' of .* has no id in 1 of 4 rows", id=("site", "number"))
    (tmp_path / "people.csv").write_text("site,number,y\na,1,1\na,11,2\nb,1,0\n")
    assert read(tmp_path, id=("site", "number")).ids.tolist() == one.tolist()


def test_an_id_column_that_is_not_there_offers_the_nearest(folder: Path) -> None:
    refuse(
        folder,
        r"party 'shop': no column 'persn' in .*people\.csv; did you mean 'person'\?",
        id="persn",
    )
    refuse(folder, "no column 'jb'.*did you mean 'job'", id=("person", "jb"))


def test_a_label_column_that_is_not_there_offers_the_nearest(folder: Path) -> None:
    refuse(folder, r"party 'shop': no column 'sik' in .*; did you mean 'sick'\?", label="sik")


def test_the_id_is_no_label(folder: Path) -> None:
    refuse(folder, r"id and label must be different columns, got \['person'", label="person")
    refuse(folder, "must be different columns", id=("person", "person"))


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["a", "b", "a", "a"], "column 'person' of .*: 2 of 4 ids are repeated"),
        (["a", None, "", "  "], "column 'person' of .* has no id in 3 of 4 rows"),
        ([1, 2, 1, 3], "column 'person' of .*: 1 of 4 ids are repeated"),
        ([1.5, 2.0, 3.0, 4.0], "column 'person' of .* has fractions; ids are whole numbers or"),
    ],
)
def test_ids_that_name_no_sample_are_counted(tmp_path: Path, ids: list[Any], words: str) -> None:
    refuse(people(tmp_path, person=ids), f"party 'shop': {words}", "people.parquet")


def test_a_pair_that_repeats_is_counted(tmp_path: Path) -> None:
    people(tmp_path, family=["a", "a", "a"], name=["b", "b", "c"])
    words = r"column 'family \+ name' of .*: 1 of 3 ids are repeated"
    refuse(tmp_path, words, "people.parquet", id=("family", "name"))


def test_a_table_that_is_not_there_is_named_with_its_folder(tmp_path: Path) -> None:
    refuse(tmp_path, f"party 'shop': there is no file {tmp_path}/people.csv; check the path")
    refuse(tmp_path, f"there is no file or folder {tmp_path}/scans.npz; check", "scans.npz")
    (tmp_path / "people.txt").write_text("person\n1\n")
    refuse(tmp_path, r"cannot read .*people\.txt as an \.npz file of plain arrays", "people.txt")
    refuse(tmp_path, "cannot read SELECT .*No files found", "SELECT * FROM 'people.csv'")
    refuse(tmp_path, f"there is no SQLite file {tmp_path}/people.db", "sqlite:///people.db")


# --- Images ---------------------------------------------------------------------------------------


def images(count: int = 4) -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=(count, 6, 5), dtype=np.uint8)


def test_an_npz_file_names_its_arrays(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "scans.npz",
        x=images(),
        person=np.array(["d", "a", "c", "b"]),
        grade=np.array([2, 0, 1, 2], dtype=np.uint8),
    )
    table = read(tmp_path, "scans.npz", label="grade")
    assert table.ids.tolist() == ["d", "a", "c", "b"]
    assert isinstance(table.x, torch.Tensor)
    assert table.x.shape == (4, 1, 6, 5)
    assert dict(table.blocks) == {"images": ()}
    assert table.labels is not None
    assert table.labels.values.tolist() == [2, 0, 1, 2]
    assert table.labels.values.dtype == np.int64
    data = table.encoded(table.fit_input(), dd.Classification((0, 1, 2)))
    assert torch.equal(data.blocks["own"], torch.from_numpy(images())[:, None])
    assert data.labels is not None
    assert data.labels.tolist() == [2, 0, 1, 2]
    assert isinstance(table.take(np.array([3])).x, torch.Tensor)
    assert table.take(np.array([3])).ids.tolist() == ["b"]


def test_labels_of_images_may_be_missing(tmp_path: Path) -> None:
    x, person = images(), np.arange(4)
    np.savez(tmp_path / "scans.npz", x=x, person=person, grade=np.array([1, np.nan, 0, 1]))
    table = read(tmp_path, "scans.npz", label="grade")
    assert table.labels is not None
    assert table.labels.missing.tolist() == [False, True, False, False]
    assert table.labels.values.dtype == np.int64
    np.savez(tmp_path / "scans.npz", x=x, person=person, grade=np.array(["a", "", " b ", "c"]))
    table = read(tmp_path, "scans.npz", label="grade")
    assert table.labels is not None
    assert table.labels.values[[0, 2]].tolist() == ["a", "b"]
    assert table.labels.missing.tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("arrays", "settings", "words"),
    [
        ({}, {}, r"scans\.npz has no array 'person'; it has \['x'\]"),
        ({"person": np.arange(3)}, {}, "person must have one value for each of the 4 images"),
        ({"person": np.zeros(4, int)}, {}, r"column 'person' of .*: 3 of 4 ids are repeated"),
        ({"person": np.array(["a", "", "b", "c"])}, {}, "has no id in 1 of 4 rows"),
        ({"person": np.arange(4)}, {"label": "grade"}, "has no array 'grade'; it has"),
        ({"person": np.arange(4)}, {"id": ("person", "x")}, "images have one id, got"),
        ({"person": np.array([{}] * 4, dtype=object)}, {}, "as an .npz file of plain arrays"),
    ],
)
def test_an_npz_file_that_does_not_fit_is_told(
    tmp_path: Path, arrays: Any, settings: Any, words: str
) -> None:
    np.savez(tmp_path / "scans.npz", x=images(), **arrays)
    refuse(tmp_path, words, "scans.npz", **settings)


def test_an_npz_file_without_images_or_that_is_none_is_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "scans.npz", person=np.arange(4))
    refuse(tmp_path, r"holds no images: expected x or jpeg, got \['person'\]", "scans.npz")
    (tmp_path / "scans.npz").write_bytes(b"no archive")
    refuse(tmp_path, r"cannot read .*scans\.npz as an \.npz file of plain arrays", "scans.npz")
    np.save(tmp_path / "scans.npy", images())
    refuse(tmp_path, r"cannot read .*scans\.npy as an \.npz file", "scans.npy")


def folder_of_images(folder: Path, *, size: tuple[int, int] = (6, 5)) -> Path:
    for index, image in enumerate(images()):
        name = "well" if index % 2 else "ill"
        (folder / "scans" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / "scans" / name / f"P-{index}.png")
    Image.fromarray(np.zeros(size, np.uint8)).save(folder / "scans" / "well" / "P-9.png")
    return folder


def test_a_folder_of_images_has_ids_in_file_names_and_labels_in_folder_names(
    tmp_path: Path,
) -> None:
    table = read(folder_of_images(tmp_path), "scans", id="file", label="folder")
    assert table.ids.tolist() == ["P-0", "P-2", "P-1", "P-3", "P-9"]
    assert table.labels is not None
    assert table.labels.values.tolist() == ["ill", "ill", "well", "well", "well"]
    assert isinstance(table.x, torch.Tensor)
    assert torch.equal(table.x[1, 0], torch.from_numpy(images()[2]))
    assert read(tmp_path, "scans", id="file").labels is None
    assert read(tmp_path, "scans/ill", id="file").ids.tolist() == ["P-0", "P-2"]


def test_images_of_wrong_sizes_are_named(tmp_path: Path) -> None:
    words = (
        r"party 'shop': .*P-9\.png has shape \(1, 7, 5\) .*, but .*P-0\.png has \(1, 6, 5\); "
        "all images of a set must have one shape"
    )
    refuse(folder_of_images(tmp_path, size=(7, 5)), words, "scans", id="file")


def test_a_folder_that_does_not_fit_is_told(tmp_path: Path) -> None:
    folder_of_images(tmp_path)
    words = r'write id = "file" and, where folders are classes, label = "folder"; got id '
    refuse(tmp_path, words, "scans")
    refuse(tmp_path, words, "scans", id="file", label="sick")
    (tmp_path / "scans" / "ill" / "P-1.png").write_bytes(
        (tmp_path / "scans" / "well" / "P-1.png").read_bytes()
    )
    refuse(tmp_path, "column 'file' of .*scans: 1 of 6 ids are repeated", "scans", id="file")
    (tmp_path / "scans" / "well" / "P-3.png").write_text("no image")
    refuse(tmp_path, r"cannot decode .*P-3\.png.*; replace or remove it", "scans", id="file")
    (tmp_path / "empty").mkdir()
    refuse(tmp_path, r"empty holds no \.png or \.jpg images", "empty", id="file")
