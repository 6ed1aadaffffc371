"""``method = "hyfem"``: simulated, and from party files; models, baselines, mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import dovetail as package
from dovetail import data as dd
from dovetail.errors import ConfigError
from dovetail.federated import Local, train
from dovetail.files import grid_cells
from dovetail.methods import hyfem
from dovetail.methods.hyfem.sections import extractors_of, run_extractors, widths_of
from dovetail.models import Perceptron
from dovetail.models.blocks import SmallCnn, Unchanged
from dovetail.network import Checkpoint, InProcess
from dovetail.runs import RunFolder
from dovetail.runs.runfile import load_run
from dovetail.runs.setup import load_data, setup

ASSIGNMENT = """\
party,blocks,classes
north,1 2,1-6
south,1 3,5-10
east,1 2 4,3-8
"""

RUN = """
method = "hyfem"
baselines = ["standalone", "pooled", "fedavg", "fedprox", "fedper"]
evaluate_every = 2

[data]
source = "digits-images"
test = 0.25
rows = 600
partition = { kind = "blocks", blocks = "quadrants", assignment = "who.csv" }

[hyfem]
rounds = 3
local_steps = 2
batch_size = 16
learning_rate = 0.1
widths = { "*" = [8], east = [6] }

[hyfem.extractors]
"*" = { kind = "small-cnn", channels = [4] }
bottom-right = "unchanged"
"""

#: Columns in groups; a party holds two of three.
GROUPS = {"size": ["* area", "* radius"], "looks": ["* texture"], "shape": ["* symmetry"]}
HELD = {"north": ("size", "looks"), "south": ("looks", "shape"), "east": ("size", "shape")}

PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "row"
label = "diagnosis"
{blocks}
[policy]
algorithms = ["hyfem"]
[hyfem]
widths = [5]
classes = ["benign", "malignant"]
{more}
"""

PARTY_RUN = """
method = "hyfem"
baselines = ["standalone", "fedper"]
parties = ["north.toml", "south.toml", "east.toml"]
[hyfem]
rounds = 4
local_steps = 4
batch_size = 16
learning_rate = 0.2
[hyfem.extractors]
"*" = [4]
"""


def result(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())


def lines(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def refused(done: Any) -> str:
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    return str(done.err)


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "who.csv").write_text(ASSIGNMENT)
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path / "run.toml"


@pytest.fixture
def party_files(tmp_path: Path) -> Path:
    """Three clinics with other patients and other groups of columns; a run of theirs."""
    pooled, _ = dd.load("breast-cancer")
    assert isinstance(pooled.x, dd.Table)
    for index, (name, held) in enumerate(HELD.items()):
        part = pooled.take(np.arange(index, pooled.num_rows, 3))
        assert isinstance(part.x, dd.Table)
        columns = {
            column: part.x.column(column).values
            for block in held
            for column in part.x.select(GROUPS[block])
        }
        dd.write_table(
            tmp_path / f"{name}.csv", {"row": part.ids, "diagnosis": part.labels.values, **columns}
        )
        blocks = "".join(f"blocks.{block} = {json.dumps(GROUPS[block])}\n" for block in held)
        (tmp_path / f"{name}.toml").write_text(PARTY.format(name=name, blocks=blocks, more=""))
    (tmp_path / "parties.toml").write_text(PARTY_RUN)
    return tmp_path / "parties.toml"


