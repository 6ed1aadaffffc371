"""Selection: the federated estimate is the pooled one, with fewer distances sent."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from pooled_information import pooled
from pydantic import ValidationError
from scipy.special import digamma
from sklearn.feature_selection import mutual_info_classif
from sklearn.preprocessing import scale

from dovetail.data import SharedRows
from dovetail.errors import ConfigError, DataError, MessageError, PartyError
from dovetail.methods import selection
from dovetail.methods.fedoptimus import choosing
from dovetail.methods.fedoptimus.local_data import Columns
from dovetail.methods.fedoptimus.masked import SummingSettings
from dovetail.methods.fedoptimus.variants import chooser_of
from dovetail.models.owners import ColumnsMlp
from dovetail.network import Composite, InProcess
from dovetail.network.checkpoint import Checkpoint

ALONE = selection.Config(groups=0)


def data_owner(name, x, **settings):
    tensor = torch.as_tensor(x)
    return selection.DataOwner(name, lambda who, samples_B: tensor[samples_B], **settings)


def label_owner(labels, name="bank"):
    labels = torch.as_tensor(labels)
    return selection.LabelOwner(name, torch.arange(len(labels)), labels)


def network(columns, labels, **settings):
    """Data owners with these columns, and the bank with the labels."""
    parties = {name: data_owner(name, x) for name, x in columns.items()}
    return InProcess({**parties, "bank": label_owner(labels)}, driver="driver", **settings)


def score(columns, labels, config=ALONE, *, seed=0, **settings):
    return selection.score(
        network(columns, labels, **settings), list(columns), ["bank"], config, seed=seed
    )


def case(seed, *, num_rows=60, num_classes=3, widths=(2, 1, 3, 2), informative=2):
    """Owners' columns of which the first tell the class, and the classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, num_rows)
    columns = {}
    for index, width in enumerate(widths):
        x = rng.normal(size=(num_rows, width))
        if index < informative:
            x[:, 0] += 2 * labels
        columns[f"owner-{index}"] = x
    return columns, labels


def by_hand(distances_NN, labels, neighbours):
    """The estimator row by row; rows that are as far as the k-th count, too."""
    labels = np.asarray(labels)
    kept = [i for i in range(len(labels)) if (labels == labels[i]).sum() > 1]
    terms = []
    for i in kept:
        same = sorted(distances_NN[i][j] for j in kept if j != i and labels[j] == labels[i])
        k = min(neighbours, len(same))
        radius = same[k - 1]
        nearer = sum(distances_NN[i][j] <= radius for j in kept if j != i)
        k = sum(d <= radius for d in same)
        terms.append(digamma(k) - digamma(len(same) + 1) - digamma(nearer))
    return digamma(len(kept)) + np.mean(terms)


# --- Identities ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_the_federated_estimate_is_the_pooled_one_exactly(seed, secure):
    columns, labels = case(seed)
    config = selection.Config(group_size=3, groups=2, secure=secure)
    scores = score(columns, labels, config, seed=seed)
    assert {name for members, _ in scores.groups for name in members} == columns.keys()
    for members, nats in scores.groups:
        x_NF = np.concatenate([columns[name] for name in members], axis=1)
        assert nats == pooled(x_NF, labels)


@pytest.mark.parametrize("neighbours", [1, 3, 7])
def test_one_column_agrees_with_scikit_learn(neighbours):
    columns, labels = case(3, widths=(1,), num_rows=150)
    raw = columns["owner-0"] - 1.0
    noise = np.random.RandomState(5).standard_normal(size=raw.shape)
    x_N1 = scale(raw, with_mean=False)  # what mutual_info_classif does to its columns
    x_N1 = x_N1 + 1e-10 * np.maximum(1, np.abs(x_N1).mean(axis=0)) * noise
    (theirs,) = mutual_info_classif(
        raw, labels, discrete_features=False, n_neighbors=neighbours, random_state=5
    )
    config = selection.Config(groups=0, neighbours=neighbours)
    (ours,) = score({"shop": x_N1}, labels, config).values.values()
    assert ours == pytest.approx(theirs, abs=1e-12)
    assert ours > 0.1


