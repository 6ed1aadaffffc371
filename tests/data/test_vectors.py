"""Columns of which a value becomes several features: texts, dates, many categories, frozen models.

The frozen encoders are small networks of the tests' own, with seeded weights, as ONNX files and as
a package that pip would call installed.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from pixel_encoders import pixels_onnx

from dovetail.companions.service.rows import RowReader
from dovetail.data import TableEncoder, agree, installed, summarise, unusable_rows
from dovetail.data import vectors as frozen_encoders
from dovetail.data.frames import table_from_frame
from dovetail.errors import ConfigError, DataError, ModelError
from dovetail.settings.encode import Asked, Encode

FRUIT = ["apples", "pears", "plums", "cherries", "figs", "grapes", "melons"]
TOOLS = ["hammers", "saws", "drills", "files", "chisels", "planes", "vices"]


def letters(num_rows=120, seed=0):
    """Texts about fruit and about tools, and which of them each is."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 2, num_rows)
    words = [rng.choice((FRUIT, TOOLS)[kind], 4) for kind in kinds]
    return [f"We sold {a} and {b}, then {c} with {d}." for a, b, c, d in words], kinds


def table(asked=None, store=None, **columns):
    made = table_from_frame(pd.DataFrame(columns))
    encode = {name: Encode(**each) for name, each in (asked or {}).items()}
    return made.asking(Asked(encode, store)) if asked else made


def fitted(source, **options):
    return TableEncoder.fit(source, source.names, party="shop", **options)


def reread(encoder):
    return TableEncoder.from_json(json.loads(json.dumps(encoder.to_json())))


# --- Text ----------------------------------------------------------------------------------------


def test_sentences_that_hardly_repeat_are_read_as_text_and_tell_their_topics_apart():
    texts, kinds = letters()
    train = table(notes=texts)
    encoder = fitted(train)
    (column,) = encoder.fitted
    assert column.how.by == "words"
    assert encoder.feature_names[0] == "notes 1"
    x = encoder.transform(train).numpy()
    assert np.allclose(x.mean(axis=0), 0, atol=1e-5)
    assert np.isclose((x.std(axis=0) ** 2).mean(), 1, atol=0.01)
    new, new_kinds = letters(seed=1)
    away = encoder.transform(table(notes=new)).numpy()
    centres = np.stack([x[kinds == kind].mean(axis=0) for kind in (0, 1)])
    nearest = np.linalg.norm(away[:, None] - centres, axis=2).argmin(axis=1)
    assert (nearest == new_kinds).mean() > 0.95


def test_what_was_fitted_to_texts_travels_as_json_bit_for_bit():
    texts, _ = letters()
    encoder = fitted(table(notes=[*texts[:60], None, *texts[60:]]))
    new = table(notes=["Never seen: umbrellas", None, "apples and saws"])
    features = encoder.transform(new)
    assert (reread(encoder).transform(new) == features).all()
    assert features[:, -1].tolist() == [0, 1, 0]  # is missing
    assert (features[1, :-1] == 0).all()


@pytest.mark.parametrize("part", ["buckets", "table"])
def test_a_damaged_table_of_words_is_refused_in_a_sentence(part):
    stored = fitted(table(notes=letters()[0])).to_json()
    stored["columns"][0]["how"][part] = "AAAA"
    with pytest.raises(ModelError, match="the model's table input cannot be read"):
        TableEncoder.from_json(stored)


def test_names_and_short_texts_stay_categories():
    (column,) = fitted(table(job=["cook", "smith", "nurse"] * 20)).fitted
    assert column.kind == "category"
    (column,) = fitted(table(name=[f"Ann Number {i}" for i in range(60)])).fitted
    assert column.kind == "category"


def test_one_text_or_one_word_has_nothing_to_tell_apart():
    asked = {"notes": {"kind": "text"}}
    for texts in (["only this"], ["word"] * 30):
        source = table(asked, notes=texts)
        assert (fitted(source).transform(source) == 0).all()


# --- Dates and many categories -------------------------------------------------------------------


def test_a_date_has_its_days_and_its_place_in_year_and_week():
    days = pd.Series(pd.date_range("2024-01-01", periods=731))
    source = table(admitted=days)
    encoder = fitted(source)
    assert encoder.feature_names == (
        "admitted",
        "admitted in the year",
        "admitted in the year, shifted",
        "admitted in the week",
        "admitted in the week, shifted",
    )
    x = encoder.transform(source).numpy()
    assert np.abs(x[:, 1:]).max() <= 1
    assert len(np.unique(x[:, 3:], axis=0)) == 7  # so that a tree may ask for a weekday
    assert (x[0, 3:] == x[7, 3:]).all()
    assert np.abs(x[0, 1:3] - x[366, 1:3]).max() < 0.02  # a year later
    assert (reread(encoder).transform(source) == encoder.transform(source)).all()


