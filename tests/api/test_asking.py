"""What a run is asked before it trains and after: inspect, value, audit; as the commands say it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tables import SMALL, clinic_and_lab, parties

import dovetail as dt
from dovetail.api.aligning import rate_keys
from dovetail.errors import ConfigError

pytestmark = pytest.mark.usefixtures("brief_expectation")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dt.Run:
    """A small run of two DataFrames."""
    out = tmp_path_factory.mktemp("runs") / "run"
    method = dt.APFed("reconstruction", **SMALL)
    return dt.fit(method, parties(*clinic_and_lab()), out=out, quiet=True)


def test_dataframes_are_inspected_as_their_files_are(run: dt.Run) -> None:
    of_frames = dt.inspect(parties(*clinic_and_lab()))
    files = [run.folder / "given" / f"{name}.toml" for name in ("clinic", "lab")]
    of_files = dt.inspect(files)
    report, report_of_files = of_frames.to_json(), of_files.to_json()
    assert report["title"] == "clinic, lab"
    for each in (*report["parties"], *report_of_files["parties"]):
        assert each.pop("read")  # by the types of a frame, or by a file's texts
    for key in ("parties", "overlaps", "groups", "samples", "expected", "recommended"):
        assert report[key] == report_of_files[key], key
    assert report["overlaps"]["shared"] == {"lab": 90}
    assert of_frames.recommended == "apfed"
    assert report["next_command"] == "dovetail.fit(dovetail.APFed(), ...)"
    assert report_of_files["next_command"] == "dovetail train RUN --set method=apfed"


def test_an_inspection_prints_and_is_a_page(tmp_path: Path) -> None:
    inspection = dt.inspect(parties(*clinic_and_lab()))
    text = repr(inspection)
    assert "Recommended: APFed\nNext: dovetail.fit(dovetail.APFed(), ...)" in text
    assert "\x1b" not in text
    assert (
        inspection.save(tmp_path / "new" / "page.html").read_text(encoding="utf-8")
        == inspection.page
    )
    assert inspection._repr_html_().startswith('<iframe sandbox="" ')
    assert "<script" not in inspection._repr_html_()


def test_ids_may_be_compared_blinded_only() -> None:
    report = dt.inspect(parties(*clinic_and_lab()), private=True, quiet=True).to_json()
    assert report["overlaps"]["ids_compared"] is False
    assert report["overlaps"]["shared"] == {"lab": 90}
    assert report["groups"] is None


def test_who_agrees_to_no_counting_is_told_so() -> None:
    clinic, lab = clinic_and_lab()
    _, other = parties(clinic, lab)
    clinic_party = dt.Party("clinic", clinic, id="patient", label="ill")
    shy = dt.Party("shy", lab, id="patient", policy={"algorithms": ["apfed-mixed"]})
    report = dt.inspect([clinic_party, other, shy], private=True, quiet=True).to_json()
    assert report["overlaps"]["shared"] == {"lab": 90}
    assert report["overlaps"]["not_shown"] == {"shy": "refused"}


@pytest.mark.parametrize(
    ("deal", "method"),
    [
        (dt.Columns({"upper": "pixel_[0-3]_*", "lower": "pixel_[4-7]_*"}), "apfed"),
        (dt.CommonUnique(3), "chfl"),
    ],
)
def test_a_table_that_is_dealt_out_is_inspected(deal: dt.Partition, method: str) -> None:
    inspection = dt.inspect(dt.simulate("digits", deal))
    assert inspection.recommended == method
    assert {part.name for part in inspection.parts} == set(dt.simulate("digits", deal).parties)


def test_rows_are_matched_and_kept(tmp_path: Path) -> None:
    clinic, lab = clinic_and_lab()
    tables = [
        dt.Party("clinic", clinic, id="patient", label="ill", folder=tmp_path),
        dt.Party("lab", lab, id="patient", folder=tmp_path),
    ]
    counted = dt.align(tables, count=True, quiet=True)
    assert counted.shared == {"lab": 90}
    assert "files" not in counted.to_json()
    assert "Nobody has learned which" in repr(counted)
    assert not [*tmp_path.iterdir()]
    matched = dt.align(tables, quiet=True)
    assert matched.shared == {"lab": 90}
    assert matched.to_json()["rows"] == {"clinic": 120, "lab": 90}
    assert all(Path(path).is_file() for path in matched.to_json()["files"].values())
    assert dt.align(tables, count=True, hide_below=100, quiet=True).to_json()["not_shown"] == {
        "lab": "fewer than 100 (hidden)"
    }


def test_blocks_of_hyfem_are_named_and_its_run_is_audited() -> None:
    table = clinic_and_lab()[0].drop(columns="seen")
    halves = {"one": table[:60].drop(columns="ward"), "two": table[60:].drop(columns="age")}
    members = [dt.Party(name, half, id="patient", label="ill") for name, half in halves.items()]
    inspection = dt.inspect(members)
    assert inspection.recommended == "chfl"
    blocks = {
        "one": {"one": ["age"], "common": ["pressure"]},
        "two": {"common": ["pressure"], "two": ["ward"]},
    }
    for name, columns in blocks.items():  # printed to be pasted
        assert (
            f"  dovetail.Party({name!r}, ..., blocks={columns!r})" in repr(inspection).splitlines()
        )
    assert inspection.verdict.startswith("CHFL fits (yes: every party has labels")
    members = [
        dt.Party(name, half, id="patient", label="ill", blocks=blocks[name])
        for name, half in halves.items()
    ]
    run = dt.fit(dt.HyFEM(rounds=1, batch_size=8), members, quiet=True)
    assert repr(run.models["one"]) == "<model of one: label ill, method hyfem>"
    assert run.audit(fast=True, quiet=True).verdict in ("none", "low", "high")


@pytest.mark.slow
def test_a_run_of_owners_with_tables_of_their_own_is_audited() -> None:
    table = clinic_and_lab()[0]
    parts = {
        "north": table[:60][["patient", "ill"]],
        "south": table[60:][["patient", "ill"]],
        "clinic": table[["patient", "age", "ward"]],
        "lab": table[["patient", "pressure"]].sample(frac=1, random_state=0),
    }
    owners = [
        dt.Party(name, part, id="patient", label="ill" if "ill" in part else None)
        for name, part in parts.items()
    ]
    method = dt.FedOptimus(epochs=1, batch_size=16, bottom=[4], embedding=4, top=[4], members=1)
    with pytest.raises(ConfigError, match="bottom"):
        dt.fit(method, owners, quiet=True)
    method = dt.FedOptimus(epochs=1, batch_size=16, embedding=4, top=[4], members=1)
    audited = dt.fit(method, owners, quiet=True).audit(fast=True, quiet=True)
    assert {each["owner"] for each in audited.to_json()["findings"]} <= parts.keys()


def test_mistakes_are_told() -> None:
    clinic, lab = parties(*clinic_and_lab())
    with pytest.raises(ConfigError, match="two parties are called 'lab'"):
        dt.inspect([clinic, lab, lab])
    with pytest.raises(ConfigError, match="--set changes a run file's keys"):
        dt.inspect([clinic, lab], overrides=["apfed.epochs=1"])
    with pytest.raises(ConfigError, match="no party"):
        dt.inspect([])
    with pytest.raises(ConfigError, match="two party files or more"):
        dt.align([clinic])
    with pytest.raises(ConfigError, match="no match keys"):
        rate_keys(clinic)


def test_a_run_says_what_its_partners_are_worth(run: dt.Run, tmp_path: Path) -> None:
    values = run.value(by="loo", quiet=True)
    assert set(values.partners) == {"lab"}
    assert set(values.partners["lab"]) == {"mi", "loo", "joint_loo"}
    kept = (run.folder / "value.jsonl").read_bytes()
    assert run.value(by="loo", quiet=True).partners == values.partners
    assert (run.folder / "value.jsonl").read_bytes() == kept  # not trained again
    assert "leave-one-out" in repr(values)
    assert ">lab</th>" in values._repr_html_()
    rows = values.save(tmp_path / "values.csv").read_text(encoding="utf-8").splitlines()
    assert [row.split(",")[0] for row in rows] == ["partner", "lab"]
    with pytest.raises(ConfigError, match="--by takes mi, loo, shapley"):
        run.value(by="worth")


@pytest.mark.slow
def test_a_run_is_audited(run: dt.Run) -> None:
    audited = run.audit(fast=True, known=20, quiet=True)
    assert audited.verdict in ("none", "low", "high")
    assert {each.owner for each in audited.findings} == {"clinic", "lab"}
    assert json.loads((run.folder / "audit.json").read_text()) == json.loads(
        json.dumps(audited.to_json())
    )
    assert (run.folder / "audit.html").read_text(encoding="utf-8") == audited.page
    assert "Not tried: " in repr(audited)