# --- Simulated -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_parties_and_server_have_scores_and_models_and_baselines_stand_beside(
    dovetail: Any, run_file: Path, tmp_path: Path
) -> None:
    done = dovetail("train", run_file, "--out", "run")
    assert done.code == 0, done.err
    assert "HyFEM, the server's model (all blocks)" in done.out
    outcome = result(tmp_path / "run")
    assert set(outcome["parties"]) == {"north", "south", "east"}
    mean = sum(each["accuracy"] for each in outcome["parties"].values()) / 3
    assert outcome["mean"]["accuracy"] == pytest.approx(mean)  # without the server
    variants = {"standalone", "pooled", "fedavg", "fedprox", "fedper"}
    assert set(outcome["baselines"]) == {"server", *variants}
    models = {folder.name for folder in (tmp_path / "run" / "models").iterdir()}
    assert models == {"north", "south", "east", "server"}
    round_lines = [line for line in lines(tmp_path / "run") if line["variant"] == "hyfem"]
    assert ["server" in line for line in round_lines] == [False, True, True]
    # A line has the few scores that are told as training goes on; the last are the result's.
    kept = {
        "server": outcome["variants"]["hyfem"]["scores"]["server"]["server"],
        **outcome["parties"],
    }
    ended = {"server": round_lines[-1]["server"], **round_lines[-1]["parties"]}
    assert ended.keys() == kept.keys()
    for name, scores in ended.items():
        assert scores.keys() == {"accuracy", "log_loss"}
        assert scores == {score: kept[name][score] for score in scores}


@pytest.mark.slow
def test_what_leaves_a_party_is_its_weights_and_alone_nothing_leaves(
    dovetail: Any, run_file: Path, tmp_path: Path
) -> None:
    assert dovetail("train", run_file, "--out", "run", "-q").code == 0
    text = (tmp_path / "run" / "ledger.jsonl").read_text()
    ledger = [json.loads(line) for line in text.splitlines()]
    for variant in ("hyfem", "fedavg", "fedprox", "fedper"):
        left = {
            line["message"]: line["count"]
            for line in ledger
            if line["variant"] == variant and line["from"] == "north"
            if line["message"].startswith("hyfem.")
        }
        each_round = ("Trained",) if variant == "fedper" else ("Trained", "Validated")
        assert left == {
            **{f"hyfem.{name}": 1 for name in ("Holding", "Ready", "Finished")},
            **{f"hyfem.{name}": 3 for name in each_round},
        }
    assert not {"standalone", "pooled"} & {line["variant"] for line in ledger}


@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("fedma", {"start": '"own"', "extractors": '{ "*" = "unchanged" }'}),
        ("lg-fedavg", {"weights": '"even"', "mu_1": 0.1, "mu_2": 0.1, "restart": "false",
                       "match_rounds": 0, "variants": '{ lg-fedavg = { proximal = 0.1 } }'}),
    ],
)  # fmt: skip
def test_remark_3_s_methods_by_name_are_hyfem_with_its_settings(
    dovetail: Any, run_file: Path, tmp_path: Path, method: str, keys: dict[str, object]
) -> None:
    given = {"widths": [8], **keys}
    lines = "".join(f"{key} = {value}\n" for key, value in given.items())
    head, _ = RUN.split("[hyfem]")
    text = head.replace('["standalone", "pooled", "fedavg", "fedprox", "fedper"]', "[]")
    text += f"[hyfem]\nrounds = 2\nlocal_steps = 2\nbatch_size = 16\n{lines}"
    weights = {}
    for name in ("hyfem", method):
        run_file.write_text(text.replace('"hyfem"', f'"{name}"'))
        done = dovetail("train", run_file, "--out", name, "-q")
        assert done.code == 0, done.err
        weights[name] = load_file(tmp_path / name / "models" / "north" / "model.safetensors")
    assert weights["hyfem"].keys() == weights[method].keys()
    for key, value in weights["hyfem"].items():
        assert torch.equal(value, weights[method][key]), key


def test_every_models_prediction_needs_only_the_blocks_there_are(
    dovetail: Any, run_file: Path, tmp_path: Path
) -> None:
    assert dovetail("train", run_file, "--out", "run", "-q", "--set", "baselines=[]").code == 0
    train, _ = dd.load("digits-images")
    assert isinstance(train.x, torch.Tensor)
    images = (train.x[:5, 0] * 255).to(torch.uint8).numpy()
    np.savez(tmp_path / "five.npz", x_test=images, y_test=train.labels.values[:5],
             x_train=images, y_train=train.labels.values[:5])  # fmt: skip
    for name in ("server", "north"):
        done = dovetail("predict", f"run/models/{name}", "five.npz", "--out", f"{name}.csv")
        assert done.code == 0, done.err
        assert len((tmp_path / f"{name}.csv").read_text().splitlines()) == 6
    server = package.load(tmp_path / "run" / "models" / "server")
    corner = server.inputs["top-left"].transform(torch.from_numpy(images[:, None]))
    assert server.predictions({"top-left": corner}).values.shape == (5,)


