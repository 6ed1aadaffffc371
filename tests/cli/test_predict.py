"""``dovetail predict``: a model's folder and raw data are all it needs."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import forked
import numpy as np
import pytest
import torch
from torch import nn

import dovetail as package
from dovetail import data as dd
from dovetail.api import reading
from dovetail.data.saving import Saved
from dovetail.data.tables import table_parts
from dovetail.errors import DataError
from dovetail.models import EncoderHead, Head, Model, Perceptron, specs
from dovetail.models.joined import open_model

HEADER = ["patient", "diagnosis", "p(benign)", "p(malignant)"]


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


@pytest.fixture
def model(trained: Path) -> Path:
    return trained / "models" / "clinic"


@pytest.mark.slow
def test_a_fresh_process_needs_nothing_but_the_model_and_a_table(
    model: Path, patients: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "elsewhere" / "model")
    shutil.copy(patients, tmp_path / "new.csv")
    run = subprocess.run(
        [sys.executable, "-m", "dovetail.cli.main", "predict", "elsewhere/model", "new.csv",
         "--id", "patient"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    header, *predicted = rows(run.stdout)
    assert header == HEADER
    assert [row[0] for row in predicted] == [f"P{number}" for number in range(40, 0, -1)]
    for _, name, benign, malignant in predicted:
        assert float(benign) + float(malignant) == pytest.approx(1, abs=1e-5)
        assert name == ("benign" if float(benign) > float(malignant) else "malignant")
    table = dd.read_table(patients)
    right = sum(
        row[1] == truth
        for row, truth in zip(predicted, table.column("diagnosis").values, strict=True)
    )
    assert right > 30
    assert f"against the column 'diagnosis': accuracy {right / 40:.4f}" in run.stderr

    # The same as from Python.
    loaded = package.load(model)
    (fitted,) = loaded.inputs.values()
    assert isinstance(fitted, dd.TableEncoder)
    probabilities = loaded.predictions(fitted.transform(table)).probabilities
    assert probabilities is not None
    printed = np.array([[float(value) for value in row[2:]] for row in predicted])
    np.testing.assert_allclose(printed, probabilities, atol=1e-6)


def test_the_table_that_is_read_is_not_written_over(
    dovetail: Any, model: Path, patients: Path, tmp_path: Path
) -> None:
    table = tmp_path / "new.csv"
    shutil.copy(patients, table)
    refused = dovetail(
        "predict", model, table, "--out", tmp_path / ".." / tmp_path.name / "new.csv"
    )
    assert refused.code == 2
    assert "is the table that is read; name another file with --out" in refused.err
    assert table.read_bytes() == patients.read_bytes()


def test_rows_are_numbered_where_no_column_names_them(
    dovetail: Any, model: Path, patients: Path
) -> None:
    header, *predicted = rows(dovetail("predict", model, patients).out)
    assert header == ["row", *HEADER[1:]]
    assert [row[0] for row in predicted] == [str(number) for number in range(40)]


def test_a_party_file_names_the_ids_where_no_option_does(
    dovetail: Any, model: Path, patients: Path, tmp_path: Path
) -> None:
    party = '[party]\nname = "clinic"\ntable = "elsewhere.csv"\nid = {ids}\n'
    (tmp_path / "clinic.toml").write_text(party.format(ids='"patient"'))
    asked = ("predict", model, patients, "--party", "clinic.toml")
    assert dovetail(*asked).out == dovetail("predict", model, patients, "--id", "patient").out
    assert dovetail(*asked, "--id", "diagnosis").err.startswith("dovetail: --id 'diagnosis' is")

    (tmp_path / "clinic.toml").write_text(party.format(ids='["patient", "mean radius"]'))
    header, first, *_ = rows(dovetail(*asked).out)
    assert header == ["patient", "mean radius", *HEADER[1:]]
    assert first[0] == "P40"
    assert float(first[1]) == dd.read_table(patients).column("mean radius").values[0]

    (tmp_path / "clinic.toml").write_text(party.format(ids='"pateint"'))
    done = dovetail(*asked)
    assert done.code == 2
    assert "no column 'pateint' in" in done.err


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_is_written(
    dovetail: Any, model: Path, patients: Path, tmp_path: Path, ending: str
) -> None:
    out = tmp_path / f"said.{ending}"
    done = dovetail("predict", model, patients, "--out", out, "--id", "patient")
    assert (done.code, done.out) == (0, "")
    assert f"40 rows predicted: {out}" in done.err
    written = dd.read_table(out)
    assert list(written.names) == HEADER
    printed = rows(dovetail("predict", model, patients, "--id", "patient").out)[1:]
    assert written.column("patient").values.tolist() == [row[0] for row in printed]
    assert written.column("diagnosis").values.tolist() == [row[1] for row in printed]
    expected = [float(row[2]) for row in printed]
    np.testing.assert_allclose(written.column("p(benign)").values, expected, rtol=1e-5)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="parts are read from memory, on Linux")
def test_a_long_file_is_predicted_part_by_part_as_the_whole_is(
    dovetail: Any,
    model: Path,
    patients: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    header, *lines = rows(patients.read_text())
    label, first = header.index("diagnosis"), header.index("mean radius")
    new, out = tmp_path / "new.csv", tmp_path / "said.csv"

    def write(last: str) -> None:
        with new.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["note", *header[:label], *header[label + 1 :]])
            for index, line in enumerate(lines):
                cells = [last if index == 39 and at == first else c for at, c in enumerate(line)]
                note = f'he said "{index}",\nthen, \n\n"nothing"' if index % 3 else "=A1"
                writer.writerow([note, *cells[:label], *cells[label + 1 :]])

    read = []

    def counted(path: Path, size: int) -> Iterator[dd.Table]:
        for table in table_parts(path, size):
            read.append(table.num_rows)
            yield table

    monkeypatch.setattr(reading, "table_parts", counted)
    for last in ("1e9", "wide"):  # far from all others; no number
        write(last)
        for asked in ((), ("--id", "patient"), ("--id", "note"), ("--out", out)):
            seen = []
            for part_bytes in (2_000_000, 500):
                monkeypatch.setattr(reading, "PART_BYTES", part_bytes)
                done = dovetail("predict", model, new, *asked)
                seen.append((done, out.exists() and out.read_bytes()))
                out.unlink(missing_ok=True)
            assert seen[0] == seen[1], asked
            assert [each.name for each in tmp_path.iterdir() if "said" in each.name] == []
            assert (seen[0][0].code, sum(read)) == ((0, 40) if last == "1e9" else (2, sum(read)))
            assert len(read) > 1
            read.clear()
    opened = []
    monkeypatch.setattr(reading, "open_model", lambda path: opened.append(path) or open_model(path))
    missing = tmp_path / "none" / "said.csv"
    assert f"cannot write {missing}" in dovetail("predict", model, new, "--out", missing).err
    assert len(opened) == 1  # the whole is not predicted after it


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="parts are read from memory, on Linux")
@pytest.mark.parametrize("text", ['a,b\n1,"x\ny"\n2,"""\n3,"\n', 'a,b\n1,5"\n' + "2,y\n" * 9])
def test_parts_of_a_file_have_its_rows_or_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    whole = dd.read_table(path).column("b").values.tolist()
    for size in (3, 8, 1000):
        try:
            parts = [table.column("b").values.tolist() for table in table_parts(path, size)]
        except DataError:
            continue  # the whole is read then
        assert [value for part in parts for value in part] == whole


