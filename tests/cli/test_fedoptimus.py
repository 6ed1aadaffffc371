"""FedOptimus by the commands that a user types: simulated, and from party files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from owner_files import HERE, write_owners, write_table

import dovetail as package
from dovetail import data as dd
from dovetail.cli.train import train
from dovetail.files import grid_cells
from dovetail.models.owners import load_bottom
from dovetail.runs.runfile import load_run

RUNS = Path(__file__).parents[2] / "runs" / "fedoptimus"

#: Columns of the breast cancer set at three data owners, its labels at two label owners.
RUN = """
method = "fedoptimus"
evaluate_every = 0
[data]
source = "breast-cancer"
test = 0.25
[data.partition]
kind = "owners"
label_owners = ["north", "south"]
data_owners = { clinic = ["mean *"], lab = ["worst *"], registry = ["* error"] }
[fedoptimus]
epochs = 6
batch_size = 16
optimizer = "adam"
learning_rate = 0.01
weight_decay = 0.01
bottom = [8]
embedding = 8
top = [8]
server = "average"
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(*changes: tuple[str, str]) -> Path:
        text = RUN
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        (tmp_path / "run.toml").write_text(text)
        return tmp_path / "run.toml"

    return write


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of ``RUN``; read only."""
    folder = tmp_path_factory.mktemp("owners")
    (folder / "run.toml").write_text(RUN)
    train(folder / "run.toml", out=folder / "out", quiet=True)
    return folder / "out"


@pytest.fixture
def folder(trained_once: Path, write: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy of it, beside its run file."""
    write()
    shutil.copytree(trained_once, tmp_path / "out")
    return tmp_path / "out"


def table(path: Path, *globs: str, num_rows: int = 60, name: str = "patients.csv") -> Path:
    """Rows of the set with these columns, and the label."""
    pooled, _ = dd.load("breast-cancer")
    part = pooled.take(np.arange(num_rows))
    assert isinstance(part.x, dd.Table)
    columns = {each: part.x.column(each).values for each in part.x.select(list(globs))}
    dd.write_table(path / name, {"diagnosis": part.labels.values, **columns})
    return path / name


@pytest.mark.trained
def test_a_run_keeps_a_model_for_each_owner(dovetail: Any, folder: Path) -> None:
    models = {path.name for path in (folder / "models").iterdir()}
    assert models == {"clinic", "lab", "registry", "north", "south"}
    result = json.loads((folder / "result.json").read_text())
    assert result["parties"].keys() == {"north", "south"}
    assert result["mean"]["accuracy"] > 0.85
    assert result["bytes"].keys() == {"coordinator", *models}
    lines = (folder / "ledger.jsonl").read_text().splitlines()
    kinds = {json.loads(line)["message"] for line in lines}
    assert {"fedoptimus.Embeddings", "fedoptimus.Learned", "fedoptimus.Learn"} <= kinds
    assert load_bottom(folder / "models" / "lab").party == "lab"


@pytest.mark.trained
def test_a_label_owner_predicts_with_the_data_owners(
    dovetail: Any, folder: Path, tmp_path: Path
) -> None:
    done = dovetail("predict", folder, table(tmp_path, "*"), "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["answered"] == ["clinic", "lab", "registry"]
    assert report["missing"] == []
    assert report["scores"]["accuracy"] > 0.85
    one = dovetail("predict", folder / "models" / "south", tmp_path / "patients.csv", "--json")
    assert json.loads(one.out)["columns"] == report["columns"]  # tops are one model


def test_an_owner_whose_columns_are_missing_is_left_out_and_named(
    dovetail: Any, folder: Path, tmp_path: Path
) -> None:
    path = table(tmp_path, "mean *", "worst *")
    done = dovetail("predict", folder, path, "--out", "said.csv")
    assert done.code == 0, done.err
    assert "with the data owners clinic, lab; left out of the mean" in done.err
    assert "registry" in done.err
    predicted = dd.read_table(tmp_path / "said.csv")
    assert set(predicted.column("answered").values) == {"clinic lab"}
    assert json.loads(dovetail("predict", folder, path, "--json").out)["missing"] == ["registry"]


def test_a_label_owner_cannot_predict_without_data_owners(
    dovetail: Any, folder: Path, tmp_path: Path
) -> None:
    (folder / "models" / "north").rename(tmp_path / "north")
    done = dovetail("predict", tmp_path / "north", table(tmp_path, "*"))
    assert done.code == 2
    assert "is the model of label owner 'north'" in done.err
    done = dovetail("predict", folder / "models" / "lab", tmp_path / "patients.csv")
    assert (done.code, "predicts nothing alone" in done.err) == (2, True)


ELSEWHERE = ("--party", "north.toml", "--partners", "clinic,lab", "--listen", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ELSEWHERE, "is no label owner's of a run with data owners on other machines"),
        (("--party", "nowhere.toml"), "nowhere.toml"),
        (ELSEWHERE[2:], "give --party, --partners and --listen"),
        (ELSEWHERE[:4], "--partners is for partners on other machines"),
        ((*ELSEWHERE, "--allow-unseen"), "--allow-unseen is for a table of columns"),
        ((*ELSEWHERE, "--timeout", "0"), "timeout_s"),
        ((*ELSEWHERE, "--id", "patient"), "'patient'"),
    ],
)
def test_a_mistake_in_asking_data_owners_is_one_sentence(
    dovetail: Any, folder: Path, options: tuple[str, ...], words: str
) -> None:
    write_owners(folder.parent)
    (folder.parent / "certificates" / "north").mkdir(parents=True)
    done = dovetail("predict", folder / "models" / "north", "north.csv", *options)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert "Traceback" not in done.err


