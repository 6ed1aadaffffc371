"""A method that is put in the table can be named, trained, shown and predicted with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from dovetail import data as dd
from dovetail import methods
from dovetail.errors import ConfigError
from dovetail.methods.base import Loaded
from dovetail.methods.method import Method
from dovetail.methods.outcome import Observer, metrics_of
from dovetail.models import EncoderHead, Head, Model, Perceptron, RandomStream
from dovetail.network import Checkpoint
from dovetail.runs import Outcome, score
from dovetail.settings.section import Section


@dataclass(frozen=True)
class EachAlone:
    """Every party has a network of its own, which nobody trains; the clinic's labels test all."""

    method: str
    baselines: tuple[str, ...]
    data: dd.Partitioned

    def train(
        self, variant: str, seed: int, observe: Observer, checkpoint: Checkpoint | None = None
    ) -> Outcome:
        outcome = Outcome({variant: {}})
        assert self.data.test is not None
        labels = self.data.test["clinic"].labels
        assert labels is not None
        for name, party in self.data.test.parties.items():
            shape = tuple(party.joined().shape[1:])
            spec = EncoderHead(Perceptron((4,)), Head(), shape, self.data.task.num_outputs)
            with RandomStream(seed, variant, name):
                network = spec.build()
            inputs, about = {"columns": self.data.inputs[name]}, {"label": self.data.label}
            model = Model(name, self.data.task, network, spec, {"columns": shape}, inputs, about)
            outcome.models[name] = model
            outcome.scores[variant][name] = score(
                self.data.task, model.outputs(party.joined()), labels
            )
        observe(variant, 1, {"round": 1, "seconds": 0.5, **metrics_of(outcome.scores[variant])})
        return outcome


class Guessing(Method):
    """What a method of one's own has."""

    name = "guessing"
    Settings = Section

    variants: ClassVar[Mapping[str, str]] = {"guess": "guessing", "guess-twice": "guessing again"}
    partitions = ("columns",)

    def check(self, run: Any, *, where: str) -> None:
        if run.device == "abacus":
            raise ConfigError(f"{where}: no guessing on an abacus")

    def setup(self, run: Any, loaded: Loaded, device: torch.device) -> EachAlone:
        return EachAlone(run.method, run.baselines, loaded.data)


RUN = """
method = "guess"
baselines = ["guess-twice"]
[data]
source = "breast-cancer"
test = 0.25
partition = { kind = "columns", active = "clinic", parties = { clinic = ["mean *"], lab = ["worst *"] } }
"""  # noqa: E501  # TOML 1.0 has no line breaks in there


@pytest.fixture(autouse=True)
def guessing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(methods.METHODS, "guess", Guessing())
    (tmp_path / "run.toml").write_text(RUN)


def refused(done: Any) -> str:
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    return str(done.err)


def test_a_table_has_a_row_for_each_party_and_their_mean(dovetail: Any, tmp_path: Path) -> None:
    done = dovetail("train", "run.toml")
    assert done.code == 0, done.err
    rows_text = [
        [cell.strip() for cell in line.strip("│ ").split("│")]
        for line in done.out.splitlines()
        if line.startswith("│")
    ]
    result = json.loads((tmp_path / "out" / "run" / "result.json").read_text())

    def shown(scores: Any) -> list[str]:
        return [f"{scores[name]:.3f}" for name in ("auc", "accuracy")]

    assert rows_text == [
        ["guessing: clinic", *shown(result["parties"]["clinic"])],
        ["guessing: lab", *shown(result["parties"]["lab"])],
        ["guessing: mean of 2 parties", *shown(result["mean"])],
        ["guessing again", *shown(result["baselines"]["guess-twice"])],
    ]


def test_several_seeds_have_spreads(dovetail: Any) -> None:
    done = dovetail("train", "run.toml", "--seed", 0, "--seed", 1)
    assert "mean ± std of 2 seeds" in done.out
    assert done.out.count(" ± ") > 8


def test_each_partys_model_predicts(dovetail: Any, tmp_path: Path, patients: Path) -> None:
    dovetail("train", "run.toml", "-q")
    assert dovetail("predict", "out/run/models/clinic", patients, "-q").code == 0
    assert "out/run has 2 models; name one" in refused(dovetail("predict", "out/run", patients))


def test_a_method_has_its_own_baselines_partitions_and_checks(
    dovetail: Any, tmp_path: Path
) -> None:
    words = "'tvfl' is no baseline beside 'guess'; there are guess, guess-twice"
    assert words in refused(dovetail("train", "run.toml", "--set", 'baselines=["tvfl"]'))
    (tmp_path / "strips.toml").write_text(
        RUN[: RUN.index("partition")] + 'partition = { kind = "strips", views = 2 }\n'
    )
    words = "'guess' is not simulated on the partition 'strips'; it takes columns"
    assert words in refused(dovetail("train", "strips.toml"))
    words = "no guessing on an abacus"
    assert words in refused(dovetail("train", "run.toml", "--set", "device=abacus"))
    (tmp_path / "parties.toml").write_text('method = "guess"\nparties = []\n')
    words = "parties.toml: 'guess' is simulated only"
    assert words in refused(dovetail("train", "parties.toml"))


def test_the_first_method_that_has_a_stage_trains_it(monkeypatch: pytest.MonkeyPatch) -> None:
    again = Guessing()
    monkeypatch.setattr(again, "variants", {"alone": "guessing alone"}, raising=False)
    monkeypatch.setitem(methods.METHODS, "again", again)
    assert methods.method_of("alone") is methods.METHODS["apfed"]
    assert methods.title("apfed", "tvfl-0") == "classic vertical, partners gone: zeros"


def test_an_unknown_method_is_told_all_there_are(dovetail: Any) -> None:
    error = refused(dovetail("train", "run.toml", "--set", "method=guesss"))
    *known, last = (repr(variant) for variant in methods.variants())
    assert last == "'guess-twice'"
    names = f"{', '.join(known)} or {last}"
    assert f"method: input should be {names}, got 'guesss'" in error
