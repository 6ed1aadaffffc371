"""What partners are worth: the axioms of Shapley's value, and runs that are trained once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pooled_information import pooled

from dovetail import runs
from dovetail.api.valuing import Values
from dovetail.data import Column, Dataset, Partitioned, columns, owners, table_from_arrays
from dovetail.errors import ConfigError, DovetailError
from dovetail.methods import METHODS, apfed, fedoptimus
from dovetail.methods.base import Loaded
from dovetail.methods.training import Training
from dovetail.runs import shapley, value
from dovetail.runs.runfile import check_run
from dovetail.runs.setup import setup as setup_of

Coalition = frozenset[str]


def random_game(players: str, seed: int = 0) -> Callable[[Coalition], float]:
    rng = np.random.default_rng(seed)
    worth = {
        frozenset(chosen): float(rng.normal())
        for size in range(len(players) + 1)
        for chosen in itertools.combinations(players, size)
    }
    return worth.__getitem__


# --- Shapley's value -----------------------------------------------------------------------------


@pytest.mark.parametrize("players", ["a", "ab", "abcde"])
def test_values_add_up_to_what_all_gain(players: str) -> None:
    worth = random_game(players)
    total = sum(shapley.shapley(players, worth).values())
    assert total == pytest.approx(worth(frozenset(players)) - worth(frozenset()))


def test_two_partners_by_hand() -> None:
    worth = {"": 1.0, "a": 4.0, "b": 3.0, "ab": 5.0}
    values = shapley.shapley("ab", lambda coalition: worth["".join(sorted(coalition))])
    assert values == {"a": (3 + 2) / 2, "b": (2 + 1) / 2}


def test_exact_values_are_the_mean_over_all_orders() -> None:
    worth = random_game("abcd")
    every = list(itertools.permutations("abcd"))
    means = {name: mean for name, (mean, _) in shapley.shapley_sampled(every, worth).items()}
    assert shapley.shapley("abcd", worth) == pytest.approx(means)


def test_equal_partners_are_worth_the_same_and_one_that_adds_nothing_is_worth_nothing() -> None:
    def worth(coalition: Coalition) -> float:
        return float(len(coalition & {"twin", "other twin"}) > 0) + 2 * ("star" in coalition)

    values = shapley.shapley(["twin", "other twin", "star", "dummy"], worth)
    assert values == pytest.approx({"twin": 0.5, "other twin": 0.5, "star": 2.0, "dummy": 0.0})
    lost = shapley.leave_one_out(["twin", "other twin", "star", "dummy"], worth)
    assert lost == {"twin": 0.0, "other twin": 0.0, "star": 2.0, "dummy": 0.0}


def test_sampled_values_approach_the_exact_ones() -> None:
    players = "abcdefg"
    worth = random_game(players, seed=1)
    exact = shapley.shapley(players, worth)
    for count, tolerance in ((20, 1.0), (2000, 0.1)):
        drawn = shapley.orders(players, count, seed=0)
        sampled = shapley.shapley_sampled(drawn, worth)
        assert sum(mean for mean, _ in sampled.values()) == pytest.approx(
            worth(frozenset(players)) - worth(frozenset())
        )
        for name, (mean, error) in sampled.items():
            assert abs(mean - exact[name]) < min(tolerance, 4 * error)


def test_coalitions_are_named_once_the_most_telling_first() -> None:
    named = shapley.coalitions("abc", "shapley", None)
    assert len(named) == 8
    assert named[:2] == [frozenset("abc"), frozenset()]
    assert set(named[2:5]) == {frozenset("ab"), frozenset("ac"), frozenset("bc")}
    assert shapley.coalitions("abc", "loo", None) == named[:5]
    assert shapley.coalitions("abc", "mi", None) == []
    sampled = shapley.coalitions("abc", "shapley", [("b", "a", "c")])
    assert set(sampled) == {*named[:5], frozenset("b")}


# --- Runs ----------------------------------------------------------------------------------------


def table(num_rows: int, *, first_id: int, seed: int, regression: bool = False) -> Dataset:
    """The label is what "shop" knows, and a little of "lab"; "noise" knows nothing."""
    rng = np.random.default_rng(seed)
    x = {name: rng.normal(size=num_rows) for name in "abcd"}
    score = 3 * x["b"] + x["c"] + 0.3 * x["a"]
    labels = score if regression else np.where(score > 0, "yes", "no").astype(object)
    missing = np.zeros(num_rows, dtype=bool)
    ids = np.arange(first_id, first_id + num_rows)
    return Dataset("clients", ids, table_from_arrays("clients", x), "buys", Column(labels, missing))


def dealt(*, test: bool = True, regression: bool = False, **settings: Any) -> Partitioned:
    tested = table(200, first_id=200, seed=1, regression=regression) if test else None
    return columns(
        table(200, first_id=0, seed=0, regression=regression),
        tested,
        parties={"bank": ["a"], "shop": ["b"], "lab": ["c"], "noise": ["d"]},
        active="bank",
        kind="regression" if regression else "classification",
        **settings,
    )


def setup(method: Any = "tvfl", data: Partitioned | None = None, **changed: Any) -> Training:
    data = data or dealt()
    plain = apfed.Config(epochs=3, batch_size=32, learning_rate=0.05).model_dump(exclude_none=True)
    run = check_run(
        {
            "method": method,
            "baselines": changed.pop("baselines", ()),
            "apfed": {**plain, "patience": None, "encoder": [8], "head": [8], "dropout": 0.0},
            "passive": {**apfed.PassiveConfig().model_dump(exclude_none=True), "encoder": [8]},
            "data": {
                "source": "clients",
                "label": "buys",
                "partition": {
                    "kind": "columns",
                    "active": "bank",
                    "parties": {name: ["*"] for name in data.train.parties},
                },
            },
        },
        where="run.toml",
    )
    made = METHODS["apfed"].setup(run, Loaded(data, "bank", **changed), torch.device("cpu"))
    return made


def valued(made: Any, **settings: Any) -> dict[str, Any]:
    kept = settings.pop("kept", None) or value.CoalitionScores(None, "")
    seeds = settings.pop("seeds", (0,))
    return value.value(lambda seed: made, seeds, kept, **settings)


@pytest.mark.slow
def test_the_partner_that_knows_most_is_worth_most_by_all_measures() -> None:
    result = valued(setup())
    assert list(result["partners"]) == ["shop", "lab", "noise"]
    assert result["coalitions"] == 8
    for measure in ("mi", "loo", "shapley"):
        worth = {name: each[measure]["mean"] for name, each in result["partners"].items()}
        assert worth["shop"] > worth["lab"] > worth["noise"]
        assert abs(worth["noise"]) < 0.05
    total = sum(each["shapley"]["mean"] for each in result["partners"].values())
    assert total == pytest.approx(result["all"]["mean"] - result["none"]["mean"])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tvfl", "apfed-c"])
def test_all_and_none_are_the_run_and_its_baseline(method: Any) -> None:
    made = setup(method, baselines=("alone", "tvfl"), data=dealt(overlap={"lab": 0.7}))
    result = valued(made, by="loo", metric="accuracy", seeds=(3,))
    variants = dict(runs.run(made, 3, lambda *line: None))
    assert result["all"]["mean"] == variants[method].scores[method]["bank"]["accuracy"]
    assert result["none"]["mean"] == variants["alone"].scores["alone"]["bank"]["accuracy"]


def test_a_coalition_is_the_run_of_a_federation_without_the_others() -> None:
    made = setup()
    smaller = setup(
        data=columns(
            table(200, first_id=0, seed=0),
            table(200, first_id=200, seed=1),
            parties={"bank": ["a"], "lab": ["c"]},
            active="bank",
        )
    )
    scores = value.game(made).train({"lab"}, 0)
    whole = smaller.train("tvfl", 0, lambda *line: None).scores["tvfl"]["bank"]
    assert scores == {name: value for name, value in whole.items() if name != "details"}


def test_alignments_of_party_files_are_restricted_too() -> None:
    data = dealt(overlap={"shop": 0.5, "lab": 0.6, "noise": 0.9})
    made = setup(data=data)
    assert data.test is not None
    aligned = setup(
        data=data, alignment=data.train.align("bank"), test_alignment=data.test.align("bank")
    )
    for coalition in ((), ("noise", "lab")):
        assert value.game(aligned).train(coalition, 0) == value.game(made).train(coalition, 0)


def test_mutual_information_is_that_of_the_labelled_rows_shared_with_each() -> None:
    data = dealt(overlap={"shop": 0.5})
    bank, shop = data.train["bank"], data.train["shop"]
    assert bank.labels is not None
    few = bank.with_labels_on(torch.arange(0, 200, 2))
    data = replace(data, train=type(data.train)([few, *list(data.train.parties.values())[1:]]))
    both = np.isin(bank.ids, shop.ids) & (bank.ids % 2 == 0)
    index = {id_: row for row, id_ in enumerate(shop.ids.tolist())}
    rows = [index[id_] for id_ in bank.ids[both].tolist()]
    expected = pooled(shop.joined()[rows].numpy(), bank.labels[both].numpy())
    result = valued(setup(data=data), by="mi")
    assert result["partners"]["shop"]["mi"]["mean"] == expected
    assert "all" not in result


def test_what_is_lower_is_better_counts_the_other_way() -> None:
    result = valued(setup(data=dealt(regression=True)))
    assert result["metric"] == "rmse"
    assert result["lower_is_better"]
    assert next(iter(result["partners"])) == "shop"
    gained = sum(each["shapley"]["mean"] for each in result["partners"].values())
    assert gained == pytest.approx(result["none"]["mean"] - result["all"]["mean"])


def test_some_partners_can_be_valued_while_the_others_always_take_part() -> None:
    result = valued(setup(), partners=["noise", "lab"])
    assert set(result["partners"]) == {"noise", "lab"}
    assert result["always"] == ["shop"]
    assert result["coalitions"] == 4
    assert result["none"]["mean"] == value.game(setup()).train({"shop"}, 0)["auc"]


@pytest.mark.slow
def test_seeds_give_means_spreads_and_errors() -> None:
    made = setup()
    one = {"by": "loo", "partners": ["shop"], "kept": value.CoalitionScores(None, "")}
    apart = [valued(made, **one, seeds=(seed,)) for seed in (0, 1, 2)]
    together = valued(made, **one, seeds=(0, 1, 2))["partners"]["shop"]["loo"]
    each = [result["partners"]["shop"]["loo"]["mean"] for result in apart]
    assert together["mean"] == pytest.approx(np.mean(each))
    assert together["std"] == pytest.approx(np.std(each, ddof=1))
    assert together["error"] == pytest.approx(np.std(each, ddof=1) / 3**0.5)


@pytest.mark.slow
def test_a_partner_whose_every_value_may_be_nothing_is_named(tmp_path: Path) -> None:
    def values(mean: float, std: float) -> dict[str, float]:
        return {"mean": mean, "std": std, "error": std / 3**0.5}

    partners = {
        "bureau": {
            "mi": values(0.1, 0.01),
            "loo": values(0.0, 0.1),
            "joint_loo": values(0.1, 0.01),
        },
        "noise": {"mi": values(0.1, 0.01), "loo": values(0.01, 0.1), "joint_loo": values(0.0, 0.1)},
    }
    result = {"by": "loo", "metric": "auc", "lower_is_better": False, "partners": partners}
    three = Values({**result, "seeds": [0, 1, 2]}, tmp_path)
    assert three.of_no_use == ["noise"]
    assert "No gain beyond chance, solo or joint, by noise: train without" in " ".join(
        repr(three).split()
    )
    assert Values({**result, "seeds": [0, 1]}, tmp_path).of_no_use == []  # two tell nothing


def test_sampled_orders_say_how_sure_they_are() -> None:
    result = valued(setup(), permutations=4)
    assert result["shapley"] == "4 random orders"
    assert result["partners"]["shop"]["shapley"]["error"] > 0
    total = sum(each["shapley"]["mean"] for each in result["partners"].values())
    assert total == pytest.approx(result["all"]["mean"] - result["none"]["mean"])


class Additive:
    """Nine partners, each of whom adds its number."""

    partners = tuple("123456789")
    owners = ("bank",)
    metric = "auc"
    leaves = False

    def __init__(self) -> None:
        self.trained = 0

    def train(self, coalition: Any, seed: int, *, joint: bool) -> dict[str, float]:
        self.trained += 1
        return {"auc": float(sum(map(int, coalition)))}

    def information(self, partners: Any, seed: int) -> dict[str, float]:
        return dict.fromkeys(partners, 0.0)


def test_nine_partners_are_sampled_and_eight_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Additive()
    monkeypatch.setattr(value, "game", lambda setup: made)
    result = valued(None)
    assert result["shapley"] == "20 random orders"
    assert made.trained == result["coalitions"] < 2**9
    assert list(result["partners"]) == list("987654321")
    for name, each in result["partners"].items():
        assert each["shapley"] == {"mean": float(name), "std": 0.0, "error": 0.0}
    made.trained = 0
    result = valued(None, partners=list("12345678"))
    assert result["shapley"] == "exact"
    assert made.trained == 2**8
    assert result["partners"]["8"]["shapley"]["mean"] == pytest.approx(8.0)


def products(num_rows: int, *, first_id: int, seed: int) -> Dataset:
    """The label is the product of what "b" and "e" hold, and a little of the bank's own column."""
    rng = np.random.default_rng(seed)
    x = {name: rng.choice([-1.0, 1.0], num_rows) for name in "abcdef"}
    x["own"] = rng.normal(size=num_rows)
    labels = np.where(x["b"] * x["e"] + 0.4 * x["own"] > 0, "yes", "no").astype(object)
    ids = np.arange(first_id, first_id + num_rows)
    missing = np.zeros(num_rows, dtype=bool)
    return Dataset("clients", ids, table_from_arrays("clients", x), "buys", Column(labels, missing))


