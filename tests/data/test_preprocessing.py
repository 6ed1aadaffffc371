import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.data import Column, Table, TableEncoder, input_from_json, table_from_arrays
from dovetail.data.kinds import DATES
from dovetail.data.tables import InMemory
from dovetail.errors import DataError, ModelError


def table(**columns):
    return table_from_arrays(
        "people",
        {
            name: np.array(
                values, dtype=object if {str, type(None)} & set(map(type, values)) else None
            )
            for name, values in columns.items()
        },
    )


def fit(source, **options):
    return TableEncoder.fit(source, source.names, party="shop", **options)


def test_numbers_are_imputed_by_the_median_standardised_and_flagged():
    train = table(age=[1.0, None, 3.0, 8.0])
    encoder = fit(train)
    assert encoder.feature_names == ("age", "age is missing")
    assert encoder.num_features == 2
    imputed = np.array([1, 3, 3, 8])
    expected = (imputed - imputed.mean()) / imputed.std()
    encoded = encoder.transform(train)
    assert encoded.dtype == torch.float32
    np.testing.assert_allclose(encoded[:, 0], expected, rtol=1e-6)
    assert encoded[:, 1].tolist() == [0, 1, 0, 0]


def test_a_value_missing_later_alone_is_imputed_without_a_flag():
    encoder = fit(table(age=[0, 2, 4]))
    assert encoder.feature_names == ("age",)
    assert encoder.transform(table(age=[None, 2.0])).tolist() == [[0], [0]]


@pytest.mark.parametrize("value", [0.1, 7, 1e12])
def test_a_constant_column_becomes_zeros(value):
    train = table(a=[value] * 7)
    assert fit(train).transform(train).tolist() == [[0]] * 7
    assert fit(train).transform(table(a=[value + 1])).tolist() == [[1]]


def test_categories_are_one_hot_in_sorted_order():
    train = table(job=["nurse", None, "clerk", "nurse"])
    encoder = fit(train)
    assert encoder.feature_names == ("job = clerk", "job = nurse", "job is missing")
    assert encoder.transform(train).tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]]


def test_rare_categories_and_unseen_ones_share_a_feature():
    train = table(job=["b", "b", "a", "c", "c", "d"])
    encoder = fit(train, max_categories=2)
    assert encoder.feature_names == ("job = b", "job = c", "job is another")
    later = table(job=["a", "c", "unseen", None])
    assert encoder.transform(later).tolist() == [[0, 0, 1], [0, 1, 0], [0, 0, 1], [0, 0, 0]]


def test_of_equally_frequent_categories_the_first_by_name_is_kept():
    assert fit(table(job=["c", "a", "b"]), max_categories=1).feature_names[0] == "job = a"


def test_numbers_can_be_taken_as_categories():
    train = table(postcode=[10.0, 2.0, None, 10.0], age=[1, 2, 3, 4])
    encoder = fit(train, categorical=["post*"])
    assert encoder.feature_names == ("postcode = 10", "postcode = 2", "postcode is missing", "age")
    assert encoder.transform(train)[:, :3].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    as_text = table(postcode=["10", "2"], age=[1, 2])
    as_integers = table(postcode=[10, 2], age=[1, 2])
    assert torch.equal(encoder.transform(as_text), encoder.transform(as_integers))


def test_only_the_encoders_columns_are_used_and_in_its_order():
    train = table(a=[0, 2], b=[0, 4], c=["x", "y"])
    encoder = TableEncoder.fit(train, ["b", "a"], party="shop")
    assert encoder.columns == ("b", "a")
    later = table(c=["new", "new"], a=[2, 2], b=[0, 0])
    assert encoder.transform(later).tolist() == [[-1, 1], [-1, 1]]


def test_numbers_written_as_text_are_numbers():
    encoder = fit(table(age=[0, 2]))
    assert encoder.transform(table(age=["0", "2", None])).tolist() == [[-1], [1], [0]]


def test_an_unseen_category_is_refused_or_taken_as_missing():
    encoder = fit(table(job=["a", "b", None]))
    later = table(job=["b", "new", "new", "newer"])
    words = (
        r"party 'shop': column 'job' of people has 3 rows with a value that training did not "
        r"see, such as 'new'; allow_unseen \(--allow-unseen\)"
    )
    with pytest.raises(DataError, match=words):
        encoder.transform(later)
    assert encoder.transform(later, allow_unseen=True).tolist() == [
        [0, 1, 0],
        [0, 0, 1],
        [0, 0, 1],
        [0, 0, 1],
    ]


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ({"a": [1]}, r"people lacks the columns \['b', 'c'\]"),
        (
            {"a": ["1", "old"], "b": [1, 1], "c": ["x", "x"]},
            "column 'a' of people: row 1 has 'old', expected a number",
        ),
        ({"a": [1.0, np.inf], "b": [1, 1], "c": ["x", "x"]}, "'a' of people has 1 infinite values"),
        ({"a": [1.0, 1], "b": [1, 1e300], "c": ["x", "x"]}, r"1e\+300, too far from the training"),
        ({"a": ["1", "inf"], "b": [1, 1], "c": ["x", "x"]}, "'a' of people has 1 infinite values"),
    ],
)
def test_rows_that_do_not_fit_are_refused(later, words):
    with pytest.raises(DataError, match=words):
        fit(table(a=[1, 2], b=[1, 1], c=["x", "y"])).transform(table(**later))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"a": [None, None]}, "'a' of people has no value in the training rows"),
        ({"a": [np.nan, np.nan]}, "'a' of people has no value in the training rows"),
        ({"a": [1.0, -np.inf]}, "'a' of people has 1 infinite values"),
        ({"a": [1e308, -1e308]}, "too large to standardise"),
    ],
)
def test_training_columns_that_cannot_be_used_are_refused(columns, words):
    with pytest.raises(DataError, match=words):
        fit(table(**columns))