def test_a_label_owner_predicts_with_its_own_model_and_not_as_its_own_partner(
    dovetail: Any, folder: Path
) -> None:
    write_owners(folder.parent)
    top = package.load(folder / "models" / "south")
    top.about = {**top.about, "run": "a/b"}
    top.save(folder.parent / "kept")
    done = dovetail("predict", "kept", "north.csv", *ELSEWHERE)
    assert (done.code, "is of label owner 'south', and north.toml is of 'north'" in done.err) == (
        2,
        True,
    )
    top.party = "north"
    top.save(folder.parent / "kept")
    done = dovetail("predict", "kept", "north.csv", *ELSEWHERE[:3], "north", *ELSEWHERE[4:])
    assert (done.code, "partners names 'north', which is the driver" in done.err) == (2, True)
    done = dovetail("predict", "kept", "north.csv", *ELSEWHERE)
    assert (done.code, "there is no folder" in done.err) == (2, True)


@pytest.mark.slow
def test_whole_images_are_cut_into_strips_and_a_strip_is_refused(
    dovetail: Any, write: Callable[..., Path], tmp_path: Path
) -> None:
    run = write(
        ("breast-cancer", "digits-images"),
        ("data_owners = { clinic = [\"mean *\"], lab = [\"worst *\"], registry = [\"* error\"] }",
         "data_owners = 4"),
        ("bottom = [8]\n", ""),
    )  # fmt: skip
    assert dovetail("train", run, "--out", "out", "-q", "--set", "fedoptimus.epochs=1").code == 0
    images, _ = dd.load("digits-images")
    assert isinstance(images.x, torch.Tensor)
    np.savez(tmp_path / "whole.npz", x=images.x[:9, 0].numpy(), y=images.labels.values[:9])
    np.savez(tmp_path / "strip.npz", x=images.x[:9, 0, :2].numpy(), y=images.labels.values[:9])
    done = dovetail("predict", "out", "whole.npz", "--json")
    assert json.loads(done.out)["answered"] == [f"data-{n}" for n in range(1, 5)]
    done = dovetail("predict", "out", "strip.npz")
    assert (done.code, "expected whole images" in done.err) == (2, True)


@pytest.mark.slow
def test_baselines_and_a_selection_stand_beside_it(
    dovetail: Any, write: Callable[..., Path], tmp_path: Path
) -> None:
    run = write(("evaluate_every", 'baselines = ["classic", "alone", "pooled"]\nevaluate_every'))
    settings = ("--set", "fedoptimus.selection={share=0.67, rows=40}")
    done = dovetail("train", run, "--out", "out", *settings)
    assert done.code == 0, done.err
    for title in ("classic vertical", "each label owner alone", "pooled (all columns"):
        assert title in done.out
    line = json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[0])
    assert len(line["participants"]) == 2
    assert len(load_run(tmp_path / "out" / "run.toml").baselines) == 3


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    dovetail: Any, write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dovetail.runs import RunFolder

    run = write()
    whole = dovetail("train", run, "--out", "whole", "-q")
    assert whole.code == 0, whole.err
    epoch = RunFolder.epoch

    def stop(self: RunFolder, variant: str, line: Any) -> None:
        epoch(self, variant, line)
        if line["round"] == 7:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "epoch", stop)
        assert dovetail("train", run, "--out", "stopped", "-q").code != 0
    assert dovetail("train", run, "--out", "stopped", "-q", "--resume").code == 0

    def lines(out: str) -> list[Any]:
        text = (tmp_path / out / "metrics.jsonl").read_text()
        every = [json.loads(line) for line in text.splitlines()]
        return [{key: line[key] for key in line if key != "seconds"} for line in every]

    assert lines("stopped") == lines("whole")
    for name in ("north", "south"):
        ends = [
            package.load(tmp_path / out / "models" / name).network.state_dict()
            for out in ("whole", "stopped")
        ]
        for key, value in ends[0].items():
            assert torch.equal(ends[1][key], value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("epochs = 6", "epochs = 6\nsync_every = 0"), "sync_every"),
        (("epochs = 6", "epochs = 6\nshare = 0.0"), "share"),
        (("epochs = 6", "epochs = 6\nshare = 1.5"), "share"),
        (("epochs = 6", "epochs = 6\nshare = 0.5\nselection = {}"), "give one of them"),
        (("epochs = 6", "epochs = 6\nvariants.elsewhere = {}"), "is no variant"),
        (("epochs = 6", "epochs = 6\nvariants.classic = { epochs = 0 }"), "variants.classic"),
        (('kind = "owners"', 'kind = "owner"'), "owners"),
        (("bottom = [8]", 'bottom = "strip-cnn"'), "columns take widths"),
        (('method = "fedoptimus"', 'method = "chfl"'), "not simulated on the partition 'owners'"),
    ],
)
def test_a_mistake_in_the_run_file_is_one_sentence(
    dovetail: Any, write: Callable[..., Path], change: tuple[str, str], words: str
) -> None:
    done = dovetail("train", write(change), "--out", "out")
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err