@pytest.mark.slow
def test_two_of_six_who_tell_all_by_their_product_rank_first_while_they_are_there() -> None:
    parties = {"bank": ["own"], **{name: [name] for name in "abcdef"}}
    data = columns(
        products(400, first_id=0, seed=0),
        products(400, first_id=400, seed=1),
        parties=parties,
        active="bank",
    )
    made = setup("apfed-r", data, baselines=("tvfl",))
    longer = made.settings.model_copy(update={"epochs": 10, "learning_rate": 0.1})
    made = replace(made, settings=longer)
    result = valued(made, by="loo")
    assert {*result["ranked"]["joint"][:2]} == {"b", "e"}
    together = {name: each["joint_loo"]["mean"] for name, each in result["partners"].items()}
    assert min(together["b"], together["e"]) > 0.25
    assert max(abs(together[name]) for name in "acdf") < 0.1
    # Alone, the bank cannot use what they knew: the solo model loses nothing without them.
    after = {name: each["loo"]["mean"] for name, each in result["partners"].items()}
    assert max(abs(after[name]) for name in "be") < 0.1
    assert result["all_joint"]["mean"] > result["all"]["mean"] + 0.25
    assert "joint_loo" not in valued(made, by="mi")["partners"]["b"]


@pytest.mark.slow
def test_who_wants_no_joint_model_trains_none() -> None:
    kept = value.CoalitionScores(None, "")
    made = setup("apfed-r", baselines=("tvfl",))
    result = valued(made, by="loo", kept=kept, joint=False)
    assert {*result["partners"]["shop"]} == {"mi", "loo"}
    assert "ranked" not in result
    # Asked for later, what lacks it is trained again.
    again = valued(made, by="loo", kept=kept)
    assert {*again["partners"]["shop"]} == {"mi", "loo", "joint_loo"}
    assert again["ranked"]["joint"][0] == "shop"


