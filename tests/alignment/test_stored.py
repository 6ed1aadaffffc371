"""A party's part of an alignment is read back as it was, for the table it was made for only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from dovetail.alignment import ELSEWHERE
from dovetail.alignment.stored import StoredRows, digest, load_rows, save_rows
from dovetail.errors import AlignmentError

IDS = np.array(["anna", "bert", "carl"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The shop's part."""
    path = tmp_path / "shop.aligned.safetensors"
    save_rows(path, StoredRows("shop", "run 1", torch.tensor([2, -1, 0]), digest(IDS)))
    return path


def refuse(path: Path, words: str, *, party: str = "shop", ids: np.ndarray = IDS) -> None:
    with pytest.raises(AlignmentError, match=words) as raised:
        load_rows(path, party, ids)
    assert "\n" not in str(raised.value)


def test_a_part_is_read_back_as_it_was(path: Path) -> None:
    stored = load_rows(path, "shop", IDS)
    assert (stored.party, stored.run, stored.ids_sha256) == ("shop", "run 1", digest(IDS))
    assert stored.rows_S.dtype == torch.int64
    assert stored.rows_S.tolist() == [2, -1, 0]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("ids", [np.array([3, 1, 2]), np.array(["é", "日本"]), np.array([], int)])
def test_ids_of_any_kind_have_a_fingerprint(tmp_path: Path, ids: np.ndarray) -> None:
    rows_S = torch.arange(len(ids))
    save_rows(tmp_path / "part", StoredRows("shop", "run 1", rows_S, digest(ids)))
    assert torch.equal(load_rows(tmp_path / "part", "shop", ids).rows_S, rows_S)
    assert digest(ids[::1]) == digest(ids.copy())


def test_a_new_alignment_takes_the_old_ones_place(path: Path) -> None:
    save_rows(path, StoredRows("shop", "run 2", torch.tensor([1]), digest(IDS)))
    stored = load_rows(path, "shop", IDS)
    assert (stored.run, stored.rows_S.tolist()) == ("run 2", [1])


def test_an_initiators_part_says_who_has_which_sample(path: Path) -> None:
    rows_S = torch.tensor([2, 0, 1])
    partners = {
        "bank": torch.tensor([True, False, True]),
        "the 2nd insurer": torch.tensor([False, False, False]),
    }
    save_rows(path, StoredRows("shop", "run 1", rows_S, digest(IDS), partners=partners))
    stored = load_rows(path, "shop", IDS)
    assert {name: has_S.tolist() for name, has_S in stored.partners.items()} == {
        "bank": [True, False, True],
        "the 2nd insurer": [False, False, False],
    }
    alignment = stored.alignment()
    assert list(alignment.rows) == ["shop", "bank", "the 2nd insurer"]
    assert alignment.rows["bank"].tolist() == [ELSEWHERE, -1, ELSEWHERE]
    assert alignment.shared("shop", "bank").tolist() == [0, 2]
    assert alignment.shared(*alignment.rows).tolist() == []
    assert safetensors.torch.load_file(path).keys() == {
        "rows_S",
        "has.bank",
        "has.the 2nd insurer",
    }


def test_a_responders_part_says_with_whom(path: Path) -> None:
    assert load_rows(path, "shop", IDS).driver == ""
    save_rows(path, StoredRows("shop", "run 1", torch.tensor([0]), digest(IDS), "bank"))
    assert load_rows(path, "shop", IDS).driver == "bank"
    assert load_rows(path, "shop", IDS).partners == {}


def test_a_part_whose_partners_have_other_samples_is_refused(path: Path) -> None:
    for has_S in (torch.tensor([True]), torch.tensor([1, 0, 1])):
        partners = {"bank": has_S}
        rows_S = torch.tensor([2, 0, 1])
        save_rows(path, StoredRows("shop", "run 1", rows_S, digest(IDS), partners=partners))
        refuse(path, r"is no alignment \(has\.bank is torch\.\w+ \(\d,\)\); align again")


def test_no_id_is_in_the_file(path: Path) -> None:
    content = path.read_bytes()
    assert b"anna" not in content
    assert IDS.tobytes() not in content


@pytest.mark.parametrize(
    "ids",
    [
        IDS[[1, 0, 2]],
        np.array(["anna", "bert", "carl", "dora"]),
        IDS[:2],
        np.array(["anna", "bert", "karl"]),
        np.array([1, 2, 3]),
    ],
    ids=["reordered", "added", "removed", "renamed", "numbers"],
)
def test_a_table_that_changed_is_to_be_aligned_again(path: Path, ids: np.ndarray) -> None:
    words = r"party 'shop': its table has changed since it was aligned \(.*\); align again"
    refuse(path, words, ids=ids)


def test_text_and_the_number_it_spells_differ() -> None:
    assert digest(np.array(["1", "2"])) != digest(np.array([1, 2]))
    assert digest(np.array(["ab", "c"])) != digest(np.array(["a", "bc"]))


def test_another_partys_part_is_refused(path: Path) -> None:
    words = "is the alignment of party 'shop', not 'bank'; align again"
    refuse(path, words, party="bank")


def test_a_missing_part_says_who_is_not_aligned(tmp_path: Path) -> None:
    refuse(tmp_path / "no.safetensors", r"party 'shop' is not aligned yet: there is no .*no\.safe")


def test_a_file_that_is_no_alignment_is_refused(path: Path) -> None:
    words = r"shop\.aligned\.safetensors is no alignment \(.*\); align again"
    whole = path.read_bytes()
    metadata = {"party": "shop", "run": "run 1", "ids_sha256": digest(IDS)}
    for content in (b"", b"no tensors", whole[:-4], whole[:20], b"\xff" * 100):
        path.write_bytes(content)
        refuse(path, words)
    for tensors in (
        {"rows": torch.tensor([0])},
        {"rows_S": torch.tensor([0.5])},
        {"rows_S": torch.tensor([[0, 1]])},
        {"rows_S": torch.tensor([0], dtype=torch.int32)},
    ):
        safetensors.torch.save_file(tensors, path, metadata=metadata)
        refuse(path, words)
    path.unlink()
    path.mkdir()
    refuse(path, words)


def test_a_file_of_tensors_that_names_no_party_is_refused(path: Path) -> None:
    safetensors.torch.save_file({"rows_S": torch.tensor([0])}, path)
    refuse(path, "is the alignment of party '', not 'shop'")


def test_a_part_with_a_row_that_is_not_there_is_refused(path: Path) -> None:
    for row in (3, -2):
        save_rows(path, StoredRows("shop", "run 1", torch.tensor([0, row]), digest(IDS)))
        refuse(path, r"is no alignment \(its rows lie outside -1\.\.2\); align again")


def test_a_part_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    stored = StoredRows("shop", "run 1", torch.tensor([0]), digest(IDS))
    with pytest.raises(AlignmentError, match="party 'shop': cannot write its part of the alignme"):
        save_rows(tmp_path / "nowhere" / "part", stored)
    (tmp_path / "folder").mkdir()
    with pytest.raises(AlignmentError, match="cannot write its part"):
        save_rows(tmp_path / "folder", stored)
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]
