"""The report's page, of run folders made here by hand: no training."""

import json
import math
import re
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
import tomli_w
import torch

from dovetail.data import PartyData
from dovetail.data.coverage import Part
from dovetail.errors import ConfigError
from dovetail.report.chart import (
    Series,
    Spread,
    chart,
    dots,
    number_text,
    points_of,
    ticks,
)
from dovetail.report.folder import read_run
from dovetail.report.page import Coverage, html
from dovetail.report.tables import Names

NAMES = Names(
    {"apfed": "apfed", "alone": "apfed", "chfl": "chfl"},
    {
        "apfed": {"apfed": "APFed, predicts alone", "alone": "learned alone"},
        "chfl": {"chfl": "CHFL, predicts alone"},
    },
)


def done(accuracy, *, party="bank", variant="apfed", missed=None):
    return {
        "seconds": 2.0,
        "missed": missed or {},
        "scores": {variant: {party: {"accuracy": accuracy}}},
    }


def sent(sender="bank", receiver="shop", count=3, shape=(4, 8)):
    tensor = {"name": "code_BD", "shape": list(shape), "dtype": "float32"}
    line = {"variant": "apfed", "from": sender, "to": receiver, "message": "apfed.Codes"}
    return {**line, "tensors": [tensor], "count": count, "bytes": count * math.prod(shape) * 4}


def write_seed(path, seed=0, *, main=0.75, alone=0.5, finished=True, missed=None, **settings):
    """A run of APFed at a bank, with a baseline; a line per epoch, three of them."""
    (path / "models" / "bank").mkdir(parents=True)
    (path / "models" / "bank" / "model.json").write_text("{}")
    run = {
        "method": "apfed",
        "seed": seed,
        "baselines": ["alone"],
        "apfed": {"epochs": 3},
        **settings,
    }
    run = {"chfl": {"rounds": 30}, **run}
    (path / "run.toml").write_text(tomli_w.dumps(run))
    lines = [
        {"variant": variant, "epoch": n, "loss": 1 / n, "seconds": 1.0, "accuracy": score * n / 3}
        for variant, score in (("apfed", main), ("alone", alone))
        for n in (1, 2, 3)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ledger = [sent(), sent("shop", "bank")]
    (path / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ledger))
    variants = {"apfed": done(main, missed=missed), "alone": done(alone, variant="alone")}
    if finished:
        result = {"method": "apfed", "seed": seed, "variants": variants}
        (path / "result.json").write_text(json.dumps(result))
    return path


def write_seeds(path, scores, **settings):
    for seed, (main, alone) in enumerate(scores):
        write_seed(path / f"seed-{seed}", seed, main=main, alone=alone, **settings)
    (path / "result.json").write_text(json.dumps({"seeds": [*range(len(scores))]}))
    return path