def test_the_server_is_scored_on_all_blocks_and_a_party_on_its_own(run_file: Path) -> None:
    run = load_run(run_file, overrides=("baselines=[]",))
    data = load_data(run)
    task = setup(run, 0, data)
    assert isinstance(data.data, dd.Blocks)
    outcome = task.train("hyfem", 0, lambda *_: None)
    test = data.data.pooled_test
    assert test is not None
    assert test.labels is not None
    for name, stage_name in (("server", "server"), ("east", "hyfem")):
        model = outcome.models[name]
        outputs = model.outputs({block: test.blocks[block] for block in model.shapes})
        accuracy = (outputs.argmax(dim=1) == test.labels).double().mean().item()
        assert outcome.scores[stage_name][name]["accuracy"] == accuracy
    assert set(outcome.models["server"].shapes) == set(test.blocks)


def test_standalone_is_training_with_a_coordinator_of_ones_own(run_file: Path) -> None:
    run = load_run(run_file)
    task = setup(run, 0, load_data(run))
    outcome = task.train("standalone", 0, lambda *_: None)
    settings = task.kind.variant("standalone").settings(
        task, "standalone", 0, lambda *_: None, Checkpoint.none()
    )
    of_block = run_extractors(task.settings, task.party_data, task.loaded.data)
    for name, local_data in task.party_data.items():
        member = hyfem.Member(local_data, Local(name))
        extractors = {block: of_block[block] for block in local_data.blocks}
        server = hyfem.Coordinator(local_data.task, extractors, settings, seed=0)
        list(train(server, InProcess({name: member}, driver="server")))
        for key, value in member.model().network.state_dict().items():
            assert torch.equal(outcome.models[name].network.state_dict()[key], value)


@pytest.mark.slow
def test_the_folders_run_file_has_the_assignment_in_it(
    dovetail: Any, run_file: Path, tmp_path: Path
) -> None:
    settings = ("--set", "baselines=[]")
    assert dovetail("train", run_file, "--out", "run", "-q", *settings).code == 0
    (tmp_path / "who.csv").unlink()
    assert dovetail("train", "run/run.toml", "--out", "again", "-q").code == 0
    assert result(tmp_path / "again")["parties"] == result(tmp_path / "run")["parties"]


@pytest.mark.slow
def test_a_run_stopped_in_any_stage_resumes_as_if_it_had_not(
    dovetail: Any, run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("--set", "hyfem.momentum=0.5", "--set", "hyfem.restart=false")
    assert dovetail("train", run_file, "--out", "whole", "-q", *settings).code == 0
    log_epoch = RunFolder.epoch

    def interrupted(self: RunFolder, variant: str, line: Any) -> None:
        log_epoch(self, variant, line)
        if len(lines(tmp_path / "stopped")) == num_lines:
            raise KeyboardInterrupt

    def timeless(folder: Path) -> list[Any]:
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines(folder)]

    def kept(folder: Path) -> Any:
        outcome, ledger = result(folder), (folder / "ledger.jsonl").read_text()
        return timeless(folder), outcome["parties"], outcome["baselines"], ledger

    train, resumed = ("train", run_file, "--out", "stopped", "-q", *settings), []
    for num_lines in (2, 3, 5, 8, 17):  # one run, stopped again and again
        with monkeypatch.context() as patched:
            patched.setattr(RunFolder, "epoch", interrupted)
            assert dovetail(*train, *resumed).code != 0
        assert timeless(tmp_path / "stopped") == timeless(tmp_path / "whole")[:num_lines]
        resumed = ["--resume"]
    done = dovetail(*train, *resumed)
    assert done.code == 0, done.err
    assert kept(tmp_path / "stopped") == kept(tmp_path / "whole")
    for name in ("north", "server"):
        one, two = (
            package.load(tmp_path / folder / "models" / name).network.state_dict()
            for folder in ("stopped", "whole")
        )
        assert all(torch.equal(one[key], two[key]) for key in two)


