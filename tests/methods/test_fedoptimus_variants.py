"""What owners hold in a simulated run of FedOptimus, and what its variants are scored on."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dovetail.data import (
    Classification,
    Column,
    Dataset,
    Federation,
    owners,
    table_from_arrays,
)
from dovetail.errors import ConfigError
from dovetail.methods import fedoptimus
from dovetail.methods.base import Loaded
from dovetail.methods.fedoptimus.local_data import (
    EVERYBODY,
    POOLED,
    Columns,
    OwnerHoldings,
    columns_in,
    holdings,
    labels_in,
    side_by_side,
    together,
)
from dovetail.methods.fedoptimus.variants import variant_config
from dovetail.models.joined import join
from dovetail.models.owners import ColumnsMlp, StripCnn
from dovetail.network import Checkpoint
from dovetail.runs import run
from dovetail.runs.runfile import check_run
from dovetail.runs.setup import setup as setup_of

NUM_ROWS = 90
CONFIG = fedoptimus.Config(
    epochs=3, batch_size=16, optimizer="adam", learning_rate=0.02, embedding=8, top=(8,)
)

#: What a run file says of data that are split already.
DEALT = {"kind": "owners", "data_owners": 2, "label_owners": 2}


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


def setup(*, data=None, bottom=(8,), config=CONFIG, selection=None, **keys):
    """A run that trains this configuration, on data that are split already."""
    data = data or owners(
        table(),
        table(40, seed=1),
        data_owners={name: [name] for name in table().x.names},
        label_owners=2,
    )
    section = {**config.model_dump(), "bottom": bottom, "selection": selection}
    values = {
        "method": "fedoptimus",
        "data": {"source": "made", "label": "y", "partition": DEALT},
        "fedoptimus": section,
        **keys,
    }
    return setup_of(check_run(values, where="the run"), 0, Loaded(data, None))


def trained(task, *, seed=0):
    """Variant -> outcome and lines."""
    lines = {}
    observe = lambda variant, total, line: lines.setdefault(variant, []).append(line)  # noqa: E731
    return dict(run(task, seed, observe)), lines


def test_a_label_owners_samples_are_the_same_rows_everywhere():
    data = owners(images(), images(9), data_owners=2, label_owners=3, validation=0.2)
    party_data = holdings(data, dict.fromkeys(data.data_owners, StripCnn()))
    columns, labels = columns_in(party_data), labels_in(party_data)
    for name, labels_data in labels.items():
        ids = torch.from_numpy(data.train[name].ids)
        assert torch.equal(labels_data.labels_S, ids % 3)
        for index, held in enumerate(columns.values()):
            rows = held.shared[name]
            strip = images().x[ids][:, :, 2 * index : 2 * index + 2]
            assert torch.equal(rows[torch.arange(len(ids))], strip)
        kept = data.validation[name]
        assert torch.equal(labels_data.scored["validation"], torch.from_numpy(kept.ids % 3))
    assert sum(len(labels_data.labels_S) for labels_data in labels.values()) == 90 - 18


def test_everybody_together_has_each_label_once_and_side_by_side_the_whole_image():
    data = owners(images(), images(9), data_owners=2, label_owners=3)
    party_data = together(holdings(data, dict.fromkeys(data.data_owners, StripCnn())))
    labels = labels_in(party_data)
    whole = side_by_side(columns_in(party_data), data.axis)[POOLED]
    ids = torch.cat([torch.from_numpy(data.train[name].ids) for name in data.label_owners])
    assert sorted(ids.tolist()) == list(range(90))
    assert torch.equal(labels[EVERYBODY].labels_S, ids % 3)
    rows = whole.shared[EVERYBODY]
    assert torch.equal(rows[torch.arange(90)], images().x[ids][:, :, :4])
    tested = whole.scored["test"][EVERYBODY]
    assert torch.equal(tested[torch.arange(9)], images(9).x[:, :, :4])


def test_baselines_have_no_momentum_and_all_data_owners():
    config = CONFIG.model_copy(update={"share": 0.5, "iterate_average": 3})
    for variant in ("classic", "alone", "pooled"):
        config_of = variant_config(config, variant, {"epochs": 7})
        assert (config_of.server, config_of.slowmo, config_of.share, config_of.iterate_average) == (
            "average",
            "off",
            1.0,
            1,
        )
        assert config_of.epochs == 7
    assert variant_config(config, "fedoptimus", {}) == config


@pytest.mark.trained
@pytest.mark.slow
def test_every_stage_is_scored_at_its_label_owners():
    outcomes, lines = trained(setup(baselines=("classic", "alone", "pooled")))
    scores = {variant: outcome.scores[variant] for variant, outcome in outcomes.items()}
    assert scores["fedoptimus"].keys() == scores["alone"].keys() == {"label-1", "label-2"}
    assert scores["classic"].keys() == scores["pooled"].keys() == {EVERYBODY}
    assert scores["fedoptimus"]["label-1"] == scores["fedoptimus"]["label-2"]  # one model
    assert scores["classic"][EVERYBODY]["accuracy"] > 0.85
    assert scores["pooled"][EVERYBODY]["accuracy"] > 0.85
    for variant, stage_lines in lines.items():
        sent = [line["bytes"] for line in stage_lines]
        assert sent == sorted(sent), variant
        assert sent[0] > 0, variant
    stage_lines = outcomes["fedoptimus"].ledger.bytes_by_party()
    assert lines["fedoptimus"][-1]["bytes"] == sum(each["sent"] for each in stage_lines.values())


def test_an_epoch_is_scored_when_the_round_that_ends_it_is_over():
    _, lines = trained(setup(evaluate_every=1))  # 45 rows, 3 steps an epoch, 5 a round
    scored = [line["round"] for line in lines["fedoptimus"] if "accuracy" in line]
    assert scored == [1, 2]
    config = CONFIG.model_copy(update={"rounds": 5})
    _, lines = trained(setup(config=config, evaluate_every=2))
    scored = [line["round"] for line in lines["fedoptimus"] if "accuracy" in line]
    assert scored == [2, 4, 5]


@pytest.mark.slow
def test_owners_of_noise_are_not_chosen_and_their_networks_are_not_used():
    chosen = {"share": 0.34, "rows": 45, "group_size": 2, "groups": 2, "by": "columns"}
    outcomes, lines = trained(setup(selection=chosen))
    assert lines["fedoptimus"][0]["participants"] == ["good a", "good b"]
    assert lines["fedoptimus"][0]["distances"] > 0
    assert outcomes["fedoptimus"].bottoms.keys() == {"good a", "good b"}


def test_a_label_owners_model_and_the_data_owners_score_what_the_run_says():
    task = setup(evaluate_every=0)
    outcome = trained(task)[0]["fedoptimus"]
    model = join(outcome.models["label-1"], list(outcome.bottoms.values()))
    rows = {
        name: columns.scored["test"]["label-1"]
        for name, columns in columns_in(task.party_data).items()
    }
    outputs = model.outputs({name: each.x for name, each in rows.items()})
    right = outputs.argmax(dim=1) == task.party_data["label-1"].scored["test"]
    accuracy = right.float().mean().item()
    assert accuracy == pytest.approx(outcome.scores["fedoptimus"]["label-1"]["accuracy"])
    assert model.about["label"] == "y"


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [None, {"share": 0.5, "rows": 30, "every": 15}])  # 3 rounds
def test_a_variant_that_was_stopped_ends_as_one_that_was_not(tmp_path, chosen):
    config = CONFIG.model_copy(update={"rounds": 4})
    task = setup(config=config, selection=chosen)
    whole = trained(task)[0]["fedoptimus"]

    def train(stop):
        lines = []

        def observe(variant, total, line):
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


@pytest.mark.trained
def test_a_number_is_learned_too():
    pooled = table()
    numbers = Column(pooled.labels.values * 10.0, pooled.labels.missing)
    data = Dataset("made", pooled.ids, pooled.x, "y", numbers)
    part = owners(data, data, data_owners=3, label_owners=2, kind="regression")
    config = CONFIG.model_copy(update={"epochs": 15, "server": "average"})
    outcomes, _ = trained(setup(data=part, config=config, evaluate_every=0))
    assert outcomes["fedoptimus"].scores["fedoptimus"]["label-1"]["rmse"] < 4


def test_each_alone_is_as_if_no_other_label_owner_were_there():
    data = owners(table(), table(40, seed=1), data_owners=3, label_owners=2)
    both = trained(setup(data=data, baselines=("alone",)))[0]["alone"]
    party_data = holdings(data, dict.fromkeys(data.data_owners, ColumnsMlp((8,))))
    for name in data.label_owners:
        other = next(each for each in data.label_owners if each != name)
        task = setup(data=data, config=variant_config(CONFIG, "alone", {}))
        labels_alone = {
            party: local_data.only(name) if isinstance(local_data, Columns) else local_data
            for party, local_data in party_data.items()
            if party != other
        }
        outcome = trained(replace(task, party_data=labels_alone))[0]["fedoptimus"]
        assert outcome.scores["fedoptimus"][name] == both.scores["alone"][name]
    assert not both.models
    assert not both.bottoms


def test_what_needs_one_place_is_refused_elsewhere():
    data = OwnerHoldings(Federation([]), None, Classification((0, 1)), {}, "y", {})
    with pytest.raises(ConfigError, match="'pooled' needs everybody's labels in one place"):
        setup(data=data, baselines=("pooled",))