@pytest.mark.parametrize("seed", range(4))
def test_ties_count_as_in_the_definition(seed):
    """Whole numbers: many rows are equally far, and many are equal."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 40)
    columns = {name: rng.integers(0, 3, (40, 2)).astype(float) for name in "abc"}
    for secure in (False, True):
        scores = score(columns, labels, selection.Config(groups=2, secure=secure), seed=seed)
        assert {name for members, _ in scores.groups for name in members} == columns.keys()
        for members, nats in scores.groups:
            x = np.concatenate([columns[name] for name in members], axis=1)
            distances = ((x[:, None] - x[None]) ** 2).sum(axis=2)
            assert nats == pytest.approx(by_hand(distances, labels, 3), abs=1e-12)


def test_a_column_of_few_values_is_worth_what_counting_says():
    """Where rows are equal or not, mutual information is that of a table of counts."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    column = labels + rng.integers(0, 3, 400)
    table = np.array([[(labels[column == v] == c).sum() for v in range(4)] for c in range(2)]) / 400
    independent = table.sum(axis=0) * table.sum(axis=1, keepdims=True)
    counted = (table[table > 0] * np.log(table[table > 0] / independent[table > 0])).sum()
    worth = score({"shop": column[:, None].astype(float)}, labels).values["shop"]
    assert worth == pytest.approx(counted, abs=0.01)
    assert counted > 0.2


def test_a_constant_column_is_worth_nothing():
    labels = case(0)[1]
    worth = score({"constant": np.full((len(labels), 2), 7.0)}, labels).values["constant"]
    others = np.bincount(labels)[labels] - 1
    assert worth == pytest.approx(digamma(60) - digamma(59) - (1 / others).mean(), abs=1e-12)
    assert -0.05 < worth < 0


def test_a_group_with_a_constant_owner_is_worth_the_others():
    columns, labels = case(1, widths=(2, 1))
    columns["constant"] = np.zeros((len(labels), 1))
    scores = score(columns, labels, selection.Config(group_size=3, groups=1))
    both = np.concatenate([columns["owner-0"], columns["owner-1"]], axis=1)
    assert dict(scores.groups)["owner-0", "owner-1", "constant"] == pooled(both, labels)


def test_a_large_or_tiny_scale_changes_nothing():
    columns, labels = case(2)
    config = selection.Config(groups=2)
    expected = score(columns, labels, config)
    for factor in (2.0**-60, 2.0**60):
        scaled = {name: x * factor for name, x in columns.items()}
        assert score(scaled, labels, config) == expected


def test_masked_groups_are_worth_what_they_are_in_the_clear():
    columns, labels = case(4)
    masked = score(columns, labels, selection.Config(secure=True))
    assert all(len(members) > 1 for members, _ in masked.groups)
    for members, nats in masked.groups:
        x = np.concatenate([columns[name] for name in members], axis=1)
        assert nats == pooled(x, labels)


def test_messages_as_bytes_give_the_same():
    columns, labels = case(5)
    for secure in (False, True):
        config = selection.Config(secure=secure)
        direct = score(columns, labels, config)
        assert score(columns, labels, config, through_bytes=True) == direct


def test_fewer_queries_are_a_mean_over_these_rows():
    columns, labels = case(6, widths=(2,))
    net = network(columns, labels)
    scores = selection.score(
        net, ["owner-0"], ["bank"], selection.Config(groups=0, queries=7), seed=0
    )
    x = columns["owner-0"]
    distances = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    queries = net._parties["bank"]._queries_Q
    assert len(queries) == 7
    terms = []
    for query in queries:
        same = np.sort(distances[query][labels == labels[query]])  # the first is itself
        nearer = (distances[query] < same[3]).sum()
        count = (labels == labels[query]).sum()
        terms.append(digamma(3) - digamma(count) - digamma(nearer))
    assert scores.values["owner-0"] == pytest.approx(digamma(60) + np.mean(terms), abs=1e-12)


