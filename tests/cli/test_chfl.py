"""``method = "chfl"``: simulated, and from party files; models, baselines, mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import dovetail as package
from dovetail import data as dd
from dovetail.files import grid_cells
from dovetail.methods.chfl.variant_settings import pool
from dovetail.models import Columns, load
from dovetail.runs import RunFolder
from dovetail.runs.runfile import load_run
from dovetail.runs.setup import load_data, setup

RUN = """
method = "chfl"
baselines = ["chfl-mu0", "common", "local", "fedprox", "simple", "pooled"]
evaluate_every = 0

[data]
source = "breast-cancer"
test = 0.25
partition = { kind = "common-unique", parties = 3, common = 0.2, validation = 0.25, seed = 1 }

[chfl]
widths = [8, 4]
rounds = 3
local_epochs = 1
batch_size = 16
learning_rate = 0.01
"""

PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "row"
label = "diagnosis"
[policy]
algorithms = ["chfl"]
{more}
"""


def result(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())


def lines(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path / "run.toml"


@pytest.fixture
def party_files(tmp_path: Path) -> Path:
    """Three clinics with other patients, some columns in common; a run of theirs."""
    pooled, _ = dd.load("breast-cancer")
    assert isinstance(pooled.x, dd.Table)
    for index, (name, private) in enumerate(
        {"north": "worst area", "south": "worst texture", "east": "worst radius"}.items()
    ):
        part = pooled.take(np.arange(index, pooled.num_rows, 3))
        assert isinstance(part.x, dd.Table)
        names = [*part.x.select(["mean *"]), private]
        dd.write_table(
            tmp_path / f"{name}.csv",
            {
                "row": part.ids,
                "diagnosis": part.labels.values,
                **{column: part.x.column(column).values for column in names},
            },
        )
        more = '[chfl]\ncommon = ["mean *"]\n'
        (tmp_path / f"{name}.toml").write_text(PARTY.format(name=name, more=more))
    text = RUN[: RUN.index("[data]")] + RUN[RUN.index("[chfl]") :]
    text = text.replace(', "pooled"', "").replace(
        "[chfl]", 'parties = ["north.toml", "south.toml", "east.toml"]\n[chfl]'
    )
    (tmp_path / "parties.toml").write_text(text)
    return tmp_path / "parties.toml"


# --- Simulated ---------------------------------------------------------------------------------


@pytest.mark.trained
@pytest.mark.slow
def test_a_run_scores_every_party_and_its_baselines(dovetail: Any, run_file: Path) -> None:
    done = dovetail("train", "run.toml")
    assert (done.code, "CHFL, predicts alone: mean of 3 parties" in done.out) == (0, True), done.err
    outcome = result(run_file.parent / "out" / "run")
    assert outcome["parties"].keys() == {"party-1", "party-2", "party-3"}
    accuracies = [each["accuracy"] for each in outcome["parties"].values()]
    assert outcome["mean"]["accuracy"] == pytest.approx(sum(accuracies) / 3)
    assert outcome["baselines"].keys() == {
        "chfl-mu0", "common", "local", "fedprox", "simple", "pooled",
    }  # fmt: skip
    assert all(each["accuracy"] > 0.6 for each in (outcome["mean"], *outcome["baselines"].values()))


@pytest.mark.trained
def test_a_model_predicts_from_its_partys_raw_columns(dovetail: Any, run_file: Path) -> None:
    dovetail("train", "run.toml", "-q", "--set", "baselines=[]")
    out = run_file.parent / "out" / "run"
    model = package.load(out / "models" / "party-2")
    encoder = model.inputs["columns"]
    assert isinstance(encoder, dd.TableEncoder)
    pooled, _ = dd.load("breast-cancer")
    assert isinstance(pooled.x, dd.Table)
    columns = {name: pooled.x.column(name).values for name in encoder.columns}
    assert len(columns) == 6 + 8  # a fifth of 30 columns, and a third of the rest
    dd.write_table(run_file.parent / "all.csv", {"diagnosis": pooled.labels.values, **columns})
    done = dovetail("predict", out / "models" / "party-2", "all.csv", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["scores"]["accuracy"] > 0.6
    assert model.about["method"] == "chfl"
    assert model.about["label"] == "diagnosis"


def test_rounds_are_told_with_validation_and_the_best_so_far(dovetail: Any, run_file: Path) -> None:
    dovetail("train", "run.toml", "-q", "--set", 'baselines=["local"]', "--set", "evaluate_every=2")
    all_lines = lines(run_file.parent / "out" / "run")
    assert [(line["variant"], line["round"]) for line in all_lines] == [
        (variant, number) for variant in ("chfl", "local") for number in (1, 2, 3)
    ]
    for round_lines in (all_lines[:3], all_lines[3:]):
        assert all("validation" in line for line in round_lines)
        losses = [line["validation_loss"] for line in round_lines]
        assert round_lines[-1]["best"] == 1 + losses.index(min(losses))
        assert ["accuracy" in line for line in round_lines] == [False, True, True]


def test_scores_are_of_the_round_that_validation_chose(dovetail: Any, run_file: Path) -> None:
    dovetail("train", "run.toml", "-q", "--set", "baselines=[]", "--set", "evaluate_every=1")
    out = run_file.parent / "out" / "run"
    best = lines(out)[-1]["best"]
    assert result(out)["mean"]["accuracy"] == lines(out)[best - 1]["accuracy"]


def ledger(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_all_stages_but_learning_alone_send_weights(dovetail: Any, run_file: Path) -> None:
    dovetail("train", "run.toml", "-q")
    weights = {
        (line["variant"], line["from"])
        for line in ledger(run_file.parent / "out" / "run")
        if line["message"] == "chfl.Trained" and line["bytes"]
    }
    sending = ("chfl", "chfl-mu0", "common", "fedprox", "simple")
    assert weights == {(variant, f"party-{k}") for variant in sending for k in (1, 2, 3)}


@pytest.mark.slow
def test_the_common_column_is_the_same_in_the_method_and_in_its_baseline(
    dovetail: Any, run_file: Path
) -> None:
    dovetail("train", "run.toml", "-q", "--set", "baselines=[]", "--set", 'chfl.choose="last"')
    ours = package.load(run_file.parent / "out" / "run" / "models" / "party-1").network
    assert isinstance(ours, Columns)
    dovetail(
        "train", "run.toml", "-q", "--set", "baselines=[]", "--set", 'chfl.choose="last"',
        "--set", "method=common", "--out", "common",
    )  # fmt: skip
    theirs = package.load(run_file.parent / "common" / "models" / "party-1").network
    assert isinstance(theirs, Columns)
    weights = theirs.common.state_dict()
    for name, value in ours.common.state_dict().items():
        assert torch.equal(value, weights[name])


@pytest.mark.slow
def test_masked_sums_give_what_plain_ones_give(dovetail: Any, run_file: Path) -> None:
    for secure in ("false", "true"):
        dovetail(
            "train", "run.toml", "-q", "--set", "baselines=[]", "--set", f"chfl.secure={secure}",
            "--out", secure,
        )  # fmt: skip
    plain, masked = (result(run_file.parent / name) for name in ("false", "true"))
    assert masked["mean"]["accuracy"] == pytest.approx(plain["mean"]["accuracy"], abs=0.02)
    sent = {
        name: {line["message"]: line["bytes"] for line in ledger(run_file.parent / name)}
        for name in ("false", "true")
    }
    assert "chfl.Share" not in sent["false"]
    assert sent["true"]["chfl.Share"] == 2 * sent["false"]["chfl.Trained"]  # int64, not float32
    assert sent["true"]["chfl.Trained"] == 0


def test_a_part_of_the_parties_trains_in_each_round(dovetail: Any, run_file: Path) -> None:
    dovetail("train", "run.toml", "-q", "--set", "baselines=[]", "--set", "chfl.participation=0.34")
    out = run_file.parent / "out" / "run"
    sent = [line["count"] for line in ledger(out) if line["message"] == "chfl.Trained"]
    assert sum(sent) == 3  # one party in each of three rounds
    assert result(out)["missed"] == {}


# --- Chosen on validation rows -----------------------------------------------------------------

SEARCH = ("--set", "chfl.search.mu=[0.25, 1.0]", "--set", "chfl.search.learning_rate=[0.01]")


@pytest.mark.slow
def test_a_search_logs_what_it_tried_and_trains_with_the_best(
    dovetail: Any, run_file: Path
) -> None:
    dovetail("train", "run.toml", "-q", "--set", 'baselines=["chfl-mu0"]', *SEARCH)
    round_lines = lines(run_file.parent / "out" / "run")
    tried = {
        line["trial"]["mu"]: line["validation_loss"]
        for line in round_lines
        if "mu" in line.get("trial", ())
    }
    assert tried.keys() == {0.25, 1.0}
    chosen = {line["variant"]: line["chosen"] for line in round_lines if "chosen" in line}
    assert tried[chosen["chfl"]["mu"]] == min(tried.values())
    assert chosen["chfl-mu0"] == {"learning_rate": 0.01}  # mu does not matter there
    model = package.load(run_file.parent / "out" / "run" / "models" / "party-1")
    assert model.about["mu"] == chosen["chfl"]["mu"]


@pytest.mark.slow
def test_with_a_seed_of_its_own_the_search_is_done_once_for_all_seeds(
    dovetail: Any, run_file: Path
) -> None:
    dovetail(
        "train", "run.toml", "-q", "--set", "baselines=[]", *SEARCH, "--set", "chfl.search.seed=0",
        "--seed", 4, "--seed", 5,
    )  # fmt: skip
    first, second = (lines(run_file.parent / "out" / "run" / f"seed-{seed}") for seed in (4, 5))
    assert sum("trial" in line for line in first) == 2
    assert sum("trial" in line for line in second) == 0
    one, other = (
        next(line["chosen"] for line in rounds if "chosen" in line) for rounds in (first, second)
    )
    assert one == other


@pytest.mark.slow
def test_what_a_stage_is_given_is_not_searched(dovetail: Any, run_file: Path) -> None:
    dovetail(
        "train", "run.toml", "-q", "--set", 'baselines=["local"]', *SEARCH,
        "--set", "chfl.variants.chfl.mu=0.5", "--set", "chfl.variants.chfl.learning_rate=0.02",
    )  # fmt: skip
    out = run_file.parent / "out" / "run"
    assert {line["variant"] for line in lines(out) if "trial" in line} == {"local"}
    about = package.load(out / "models" / "party-1").about
    assert (about["mu"], about["learning_rate"]) == (0.5, 0.02)


# --- Resumed -----------------------------------------------------------------------------------


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_seconds(each) for key, each in value.items() if key != "seconds"}
    return value


@pytest.mark.slow
def test_a_stopped_run_resumes_as_if_it_had_not(
    dovetail: Any, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("-q", "--set", 'baselines=["local"]', *SEARCH)
    assert dovetail("train", "run.toml", *options, "--out", "whole").code == 0
    epoch = RunFolder.epoch

    def interrupted(self: RunFolder, variant: str, line: Any) -> None:
        epoch(self, variant, line)
        if len(lines(stopped)) == num_lines:
            raise KeyboardInterrupt

    whole, stopped = run_file.parent / "whole", run_file.parent / "stopped"
    expected_lines = [without_seconds(line) for line in lines(whole)]
    train, resumed = ("train", "run.toml", *options, "--out", "stopped"), []
    for num_lines in (1, 4, 7):  # one run, stopped again and again
        with monkeypatch.context() as patched:
            patched.setattr(RunFolder, "epoch", interrupted)
            assert dovetail(*train, *resumed).code == 130
        assert [without_seconds(line) for line in lines(stopped)] == expected_lines[:num_lines]
        resumed = ["--resume"]
    assert dovetail(*train, *resumed).code == 0
    assert [without_seconds(line) for line in lines(stopped)] == expected_lines
    assert result(stopped)["parties"] == result(whole)["parties"]
    for party in ("party-1", "party-2", "party-3"):
        name = Path("models") / party / "model.safetensors"
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()


# --- Party files -------------------------------------------------------------------------------


@pytest.mark.trained
def test_party_files_train_on_the_columns_that_all_offer(dovetail: Any, party_files: Path) -> None:
    done = dovetail("train", "parties.toml", "-q", "--set", "baselines=[]")
    assert done.code == 0, done.err
    out = party_files.parent / "out" / "parties"
    outcome = result(out)
    assert outcome["parties"].keys() == {"north", "south", "east"}
    assert outcome["mean"]["accuracy"] > 0.6
    encoders = [
        package.load(out / "models" / name).inputs["columns"] for name in ("north", "south")
    ]
    north, south = (each.to_json()["columns"] for each in encoders)
    histograms = [[column.pop("seen") for column in columns] for columns in (north, south)]
    for column in (*north, *south):
        del column["limits"]  # of values that no other row is near: each party's own rows say them
    assert north[:10] == south[:10]  # common columns are encoded alike
    # What training rows had of a column is each party's own: none has the other's.
    assert all(
        one != other for one, other in zip(*(columns[:10] for columns in histograms), strict=True)
    )
    assert (north[10]["name"], south[10]["name"]) == ("worst area", "worst texture")
    done = dovetail("predict", out / "models" / "north", "north.csv", "-q", "--out", "said.csv")
    assert done.code == 0, done.err


def test_what_is_common_is_what_all_files_offer(dovetail: Any, party_files: Path) -> None:
    text = (party_files.parent / "east.toml").read_text()
    (party_files.parent / "east.toml").write_text(text.replace("mean *", "mean ar*"))
    dovetail("train", "parties.toml", "-q", "--set", "baselines=[]")
    model = package.load(party_files.parent / "out" / "parties" / "models" / "north")
    assert isinstance(model.network, Columns)
    assert len(model.network.common_indices) == 1  # "mean area" alone
    assert len(model.network.unique_indices) == 10


def test_inspect_says_that_it_fits(dovetail: Any, party_files: Path) -> None:
    done = dovetail("inspect", "north.toml", "south.toml", "east.toml", "--json")
    fits = {fit["method"]: fit for fit in json.loads(done.out)["methods"]}
    assert fits["chfl"]["applies"]
    assert fits["chfl"]["next_command"] == "dovetail train RUN --set method=chfl"


def test_inspect_reads_a_simulated_run(dovetail: Any, run_file: Path) -> None:
    done = dovetail("inspect", "run.toml", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["recommended"] == "chfl"


# --- Mistakes ----------------------------------------------------------------------------------


def refused(done: Any) -> str:
    assert (done.code, done.out) == (2, ""), done
    *warnings, why = done.err.splitlines()
    assert all(line.startswith("dovetail: WARNING: ") for line in warnings), done.err
    return str(why)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("chfl.mu=1.5", "chfl.mu: input should be less than or equal to 1"),
        ("chfl.mu=-0.1", "chfl.mu: input should be greater than or equal to 0"),
        ("chfl.search.mu=[0.5, 2.0]", "[chfl.search]: mu"),
        ("chfl.variants.chfl.mu=7", "[chfl.variants.chfl]: mu"),
        (
            "chfl.variants.chfll.mu=0.5",
            "[chfl.variants.chfll] is no variant; there are chfl, chfl-mu0",
        ),
        ('chfl.method="common"', "leave method out here"),
        ("data.partition.common=0", "partition"),
        ("data.partition.parties=600", "too few for 600 parties"),
        ('baselines=["tvfl"]', "'tvfl' is no baseline beside 'chfl'"),
    ],
)
def test_a_setting_that_cannot_be_is_told_in_a_sentence(
    dovetail: Any, run_file: Path, setting: str, words: str
) -> None:
    assert words in refused(dovetail("train", "run.toml", "-q", "--set", setting))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_party_files_without_a_common_column_are_told(dovetail: Any, party_files: Path) -> None:
    change(party_files.parent / "east.toml", "mean *", "worst *")
    words = "the members have no common column (Eq. 4): 'north' offers ['mean radius'"
    assert words in refused(dovetail("train", "parties.toml", "-q"))


def test_label_sets_that_differ_are_told(dovetail: Any, party_files: Path) -> None:
    change(party_files.parent / "south.csv", "benign", "harmless")
    words = "all members need one label set (Eq. 3)"
    assert words in refused(dovetail("train", "parties.toml", "-q"))


def test_a_common_column_of_another_type_is_told(dovetail: Any, party_files: Path) -> None:
    change(
        party_files.parent / "east.toml", 'id = "row"', 'id = "row"\ncategorical = ["mean area"]'
    )
    words = "the common column 'mean area' holds numbers at 'north' but categories at 'east'"
    assert words in refused(dovetail("train", "parties.toml", "-q"))


def test_a_party_with_fewer_rows_than_a_batch_takes_part(dovetail: Any, party_files: Path) -> None:
    done = dovetail("train", "parties.toml", "-q", "--out", "out", "--set", "chfl.batch_size=120")
    assert done.code == 0, done.err
    assert (party_files.parent / "out" / "models" / "north").is_dir()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('algorithms = ["chfl"]', 'algorithms = ["align"]', "refuses 'chfl': its policy allows"),
        ('label = "diagnosis"', "", "party 'north' has no labels, which CHFL needs at every party"),
        (
            'id = "row"',
            'id = "row"\ntask = "regression"',
            "the label of 'north' is of regression, that",
        ),
        ("mean *", "mena *", "mena *"),
        (
            "[chfl]",
            "[chfl]\ntest_share = 0.999",
            "labelled rows of party 'north' with test_share = 0.999",
        ),
        (
            "[chfl]",
            "[chfl]\nvalidation_share = 1.5",
            "chfl.validation_share: input should be less than 1",
        ),
    ],
)
def test_a_party_file_that_does_not_fit_is_named(
    dovetail: Any, party_files: Path, old: str, new: str, words: str
) -> None:
    change(party_files.parent / "north.toml", old, new)
    if "regression" in new:
        change(party_files.parent / "north.csv", "benign", "1.0")
        change(party_files.parent / "north.csv", "malignant", "2.0")
    assert words in refused(dovetail("train", "parties.toml", "-q"))