class Page(HTMLParser):
    """Tags, attributes and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts = Counter(), [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.texts).split())


def page(*paths, **given):
    return Page(html([read_run(path) for path in paths], NAMES, **given))


def test_one_seed_is_told_in_plain_words(tmp_path):
    words = page(write_seed(tmp_path / "run")).words
    assert "0.750 accuracy on the test rows" in words
    assert (
        "It is right on 75.0 % of the test rows; learning alone, without partners, on 50.0 %. That "
        "is 25.0 points better (one seed, so the spread is unknown)."
    ) in words
    assert "bank now predicts alone: its model needs its own columns and no partner." in words


def test_seeds_are_one_run_with_mean_and_spread(tmp_path):
    words = page(write_seeds(tmp_path / "run", [(0.75, 0.5), (0.25, 0.125)])).words
    # (0.75 + 0.25) / 2, and 0.5 / sqrt(2)
    assert "0.500 ± 0.354 accuracy on the test rows, 2 seeds" in words
    assert "a line is the mean over seeds, its band one standard deviation to either side" in words


def test_a_gain_that_seeds_do_not_agree_on_is_no_clear_one(tmp_path):
    words = page(write_seeds(tmp_path / "run", [(0.75, 0.5), (0.5, 0.7)])).words
    assert "That is no clear difference: seeds differ by more." in words


def test_what_left_whom_adds_up(tmp_path):
    words = page(write_seed(tmp_path / "run")).words
    # 3 messages of 4 x 8 float32 each way: 384 bytes
    assert "bank sent 384 B received 384 B" in words
    assert "apfed.Codes bank and shop → shop and bank code_BD float32 4×8 6 768 B" in words


def test_the_mean_over_seeds_of_what_left_is_that_of_one(tmp_path):
    one = page(write_seed(tmp_path / "one")).words
    two = page(write_seeds(tmp_path / "two", [(0.75, 0.5), (0.75, 0.5)])).words
    flows = re.compile(r"bank sent .*? By type")
    assert flows.findall(one) == flows.findall(two) != []


def test_settings_of_other_methods_are_left_out(tmp_path):
    words = page(write_seed(tmp_path / "run")).words
    assert "apfed.epochs 3" in words
    assert "chfl.rounds" not in words


def test_who_was_left_out_and_why_is_shown(tmp_path):
    missed = {"shop": {"steps": 2, "of": 9, "first": "epoch 1: <b>no answer</b>"}}
    read = page(write_seed(tmp_path / "run", missed=missed))
    assert "shop APFed 0 2 of 9 steps epoch 1: <b>no answer</b>" in read.words
    assert "Who was left out" not in page(write_seed(tmp_path / "other")).words


def test_runs_side_by_side_have_a_column_each_and_say_what_differs(tmp_path):
    one = write_seed(tmp_path / "one", main=0.75)
    two = write_seed(tmp_path / "two", main=0.5, apfed={"epochs": 9})
    words = page(one, two).words
    assert "one two APFed, predicts alone 0.750 0.500 learned alone 0.500 0.500 seeds 1 1" in words
    assert "what differs stands first key one two apfed.epochs 3 9" in words
    assert "differ in their data" not in words
    assert {"one: APFed", "two: APFed", "one: learned alone"} <= set(page(one, two).texts)


def test_runs_on_other_data_come_with_a_warning(tmp_path):
    one = write_seed(tmp_path / "one", data={"source": "digits"})
    two = write_seed(tmp_path / "two", data={"source": "adult"})
    assert "These runs differ in their data" in page(one, two).words


def test_the_page_asks_for_nothing(tmp_path):
    text = html([read_run(write_seed(tmp_path / "run"))], NAMES)
    read = Page(text)
    assert text.isascii()
    assert "//" not in text  # no address, not even a namespace
    assert "url(" not in text
    assert not {"script", "link", "img", "iframe", "object"} & set(read.tags)
    assert not {"src", "href"} & {name for name, _ in read.attributes}
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in read.attributes


def test_nothing_from_a_folder_becomes_a_tag(tmp_path):
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    path = write_seed(tmp_path / "<i>run", missed={evil: {"rounds": 1, "of": 2, "first": evil}})
    run = {
        "method": "apfed",
        "baselines": [evil],
        "data": {"source": evil, "label": evil},
        evil: evil,
    }
    (path / "run.toml").write_text(tomli_w.dumps(run))
    (path / "ledger.jsonl").write_text(json.dumps(sent(evil, evil)) + "\n")
    variants = {"apfed": done(0.5, party=evil), evil: done(0.5, party=evil, variant=evil)}
    result = {"method": "apfed", "seed": 0, "variants": variants, "versions": {evil: evil}}
    (path / "result.json").write_text(json.dumps(result))
    (path / "value.json").write_text(
        json.dumps(
            {"by": "loo", "metric": evil, "seeds": [0], "partners": {evil: {"loo": {"mean": 1}}}}
        )
    )
    data = PartyData(evil, np.array([1, 2]), {evil: torch.zeros(2, 1)}, torch.tensor([0, 1]))
    held = {"<i>run": Coverage([Part(data, {evil: (evil,)}, (evil, "no"))], evil)}
    read = page(path, coverage=held, versions={evil: evil})
    assert not {"script", "img"} & set(read.tags)
    assert "onerror" not in {name for name, _ in read.attributes}
    assert read.words.count("<script>") > 10


def test_every_figure_has_words_and_every_table_a_head(tmp_path):
    text = html([read_run(write_seed(tmp_path / "run"))], NAMES)
    for tag in re.findall(r"<[^>]*role=\"img\"[^>]*>", text):
        assert re.search(r'aria-label="[^"]{20,}"', tag)
    assert text.count("<table") == text.count("<thead")
    assert re.findall(r"<h(\d)", text)[0] == "1"
    assert text.count("<h1") == 1


def test_no_two_lines_share_both_colour_and_pattern(tmp_path):
    path = write_seed(tmp_path / "run")
    with (path / "metrics.jsonl").open("a") as file:
        for n in range(9):
            for epoch in (1, 2):
                file.write(json.dumps({"variant": f"r{n}", "epoch": epoch, "loss": n}) + "\n")
    text = html([read_run(path)], NAMES)
    (loss,) = re.findall(r"training loss</strong>.*?</svg>", text, re.DOTALL)
    lines = re.findall(r'<path class="s(\d)[^"]*" d="[^"]*"( stroke-dasharray="[^"]*")?', loss)
    assert len(lines) == len(set(lines)) == 10
    assert "1 more are in the table" in text


# --- Folders that are not whole -------------------------------------------------------------------


def test_a_run_that_still_trains_shows_what_there_is(tmp_path):
    path = write_seed(tmp_path / "run", finished=False)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"variant": "alone", "epo')  # being written
    words = page(path).words
    assert "apfed has come to epoch 3" in words
    assert "0.750 accuracy on the test rows so far" in words
    assert "learned alone, so far" in words
    assert "no JSON" not in words


def test_a_stopped_run_has_the_stages_that_are_done(tmp_path):
    path = write_seed(tmp_path / "run", finished=False)
    (path / "ledger.jsonl").unlink()
    (path / "checkpoint" / "apfed").mkdir(parents=True)
    kept = {"variant": done(0.625), "ledger": [sent(count=5)]}
    (path / "checkpoint" / "apfed" / "outcome.json").write_text(json.dumps(kept))
    words = page(path).words
    assert "apfed is done, alone has come to epoch 3" in words
    assert "0.625" in words
    assert "5 640 B" in words


def test_a_run_that_has_just_begun_is_a_page(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "run.toml").write_text('method = "apfed"\n')
    assert "nothing is trained yet" in page(path).words


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("result.json", '{"method": "apf', "result.json is damaged"),
        (
            "result.json",
            '{"method": "apfed", "seed": [], "variants": {}}',
            "result.json is damaged",
        ),
        ("metrics.jsonl", "what?\n{}\n[]\n", "2 lines of metrics.jsonl are no JSON"),
        ("metrics.jsonl", '{"variant": "apfed", "epoch": "x", "loss": "y"}\n', "APFed"),
        ("metrics.jsonl", '{"variant": "apfed", "epoch": 1, "loss": NaN}\n', "APFed"),
        ("metrics.jsonl", f'{{"variant": "apfed", "epoch": 1, "loss": {10**400}}}\n', "APFed"),
        ("ledger.jsonl", '{"from": 1}\n', "1 lines of ledger.jsonl are none of a ledger"),
        ("run.toml", "= what?", "run.toml cannot be read"),
        ("value.json", "[]", "value.json is damaged"),
    ],
)
def test_what_is_damaged_is_said_and_the_rest_is_shown(tmp_path, name, text, words):
    path = write_seed(tmp_path / "run")
    (path / name).write_text(text)
    assert words in page(path).words


def test_seeds_of_other_settings_are_left_out(tmp_path):
    path = write_seeds(tmp_path / "run", [(0.75, 0.5), (0.25, 0.5)])
    (path / "result.json").unlink()
    settings = {"method": "apfed", "seed": 1, "apfed": {"epochs": 99}}
    (path / "seed-1" / "run.toml").write_text(tomli_w.dumps(settings))
    assert "seed-0: of other settings than seed-1, and left out" in page(path).words


def test_a_summary_says_which_seeds_are_of_the_run(tmp_path):
    path = write_seeds(tmp_path / "run", [(0.75, 0.5), (0.25, 0.5)])
    (path / "result.json").write_text('{"seeds": [0]}')
    assert [seed.seed for seed in read_run(path).seeds] == [0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "there is no folder"),
        (lambda path: path.mkdir(), "is no run folder: it has neither run.toml nor"),
        (lambda path: (path / "seed-0").mkdir(parents=True), "says which method this run is about"),
    ],
)
def test_what_is_no_run_folder_is_one_sentence(tmp_path, make, words):
    make(tmp_path / "run")
    with pytest.raises(ConfigError, match=words):
        read_run(tmp_path / "run")


# --- Places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.51, 0.52), (-3, 1e6), (5, 5), (0, 0), (-2, -2)]
)
def test_ticks_cover_the_range_in_even_steps(low, high):
    marks = ticks(low, high)
    assert marks[0] <= low <= high <= marks[-1]
    assert 2 < len(marks) < 9
    assert np.allclose(np.diff(marks), marks[1] - marks[0])
    assert len({number_text(tick, marks[1] - marks[0]) for tick in marks}) == len(marks)


def test_a_band_is_one_standard_deviation():
    (point,) = points_of([{1: 1.0}, {1: 3.0}])
    assert (point.mean, point.low, point.high) == (2.0, 2 - math.sqrt(2), 2 + math.sqrt(2))


def test_a_value_that_is_no_number_breaks_nothing():
    seeds = [{1: math.nan, 2: 0.5, 3: math.inf, 4: 0.75}]
    assert [point.x for point in points_of(seeds)] == [2, 4]
    assert points_of([{1: math.nan}]) == []


def test_names_of_lines_that_end_together_stand_apart():
    same = points_of([{1: 0.5, 2: 0.7}])
    drawn = chart("x", [Series(str(n), same, n) for n in range(10)], x_name="epoch")
    heights = sorted(float(line.at_rem) for line in drawn.lines)
    assert min(np.diff(heights)) >= 1.2
    assert heights[-1] <= 15.0


def test_one_point_is_no_curve():
    assert chart("x", [Series("a", points_of([{3: 0.5}]), 0)], x_name="epoch") is None


def test_dots_stand_where_their_values_are():
    drawn = dots("x", [Spread("a", "0", 0.0, 0.0), Spread("b", "8", 8.0, 2.0)], zero=True)
    assert [tick.text for tick in drawn.x_ticks] == ["0", "5", "10"]
    assert [drawn.at(row.mean) for row in drawn.rows] == ["0.00", "80.00"]
    assert (drawn.at(8.0 - 2.0), drawn.at(8.0 + 2.0)) == ("60.00", "100.00")
    assert dots("x", [Spread("a", "", math.nan, 0.0)]) is None
    auc = dots("auc", [Spread("a", "0.98", 0.98, 0.0, interval=(0.93, 1.0))])
    assert auc.marks[-1] == 1.0


def test_a_loss_that_falls_far_is_drawn_on_a_logarithmic_axis():
    fell = [Series("a", points_of([{1: 2.0, 2: 0.2, 3: 0.02}]), 0)]
    drawn = chart("loss", fell, x_name="epoch", falling=True)
    assert [tick.text for tick in drawn.y_ticks] == ["0.01", "0.1", "1", "10"]
    down = [float(point.split()[1]) for point in drawn.lines[0].path[1:].split("L")]
    assert down[1] - down[0] == pytest.approx(down[2] - down[1], abs=0.2)
    assert drawn.note == "logarithmic"
    for flat in ({1: 2.0, 2: 1.0}, {1: 2.0, 2: 0.0}):  # too near, and 0 has no logarithm
        plain = chart("loss", [Series("a", points_of([flat]), 0)], x_name="epoch", falling=True)
        assert plain.note == ""


def test_an_audit_and_what_releases_cost_stand_in_the_report(tmp_path):
    write_seed(tmp_path)
    line = {**sent(), "epsilon": 4.25, "delta": 1e-5}
    (tmp_path / "ledger.jsonl").write_text(json.dumps(line) + "\n")
    page = html([read_run(tmp_path)], NAMES)
    assert "4.25" in page
    assert "have cost most" not in page
    grown = [{"variant": "apfed", "epoch": n, "seconds": 1.0, "epsilon": n / 2} for n in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in grown))
    assert "epsilon of the sample that releases have cost most" in html([read_run(tmp_path)], NAMES)
    assert "What could they learn?" not in page
    threat = {
        "attack": "clusters", "paper": "a paper", "given": "messages", "baseline": "a guess",
        "metric": "accuracy",
    }  # fmt: skip
    finding = {
        "variant": "apfed", "observer": "shop", "owner": "bank", "channel": "codes",
        "target": "labels", "threat": threat, "baseline": 0.5, "score": 0.9,
        "advantage": 0.8, "low": 0.7, "high": 0.9, "verdict": "high", "worst": None,
    }  # fmt: skip
    weaker = {**finding, "threat": {**threat, "attack": "norm of gradients"}, "advantage": 0.1}
    audit = {"verdict": "high", "thresholds": "high: much", "findings": [weaker, finding]}
    (tmp_path / "audit.json").write_text(json.dumps(audit))
    page = html([read_run(tmp_path)], NAMES)
    assert "What could they learn?" in page
    assert "Verdict: high." in page
    assert "clusters" in page
    assert "norm of gradients" not in page  # of a kind the one that gained most
    (tmp_path / "audit.json").write_text("{}")
    assert "What could they learn?" not in html([read_run(tmp_path)], NAMES)


def test_scores_of_other_test_rows_say_of_how_many(tmp_path):
    path = write_seed(tmp_path / "run")
    result = json.loads((path / "result.json").read_text())
    for name, variant in result["variants"].items():
        variant["details"] = {name: {"bank": {"rows": 200 if name == "apfed" else 161}}}
    (path / "result.json").write_text(json.dumps(result))
    words = page(path).words
    assert "0.750 accuracy on 200 test rows" in words
    assert "learned alone 0.500 161" in words  # in the table
    assert "learned alone (161 rows)" not in words  # nor beside others in the picture
    assert "accuracy test rows seconds APFed, predicts alone 0.750 200 2.0" in words
    for variant in result["variants"].values():
        for local in variant["details"].values():
            local["bank"]["rows"] = 200
    (path / "result.json").write_text(json.dumps(result))
    assert "test rows seconds" not in page(path).words


def test_the_loss_is_a_line_for_each_set_of_networks_that_learns(tmp_path):
    path = write_seed(tmp_path / "run")
    both, one = {"network": 1.0, "linear": 1.0}, {"linear": 1.0}
    lines = [
        {"variant": "apfed", "epoch": n, "loss": loss, "held_out_loss": reported, "seconds": 1.0}
        for n, loss, reported in ((1, 2.0, both), (2, 1.0, both), (3, 8.0, one), (4, 7.0, one))
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = page(path).words
    assert "APFed: network and linear APFed: linear" in words
