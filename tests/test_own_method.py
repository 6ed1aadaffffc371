"""The method of docs/own-method.md is one: it trains, equals its baseline, and can be installed."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import same_secrets
import torch
from federations import free_port
from flare_jobs import launching, write_changes
from safetensors.torch import load_file

from dovetail import data as dd
from dovetail import entries, methods
from dovetail.audit.attack import Settings
from dovetail.audit.run import audit
from dovetail.data.coverage import from_partition
from dovetail.errors import ConfigError
from dovetail.federated import Local
from dovetail.methods import table
from dovetail.methods.table import installed
from dovetail.network import Message
from dovetail.runs import search, situations
from dovetail.runs.runfile import RunFile, SearchSection, check_run
from dovetail.runs.setup import load_data

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "own-method.md").read_text()


def blocks(language: str) -> list[str]:
    """The page's blocks of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


(CODE,) = blocks("python")
RECORD = (ROOT / "examples" / "own_method_record.py").read_text()
RUN, PACKAGE, PARTY = blocks("toml")
TRAIN, PREDICT, INSTALLED = (block.split() for block in blocks("sh"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a reader of the page has made: the method, the run file, and patients."""
    (tmp_path / "own_method.py").write_text(CODE)
    (tmp_path / "run.toml").write_text(RUN.replace("rounds = 60", "rounds = 4"))
    pooled = dd.load("breast-cancer")[0].take(np.arange(40))
    assert isinstance(pooled.x, dd.Table)
    columns = {name: pooled.x.column(name).values for name in pooled.x.names}
    dd.write_table(tmp_path / "new-patients.csv", columns)
    return tmp_path


def execute(folder: Path, command: list[str], *more: str) -> forked.Ended:
    environment = {"PYTHONPATH": str(folder), "COLUMNS": "200"}
    if command[0] == "dovetail":
        return forked.command(folder, *command[1:], *more, environment=environment)
    return forked.script(folder, folder / command[1], *command[2:], *more, environment=environment)


def install(folder: Path, table: str) -> None:
    """Leave what pip leaves of a package."""
    about = tomllib.loads(table)["project"]
    info = folder / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
    )
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in about["entry-points"].items()
    )
    (info / "entry_points.txt").write_text(points)


def test_the_page_shows_the_example_and_it_is_short() -> None:
    assert (ROOT / "examples" / "own_method.py").read_text() == CODE
    assert sum(bool(line.strip()) for line in CODE.splitlines()) < 80
    assert "../examples/own_method_record.py" in PAGE


def test_the_method_of_the_page_equals_pooled_gradient_descent_and_predicts(folder: Path) -> None:
    done = execute(folder, TRAIN)
    assert done.code == 0, done.err
    assert "FedSGD, predicts alone: party-1" in done.out
    run = folder / "out" / "run" / "seed-1"
    result = json.loads((run / "result.json").read_text())
    losses = [scores["log_loss"] for scores in result["parties"].values()]
    assert losses == pytest.approx([result["baselines"]["pooled-sgd"]["log_loss"]] * 3, abs=1e-5)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    by_variant = {
        variant: [n["round"] for n in lines if n["variant"] == variant] for variant in ("fedsgd",)
    }
    assert by_variant == {"fedsgd": [1, 2, 3, 4]}
    done = execute(folder, PREDICT)
    assert done.code == 0, done.err
    assert (done.out.startswith("row,"), done.out.count("\n")) == (True, 41)


def test_an_installed_method_is_one_of_dovetails(folder: Path) -> None:
    install(folder, PACKAGE)
    done = execute(folder, INSTALLED, "--seed", "0", "--set", "baselines=[]", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["method"] == "fedsgd"
    text = (folder / "out" / "run" / "ledger.jsonl").read_text()
    left = [json.loads(line) for line in text.splitlines()]
    assert {tensor["name"] for line in left for tensor in line["tensors"]} == {
        "weights_P",
        "gradient_P",
    }
    counts = {line["message"]: line["count"] for line in left if "Save" not in line["message"]}
    assert counts["own_method.Gradient"] == 4


def forget() -> None:
    """What is installed is looked for anew."""
    for cached in (entries._all, entries.registered, installed):
        cached.cache_clear()


@pytest.fixture
def looking(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RunFile]]:
    """Installs a package with these methods, and reads the run file of the page."""

    def look(points: str, **changes: str) -> RunFile:
        install(folder, PACKAGE.replace('fedsgd = "own_method:FedSgd"', points))
        monkeypatch.syspath_prepend(folder)
        forget()
        monkeypatch.setattr(table.METHODS, "_methods", {})
        return check_run({**tomllib.loads(RUN), **changes}, where="run.toml")

    yield look
    forget()
    for name in ("own_method", "own_method_record"):
        sys.modules.pop(name, None)


def test_a_run_file_has_a_section_for_an_installed_method(looking: Any) -> None:
    run = looking('fedsgd = "own_method:FedSgd"')
    assert (run.fedsgd.rounds, run.fedsgd.learning_rate) == (60, 0.5)
    with pytest.raises(ConfigError, match=r"unknown key 'fedsgd.round'; did you mean 'rounds'\?"):
        check_run({**tomllib.loads(RUN), "fedsgd": {"round": 1}}, where="run.toml")
    with pytest.raises(ConfigError, match="parties names no party file"):
        methods.method_of("fedsgd").load_sites(run, {}, where="run.toml")


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ('fedsgd = "gone:FedSgd"', r"'own-method' cannot be loaded .*No module named 'gone'"),
        ('fedsgd = "json:loads"', "it is to name a subclass of Method"),
        ('apfed = "own_method:FedSgd"', "a method 'apfed', and so has Dovetail; rename it"),
        ('seeds = "own_method:FedSgd"', "no method can be called 'seeds': run files have that key"),
    ],
)
def test_an_installed_method_that_cannot_be_is_named(looking: Any, points: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        looking(points)


def test_a_run_file_cannot_name_code(looking: Any) -> None:
    with pytest.raises(ConfigError, match=r"method: .* got 'own_method:FedSgd'"):
        looking('fedsgd = "own_method:FedSgd"', method="own_method:FedSgd")


@pytest.mark.slow
@pytest.mark.usefixtures("brief_learners")
def test_at_parity_others_ask_it_what_they_ask_of_the_papers(looking: Any, folder: Path) -> None:
    (folder / "own_method_record.py").write_text(RECORD)
    run = looking('fedsgd = "own_method_record:AtParity"').model_copy(update={"baselines": ()})
    method = methods.method_of("fedsgd")
    fits = {fit.method: fit for fit in situations.fits(from_partition(load_data(run).data))}
    assert fits["fedsgd"].reason.startswith("yes: every party has labels, and 15 columns are at")
    assert {size.party for size in fits["fedsgd"].messages} == {"party-1", "party-2", "party-3"}
    assert situations.recommended([*fits.values()]).title == "CHFL"  # the more specific one
    changed = run.model_copy(
        update={"fedsgd": run.fedsgd.model_copy(update={"rounds": 3}), "evaluate_every": 0}
    )
    found = audit(changed, (0,), settings=Settings(network=False)).findings
    for party in ("party-1", "party-2", "party-3"):
        targets = {
            each.target for each in found if (each.channel, each.owner) == ("weights", party)
        }
        assert targets == {"rows", "membership"}
    assert search._keys(run, SearchSection()) == {"fedsgd.learning_rate": (0.1, 0.5, 1.0)}
    (line,) = method.proposed.describe(None, ["fedsgd"])
    assert line.endswith("gradients of its loss on all its rows, once a round")


# --- From party files, over gRPC, and resumed ----------------------------------------------------


@pytest.fixture
def parties(folder: Path) -> Path:
    """Two parties' files and tables, in a folder with the installed method."""
    install(folder, PACKAGE)
    pooled = dd.load("breast-cancer")[0]
    assert isinstance(pooled.x, dd.Table)
    for index, name in enumerate(("north", "south")):
        part = pooled.take(np.arange(index, 200, 2))
        assert isinstance(part.x, dd.Table)
        columns = {each: part.x.column(each).values for each in part.x.select(["mean *"])}
        dd.write_table(
            folder / f"{name}.csv",
            {"patient": part.ids, "diagnosis": part.labels.values, **columns},
        )
        (folder / f"{name}.toml").write_text(PARTY.replace("north", name))
    return folder


HERE = """
method = "fedsgd"
seed = 3
parties = ["north.toml", "south.toml"]
[fedsgd]
rounds = 6
"""

THERE = """
method = "fedsgd"
seed = 3
[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = ["north", "south"]
wait_s = 180
[fedsgd]
rounds = 6
"""


def weights(model: Path) -> dict[str, torch.Tensor]:
    return load_file(model / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    mine, others = weights(one), weights(other)
    return mine.keys() == others.keys() and all(
        torch.equal(mine[name], others[name]) for name in mine
    )


@pytest.mark.trained
@pytest.mark.slow
def test_it_trains_from_party_files_and_goes_on_where_it_stopped(parties: Path) -> None:
    (parties / "here.toml").write_text(HERE)
    train = ["dovetail", "train", "here.toml", "--json"]
    done = execute(parties, train)
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert min(scores["auc"] for scores in result["parties"].values()) > 0.8
    # The same command, killed after its second round and gone on with.
    killing = (
        "import os, signal\n"
        "from dovetail.network import checkpoint\n"
        "save = checkpoint.Checkpoint.save\n"
        "def kill(self, done, *rest):\n"
        "    save(self, done, *rest)\n"
        "    done == 2 and os.kill(os.getpid(), signal.SIGKILL)\n"
        "checkpoint.Checkpoint.save = kill\n"
        "from dovetail.cli.main import main\n"
        "main()\n"
    )
    (parties / "killed.py").write_text(killing)
    words = ["train", "here.toml", "--out", "resumed", "--quiet"]
    assert execute(parties, ["python", "killed.py", *words]).code == -9
    done = execute(parties, ["dovetail", *words, "--resume"])
    assert done.code == 0, done.err
    lines = (parties / "resumed" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for name in ("north", "south"):
        models = (parties / out / "models" / name for out in ("out/here", "resumed"))
        assert same(*models)


@pytest.mark.network
def test_it_trains_over_grpc_with_the_same_weights(parties: Path) -> None:
    (parties / "here.toml").write_text(HERE)
    (parties / "there.toml").write_text(THERE.format(port=(port := free_port())))
    done = execute(parties, ["dovetail", "train", "here.toml", "--quiet"])
    assert done.code == 0, done.err
    named = ["north", "south", "coordinator", "--driver", "coordinator", "--host", "127.0.0.1"]
    done = execute(parties, ["dovetail", "certificates", *named])
    assert done.code == 0, done.err
    joined = [
        forked.begin(
            parties,
            same_secrets.COMMAND,
            *("join", f"{name}.toml", "--driver", f"127.0.0.1:{port}", "--quiet"),
            environment={"PYTHONPATH": f"{parties}:{Path(same_secrets.__file__).parent}"},
            stdout=parties / f"{name}.txt",
        )
        for name in ("north", "south")
    ]
    try:
        done = execute(parties, ["dovetail", "train", "there.toml", "--quiet"])
        assert done.code == 0, done.err
    finally:
        for process in joined:
            process.terminate()
            process.wait(30)
    for name in ("north", "south"):
        (kept,) = (parties / f"{name}.site" / "models").iterdir()
        assert same(kept, parties / "out" / "here" / "models" / name)


@pytest.mark.network
def test_it_trains_as_a_job_of_nvflare_with_the_same_weights(parties: Path) -> None:
    pytest.importorskip("nvflare")
    (parties / "here.toml").write_text(HERE)
    done = execute(parties, ["dovetail", "train", "here.toml", "--quiet"])
    assert done.code == 0, done.err
    words = ["dovetail", "flare", "simulate", "here.toml", "--out", "job", "--quiet"]
    write_changes(parties, parties / "forks")
    with launching(parties / "forks"):
        done = execute(parties, words)
    assert done.code == 0, done.err
    for name in ("north", "south"):
        (kept,) = (parties / f"{name}.site" / "models").iterdir()
        assert same(kept, parties / "out" / "here" / "models" / name)


class Question(Message):
    pass


class Silent(methods.Party):
    def __init__(self, local: Local) -> None: ...

    @methods.handles
    def question(self, ask: Question) -> None: ...


def test_a_handler_that_returns_no_message_is_named() -> None:
    with pytest.raises(TypeError, match=r"Silent\.question is to return a message, got NoneType"):
        Silent(Local("shop")).handle(Question())