def test_inspect_says_that_it_fits(dovetail: Any, run_file: Path) -> None:
    done = dovetail("inspect", run_file)
    assert done.code == 0, done.err
    assert "Recommended: HyFEM" in done.out
    assert "top-left" in done.out


RUNS = Path(__file__).parents[2] / "runs" / "hyfem"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("{width = 16}", "the key 'hyfem.extractors.top.kind' is missing"),
        (
            '{kind = "small-cnn", width = 16}',
            "unknown key 'hyfem.extractors.top.width'; "
            "known keys: kind, channels, kernel, pool, centred",
        ),
        (
            '{kind = "resnet-18", widht = 16}',
            "unknown key 'hyfem.extractors.top.widht'; did you mean 'width'?",
        ),
    ],
)
def test_a_key_of_another_extractor_is_never_suggested_as_itself(
    dovetail: Any, run_file: Path, fields: str, words: str
) -> None:
    done = dovetail(
        "train", run_file, "--out", "run", "--set", f'hyfem.extractors={{"top"={fields}}}'
    )
    assert (done.code, done.out) == (2, "")
    assert words in done.err


def test_the_run_files_that_ship_are_valid() -> None:
    cells = [f"figures.toml:{name}" for name in grid_cells(RUNS / "figures.toml")]
    assert len(cells) == 6
    for name in (*cells, "covertype-4.toml"):
        for recipe in (None, *load_run(RUNS / name).recipes):
            run = load_run(RUNS / name, recipe=recipe)
            assert run.data is not None
            assert len(run.data.partition.party_names()) == (9 if "-12" in name else 6)


def test_remark_3_runs_with_one_rate_and_schedule_for_all() -> None:
    runs = [
        load_run(RUNS / f"one-block.toml:{name}") for name in grid_cells(RUNS / "one-block.toml")
    ]
    assert (
        len({(run.hyfem.learning_rate, run.hyfem.schedule, run.hyfem.rounds) for run in runs}) == 1
    )
    assert not any(run.recipes for run in runs)


@pytest.mark.parametrize(
    "file",
    [file for file in sorted(RUNS.glob("*.toml")) if file.name != "one-block.toml"],
    ids=lambda file: file.name,
)
def test_the_papers_recipe_has_its_regularisers_and_a_constant_rate(file: Path) -> None:
    for name in grid_cells(file) or [""]:
        run = load_run(file.with_name(f"{file.name}:{name}" if name else file.name), recipe="paper")
        settings = run.hyfem
        assert min(settings.mu_1, settings.mu_2) > 0  # Eq. (4) to (6)
        assert (settings.schedule, settings.momentum, settings.restart) == ("constant", 0.0, True)
        beside = (settings.calibrate, settings.scale_blocks, settings.class_weights)
        assert beside == (False, False, False)
        assert settings.average_last == 1


# --- Settings ------------------------------------------------------------------------------------