def test_rows_of_party_files_are_not_pooled(dovetail: Any, party_files: Path) -> None:
    words = "'pooled' needs everybody's rows in one place; leave it out"
    assert words in refused(
        dovetail("train", "parties.toml", "-q", "--set", 'baselines=["pooled"]')
    )


# --- Parts -------------------------------------------------------------------------------------


def test_pooled_rows_are_everybodys_with_the_common_columns_only(run_file: Path) -> None:
    run = load_run(run_file)
    task = setup(run, 0, load_data(run))
    party_data = list(task.party_data.values())
    rows = pool(task.party_data)
    assert rows.train.num_rows == sum(local_data.train.num_rows for local_data in party_data)
    assert tuple(rows.table.names) == tuple(rows.common) == tuple(party_data[0].common)


# --- Run files that ship -----------------------------------------------------------------------

RUNS = Path(__file__).parents[2] / "runs" / "chfl"


def test_every_cell_of_the_tables_is_valid() -> None:
    names = grid_cells(RUNS / "tables.toml")
    assert len(names) == 12
    for name in names:
        assert load_run(RUNS / f"tables.toml:{name}").method == "chfl"


# --- Four hospitals ----------------------------------------------------------------------------

HEART = Path(__file__).parents[2] / "examples" / "heart"


