import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.data import (
    Classification,
    Column,
    Dataset,
    ImageInput,
    Regression,
    TableEncoder,
    columns,
    load,
    split,
    strips,
    table_from_arrays,
)
from dovetail.errors import ConfigError, DataError


def pictures(size=6, height=5, width=4, first_id=0):
    x = torch.arange(size * 2 * height * width).reshape(size, 2, height, width).to(torch.uint8)
    labels = Column(np.arange(size) % 3, np.zeros(size, dtype=bool))
    return Dataset("pictures", np.arange(first_id, first_id + size), x, "class", labels)


def people(size=20, first_id=0, **more):
    rng = np.random.default_rng(size)
    table = {
        "age": rng.integers(20, 60, size),
        "income": rng.normal(size=size),
        "job": rng.choice(np.array(["clerk", "nurse"], dtype=object), size),
        "born": rng.choice(np.array(["here", "there", None], dtype=object), size),
    }
    labels = Column(np.arange(size) % 2, np.zeros(size, dtype=bool))
    x = table_from_arrays("people", table | more)
    return Dataset("people", np.arange(first_id, first_id + size), x, "bought", labels)


PARTIES = {"bank": ["age", "job"], "shop": ["income", "j*"], "clinic": ["born"]}


@given(
    height=st.integers(1, 7), width=st.integers(1, 7), data=st.data(), axis=st.sampled_from("hw")
)
def test_strips_joined_are_the_image_less_what_remains(height, width, data, axis):
    axis, dim, side = {"h": ("height", 2, height), "w": ("width", 3, width)}[axis]
    views = data.draw(st.integers(1, side))
    train = pictures(4, height, width)
    parts = strips(train, None, views=views, axis=axis)
    blocks = [party.blocks["strip"] for party in parts.train.parties.values()]
    joined = torch.cat(blocks, dim=dim)
    assert torch.equal(joined, train.x.narrow(dim, 0, side // views * views))
    assert all(block.is_contiguous() and block.dtype == torch.uint8 for block in blocks)
    for name, block in zip(parts.train.parties, blocks, strict=True):
        assert torch.equal(parts.inputs[name].transform(train.x), block)


def test_strips_of_five_rows_in_two_views_drop_the_last():
    parts = strips(pictures(), pictures(3, first_id=6), views=2, active=2)
    assert list(parts.train.parties) == ["view-1", "view-2"]
    assert parts.inputs["view-2"] == ImageInput(2, 5, 4, "height", 2, 4)
    assert parts.train["view-1"].labels is None
    assert parts.train["view-2"].labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert parts.test["view-2"].labels.tolist() == [0, 1, 2]
    assert parts.test["view-1"].ids.tolist() == [6, 7, 8]
    assert parts.task == Classification((0, 1, 2))
    assert parts.label == "class"


def test_the_active_strip_can_be_named_or_nobodys():
    for active in (2, "right"):
        parts = strips(pictures(), None, views=2, names=["left", "right"], active=active)
        assert _labelled(parts) == ["right"]
    assert not _labelled(strips(pictures(), None, views=2, active=None))


def _labelled(parts):
    return [name for name, data in parts.train.parties.items() if data.labels is not None]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"views": 6}, DataError, "cannot cut images of height 5 into 6 strips; ask for 1 to 5"),
        ({"views": 5, "axis": "width"}, DataError, "of width 4 into 5 strips"),
        ({"views": 2, "active": 3}, ConfigError, "active must be a place from 1 to 2 .* got 3"),
        ({"views": 2, "active": 0}, ConfigError, "got 0"),
        ({"views": 2, "active": "left"}, ConfigError, "got 'left'"),
        ({"views": 2, "names": ["a"]}, ConfigError, "names must name 2 parties"),
        ({"views": 2, "names": ["a", "a"]}, DataError, "party names must differ"),
    ],
)
def test_strips_that_cannot_be_cut_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        strips(pictures(), None, **options)


def test_test_images_of_another_size_are_refused():
    with pytest.raises(DataError, match=r"wrong image shape: .* \(2, 5, 4\), .* \(2, 6, 4\)"):
        strips(pictures(), pictures(height=6), views=2)


def test_tables_are_not_cut_and_images_not_dealt_out():
    with pytest.raises(DataError, match="people is a table; strips cut images"):
        strips(people(), None, views=2)
    with pytest.raises(DataError, match="pictures holds images; columns splits tables"):
        columns(pictures(), None, parties={"a": ["*"]}, active="a")


@settings(max_examples=25)
@given(size=st.integers(4, 30), overlap=st.floats(0.3, 1), seed=st.integers(0, 5))
def test_dealt_out_columns_aligned_again_are_the_table(size, overlap, seed):
    train = people(size, born=np.array(["here", "there"] * size, dtype=object)[:size])
    parts = columns(train, None, parties=PARTIES, active="bank", overlap=overlap, seed=seed)
    alignment = parts.train.align(to="bank")
    for name, party in parts.train.parties.items():
        assert party.num_rows == (size if name == "bank" else max(1, round(overlap * size)))
        rows = alignment.rows[name]
        held = (rows >= 0).nonzero().flatten()
        assert len(held) == party.num_rows
        pooled = parts.inputs[name].transform(train.x, allow_unseen=True)
        assert torch.equal(party.blocks["columns"][rows[held]], pooled[held])