def test_extractors_and_widths_are_chosen_by_name(run_file: Path) -> None:
    section = load_run(run_file).hyfem
    shapes = {"bottom-right": (1, 4, 4), "top-left": (1, 4, 4)}
    extractors = extractors_of(section, shapes, where="here")
    assert extractors == {"bottom-right": Unchanged(), "top-left": SmallCnn((4,))}
    assert widths_of(section, ["north", "east"], where="here") == {"north": (8,), "east": (6,)}
    with pytest.raises(ConfigError, match="names 'east', which is no party of this run"):
        widths_of(section, ["north"], where="here")
    few = section.model_copy(update={"widths": {"east": (6,)}})
    with pytest.raises(ConfigError, match="names no widths for party 'north'"):
        widths_of(few, ["north", "east"], where="here")
    several = section.model_copy(update={"extractors": {"*": (1,), "ag*": (2,), "a*": (3,)}})
    extractors = extractors_of(several, {"age": (2,), "art": (2,), "job": (2,)}, where="here")
    assert extractors == {"age": Perceptron((2,)), "art": Perceptron((3,)), "job": Perceptron((1,))}
    usual = section.model_copy(update={"extractors": {}})
    assert extractors_of(usual, {"age": (2,)}, where="here")["age"].to_json()["widths"] == [32]
    plain = section.model_copy(update={"extractors": {"age": "unchanged"}})
    assert extractors_of(plain, {"age": (2,)}, where="here") == {"age": Unchanged()}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('hyfem.extractors={elbow="small-cnn"}', "names 'elbow', but the blocks are ['top-left'"),
        ('hyfem.extractors={"*"={kind="small-cnn",kernel=2}}', "kernel is odd, got 2"),
        ("hyfem.widths={nobody=[8]}", "names 'nobody', which is no party"),
        ("hyfem.widths={east=[8,8],'*'=[8]}", "all need the same depth"),
        ("hyfem.width=2", "hidden layer 1 of the server must have at least 8 neurons"),
        ("hyfem.variants.hyfem.rounds=0", "[hyfem.variants.hyfem]: rounds: "),
        ("hyfem.variants.guess.rounds=1", "[hyfem.variants.guess] is no variant; there are hyfem"),
        ("hyfem.classes=[1,2]", "in simulation the data say"),
        ('baselines=["chfl"]', "'chfl' is no baseline beside 'hyfem'"),
        ('data.partition.assignment="where.csv"', "cannot read the assignment"),
        ('data.partition.blocks="halves"', "quadrants"),
        ('data.task="regression"', "labels of classification, not regression"),
    ],
)
def test_a_setting_that_cannot_be_is_told_in_a_sentence(
    dovetail: Any, run_file: Path, setting: str, words: str
) -> None:
    assert words in refused(dovetail("train", run_file, "-q", "--set", setting))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("north,1 2,1-6", "north,1 9,1-6", "party 'north' is to have the block '9'"),
        ("north,1 2,1-6", "north,1 2,1-11", "give places from 1 to 10"),
        ("east,1 2 4,3-8", "east,1 2,3-8", "no party has the block 'bottom-right'"),
        ("south,1 3,5-10", "south,1 3,5-9", "no party has the class 9 (place 10)"),
        ("south,1 3", "north,1 3", "names each party once"),
        ("east,1 2 4,3-8", "east,2 4,", "party 'east' is to have the classes []"),
        ("east,1 2 4,3-8", "east,2 4,b", "expected a party's name"),
    ],
)
def test_an_assignment_that_cannot_be_is_told_in_a_sentence(
    dovetail: Any, run_file: Path, tmp_path: Path, old: str, new: str, words: str
) -> None:
    assert old in ASSIGNMENT
    (tmp_path / "who.csv").write_text(ASSIGNMENT.replace(old, new))
    assert words in refused(dovetail("train", run_file, "-q"))


def test_without_a_common_block_there_is_nothing_for_fedavg(
    dovetail: Any, run_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "who.csv").write_text(ASSIGNMENT.replace("south,1 3", "south,3"))
    assert "no block is at every party" in refused(dovetail("train", run_file, "--out", "run"))


# --- From party files ----------------------------------------------------------------------------


@pytest.mark.trained
@pytest.mark.slow
def test_party_files_learn_together_and_each_predicts_from_its_own_table(
    dovetail: Any, party_files: Path, tmp_path: Path
) -> None:
    done = dovetail("train", party_files, "--out", "run", "-q")
    assert done.code == 0, done.err
    outcome = result(tmp_path / "run")
    assert set(outcome["parties"]) == set(HELD)
    assert set(outcome["baselines"]) == {"standalone", "fedper"}  # nobody has all blocks to test
    for name in HELD:
        done = dovetail("predict", f"run/models/{name}", f"{name}.csv", "--id", "row", "--json")
        assert done.code == 0, done.err
        assert json.loads(done.out)["scores"]["accuracy"] > 0.5
    # The server's model predicts with whichever blocks a table has.
    one = dovetail("predict", "run/models/server", "north.csv", "--out", "one.csv", "-q")
    assert one.code == 0, one.err


