"""Parties' own tables: labelled rows are split, all others stay, alignments follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dovetail.data import (
    Alignment,
    Column,
    PartyTable,
    TableEncoder,
    keep_labels,
    split_sites,
    table_from_arrays,
)
from dovetail.errors import ConfigError, DataError

NUM_ROWS = 12


def party(name: str, first: int, *, label: str | None = None) -> PartyTable:
    """Rows ``first``, ``first`` + 1, ... of one column; with labels on all but the last two."""
    values = np.arange(first, first + NUM_ROWS).astype(float)
    labels = None
    if label is not None:
        missing = np.arange(NUM_ROWS) >= NUM_ROWS - 2
        labels = Column(np.arange(NUM_ROWS) % 2, missing)
    table = table_from_arrays(name, {f"{name} 1": values})
    ids = np.arange(first, first + NUM_ROWS)
    return PartyTable(name, ids, table, {"columns": table.names}, label, labels)


#: Rows 4 to 11 of the bank are 0 to 7 of the shop, told in another order of samples.
ALIGNMENT = Alignment(
    {
        "bank": torch.tensor([11, 4, 5, 6, 7, 8, 9, 10]),
        "shop": torch.tensor([7, 0, 1, 2, 3, 4, 5, 6]),
    }
)


def split(test: float | None = 0.3, **changed: Any) -> Any:
    tables = {"bank": party("bank", 0, label="buys"), "shop": party("shop", 4)}
    return split_sites(
        changed.get("tables", tables),
        "bank",
        ALIGNMENT,
        fit=lambda table: table.fit_input(),
        kind="classification",
        test=test,
        seed=0,
        by_class=changed.get("by_class", True),
    )


@pytest.mark.parametrize("by_class", [True, False])
def test_labels_have_no_part_in_which_rows_test_where_they_may_not(by_class: bool) -> None:
    """With ``label_epsilon``: shares of classes would reveal one to who knows all others."""
    bank = party("bank", 0, label="buys")
    tested = set()
    for num in range(2, 9):  # so many of the first rows are of the second class
        labels = Column((np.arange(NUM_ROWS) < num) * 1, bank.required_labels.missing)
        tables = {"bank": replace(bank, labels=labels), "shop": party("shop", 4)}
        data, _, _ = split(tables=tables, by_class=by_class)
        tested.add(tuple(data.test["bank"].ids.tolist()))
    assert (len(tested) > 1) == by_class


def test_labelled_rows_are_split_and_unlabelled_rows_train() -> None:
    data, _, _ = split()
    train, test = data.train["bank"].ids, data.test["bank"].ids
    assert len(test) == 3  # of 10 labelled rows
    assert set(test) | set(train) == set(range(NUM_ROWS))
    assert not set(test) & set(train)
    assert {10, 11} <= set(train)
    assert list(train) == sorted(train)
    assert len(data.test["bank"].labelled_rows()) == 3
    for part in (data.train, data.test):
        assert list(part["shop"].ids) == list(range(4, 4 + NUM_ROWS))
        assert part["shop"].labels is None


def test_each_alignment_names_the_same_samples_in_the_rows_of_its_part() -> None:
    data, train, test = split()
    for part, alignment in ((data.train, train), (data.test, test)):
        samples = alignment.shared("bank", "shop")
        ids = part["bank"].ids[alignment.rows["bank"][samples]]
        assert list(ids) == list(part["shop"].ids[alignment.rows["shop"][samples]])
    # Every sample of before is in one of the two.
    held = (train.rows["bank"] >= 0).int() + (test.rows["bank"] >= 0).int()
    assert held.tolist() == [1] * 8


def test_the_label_owners_input_is_fitted_on_training_rows_only() -> None:
    data, _, _ = split()
    fitted = data.inputs["bank"]
    assert isinstance(fitted, TableEncoder)
    (column,) = fitted.to_json()["columns"]
    assert column["mean"] == pytest.approx(data.train["bank"].ids.mean())
    (column,) = data.inputs["shop"].to_json()["columns"]
    assert column["mean"] == pytest.approx(np.arange(4, 16).mean())


def test_without_a_share_no_row_tests() -> None:
    data, train, test = split(None)
    assert (data.test, test) == (None, None)
    assert torch.equal(train.rows["bank"], ALIGNMENT.rows["bank"])


def test_partners_that_are_elsewhere_stay_in_the_alignment() -> None:
    data, train, _ = split(tables={"bank": party("bank", 0, label="buys")})
    assert list(data.train.parties) == ["bank"]
    assert torch.equal(train.rows["shop"], ALIGNMENT.rows["shop"])


def test_rows_that_cannot_be_split_are_named() -> None:
    with pytest.raises(
        DataError, match=r"the 10 labelled rows of party 'bank' with test = 0\.01 by"
    ):
        split(0.01)


def test_labels_are_kept_on_so_many_rows_of_one_party() -> None:
    data, _, _ = split()
    kept = keep_labels(data, "bank", 4, torch.Generator().manual_seed(0))
    rows = kept.train["bank"].labelled_rows()
    assert len(rows) == 4
    assert torch.equal(kept.train["bank"].labels[rows], data.train["bank"].labels[rows])
    assert list(kept.train.parties) == list(data.train.parties)
    with pytest.raises(ConfigError, match="labels is 8, but only 7 training rows of party 'bank'"):
        keep_labels(data, "bank", 8, torch.Generator())