def test_times_have_their_place_in_the_day_and_days_alone_are_one_number():
    times = pd.Series(pd.date_range("2024-01-01", periods=100, freq="5h"))
    assert len(fitted(table(at=times)).feature_names) == 7
    assert fitted(table({"at": {"kind": "number"}}, at=times)).feature_names == ("at",)


def test_many_categories_are_hashed_or_counted_without_a_look_at_the_label():
    shops = [f"shop {i % 40}" for i in range(400)] + ["chain"] * 100
    hashed = table({"shop": {"kind": "hash", "size": 8}}, shop=shops)
    x = fitted(hashed).transform(hashed)
    assert x.shape == (500, 8)
    assert (x.abs().sum(dim=1) == 1).all()
    counted = table({"shop": {"kind": "frequency"}}, shop=shops)
    encoder = fitted(counted)
    x = encoder.transform(counted)[:, 0]
    assert x[-1] > x[0]
    assert (x[:400] == x[0]).all()
    text = json.dumps(encoder.to_json())
    assert "chain" not in text  # no value stands in the model
    unseen = reread(encoder).transform(table(shop=["never seen"]))
    assert unseen[0, 0] < x.min()


def test_codes_that_are_numbers_are_hashed_as_text():
    asked = {"postcode": {"kind": "hash", "size": 16}}
    x = fitted(table(asked, postcode=[1010, 1020] * 20)).transform(table(postcode=[1010.0, 1020.0]))
    same = fitted(table(asked, postcode=["1010", "1020"] * 20))
    assert (x == same.transform(table(postcode=["1010", "1020"]))).all()


# --- Frozen encoders -----------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path):
    """Ten pictures, and what encodes them."""
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(10):
        pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    pixels_onnx(tmp_path / "encoder.onnx")
    return folder


def asked_of(photos, **more):
    model = str(photos.parent / "encoder.onnx")
    return {
        "photo": {"kind": "picture", "model": model, "folder": str(photos), "pixels": 8, **more}
    }


NAMES = [f"{number}.png" for number in range(10)]


def test_pictures_are_read_by_a_frozen_encoder_once_a_content(photos, tmp_path, monkeypatch):
    (tmp_path / "shop.site").mkdir()
    store = tmp_path / "shop.site" / "encoded.sqlite"
    source = table(asked_of(photos), store, photo=NAMES)
    x = fitted(source).transform(source)
    assert x.shape == (10, 6)
    np.testing.assert_allclose(x.norm(dim=1), np.sqrt(6), rtol=1e-5)
    assert len(np.unique(x.numpy(), axis=0)) == 10
    # What was encoded is in the site's folder: nothing is run again but the look at the width.
    frozen_encoders._memory.clear()
    runs = []
    run = frozen_encoders.Frozen._run
    monkeypatch.setattr(
        frozen_encoders.Frozen,
        "_run",
        lambda self, given: runs.append(len(given)) or run(self, given),
    )
    again = table(asked_of(photos), store, photo=[*NAMES, "0.png"])
    assert (fitted(again).transform(again)[:10] == x).all()
    assert runs == [1]
    # Another picture of the same name is another content.
    Image.new("RGB", (16, 16), "red").save(photos / "0.png")
    assert not (fitted(again).transform(again)[0] == x[0]).all()


def test_a_saved_encoder_of_pictures_is_the_file_of_the_same_sum(photos, tmp_path, monkeypatch):
    source = table(asked_of(photos), photo=NAMES)
    encoder = fitted(source)
    x = encoder.transform(source)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (tmp_path / "encoder.onnx").rename(moved / "encoder.onnx")
    frozen_encoders._opened.cache_clear()
    frozen_encoders._memory.clear()
    with pytest.raises(ModelError, match="name the file, or its folder, in the environment"):
        reread(encoder).transform(source)
    monkeypatch.setenv("DOVETAIL_ENCODERS", str(moved))
    assert (reread(encoder).transform(source) == x).all()
    pixels_onnx(moved / "encoder.onnx", seed=1)
    frozen_encoders._opened.cache_clear()
    frozen_encoders._memory.clear()
    with pytest.raises(ModelError, match="which is not there"):
        reread(encoder).transform(source)


@pytest.mark.parametrize("name", ["../encoder.onnx", "/etc/hostname", "none.png"])
def test_no_file_outside_the_folder_of_pictures_is_opened(photos, name):
    encoder = fitted(table(asked_of(photos), photo=NAMES))
    with pytest.raises(DataError, match="there is no picture"):
        encoder.transform(table(photo=[name]))