def test_parquet_is_read(dovetail: Any, model: Path, patients: Path, tmp_path: Path) -> None:
    table = dd.read_table(patients)
    path = tmp_path / "patients.parquet"
    dd.write_table(path, {name: table.column(name).values for name in table.names})
    assert dovetail("predict", model, path).out == dovetail("predict", model, patients).out


def test_a_run_with_one_model_stands_for_it(
    dovetail: Any, trained: Path, model: Path, patients: Path
) -> None:
    assert dovetail("predict", trained, patients).out == dovetail("predict", model, patients).out


def test_a_run_of_several_models_is_asked_which(
    dovetail: Any, trained: Path, patients: Path, tmp_path: Path
) -> None:
    for seed in (0, 1):
        shutil.copytree(trained / "models", tmp_path / "run" / f"seed-{seed}" / "models")
    done = dovetail("predict", "run", patients)
    assert done.code == 2
    assert "run has 2 models; name one, for example run/seed-0/models/clinic" in done.err


def test_quiet_prints_the_predictions_alone(
    dovetail: Any, model: Path, patients: Path, tmp_path: Path
) -> None:
    done = dovetail("predict", model, patients, "--quiet")
    assert done.err == ""
    assert len(rows(done.out)) == 41
    done = dovetail("predict", model, patients, "--quiet", "--out", tmp_path / "said.csv")
    assert (done.out, done.err) == ("", "")