# --- Coalitions that are kept --------------------------------------------------------------------


@pytest.mark.slow
def test_each_coalition_is_trained_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "value.jsonl"
    first = valued(setup(), by="loo", kept=value.CoalitionScores(path, "run 1"))
    lines = path.read_text().splitlines()
    assert len(lines) == 5
    path.write_text("\n".join(lines[:3]) + "\n" + lines[3][:20])  # killed while it wrote
    calls: list[tuple[int, int]] = []
    again = valued(
        setup(),
        by="loo",
        kept=value.CoalitionScores(path, "run 1"),
        progress=lambda *at: calls.append(at),
    )
    assert again["partners"] == first["partners"]
    assert calls == [(3, 5), (4, 5), (5, 5)]
    assert len(path.read_text().splitlines()) == 6  # the damaged line stays, and is passed over
    calls.clear()
    valued(
        setup(),
        by="loo",
        kept=value.CoalitionScores(path, "run 2"),
        progress=lambda *at: calls.append(at),
    )
    assert calls[0] == (0, 5)


# --- FedOptimus ----------------------------------------------------------------------------------


#: What a run file says of data that are split already.
DEALT = {"kind": "owners", "data_owners": 3, "label_owners": 2}


def fedoptimus_setup(**keys: Any) -> Training:
    data = owners(
        table(200, first_id=0, seed=0),
        table(200, first_id=200, seed=1),
        data_owners={"shop": ["b"], "lab": ["c"], "noise": ["d"]},
        label_owners=2,
    )
    config = fedoptimus.Config(epochs=8, batch_size=32, learning_rate=0.05, embedding=8)
    values = {
        "method": "fedoptimus",
        "data": {"source": "made", "label": "y", "partition": DEALT},
        "fedoptimus": {**config.model_dump(), "bottom": (8,), **keys},
    }
    return setup_of(check_run(values, where="the run"), 0, Loaded(data, None))


