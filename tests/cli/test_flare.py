"""``dovetail flare``, as far as it starts no process: job folders, sites and mistakes."""

from __future__ import annotations

import importlib.util
import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

from dovetail import data as dd
from dovetail.companions.flare import export
from dovetail.companions.flare.export import simulated
from dovetail.companions.flare.site import CLASSES
from dovetail.errors import ConfigError
from dovetail.node.partyfile import open_sites
from dovetail.node.runs import Runs
from dovetail.node.site_folder import Refusals
from dovetail.node.status_line import StatusLine
from dovetail.runs.runfile import check_run, load_run, resolved
from dovetail.runs.setup import pooled_parts, read_pooled
from dovetail.runs.splitting import deal

RUN = """
method = "apfed-mixed"
baselines = ["alone"]
test = 0.25
[engine]
kind = "flare"
partners = ["lab", "registry"]
sites = { lab = "site-1" }
[apfed]
encoder = [8]
"""


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests need no NVFlare."""
    spec = importlib.util.find_spec("dovetail")
    monkeypatch.setattr("dovetail.companions.flare.command.find_spec", lambda name: spec)


@pytest.fixture
def run_file(tmp_path: Path) -> Callable[..., Path]:
    def write(*changes: tuple[str, str]) -> Path:
        text = RUN
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        path = tmp_path / "fraud.toml"
        path.write_text(text)
        return path

    return write


def paths_of(value: Any) -> list[str]:
    """What any entry of a configuration names as a class."""
    if isinstance(value, dict):
        here = [value["path"]] if "path" in value else []
        return here + [path for each in value.values() for path in paths_of(each)]
    if isinstance(value, list):
        return [path for each in value for path in paths_of(each)]
    return []


def test_a_job_is_names_of_classes_and_a_run_file(
    dovetail: Any, run_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = tmp_path / "job"
    done = dovetail("flare", "export", run_file(), "--out", job, "--set", "apfed.epochs=3")
    assert done.code == 0, done.err
    assert "Next: nvflare job submit" in done.out
    files = {str(path.relative_to(job)) for path in job.rglob("*") if path.is_file()}
    assert files == {
        "meta.json",
        "app_server/config/config_fed_server.json",
        "app_server/config/run.toml",
        "app_sites/config/config_fed_client.json",
    }
    meta = json.loads((job / "meta.json").read_text())
    assert meta["deploy_map"] == {"app_server": ["server"], "app_sites": ["site-1", "registry"]}
    named = [
        path for file in job.rglob("*.json") for path in paths_of(json.loads(file.read_text()))
    ]
    assert sorted(named) == sorted(CLASSES)
    settings = tomllib.loads((job / "app_server" / "config" / "run.toml").read_text())
    assert settings["apfed"] == {"encoder": [8], "epochs": 3}
    assert check_run(settings, where="again") == load_run(run_file(), overrides=("apfed.epochs=3",))


def test_a_job_can_be_written_again_with_other_seeds_and_go_on_with_another(
    dovetail: Any, run_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = tmp_path / "job"
    path = run_file()
    assert dovetail("flare", "export", path, "--out", job, "-q", "--seed", 1, "--seed", 2).code == 0
    settings = tomllib.loads((job / "app_server" / "config" / "run.toml").read_text())
    assert settings["seeds"] == [1, 2]
    again = ("flare", "export", path, "--out", job, "-q", "--resume", "8c2d-1", "--align")
    assert dovetail(*again).code == 0
    server = json.loads((job / "app_server" / "config" / "config_fed_server.json").read_text())
    assert server["components"][0]["args"] == {"resume": "8c2d-1", "align": True}


def test_no_party_file_is_named_in_a_job(
    dovetail: Any, run_file: Callable[..., Path], tmp_path: Path
) -> None:
    path = run_file(("test = 0.25", 'test = 0.25\nparties = ["clinic.toml", "lab.toml"]'))
    assert dovetail("flare", "export", path, "--out", tmp_path / "job", "-q").code == 0
    text = (tmp_path / "job" / "app_server" / "config" / "run.toml").read_text()
    assert "parties" not in text
    assert str(tmp_path) not in text


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"lab", "registry"', "", r"engine\.partners: .*at least 1 item"),
        ('lab = "site-1"', 'shop = "site-1"', "sites names 'shop', which is not among partners"),
        ('lab = "site-1"', 'lab = "registry"', "every partner has a site of its own"),
        ("[engine]", '[data]\nsource = "digits"\n[engine]', "data.partition"),
        ('kind = "flare"', 'kind = "flare"\nlisten = "a:1"', "unknown key 'engine.listen'"),
        ('method = "apfed-mixed"', 'method = "hyfem"', "classes names all.*And [hyfem.extractors]"),
        ("[engine]", "[search]\ntrials = 2\n[engine]", "and a job of NVFlare is one"),
    ],
)
def test_a_mistake_in_the_run_file_is_one_sentence(
    dovetail: Any, run_file: Callable[..., Path], old: str, new: str, words: str
) -> None:
    changes = [(old, new)]
    if "hyfem" in new:
        changes += [('baselines = ["alone"]\n', ""), ("test = 0.25\n", "")]
    done = dovetail("flare", "export", run_file(*changes), "--out", "job")
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
    assert done.err.startswith("dovetail: ")
    assert words.split(".*")[-1].replace("\\", "") in done.err


def test_a_job_is_not_trained_by_train_and_other_runs_are_no_jobs(
    dovetail: Any, run_file: Callable[..., Path], write_run: Callable[..., Path], tmp_path: Path
) -> None:
    done = dovetail("train", run_file())
    assert (done.code, "dovetail flare export RUN --out DIR makes it" in done.err) == (2, True)
    done = dovetail("flare", "export", write_run(), "--out", "job")
    assert (done.code, "is no run of an NVFlare federation" in done.err) == (2, True)
    done = dovetail("flare", "simulate", run_file(), "--out", "here")
    assert (done.code, "names no party files" in done.err) == (2, True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("2019")
    done = dovetail("flare", "export", run_file(), "--out", "full")
    assert (done.code, "full holds other files" in done.err) == (2, True)
    done = dovetail("flare", "export", run_file(), "--out", "a b")
    assert (done.code, "--out is also the job's name" in done.err) == (2, True)


def test_without_nvflare_every_command_says_how_to_install_it(
    dovetail: Any, run_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.companions.flare.command.find_spec", lambda name: None)
    for command in (("export", run_file(), "--out", "job"), ("simulate", run_file())):
        done = dovetail("flare", *command)
        assert done.code == 2
        assert done.err == (
            "dovetail: dovetail flare needs NVIDIA FLARE, which is not installed here: "
            "pip install 'dovetail-fl[flare]'\n"
        )


# --- Sites ----------------------------------------------------------------------------------------


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    folder = tmp_path / "kits" / "site-1"
    (folder / "startup").mkdir(parents=True)
    (folder / "local").mkdir()
    resources = {"format_version": 2, "class_allow_list": ["nvflare.some.Thing"]}
    (folder / "local" / "resources.json.default").write_text(json.dumps(resources))
    return folder


def test_a_site_is_told_who_it_is_and_which_classes_a_job_may_name(
    deal: Callable[..., Any], dovetail: Any, kit: Path
) -> None:
    folder = deal().folder
    done = dovetail("flare", "site", kit, "--party", "lab.toml", "--driver", "clinic")
    assert done.code == 0, done.err
    settings = tomllib.loads((kit / "local" / "dovetail.toml").read_text())
    assert settings == {"party": str(folder / "lab.toml"), "driver": "clinic"}
    for _ in range(2):  # once is enough
        resources = json.loads((kit / "local" / "resources.json").read_text())
        assert resources["class_allow_list"] == ["nvflare.some.Thing", *CLASSES]
        assert resources["format_version"] == 2
        assert dovetail("flare", "site", kit, "--party", "lab.toml", "-q").code == 0
    default = json.loads((kit / "local" / "resources.json.default").read_text())
    assert default["class_allow_list"] == ["nvflare.some.Thing"]


def test_a_folder_that_is_no_site_and_a_file_that_is_no_party_are_refused(
    deal: Callable[..., Any], dovetail: Any, kit: Path
) -> None:
    folder = deal().folder
    done = dovetail("flare", "site", folder, "--party", "lab.toml")
    assert (done.code, "is no folder of an NVFlare site" in done.err) == (2, True)
    done = dovetail("flare", "site", kit, "--party", "nobody.toml")
    assert (done.code, "there is no file nobody.toml" in done.err) == (2, True)
    assert not (kit / "local" / "dovetail.toml").exists()
    (kit / "local" / "resources.json").write_text("no JSON")
    done = dovetail("flare", "site", kit, "--party", "lab.toml")
    assert (done.code, "cannot be read as NVFlare's resources" in done.err) == (2, True)


# --- One machine ----------------------------------------------------------------------------------


def test_a_run_of_party_files_becomes_a_job_of_its_parties(deal: Callable[..., Any]) -> None:
    path = deal().folder / "run.toml"
    run, files, driver = simulated(path, load_run(path))
    assert driver == "clinic"
    assert run.engine.kind == "flare"
    assert run.engine.partners == ("lab", "registry")
    assert run.parties is None
    assert files == {name: path.parent / f"{name}.toml" for name in ("clinic", "lab", "registry")}
    assert run.apfed == load_run(path).apfed


@pytest.mark.slow
def test_a_pooled_set_is_dealt_out_to_files_that_hold_what_the_partition_says(
    write_run: Callable[..., Path], tmp_path: Path, dovetail: Any
) -> None:
    path = write_run(
        ('"apfed-c"', '"apfed-mixed"'),
        ('active = "clinic"', 'active = "clinic"\noverlap = 0.5'),
        (
            "[passive]\nencoder = [8]",
            '[passive]\nencoder = [7, 8]\n[passive.lab]\nloss = "contrastive"',
        ),
    )
    whole = load_run(path)
    dealt = deal(whole, tmp_path / "dealt", where="run.toml")
    run, files, driver = simulated(path, dealt)
    assert (driver, run.engine.kind, sorted(files)) == ("clinic", "flare", ["clinic", "lab"])
    assert run.apfed == whole.apfed
    sites = open_sites(tuple(files.values()))
    section = whole.data
    assert section is not None
    train, test = pooled_parts(section, read_pooled(section))
    parts = section.partition.deal(train, test, section)
    assert parts.test is not None
    pooled, _ = dd.load("breast-cancer")
    for name, site in sites.items():
        rows = np.concatenate([parts.train.parties[name].ids, parts.test.parties[name].ids])
        assert site.table.ids.tolist() == rows.tolist()
        assert (site.party.label is None) == (name == "lab")
        assert isinstance(site.table.x, dd.Table)
        assert isinstance(pooled.x, dd.Table)
        column = pooled.x.select([f"{'mean' if name == 'clinic' else 'worst'} *"])[0]
        index = {each: row for row, each in enumerate(pooled.ids.tolist())}
        expected = pooled.x.column(column).values[[index[each] for each in rows.tolist()]]
        assert site.table.x.column(column).values.tolist() == expected.tolist()
        refusals = Refusals(tmp_path / "refusals.jsonl", print)  # as a site begins
        Runs(site, tmp_path, refusals, StatusLine("clinic", quiet=True), torch.device("cpu"))
    assert sites["lab"].sections["apfed"].encoder == (7, 8)
    assert sites["lab"].sections["apfed"].loss == "contrastive"
    (tmp_path / "dealt.toml").write_text(tomli_w.dumps(resolved(dealt, 0)))
    done = dovetail("train", "dealt.toml", "--out", "out", "-q")
    assert done.code == 0, done.err


def test_too_small_a_part_in_a_job_here_is_told_and_no_finished_run_is_replaced(
    deal: Callable[..., Any], dovetail: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deal()
    missed = {"lab": {"steps": 9, "of": 10, "first": "epoch 1, step 2: its disk is full"}}
    written = {
        "method": "apfed-mixed",
        "parties": {},
        "baselines": {},
        "missed": missed,
        "seconds": 1.0,
    }

    def job_done(*args: Any, **settings: Any) -> None:
        Path("out/run").mkdir(parents=True)
        Path("out/run/result.json").write_text(json.dumps(written))

    monkeypatch.setattr("dovetail.companions.flare.export.simulate", job_done)
    done = dovetail("flare", "simulate", "run.toml", "--json")
    assert done.code == 2
    assert "party 'lab' was left out of 9 of 10 steps (first: epoch 1, step 2: its d" in done.err
    assert json.loads(done.out) == written
    again = dovetail("flare", "simulate", "run.toml", "--json")
    assert (again.code, "holds a run that finished: say the same with" in again.err) == (2, True)


def test_a_partner_without_a_file_cannot_be_simulated(deal: Callable[..., Any]) -> None:
    path = deal().folder / "run.toml"
    section = '[engine]\nkind = "flare"\npartners = ["lab", "shop"]\n[apfed]'
    path.write_text(path.read_text().replace("[apfed]", section))
    with pytest.raises(ConfigError, match="parties has no file of 'shop', which is a partner"):
        simulated(path, load_run(path))


def test_a_job_that_is_waited_for_is_told_of_at_growing_distances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []
    seconds = 0.0
    monkeypatch.setattr(export.time, "monotonic", lambda: seconds)
    older = tmp_path / "seed-0" / "metrics.jsonl"
    older.parent.mkdir()
    older.write_text('{"variant": "apfed-mixed", "epoch": 99}\n')
    os.utime(older, (1, 1))
    look = export._HowFar(tmp_path, printed.append)
    for seconds in range(0, 200):
        if seconds == 15:
            begun = '{"variant": "apfed-mixed", "epoch": 7}\n'
            lines = begun + '{"variant": "apfed-mixed", "auc": 0.9}\n{"variant": "al'
            newer = tmp_path / "seed-1" / "metrics.jsonl"
            newer.parent.mkdir()
            newer.write_text(lines)
            os.utime(newer, (2**31, 2**31))
        look()
    assert printed == [
        "after 10 s: no epoch or round is done yet",
        *(f"after {number} s: epoch 7 of apfed-mixed is done" for number in (20, 40, 80, 160)),
    ]