def test_inspect_says_that_it_fits(dovetail: Any, write: Callable[..., Path]) -> None:
    done = dovetail("inspect", write())
    assert done.code == 0, done.err
    assert "Recommended: FedOptimus" in done.out
    assert re.search(r"Next: dovetail train \S+run\.toml\n", done.out)  # its method already


def test_table_1_is_three_sets_by_seven_rows_and_a_table() -> None:
    cells = [f"table1.toml:{name}" for name in grid_cells(RUNS / "table1.toml")]
    assert len(cells) == 3 * 7
    for name in (*cells, "adult-4.toml"):
        run = load_run(RUNS / name)
        for recipe in run.recipes:
            load_run(RUNS / name, recipe=recipe)


# --- Parties with files of their own --------------------------------------------------------------

PARTIES_RUN = f"""{HERE}
[fedoptimus]
epochs = 6
batch_size = 16
optimizer = "adam"
learning_rate = 0.01
weight_decay = 0.01
embedding = 8
top = [8]
server = "average"
"""


@pytest.fixture
def parties(tmp_path: Path) -> Path:
    """Files of two label owners and two data owners, and a run file."""
    write_owners(tmp_path)
    (tmp_path / "parties.toml").write_text(PARTIES_RUN)
    return tmp_path


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = package.load(folder / "models" / name).network.state_dict()
    return state


@pytest.mark.trained
@pytest.mark.slow
def test_party_files_are_aligned_and_train(dovetail: Any, parties: Path) -> None:
    done = dovetail("train", "parties.toml", "--out", "out", "-q")
    assert done.code == 0, done.err
    result = json.loads((parties / "out" / "result.json").read_text())
    assert result["mean"]["accuracy"] > 0.8
    assert result["parties"].keys() == {"north", "south"}
    # An alignment numbers samples at random; what is learned does not depend on how.
    again = dovetail("train", "parties.toml", "--out", "again", "-q")
    assert again.code == 0, again.err
    for key, value in weights(parties / "out", "north").items():
        assert torch.equal(weights(parties / "again", "north")[key], value)


def test_an_owner_without_rows_of_a_shard_is_named(dovetail: Any, parties: Path) -> None:
    write_table(parties / "lab.csv", np.arange(400, 430), "worst *")
    done = dovetail("train", "parties.toml", "--out", "out")
    assert done.code == 2
    assert "data owner 'lab' has none of the 120 training samples of label owner" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("north.toml", '"align", ', "", "refuses 'align'"),
        ("clinic.toml", ', "fedoptimus"', "", "refuses 'fedoptimus'"),
        (
            "parties.toml",
            '"north.toml", "south.toml", ',
            "",
            "no party has a label; FedOptimus needs",
        ),
        ("parties.toml", ', "clinic.toml", "lab.toml"', "", "all have a label; FedOptimus needs"),
        ("parties.toml", "epochs = 6", "epochs = 6\nbottom = [8]", "in its party file"),
        ("parties.toml", "[fedoptimus]", "test = 0.2\n[fedoptimus]", "active and test are not for"),
        ("parties.toml", "evaluate", 'baselines = ["pooled"]\nevaluate', "labels in one place"),
    ],
)
def test_a_mistake_in_party_files_is_one_sentence(
    dovetail: Any, parties: Path, file: str, old: str, new: str, words: str
) -> None:
    text = (parties / file).read_text()
    assert old in text
    (parties / file).write_text(text.replace(old, new, 1))
    done = dovetail("train", "parties.toml", "--out", "out")
    assert done.code == 2
    assert words in done.err
