"""``dovetail train``: a run file in, a run folder out."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import data as dd


def result(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_seconds(each) for key, each in value.items() if key != "seconds"}
    return value


def test_it_trains_prints_a_table_and_names_the_folder(
    dovetail: Any, write_run: Any, tmp_path: Path
) -> None:
    done = dovetail("train", write_run())
    assert done.code == 0
    assert "APFed-C, predicts alone" in done.out
    assert "learned alone" in done.out
    words = "Run folder: out/run\n  dovetail report out/run\n  dovetail predict out/run/models/"
    assert words in done.out
    names = {path.name for path in (tmp_path / "out" / "run").iterdir()}
    assert names == {".lock", "run.toml", "metrics.jsonl", "result.json", "ledger.jsonl", "models"}


def test_quiet_prints_nothing_and_json_the_result_alone(
    dovetail: Any, write_run: Any, tmp_path: Path
) -> None:
    done = dovetail("train", write_run(), "--out", "here", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    done = dovetail("train", write_run(), "--out", "here", "--json", "--overwrite")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == result(tmp_path / "here")


def test_the_resolved_settings_repeat_the_run(
    dovetail: Any, write_run: Any, tmp_path: Path
) -> None:
    dovetail("train", write_run(), "--out", "one", "--seed", 5, "-q")
    dovetail("train", "one/run.toml", "--out", "two", "-q")
    assert (tmp_path / "one/run.toml").read_text() == (tmp_path / "two/run.toml").read_text()
    assert without_seconds(result(tmp_path / "one")) == without_seconds(result(tmp_path / "two"))
    weights = [tmp_path / run / "models/clinic/model.safetensors" for run in ("one", "two")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_the_resolved_settings_of_images_repeat_the_run(dovetail: Any, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 4, 4), dtype=np.uint8)
    classes = np.arange(12) % 2
    np.savez("images.npz", x_train=images, y_train=classes, x_test=images, y_test=classes)
    Path("run.toml").write_text(
        'method = "alone"\n[data]\nsource = "images.npz"\n'
        'partition = { kind = "strips", views = 2 }\n[apfed]\nencoder = [4]\nepochs = 1\n'
    )
    assert dovetail("train", "run.toml", "--out", "one", "-q").code == 0
    done = dovetail("train", "one/run.toml", "--out", "two", "-q")
    assert done.code == 0, done.err
    assert (tmp_path / "one/run.toml").read_text() == (tmp_path / "two/run.toml").read_text()


def test_several_seeds_have_a_folder_each_and_a_summary(
    dovetail: Any, write_run: Any, tmp_path: Path
) -> None:
    run = write_run(("evaluate_every = 0", "evaluate_every = 0\nseeds = [0, 3]"))
    done = dovetail("train", run)
    assert "mean ± std of 2 seeds" in done.out
    folder = tmp_path / "out" / "run"
    assert {path.name for path in folder.iterdir()} == {".lock", "seed-0", "seed-3", "result.json"}
    each = [result(folder / f"seed-{seed}")["parties"]["clinic"]["accuracy"] for seed in (0, 3)]
    summary = result(folder)
    assert summary["seeds"] == [0, 3]
    assert summary["parties"]["clinic"]["accuracy"]["mean"] == pytest.approx(np.mean(each))
    assert tomllib.loads((folder / "seed-3" / "run.toml").read_text())["seed"] == 3


def test_seeds_of_the_command_line_come_first(
    dovetail: Any, write_run: Any, tmp_path: Path
) -> None:
    run = write_run(("evaluate_every = 0", "evaluate_every = 0\nseeds = [0, 3]"))
    dovetail("train", run, "--seed", 7, "-q")
    assert result(tmp_path / "out" / "run")["seed"] == 7
    done = dovetail("train", run, "--seed", 7, "--seed", 7)
    assert done.code == 2
    assert "each seed is run once, got [7, 7]" in done.err


@pytest.mark.slow
def test_resume_skips_what_finished_and_replaces_nothing_that_changed(
    dovetail: Any, write_run: Any, tmp_path: Path
) -> None:
    run = write_run(("evaluate_every = 0", "evaluate_every = 0\nseeds = [0, 1]"))
    folder = tmp_path / "out" / "run"

    def stamps() -> list[int]:
        return [(folder / f"seed-{seed}" / "result.json").stat().st_mtime_ns for seed in (0, 1)]

    dovetail("train", run, "-q")
    first = stamps()
    before = result(folder)
    dovetail("train", run, "-q", "--resume")
    assert stamps() == first
    assert result(folder) == before

    (folder / "seed-1" / "result.json").unlink()  # as if it had been stopped
    done = dovetail("train", run, "--resume", "--json")
    assert (stamps()[0] == first[0], stamps()[1] == first[1]) == (True, False)
    assert without_seconds(json.loads(done.out)) == without_seconds(before)

    second = stamps()
    again = dovetail("train", run, "-q", "--resume", "--set", "apfed.learning_rate=0.02")
    assert again.code == 2
    assert (
        "holds a run that was finished, of other settings (run.toml differs in apfed" in again.err
    )
    assert stamps() == second
    assert without_seconds(result(folder)) == without_seconds(before)
    dovetail("train", run, "-q", "--overwrite", "--set", "apfed.learning_rate=0.02")
    assert all(new != old for new, old in zip(stamps(), second, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(), ("--seed", 0, "--seed", 1)])
def test_a_finished_run_is_replaced_only_where_that_is_said(
    dovetail: Any, write_run: Any, tmp_path: Path, seeds: tuple[Any, ...]
) -> None:
    run = write_run()
    assert dovetail("train", run, "-q", *seeds).code == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    (tmp_path / "out" / "run-2").mkdir()
    # Not even the run's data are read before it is told.
    done = dovetail("train", run, *seeds, "--set", "data.source=nowhere.csv")
    assert done.code == 2
    assert (
        "out/run holds a run that finished: say the same with --overwrite to replace it, or with "
        "--out out/run-3 to keep both"
    ) in " ".join(done.err.split())
    (tmp_path / "out" / "run-2").rmdir()
    (tmp_path / "out").touch()
    assert {path for path in tmp_path.rglob("*")} == before.keys()
    assert all(path.stat().st_mtime_ns == then for path, then in before.items() if path.is_file())
    kept = dovetail("train", run, "-q", *seeds, "--out", "out/run-2")
    assert kept.code == 0
    assert dovetail("train", run, "-q", *seeds, "--overwrite").code == 0
    changed = tmp_path / "out" / "run" / "result.json"
    assert changed.stat().st_mtime_ns > before[changed]
    both = dovetail("train", run, "--resume", "--overwrite")
    assert both.code == 2
    assert "give one of them" in both.err


def test_a_key_is_changed_with_set(dovetail: Any, write_run: Any, tmp_path: Path) -> None:
    done = dovetail(
        "train", write_run(), "-q", "--out", "here",
        "--set", "apfed.epochs=1", "--set", "passive.lab.loss=reconstruction",
        "--set", "method=apfed-mixed", "--set", "baselines=[]",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    kept = tomllib.loads((tmp_path / "here" / "run.toml").read_text())
    assert kept["apfed"]["epochs"] == 1
    assert kept["passive"]["lab"]["loss"] == "reconstruction"
    assert (kept["method"], kept["baselines"]) == ("apfed-mixed", [])
    assert len((tmp_path / "here" / "metrics.jsonl").read_text().splitlines()) == 1


def test_a_recipe_lies_over_the_file_and_set_over_the_recipe(
    dovetail: Any, write_run: Any, tmp_path: Path
) -> None:
    recipe = "\n[recipes.cpu]\nseed = 4\napfed.epochs = 3\napfed.batch_size = 16\n"
    run = write_run(("[passive]\nencoder = [8]\n", "[passive]\nencoder = [8]\n" + recipe))
    dovetail("train", run, "-q", "--recipe", "cpu", "--set", "apfed.epochs=1")
    kept = tomllib.loads((tmp_path / "out" / "run-cpu" / "run.toml").read_text())
    assert (kept["seed"], kept["apfed"]["epochs"], kept["apfed"]["batch_size"]) == (4, 1, 16)
    assert "recipes" not in kept
    done = dovetail("train", run, "--recipe", "gpu")
    assert done.code == 2
    assert "has no recipe 'gpu'; its recipes: cpu" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_paths_are_those_beside_the_run_file(
    dovetail: Any, write_run: Any, tmp_path: Path, ending: str
) -> None:
    pooled, _ = dd.load("breast-cancer")
    train, test = dd.split(pooled, test=0.25, seed=0, stratify=True)
    (tmp_path / "runs").mkdir()
    for name, part in (("train", train), ("test", test)):
        assert isinstance(part.x, dd.Table)
        columns = {column: part.x.column(column).values for column in part.x.names}
        dd.write_table(
            tmp_path / "runs" / f"{name}.{ending}", {**columns, "diagnosis": part.labels.values}
        )
    run = write_run(
        (
            'source = "breast-cancer"\ntest = 0.25',
            f'source = "train.{ending}"\ntest_source = "test.{ending}"\nlabel = "diagnosis"',
        ),
        name="runs/own.toml",
    )
    done = dovetail("train", run, "--out", "own", "-q")
    assert (done.code, done.err) == (0, "")
    dovetail("train", write_run(name="built-in.toml"), "--out", "built-in", "-q")
    from_files, built_in = result(tmp_path / "own"), result(tmp_path / "built-in")
    assert from_files["parties"] == built_in["parties"]
    kept = tomllib.loads((tmp_path / "own" / "run.toml").read_text())["data"]
    for key, name in (("source", "train"), ("test_source", "test")):
        assert kept[key] == str(tmp_path / "runs" / f"{name}.{ending}")


def test_a_query_is_a_source(dovetail: Any, write_run: Any, tmp_path: Path) -> None:
    columns = ", ".join(f'random() + i % 2 AS "mean {name}"' for name in range(20))
    query = f'SELECT {columns}, random() AS "worst 1", i % 2 AS odd FROM range(60) t(i)'
    assert len(query) > 255  # longer than a file's name may be
    run = write_run(
        ('source = "breast-cancer"', f"source = '''{query}'''\nlabel = \"odd\""),
    )
    done = dovetail("train", run, "--out", "here", "-q")
    assert (done.code, done.err) == (0, "")
    kept = tomllib.loads((tmp_path / "here" / "run.toml").read_text())
    assert kept["data"]["source"] == query


def test_a_number_is_predicted(dovetail: Any, write_run: Any, tmp_path: Path) -> None:
    run = write_run(("test = 0.25", 'test = 0.25\nlabel = "mean radius"\ntask = "regression"'))
    done = dovetail("train", run, "--out", "here")
    assert done.code == 0
    assert result(tmp_path / "here")["parties"]["clinic"].keys() == {"rmse", "mae", "r2"}
    assert "rmse" in done.out


#: The lab's networks are not finite after its first step, and it answers no other.
LEFT_OUT = (
    ('method = "apfed-c"', 'method = "apfed-r"'),
    ("[passive]\nencoder = [8]", "[passive]\nencoder = [8]\nlearning_rate = 1e30"),
)


@pytest.mark.slow
def test_a_party_that_is_left_out_of_most_of_a_run_is_no_success(
    dovetail: Any, write_run: Any, tmp_path: Path
) -> None:
    run = write_run(*LEFT_OUT)
    done = dovetail("train", run, "--out", "here")
    assert done.code == 2
    assert "Run folder: here" in done.out  # all is trained and written as ever
    missed = result(tmp_path / "here")["missed"]["lab"]
    assert missed["steps"] > missed["of"] / 2
    assert (
        f"party 'lab' was left out of {missed['steps']} of {missed['of']} steps "
        f"(first: {missed['first']}), and min_participation = 0.5 asks for more; the model is "
        "saved as ever, in here:"
    ) in " ".join(done.err.split())
    assert (tmp_path / "here" / "models" / "clinic" / "model.safetensors").exists()

    again = dovetail("train", run, "--out", "here", "-q", "--resume")  # it is not forgotten
    assert again.code == 2
    changed = ("--resume", "--set", "min_participation=0.1")
    tolerate_missing = dovetail("train", run, "--out", "here", "-q", *changed)
    assert tolerate_missing.code == 0

    two = dovetail("train", run, "--out", "two", "-q", "--seed", 0, "--seed", 1)
    assert two.code == 2
    assert result(tmp_path / "two")["seeds"] == [0, 1]
    assert re.search(r"steps of seed [01] \(first: epoch 1, step", two.err)


def test_a_party_that_is_left_out_is_told_of_on_standard_error(
    dovetail: Any, write_run: Any
) -> None:
    run = write_run(*LEFT_OUT)
    done = dovetail("train", run, "--out", "here", "-q", "--set", "min_participation=0")
    assert done.code == 0
    assert "party 'lab' was left out of " in done.err
    assert "of 6 steps; first in epoch 1, step 2: its loss is not finite" in done.err


def test_labels_are_kept_on_so_many_rows(dovetail: Any, write_run: Any) -> None:
    run = write_run(("test = 0.25", "test = 0.25\nlabels = 20"))
    done = dovetail("train", run, "--json", "--set", "apfed.steps_per_epoch=1")
    sent = json.loads(done.out)["bytes"]["clinic"]["sent"]
    assert sent == 2 * 64 * (8 + 8 * 4)  # the shared batch of 64, labelled or not


SERVER = """
method = "tvfl"
[data]
source = "breast-cancer"
test = 0.25
[data.partition]
kind = "columns"
active = "server"
parties = { server = [], clinic = ["mean *"], lab = ["worst *"] }
[apfed]
epochs = 3
"""


@pytest.mark.trained
def test_a_server_may_have_labels_alone(dovetail: Any, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(SERVER)
    assert dovetail("train", "run.toml", "--out", "here", "--quiet").code == 0
    assert result(tmp_path / "here")["parties"]["server"]["accuracy"] > 0.85
    alone = dovetail("train", "run.toml", "--out", "other", "--set", "method=apfed")
    assert alone.code == 2
    assert "party 'server' has labels and no columns, so it has nothing to predict from" in (
        alone.err
    )


@pytest.mark.trained
def test_a_servers_own_file_may_name_a_table_of_ids_and_labels(
    dovetail: Any, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)).round(3)
    columns = {"server": ["id,label"], "clinic": ["id,a,b"], "lab": ["id,c,d"]}
    for row, (a, b, c, d) in enumerate(x.tolist()):
        columns["server"].append(f"{row},{'yes' if a + c > 0 else 'no'}")
        columns["clinic"].append(f"{row},{a},{b}")
        columns["lab"].append(f"{row},{c},{d}")
    for name, lines in columns.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
        label = 'label = "label"\n' if name == "server" else ""
        (tmp_path / f"{name}.toml").write_text(
            f'[party]\nname = "{name}"\ntable = "{name}.csv"\nid = "id"\n{label}'
            '[policy]\nalgorithms = ["align", "tvfl"]\n'
        )
    (tmp_path / "run.toml").write_text(
        'method = "tvfl"\nparties = ["server.toml", "clinic.toml", "lab.toml"]\ntest = 0.25\n'
        "[apfed]\nepochs = 15\n"
    )
    assert dovetail("train", "run.toml", "--out", "here", "--quiet").code == 0
    assert result(tmp_path / "here")["parties"]["server"]["accuracy"] > 0.75