def test_several_label_owners_count_by_their_rows():
    columns, labels = case(7, num_rows=90)
    parties = {name: data_owner(name, x) for name, x in columns.items()}
    shards = {"bank": torch.arange(60), "shop": torch.arange(60, 90)}
    for name, rows in shards.items():
        parties[name] = selection.LabelOwner(name, rows, torch.from_numpy(labels)[rows])
    net = InProcess(parties, driver="driver")
    scores = selection.score(net, list(columns), list(shards), ALONE, seed=0)
    for name, x in columns.items():
        first, second = (pooled(x[rows], labels[rows]) for rows in shards.values())
        assert scores.values[name] == pytest.approx((60 * first + 30 * second) / 90)


# --- Fagin's algorithm ---------------------------------------------------------------------------


def brute_force_order(columns, members, query):
    x = np.concatenate([columns[name] for name in members], axis=1)
    distances = ((x - x[query]) ** 2).sum(axis=1)
    distances[query] = np.inf
    return np.argsort(distances)


def test_the_lists_told_are_those_of_brute_force_with_fewer_distances_sent():
    columns, labels = case(8, num_rows=200, widths=(2, 2, 2))
    messages = []

    class Listening(selection.LabelOwner):
        def handle(self, message):
            if isinstance(message, selection.Nearest):
                messages.append(message)
            return super().handle(message)

    parties = {name: data_owner(name, x) for name, x in columns.items()}
    parties["bank"] = Listening("bank", torch.arange(200), torch.from_numpy(labels))
    net = InProcess(parties, driver="driver")
    scores = selection.score(net, list(columns), ["bank"], selection.Config(groups=1), seed=0)
    assert scores.distances < 0.6 * scores.brute_force
    checked = 0
    for message in messages:
        members = scores.groups[message.group - 1][0]
        for query, rows in zip(message.queries_B.tolist(), message.rows_BL.numpy(), strict=True):
            rows = rows[rows >= 0]
            nearest = brute_force_order(columns, members, query)[: len(rows)]
            assert rows.tolist() == nearest.tolist()
            checked += 1
    assert checked > 200


def test_the_count_of_distances_is_what_crossed_the_wire():
    columns, labels = case(9)
    for secure in (False, True):
        net = network(columns, labels)
        sent = []
        for name in columns:
            party = net._parties[name]
            handle = party.handle

            def counting(message, handle=handle, sent=sent):
                reply = handle(message)
                if isinstance(reply, selection.Partial):
                    sent.append(reply.distances_M.numel())
                return reply

            party.handle = counting
        config = selection.Config(secure=secure)
        scores = selection.score(net, list(columns), ["bank"], config, seed=0)
        assert scores.distances == sum(sent)
        if not secure:
            assert scores.distances <= scores.brute_force


def test_no_distance_is_sent_twice_to_a_coordinator_that_knows_it():
    columns, labels = case(10)
    once = score(columns, labels, selection.Config(group_size=4, groups=1))
    again = score(columns, labels, selection.Config(group_size=4, groups=1))
    assert once == again
    assert score(columns, labels, selection.Config(group_size=4, groups=5)) == once


def test_planted_owners_come_first():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 200)
    columns = {f"noise-{i}": rng.normal(size=(200, 2)) for i in range(5)}
    columns |= {f"planted-{i}": rng.normal(size=(200, 2)) + 2 * labels[:, None] for i in range(2)}
    scores = score(columns, labels, selection.Config())
    assert set(scores.ranked[:2]) == {"planted-0", "planted-1"}
    assert scores.best(2 / 7) == ("planted-0", "planted-1")
    assert scores.distances < 0.4 * scores.brute_force


# --- The chooser ---------------------------------------------------------------------------------


def test_the_chooser_scores_anew_every_so_many_rounds():
    columns, labels = case(0)
    net = network(columns, labels)
    choose = choosing.Chooser(replace_share(0.5), list(columns), ["bank"], every=3, seed=1)
    seen = []
    for number in range(1, 8):
        before = choose.latest
        assert choose(number, net) == ("owner-0", "owner-1")
        seen.append(choose.latest is not before)
    assert seen == [True, False, False, True, False, False, True]


def replace_share(share):
    return selection.Config(share=share)


