"""Searches, thresholds and numbers over a network: every party a process, by a user's commands."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Federation, free_port
from ordinary_files import RUNS, write_sites
from test_ordinary_tables import NUM_ROWS, columns

from dovetail import load
from dovetail.models.owners import load_bottom
from dovetail.network.ledger import verify
from dovetail.network.quota import Quota

pytestmark = pytest.mark.network

ENGINE = """
[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = {partners}
wait_s = 180
"""

#: What HyFEM is told over a network.
EXTRACTORS = "[hyfem.extractors]\nbody = [8]\nplace = [8]\n"

LABEL_SCALE = "label_scale = [50.0, 20.0]\n"


def numbers(name: str, seed: int, *, shared: bool) -> dict[str, list[str]]:
    """A table whose label is a number that its columns predict."""
    table = columns(name, seed, shared=shared)
    wet = {"Oslo": 10.0, "Bonn": 20.0}
    table["sick"] = [
        f"{float(age or 50) + wet.get(city, 0.0):.1f}"
        for age, city in zip(table["age"], table["city"], strict=True)
    ]
    return table


def federated(
    dovetail: Any,
    folder: Path,
    method: str,
    table: Callable[..., dict[str, list[str]]],
    *,
    task: str = "",
    keys: str = "",
    section: str = "",
    search: str = "",
) -> Federation:
    """Files of a federation in one process (run.toml) and of the same on a network."""
    write_sites(folder, method, table, task=task, keys=keys)
    driver = "north" if method == "apfed-mixed" else "coordinator"
    for name in ("north", "south"):
        party = folder / f"{name}.toml"
        asked = f'algorithms = ["align", "{method}"]'
        party.write_text(re.sub(r"algorithms = .*", asked, party.read_text()))
    text = (folder / "run.toml").read_text() + section
    (folder / "run.toml").write_text(text + search)
    sections = section
    if method == "hyfem":
        sections += LABEL_SCALE if task else 'classes = ["false", "true"]\n'
        sections += EXTRACTORS
    text = text.replace(section, "") if section else text
    partners = ["south"] if method == "apfed-mixed" else ["north", "south"]
    parties = 'parties = ["north.toml"]\n' if method == "apfed-mixed" else ""
    text = re.sub(r"parties = .*\n", parties, text)
    port = free_port()
    engine = ENGINE.format(port=port, partners=json.dumps(partners))
    (folder / "network.toml").write_text(text + sections + engine + search)
    certificates = ("certificates", "north", "south", *({driver} - {"north"}), "--driver", driver)
    done = dovetail(*certificates, "--host", "127.0.0.1", "-q")
    assert done.code == 0, done.err
    return Federation(folder, port, ("--name", driver))


def search_of(folder: Path, out: str) -> Any:
    return json.loads((folder / out / "search.json").read_text())


def scores(search: Any) -> list[float]:
    return [trial["score"] for trial in search["trials"]]


def test_a_partner_caps_the_trials_of_a_label_owner_and_the_search_goes_on(
    dovetail: Any, tmp_path: Path
) -> None:
    search = '[search]\ntrials = 3\nkeys = { "apfed.learning_rate" = [1e-9, 0.02] }\n'
    made = federated(dovetail, tmp_path, "apfed-mixed", columns, search=search)
    south = tmp_path / "south.toml"
    # One process has neither a site's noise nor the limits that nobody has set.
    lax = south.read_text().replace("[policy]", "[policy]\nmin_rows = 16\nmax_uses = 1000")
    lax += "[apfed]\nexact = true\n"
    south.write_text(lax.replace("[policy]", "[policy]\nmax_runs_per_day = 2"))
    with made.ending():
        joined = made.join("south")
        driver = made.start("train", "network.toml", "--out", "run")
        assert driver.ended() != 0
        assert "its policy.max_runs_per_day is 2" in driver.printed()
        assert "the search ends at trial 3" in driver.printed()
        searched = search_of(tmp_path, "run")
        assert not searched["ended"]
        assert len(searched["trials"]) == 2
        joined.signal(15)
        assert joined.ended() == 0
        south.write_text(lax)
        joined = made.join("south")
        driver = made.start("train", "network.toml", "--out", "run", "--resume")
        assert driver.ended() == 0, driver.printed()
        joined.signal(15)
        assert joined.ended() == 0
    searched = search_of(tmp_path, "run")
    assert searched["ended"]
    assert searched["trials"][searched["best"]]["score"] == max(scores(searched))
    here = dovetail("train", "run.toml", "--out", "here", "-q")
    assert here.code == 0, here.err
    assert scores(search_of(tmp_path, "here")) == scores(searched)
    site_folder = tmp_path / "south.site"
    runs = [run for (run,) in Quota(site_folder).read("SELECT run FROM begins")]
    assert len(runs) == 4
    assert sum("apfed-mixed-trial-" in run for run in runs) == 3
    sent = verify(site_folder / "ledger.jsonl")
    assert {line["message"] for line in sent.lines()} >= {"apfed.CodeGradient"}
    weights = [tmp_path / out / "models" / "north" / "model.safetensors" for out in ("run", "here")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.parametrize("method", RUNS)
def test_numbers_are_learned_from_text_dates_booleans_and_gaps(
    dovetail: Any, tmp_path: Path, method: str
) -> None:
    made = federated(dovetail, tmp_path, method, numbers, task="regression")
    for name in ("north", "south"):
        path = tmp_path / f"{name}.toml"
        text = path.read_text().replace("[chfl]\n", f"[chfl]\n{LABEL_SCALE}")
        path.write_text(f"{text}[hyfem]\n{LABEL_SCALE}")
    with made.ending():
        for name in ("south",) if method == "apfed-mixed" else ("north", "south"):
            made.join(name)
        driver = made.start("train", "network.toml", "--out", "run", "--json")
        assert driver.ended() == 0, driver.printed()
    if method == "apfed-mixed":
        model = tmp_path / "run" / "models" / "north"
        scores_north = made.result("run")["parties"]["north"]
        assert scores_north["rmse"] > 0
    else:
        (model,) = (tmp_path / "north.site" / "models").iterdir()
    if method == "fedoptimus":  # its label owners predict with the data owners
        assert load(model).task.to_json()["kind"] == "regression"
        (bottom,) = (tmp_path / "south.site" / "models").iterdir()
        assert load_bottom(bottom).party == "south"
        return
    done = dovetail("predict", model, "north.csv", "--id", "id", "--out", "said.csv", "-q")
    assert done.code == 0, done.err
    predictions = list(csv.DictReader((tmp_path / "said.csv").read_text().splitlines()))
    assert len(predictions) == NUM_ROWS
    assert np.isfinite([float(row["sick"]) for row in predictions]).all()
