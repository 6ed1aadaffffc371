"""The papers' tables: their figures, what a table's text says, and which runs a budget allows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from benchmarks import tables as bench
from benchmarks.tables import Cell, Figure, Job, Line, Run, Table, Times
from benchmarks.tables import printing as benchrun
from benchmarks.tables.panels import panels_svg
from dovetail.errors import ConfigError

SVG = "{http://www.w3.org/2000/svg}"
TITLES = {"alone": "alone", "apfed-c": "APFed-C"}


def cell(name: str, **changes: object) -> Cell:
    given = {"run": f"apfed/{name}.toml", "labels": {"data": "MNIST"}, "scores": TITLES}
    return Cell(name=name, **(given | {"kind": "toy"} | changes))  # type: ignore[arg-type]


def run(of: Cell, seed: int, **scores: float) -> Run:
    named = {name.replace("_", "-"): value for name, value in scores.items()}
    return Run(of, seed, named, 10.0, Path("nowhere"))


# --- Figures --------------------------------------------------------------------------------------


def test_figures_are_those_that_the_papers_print() -> None:
    assert bench.paper_figure("apfed-table2", "CIFAR10, 3-2", "apfed-c") == Figure(56.02, 0.80)
    assert bench.paper_figure("chfl-table2", "covertype", "chfl") == Figure(68.43, 6.61)
    assert bench.paper_figure("chfl-table4", "Minimum", "local") == Figure(24.76, 0.19)
    assert bench.paper_figure("fedoptimus-table1", "MNIST, SlowMo", "fedoptimus") == Figure(97.89)
    assert bench.paper_figure("apfed-table2", "MNIST, 2-1", "tvfl") is None


def test_every_cell_with_figures_has_them() -> None:
    cells = [each for table in bench.TABLES.values() for each in table.cells if each.paper]
    assert cells
    for each in cells:
        assert any(each.figure(score) is not None for score in each.scores), each.name


def test_the_mean_over_settings_of_a_copied_table_is_the_papers_own() -> None:
    # The paper prints these means itself: a slip of one figure would show.
    printed = {
        "MNIST": (36.13, 48.50, 10.51, 88.23, 88.80, 88.87),
        "CIFAR100": (9.24, 8.00, 1.25, 20.45, 21.52, 23.30),
    }
    scores = ("tvfl-0", "tvfl-a", "tvfl-r", "alone", "apfed-r", "apfed-c")
    for data, means in printed.items():
        for score, mean in zip(scores, means, strict=True):
            figures = [
                bench.paper_figure("apfed-table2", f"{data}, {setting}", score)
                for setting in ("2-1", "2-2", "3-1", "3-2", "3-3")
            ]
            assert sum(each.mean for each in figures if each) / 5 == pytest.approx(mean, abs=0.011)


def test_a_cell_that_tables_share_is_the_same_run_in_each() -> None:
    seen: dict[Path, tuple[str, tuple[str, ...]]] = {}
    for table in bench.TABLES.values():
        for each in table.cells:
            if each.run:
                same = (each.run, each.overrides)
                assert seen.setdefault(each.folder(Path(), None), same) == same


# --- Text -----------------------------------------------------------------------------------------

MNIST = ("apfed-table2", "MNIST, 2-1")


def test_the_table_says_paper_here_spread_difference_and_how_many_runs() -> None:
    one = cell("one", paper=MNIST)
    table = Table(name="toy", title="Toy", cells=(one,))
    # alone: mean 95.50, std sqrt(0.5) = 0.71; the paper's 95.24. APFed-C: 95.00; 95.72.
    runs = [run(one, 0, alone=0.95, apfed_c=0.95), run(one, 1, alone=0.96)]
    text = bench.body(table, bench.lines(table, runs, {"one": 2}))
    assert text.splitlines()[:4] == [
        "| data | method | paper % | here % | here − paper | runs |",
        "| --- | --- | --- | --- | --- | --- |",
        "| MNIST | alone | 95.24 ± 0.12 | 95.50 ± 0.71 | ▲ +0.26 | 2 |",
        "| MNIST | APFed-C | 95.72 ± 0.09 | 95.00 | ▼ −0.72 | 1 of 2 |",
    ]
    assert "Liu et al., arXiv:2409.04111v2, Table 2" in text


def test_other_scores_have_columns_of_their_own_beside_the_papers() -> None:
    one = cell(
        "one",
        scores={"fedoptimus": "FedAvg", "pooled": "pooled"},
        paper=("fedoptimus-table1", "MNIST, FedAvg"),
    )
    more = {"log_loss": "loss", "megabytes": "MB sent"}
    table = Table(name="toy", title="Toy", cells=(one,), more=more)
    result = {
        "method": "fedoptimus",
        "parties": {"a": {"accuracy": 0.9, "log_loss": 0.25}},
        "baselines": {"pooled": {"accuracy": 0.9, "log_loss": 0.125}},
        "bytes": {"a": {"sent": 1_500_000}, "b": {"sent": 1_000_000}},
    }
    made = Run(one, 0, {"fedoptimus": 0.9, "pooled": 0.9}, 1.0, Path("nowhere"), result)
    text = bench.body(table, bench.lines(table, [made], {"one": 1}))
    assert text.splitlines()[:4] == [
        "| data | method | paper % | here % | here − paper | paper's loss | loss here | MB sent "
        "| runs |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| MNIST | FedAvg | 94.63 | 90.00 | ▼ −4.63 | 0.0326 | 0.250 | 2.500 | 1 |",
        "| MNIST | pooled |  | 90.00 |  |  | 0.125 |  | 1 |",
    ]


@pytest.mark.parametrize(
    ("value", "shown_value"), [(95.244, "▲ +0.00"), (95.236, "▲ +0.00"), (95.234, "▼ −0.01")]
)
def test_ours_is_above_where_it_is_at_least_what_the_paper_prints(
    value: float, shown_value: str
) -> None:
    line = Line({"data": "MNIST"}, "alone", Figure(95.24, 0.12), [value])
    _, rows = bench.grid(Table(name="toy", title="Toy", cells=()), [line])
    assert rows[0][4] == shown_value


def test_a_difference_to_a_baseline_is_taken_run_by_run() -> None:
    one, two = cell("one", scores={"alone": "alone"}), cell("two", scores={"apfed-c": "APFed-C"})
    table = Table(name="toy", title="Toy", cells=(one, two), against="alone")
    # Gains of 1, 2 and 3 points: 2 ± 1. Seed 3 was not trained alone.
    runs = [run(one, seed, alone=0.5 + seed / 10) for seed in range(3)]
    runs += [run(two, seed, apfed_c=0.51 + seed * 0.11) for seed in range(4)]
    names, rows = bench.grid(table, bench.lines(table, runs, {"one": 3, "two": 4}))
    assert names == ["data", "method", "here %", "less alone", "runs"]
    assert [row[3] for row in rows] == ["", "+2.00 ± 1.00"]


def test_a_wide_table_has_a_line_a_group_and_the_gain_with_its_interval() -> None:
    each = cell("one", scores={"best-alone": "alone", "apfed-d": "APFed-D", "laser": "LASER"})
    table = Table(name="toy", title="Toy", cells=(each,), against="best-alone", wide=("apfed-d",))
    # Gains of 1, 2 and 3 points: their mean's standard error is 1 / sqrt(3), Student's t 4.303.
    runs = [run(each, seed, best_alone=0.5, apfed_d=0.51 + seed / 100) for seed in range(3)]
    names, rows = bench.grid(table, bench.lines(table, runs, {"one": 4}))
    assert names == ["data", "alone", "APFed-D", "APFed-D less alone", "runs"]
    assert rows == [["MNIST", "50.0", "52.0", "+2.0 ± 2.5", "3 of 4"]]
    _, rows = bench.grid(table, bench.lines(table, runs[:1], {"one": 1}))
    assert rows[0][3:] == ["+1.0", "1"]


def test_a_wide_table_may_have_two_gains() -> None:
    each = cell("one", scores={"alone": "alone", "apfed-r": "APFed-R", "apfed-c": "APFed-C"})
    table = Table(
        name="toy", title="Toy", cells=(each,), against="alone", wide=("apfed-r", "apfed-c")
    )
    names, rows = bench.grid(
        table, bench.lines(table, [run(each, 0, alone=0.5, apfed_r=0.49, apfed_c=0.52)], {"one": 1})
    )
    assert names[-3:] == ["APFed-R less alone", "APFed-C less alone", "runs"]
    assert rows == [["MNIST", "50.0", "49.0", "52.0", "−1.0", "+2.0", "1"]]


def test_a_wide_table_is_shown_as_far_as_the_terminal_has_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = {"best-alone": "alone", "apfed-d": "APFed-D", **{f"r{n}": f"R{n}" for n in range(9)}}
    each = cell("one", scores=scores)
    table = Table(
        name="toy", title="Toy", cells=(each,), against="best-alone", wide=("apfed-d",),
        singles=("r0", "r1"),
    )  # fmt: skip
    runs = [run(each, 0, best_alone=0.5, apfed_d=0.51, **{f"r{n}": 0.4 for n in range(9)})]
    session = SimpleNamespace(
        table=table, lines=lambda: bench.lines(table, runs, {"one": 4}), left_out=dict, left=(),
        stem="toy", picture="",
    )  # fmt: skip
    for columns, shown in ((80, False), (140, True)):
        monkeypatch.setenv("COLUMNS", str(columns))
        benchrun._show(session, SimpleNamespace(out=Path("out")))  # type: ignore[arg-type]
        output = capsys.readouterr().out
        assert "+1.0" in output
        assert ("R8" in output) == shown


def test_cells_of_one_group_are_pooled() -> None:
    cells = tuple(cell(f"split{n}", overrides=(f"seed={n}",)) for n in range(2))
    table = Table(name="toy", title="Toy", cells=cells)
    runs = [run(each, 0, alone=value) for each, value in zip(cells, (0.5, 0.7), strict=True)]
    alone, _ = bench.lines(table, runs, {"split0": 1, "split1": 1})
    assert (round(alone.mean, 6), alone.planned) == (60, 2)


def test_one_partys_score_is_read_where_a_cell_names_it(tmp_path: Path) -> None:
    cell = Cell(name="c", run="", labels={}, scores={"local@north": "", "local": ""}, score="auc")
    of_parties = {"north": {"auc": 0.9}, "south": {"auc": 0.7}}
    variants = {"local": {"seconds": 2.0, "scores": {"local": of_parties}}}
    result = {"method": "chfl", "mean": {"auc": 0.6}, "baselines": {"local": {"auc": 0.8}}}
    run = bench.read_run(cell, 0, tmp_path, {**result, "variants": variants})
    assert run.scores == {"chfl": 0.6, "local": 0.8, "local@north": 0.9}


def test_a_line_of_json_is_flat() -> None:
    line = json.loads(bench.json_line("toy", run(cell("one"), 3, alone=0.95), device="cpu"))
    assert line["alone"] == 0.95
    assert (line["bench"], line["cell"], line["seed"], line["data"]) == ("toy", "one", 3, "MNIST")
    assert not any(isinstance(value, (dict, list)) for value in line.values())


def test_a_table_goes_between_its_marks_and_nothing_else_changes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- bench toy -->\nold\n<!-- /bench toy -->\nb\n")
    bench.put_into(page, "toy", "new \\1\n")
    assert page.read_text() == "a\n<!-- bench toy -->\nnew \\1\n<!-- /bench toy -->\nb\n"
    with pytest.raises(ConfigError, match="lacks the lines <!-- bench other -->"):
        bench.put_into(page, "other", "new\n")


def test_the_picture_has_a_panel_for_each_data_set(tmp_path: Path) -> None:
    cells = tuple(
        cell(f"{data}-{x}", labels={"data": data, "λ": x}) for data in "AB" for x in ("0", "1")
    )
    table = Table(name="toy", title="Toy", cells=cells, x="λ")
    lines = bench.lines(
        table, [run(each, 0, alone=0.5) for each in cells], {each.name: 1 for each in cells}
    )
    assert bench.draw(table, lines, [], tmp_path / "toy.svg")
    root = ElementTree.parse(tmp_path / "toy.svg").getroot()
    panels = root.findall(f"{SVG}g")
    assert [panel.find(f"{SVG}text").text for panel in panels] == ["A", "B"]
    for panel in panels:
        titles = [each.text for each in panel.iter(f"{SVG}title")]
        assert titles == ["alone, λ 0: 50.00", "alone, λ 1: 50.00"]
    assert root.get("aria-label") == root.find(f"{SVG}title").text == "Toy"
    assert root.find(f"{SVG}desc").text == (
        "A: alone, λ 0: 50.00; alone, λ 1: 50.00. B: alone, λ 0: 50.00; alone, λ 1: 50.00."
    )


@pytest.mark.parametrize(
    ("over", "every", "at"),
    [("epoch", 2, (2, 3)), ("epoch", 1, (1, 2)), ("epoch", 0, (3, 3)), ("round", 2, (17, 34))],
)
def test_scores_are_drawn_over_epochs_where_a_line_is_a_round(
    tmp_path: Path, over: str, every: int, at: tuple[int, int]
) -> None:
    one = cell("one", scores={"fedoptimus": "FedAvg"})
    (tmp_path / "run.toml").write_text(f"evaluate_every = {every}\n[fedoptimus]\nepochs = 3\n")
    scored = (17, 34) if every else (34,)  # of 0 the last alone
    lines = [{"variant": "fedoptimus", "round": 16}]
    lines += [{"variant": "fedoptimus", "round": at, "accuracy": at / 100} for at in scored]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = Table(name="toy", title="Toy", cells=(one,), over=over)
    made = Run(one, 0, {"fedoptimus": 0.34}, 1.0, tmp_path)
    assert bench.draw(table, bench.lines(table, [made], {"one": 1}), [made], tmp_path / "toy.svg")
    root = ElementTree.parse(tmp_path / "toy.svg").getroot()
    assert [each.text for each in root.iter(f"{SVG}title")][1:] == [
        f"FedAvg, {over} {index}: {scores}.00"
        for index, scores in zip(at[-len(scored) :], scored, strict=True)
    ]


def test_a_loss_is_drawn_beside_the_score_as_it_is(tmp_path: Path) -> None:
    one = cell("one", scores={"fedoptimus": "FedAvg"})
    (tmp_path / "run.toml").write_text("evaluate_every = 1\n[fedoptimus]\nepochs = 1\n")
    line = {"variant": "fedoptimus", "round": 9, "accuracy": 0.5, "log_loss": 1.25}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    table = Table(name="toy", title="Toy", cells=(one,), over="epoch", losses=True)
    made = Run(one, 0, {"fedoptimus": 0.5}, 1.0, tmp_path)
    assert bench.draw(table, bench.lines(table, [made], {"one": 1}), [made], tmp_path / "toy.svg")
    told = ElementTree.parse(tmp_path / "toy.svg").getroot().findtext(f"{SVG}desc")
    (panel,) = (", ".join(labels.values()) for labels in [one.labels])
    assert told == (
        f"{panel}: %: FedAvg, epoch 1: 50.00. {panel}: log loss: FedAvg, epoch 1: 1.25."
    )


def test_a_picture_stands_alone_and_places_what_it_is_told() -> None:
    curve = {1: (50.0, 2.0), 5: (90.0, None)}
    text = panels_svg({"<m>": {"a & b": curve}}, title="Toy", x="round", y="%")
    root = ElementTree.fromstring(text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<script|url\(", text)
    first, last = root.iter(f"{SVG}circle")
    assert first.find(f"{SVG}title").text == "a & b, round 1: 50.00 ± 2.00"
    assert float(first.get("cx")) < float(last.get("cx"))
    assert float(first.get("cy")) > float(last.get("cy"))  # up is more
    (bar,) = (each for each in root.iter(f"{SVG}path") if each.get("class") == "bar")
    top, bottom = map(float, re.findall(r"[\d.]+ ([\d.]+)V([\d.]+)", bar.get("d"))[0])
    assert top < float(first.get("cy")) < bottom


# --- Settings -------------------------------------------------------------------------------------


def test_runs_differ_where_scores_depend_on_it() -> None:
    kept = {"method": "chfl", "device": "cpu", "data": {"rows": 10}, "chfl": {"mu": 1}, "apfed": {}}
    same = kept | {"device": "cuda", "checkpoint_every": 5, "apfed": {"epochs": 3}, "hyfem": {}}
    assert bench.differing(kept, same, "chfl") == []
    other = {**kept, "data": {}, "chfl": {"mu": 1, "rounds": 3}}
    assert bench.differing(kept, other, "chfl") == ["chfl.rounds", "data.rows"]


# --- Schedule -------------------------------------------------------------------------------------


class World:
    """Jobs that take what they are said to take, on a clock that waiting alone moves."""

    def __init__(self, **seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds
        self.began: list[str] = []
        self.ended: list[str] = []
        self.stopped: list[str] = []
        self.most = 0

    def start(self, job: Job) -> bench.Process:
        world, begin, name = self, self.now, job.cell.name
        world.began.append(name)
        running = len(world.began) - len(world.ended) - len(world.stopped)
        world.most = max(world.most, running)

        class Running:
            def done(self) -> bool:
                return world.now >= begin + world.seconds[name]

            def stop(self) -> None:
                world.stopped.append(name)

        return Running()

    def wait(self) -> None:
        self.now += 1

    def work(self, cells: list[Cell], times: Times | None = None, **how: object) -> list[str]:
        """Names of the jobs that are left."""
        left = bench.work(
            [Job(each, 0) for each in cells],
            self.start,
            ended=lambda job, process: self.ended.append(job.cell.name),
            times=times or Times(),
            clock=lambda: self.now,
            wait=self.wait,
            **how,  # type: ignore[arg-type]
        )
        return [job.cell.name for job in left]


def test_without_a_budget_all_are_run_in_order() -> None:
    world = World(a=2, b=1, c=3)
    assert world.work([cell(name) for name in "abc"]) == []
    assert (world.began, world.most) == (["a", "b", "c"], 1)


def test_so_many_run_at_once() -> None:
    world = World(a=5, b=5, c=5, d=5)
    world.work([cell(name) for name in "abcd"], at_once=3)
    assert (world.most, world.now) == (3, 10)


def test_a_job_is_begun_only_where_its_estimate_fits() -> None:
    cells = [cell(name, kind=kind) for name, kind in (("a", "long"), ("b", "short"), ("c", "long"))]
    times = Times()
    times.add(cell("other", kind="long"), 100)
    times.add(cell("another", kind="short"), 5)
    world = World(a=100, b=5, c=100)
    assert world.work(cells, times, budget_s=50) == ["a", "c"]
    assert (world.ended, world.stopped) == (["b"], [])


def test_what_a_checkpoint_has_does_not_count_against_the_budget() -> None:
    times = Times()
    times.add(cell("a"), 100)
    world = World(a=10)
    assert world.work([cell("a")], times, budget_s=50, spent=lambda job: 90) == []


def test_what_still_runs_when_the_budget_ends_is_stopped_and_is_left() -> None:
    world = World(a=3, b=100, c=1)
    assert world.work([cell(name, kind="") for name in "abc"], budget_s=10) == ["b", "c"]
    assert (world.ended, world.stopped) == (["a"], ["b"])
    assert world.now == 10


def test_no_budget_left_begins_nothing() -> None:
    world = World(a=1)
    assert world.work([cell("a")], budget_s=0) == ["a"]
    assert world.began == []


def test_ctrl_c_stops_what_runs() -> None:
    world = World(a=3, b=100)
    wait = world.wait

    def interrupted() -> None:
        if world.now == 5:
            raise KeyboardInterrupt
        wait()

    world.wait = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        world.work([cell("a"), cell("b")])
    assert (world.ended, world.stopped) == (["a"], ["b"])


def test_an_estimate_is_of_the_cell_itself_before_its_kind() -> None:
    times = Times()
    times.add(cell("a"), 10)
    times.add(cell("a"), 20)
    times.add(cell("b"), 90)
    assert times.estimate(cell("a")) == 15
    assert times.estimate(cell("c")) == 40
    assert times.estimate(cell("d", kind="other")) is None
    estimates: Callable[[list[Cell]], tuple[float, int]] = times.total
    assert estimates([cell("a"), cell("c"), cell("d", kind="other")]) == (55, 1)
