import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from dovetail.data import Federation, PartyData, SharedRows
from dovetail.errors import AlignmentError, DataError


def party(name, ids, labels=None, blocks=None):
    ids = np.array(ids)
    if blocks is None:
        blocks = {"a": torch.arange(float(len(ids)))[:, None]}
    return PartyData(name, ids, blocks, labels)


integer_ids = st.lists(st.integers(-5, 25), unique=True, min_size=1, max_size=15)
text_ids = st.lists(st.text("abü", min_size=1, max_size=2), unique=True, min_size=1, max_size=9)


@pytest.mark.slow
@given(
    tables=st.one_of(*(st.lists(ids, min_size=2, max_size=4) for ids in (integer_ids, text_ids)))
)
def test_alignment_is_what_a_dict_of_ids_finds(tables):
    first, *others = tables
    assume(all(set(first) & set(ids) for ids in others))
    federation = Federation(party(f"p{i}", ids) for i, ids in enumerate(tables))
    alignment = federation.align(to="p0")
    for i, ids in enumerate(tables):
        index = {name: row for row, name in enumerate(ids)}
        assert alignment.rows[f"p{i}"].tolist() == [index.get(name, -1) for name in first]
    everyone = [row for row, name in enumerate(first) if all(name in ids for ids in others)]
    assert alignment.shared(*federation.parties).tolist() == everyone


@pytest.mark.parametrize("ids", [[7, 8], []])
def test_parties_without_a_shared_sample_are_refused(ids):
    federation = Federation([party("bank", [1, 2]), party("shop", np.array(ids, dtype=np.int64))])
    with pytest.raises(AlignmentError, match="'shop' shares no sample with 'bank'"):
        federation.align(to="bank")


def test_two_parties_of_one_name_are_refused():
    with pytest.raises(DataError, match="party names must differ"):
        Federation([party("bank", [1]), party("bank", [2])])


def test_an_id_in_digits_is_the_one_as_text():
    federation = Federation([party("bank", [1, 2]), party("shop", ["2", "a"])])
    assert federation.align(to="bank").rows["shop"].tolist() == [-1, 0]


def test_an_unknown_party_is_named_with_those_there_are():
    with pytest.raises(DataError, match=r"no party 'shop'; there are \['bank'\]"):
        Federation([party("bank", [1])])["shop"]


def test_shared_rows_are_asked_for_by_sample():
    block = SharedRows("shop", torch.tensor([[1.0], [2.0]]), torch.tensor([1, -1, 0]))
    assert block[torch.tensor([2, 0])].tolist() == [[1], [2]]


@pytest.mark.parametrize("sample", [-1, 3])
def test_samples_outside_the_shared_order_are_refused(sample):
    block = SharedRows("shop", torch.ones(2, 1), torch.tensor([1, -1, 0]))
    with pytest.raises(AlignmentError, match="outside the 3 it agreed on"):
        block[torch.tensor([sample])]


def test_samples_that_a_party_has_no_row_of_are_refused():
    block = SharedRows("shop", torch.ones(2, 1), torch.tensor([1, -1, 0]))
    with pytest.raises(AlignmentError, match="'shop' was asked for 1 samples it does not have"):
        block[torch.tensor([0, 1])]


def test_an_alignment_to_rows_that_are_gone_is_refused():
    with pytest.raises(AlignmentError, match="has 2 rows but its alignment names row 5"):
        SharedRows("shop", torch.ones(2, 1), torch.tensor([5]))
