"""What owners hold in a simulated run of FedOptimus, and what its stages are scored on."""

import numpy as np
import pytest
import torch

from dovetail.data import Column, Dataset, owners, table_from_arrays
from dovetail.errors import ConfigError
from dovetail.experiment import run
from dovetail.methods import fedoptimus
from dovetail.methods.fedoptimus import predicting, selection
from dovetail.methods.fedoptimus.stages import (
    EVERYBODY,
    POOLED,
    FedOptimusSetup,
    holdings,
    side_by_side,
    stage_config,
    together,
)
from dovetail.models.owners import ColumnsMlp, StripCnn
from dovetail.network import Checkpoint

NUM_ROWS = 90
CONFIG = fedoptimus.Config(
    epochs=3, batch_size=16, optimizer="adam", learning_rate=0.02, embedding=8, top=(8,)
)


def table(num_rows=NUM_ROWS, *, seed=0):
    """Two columns tell the class, the others nothing; column "row" is the row's number."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, num_rows)
    arrays = {
        "good a": labels + rng.normal(0, 0.3, num_rows),
        "good b": labels + rng.normal(0, 0.3, num_rows),
        **{f"noise {letter}": rng.normal(size=num_rows) for letter in "abcd"},
    }
    missing = np.zeros(num_rows, dtype=bool)
    columns = table_from_arrays("made", arrays)
    return Dataset("made", np.arange(num_rows), columns, "y", Column(labels, missing))


def images(num_rows=NUM_ROWS):
    x = torch.arange(num_rows * 5 * 4).reshape(num_rows, 1, 5, 4) % 251
    labels = np.arange(num_rows) % 3
    return Dataset(
        "pixels",
        np.arange(num_rows),
        x.to(torch.uint8),
        "y",
        Column(labels, np.zeros(num_rows, dtype=bool)),
    )


def setup(*, data=None, spec=None, config=CONFIG, **options):
    data = data or owners(
        table(),
        table(40, seed=1),
        data_owners={name: [name] for name in table().x.names},
        label_owners=2,
    )
    columns, labels = holdings(data, dict.fromkeys(data.data_owners, spec or ColumnsMlp((8,))))
    return FedOptimusSetup(
        **{
            "method": "fedoptimus",
            "task": data.task,
            "label": data.label,
            "columns": columns,
            "labels": labels,
            "config": config,
            "axis": data.axis,
            **options,
        }
    )


def trained(task, *, seed=0):
    """Stage -> outcome and lines."""
    lines = {}
    observe = lambda stage, total, line: lines.setdefault(stage, []).append(line)  # noqa: E731
    return dict(run(task, seed, observe)), lines


def test_a_label_owners_samples_are_the_same_rows_everywhere():
    data = owners(images(), images(9), data_owners=2, label_owners=3, validation=0.2)
    columns, labels = holdings(data, dict.fromkeys(data.data_owners, StripCnn()))
    for name, own in labels.items():
        ids = torch.from_numpy(data.train[name].ids)
        assert torch.equal(own.labels_S, ids % 3)
        for place, held in enumerate(columns.values()):
            rows = held.shared[name]
            strip = images().x[ids][:, :, 2 * place : 2 * place + 2]
            assert torch.equal(rows[torch.arange(len(ids))], strip)
        kept = data.validation[name]
        assert torch.equal(own.scored["validation"], torch.from_numpy(kept.ids % 3))
    assert sum(len(own.labels_S) for own in labels.values()) == 90 - 18


def test_everybody_together_has_each_label_once_and_side_by_side_the_whole_image():
    data = owners(images(), images(9), data_owners=2, label_owners=3)
    parts = holdings(data, dict.fromkeys(data.data_owners, StripCnn()))
    columns, labels = together(*parts)
    whole = side_by_side(columns, data.axis)[POOLED]
    ids = torch.cat([torch.from_numpy(data.train[name].ids) for name in data.label_owners])
    assert sorted(ids.tolist()) == list(range(90))
    assert torch.equal(labels[EVERYBODY].labels_S, ids % 3)
    rows = whole.shared[EVERYBODY]
    assert torch.equal(rows[torch.arange(90)], images().x[ids][:, :, :4])
    tested = whole.scored["test"][EVERYBODY]
    assert torch.equal(tested[torch.arange(9)], images(9).x[:, :, :4])


def test_rulers_have_no_momentum_and_all_data_owners():
    config = CONFIG.model_copy(update={"share": 0.5, "iterate_average": 3})
    for stage in ("classic", "alone", "pooled"):
        told = stage_config(config, stage, {"epochs": 7})
        assert (told.server, told.slowmo, told.share, told.iterate_average) == (
            "average",
            "off",
            1.0,
            1,
        )
        assert told.epochs == 7
    assert stage_config(config, "fedoptimus", {}) == config


def test_every_stage_is_scored_at_its_label_owners():
    outcomes, lines = trained(setup(rulers=("classic", "alone", "pooled")))
    scores = {stage: outcome.scores[stage] for stage, outcome in outcomes.items()}
    assert scores["fedoptimus"].keys() == scores["alone"].keys() == {"label-1", "label-2"}
    assert scores["classic"].keys() == scores["pooled"].keys() == {EVERYBODY}
    assert scores["fedoptimus"]["label-1"] == scores["fedoptimus"]["label-2"]  # one model
    assert scores["classic"][EVERYBODY]["accuracy"] > 0.85
    assert scores["pooled"][EVERYBODY]["accuracy"] > 0.85
    for stage, told in lines.items():
        sent = [line["bytes"] for line in told]
        assert sent == sorted(sent), stage
        assert sent[0] > 0, stage
    told = outcomes["fedoptimus"].ledger.bytes_by_party()
    assert lines["fedoptimus"][-1]["bytes"] == sum(each["sent"] for each in told.values())


def test_an_epoch_is_scored_when_the_round_that_ends_it_is_over():
    _, lines = trained(setup(evaluate_every=1))  # 45 rows, 3 steps an epoch, 5 a round
    scored = [line["round"] for line in lines["fedoptimus"] if "accuracy" in line]
    assert scored == [1, 2]
    config = CONFIG.model_copy(update={"rounds": 5})
    _, lines = trained(setup(config=config, evaluate_every=2))
    scored = [line["round"] for line in lines["fedoptimus"] if "accuracy" in line]
    assert scored == [2, 4, 5]


def test_owners_of_noise_are_not_chosen_and_their_networks_are_not_used():
    chosen = selection.Config(share=0.34, rows=45, group_size=2, groups=2)
    outcomes, lines = trained(setup(selection=chosen, select_by="columns"))
    assert lines["fedoptimus"][0]["participants"] == ["good a", "good b"]
    assert lines["fedoptimus"][0]["distances"] > 0
    assert outcomes["fedoptimus"].bottoms.keys() == {"good a", "good b"}


def test_a_label_owners_model_and_the_data_owners_score_what_the_run_says():
    task = setup(evaluate_every=0)
    outcome = trained(task)[0]["fedoptimus"]
    model = predicting.join(outcome.models["label-1"], list(outcome.bottoms.values()))
    rows = {name: own.scored["test"]["label-1"] for name, own in task.columns.items()}
    outputs = model.outputs({name: each.x for name, each in rows.items()})
    right = outputs.argmax(dim=1) == task.labels["label-1"].scored["test"]
    accuracy = right.float().mean().item()
    assert accuracy == pytest.approx(outcome.scores["fedoptimus"]["label-1"]["accuracy"])
    assert model.about["label"] == "y"


@pytest.mark.parametrize("chosen", [None, selection.Config(share=0.5, rows=30)])
def test_a_stage_that_was_stopped_ends_as_one_that_was_not(tmp_path, chosen):
    config = CONFIG.model_copy(update={"rounds": 4})
    task = setup(config=config, selection=chosen, select_every=3)
    whole = trained(task)[0]["fedoptimus"]

    def train(stop):
        lines = []

        def observe(stage, total, line):
            lines.append(line)
            if line["round"] == stop:
                raise KeyboardInterrupt

        checkpoint = Checkpoint(tmp_path / "run")
        return task.train("fedoptimus", 0, observe, checkpoint), lines

    with pytest.raises(KeyboardInterrupt):
        train(3)
    resumed, lines = train(None)
    assert [line["round"] for line in lines] == [3, 4]
    for name, bottom in whole.bottoms.items():
        again = resumed.bottoms[name].network.state_dict()
        for key, value in bottom.network.state_dict().items():
            assert torch.equal(again[key], value)
    assert resumed.scores == whole.scores
    assert resumed.ledger.bytes_by_party() != {}


def test_a_number_is_learned_too():
    pooled = table()
    numbers = Column(pooled.labels.values * 10.0, pooled.labels.missing)
    data = Dataset("made", pooled.ids, pooled.x, "y", numbers)
    part = owners(data, data, data_owners=3, label_owners=2, regression=True)
    config = CONFIG.model_copy(update={"epochs": 15, "server": "average"})
    outcomes, _ = trained(setup(data=part, config=config, evaluate_every=0))
    assert outcomes["fedoptimus"].scores["fedoptimus"]["label-1"]["rmse"] < 4


def test_what_needs_one_place_is_refused_elsewhere():
    with pytest.raises(ConfigError, match="'pooled' needs everybody's labels in one place"):
        setup(axis=None, rulers=("pooled",))
