import numpy as np
import pytest
import torch

from dovetail.data import UNLABELLED, PartyData
from dovetail.errors import DataError


def shop(**changed):
    given = {
        "ids": np.array([3, 1, 2]),
        "blocks": {"a": torch.arange(6.0).reshape(3, 2)},
        "labels": torch.tensor([0, UNLABELLED, 1]),
    }
    return PartyData("shop", **(given | changed))


def test_labelled_rows_are_those_with_a_class():
    assert shop().labelled_rows().tolist() == [0, 2]


def test_labelled_rows_are_those_with_a_number():
    assert shop(labels=torch.tensor([float("nan"), 0.0, 1.0])).labelled_rows().tolist() == [1, 2]


def test_a_party_without_labels_has_no_labelled_rows():
    assert shop(labels=None).labelled_rows().tolist() == []


def test_take_gives_these_rows_in_this_order():
    taken = shop().take(torch.tensor([2, 0]))
    assert taken.ids.tolist() == [2, 3]
    assert taken.blocks["a"].tolist() == [[4, 5], [0, 1]]
    assert taken.labels.tolist() == [1, 0]


def test_labels_are_kept_on_named_rows_only():
    assert shop().with_labels_on(torch.tensor([2])).labels.tolist() == [-1, -1, 1]
    numbers = shop(labels=torch.tensor([1.0, 2.0, 3.0])).with_labels_on(torch.tensor([1]))
    assert numbers.labelled_rows().tolist() == [1]


def test_labels_cannot_be_kept_where_there_are_none():
    with pytest.raises(DataError, match="'shop' has no labels to keep"):
        shop(labels=None).with_labels_on(torch.tensor([0]))


def test_one_block_is_joined_as_it_is():
    images = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    assert shop(blocks={"a": images}).joined() is images


def test_several_blocks_are_joined_side_by_side():
    blocks = {"a": torch.ones(3, 2), "b": torch.zeros(3, 1, 2, dtype=torch.uint8)}
    assert shop(blocks=blocks).joined().tolist() == [[1, 1, 0, 0]] * 3


def test_a_party_without_blocks_has_nothing_to_join():
    with pytest.raises(DataError, match="'shop' has no columns"):
        shop(blocks={}).joined()


def test_repeated_ids_are_refused():
    with pytest.raises(DataError, match=r"'shop': 1 of 3 ids are repeated"):
        shop(ids=np.array([1, 1, 2]))


def test_ids_of_two_axes_are_refused():
    with pytest.raises(DataError, match="ids must be one column"):
        shop(ids=np.zeros((3, 1)))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"blocks": {"a": torch.zeros(2, 1)}}, "block 'a' has 2 rows, ids have 3"),
        ({"labels": torch.zeros(4, dtype=torch.int64)}, "labels has 4 rows, ids have 3"),
    ],
)
def test_lengths_that_differ_are_refused(changed, words):
    with pytest.raises(DataError, match=words):
        shop(**changed)


def test_blocks_cannot_be_swapped_later():
    with pytest.raises(TypeError):
        shop().blocks["a"] = torch.zeros(3, 1)