def test_json_is_one_object(dovetail: Any, model: Path, patients: Path, tmp_path: Path) -> None:
    done = dovetail("predict", model, patients, "--json", "--id", "patient")
    report = json.loads(done.out)
    assert done.err == ""
    assert report["rows"] == 40
    assert list(report["columns"]) == HEADER
    assert report["columns"]["patient"][0] == "P40"
    assert report["scores"].keys() == {
        *("accuracy", "log_loss", "auc", "average_precision"),
        *("macro_f1", "balanced_accuracy", "brier", "ece"),
    }
    out = tmp_path / "said.csv"
    assert json.loads(dovetail("predict", model, patients, "--json", "--out", out).out) == {
        "rows": 40,
        "out": str(out),
        "scores": report["scores"],
        "scored_rows": 40,
    }


def test_without_a_label_there_is_nothing_to_score(
    dovetail: Any, model: Path, patients: Path, tmp_path: Path
) -> None:
    table = dd.read_table(patients)
    path = tmp_path / "unlabelled.csv"
    columns = {name: table.column(name).values for name in table.names if name != "diagnosis"}
    dd.write_table(path, columns)
    done = dovetail("predict", model, path)
    assert (done.code, done.err) == (0, "")
    assert done.out == dovetail("predict", model, patients).out


def test_rows_that_have_a_label_are_scored_and_counted(
    dovetail: Any, model: Path, patients: Path, tmp_path: Path
) -> None:
    lines = patients.read_text().splitlines()
    some = [lines[0], *lines[1:11], *(re.sub("benign|malignant", "", line) for line in lines[11:])]
    (tmp_path / "some.csv").write_text("\n".join(some) + "\n")
    (tmp_path / "ten.csv").write_text("\n".join(lines[:11]) + "\n")
    done = dovetail("predict", model, "some.csv")
    assert done.out == dovetail("predict", model, patients).out
    expected = dovetail("predict", model, "ten.csv").err.removeprefix("against the column ")
    assert done.err.startswith("against the column 'diagnosis' (10 of 40 rows have it): accuracy")
    assert done.err.endswith(expected.partition(":")[2])
    report = json.loads(dovetail("predict", model, "some.csv", "--json").out)
    assert (report["rows"], report["scored_rows"]) == (40, 10)
    assert (
        report["scores"]
        == json.loads(dovetail("predict", model, "ten.csv", "--json").out)["scores"]
    )

    none = [lines[0], *(re.sub("benign|malignant", "", line) for line in lines[1:])]
    (tmp_path / "none.csv").write_text("\n".join(none) + "\n")
    done = dovetail("predict", model, "none.csv")
    assert done.code == 0
    assert done.err == "dovetail: not scored: label 'diagnosis' has no value in any row\n"
    assert "scores" not in json.loads(dovetail("predict", model, "none.csv", "--json").out)


@pytest.mark.parametrize("name", ["diagnosis", "p(benign)", "P(Malignant)"])
def test_ids_are_not_overwritten_by_predictions(
    dovetail: Any, model: Path, patients: Path, tmp_path: Path, name: str
) -> None:
    text = patients.read_text()
    if name != "diagnosis":
        text = text.replace("patient", name, 1)
    (tmp_path / "named.csv").write_text(text)
    done = dovetail("predict", model, "named.csv", "--id", name)
    assert (done.code, done.out) == (2, "")
    assert f"--id {name!r} is also what a column of predictions is called" in done.err
    assert "(diagnosis, p(benign), p(malignant)); name another column" in done.err


@pytest.mark.parametrize("label", ["row", "Row"])
def test_row_numbers_stand_beside_a_label_called_row(
    dovetail: Any, bank: Path, tmp_path: Path, label: str
) -> None:
    stored = json.loads((bank / "model.json").read_text())
    (bank / "model.json").write_text(json.dumps({**stored, "label": label}))
    (tmp_path / "new.csv").write_text("age,job\n30,cook\n50,smith\n")
    header, *predicted = rows(dovetail("predict", bank, "new.csv").out)
    assert header == ["row number", label]
    assert [row[0] for row in predicted] == ["0", "1"]
    assert dovetail("predict", bank, "new.csv", "--out", "said.csv").code == 0


