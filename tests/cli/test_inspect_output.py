import json
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from dovetail.api.inspecting import of_parts
from dovetail.cli.output import show
from dovetail.data import PartyData
from dovetail.data.coverage import Part
from dovetail.errors import ConfigError


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def part(name, ids, block, names, labels=None, classes=()):
    ids = np.array(ids)
    x = torch.zeros(len(ids), len(names))
    return Part(PartyData(name, ids, {block: x}, labels), {block: tuple(names)}, classes)


def helped():
    labels = torch.tensor([0, 1] * 5 + [-1] * 10)
    return [
        part("bank", range(20), "account", ["age", "balance"], labels, ("good", "bad")),
        part("shop", range(5, 30), "basket", ["spent"]),
    ]


def stuck():
    labels = torch.tensor([0, 1])
    return [part("a", [1, 2], "x", ["x"], labels), part("b", [1, 2], "y", ["y"], labels)]


def inspected(parts, **settings):
    return of_parts(parts, **{"title": "bank and shop", "run_path": "run.toml", **settings})


def shown(capsys, parts, **settings):
    show(inspected(parts, **settings))
    return capsys.readouterr().out


def test_the_terminal_shows_it_all_in_80_columns(capsys):
    text = shown(capsys, helped())
    assert max(len(line) for line in text.splitlines()) <= 80
    for part_of_it in (
        "30 samples, 2 parties, 3 columns; 4 groups of samples",
        "account (2)",
        "basket (1)",
        "good, bad",
        "Samples shared with bank, which has 20 rows; 15 are at every party",
        "yes: only bank has labels (10 of 20 rows)",
        "yes: only bank has labels, as in classic vertical learning",
        "Recommended: APFed",
        "Next: dovetail train run.toml --set method=apfed",
    ):
        assert part_of_it in text


def test_a_command_is_printed_in_one_piece(capsys):
    path = "a folder/" + "long/" * 20 + "run.toml"
    text = shown(capsys, helped(), run_path=path)
    assert f"\nNext: dovetail train '{path}' --set method=apfed\n" in text


def test_where_none_fits_it_says_so(capsys):
    text = shown(capsys, stuck())
    assert "None of the four fits as things are" in text
    assert "2 parties have labels (a and b)" in text
    assert "Recommended" not in text


def test_json_says_the_same(capsys):
    report = json.loads(json.dumps(inspected(helped()).to_json()))
    assert report["samples"] == 30
    assert sum(group["samples"] for group in report["groups"]) == 30
    assert report["groups"][0] == {
        "group": "A",
        "samples": 5,
        "combinations": 1,
        "held_by": ["bank"],
        "labelled_at": ["bank"],
    }
    assert report["parties"][0] == {
        "name": "bank",
        "rows": 20,
        "blocks": {"account": ["age", "balance"]},
        "labelled": 10,
        "classes": ["good", "bad"],
        "read": {},
    }
    assert report["parties"][1]["classes"] is None
    assert report["overlaps"] == {
        "with": "bank",
        "shared": {"shop": 15},
        "common": 15,
        "ids_compared": True,
    }
    assert [fit["applies"] for fit in report["methods"]] == [True, True, False, False]
    assert report["recommended"] == "apfed"
    assert report["next_command"] == "dovetail train run.toml --set method=apfed"


def test_json_where_none_fits_recommends_nothing(capsys):
    report = json.loads(json.dumps(inspected(stuck()).to_json()))
    assert report["recommended"] is None
    assert report["next_command"] is None


def test_json_tells_labels_that_are_numbers_from_no_label(capsys):
    parts = [
        part("a", [1, 2], "x", ["x"], torch.tensor([0.5, 1.5])),
        part("b", [1, 2], "y", ["y"], torch.tensor([-1, -1])),
        part("c", [1, 2], "z", ["z"]),
    ]
    report = json.loads(json.dumps(inspected(parts).to_json()))
    assert [each["classes"] for each in report["parties"]] == ["numbers", [], None]


def test_the_page_is_written(tmp_path):
    path = tmp_path / "new" / "page.html"
    assert inspected(helped()).save(path) == path
    assert [each.name for each in path.parent.iterdir()] == ["page.html"]
    parser = HTMLParser()
    parser.feed(path.read_text(encoding="utf-8"))
    parser.close()
    assert "dovetail train run.toml --set method=apfed" in path.read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write"):
        inspected(helped()).save(tmp_path / "file" / "page.html")


def test_overlaps_counted_privately_show_no_picture(capsys, tmp_path):
    path = tmp_path / "page.html"
    text = shown(capsys, helped(), overlaps_by_cardinality={"shop": 12})
    inspected(helped(), overlaps_by_cardinality={"shop": 12}).save(path)
    assert "█" not in text
    assert "counted without comparing ids in the clear" in text
    assert "shop shares 12 samples with it" in " ".join(text.split())
    page = path.read_text(encoding="utf-8")
    assert "<svg" not in page
    assert "counted without comparing ids in the clear" in page
    report = json.loads(
        json.dumps(inspected(helped(), overlaps_by_cardinality={"shop": 12}).to_json())
    )
    assert report["groups"] is None
    assert report["samples"] is None
    assert report["overlaps"] == {
        "with": "bank",
        "shared": {"shop": 12},
        "common": 12,
        "ids_compared": False,
    }