def test_a_restored_chooser_keeps_whom_it_chose():
    columns, labels = case(0)
    choose = choosing.Chooser(replace_share(0.25), list(columns), ["bank"], every=5)
    chosen = choose(1, network(columns, labels))
    again = choosing.Chooser(replace_share(0.25), list(columns), ["bank"], every=5)
    again.restore(choose.state())
    assert again(2, InProcess({}, driver="driver")) == chosen


@pytest.mark.parametrize(("share", "kept"), [(0.01, 1), (0.25, 1), (0.5, 2), (1.0, 4)])
def test_the_share_keeps_one_owner_at_least(share, kept):
    scores = selection.Scores({"a": 1.0, "b": 3.0, "c": 2.0, "d": 0.0}, (), 0, 0)
    assert len(scores.best(share)) == kept
    assert "b" in scores.best(share)


def test_groups_hold_each_owner_about_as_often():
    names = tuple("abcdefg")
    groups = selection.group(names, selection.Config(group_size=3, groups=2), seed=0)
    assert groups[:7] == [(name,) for name in names]
    masked = selection.group(names, selection.Config(secure=True), seed=0)
    assert min(map(len, masked)) >= 2
    assert [len(members) for members in groups[7:]] == [3, 3, 3, 3]
    for name in names:
        assert any(name in members for members in groups[7:])
        assert sum(name in members for members in masked) >= 3


# --- Who fails, and bad input --------------------------------------------------------------------


def test_a_data_owner_that_fails_is_left_out():
    columns, labels = case(0)
    expected = score({k: v for k, v in columns.items() if k != "owner-1"}, labels)
    columns["owner-1"] = columns["owner-1"][:, :0].reshape(60, 0)
    net = network(columns, labels)

    def features(who, samples_B):
        raise DataError("party 'owner-1': it lacks 3 of these rows; align again")

    net._parties["owner-1"].features = features
    scores = selection.score(net, list(columns), ["bank"], ALONE, seed=0)
    assert scores.values == expected.values
    assert "lacks 3" in scores.missed["owner-1"]


def test_a_data_owner_lost_midway_is_out_for_all_label_owners():
    columns, labels = case(7, num_rows=90)
    shards = {"bank": torch.arange(60), "shop": torch.arange(60, 90)}

    def scores(names):
        parties = {name: data_owner(name, columns[name]) for name in names}
        if "owner-1" in parties:
            features = parties["owner-1"].features

            def moody(label_owner, samples_B):
                if label_owner == "shop":
                    raise DataError("it has none of the shop's rows; align again")
                return features(label_owner, samples_B)

            parties["owner-1"].features = moody
        for name, rows in shards.items():
            parties[name] = selection.LabelOwner(name, rows, torch.from_numpy(labels)[rows])
        net = InProcess(parties, driver="driver")
        config = selection.Config(groups=1)
        return selection.score(net, names, list(shards), config, seed=0)

    without = scores([name for name in columns if name != "owner-1"])
    lost = scores(list(columns))
    assert lost.values == without.values
    assert lost.groups == without.groups
    assert list(lost.missed) == ["owner-1"]
    assert lost.distances > without.distances  # what was sent before was sent


def test_a_label_owner_of_one_class_is_left_out(caplog):
    columns, labels = case(0)
    parties = {name: data_owner(name, x) for name, x in columns.items()}
    parties["bank"] = label_owner(labels)
    parties["shop"] = label_owner(np.zeros(60, dtype=np.int64), "shop")
    net = InProcess(parties, driver="driver")
    with caplog.at_level(logging.WARNING):
        scores = selection.score(net, list(columns), ["bank", "shop"], ALONE, seed=0)
    assert scores.values == score(columns, labels).values
    assert "goes on without it: party 'shop': it has 1 class" in caplog.text


