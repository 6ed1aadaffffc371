"""People without a common id, at two parties that are processes of their own."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from federations import Federation, free_port

from dovetail import data as dd
from dovetail.network.quota import Quota

SCRIPT = Path(__file__).parents[2] / "examples" / "dirty_twins.py"


@pytest.mark.network
def test_parties_elsewhere_find_the_people_they_share_and_train_on_them(
    dovetail: Any, tmp_path: Path
) -> None:
    script = runpy.run_path(str(SCRIPT))
    script["make"](tmp_path, clinic=200, registry=160, both=120, seed=2)
    persons = {name: dd.read_table(tmp_path / f"{name}.csv") for name in ("clinic", "registry")}
    certified = dovetail(
        "certificates", "clinic", "registry", "--driver", "clinic", "--host", "localhost"
    )
    assert certified.code == 0, certified.err
    port = free_port()
    (tmp_path / "run.toml").write_text(
        'method = "apfed-d"\nparties = ["clinic.toml"]\ntest = 0.25\n'
        f'[engine]\nkind = "stream"\nlisten = "127.0.0.1:{port}"\npartners = ["registry"]\n'
        "[apfed.distil]\nmax_steps = 5\n"
    )
    with Federation(tmp_path, port).ending() as apart:
        registry = apart.join("registry")
        driver = apart.start("align", "run.toml", "--json")
        assert driver.ended() == 0, driver.printed()
        report = json.loads(driver.printed()[driver.printed().index("{\n") :])
        assert report["keys"]["registry"][0]["key"] == "text(national_id)"
        shared = report["shared"]["registry"]
        assert shared >= 108  # of 120
        assert "truth" not in report  # nobody here knows who is who there
        # Both homes keep rows of the same samples, and these are the same people.
        rows = [
            safetensors.torch.load_file(tmp_path / f"{name}.site/aligned/clinic.safetensors")
            for name in ("clinic", "registry")
        ]
        both = (rows[1]["rows_S"] >= 0).nonzero().flatten()
        assert len(both) == shared
        assert rows[0]["has.registry"][both].all()
        people = [
            persons[name].column("person").values[each["rows_S"][both].numpy()]
            for name, each in zip(persons, rows, strict=True)
        ]
        assert (people[0] == people[1]).mean() >= 0.99
        train = apart.start("train", "run.toml", "--quiet")
        assert train.ended() == 0, train.printed()
        assert registry.running()
    assert (tmp_path / "out/run/models/clinic/model.json").exists()
    left = (tmp_path / "registry.site/ledger.jsonl").read_text()
    for name in persons["registry"].column("surname").values[:50]:
        assert str(name) not in left
    begun = Quota(tmp_path / "registry.site").read("SELECT driver FROM alignments")
    assert begun == [("clinic",)] * len(script["KEYS"])  # each pass is counted