@pytest.mark.slow
def test_data_owners_of_fedoptimus_are_partners() -> None:
    result = valued(fedoptimus_setup())
    assert next(iter(result["partners"])) == "shop"
    assert len(result["owners"]) == 2
    assert result["none"]["mean"] == 0.5  # all rows alike
    total = sum(each["shapley"]["mean"] for each in result["partners"].values())
    assert total == pytest.approx(result["all"]["mean"] - result["none"]["mean"])
    worth = {name: each["mi"]["mean"] for name, each in result["partners"].items()}
    assert worth["shop"] > worth["lab"] > worth["noise"]


# --- Bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "settings", "words"),
    [
        (lambda: setup(), {"partners": ["shop", "mall"]}, "'mall' is no partner of this run"),
        (lambda: setup(), {"by": "loo", "metric": "rmse"}, "no score 'rmse'; it has accuracy"),
        (lambda: setup(data=dealt(test=False)), {}, "no test rows"),
        (lambda: setup("alone"), {}, "'alone' has no partners to value"),
        (
            lambda: setup(
                "apfed-c",
                columns(
                    table(20, first_id=0, seed=0), None, parties={"bank": ["*"]}, active="bank"
                ),
            ),
            {},
            "no partner to value, only",
        ),
    ],
    ids=["unknown", "metric", "no test rows", "method", "nobody"],
)
def test_what_cannot_be_valued_is_refused(made: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        valued(made(), **settings)


def test_partners_elsewhere_are_refused() -> None:
    data = dealt()
    made = setup(
        data=data,
        alignment=data.train.align("bank"),
        test_alignment=data.test.align("bank") if data.test else None,
        connect=lambda variant: None,  # type: ignore[arg-type,return-value]
    )
    with pytest.raises(ConfigError, match="where all tables are in one place"):
        valued(made)


def test_a_partner_that_shares_too_few_labelled_rows_is_named() -> None:
    data = dealt(overlap={"lab": 0.01})
    with pytest.raises(DovetailError, match="'bank'"):
        valued(setup(data=data), by="mi")
