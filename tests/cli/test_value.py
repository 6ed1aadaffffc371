"""``dovetail value``: the table, the files it leaves, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

THREE = (
    'parties = { clinic = ["mean *"], lab = ["worst *"] }',
    'parties = { clinic = ["mean *"], lab = ["worst *"], registry = ["* error"] }',
)


@pytest.mark.slow
def test_partners_are_ranked_and_written_for_other_tools(
    dovetail: Any, write_run: Any, tmp_path: Path
) -> None:
    run = write_run(THREE)
    done = dovetail("value", run, "--seeds", 2, "--out", "values.csv")
    assert done.code == 0, done.err
    assert "100 %" in done.err
    for words in (
        "mutual information (nats)",
        "leave-one-out (auc)",
        "Shapley (auc)",
        "registry",
    ):
        assert words in done.out
    assert "mean of 2 seeds: how far chance moves these is unknown" in done.out
    assert "8 coalitions trained" in done.out
    result = json.loads((tmp_path / "out/run/value.json").read_text())
    assert result["method"] == "apfed-c"
    assert result["seeds"] == [0, 1]
    assert set(result["partners"]) == {"lab", "registry"}
    with (tmp_path / "values.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["partner"] for row in rows] == list(result["partners"])
    best = result["partners"][rows[0]["partner"]]["shapley"]
    assert float(rows[0]["shapley"]) == best["mean"]
    assert float(rows[0]["shapley_error"]) == best["error"]
    # Asked again, nothing is trained: the result has the seconds of the first time.
    again = dovetail("value", run, "--seeds", 2, "--json", "--out", "values.json")
    assert json.loads(again.out) == result == json.loads((tmp_path / "values.json").read_text())
    assert again.err == ""
    lines = (tmp_path / "out/run/value.jsonl").read_text().splitlines()
    assert len(lines) == 8
    dovetail("value", run, "--by", "loo", "--quiet", "--set", "apfed.epochs=1")
    assert len((tmp_path / "out/run/value.jsonl").read_text().splitlines()) == 12
    dovetail("value", run, "--by", "loo", "--quiet", "--fresh")
    assert len((tmp_path / "out/run/value.jsonl").read_text().splitlines()) == 4


@pytest.mark.slow
def test_a_run_s_folder_is_valued_as_the_run_was_trained(
    dovetail: Any, write_run: Any, tmp_path: Path
) -> None:
    run = write_run(('baselines = ["alone"]', 'baselines = ["alone"]\nseeds = [4, 7]'))
    assert dovetail("train", run, "--quiet").code == 0
    done = dovetail("value", "out/run", "--by", "loo", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    trained = json.loads((tmp_path / "out/run/result.json").read_text())
    assert report["seeds"] == [4, 7]
    assert report["all"]["mean"] == pytest.approx(trained["parties"]["clinic"]["auc"]["mean"])
    assert report["none"]["mean"] == pytest.approx(trained["baselines"]["alone"]["auc"]["mean"])
    assert (tmp_path / "out/run/value.json").exists()


def test_mutual_information_trains_nothing(dovetail: Any, write_run: Any, tmp_path: Path) -> None:
    done = dovetail("value", write_run(THREE), "--by", "mi")
    assert done.code == 0, done.err
    assert "trained" not in done.out
    assert not (tmp_path / "out/run/value.jsonl").exists()


def test_data_owners_of_fedoptimus_are_valued(dovetail: Any, tmp_path: Path) -> None:
    (tmp_path / "owners.toml").write_text(
        """
method = "fedoptimus"
[data]
source = "breast-cancer"
test = 0.25
[data.partition]
kind = "owners"
label_owners = 2
[data.partition.data_owners]
scanner = ["mean *"]
lab = ["worst *"]
"""
    )
    done = dovetail("value", "owners.toml", "--by", "mi", "--json")
    assert done.code == 0, done.err
    assert set(json.loads(done.out)["partners"]) == {"scanner", "lab"}
    assert json.loads(done.out)["owners"] == ["label-1", "label-2"]


def test_party_files_in_one_place_are_valued(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    run = dealt.folder / "run.toml"
    done = dovetail("value", run, "--by", "loo", "--json")
    assert done.code == 0, done.err
    assert set(json.loads(done.out)["partners"]) == {"lab", "registry"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--by", "luck"], "--by takes mi, loo, shapley, got 'luck'"),
        (["--partners", "lab,mall"], "'mall' is no partner of this run; they are lab"),
        (["--partners", ","], "--partners takes names"),
        (["--out", "values.xlsx"], "--out takes a .csv or .json file"),
        (["--metric", "rmse"], "no score 'rmse'"),
        (["--set", "method=alone"], "'alone' has no partners to value"),
    ],
)
def test_what_cannot_be_valued_is_told_in_a_sentence(
    dovetail: Any, write_run: Any, arguments: list[str], words: str
) -> None:
    done = dovetail("value", write_run(), *arguments)
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err
    assert "coalitions" not in done.err or "--metric" in arguments  # the bar; a score is of models


def test_a_method_without_partners_is_refused_before_its_tables_are_read(
    dovetail: Any, tmp_path: Path
) -> None:
    for name in ("north", "south"):
        (tmp_path / f"{name}.parquet").write_bytes(b"no table")
        party = f'name = "{name}"\ntable = "{name}.parquet"\nid = "id"\nlabel = "y"\n'
        (tmp_path / f"{name}.toml").write_text(f"[party]\n{party}")
    parties = '["north.toml", "south.toml"]'
    (tmp_path / "run.toml").write_text(f'method = "chfl"\nparties = {parties}\n')
    done = dovetail("value", "run.toml")
    assert done.code == 2
    assert done.err.startswith("dovetail: the method 'chfl' has no partners to value")
    assert done.err.count("\n") == 1


def test_a_folder_that_is_no_run_is_refused(dovetail: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = dovetail("value", "empty")
    assert done.code == 2
    assert "empty is no run folder" in done.err


def test_parties_elsewhere_are_refused(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    dealt.change("run.toml", ('["clinic.toml", "lab.toml", "registry.toml"]', '["clinic.toml"]'))
    text = (dealt.folder / "run.toml").read_text()
    engine = '\n[engine]\nkind = "stream"\nlisten = "127.0.0.1:0"\npartners = ["lab"]\n'
    (dealt.folder / "run.toml").write_text(text + engine)
    done = dovetail("value", dealt.folder / "run.toml")
    assert done.code == 2
    assert "where all tables are in one place" in done.err
