"""From two DataFrames to predictions on raw rows, in this process and in a new one."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tables import SMALL, clinic_and_lab, parties

import dovetail as dt
from dovetail.errors import ConfigError, DovetailError

AGAIN = """
import sys
import numpy as np
import pandas as pd
import polars as pl
import dovetail as dt
kind, folder, rows, out = sys.argv[1:]
rows = (pl if kind == "polars" else pd).read_parquet(rows)
np.save(out, dt.load(folder).predict_proba(rows))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dt.Run:
    """Two seeds and two baselines, of two pandas DataFrames."""
    out = tmp_path_factory.mktemp("runs") / "run"
    return dt.fit(
        dt.APFed("reconstruction", **SMALL),
        parties(*clinic_and_lab()),
        baselines=["alone", "tvfl"],
        seeds=2,
        out=out,
        quiet=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_model_of_two_frames_predicts_alike_in_a_new_process(kind: str, tmp_path: Path) -> None:
    clinic, lab = clinic_and_lab()
    if kind == "polars":
        clinic, lab = pl.from_pandas(clinic), pl.from_pandas(lab)
    run = dt.fit(dt.APFed("partners", **SMALL), parties(clinic, lab), quiet=True)
    model = run.models["clinic"]
    assert model.classes == ("no", "yes")
    before = model.predict_proba(clinic)
    assert before.shape == (120, 2)
    folder = model.save(tmp_path / "clinic")
    rows = tmp_path / "rows.parquet"
    (clinic.write_parquet if kind == "polars" else clinic.to_parquet)(rows)
    out = tmp_path / "again.npy"
    done = forked.code(tmp_path, AGAIN, kind, folder, rows, out)
    assert done.code == 0, done.err
    np.testing.assert_array_equal(np.load(out), before)


def arrow(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


def test_every_kind_of_frame_trains_the_same_model() -> None:
    clinic, lab = clinic_and_lab()
    weights = []
    for convert in (lambda frame: frame, pl.from_pandas, arrow):
        run = dt.fit(
            dt.APFed("partners", **SMALL), parties(convert(clinic), convert(lab)), quiet=True
        )
        weights.append(run.models["clinic"].network.state_dict())
    for other in weights[1:]:
        for name, tensor in weights[0].items():
            np.testing.assert_array_equal(other[name].numpy(), tensor.numpy())


def test_scores_are_a_table_of_the_run_and_its_baselines(run: dt.Run) -> None:
    assert list(run.scores)[:2] == ["APFed-R, predicts alone", "learned alone"]
    assert len(run.scores) == 6  # and four of classic vertical learning
    accuracy = run.scores["learned alone"]["accuracy"]
    assert run.scores.to_dict()["learned alone"]["accuracy"] == accuracy["mean"]  # type: ignore[index]
    frame = run.scores.to_pandas()
    assert frame.loc["learned alone", "accuracy std"] == accuracy["std"]  # type: ignore[index]
    assert isinstance(frame, pd.DataFrame)
    text = repr(run.scores)
    assert text.startswith("on the test rows")
    assert "\nmean ± std of 2 seeds\n" in text.replace(" \n", "\n")
    page = run._repr_html_()
    assert page.startswith("<table>")
    assert page.count("<circle") == 6


@pytest.mark.slow
def test_the_folder_is_a_run_folder_that_commands_use(run: dt.Run, tmp_path: Path) -> None:
    again = dt.Run(run.folder)
    assert again.scores.to_dict() == run.scores.to_dict()
    assert run.seeds == (0, 1)
    first, second = run.models_of(0)["clinic"], run.models_of(1)["clinic"]
    clinic, _ = clinic_and_lab()
    assert not np.array_equal(first.predict_proba(clinic), second.predict_proba(clinic))
    clinic.to_csv(tmp_path / "new.csv", index=False)
    for command in (
        ["predict", run.folder / "seed-0", tmp_path / "new.csv", "--id", "patient"],
        ["report", run.folder, "--data"],
        ["value", run.folder, "--by", "mi"],
        ["train", run.folder / "seed-1" / "run.toml", "--out", tmp_path / "again", "--json"],
    ):
        done = forked.command(tmp_path, *command)
        assert done.code == 0, done.err
    result = json.loads((tmp_path / "again" / "result.json").read_text())
    then = json.loads((run.folder / "seed-1" / "result.json").read_text())
    assert result["parties"] == then["parties"]
    assert result["baselines"] == then["baselines"]


def test_what_is_kept_of_a_frame_is_for_its_owner_and_what_is_used(tmp_path: Path) -> None:
    clinic, lab = clinic_and_lab()
    clinic["name"] = "not used"
    clinic_party = dt.Party(
        "clinic", clinic, id="patient", label="ill", columns=["age", "pressure"]
    )
    dt.fit(
        dt.APFed("partners", **SMALL),
        [clinic_party, parties(clinic, lab)[1]],
        out=tmp_path / "run",
        quiet=True,
    )
    kept = tmp_path / "run" / "given" / "clinic.parquet"
    assert kept.stat().st_mode & 0o077 == 0
    assert pl.read_parquet(kept).columns == ["patient", "ill", "age", "pressure"]


@pytest.mark.slow
def test_a_run_without_a_folder_leaves_nothing() -> None:
    run = dt.fit(dt.APFed("partners", **SMALL), parties(*clinic_and_lab()), quiet=True)
    folder = run.folder
    assert (folder / "result.json").exists()
    model = run.models["clinic"]
    del run
    gc.collect()
    assert not folder.parent.exists()
    assert len(model.predict(clinic_and_lab()[0])) == 120


def test_a_run_that_was_done_is_resumed_without_training(tmp_path: Path) -> None:
    def once(resume: bool) -> dt.Run:
        method = dt.APFed("partners", **SMALL)
        given = parties(*clinic_and_lab())
        return dt.fit(method, given, seeds=[3], out=tmp_path / "run", resume=resume, quiet=True)

    first = once(resume=False)
    written = (tmp_path / "run" / "metrics.jsonl").stat().st_mtime_ns
    with pytest.raises(ConfigError, match=r'with overwrite=True to .* out="\S+run-2" to keep'):
        once(resume=False)
    assert once(resume=True).scores.to_dict() == first.scores.to_dict()
    assert (tmp_path / "run" / "metrics.jsonl").stat().st_mtime_ns == written


def test_parties_of_python_are_parties_of_files(tmp_path: Path) -> None:
    clinic, lab = clinic_and_lab()
    files = []
    for name, frame, label in (("clinic", clinic, 'label = "ill"\n'), ("lab", lab, "")):
        frame.to_parquet(tmp_path / f"{name}.parquet")
        files.append(tmp_path / f"{name}.toml")
        files[-1].write_text(
            f'[party]\nname = "{name}"\ntable = "{name}.parquet"\nid = "patient"\n{label}'
            '[policy]\nalgorithms = ["align", "apfed-mixed"]\n[apfed]\nencoder = [8]\n'
        )
    of_files = dt.fit(dt.APFed("partners", **SMALL), files, quiet=True)
    of_frames = dt.fit(dt.APFed("partners", **SMALL), parties(clinic, lab), quiet=True)
    of_paths = dt.fit(
        dt.APFed("partners", **SMALL),
        parties(tmp_path / "clinic.parquet", f"SELECT * FROM '{tmp_path}/lab.parquet'"),
        quiet=True,
    )
    assert of_files.scores.to_dict() == of_frames.scores.to_dict() == of_paths.scores.to_dict()
    with pytest.raises(ConfigError, match="set their own"):
        dt.fit(dt.APFed("contrastive", passive={"encoder": (4,)}), files, quiet=True)


@pytest.mark.slow
def test_a_loss_is_of_those_who_say_none() -> None:
    clinic, lab = clinic_and_lab()

    def trained(variant: Any, **settings: Any) -> float:
        given = [
            dt.Party("clinic", clinic, id="patient", label="ill"),
            dt.Party("lab", lab, id="patient", apfed={"encoder": (8,), **settings}),
        ]
        run = dt.fit(dt.APFed(variant, **SMALL), given, quiet=True)
        weights = run.models["clinic"].network.state_dict()
        return float(sum(each.double().sum() for each in weights.values()))

    said = trained("reconstruction", loss="reconstruction")
    assert said == trained("reconstruction") != trained("contrastive")
    assert trained("partners", loss="reconstruction") == said
    with pytest.raises(DovetailError, match="its own loss is 'reconstruction'"):
        trained("contrastive", loss="reconstruction")


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_one_table_is_dealt_to_parties(kind: str, tmp_path: Path) -> None:
    clinic, lab = clinic_and_lab()
    table: Any = clinic.merge(lab, on="patient", how="left")
    if kind == "polars":
        table = pl.from_pandas(table)
    deal = dt.Columns({"clinic": ["age", "pressure"], "lab": ["marker", "tube"]})
    simulated = dt.simulate(table, deal, label="ill", id="patient", labels=40)
    assert simulated.parties == ("clinic", "lab")
    run = dt.fit(
        dt.APFed("contrastive", passive={"encoder": (8,)}, **SMALL),
        simulated,
        baselines=["pooled"],
        out=tmp_path / "run",
        quiet=True,
    )
    assert list(run.scores) == ["APFed-C, predicts alone", "pooled (all columns in one place)"]
    assert len(run.models["clinic"].predict(table)) == 120
    done = forked.command(tmp_path, "value", run.folder, "--by", "mi")
    assert done.code == 0, done.err


def test_one_table_with_few_labels_is_tested_by_labelled_rows() -> None:
    clinic, lab = clinic_and_lab()
    table = clinic.merge(lab, on="patient", how="left")
    table["ill"] = table["ill"].astype(object).where(table.index < 60)
    deal = dt.Columns({"clinic": ["age", "pressure"], "lab": ["marker", "tube"]})
    run = dt.fit("best-alone", dt.simulate(table, deal, label="ill", id="patient"), quiet=True)
    (details,) = run.result["variants"]["best-alone"]["details"].values()
    assert details["clinic"]["rows"] == 15


@pytest.mark.slow
def test_the_other_methods_fit_too() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(160, 4)), columns=["a", "b", "c", "d"])
    table["y"] = np.where(table["a"] + table["b"] > 0, "up", "down")
    table["id"] = range(160)
    half = {"one": table[:80][["id", "a", "b", "c", "y"]], "two": table[80:]}
    members = [dt.Party(name, frame, id="id", label="y") for name, frame in half.items()]
    chfl = dt.CHFL(rounds=2, widths=(8, 8), batch_size=8)
    run = dt.fit(chfl, members, test=0.5, quiet=True)
    assert set(run.models) == {"one", "two"}
    assert len(run.models["one"].predict(half["one"])) == 80

    deal = dt.CommonUnique(3, common=0.5, validation=0.2)
    run = dt.fit(chfl, dt.simulate(table, deal, label="y", id="id"), quiet=True)
    assert len(run.models) == 3

    shares = [
        {"party": "one", "blocks": ["ab"], "classes": [1, 2], "rows": 0.5},
        {"party": "two", "blocks": ["ab", "cd"], "classes": [1, 2], "rows": 0.5},
    ]
    blocks = dt.Blocks({"ab": ["a", "b"], "cd": ["c", "d"]}, assignment=shares)
    run = dt.fit(
        dt.HyFEM(rounds=2, batch_size=8), dt.simulate(table, blocks, label="y", id="id"), quiet=True
    )
    assert {"one", "two"} <= set(run.models)

    owners = dt.Owners({"left": ["a", "b"], "right": ["c", "d"]}, label_owners=2)
    run = dt.fit(
        dt.FedOptimus(rounds=2, batch_size=8),
        dt.simulate(table, owners, label="y", id="id"),
        quiet=True,
    )
    joint = next(iter(run.models.values()))
    assert joint.predict_proba(table).shape == (160, 2)


def test_strips_of_images_are_dealt_out() -> None:
    simulated = dt.simulate("digits-images", dt.Strips(2), rows=200)
    run = dt.fit(dt.APFed("reconstruction", **SMALL), simulated, quiet=True)
    assert list(run.models) == ["view-1"]
