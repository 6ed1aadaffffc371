"""What a notebook shows: one line of progress, and tables of parties, models and explanations."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import dovetail as dt
from dovetail.api.progress import Notebook, talk_of
from dovetail.api.shown import Shown
from dovetail.sklearn import SoloClassifier


class Cell:
    """A cell's output: what was displayed, and what stands there now."""

    def __init__(self) -> None:
        self.displays: list[str] = []
        self.updates = 0

    def __call__(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Cell:
        assert raw
        assert display_id
        self.displays.append(data["text/html"])
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.updates += 1
        self.displays[-1] = data["text/html"]


@pytest.fixture
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"age": rng.normal(size=60), "<b>": ["x", "y", "z"] * 20})


def test_a_run_of_several_seeds_and_stages_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(10**6))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    cell = Cell()
    talk = Notebook(cell)
    talk.print("3 parties")
    for seed in range(3):
        with talk.epochs(f"seed {seed} ") as bars:
            for epoch in range(1, 5):
                bars("apfed", 4, {"epoch": epoch, "loss": 1 / epoch})
            bars("alone", 9, {"epoch": 2, "loss": 0.5})
    with talk.points("aligning") as bar:
        bar(1, 2)
    assert cell.displays == ['<progress value="1" max="2"></progress> <code>aligning 1 of 2</code>']
    assert cell.updates > 10


def test_a_variant_that_may_stop_early_has_no_bar_of_a_total_that_means_nothing() -> None:
    cell = Cell()
    talk = Notebook(cell)
    with talk.epochs("") as bars:
        bars("apfed-d", 802, {"epoch": 54, "held_out_loss": {"deep": 0.2}})
        assert cell.displays == ["<code>apfed-d: 54 epochs</code>"]


def test_lines_come_no_faster_than_can_be_read() -> None:
    cell = Cell()
    with Notebook(cell).epochs("") as bars:
        for epoch in range(1, 500):
            bars("apfed", 499, {"epoch": epoch})
    assert cell.updates < 10
    assert cell.displays == ["<code>apfed: 499 epochs</code>"]


def test_who_waits_in_a_notebook_says_what_the_partner_types() -> None:
    cell = Cell()
    with Notebook(cell).waiting("0.0.0.0:7443") as status:
        status([], ["shop"])
    assert "waiting at 0.0.0.0:7443 for shop" in cell.displays[0]
    assert "at shop: dovetail.join(party, &#x27;THIS-HOST:7443&#x27;)" in cell.displays[0]


def test_parties_models_and_what_they_give_are_tables(rows: pd.DataFrame) -> None:
    y = np.where(rows["age"] > 0, "old", "young")
    party = dt.Party("clinic", rows.assign(id=range(60), y=y), id="id", label="y")
    shown = party._repr_html_()
    assert ">60</td>" in shown
    assert ">2: age, &lt;b&gt;</td>" in shown
    url = "odbc:Driver={SQL Server};Uid=me;Pwd=s3cr3t;Server=db"
    party._site = replace(party.site, party=party.site.party.model_copy(update={"table": url}))
    assert "Pwd=***;Server=db" in party._repr_html_()  # a notebook is passed on
    model = SoloClassifier(learners=["linear"]).fit(rows, y).model_
    assert ">2: age, &lt;b&gt;</td>" in model._repr_html_()
    reported = model.predictions(rows)._repr_html_()
    assert reported.count("<tr>") == 11  # and the head
    assert "50 more rows" in reported
    explained = model.explain(rows.assign(y=(rows["age"] > 0).astype(int)), label="y")
    shown = explained._repr_html_()
    assert shown.index(">age<") < shown.index("&lt;b&gt;")
    assert "█" * 20 in shown
    assert "<b>" not in shown
    assert repr(explained) == "<explanation of 60 rows, 2 columns: age, <b>, ...>"


@pytest.mark.usefixtures("brief_learners")
def test_a_result_is_shown_once_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    displayed: list[str] = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda segments, text: displayed.append(text))
    Console(file=StringIO()).print("rich displays what is printed")
    assert displayed == ["rich displays what is printed\n"]
    assert repr(Words()) == "two lines\nof words"
    assert len(displayed) == 1


class Words(Shown):
    def shown(self) -> Iterator[str]:
        yield from ("two lines", "of words")


def test_a_fit_logs_its_epochs_and_warnings_by_pythons_logging(
    rows: pd.DataFrame, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    local = rows.assign(id=range(60), y=["n", "j"] * 30)
    other = pd.DataFrame({"id": range(60), "Y": np.arange(60.0)})
    parties = [dt.Party("a", local, id="id", label="y"), dt.Party("b", other, id="id")]
    with caplog.at_level(logging.INFO, logger="dovetail"):
        dt.fit(dt.Method("apfed-mixed", epochs=2), parties, test=None, quiet=True)
    records = [each for each in caplog.records if each.name == "dovetail.train"]
    assert [each.levelname for each in records][:1] == ["WARNING"]
    epochs = [each.getMessage() for each in records if each.levelname == "INFO"]
    assert [text.split(",")[0] for text in epochs][:2] == [
        "apfed-mixed: epoch 1",
        "apfed-mixed: epoch 2",
    ]
    assert capsys.readouterr().err.count("WARNING") == 1


def test_a_warning_is_printed_once_where_nothing_is_set_up_for_logging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("dovetail.train"), "propagate", False)
    talk: Any = talk_of(shown=False)
    talk.warn("who is lost")
    assert capsys.readouterr().err == "dovetail: who is lost\n"