def test_a_label_of_other_classes_is_not_scored_but_predicted(
    dovetail: Any, model: Path, patients: Path, tmp_path: Path
) -> None:
    path = tmp_path / "relabelled.csv"
    path.write_text(patients.read_text().replace("benign", "B").replace("malignant", "M"))
    done = dovetail("predict", model, path)
    assert done.code == 0
    assert done.out == dovetail("predict", model, patients).out
    assert "not scored: label 'diagnosis' has the class 'B'" in done.err
    assert "accuracy" not in done.err
    assert "scores" not in json.loads(dovetail("predict", model, path, "--json").out)


def test_a_row_of_another_class_counts_as_wrong_and_is_told(
    dovetail: Any, model: Path, patients: Path, tmp_path: Path
) -> None:
    report = json.loads(dovetail("predict", model, patients, "--json").out)
    right = next(
        row
        for row, fields in enumerate(rows(patients.read_text())[1:])
        if fields[1] == report["columns"]["diagnosis"][row]
    )
    lines = patients.read_text().splitlines()
    lines[1 + right] = re.sub("benign|malignant", "unclear", lines[1 + right])
    (tmp_path / "unclear.csv").write_text("\n".join(lines) + "\n")
    done = dovetail("predict", model, "unclear.csv")
    assert done.out == dovetail("predict", model, patients).out
    assert (
        "dovetail: 1 of 40 rows with a label are of a class that training did not have, as "
        "'unclear'; they count as wrong\n" in done.err
    )
    scores = json.loads(dovetail("predict", model, "unclear.csv", "--json").out)["scores"]
    assert scores["unseen_rows"] == 1
    assert scores["accuracy"] == pytest.approx(report["scores"]["accuracy"] - 1 / 40)


def test_a_missing_value_is_imputed(
    dovetail: Any, model: Path, patients: Path, tmp_path: Path
) -> None:
    lines = patients.read_text().splitlines()
    fields = lines[1].split(",")
    lines[1] = ",".join([*fields[:2], "", *fields[3:]])
    (tmp_path / "gap.csv").write_text("\n".join(lines) + "\n")
    done = dovetail("predict", model, tmp_path / "gap.csv")
    assert done.code == 0
    predicted, whole = rows(done.out), rows(dovetail("predict", model, patients).out)
    assert predicted[1] != whole[1]
    assert predicted[2:] == whole[2:]


# --- Other models ---------------------------------------------------------------------------------


def save_model(folder: Path, input: dd.Input | None, task: dd.Task, shape: tuple[int, ...]) -> Path:
    spec = EncoderHead(Perceptron((4,)), Head(), shape, task.num_outputs)
    torch.manual_seed(0)
    return Model(
        party="bank",
        task=task,
        network=spec.build(),
        spec=spec,
        shapes={"own": shape},
        inputs={} if input is None else {"own": input},
        about={"label": "spent"},
    ).save(folder)


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    """A model of a number column and a category."""
    columns = {
        "age": np.array([20.0, 40, 60]),
        "job": np.array(["clerk", "cook", "smith"], dtype=object),
    }
    table = dd.table_from_arrays("clients", columns)
    encoder = dd.TableEncoder.fit(table, ["age", "job"], party="bank")
    return save_model(tmp_path / "bank", encoder, dd.Regression(100.0, 10.0), (4,))