def test_four_hospitals_train_from_their_own_files(dovetail: Any, tmp_path: Path) -> None:
    quick = ("--set", "baselines=[]", "--set", "chfl.rounds=1", "--set", "chfl.local_epochs=1")
    done = dovetail("train", HEART / "run.toml", "--out", "run", *quick)
    assert done.code == 0, done.err
    models = [load(tmp_path / "run" / "models" / name) for name in ("cleveland", "long-beach")]
    held = [model.inputs["columns"].columns for model in models]
    assert set(held[0]) - set(held[1]) == {"slope", "ca", "thal"}
    model = tmp_path / "run" / "models" / "budapest"
    predicted = dovetail("predict", model, HEART / "budapest.csv", "-q", "--out", "said.csv")
    assert predicted.code == 0, predicted.err


@pytest.mark.slow
def test_a_table_that_says_whose_rows_are_trains_with_both_methods(
    dovetail: Any, tmp_path: Path
) -> None:
    names = ("cleveland", "budapest", "switzerland")
    frames = [pd.read_csv(HEART / f"{name}.csv").assign(hospital=name) for name in names]
    pd.concat(frames).to_csv(tmp_path / "patients.csv", index=False)
    for method, baselines in (
        ("chfl", '["common", "linear", "pooled"]'),
        ("hyfem", '["standalone"]'),
    ):
        (tmp_path / "run.toml").write_text(f"""
method = "{method}"
baselines = {baselines}
evaluate_every = 0
[data]
source = "patients.csv"
id = "patient"
label = "disease"
test = 0.4
categorical = ["cp", "restecg", "slope", "thal"]
[data.partition]
kind = "by-column"
column = "hospital"
parties = ["cleveland", "budapest", "switzerland"]
rows.budapest = 20
[{method}]
rounds = 1
batch_size = 8
""")
        done = dovetail("train", "run.toml", "--out", method)
        assert done.code == 0, done.err
        result = json.loads((tmp_path / method / "result.json").read_text())
        assert list(result["parties"]) == list(names)
    blocks = load(tmp_path / "hyfem" / "models" / "budapest").spec.blocks
    assert set(blocks) == {"common", "cleveland-budapest"}