def test_a_block_is_encoded_alike_at_all_parties_by_what_all_have_in_it(
    party_files: Path, dovetail: Any, tmp_path: Path
) -> None:
    assert dovetail("train", party_files, "--out", "run", "-q", "--set", "baselines=[]").code == 0
    models = {name: package.load(tmp_path / "run" / "models" / name) for name in (*HELD, "server")}
    run = load_run(party_files)
    task = setup(run, 0, load_data(run))
    for block in GROUPS:
        holders = [name for name, held in HELD.items() if block in held]
        inputs = [models[name].inputs[block].to_json() for name in (*holders, "server")]
        # What training rows had of a column is each party's own; the server has no rows.
        seen = [[column.pop("seen", None) for column in each["columns"]] for each in inputs]
        assert all(len(holder) == len(inputs[0]["columns"]) for holder in seen)
        assert all(width is not None for holder in seen[:-1] for width in holder)
        assert seen[-1] == [None] * len(seen[-1])
        assert all(one != other for one, other in zip(*seen[:-1], strict=True))
        # So are a column's limits, and how its values are written.
        for column in (column for each in inputs for column in each["columns"]):
            column.pop("limits", None)
        readings = [each.pop("schema") for each in inputs]
        assert all(each == readings[0] for each in readings[:-1])
        # The server's are of the kinds that all have; formats are each party's own.
        assert {name: each["kind"] for name, each in readings[0].items()} == {
            name: each["kind"] for name, each in readings[-1].items()
        }
        assert all(each == inputs[0] for each in inputs)
        name = inputs[0]["columns"][0]["name"]
        raw = [
            task.party_data[holder].train.tables[block].column(name).values for holder in holders
        ]
        pooled = np.concatenate(raw)
        assert inputs[0]["columns"][0]["mean"] == pytest.approx(pooled.mean())
        assert inputs[0]["columns"][0]["scale"] == pytest.approx(pooled.std())


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("north.toml", 'label = "diagnosis"', "", "'north' has no labels, which HyFEM needs"),
        ("north.toml", '["hyfem"]', '["chfl"]', "refuses 'hyfem': its policy allows chfl"),
        ("north.toml", "[5]", "[5, 5]", "all need the same depth"),
        ("north.toml", '"* area", "* radius"', '"* area"', "a block must be the same at all"),
        ("north.toml", '"* area", "* radius"', '"* area"', 'for example blocks.shared = ["mean a'),
        ("south.toml", '"malignant"]', '"sick"]', "no party has a sample of class 'sick'"),
        ("parties.toml", "[hyfem]", '[hyfem]\nclasses = ["a", "b"]', "has the class 'benign'"),
        (
            "parties.toml",
            "[hyfem]",
            '[hyfem]\nclasses = ["benign", "malignant", "odd"]',
            "no party has a sample of class 'odd'",
        ),
        ("parties.toml", "rounds = 4", "widths = [3]", "stands below [hyfem] in each party's own"),
        ("parties.toml", '"*" = [4]', '"*" = "small-cnn"', "needs images"),
        ("parties.toml", '"fedper"]', '"pooled"]', "'pooled' needs everybody's rows in one place"),
        ("parties.toml", '"fedper"]', '"fedavg"]', "no block is at every party"),
    ],
)
def test_party_files_that_do_not_fit_are_told_in_a_sentence(
    dovetail: Any, party_files: Path, tmp_path: Path, file: str, old: str, new: str, words: str
) -> None:
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new))
    assert words in refused(dovetail("train", party_files, "-q"))