def test_a_regression_gives_values(dovetail: Any, bank: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("id,age,job\n7,30,cook\n9,50,smith\n")
    header, *predicted = rows(dovetail("predict", bank, "new.csv", "--id", "id").out)
    assert header == ["id", "spent"]
    assert [row[0] for row in predicted] == ["7", "9"]
    loaded = package.load(bank)
    fitted = loaded.inputs["own"]
    assert isinstance(fitted, dd.TableEncoder)
    values = loaded.predictions(fitted.transform(dd.read_table(tmp_path / "new.csv"))).values
    assert [float(row[1]) for row in predicted] == pytest.approx(values, rel=1e-5)


def test_a_regression_is_scored_against_numbers_only(
    dovetail: Any, bank: Path, tmp_path: Path
) -> None:
    (tmp_path / "new.csv").write_text("age,job,spent\n30,cook,90\n50,smith,120\n")
    assert "against the column 'spent': rmse" in dovetail("predict", bank, "new.csv").err
    (tmp_path / "new.csv").write_text("age,job,spent\n30,cook,much\n50,smith,little\n")
    done = dovetail("predict", bank, "new.csv")
    assert done.code == 0
    assert "not scored: label 'spent' is text ('much'); a regression needs numbers" in done.err


def test_an_unseen_category_is_refused_or_taken_as_missing(
    dovetail: Any, bank: Path, tmp_path: Path
) -> None:
    (tmp_path / "new.csv").write_text("age,job\n30,cook\n50,pilot\n")
    done = dovetail("predict", bank, "new.csv")
    assert (done.code, done.out) == (2, "")
    assert "party 'bank': column 'job' of new.csv has 1 row with a value that training" in done.err
    assert "such as 'pilot'; allow_unseen (--allow-unseen)" in done.err
    (tmp_path / "gap.csv").write_text("age,job\n30,cook\n50,\n")
    allowed = dovetail("predict", bank, "new.csv", "--allow-unseen")
    assert (allowed.code, allowed.err) == (0, "")
    assert allowed.out == dovetail("predict", bank, "gap.csv").out


@pytest.mark.parametrize("name", ["images.npz", "folder"])
def test_images_are_predicted_whole_or_as_strips(dovetail: Any, tmp_path: Path, name: str) -> None:
    from PIL import Image

    images = np.random.default_rng(0).integers(256, size=(4, 6, 5), dtype=np.uint8)
    if name == "images.npz":
        np.savez(tmp_path / name, x=images, y=np.array([0, 1, 1, 0]))
        classes: tuple[str | int, ...] = (0, 1)
    else:
        classes = ("cat", "dog")
        for index, image in enumerate(images):
            (tmp_path / name / str(classes[index // 2])).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(tmp_path / name / str(classes[index // 2]) / f"{index}.png")
    strip = dd.ImageInput(1, 6, 5, "height", 3, 6)
    folder = save_model(tmp_path / "model", strip, dd.Classification(classes), strip.shape)
    done = dovetail("predict", folder, name)
    assert done.code == 0
    header, *predicted = rows(done.out)
    assert header == ["row", "spent", *[f"p({each})" for each in classes]]
    assert len(predicted) == 4
    assert "against the column 'spent': accuracy" in done.err
    lower = torch.from_numpy(images[:, None, 3:].copy())
    expected = package.load(folder).predictions(lower).values.tolist()
    assert [row[1] for row in predicted] == [str(value) for value in expected]


def test_images_without_labels_are_predicted_by_id(dovetail: Any, tmp_path: Path) -> None:
    from PIL import Image

    whole = dd.ImageInput(1, 6, 5, "height", 0, 6)
    folder = save_model(tmp_path / "model", whole, dd.Classification((0, 1)), whole.shape)
    images = np.random.default_rng(0).integers(256, size=(4, 6, 5), dtype=np.uint8)
    person = np.array(["d", "a", "c", "b"])
    np.savez(tmp_path / "new.npz", x=images, person=person)
    done = dovetail("predict", folder, "new.npz", "--id", "person")
    assert (done.code, done.err) == (0, "")
    header, *predicted = rows(done.out)
    assert header[:2] == ["person", "spent"]
    assert [row[0] for row in predicted] == ["d", "a", "c", "b"]
    np.savez(tmp_path / "labelled.npz", x=images, person=person, spent=np.array([0, 1, 1, 0]))
    labelled = dovetail("predict", folder, "labelled.npz", "--id", "person")
    assert labelled.out == done.out
    assert "against the column 'spent': accuracy" in labelled.err
    (tmp_path / "scans").mkdir()
    for name, image in zip(person, images, strict=True):
        Image.fromarray(image).save(tmp_path / "scans" / f"{name}.png")
    header, *in_order = rows(dovetail("predict", folder, "scans", "--id", "file").out)
    assert header[0] == "file"
    assert [row[0] for row in in_order] == ["a", "b", "c", "d"]
    assert sorted(row[1:] for row in in_order) == sorted(row[1:] for row in predicted)
    for arguments, words in (
        (("new.npz", "--id", "persn"), "party 'bank': new.npz has no array 'persn'; it has ["),
        (("model/model.json", "--id", "x"), "cannot read model/model.json as an .npz file"),
        (("nowhere.npz", "--id", "x"), "there is no file or folder nowhere.npz"),
    ):
        done = dovetail("predict", folder, *arguments)
        assert (done.code, done.out) == (2, "")
        assert words in done.err
    (tmp_path / "table.csv").write_text("x,y\n1,2\n")
    done = dovetail("predict", folder, "table.csv", "--id", "x")
    assert "table.csv is a table; the model of party 'bank' takes images" in done.err


def test_a_model_of_tensors_alone_points_to_python(
    dovetail: Any, tmp_path: Path, patients: Path
) -> None:
    folder = save_model(tmp_path / "model", None, dd.Regression(mean=0.0, scale=1.0), (4,))
    done = dovetail("predict", folder, patients)
    assert done.code == 2
    assert "saved without its input columns; use dovetail.load(folder).predict(" in done.err


# --- Bad input ------------------------------------------------------------------------------------


def test_a_table_that_lacks_columns_names_them(
    dovetail: Any, model: Path, tmp_path: Path, patients: Path
) -> None:
    text = patients.read_text().replace("mean area", "area").replace("mean radius", "radius")
    (tmp_path / "other.csv").write_text(text)
    done = dovetail("predict", model, "other.csv")
    assert (done.code, done.out) == (2, "")
    assert "party 'clinic': other.csv lacks the columns ['mean radius', 'mean area']" in done.err


def test_an_id_column_that_is_not_there_or_has_gaps_is_named(
    dovetail: Any, model: Path, patients: Path, tmp_path: Path
) -> None:
    done = dovetail("predict", model, patients, "--id", "pateint")
    assert done.code == 2
    assert "no column 'pateint' in" in done.err
    assert "did you mean 'patient'?" in done.err
    (tmp_path / "gap.csv").write_text(patients.read_text().replace("P40", "").replace("P7,", ","))
    done = dovetail("predict", model, "gap.csv", "--id", "patient")
    assert done.code == 2
    assert "gap.csv: 2 rows have no 'patient'" in done.err


def test_images_of_another_shape_are_refused(dovetail: Any, tmp_path: Path) -> None:
    strip = dd.ImageInput(1, 6, 5, "height", 3, 6)
    folder = save_model(tmp_path / "model", strip, dd.Classification((0, 1)), strip.shape)
    np.savez(tmp_path / "wide.npz", x=np.zeros((2, 6, 9), np.uint8), y=np.array([0, 1]))
    done = dovetail("predict", folder, "wide.npz")
    assert done.code == 2
    assert "wide.npz: wrong image shape: expected (1, 6, 5)" in done.err
    assert "got (1, 6, 9)" in done.err


def test_images_are_no_table_and_a_table_no_images(
    dovetail: Any, model: Path, patients: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "set.npz", x=np.zeros((2, 6, 5), np.uint8), y=np.array([0, 1]))
    done = dovetail("predict", model, "set.npz")
    assert done.code == 2
    assert "cannot read set.npz: a table's name ends in" in done.err
    strip = dd.ImageInput(1, 6, 5, "height", 3, 6)
    folder = save_model(tmp_path / "model", strip, dd.Classification((0, 1)), strip.shape)
    done = dovetail("predict", folder, patients)
    assert done.code == 2
    assert "patients.csv as an .npz file" in done.err


def test_a_folder_that_is_no_model_is_named(
    dovetail: Any, model: Path, patients: Path, tmp_path: Path
) -> None:
    done = dovetail("predict", "nowhere", patients)
    assert done.code == 2
    assert "nowhere is no model folder: model.json is missing" in done.err
    Path("model.onnx").write_bytes(b"an exported model")
    done = dovetail("predict", "model.onnx", patients)
    assert (done.code, done.out) == (2, "")
    assert "model.onnx is a file, and a model's folder is asked for here" in done.err
    shutil.copytree(model, tmp_path / "changed")
    with (tmp_path / "changed" / "model.safetensors").open("ab") as file:
        file.write(b"\0")
    done = dovetail("predict", "changed", patients)
    assert done.code == 2
    assert "changed: model.safetensors is not the file that model.json was written for" in done.err


def test_data_that_cannot_be_read_is_named(dovetail: Any, model: Path, tmp_path: Path) -> None:
    done = dovetail("predict", model, "nowhere.csv")
    assert done.code == 2
    assert "there is no file nowhere.csv" in done.err
    (tmp_path / "empty.csv").write_text("")
    done = dovetail("predict", model, "empty.csv")
    assert done.code == 2
    assert "empty.csv is empty" in done.err


def test_an_output_that_cannot_be_written_is_named(
    dovetail: Any, model: Path, patients: Path
) -> None:
    for out, words in (
        ("said.xlsx", "cannot write said.xlsx: its name must end in .csv or .parquet"),
        ("nowhere/said.csv", "cannot write nowhere/said.csv: there is no folder nowhere"),
    ):
        done = dovetail("predict", model, patients, "--out", out)
        assert done.code == 2
        assert words in done.err


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder of 4 KiB."""
    folder = tmp_path / "full"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", folder]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no disk may be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["said.csv", "said.parquet", None])
def test_a_disk_that_is_full_is_named_with_the_file(
    model: Path, patients: Path, tmp_path: Path, full_disk: Path, name: str | None
) -> None:
    (full_disk / "takes").write_bytes(bytes(4096))
    out, err = full_disk / "printed.csv", tmp_path / "err"
    more = () if name is None else ("--out", full_disk / name)
    words = ("predict", model, patients, "-q", *more)
    with forked.begin(tmp_path, None, *words, stdout=out, stderr=err) as process:
        assert process.wait() == 2
    where = f"{out}" if name is None else f"cannot write {full_disk / name}"
    assert err.read_text() == (
        f"dovetail: {where}: no space left on the disk at {full_disk}; free some of it and run the "
        "command again\n"
    )


def test_an_unknown_device_is_named(dovetail: Any, model: Path, patients: Path) -> None:
    for name in ("gpu", "meta", "cuda:99"):
        done = dovetail("predict", model, patients, "--device", name)
        assert done.code == 2
        assert f"there is no device '{name}' here; there is ['cpu'" in done.err
    assert dovetail("predict", model, patients, "--device", "cpu").code == 0


def test_ids_are_written_as_they_are_read(
    dovetail: Any, trained: Path, patients: Path, tmp_path: Path
) -> None:
    table = dd.read_table(patients)
    columns = {name: table.column(name).values for name in table.names}
    columns["patient"] = np.arange(table.num_rows) + 12345678
    dd.write_table(tmp_path / "numbers.parquet", columns)
    done = dovetail("predict", trained, tmp_path / "numbers.parquet", "--id", "patient")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert [line.split(",")[0] for line in lines[1:4]] == ["12345678", "12345679", "12345680"]
    columns["patient"] = columns["patient"] + 0.0  # as pandas has them where one is missing
    dd.write_table(tmp_path / "numbers.parquet", columns)
    done = dovetail("predict", trained, tmp_path / "numbers.parquet", "--id", "patient")
    assert done.code == 2
    assert "'patient' of" in done.err
    assert "such as 12345678.0, which are no ids" in done.err


# --- Several blocks -------------------------------------------------------------------------------


class OfBlocks(nn.Module):
    """The sum of a layer's outputs for each block that is given."""

    any_blocks = False

    def __init__(self, widths: dict[str, int]) -> None:
        super().__init__()
        layers = {name: nn.Linear(width, 1) for name, width in widths.items()}
        self.layers = nn.ModuleDict(layers)

    def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack([self.layers[name](block.flatten(1)) for name, block in x.items()]).sum(
            dim=0
        )


class OfAnyBlocks(OfBlocks):
    any_blocks = True


@dataclass(frozen=True)
class OfBlocksSpec(Saved):
    kind: ClassVar[str] = "of-blocks"
    widths: dict[str, int]
    any_blocks: bool

    def build(self) -> nn.Module:
        return (OfAnyBlocks if self.any_blocks else OfBlocks)(self.widths)


@pytest.fixture
def of_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Model]:
    """Saves a model with a block of money and one of people; or of people's pictures."""
    monkeypatch.setattr(specs, "NetworkSpec", specs.NetworkSpec | OfBlocksSpec)
    table = dd.table_from_arrays(
        "clients", {"balance": np.array([1.0, 2, 3]), "age": np.array([20.0, 40, 60])}
    )
    inputs: dict[str, dd.Input] = {
        name: dd.TableEncoder.fit(table, [column], party="bank")
        for name, column in (("money", "balance"), ("people", "age"))
    }

    def save(*, any_blocks: bool = False, pictures: bool = False) -> Model:
        shapes: dict[str, tuple[int, ...]] = {"money": (1,), "people": (1,)}
        if pictures:
            inputs["people"] = dd.ImageInput(1, 1, 1, "height", 0, 1)
            shapes["people"] = (1, 1, 1)
        spec = OfBlocksSpec({"money": 1, "people": 1}, any_blocks)
        torch.manual_seed(0)
        network, about = spec.build(), {"label": "spent"}
        task = dd.Regression(100.0, 10.0)
        model = Model("bank", task, network, spec, shapes, inputs, about)
        model.save(tmp_path / "model")
        return model

    return save


def test_all_blocks_of_a_model_come_from_one_table(
    dovetail: Any, of_blocks: Any, tmp_path: Path
) -> None:
    model = of_blocks()
    (tmp_path / "new.csv").write_text("age,balance,spent\n30,2,90\n50,3,120\n")
    done = dovetail("predict", "model", "new.csv")
    assert (done.code, "rmse" in done.err) == (0, True)
    table = dd.read_table(tmp_path / "new.csv")
    x = {name: fitted.transform(table) for name, fitted in model.inputs.items()}
    expected = model.predictions(x).values
    assert [float(row[1]) for row in rows(done.out)[1:]] == pytest.approx(expected, rel=1e-5)


def test_a_model_of_any_blocks_predicts_from_those_a_table_has(
    dovetail: Any, of_blocks: Any, tmp_path: Path
) -> None:
    (tmp_path / "new.csv").write_text("age\n30\n50\n")
    model = of_blocks(any_blocks=True)
    done = dovetail("predict", "model", "new.csv")
    assert (done.code, done.err) == (0, "")
    x = {"people": model.inputs["people"].transform(dd.read_table(tmp_path / "new.csv"))}
    expected = model.predictions(x).values
    assert [float(row[1]) for row in rows(done.out)[1:]] == pytest.approx(expected, rel=1e-5)
    (tmp_path / "none.csv").write_text("height\n30\n")
    assert "lacks the columns ['balance']" in dovetail("predict", "model", "none.csv").err
    of_blocks()
    done = dovetail("predict", "model", "new.csv")
    assert (done.code, done.out) == (2, "")
    assert "lacks the columns ['balance']" in done.err


def test_columns_and_images_in_one_model_take_a_table_and_its_pictures(
    dovetail: Any, of_blocks: Any, tmp_path: Path
) -> None:
    of_blocks(pictures=True)
    (tmp_path / "new.csv").write_text("balance\n30\n")
    done = dovetail("predict", "model", "new.csv")
    assert (done.code, done.out) == (2, "")
    assert "takes columns (money) and images (people): give the table" in done.err
    assert "--images" in done.err


@pytest.mark.slow
def test_what_a_model_leans_on_and_how_rows_differ_are_told_in_tables(
    dovetail: Any, trained: Path, patients: Path, tmp_path: Path
) -> None:
    done = dovetail("explain", trained, patients, "--row", 0, "--html", "page.html")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("auc ")
    named = [line.split("  ")[0] for line in lines]
    assert named.count("mean area") >= 2  # of all rows, and of row 0
    assert named.count("mean concave points") >= 2
    assert any(set(line) & set("▂▃▄▅▆▇█") for line in lines)
    assert "found by integrated gradients" in done.err
    assert "<svg" in (tmp_path / "page.html").read_text()
    report = json.loads(dovetail("explain", trained, patients, "--row", 0, "--json", "-q").out)
    assert len(report["dependence"]) == 3
    assert report["along"] == "p(malignant)"
    assert any(line.startswith("p(malignant) along") for line in lines)
    done = dovetail("explain", trained, patients, "--row", 4000)
    assert done.code == 2
    assert "there is no 4000" in done.err

    pooled, _ = dd.load("breast-cancer")
    assert isinstance(pooled.x, dd.Table)
    for scale, code in ((1.0, 0), (3.0, 1)):  # as they were, and in another unit
        columns = {name: pooled.x.column(name).values for name in pooled.x.select(["mean *"])}
        columns["mean area"] = columns["mean area"] * scale
        dd.write_table(tmp_path / "now.csv", columns)
        done = dovetail("drift", trained, "now.csv")
        assert done.code == code, done.err
        (line,) = [each for each in done.out.splitlines() if each.startswith("mean area")]
        assert ("PSI" in line) == (code == 1)  # the alarm
        assert "drift tells more" not in done.err
    few = {name: column[:9] for name, column in columns.items()}
    dd.write_table(tmp_path / "few.csv", few)
    done = dovetail("drift", trained, "few.csv")
    assert (done.code, done.out) == (2, "")
    assert "few.csv has 9 rows, and drift is seen in 50 or more" in done.err


def test_a_terminal_gets_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dovetail.cli.predict import _print_csv

    columns = {"id\x1b[2J": np.array(["a\x1b]0;x\x07", "b"], dtype=object)}
    _print_csv(columns)
    assert "\x1b" in capsys.readouterr().out  # into a file it goes as it is
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _print_csv(columns)
    assert "\x1b" not in capsys.readouterr().out
