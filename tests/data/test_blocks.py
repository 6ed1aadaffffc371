"""The partition ``blocks``: who has which block of which class, as an explicit table says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.data import (
    Column,
    Dataset,
    ImageRegion,
    TableEncoder,
    blocks,
    input_from_json,
    quadrants,
    table_from_arrays,
)
from dovetail.errors import ConfigError, DataError, ModelError
from dovetail.settings.shares import Share, read_assignment

RUNS = Path(__file__).parents[2] / "runs" / "hyfem"


def labels(size: int, num_classes: int = 4) -> Column:
    return Column(np.arange(size) % num_classes, np.zeros(size, dtype=bool))


def pictures(size: int = 16, channels: int = 3, side: int = 4, first_id: int = 0) -> Dataset:
    rng = torch.Generator().manual_seed(size)
    x = torch.randint(256, (size, channels, side, side), dtype=torch.uint8, generator=rng)
    return Dataset("pictures", np.arange(first_id, first_id + size), x, "class", labels(size))


def people(size: int = 16, first_id: int = 0) -> Dataset:
    rng = np.random.default_rng(size)
    table = {
        "age": rng.integers(20, 60, size),
        "income": rng.normal(size=size),
        "job": rng.choice(np.array(["clerk", "nurse"], dtype=object), size),
    }
    x = table_from_arrays("people", table)
    return Dataset("people", np.arange(first_id, first_id + size), x, "class", labels(size))


GROUPS = {"body": ["age"], "work": ["income", "job"]}
SHARES = [
    Share("one", ("top-left", "top-right"), (1, 2)),
    Share("two", ("top-*", "bottom-left"), (2, 3, 4)),
    Share("three", ("2-4",), (1, 4)),
]


@given(side=st.integers(2, 7), channels=st.integers(1, 4))
@settings(max_examples=15)
def test_quadrants_joined_are_the_image_less_what_remains(side, channels):
    x = torch.arange(2 * channels * side * side).view(2, channels, side, side)
    four = quadrants((channels, side, side))
    parts = [region.transform(x) for region in four.values()]
    top, bottom = torch.cat(parts[:2], dim=3), torch.cat(parts[2:], dim=3)
    even = side // 2 * 2
    assert torch.equal(torch.cat([top, bottom], dim=2), x[:, :, :even, :even])
    apart = quadrants((channels, side, side), by_channel=True)
    assert len(apart) == 4 * channels
    for quadrant, part in zip(four, parts, strict=True):
        strips = [
            region.transform(x) for name, region in apart.items() if name.startswith(quadrant)
        ]
        assert torch.equal(torch.cat(strips, dim=1), part)


def test_three_channels_are_called_red_green_and_blue():
    names = list(quadrants((3, 8, 8), by_channel=True))
    assert names[:4] == ["top-left-red", "top-left-green", "top-left-blue", "top-right-red"]
    assert len(names) == 12


def test_a_region_comes_back_from_json_and_takes_whole_images_or_its_own():
    region = quadrants((3, 6, 8), by_channel=True)["bottom-right-blue"]
    again = input_from_json(region.to_json())
    assert again == region
    x = torch.rand(2, 3, 6, 8)
    cut = again.transform(x)
    assert torch.equal(cut, x[:, 2:3, 3:, 4:])
    assert torch.equal(again.transform(cut), cut)
    assert region.shape == (1, 3, 4)
    with pytest.raises(DataError, match=r"expected \(3, 6, 8\) .* or the part's \(1, 3, 4\)"):
        again.transform(torch.rand(2, 1, 5, 5))


@pytest.mark.parametrize("broken", [{"left": 9}, {"end_channel": 4}, {"right": "x"}, {"stop": 99}])
def test_a_stored_region_that_cannot_be_is_refused(broken):
    region = quadrants((3, 6, 8))["top-left"]
    with pytest.raises(ModelError):
        input_from_json({**region.to_json(), **broken})


def test_parties_have_all_samples_of_their_classes_and_may_share_them():
    train = pictures()
    parts = blocks(train, pictures(8, first_id=16), blocks="quadrants", assignment=SHARES)
    sizes = {name: party.num_rows for name, party in parts.train.parties.items()}
    assert sizes == {"one": 8, "two": 12, "three": 8}  # as in the paper: 25k of 50k for 5 of 10
    for share in SHARES:
        party = parts.train[share.party]
        assert set((party.labels + 1).tolist()) == set(share.classes)
        for name, block in party.blocks.items():
            expected = parts.block_inputs[name].transform(train.x[torch.from_numpy(party.ids)])
            assert torch.equal(block, expected)
    assert tuple(parts.train["two"].blocks) == ("top-left", "top-right", "bottom-left")
    assert tuple(parts.train["three"].blocks) == ("top-right", "bottom-left", "bottom-right")
    assert parts.common == ("top-right",)
    assert parts.pooled.num_rows == 16
    assert tuple(parts.pooled.blocks) == parts.blocks


def test_every_party_has_all_test_rows_with_its_blocks():
    test = pictures(8, first_id=16)
    parts = blocks(pictures(), test, blocks="quadrants", assignment=SHARES)
    for name, party in parts.test.parties.items():
        assert np.array_equal(party.ids, test.ids)
        assert party.blocks.keys() == parts.train[name].blocks.keys()
    assert parts.pooled_test.num_rows == 8


@given(seed=st.integers(0, 50), first=st.floats(0.1, 1), second=st.floats(0.1, 1))
@settings(max_examples=20)
def test_disjoint_parties_share_no_sample(seed, first, second):
    shares = [Share("one", ("*",), (1, 2), first), Share("two", ("1",), (1, 2, 3, 4), second)]
    parts = blocks(
        pictures(80), None, blocks="quadrants", assignment=shares, disjoint=True, seed=seed
    )
    ids = [party.ids for party in parts.train.parties.values()]
    assert not set(ids[0]) & set(ids[1])
    expected = round(20 * first / max(1, first + second))
    counts = np.bincount(parts.train["one"].labels, minlength=4)
    assert counts.tolist() == [expected, expected, 0, 0]


def test_a_share_of_the_rows_is_taken_of_each_class():
    shares = [Share("one", ("*",), (1, 2), 0.5), Share("two", ("*",), (1, 2, 3, 4))]
    parts = blocks(pictures(80), None, blocks="quadrants", assignment=shares, seed=3)
    assert np.bincount(parts.train["one"].labels, minlength=4).tolist() == [10, 10, 0, 0]
    other = blocks(pictures(80), None, blocks="quadrants", assignment=shares, seed=4)
    assert not np.array_equal(parts.train["one"].ids, other.train["one"].ids)


def test_columns_are_encoded_alike_at_all_parties():
    shares = [Share("one", ("body", "work"), (1, 2)), Share("two", ("work",), (3, 4))]
    train = people(40)
    parts = blocks(train, None, blocks=GROUPS, assignment=shares)
    encoder = parts.block_inputs["work"]
    assert isinstance(encoder, TableEncoder)
    for party in parts.train.parties.values():
        expected = encoder.transform(train.x.take(party.ids))
        assert torch.equal(party.blocks["work"], expected)
    both = torch.cat([party.blocks["work"] for party in parts.train.parties.values()])
    torch.testing.assert_close(both[:, 0].mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    alone = parts.train["one"].blocks["body"]  # by what its only holder's rows hold
    torch.testing.assert_close(alone.mean(0), torch.zeros(1), atol=1e-6, rtol=0)


def test_a_table_beside_images_gives_blocks_of_both_kinds():
    regions = quadrants((3, 4, 4))
    named = {"scan": regions["top-left"], **GROUPS}
    shares = [Share("one", ("scan", "body"), (1, 2, 3)), Share("two", ("work", "scan"), (3, 4))]
    parts = blocks(
        pictures(),
        pictures(8, first_id=16),
        blocks=named,
        assignment=shares,
        beside=(people(), people(8, first_id=16)),
    )
    assert parts.train["two"].blocks["scan"].shape == (8, 3, 2, 2)
    assert parts.train["two"].blocks["work"].shape == (8, 3)
    assert parts.test["one"].blocks["body"].shape == (8, 1)
    with pytest.raises(DataError, match="about the same samples in the same order"):
        blocks(pictures(), None, blocks=named, assignment=shares, beside=(people(first_id=9), None))


def test_an_assignment_is_read_from_csv(tmp_path):
    path = tmp_path / "who.csv"
    path.write_text("# who\nparty,blocks,classes,rows\none,a b*,1-3 5,0.5\ntwo,1-2,4,\n")
    assert read_assignment(path) == [
        Share("one", ("a", "b*"), (1, 2, 3, 5), 0.5),
        Share("two", ("1-2",), (4,), 1.0),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("party,blocks\n", "expected the columns party, blocks, classes"),
        ("party,blocks,classes\none,a\n", "row 1: expected a party's name"),
        ("party,blocks,classes\none,a,x\n", "row 1: expected a party's name"),
        ("party,blocks,classes\none,a,3-1\n", "row 1: expected a party's name"),
        ("party,blocks,classes,rows\none,a,1,most\n", "row 1: expected a party's name"),
    ],
)
def test_an_assignment_that_cannot_be_read_is_named(tmp_path, text, message):
    path = tmp_path / "who.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_assignment(path)
    with pytest.raises(DataError, match="cannot read the assignment"):
        read_assignment(tmp_path / "nobody.csv")


ALL = Share("one", ("*",), (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("shares", "error", "message"),
    [
        ([ALL, ALL], ConfigError, "names each party once"),
        ([], ConfigError, "names each party once"),
        ([Share("one", ("top-*",), (1, 2, 3, 4))], ConfigError, "no party has the block 'bottom-"),
        ([Share("one", ("*",), (1, 2, 3))], ConfigError, r"no party has the class 3 \(place 4\)"),
        ([Share("one", ("middle",), (1,))], ConfigError, "is to have the block 'middle'; there"),
        ([Share("one", ("7",), (1,))], ConfigError, "is to have the block '7'; there are"),
        ([Share("one", (), (1,))], ConfigError, "party 'one' has no block"),
        ([Share("one", ("*",), (5,))], ConfigError, r"the classes \[5\]; give places from 1 to 4"),
        ([Share("one", ("*",), ())], ConfigError, "give places from 1 to 4"),
        ([Share("one", ("*",), (1,), 1.5)], ConfigError, r"rows must be a share in \(0, 1\]"),
        ([ALL, Share("two", ("*",), (1,), 0.01)], DataError, "party 'two' has no sample"),
    ],
)
def test_an_assignment_that_cannot_be_is_refused(shares, error, message):
    with pytest.raises(error, match=message):
        blocks(pictures(), None, blocks="quadrants", assignment=shares)


def test_blocks_that_do_not_fit_the_data_are_refused():
    with pytest.raises(DataError, match="is a table, which has no quadrants"):
        blocks(people(), None, blocks="quadrants", assignment=[ALL])
    with pytest.raises(DataError, match="is a group of columns, but there is no table"):
        blocks(pictures(), None, blocks=GROUPS, assignment=[ALL])
    region = ImageRegion(1, 9, 9, "height", 0, 4, left=0, right=4, first_channel=0, end_channel=1)
    with pytest.raises(DataError, match=r"is cut from images of \(1, 9, 9\)"):
        blocks(pictures(), None, blocks={"corner": region}, assignment=[ALL])
    with pytest.raises(ConfigError, match="one block or more"):
        blocks(people(), None, blocks={}, assignment=[ALL])


# --- The paper's tables, which ship in runs/hyfem ----------------------------------------------


def held(name: str) -> tuple[np.ndarray, np.ndarray]:
    """(M, blocks) and (M, classes), 1 where the party has it."""
    num_blocks, num_classes = {
        "table-2-cifar10.csv": (12, 10),
        "table-3.csv": (4, 40),
        "table-4.csv": (4, 10),
    }[name]
    shares = read_assignment(RUNS / name)
    blocks_held = np.zeros((len(shares), num_blocks), dtype=int)
    classes_held = np.zeros((len(shares), num_classes), dtype=int)
    for m, share in enumerate(shares):
        for token in share.blocks:
            first, *last = map(int, token.split("-"))
            blocks_held[m, first - 1 : (last or [first])[0]] = 1
        classes_held[m, [index - 1 for index in share.classes]] = 1
        assert share.rows == 1
    return blocks_held, classes_held


def test_table_2_nine_parties_have_five_classes_and_six_to_eight_blocks():
    blocks_held, classes_held = held("table-2-cifar10.csv")
    assert len(blocks_held) == 9
    assert (classes_held.sum(1) == 5).all()
    assert set(blocks_held.sum(1)) <= {6, 7, 8}
    assert blocks_held.sum() * 5 == 300  # the numbers of Figure 11(c), added up
    holders = blocks_held.T @ classes_held
    assert holders.min() >= 1  # every block of every class has been used
    assert holders.max() <= 4
    assert not blocks_held.all(0).any()  # "no feature is shared by all"
    assert not classes_held.all(0).any()


def test_table_3_six_parties_leave_6_88_percent_unused():
    blocks_held, classes_held = held("table-3.csv")
    assert blocks_held.tolist() == [[1, 1, 1, 0]] * 2 + [[1, 0, 1, 1]] * 2 + [[1, 0, 1, 0]] * 2
    assert (classes_held.sum(1) == 25).all()
    assert (blocks_held.T @ classes_held == 0).sum() == 11  # of 160: 6.88 %


def test_table_4_is_figure_12_b():
    blocks_held, classes_held = held("table-4.csv")
    assert (blocks_held.T @ classes_held == np.array([[3], [1], [3], [1]])).all()