def test_an_encoder_of_no_columns_is_refused():
    with pytest.raises(DataError, match="party 'shop' has no columns"):
        TableEncoder.fit(table(a=[1]), [], party="shop")


maybe = {
    "number": st.one_of(st.none(), st.floats(-1e6, 1e6)),
    "text": st.one_of(st.none(), st.sampled_from(["a", "b", "c", "ü", "1"])),
}


@settings(max_examples=50)
@given(data=st.data(), size=st.integers(1, 12), max_categories=st.integers(1, 4))
def test_a_stored_encoder_transforms_as_before(data, size, max_categories):
    columns = {
        name: [*data.draw(st.lists(values, min_size=size, max_size=size)), end]
        for (name, values), end in zip(maybe.items(), (0.5, "a"), strict=True)
    }
    source = table_from_arrays("t", {k: np.array(v, dtype=object) for k, v in columns.items()})
    encoder = fit(source, max_categories=max_categories)
    stored = json.loads(json.dumps(encoder.to_json(), allow_nan=False))
    again = TableEncoder.from_json(stored)
    encoded = encoder.transform(source)
    assert torch.equal(again.transform(source), encoded)
    assert input_from_json(stored).to_json() == encoder.to_json()
    assert again.feature_names == encoder.feature_names
    assert encoded.shape == (size + 1, encoder.num_features)
    assert encoded.isfinite().all()
    start = encoder.feature_names.index("text = a") if "text = a" in encoder.feature_names else None
    if start is not None:  # each row is one category, another, or missing
        texts = [i for i, name in enumerate(encoder.feature_names) if name.startswith("text")]
        assert (encoded[:, texts].sum(dim=1) == 1).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("party"), "party: Field required"),
        (lambda s: s.pop("columns"), "columns: Field required"),
        (lambda s: s["columns"][0].pop("mean"), "mean: Field required"),
        (lambda s: s["columns"][0].update(scale=0), "scale: Input should be greater than 0"),
        (lambda s: s["columns"][0].update(mean=float("nan")), "finite number"),
        (lambda s: s["columns"][0].update(kind="date"), "date"),
        (lambda s: s["columns"][1].update(more=1), "more: "),
        (lambda s: s["columns"][1].update(categories=3), "categories"),
    ],
)
def test_a_malformed_encoder_is_refused(change, words):
    stored = fit(table(a=[1, 2], b=["x", "y"])).to_json()
    change(stored)
    with pytest.raises(ModelError, match=words):
        TableEncoder.from_json(stored)


def test_an_unknown_kind_of_input_is_refused():
    with pytest.raises(ModelError, match="a kind among table, image, region, got 'sound'"):
        input_from_json({"kind": "sound"})


def test_a_sentinel_leaves_the_other_values_apart():
    rng = np.random.default_rng(0)
    plain = rng.normal(size=400)
    for far in (1e4, 9999999999.0, -1e15):
        values = np.where(np.arange(400) % 100 == 0, far, plain)
        encoder = fit(table(a=values))
        x = encoder.transform(table(a=values))[:, 0].numpy()
        near = np.arange(400) % 100 != 0
        assert np.abs(np.corrcoef(x[near], plain[near])[0, 1] - 1) < 1e-5
        assert x[near].std() > 0.3  # not squeezed into a corner
        assert np.abs(x).max() < 20
        assert TableEncoder.from_json(encoder.to_json()).transform(table(a=[far])) == x[0]


def test_a_value_a_thousand_spreads_away_is_clipped_and_remarked():
    encoder = fit(table(a=[1.0, 2, 3, 4, 5], b=[0.0, 0, 0, 1, 5000]))
    assert encoder.far(table(a=[3000, 900, None, 3], b=[0, 0, 0, 1])) == [
        "1 of 3 values of 'a' is far from all others: 3000 is read as 1503; leave it empty if it "
        "stands for no value"
    ]
    assert encoder.far(table(a=[3000, 4000, None, 3], b=[0, 0, 0, 1])) == [
        "2 of 3 values of 'a' are far from all others, such as 4000, and are read as 1503; leave "
        "them empty if they stand for no value"
    ]
    # 5000 lies in the middle of what is not 0, so it is no stranger there.
    assert encoder.far(table(a=[1], b=[5000])) == []
    days = np.array([18262, 18293, 18322, 2932896])  # in 2020, and 9999-12-31
    column = Column(days, np.zeros(4, dtype=bool), DATES)
    dates = Table("people", ("d",), 4, InMemory({"d": column}.__getitem__, readings={"d": DATES}))
    assert "9999-12-31 is read as 2020-0" in fit(dates).far(dates)[0]


def test_limits_change_no_value_within_a_thousand_spreads():
    values = np.random.default_rng(0).lognormal(sigma=1.2, size=2000)
    features = fit(table(a=values)).transform(table(a=values))[:, 0].numpy()
    plain = ((values - values.mean()) / values.std()).astype(np.float32)
    assert np.array_equal(features, plain)