@pytest.mark.parametrize(
    ("labels", "config", "words"),
    [
        (np.zeros(10, dtype=int), {}, "it has 1 class with two or more rows among the 10"),
        (np.arange(10), {}, "it has 0 class"),
        (np.arange(10) % 2, {"neighbours": 10}, "neighbours = 10 needs more than so many rows"),
    ],
)
def test_labels_that_tell_nothing_are_refused(labels, config, words):
    columns = {"shop": np.random.default_rng(0).normal(size=(10, 2))}
    with pytest.raises(PartyError, match=f"party 'bank': {words}"):
        score(columns, labels, selection.Config(groups=0, **config))


@pytest.mark.parametrize(
    "values", [{"neighbours": 0}, {"share": 0}, {"share": 1.1}, {"rows": 1}, {"growth": 1.0}]
)
def test_settings_out_of_range_are_refused(values):
    with pytest.raises(ValidationError):
        selection.Config(**values)


def test_masks_need_three_owners():
    columns, labels = case(0, widths=(2, 2))
    with pytest.raises(ConfigError, match="and 2 make only one group; it takes 3 or more"):
        score(columns, labels, selection.Config(secure=True))


@pytest.mark.slow
def test_masked_scores_tell_three_owners_apart():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 300)
    columns = {
        name: rng.normal(size=(300, 2)) + shift * labels[:, None]
        for name, shift in {"much": 2.0, "little": 1.0, "nothing": 0.0}.items()
    }
    for seed in range(5):
        scores = score(columns, labels, selection.Config(secure=True), seed=seed)
        assert scores.ranked == ("much", "little", "nothing")


def test_labels_that_are_numbers_or_missing_are_refused():
    for labels in (torch.tensor([0.5, 1.5]), torch.tensor([0, -1])):
        with pytest.raises(DataError, match="labels that are classes, none missing"):
            selection.LabelOwner("bank", torch.arange(2), labels)
    with pytest.raises(DataError, match="3 samples and 2 labels"):
        selection.LabelOwner("bank", torch.arange(3), torch.tensor([0, 1]))


def test_rows_that_are_not_finite_are_the_owner_s_fault():
    columns, labels = case(0, widths=(2,))
    columns["owner-0"][3, 1] = np.nan
    with pytest.raises(PartyError, match=r"party 'owner-0': .*not finite"):
        score(columns, labels)


def test_an_owner_may_refuse_to_send_unmasked_distances():
    columns, labels = case(0, widths=(2, 2, 2))
    parties = {name: data_owner(name, x, masked_only=True) for name, x in columns.items()}
    net = InProcess({**parties, "bank": label_owner(labels)}, driver="driver")
    with pytest.raises(PartyError, match="no distance without masks"):
        selection.score(net, list(columns), ["bank"], ALONE, seed=0)
    secure = selection.Config(secure=True)
    assert selection.score(net, list(columns), ["bank"], secure, seed=0).ranked


def test_a_data_owner_that_is_summed_in_secret_only_gives_no_distance_in_the_clear():
    x = torch.arange(6.0)[:, None]
    rows = {"bank": SharedRows("shop", x, torch.arange(6))}
    for secure in (False, True):
        summing = SummingSettings(secure=secure)
        owner = chooser_of(Columns("shop", rows, ColumnsMlp((2,)), summing=summing), None)
        owner.handle(selection.Open("bank", torch.arange(6), torch.arange(6)))
        pairs = torch.tensor([0, 1]), torch.tensor([2, 5])
        asked = selection.Measure(*pairs, 20, (), EMPTY_KEYS, NONE, 0)
        if secure:
            with pytest.raises(ConfigError, match="no distance without masks"):
                owner.handle(asked)
        else:
            assert (owner.handle(asked).distances_M / 2.0**20).tolist() == [4.0, 16.0]


def opened():
    """A data owner of six rows that was opened, all rows being queries."""
    owner = data_owner("shop", np.arange(6.0)[:, None])
    owner.handle(selection.Open("bank", torch.arange(6), torch.arange(6)))
    return owner


EMPTY_KEYS = torch.empty((0, 32), dtype=torch.uint8)
NONE = torch.empty(0, dtype=torch.int64)