def test_each_party_fits_its_encoder_on_its_own_training_rows():
    train = people(20)
    parts = columns(train, None, parties=PARTIES, active="bank", overlap={"shop": 0.5}, seed=1)
    shop = parts.train["shop"]
    assert (shop.num_rows, parts.train["clinic"].num_rows) == (10, 20)
    assert shop.labels is None
    encoder = TableEncoder.fit(train.x.take(shop.ids), ["income", "job"], party="shop")
    assert parts.inputs["shop"].to_json() == encoder.to_json()
    income = shop.blocks["columns"][:, 0]
    assert income.mean().item() == pytest.approx(0, abs=1e-6)
    assert income.std(correction=0).item() == pytest.approx(1, abs=1e-5)


def test_the_active_party_keeps_its_order_and_the_others_do_not():
    train, test = people(20), people(10, first_id=20)
    parts = columns(train, test, parties=PARTIES, active="bank")
    for part, whole in ((parts.train, train), (parts.test, test)):
        assert part["bank"].ids.tolist() == whole.ids.tolist()
        assert part["bank"].labels.tolist() == whole.labels.values.tolist()
        for name in ("shop", "clinic"):
            assert part[name].ids.tolist() != whole.ids.tolist()
            assert sorted(part[name].ids) == whole.ids.tolist()


def test_test_parts_keep_all_rows():
    parts = columns(
        people(20), people(10, first_id=20), parties=PARTIES, active="bank", overlap=0.5
    )
    assert [party.num_rows for party in parts.test.parties.values()] == [10, 10, 10]


def test_another_party_leaves_the_others_rows_as_they_were():
    options = {"active": "bank", "overlap": 0.5, "seed": 3}
    few = columns(people(), None, parties={n: PARTIES[n] for n in ("bank", "shop")}, **options)
    more = columns(people(), None, parties=PARTIES, **options)
    assert few.train["shop"].ids.tolist() == more.train["shop"].ids.tolist()
    assert more.train["shop"].ids.tolist() != more.train["clinic"].ids.tolist()
    options["seed"] = 4
    other = columns(people(), None, parties=PARTIES, **options)
    assert other.train["shop"].ids.tolist() != more.train["shop"].ids.tolist()


def test_a_category_of_the_test_part_alone_counts_as_missing():
    train, test = people(20), people(2, first_id=20, job=np.array(["judge", "nurse"], dtype=object))
    parts = columns(train, test, parties={"bank": ["job"]}, active="bank")
    assert parts.test["bank"].blocks["columns"].tolist() == [[0, 0], [0, 1]]


def test_numbers_can_be_dealt_out_as_categories():
    train = people(4, age=np.array([1, 2, 1, 2]))
    parts = columns(train, None, parties=PARTIES, active="bank", categorical=["age"])
    assert parts.inputs["bank"].feature_names[:2] == ("age = 1", "age = 2")


def test_a_number_can_be_predicted():
    parts = columns(people(4), None, parties=PARTIES, active="bank", kind="regression")
    assert parts.task == Regression(0.5, 0.5)
    assert parts.train["bank"].labels.tolist() == [-1, 1, -1, 1]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"active": "bnk"}, ConfigError, "'bnk' is none of the parties; did you mean 'bank'"),
        ({"overlap": 0}, ConfigError, r"share of the rows in \(0, 1\], got 0 for 'shop'"),
        ({"overlap": {"shop": 1.5}}, ConfigError, r"got 1\.5 for 'shop'"),
        ({"overlap": {"shp": 0.5}}, ConfigError, "overlap names 'shp', .* did you mean 'shop'"),
        ({"overlap": {"bank": 0.5}}, ConfigError, "overlap names 'bank'"),
        ({"parties": {"bank": ["agee"]}}, DataError, "matches 'agee'; did you mean 'age'"),
        ({"parties": {"bank": ["age", "-a*"]}}, DataError, "party 'bank' has no columns"),
        ({"parties": {"bank": ["age"], "shop": []}}, DataError, "party 'shop' has no columns"),
        ({"categorical": ["postcode"]}, DataError, "no column of people matches 'postcode'"),
    ],
)
def test_columns_that_cannot_be_dealt_out_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        columns(people(), None, **({"parties": PARTIES, "active": "bank"} | options))


def test_test_rows_without_a_label_are_refused():
    test = people(3)
    test.labels.missing[1] = True
    with pytest.raises(DataError, match="'bought' is missing in 1 of the 3 test rows"):
        columns(people(), test, parties=PARTIES, active="bank")


def test_training_rows_may_lack_a_label():
    train = people(4)
    train.labels.missing[1] = True
    parts = columns(train, None, parties=PARTIES, active="bank")
    assert parts.train["bank"].labels.tolist() == [0, -1, 0, 1]


def test_the_built_in_table_can_be_dealt_out():
    pooled, _ = load("breast-cancer")
    train, test = split(pooled, test=0.25, seed=0, stratify=True)
    dealt = {"clinic": ["mean *"], "lab": ["worst *", "* error"]}
    parts = columns(train, test, parties=dealt, active="clinic", overlap=0.6)
    assert parts.train["clinic"].blocks["columns"].shape == (426, 10)
    assert parts.train["lab"].blocks["columns"].shape == (256, 20)
    assert parts.test["lab"].num_rows == 143
    assert parts.task == Classification(("benign", "malignant"))
