"""Parties with files of their own are aligned privately and train as if ids were compared."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import torch
from sklearn.model_selection import train_test_split

from dovetail import data as dd
from dovetail import runs
from dovetail.federated import Local
from dovetail.methods import apfed
from dovetail.models import Head, Perceptron
from dovetail.network import InProcess
from dovetail.network.in_use import in_use
from dovetail.runs.runfile import load_run
from dovetail.runs.setup import load_data, setup


def assert_refused(done: Any, words: str) -> None:
    assert (done.code, done.out) == (2, "")
    assert re.search(words, done.err), done.err
    assert done.err.startswith("dovetail: ")
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err


def weights(folder: Path | str, party: str = "clinic") -> bytes:
    """The model that a run left."""
    return (Path(folder) / "models" / party / "model.safetensors").read_bytes()


def result(folder: Path | str) -> Any:
    return json.loads((Path(folder) / "result.json").read_text())


# --- dovetail align -------------------------------------------------------------------------------


def test_align_prints_the_true_overlaps_and_writes_a_part_beside_each_party_file(
    dovetail: Any, deal: Any
) -> None:
    dealt = deal()
    done = dovetail("align", *dealt.files)
    assert (done.code, dealt.shared("clinic", "lab")) == (0, 60)
    for line in (
        r"Shared with 'clinic'",
        r"clinic +│ +160 ",
        r"lab +│ +100 │ +60 │ +37\.5%",
        r"registry +│ +100 │ +90 │ +56\.2%",
        r"all of them +│ +│ +40 │ +25\.0%",
        r"'clinic' has learned which of its rows each partner has",
        r"Next: dovetail train ",
    ):
        assert re.search(line, done.out), done.out
    for name in dealt.held:
        assert (dealt.folder / f"{name}.aligned.safetensors").exists()


def test_align_of_nobody_says_so_and_not_to_train(dovetail: Any, tmp_path: Path) -> None:
    for name, ids in (("bank", "ab"), ("shop", "xy")):
        rows = [f"{letter}{row},{row}" for letter in ids for row in range(8)]
        (tmp_path / f"{name}.csv").write_text("\n".join([f"id,{name}_a", *rows]))
        party = f'[party]\nname = "{name}"\ntable = "{name}.csv"\nid = "id"\n'
        (tmp_path / f"{name}.toml").write_text(party)
    files = [tmp_path / "bank.toml", tmp_path / "shop.toml"]
    for more in ((), ("--count",)):
        done = dovetail("align", *files, *more)
        assert (done.code, "No row is shared: check the id columns" in done.out) == (0, True)
        assert "Next:" not in done.out


def test_the_parts_name_the_same_people_in_one_order(dovetail: Any, deal: Any) -> None:
    from dovetail.alignment.stored import load_rows

    dealt = deal()
    dovetail("align", *dealt.files, "-q")
    rows = {
        name: load_rows(
            dealt.folder / f"{name}.aligned.safetensors", name, dealt.ids(name).astype(np.str_)
        ).rows_S.numpy()
        for name in dealt.held
    }
    samples = dealt.held["clinic"][rows["clinic"]]
    assert sorted(samples) == sorted(dealt.held["clinic"])
    assert samples.tolist() != dealt.held["clinic"].tolist()  # at random
    for name in ("lab", "registry"):
        has = rows[name] >= 0
        assert dealt.held[name][rows[name][has]].tolist() == samples[has].tolist()
        assert has.sum() == dealt.shared("clinic", name)


def test_json_and_quiet_say_the_same_and_nothing(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    done = dovetail("align", *dealt.files, "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == {
        "mode": "intersection",
        "initiator": "clinic",
        "rows": {"clinic": 160, "lab": 100, "registry": 100},
        "shared": {"lab": 60, "registry": 90},
        "shared_by_all": 40,
        "files": {name: str(dealt.folder / f"{name}.aligned.safetensors") for name in dealt.held},
    }
    done = dovetail("align", *dealt.files, "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_counting_tells_numbers_and_writes_nothing(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    done = dovetail("align", *dealt.files, "--count")
    assert re.search(r"registry +│ +100 │ +90 │ +56\.2%", done.out)
    assert "Nobody has learned which." in done.out
    assert "all of them" not in done.out
    counted = json.loads(dovetail("align", *dealt.files, "--count", "--json").out)
    assert counted == {
        "mode": "cardinality",
        "initiator": "clinic",
        "rows": {"clinic": 160, "lab": 100, "registry": 100},
        "shared": {"lab": 60, "registry": 90},
    }
    assert not list(dealt.folder.glob("*.safetensors"))


@pytest.mark.parametrize("count", [(), ("--count",)])
def test_another_party_may_start(dovetail: Any, deal: Any, count: tuple[str, ...]) -> None:
    dealt = deal()
    report = json.loads(dovetail("align", *dealt.files, "--initiator", "lab", "--json", *count).out)
    assert report["initiator"] == "lab"
    assert report["shared"] == {"clinic": 60, "registry": dealt.shared("lab", "registry")}
    done = dovetail("align", *dealt.files, "--initiator", "shop", *count)
    assert_refused(done, r"--initiator is 'shop'; parties are \['clinic', 'lab', 'registry'\]")


def test_the_first_starts_where_not_exactly_one_has_labels(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    files = dealt.files[1:]
    assert json.loads(dovetail("align", *files, "--json").out)["initiator"] == "lab"


def test_ids_may_be_compared_without_regard_to_case(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    dealt.change("lab.csv", *[(f"P-{row:03d}", f"p-{row:03d}") for row in range(100, 200)])
    files = dealt.files[:2]
    assert json.loads(dovetail("align", *files, "--json").out)["shared"] == {"lab": 0}
    dealt.change("lab.toml", ("[party]", '[party]\nid_as = "lowercase"'))
    words = "lab.*(lower|case)"
    assert_refused(dovetail("align", *files, "-q"), words)
    dealt.change("clinic.toml", ("[party]", '[party]\nid_as = "lowercase"'))
    assert json.loads(dovetail("align", *files, "--json").out)["shared"] == {"lab": 60}


def test_ids_may_be_compared_as_digits(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    for name, digits in (("clinic", ""), ("lab", "00")):
        text = (dealt.folder / f"{name}.csv").read_text()
        (dealt.folder / f"{name}.csv").write_text(re.sub(r"P-0*(?=\d)", digits, text))
    files = dealt.files[:2]
    assert json.loads(dovetail("align", *files, "--json").out)["shared"] == {"lab": 0}
    dealt.change("lab.toml", ("[party]", "[party]\nid_as = 'digits'"))
    words = "'clinic' compares ids as 'text', 'lab' as 'digits'; both party files must"
    assert_refused(dovetail("align", *files, "-q"), words)
    dealt.change("clinic.toml", ("[party]", "[party]\nid_as = 'digits'"))
    assert json.loads(dovetail("align", *files, "--json").out)["shared"] == {"lab": 60}
    last = (dealt.folder / "lab.csv").read_text().splitlines()[-1].split(",", 1)
    with (dealt.folder / "lab.csv").open("a") as table:
        table.write(f"{last[0]}.0,{last[1]}\n")
    words = r"'lab': id_as = .digits. takes .* digits 0 to 9 .*row 100 of lab.csv has '00\d+\.0'"
    assert_refused(dovetail("align", *files, "-q"), words)


def test_a_part_that_cannot_be_written_is_told(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    (dealt.folder / "lab.aligned.safetensors").mkdir()
    words = r"party 'lab': cannot write its part of the alignment, .*lab\.aligned\.safetensors"
    assert_refused(dovetail("align", *dealt.files, "-q"), words)


def test_parties_that_are_being_aligned_are_not_aligned_twice(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    name = ".lab.aligned.safetensors.lock"
    with in_use(dealt.folder, "", lock=name):
        words = rf"lab\.aligned\.safetensors is in use by process {os.getpid()} on .*, or align oth"
        assert_refused(dovetail("align", *dealt.files, "-q"), words)
    assert dovetail("align", *dealt.files, "-q").code == 0


# --- Training -------------------------------------------------------------------------------------

#: How every party of ``in_the_clear`` follows its gradients, which are not the defaults of a file.
FOLLOWS: dict[str, Any] = {
    "optimizer": "sgd",
    "learning_rate": 0.001,
    "momentum": 0.9,
    "weight_decay": 1e-4,
}


def in_the_clear(dealt: Any, overlap: str) -> bytes:
    """The weights of ``PARTY_RUN``, by hand: the same rows, ids compared in the clear."""
    tables = {
        name: dd.read_table(dealt.folder / f"{name}.csv").without(["person"]) for name in dealt.held
    }
    label = tables["clinic"].column("diagnosis")
    rows = np.arange(len(label.values))
    _, test = train_test_split(rows, test_size=0.25, random_state=0, stratify=label.values)
    train = np.setdiff1d(rows, test)
    task = dd.fit_task(label.values[train], label.missing[train], kind="classification", label="y")

    def block(name: str, rows: np.ndarray) -> torch.Tensor:
        kept = tables[name].take(rows)
        return dd.TableEncoder.fit(kept, dealt.columns[name], party=name).transform(kept)

    def party(name: str, rows: np.ndarray, labels: torch.Tensor | None = None) -> dd.PartyData:
        ids = dealt.ids(name)[rows].astype(np.str_)
        return dd.PartyData(name, ids, {"own": block(name, rows)}, labels)

    labels = dd.encode_labels(task, label.values[train], label.missing[train], label="y")
    federation = dd.Federation(
        [party("clinic", train, labels)]
        + [party(name, np.arange(len(dealt.held[name]))) for name in ("lab", "registry")]
    )
    alignment = federation.align("clinic")
    passives = {
        name: apfed.Passive(
            dd.SharedRows(name, federation[name].joined(), alignment.rows[name]),
            apfed.PassiveConfig(**FOLLOWS),
            Perceptron((8,)),
            Local(name),
        )
        for name in ("lab", "registry")
    }
    active = apfed.Active(
        federation["clinic"],
        alignment,
        task,
        apfed.Config(
            epochs=2,
            overlap=overlap,  # type: ignore[arg-type]
            validation=0.0,
            **{**FOLLOWS, "learning_rate": 0.05},
        ),
        Local("clinic"),
        seed=0,
        encoder=Perceptron((8,)),
        head=Head((8,), 0.5),
    )
    for _ in apfed.train(active, InProcess(passives, driver="clinic")):
        pass
    return weights(active.model().save(dealt.folder / "clear" / "models" / "clinic").parents[1])


@pytest.mark.slow
@pytest.mark.parametrize(("overlap", "seed"), [("pairwise", 0), ("common", 1)])
def test_private_alignment_trains_bit_for_bit_what_ids_in_the_clear_train(
    dovetail: Any, deal: Any, overlap: str, seed: int
) -> None:
    dealt = deal(seed=seed)
    follows = "".join(f"{key} = {json.dumps(value)}\n" for key, value in FOLLOWS.items())
    for name in ("lab", "registry"):
        dealt.change(f"{name}.toml", ("[apfed]\n", f"[apfed]\n{follows}"))
    flat_settings = {
        **FOLLOWS,
        "learning_rate": 0.05,
        "validation": 0.0,
        "dropout": 0.5,
        "overlap": overlap,
    }
    settings = [
        word for key, value in flat_settings.items() for word in ("--set", f"apfed.{key}={value}")
    ]
    done = dovetail("train", "run.toml", "-q", *settings)
    assert (done.code, done.out, done.err) == (0, "", "")
    assert weights("out/run") == in_the_clear(dealt, overlap)


@pytest.mark.slow
def test_rows_that_only_the_active_party_has_are_trained_on(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    for overlap in ("pairwise", "common"):
        dovetail("train", "run.toml", "-q", "--out", overlap, "--set", f"apfed.overlap={overlap}")
    assert weights("pairwise") != weights("common")
    # Another value in a training row of the clinic's that nobody shares changes the weights,
    # unless only shared rows train.
    lines = (dealt.folder / "clinic.csv").read_text().splitlines()
    alone = [number for number, line in enumerate(lines) if re.match(r"P-0[01]\d,", line)]
    for number in alone:
        fields = lines[number].split(",")
        other = {"benign": "malignant", "malignant": "benign"}[fields[-1]]
        lines[number] = ",".join([*fields[:-1], other])
    (dealt.folder / "clinic.csv").write_text("\n".join(lines) + "\n")
    run = load_run(dealt.folder / "run.toml")
    split = load_data(run).data.train["clinic"].ids
    assert len({lines[number][:5] for number in alone} & set(split.tolist())) > 5
    dovetail("train", "run.toml", "-q", "--out", "changed")
    assert weights("changed") != weights("pairwise")


@pytest.mark.slow
def test_a_run_uses_what_align_left_and_aligns_anew_where_it_is_gone(
    dovetail: Any, deal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dealt = deal()
    dealt.change("run.toml", ('"apfed-mixed"', '"apfed-mixed"\nbaselines = ["tvfl"]'))

    def train(folder: str) -> tuple[bytes, Any]:
        done = dovetail("train", "run.toml", "-q", "--out", folder)
        assert (done.code, done.err) == (0, "")
        return weights(folder), (result(folder)["parties"], result(folder)["baselines"])

    anew = train("anew")
    assert not list(dealt.folder.glob("*.safetensors"))
    dovetail("align", *dealt.files, "-q")
    with monkeypatch.context() as patched:
        patched.setattr("dovetail.methods.apfed.plugin.align_sites", None)  # not called
        assert train("stored") == anew
    (dealt.folder / "lab.aligned.safetensors").unlink()
    assert train("again") == anew


def test_who_started_the_alignment_of_two_changes_nothing(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    dealt.change("run.toml", (', "registry.toml"', ""))
    for starter in ("clinic", "lab"):
        dovetail("align", *dealt.files[:2], "--initiator", starter, "-q")
        assert dovetail("train", "run.toml", "-q", "--out", starter).err == ""
    assert weights("clinic") == weights("lab")


def test_an_alignment_of_three_around_another_party_is_refused(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    dovetail("align", *dealt.files, "--initiator", "lab", "-q")
    words = (
        "party 'clinic': 100 of its 160 rows are not in the alignment, which was made around "
        "another party; run dovetail align --initiator clinic .*clinic.toml .*lab.toml"
    )
    assert_refused(dovetail("train", "run.toml", "-q"), words)


@pytest.mark.slow
def test_a_stale_alignment_is_refused(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    dovetail("align", *dealt.files, "-q")
    lines = (dealt.folder / "lab.csv").read_text().splitlines()
    (dealt.folder / "lab.csv").write_text("\n".join([lines[0], *lines[:0:-1]]) + "\n")
    words = r"party 'lab': its table has changed since it was aligned .*; align again \(dovetail al"
    assert_refused(dovetail("train", "run.toml", "-q"), words)
    assert not Path("out").exists()
    dovetail("align", *dealt.files, "-q")
    assert dovetail("train", "run.toml", "-q").code == 0


def test_parts_of_two_alignments_are_refused(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    dovetail("align", *dealt.files, "-q")
    dovetail("align", *dealt.files[:2], "-q")
    words = r"\['clinic', 'lab', 'registry'\] were not aligned together; run dovetail align .*lab"
    assert_refused(dovetail("train", "run.toml", "-q"), words)


def test_a_part_that_is_broken_is_refused(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    dovetail("align", *dealt.files, "-q")
    (dealt.folder / "lab.aligned.safetensors").write_bytes(b"broken")
    assert_refused(dovetail("train", "run.toml", "-q"), "is no alignment .*; align again")


@pytest.mark.slow
def test_the_baselines_are_what_they_are_on_their_own(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    dealt.change("run.toml", ('"apfed-mixed"', '"apfed-mixed"\nbaselines = ["alone", "tvfl"]'))
    done = dovetail("train", "run.toml", "--out", "both")
    assert done.code == 0
    assert "learned alone" in done.out
    assert "classic vertical, partners present" in done.out
    baselines = result("both")["baselines"]
    assert baselines.keys() == {"alone", "tvfl", "tvfl-0", "tvfl-a", "tvfl-r"}
    # Alone, nobody else is asked, and lambda = 0 is the same bit for bit.
    dovetail(
        "train",
        "run.toml",
        "-q",
        "--out",
        "alone",
        "--set",
        "method=alone",
        "--set",
        "baselines=[]",
    )
    dovetail("train", "run.toml", "-q", "--out", "zero", "--set", "apfed.trade_off=0.0")
    assert result("alone")["parties"]["clinic"] == baselines["alone"]
    assert weights("alone") == weights("zero") != weights("both")
    # Classic vertical learning by ids in the clear, of training and of test rows.
    run = load_run(dealt.folder / "run.toml", overrides=("method=tvfl", "baselines=[]"))
    clear = setup(run, 0, replace(load_data(run), alignment=None, test_alignment=None))
    ((_, outcome),) = runs.run(clear, 0, lambda *_: None)
    details = result("both")["variants"]["tvfl"]["details"]
    assert json.loads(json.dumps(outcome.scores)) == {
        name: {"clinic": {**baselines[name], "details": details[name]["clinic"]}}
        for name in outcome.scores
    }
    assert len(outcome.scores) == 4


def test_alone_needs_no_partners_file(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    dealt.change("run.toml", (', "lab.toml", "registry.toml"', ""), ('"apfed-mixed"', '"alone"'))
    assert dovetail("train", "run.toml", "-q").code == 0
    dealt.change("run.toml", ('"alone"', '"apfed-mixed"'))
    words = "'clinic' is the only party; name its partners' files in parties, or write"
    assert_refused(dovetail("train", "run.toml", "-q", "--overwrite"), words)


def test_without_a_test_share_all_rows_train(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    dealt.change("run.toml", ("test = 0.25\n", ""))
    done = dovetail("train", "run.toml")
    assert done.code == 0
    assert result("out/run")["parties"] == {"clinic": {}}
    loaded = load_data(load_run(dealt.folder / "run.toml"))
    assert (loaded.data.train["clinic"].num_rows, loaded.data.test) == (160, None)


def test_rows_without_a_label_train_and_are_not_tested_on(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    text = (dealt.folder / "clinic.csv").read_text()
    (dealt.folder / "clinic.csv").write_text(re.sub(r"(P-1\d\d,.*,)\w+", r"\1", text))
    assert dovetail("train", "run.toml", "-q").code == 0
    loaded = load_data(load_run(dealt.folder / "run.toml"))
    assert loaded.data.test is not None
    assert loaded.data.test["clinic"].num_rows == 25  # of the 100 that have one
    assert loaded.data.train["clinic"].num_rows == 135
    assert len(loaded.data.train["clinic"].labelled_rows()) == 75


def test_a_number_is_predicted(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    dealt.change(
        "clinic.toml", ('"diagnosis"', '"mean area"\ntask = "regression"\ncolumns = ["mean *"]')
    )
    dealt.change("clinic.toml", ('["mean *"]', '["mean s*", "mean r*"]'))
    assert dovetail("train", "run.toml", "-q").code == 0
    assert result("out/run")["parties"]["clinic"].keys() == {"rmse", "mae", "r2"}


def test_a_passive_party_may_have_text_and_gaps(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    count = len(dealt.held["lab"])
    dd.write_table(
        dealt.folder / "lab.csv",
        {
            "person": dealt.ids("lab"),
            "job": np.array([["cook", "smith", None][row % 3] for row in range(count)], object),
            "dose": np.where(np.arange(count) % 4, np.arange(count) / 7, np.nan),
            "day": np.arange(count).astype("datetime64[D]"),
        },
    )
    done = dovetail("train", "run.toml", "-q")
    assert (done.code, done.err) == (0, "")  # left out of no step
    inputs = load_data(load_run(dealt.folder / "run.toml")).data.inputs["lab"]
    assert isinstance(inputs, dd.TableEncoder)
    assert set(inputs.columns) == {"job", "dose", "day"}


@pytest.mark.slow
def test_each_partys_own_settings_are_its_files(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    dovetail("train", "run.toml", "-q", "--out", "contrastive")
    dealt.change("lab.toml", ("encoder = [8]", 'encoder = [5]\nloss = "reconstruction"'))
    assert dovetail("train", "run.toml", "-q", "--out", "mixed").err == ""
    assert weights("mixed") != weights("contrastive")
    dealt.change("lab.toml", ('loss = "reconstruction"', ""))
    words = (
        "party 'lab': .* the active party's is 8, that of this party's .* another; change .*width"
    )
    assert_refused(dovetail("train", "run.toml", "-q"), words)


def test_the_resolved_settings_repeat_the_run(dovetail: Any, deal: Any, tmp_path: Path) -> None:
    dealt = deal(tmp_path / "somewhere")
    dovetail("train", "somewhere/run.toml", "--out", "one", "--seed", 5, "-q")
    kept = tomllib.loads(Path("one/run.toml").read_text())
    assert kept["parties"] == [str(file) for file in dealt.files]
    dovetail("train", "one/run.toml", "--out", "two", "-q")
    assert weights("one") == weights("two")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "sqlite", "query"])
def test_paths_are_relative_to_the_party_file(
    dovetail: Any, deal: Any, tmp_path: Path, kind: str
) -> None:
    dealt = deal(tmp_path / "sites")
    (tmp_path / "sites" / "run.toml").rename(tmp_path / "run.toml")
    if kind != "query":  # where DuckDB looks in the working directory first
        (tmp_path / "lab.csv").write_text("another,table\n1,2\n")
    dealt_run = (tmp_path / "run.toml").read_text()
    for name in dealt.held:
        dealt_run = dealt_run.replace(f'"{name}.toml"', f'"sites/{name}.toml"')
    (tmp_path / "run.toml").write_text(dealt_run)
    dovetail("train", "run.toml", "-q", "--out", "csv")
    table = dd.read_table(dealt.folder / "lab.csv")
    columns = {name: table.column(name).values for name in table.names}
    if kind == "parquet":
        dd.write_table(dealt.folder / "lab.parquet", columns)
        source = '"lab.parquet"'
    elif kind == "query":
        source = "\"SELECT * FROM 'lab.csv'\""
    else:
        with sqlite3.connect(dealt.folder / "lab.db") as connection:
            names = ", ".join(f'"{name}"' for name in columns)
            connection.execute(f"CREATE TABLE lab ({names})")
            marks = ", ".join("?" * len(columns))
            rows = zip(*(values.tolist() for values in columns.values()), strict=True)
            connection.executemany(f"INSERT INTO lab VALUES ({marks})", rows)
        connection.close()
        source = '"sqlite:///lab.db"'
    dealt.change("lab.toml", ('"lab.csv"', source))
    done = dovetail("train", "run.toml", "-q", "--out", kind)
    assert (done.code, done.err) == (0, "")
    assert weights(kind) == weights("csv")


@pytest.mark.slow
def test_a_fresh_process_predicts_from_the_model_alone(
    dovetail: Any, deal: Any, tmp_path: Path
) -> None:
    dealt = deal(tmp_path / "sites")
    done = dovetail("train", "sites/run.toml", "-q", "--out", "run", "--set", "apfed.epochs=20")
    assert (done.code, done.err) == (0, "")
    (tmp_path / "clinic.csv").write_bytes((dealt.folder / "clinic.csv").read_bytes())
    for file in dealt.folder.iterdir():
        file.unlink()
    words = ("predict", "run", "clinic.csv", "--id", "person", "--out", "said.csv")
    run = forked.command(tmp_path, *words)
    assert run.code == 0, run.err
    predicted = dd.read_table(tmp_path / "said.csv")
    assert predicted.column("person").values.tolist() == dealt.ids("clinic").tolist()
    truth = dd.read_table(tmp_path / "clinic.csv").column("diagnosis").values
    right = (predicted.column("diagnosis").values == truth).mean()
    assert right > 0.8
    assert f"against the column 'diagnosis': accuracy {right:.4f}" in run.err


# --- Mistakes -------------------------------------------------------------------------------------

LABELLED = ('name = "lab"', 'name = "lab"\nlabel = "worst area"')

#: What is wrong -> a file, what stands there, what instead, and the words that tell.
MISTAKES: dict[str, tuple[str, str, str, str]] = {
    "training refused": (
        "lab.toml",
        "[apfed]",
        '[policy]\nalgorithms = ["align"]\n[apfed]',
        r"party 'lab' refuses 'apfed-mixed': its policy allows align \(.*lab\.toml\)",
    ),
    "alignment refused": (
        "lab.toml",
        "[apfed]",
        '[policy]\nalgorithms = ["apfed-mixed"]\n[apfed]',
        r"party 'lab' refuses 'align': its policy allows apfed-mixed \(.*lab\.toml\)",
    ),
    "everything refused": (
        "lab.toml",
        "[apfed]",
        "[policy]\nalgorithms = []\n[apfed]",
        r"party 'lab' refuses 'apfed-mixed': its policy allows nothing",
    ),
    "the driver refused": (
        "registry.toml",
        "[apfed]",
        '[policy]\ndrivers = ["bank", "shop"]\n[apfed]',
        r"party 'registry' refuses the driver 'clinic': its policy allows bank, shop; add it "
        r"to policy\.drivers \(.*registry",
    ),
    "sets too small to compare": (
        "lab.toml",
        "[apfed]",
        "[policy]\nmin_ids = 100000\n[apfed]",
        r"party 'lab': 'clinic' has \d+ ids; this party compares itself with sets of 100000 or",
    ),
    "an alignment that would tell which": (
        "lab.toml",
        "[apfed]",
        '[policy]\nalign_modes = ["cardinality"]\n[apfed]',
        r"party 'lab': 'clinic' asks for mode 'intersection'; this party agrees to cardinality",
    ),
    "two parties of one name": (
        "registry.toml",
        'name = "registry"\ntable = "registry.csv"',
        'name = "lab"\ntable = "registry.csv"',
        r"lab\.toml and .*registry\.toml are both party 'lab'; names must differ",
    ),
    "no party with labels": (
        "clinic.toml",
        'label = "diagnosis"',
        "",
        r"exactly one party must have labels, or say active = NAME; with labels: none",
    ),
    "two parties with labels": (
        "lab.toml",
        *LABELLED,
        r"or say active = NAME; with labels: clinic, lab",
    ),
    "an active party that is not there": (
        "run.toml",
        "test = 0.25",
        'test = 0.25\nactive = "shop"',
        r"active is 'shop'; parties are \['clinic', 'lab', 'registry'\]",
    ),
    "an active party without labels": (
        "run.toml",
        "test = 0.25",
        'test = 0.25\nactive = "lab"',
        r"active is 'lab', whose party file names no label",
    ),
    "settings for passive parties": (
        "run.toml",
        "[apfed]",
        "[passive]\nencoder = [8]\n[apfed]",
        r"run\.toml: \[passive\] is for simulation; with parties .* own file has its settings",
    ),
    "everybody's columns in one place": (
        "run.toml",
        "test = 0.25",
        'test = 0.25\nbaselines = ["pooled"]',
        r"the baseline 'pooled' puts everybody's columns in one place, .*; leave it out",
    ),
    "one loss for all": (
        "run.toml",
        'method = "apfed-mixed"',
        'method = "apfed-r"',
        r"party 'lab': its own loss is 'contrastive' .*, and the run is of 'reconstruction'; write",
    ),
    "both kinds of data": (
        "run.toml",
        "[apfed]",
        '[data]\nsource = "digits"\npartition = {kind = "strips", views = 2}\n[apfed]',
        r"run\.toml: give either \[data\] with a partition .* or parties = \[\.\.\.\], party files",
    ),
    "no data": (
        "run.toml",
        'parties = ["clinic.toml", "lab.toml", "registry.toml"]\ntest = 0.25',
        "",
        r"run\.toml: give either \[data\] with a partition",
    ),
    "an active party in simulation": (
        "run.toml",
        'parties = ["clinic.toml", "lab.toml", "registry.toml"]',
        'data = {source = "digits-images", partition = {kind = "strips", views = 2}}',
        r"active and test go with parties; in simulation set them in \[data\]",
    ),
    "a test share too small for the classes": (
        "run.toml",
        "test = 0.25",
        "test = 0.006",
        r"the 160 labelled rows of party 'clinic' with test = 0\.006 by label: each of the 2 kinds",
    ),
    "a test share of more than all": (
        "run.toml",
        "test = 0.25",
        "test = 1.0",
        r"run\.toml: test: input should be less than 1, got 1\.0",
    ),
    "a weight for a party that is not there": (
        "run.toml",
        "epochs = 2",
        "epochs = 2\ntrade_off = { lab = 1.0, registry = 1.0, shop = 1.0 }",
        r"trade_off names 'shop', which is no passive party.*\['lab', 'registry'\]",
    ),
    "a weight too few": (
        "run.toml",
        "epochs = 2",
        "epochs = 2\ntrade_off = { lab = 1.0 }",
        r"trade_off names \['lab'\] but not party 'registry'; add its weight",
    ),
    "no such party file": (
        "run.toml",
        '"lab.toml"',
        '"labb.toml"',
        r"there is no file .*labb\.toml",
    ),
    "a run file as a party": (
        "run.toml",
        '"lab.toml"',
        '"run.toml"',
        r"run\.toml is no party file: it has no \[party\] table",
    ),
    "an unknown key of a party": (
        "lab.toml",
        'id = "person"',
        'idd = "person"',
        r"lab\.toml: unknown key 'party\.idd'; did you mean 'id'\?",
    ),
    "an unknown key of its settings": (
        "lab.toml",
        "encoder = [8]",
        "encodr = [8]",
        r"lab\.toml: unknown key 'apfed\.encodr'; did you mean 'encoder'\?",
    ),
    "no id": ("lab.toml", 'id = "person"', "", r"lab\.toml: the key 'party\.id' is missing"),
    "no name": (
        "lab.toml",
        'name = "lab"',
        'name = ""',
        r"lab\.toml: party\.name: a party's name begins with .*, got ''",
    ),
    "columns and blocks": (
        "lab.toml",
        'id = "person"',
        'id = "person"\ncolumns = ["a"]\nblocks = { a = ["b"] }',
        r"lab\.toml: party: give columns or blocks, not both",
    ),
    "an encoder of no width": (
        "lab.toml",
        "encoder = [8]",
        "encoder = [0]",
        r"lab\.toml: apfed\.encoder: an encoder needs one or more positive widths, got \(0,\)",
    ),
    "no such table": (
        "lab.toml",
        '"lab.csv"',
        '"labb.csv"',
        r"party 'lab': there is no file .*/labb\.csv; check the path",
    ),
    "letters in another order": (
        "lab.toml",
        'id = "person"',
        'id = "person"\nlable = "x"',
        r"lab\.toml: unknown key 'party\.lable'; did you mean 'label'\?",
    ),
    "columns of an encoder, not a table each": (
        "lab.toml",
        'id = "person"',
        'id = "person"\nencode = { text = ["x"] }',
        r"party\.encode\.text: input should be a table of keys, got \['x'\]",
    ),
    "no such column": (
        "lab.toml",
        'id = "person"',
        'id = "person"\ncolumns = ["wurst *"]',
        r"party 'lab': no column of .*lab\.csv matches 'wurst \*'; did you mean 'worst \*'\?",
    ),
    "no such id": (
        "lab.toml",
        'id = "person"',
        'id = "persn"',
        r"party 'lab': no column 'persn' in .*lab\.csv; did you mean 'person'\?",
    ),
    "a column in two blocks": (
        "lab.toml",
        'id = "person"',
        'id = "person"\nblocks = { a = ["worst *"], b = ["worst area"] }',
        r"party 'lab': column 'worst area' is in two blocks",
    ),
    "repeated ids": (
        "lab.csv",
        "P-100",
        "P-101",
        r"party 'lab': column 'person' of .*lab\.csv: 1 of 100 ids are repeated",
    ),
    "an empty id": (
        "lab.csv",
        "P-100",
        "",
        r"party 'lab': column 'person' of .*lab\.csv has no id in 1 of 100 rows",
    ),
    "a label that is text for a number": (
        "clinic.toml",
        'label = "diagnosis"',
        'label = "diagnosis"\ntask = "regression"',
        r"label 'diagnosis' is text \('\w+'\); a regression needs numbers",
    ),
    "no column to predict from": (
        "clinic.toml",
        'label = "diagnosis"',
        'label = "diagnosis"\nblocks = {}',
        r"party 'clinic' has labels and no columns, so it has nothing to predict",
    ),
    "no column to help with": (
        "lab.toml",
        'id = "person"',
        'id = "person"\nblocks = {}',
        r"party 'lab' has no columns",
    ),
    "a device that is not there": (
        "run.toml",
        "test = 0.25",
        'test = 0.25\ndevice = "cuda:99"',
        r"there is no device 'cuda:99' here",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("file", "old", "new", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_in_one_sentence(
    dovetail: Any, deal: Any, file: str, old: str, new: str, words: str
) -> None:
    deal().change(file, (old, new))
    assert_refused(dovetail("train", "run.toml", "-q"), words)
    assert not Path("out/run/result.json").exists()


def test_a_folder_of_tables_is_read_as_it_says(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    (dealt.folder / "rows.csv").mkdir()
    (dealt.folder / "lab.csv").rename(dealt.folder / "rows.csv" / "part-0.csv")
    dealt.change("lab.toml", ('"lab.csv"', '"rows.csv"'))
    advice = "SELECT * FROM 'rows.csv/*.csv'"
    words = (
        f"rows.csv is a folder, and a .csv file is expected; name a file in it, or all by "
        f'table = "{advice}"'
    )
    assert_refused(dovetail("train", "run.toml", "-q"), f"party 'lab': .*{re.escape(words)}")
    dealt.change("lab.toml", ("rows.csv", advice))
    assert dovetail("train", "run.toml", "-q").code == 0


def test_nothing_shared_is_told(dovetail: Any, deal: Any) -> None:
    deal().change("lab.csv", *[(f"P-{row:03d}", f"Q-{row:03d}") for row in range(100, 200)])
    words = "party 'lab' shares no sample with 'clinic'; ids of 'clinic' are text of 5 characters"
    assert_refused(dovetail("train", "run.toml", "-q"), words)


def test_ids_of_two_kinds_are_told(dovetail: Any, deal: Any) -> None:
    deal().change("lab.csv", *[(f"P-{row:03d}", f"{row}") for row in range(100, 200)])
    words = "ids of 'clinic' are text of 5 characters.*ids of 'lab' are integers of 3 digits"
    assert_refused(dovetail("train", "run.toml", "-q"), words)


def test_classic_learning_is_refused_where_only_apfed_is_allowed(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    dealt.change(
        "lab.toml", ("[apfed]", '[policy]\nalgorithms = ["align", "apfed-mixed"]\n[apfed]')
    )
    assert dovetail("train", "run.toml", "-q").code == 0
    words = "party 'lab' refuses 'tvfl': its policy allows align, apfed-mixed"
    tvfl = ("--overwrite", "--set", 'baselines=["tvfl"]')
    assert_refused(dovetail("train", "run.toml", "-q", *tvfl), words)


def test_learning_alone_is_no_partners_affair(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    for name in ("lab.toml", "registry.toml"):
        dealt.change(name, ("[apfed]", '[policy]\nalgorithms = ["align", "tvfl"]\n[apfed]'))
    tvfl = ("--set", "method=tvfl", "--set", 'baselines=["alone"]')
    assert dovetail("train", "run.toml", "-q", *tvfl).err == ""
    dealt.change("lab.toml", ('"align", "tvfl"', ""))
    assert dovetail("train", "run.toml", "-q", "--overwrite", "--set", "method=alone").err == ""


@pytest.mark.slow
def test_of_two_with_labels_one_is_chosen(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    dealt.change("lab.toml", LABELLED, ("[party]", '[party]\ntask = "regression"'))
    for name, score in (("clinic", "accuracy"), ("lab", "rmse")):
        done = dovetail("train", "run.toml", "-q", "--out", name, "--set", f"active={name}")
        assert (done.code, done.err) == (0, "")
        assert score in result(name)["parties"][name]
        assert weights(name, name)
    inputs = load_data(
        load_run(dealt.folder / "run.toml", overrides=("active=clinic",))
    ).data.inputs
    assert "worst area" not in inputs["lab"].columns  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [MISTAKES[name] for name in ("alignment refused", "the driver refused", "no such table")],
)
def test_align_tells_the_same(
    dovetail: Any, deal: Any, file: str, old: str, new: str, words: str
) -> None:
    dealt = deal()
    dealt.change(file, (old, new))
    for count in ((), ("--count",)):
        assert_refused(dovetail("align", *dealt.files, "-q", *count), words)
    assert not list(dealt.folder.glob("*.safetensors"))


def test_one_party_has_nobody_to_align_with(dovetail: Any, deal: Any) -> None:
    words = "name two party files or more: dovetail align bank.toml shop.toml"
    assert_refused(dovetail("align", deal().files[0]), words)


def test_resume_replaces_no_finished_run_whose_party_files_changed(
    dovetail: Any, deal: Any, tmp_path: Path
) -> None:
    deal()
    assert dovetail("train", "run.toml", "--quiet").code == 0
    result = tmp_path / "out" / "run" / "result.json"
    first = result.stat().st_mtime_ns
    assert dovetail("train", "run.toml", "--quiet", "--resume").code == 0
    assert result.stat().st_mtime_ns == first
    file = tmp_path / "lab.toml"
    file.write_text(file.read_text().replace("[apfed]", "[apfed]\nlearning_rate = 0.5", 1))
    again = dovetail("train", "run.toml", "--quiet", "--resume")
    assert_refused(again, "holds a run that was finished, of other settings .* differs in sha256")
    assert result.stat().st_mtime_ns == first


def test_a_partys_name_is_no_path(dovetail: Any, deal: Any, tmp_path: Path) -> None:
    deal()
    file = tmp_path / "clinic.toml"
    file.write_text(file.read_text().replace('name = "clinic"', 'name = "../../escaped"'))
    done = dovetail("train", "run.toml", "--quiet")
    assert done.code == 2
    assert "clinic.toml: party.name: a party's name begins with a letter or digit" in done.err
