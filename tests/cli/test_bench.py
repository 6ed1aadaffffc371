"""``dovetail bench``: cells in, a table out; what is done is not run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tables as bench
from benchmarks.tables import folders, session
from benchmarks.tables.cells import Line
from benchmarks.tables.child import Child
from benchmarks.tables.text import body
from dovetail import methods
from dovetail.cli.main import app
from dovetail.errors import DovetailError
from dovetail.files import split_cell
from dovetail.methods.settings.shared import BASELINES as TITLES
from dovetail.runs.runfile import load_run

RUNS = Path(__file__).parents[2] / "runs"


def toy(*cells: bench.Cell) -> bench.Table:
    return bench.Table(name="toy", title="A toy", cells=cells)


def cell(
    name: str, *overrides: str, run: str = "toy/run.toml", unavailable: str = ""
) -> bench.Cell:
    return bench.Cell(
        name=name,
        run=run,
        labels={"data": name},
        scores={"apfed-c": "APFed-C", "alone": "alone"},
        overrides=overrides,
        paper=("apfed-table2", "MNIST, 2-1"),
        kind="toy",
        unavailable=unavailable,
    )


class Here:
    """A run in this process, where a real one would be a process of its own."""

    began: list[list[str]]

    def __init__(self, arguments: Sequence[str], *, threads: int) -> None:
        Here.began.append(list(arguments))
        self.seconds, self._failure = 1.0, None
        try:
            if app(list(arguments), standalone_mode=False) == 130:
                raise KeyboardInterrupt
        except DovetailError as error:
            self._failure = str(error)

    def done(self) -> bool:
        return True

    def stop(self) -> None:
        raise AssertionError("it has ended")

    def failure(self) -> str | None:
        return self._failure


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, write_run: Any) -> Any:
    """Has ``dovetail bench toy`` make this table, its runs in this process."""
    (tmp_path / "runs" / "toy").mkdir(parents=True)
    write_run(name="runs/toy/run.toml")
    Here.began = []
    monkeypatch.setattr(session, "Child", Here)

    def put(*cells: bench.Cell) -> None:
        monkeypatch.setitem(bench.TABLES, "toy", toy(*cells))

    return put


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_it_runs_every_cell_and_seed_and_writes_the_table(
    dovetail: Any, here: Any, tmp_path: Path
) -> None:
    here(cell("one"), cell("two", "apfed.epochs=1"))
    done = dovetail("bench", "toy", "--seeds", 2)
    assert done.code == 0
    out = tmp_path / "out" / "bench"
    lines = json_lines(out / "toy.jsonl")
    # A seed of every cell before the next.
    assert [(line["cell"], line["seed"]) for line in lines] == [
        ("one", 0), ("two", 0), ("one", 1), ("two", 1)
    ]  # fmt: skip
    result = json.loads((out / "toy/one/seed-1/result.json").read_text())
    assert lines[2]["apfed-c"] == result["parties"]["clinic"]["accuracy"]
    assert lines[2]["alone"] == result["baselines"]["alone"]["accuracy"]
    page = (out / "toy.md").read_text()
    assert "`dovetail bench toy --seeds 2`" in page
    mean = 50 * (lines[0]["alone"] + lines[2]["alone"])
    difference = round(round(mean, 2) - 95.24, 2)
    mark = f"▲ +{difference:.2f}" if difference >= 0 else f"▼ −{-difference:.2f}"
    assert f"| one | alone | 95.24 ± 0.12 | {mean:.2f} ± " in page
    assert f" | {mark} | 2 |" in page
    assert json.loads((out / "toy/one/result.json").read_text())["seeds"] == [0, 1]
    assert "one, seed 0: APFed-C" in done.err


def test_a_page_gets_the_table_and_its_picture(
    dovetail: Any, here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = bench.Table(name="toy", title="A toy", cells=(cell("one"), cell("two")), x="data")
    here()
    monkeypatch.setitem(bench.TABLES, "toy", drawn)
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("# Mine\n<!-- bench toy -->\n<!-- /bench toy -->\nthe rest\n")
    done = dovetail("bench", "toy", "--seeds", 1, "--into", page)
    assert done.code == 0, done.err
    text = page.read_text()
    assert "| one | alone | 95.24 ± 0.12 | " in text
    assert "\n![A toy](images/toy.svg)\n<!-- /bench toy -->\nthe rest\n" in text
    assert (page.parent / "images" / "toy.svg").read_text().startswith("<svg ")


@pytest.mark.slow
def test_what_is_done_is_not_run_again_and_more_seeds_add_to_it(dovetail: Any, here: Any) -> None:
    here(cell("one"))
    dovetail("bench", "toy", "-q")
    dovetail("bench", "toy", "-q")
    assert len(Here.began) == 1
    report = json.loads(dovetail("bench", "toy", "--seeds", 3, "--json").out)
    assert [each[each.index("--seed") + 1] for each in Here.began] == ["0", "1", "2"]
    assert [line["runs"] for line in report["lines"]] == [3, 3]


def test_runs_on_images_are_known_again(dovetail: Any, here: Any, write_run: Any) -> None:
    write_run(
        ('source = "breast-cancer"', 'source = "digits-images"'),
        ('kind = "columns"\nactive = "clinic"', 'kind = "strips"\nviews = 2\nactive = 1'),
        ('parties = { clinic = ["mean *"], lab = ["worst *"] }', ""),
        name="runs/toy/images.toml",
    )
    here(cell("images", run="toy/images.toml"))
    assert dovetail("bench", "toy", "-q").code == 0
    assert dovetail("bench", "toy", "-q").code == 0
    assert len(Here.began) == 1


def test_a_run_that_was_stopped_goes_on(
    dovetail: Any, here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dovetail.runs import RunFolder

    here(cell("one", "apfed.epochs=4"))
    epoch = RunFolder.epoch

    def interrupted(self: RunFolder, variant: str, line: Any) -> None:
        epoch(self, variant, line)
        if line["epoch"] == 2:  # the first is saved by then
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "epoch", interrupted)
        done = dovetail("bench", "toy")
    assert done.code == 130
    folder = tmp_path / "out/bench/toy/one/seed-0"
    assert (folder / "checkpoint").exists()
    assert "1 begun" in dovetail("bench", "toy", "--status").out
    kept = json_lines(folder / "metrics.jsonl")[:1]
    dovetail("bench", "toy", "-q")
    assert json_lines(folder / "metrics.jsonl")[:1] == kept  # with its wall time
    assert (folder / "result.json").exists()


def test_a_failed_run_is_told_and_the_others_go_on(
    dovetail: Any, here: Any, tmp_path: Path
) -> None:
    here(cell("bad", 'data.source="no-such.csv"'), cell("good"))
    done = dovetail("bench", "toy")
    assert done.code == 1
    assert "Not here: bad, seed 0: " in done.out
    assert "no-such.csv" in done.out
    assert [line["cell"] for line in json_lines(tmp_path / "out/bench/toy.jsonl")] == ["good"]
    assert "no-such.csv" in (tmp_path / "out/bench/toy.md").read_text()


def test_a_cell_that_cannot_be_run_says_why(dovetail: Any, here: Any, tmp_path: Path) -> None:
    here(cell("helena", run="", unavailable="the data could not be had"))
    done = dovetail("bench", "toy")
    assert done.code == 0
    assert "Not here: helena: the data could not be had" in done.out
    assert Here.began == []


def test_no_budget_runs_nothing_and_says_what_is_left(dovetail: Any, here: Any) -> None:
    here(cell("one"), cell("two"))
    done = dovetail("bench", "toy", "--budget-minutes", 0)
    assert "Left: 2 runs, 2 of unknown length" in done.out
    dovetail("bench", "toy", "--only", "one", "-q")
    done = dovetail("bench", "toy", "--budget-minutes", 0)
    assert "Left: 1 runs, about " in done.out


def test_only_takes_patterns_and_refuses_one_that_matches_nothing(dovetail: Any, here: Any) -> None:
    here(cell("one"), cell("two"), cell("three"))
    dovetail("bench", "toy", "--only", "t*", "-q")
    assert len(Here.began) == 2
    done = dovetail("bench", "toy", "--only", "four")
    assert done.code == 2
    assert "--only 'four' matches no cell of toy" in done.err


def test_runs_of_other_settings_are_not_mixed_in(dovetail: Any, here: Any, tmp_path: Path) -> None:
    here(cell("one"), cell("two"))
    dovetail("bench", "toy", "--only", "one", "-q")
    before = (tmp_path / "out/bench/toy/one/seed-0/result.json").read_bytes()
    done = dovetail("bench", "toy", "--set", "apfed.epochs=1")
    assert done.code == 2
    assert "holds a run of other settings (differs in apfed.epochs)" in done.err
    dovetail("bench", "toy", "--set", "apfed.epochs=1", "--only", "two", "-q")
    page = (tmp_path / "out/bench/toy.md").read_text()
    assert "| one |" not in page
    assert "Not here: one: run with other settings (apfed.epochs)" in page
    assert (tmp_path / "out/bench/toy/one/seed-0/result.json").read_bytes() == before


def test_run_files_that_are_not_there_are_named(dovetail: Any, here: Any, tmp_path: Path) -> None:
    here(cell("one", run="toy/other.toml"))
    done = dovetail("bench", "toy", "--runs", tmp_path)
    assert done.code == 2
    assert f"no run file toy/other.toml in {tmp_path}" in done.err
    assert "--runs" in done.err


def test_two_at_once_in_one_folder_are_refused(dovetail: Any, here: Any, tmp_path: Path) -> None:
    here(cell("one"))
    with folders.locked(tmp_path / "out" / "bench"):
        done = dovetail("bench", "toy")
    assert done.code == 2
    assert "another dovetail bench works in out/bench" in done.err


def test_a_wide_table_says_how_far_what_it_compares_against_is_behind_the_best() -> None:
    table = bench.TABLES["worth"]
    values = {"linear": (60, 61), "boosting": (64, 58), "network": (61, 61), "best alone": (60, 62)}
    lines = [
        Line({"data": "a"}, method, None, list(map(float, values_here)), planned=2)
        for method, values_here in values.items()
    ]
    lines.append(Line({"data": "a"}, "APFed-D", None, [64.0, 63.0], gains=[4.0, 1.0], planned=2))
    text = body(table, lines)
    # Boosting and the network both have a mean of 61; of the first run boosting is 4 points ahead.
    assert "| +2.5 ± 19.1 | +0.0 | 2 |" in text
    assert (
        "behind it in 0 of 1 lines; behind the best of each run, seen afterwards, in 1 of 2" in text
    )


@pytest.mark.slow
def test_without_a_name_it_lists_the_tables(dovetail: Any) -> None:
    done = dovetail("bench")
    assert done.code == 0
    for name in bench.TABLES:
        assert f"\n{name}: " in done.out
    assert "apfed-table2" in dovetail("bench", "no-such-table").err


@pytest.mark.slow
def test_every_cell_is_a_run_file_that_trains_what_the_cell_scores() -> None:
    for table in bench.TABLES.values():
        for each in table.cells:
            if each.unavailable:
                continue
            run = load_run(RUNS / each.run, overrides=each.overrides)
            named = {run.method, *run.baselines, *methods.method_of(run.method).scores}
            if run.method == "apfed-d":  # scores the models alone by itself
                named |= set(TITLES)
            recipes = tomllib.loads(split_cell(RUNS / each.run)[0].read_text()).get("recipes", {})
            for recipe in recipes:
                other = load_run(RUNS / each.run, recipe=recipe)
                named |= {other.method, *other.baselines}
            # NAME@PARTY is one party's score.
            assert {score.partition("@")[0] for score in each.scores} <= named, each.name


# --- Processes ------------------------------------------------------------------------------------


def train(run: Path, out: Path) -> list[str]:
    # Without validation rows no epoch is the best, so that none ends it early.
    longer = ["--set", "apfed.epochs=100", "--set", "apfed.validation=0.0", "--set", "baselines=[]"]
    return ["train", str(run), "--out", str(out), *longer, "--resume", "--quiet"]


def until(what: Any) -> None:
    end = time.monotonic() + 300
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_a_process_that_is_stopped_keeps_its_checkpoint_and_goes_on(
    write_run: Any, tmp_path: Path
) -> None:
    arguments = train(write_run(), tmp_path / "out")
    first = Child(arguments, threads=1)
    until((tmp_path / "out/checkpoint/apfed-c").exists)
    first.stop()
    assert (tmp_path / "out/checkpoint/apfed-c").exists()
    second = Child(arguments, threads=1)
    until(second.done)
    assert second.failure() is None
    assert len(json_lines(tmp_path / "out/metrics.jsonl")) == 100


@pytest.mark.slow
def test_a_process_that_is_killed_says_so(write_run: Any, tmp_path: Path) -> None:
    child = Child(train(write_run(), tmp_path / "out"), threads=1)
    os.kill(child._process.pid, signal.SIGKILL)
    until(child.done)
    assert child.failure() == "killed by signal 9, as when memory runs out"


@pytest.mark.slow
def test_no_process_outlives_the_command_that_began_it(write_run: Any, tmp_path: Path) -> None:
    arguments = train(write_run(), tmp_path / "out")
    text = (
        "import time; from benchmarks.tables.child import Child; "
        f"print(Child({arguments!r}, threads=1)._process.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()

    def ended() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
        except FileNotFoundError:
            return True

    until(ended)
    assert not (tmp_path / "out/result.json").exists()