@pytest.mark.parametrize(
    "message",
    [
        selection.Open("bank", torch.arange(6), torch.tensor([6])),
        selection.Open("bank", torch.arange(6).float(), torch.arange(6)),
        selection.Open("bank", torch.arange(1), torch.arange(1)),
        selection.Rank(torch.tensor([0]), 0, 6),
        selection.Rank(torch.tensor([0]), 3, 3),
        selection.Rank(torch.tensor([-1]), 0, 2),
        selection.Measure(torch.tensor([0]), torch.tensor([6]), 0, (), EMPTY_KEYS, NONE, 0),
        selection.Measure(torch.tensor([0, 1]), torch.tensor([1]), 0, (), EMPTY_KEYS, NONE, 0),
        selection.Measure(torch.tensor([0]), torch.tensor([1]), 60, (), EMPTY_KEYS, NONE, 0),
        selection.Measure(torch.tensor([0]), torch.tensor([1]), 0, ("shop",), EMPTY_KEYS, NONE, 1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_data_owner_refuses_what_cannot_be(message):
    with pytest.raises(MessageError):
        opened().handle(message)


def test_a_data_owner_measures_nothing_before_it_was_opened():
    with pytest.raises(PartyError, match=r"before selection\.Open"):
        data_owner("shop", np.zeros((4, 1))).handle(selection.Rank(torch.tensor([0]), 0, 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.roll(1, 0),  # names a query itself, somewhere
        lambda rows: torch.zeros_like(rows),
        lambda rows: rows + 1000,
        lambda rows: rows.long(),
        lambda rows: rows[:, :-1],
    ],
)
def test_a_ranking_that_is_none_leaves_its_owner_out(change):
    columns, labels = case(0)
    net = network(columns, labels)
    party = net._parties["owner-2"]
    handle = party.handle

    def lying(message):
        reply = handle(message)
        if isinstance(reply, selection.Ranked):
            return replace(reply, rows_BD=change(reply.rows_BD))
        return reply

    party.handle = lying
    scores = selection.score(net, list(columns), ["bank"], ALONE, seed=0)
    assert set(scores.values) == {"owner-0", "owner-1", "owner-3"}
    assert "selection.Ranked.rows_BD" in scores.missed["owner-2"]


def test_numbers_become_classes_of_about_as_many_rows():
    values = torch.from_numpy(np.random.default_rng(0).normal(size=100)).float()
    assert torch.bincount(selection.binned(values, 5)).tolist() == [20] * 5
    assert selection.binned(torch.zeros(4)).tolist() == [1, 1, 1, 1]


# --- A party of several algorithms ---------------------------------------------------------------


def test_a_composite_party_has_columns_and_labels():
    columns, labels = case(0)
    parties = {name: data_owner(name, x) for name, x in columns.items()}
    parties["owner-0"] = Composite(parties["owner-0"], label_owner(labels, "owner-0"))
    net = InProcess(parties, driver="driver")
    scores = selection.score(net, list(columns), ["owner-0"], ALONE, seed=0)
    assert scores.values == pytest.approx({name: pooled(x, labels) for name, x in columns.items()})


class Counter:
    """A part that keeps something."""

    def __init__(self, accepts):
        self.accepts = accepts
        self.count = 0

    def handle(self, message):
        self.count += 1
        return selection.Opened(self.count)

    def state(self):
        return {"count": self.count}

    def restore(self, state):
        self.count = state["count"]


def test_a_composite_party_saves_the_parts_that_have_a_state(tmp_path):
    def party():
        columns, _ = case(0, widths=(2,))
        return Composite(data_owner("shop", columns["owner-0"]), Counter((selection.Choose,)))

    choose = selection.Choose(3, 5, 0, 0)
    hosted = Checkpoint(tmp_path).hosting({"shop": party()})["shop"]
    for _ in range(3):
        hosted.handle(choose)
    from dovetail.network.checkpoint import Restore, Save

    hosted.handle(Save("selection", 1, 0))
    fresh = Checkpoint(tmp_path).hosting({"shop": party()})["shop"]
    fresh.handle(Restore("selection", 1, exactly=True))
    assert fresh.handle(choose).exponent == 4


def test_two_parts_of_one_message_are_refused():
    with pytest.raises(ValueError, match=r"accept selection\.Open"):
        Composite(data_owner("a", np.zeros((2, 1))), data_owner("b", np.zeros((2, 1))))
    with pytest.raises(ValueError, match="one part or more"):
        Composite()


# --- One by one ----------------------------------------------------------------------------------


def copies(seed, num_rows=240):
    """Two owners that tell different things, a copy of the better one, and noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, num_rows)
    high, low = np.divmod(labels, 2)
    best = np.stack([5.0 * high, 2.0 * low], axis=1) + rng.normal(size=(num_rows, 2))
    columns = {
        "best": best,
        "copy": best + 0.05 * rng.normal(size=best.shape),
        "other": 3.0 * low[:, None] + rng.normal(size=(num_rows, 1)),
        "noise": rng.normal(size=(num_rows, 2)),
    }
    return columns, labels


@pytest.mark.slow
def test_forward_selection_is_the_pooled_one():
    for seed in range(3):
        columns, labels = copies(seed)
        config = selection.Config(share=0.75, order="forward", rows=240)
        result = choosing.forward(
            network(columns, labels), list(columns), ["bank"], config, seed=seed
        )
        for members, nats in result.groups:
            x_NF = np.concatenate([columns[name] for name in members], axis=1)
            assert nats == pooled(x_NF, labels)
        worth = dict(result.groups)
        chosen = list(result.order[:1])
        for name in result.order[len(chosen) : 3]:  # each is the best that was left
            scores = {
                each: worth[tuple(n for n in columns if n in (*chosen, each))]
                for each in columns
                if each not in chosen
            }
            assert max(scores, key=lambda each: scores[each]) == name
            chosen.append(name)


@pytest.mark.slow
def test_a_copy_is_relevant_and_gains_nothing():
    for seed in range(5):
        columns, labels = copies(seed)
        relevance = selection.Config(share=0.5, groups=0)
        assert set(score(columns, labels, relevance).best(0.5)) == {"best", "copy"}
        choose = choosing.Chooser(
            relevance.model_copy(update={"order": "forward"}), list(columns), ["bank"], seed=seed
        )
        assert choose(1, network(columns, labels)) in (("best", "other"), ("copy", "other"))


def test_forward_selection_weighs_label_owners_and_goes_on_without_who_fails():
    columns, labels = copies(1)
    half = len(labels) // 2
    parties = {name: data_owner(name, x) for name, x in columns.items()}
    for name, rows in (("bank", slice(0, half)), ("club", slice(half, None))):
        samples = torch.arange(len(labels))[rows]
        parties[name] = selection.LabelOwner(name, samples, torch.as_tensor(labels)[rows])
    config = selection.Config(share=0.5, order="forward", groups=0)
    both = choosing.forward(
        InProcess(dict(parties), driver="driver"), list(columns), ["bank", "club"], config, seed=0
    )
    assert "other" in both.order[:2]
    for members, nats in both.groups:
        x_NF = np.concatenate([columns[name] for name in members], axis=1)
        parts = [pooled(x_NF[rows], labels[rows]) for rows in (slice(half), slice(half, None))]
        assert nats == pytest.approx(np.mean(parts), abs=1e-12)

    class Leaves(selection.DataOwner):
        """Answers until groups of two are asked about."""

        def handle(self, message):
            if isinstance(message, selection.Measure) and len(asked) > 40:
                raise PartyError(self.name, "has left")
            asked.append(message)
            return super().handle(message)

    asked = []
    tensor = torch.as_tensor(columns["best"])
    parties["best"] = Leaves("best", lambda who, samples_B: tensor[samples_B])
    result = choosing.forward(
        InProcess(parties, driver="driver"), list(columns), ["bank", "club"], config, seed=0
    )
    assert result.missed == {"best": "has left"}
    assert set(result.order[:2]) == {"copy", "other"}


def test_masks_and_groups_that_differ_by_one_owner_are_refused():
    columns, labels = copies(0)
    config = selection.Config(order="forward", secure=True)
    with pytest.raises(ConfigError, match="masks protect nobody"):
        choosing.forward(network(columns, labels), list(columns), ["bank"], config, seed=0)