def test_rows_whose_picture_cannot_be_read_are_named_and_a_service_tells_no_folder(photos):
    encoder = fitted(table(asked_of(photos), photo=NAMES))
    (photos / "torn.png").write_bytes((photos / "0.png").read_bytes()[:60])
    rows = table(photo=["0.png", "gone.png", None, "torn.png"])
    assert unusable_rows([encoder], rows).keys() == {1, 3}
    asked = RowReader([encoder]).table(rows, most_rows=9)
    assert asked.bad_rows == [1, 3]
    assert not any(str(photos.parent) in cell.error for cell in asked.bad)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that pip would call installed, with a seeded encoder of texts."""
    site = tmp_path / "site-packages"
    (site / "tiny_texts").mkdir(parents=True)
    (site / "tiny_texts" / "__init__.py").write_text(
        "import torch\n"
        "class Encoder(torch.nn.Module):\n"
        "    def __init__(self, size=5):\n"
        "        super().__init__()\n"
        "        torch.manual_seed(0)\n"
        "        self.table = torch.nn.EmbeddingBag(256, size)\n"
        "    def encode(self, texts):\n"
        "        rows = [torch.tensor([[*text.encode()]]) for text in texts]\n"
        "        return torch.stack([self.table(row)[0] for row in rows])\n"
    )
    info = site / "tiny_texts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-texts\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("tiny_texts\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(installed, "_trusted", set())
    frozen_encoders._opened.cache_clear()
    yield info
    sys.modules.pop("tiny_texts", None)
    frozen_encoders._opened.cache_clear()


TINY = {"notes": {"kind": "text", "model": "tiny_texts:Encoder", "arguments": {"size": 7}}}


def test_texts_are_read_by_an_import_path_of_an_installed_package(package):
    texts, _ = letters(30)
    source = table(TINY, notes=texts)
    assert fitted(source).transform(source).shape == (30, 7)


def test_a_saved_model_runs_no_package_that_nobody_here_named(package, monkeypatch):
    source = table(TINY, notes=letters(30)[0])
    encoder = fitted(source)
    x = encoder.transform(source)
    monkeypatch.setattr(installed, "_trusted", set())
    frozen_encoders._opened.cache_clear()
    frozen_encoders._memory.clear()
    sys.modules.pop("tiny_texts")
    with pytest.raises(ModelError, match="DOVETAIL_ENCODERS=tiny_texts:Encoder"):
        reread(encoder).transform(source)
    assert "tiny_texts" not in sys.modules
    monkeypatch.setenv("DOVETAIL_ENCODERS", "tiny_texts:Encoder")
    assert (reread(encoder).transform(source) == x).all()
    meta = package / "METADATA"
    meta.write_text(meta.read_text().replace("1.0", "2.0"))
    frozen_encoders._opened.cache_clear()
    frozen_encoders._memory.clear()
    with pytest.raises(ModelError, match=r"of version 1.0, here is 2.0"):
        reread(encoder).transform(source)


def test_code_that_no_package_has_is_not_run(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("raise SystemExit('ran')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = {"notes": {"kind": "text", "model": "beside:Encoder"}}
    with pytest.raises(ConfigError, match="no installed package has the module 'beside'"):
        fitted(table(asked, notes=["a b"]))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"kind": "picture"}, "pictures need model"),
        ({"kind": "hash", "model": "a.onnx"}, "a model reads text or pictures"),
        ({"kind": "texts"}, "Input should be 'text'"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        Encode(**given)


# --- Columns in common ---------------------------------------------------------------------------


def test_common_columns_are_hashed_alike_and_text_fitted_to_one_party_is_refused():
    asked = {"shop": {"kind": "hash", "size": 8}}
    here, there = (table(asked, shop=[f"{a} {i}" for i in range(30)]) for a in "ab")
    shared = agree(
        {"a": summarise(here, ["shop"], party="a"), "b": summarise(there, ["shop"], party="b")}
    )
    assert shared.num_features == 8
    assert (shared.on_site(here).transform(here) == fitted(here).transform(here)).all()
    with pytest.raises(DataError, match=r"name it in encode\.shop here, too"):
        shared.on_site(table(shop=["a"]))
    with pytest.raises(DataError, match="so it cannot be common"):
        summarise(table(notes=letters()[0]), ["notes"], party="a")


def test_parties_that_encode_a_common_column_differently_are_named():
    of = [table({"s": {"kind": "hash", "size": size}}, s=["x", "y"]) for size in (4, 8)]
    parts = {name: summarise(each, ["s"], party=name) for name, each in zip("ab", of, strict=True)}
    with pytest.raises(DataError, match="'s' has values that"):
        agree(parts)


def test_what_other_parties_learn_of_a_frozen_encoder_is_no_folder_of_this_machine(photos):
    (summary,) = summarise(table(asked_of(photos), photo=NAMES), ["photo"], party="a").values()
    assert str(photos.parent) not in summary.how
    assert Path("encoder.onnx").name in summary.how


def test_texts_without_a_word_are_refused_by_name() -> None:
    table = table_from_frame(pd.DataFrame({"note": ["a b ! ?", "b a - c"] * 4}))
    table = table.asking(Asked({"note": Encode(kind="text")}))
    with pytest.raises(DataError, match=r"'p': column 'note' of .*: no text has a word, which is"):
        TableEncoder.fit(table, ["note"], party="p")
