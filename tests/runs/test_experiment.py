"""A run trains what it says, on the same rows, and keeps what DESIGN says a run folder holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

from dovetail import runs
from dovetail.alignment import ELSEWHERE
from dovetail.data import (
    Alignment,
    Column,
    Dataset,
    Federation,
    ImageInput,
    Partitioned,
    PartyData,
    TableEncoder,
    columns,
    strips,
    table_from_arrays,
)
from dovetail.errors import ConfigError, ParticipationError, PartyError, TrainingError
from dovetail.methods import METHODS, apfed
from dovetail.methods.apfed.local_data import LabelOwnerData, PartnerData
from dovetail.methods.apfed.variants import pool
from dovetail.methods.base import Loaded
from dovetail.methods.training import Training
from dovetail.models import Perceptron, load
from dovetail.network import InProcess
from dovetail.runs import Outcome, RunFolder, runfolder
from dovetail.runs.runfile import check_run
from dovetail.runs.train import check_participation

SIDES = {"bank": ["a", "b"], "shop": ["c"], "lab": ["d", "b"]}
WIDTHS = Perceptron((6, 5))


#: Of two classes.
SCORES = (
    "accuracy",
    "log_loss",
    "auc",
    "average_precision",
    "macro_f1",
    "balanced_accuracy",
    "brier",
    "ece",
)


def table(num_rows: int, *, first_id: int = 0, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    x = {name: rng.normal(size=num_rows) for name in "abcd"}
    labels = np.where(x["a"] + x["c"] > 0, "yes", "no").astype(object)
    return Dataset(
        "clients",
        np.arange(first_id, first_id + num_rows),
        table_from_arrays("clients", x),
        "buys",
        Column(labels, np.zeros(num_rows, dtype=bool)),
    )


def dealt(**settings: Any) -> Partitioned:
    return columns(
        table(40), table(20, first_id=40, seed=1), parties=SIDES, active="bank", **settings
    )


def images(num_rows: int, first_id: int = 0) -> Dataset:
    rng = torch.Generator().manual_seed(first_id)
    x = torch.randint(256, (num_rows, 1, 7, 6), dtype=torch.uint8, generator=rng)
    labels = np.arange(num_rows) % 3
    return Dataset(
        "digits",
        np.arange(first_id, first_id + num_rows),
        x,
        "digit",
        Column(labels, np.zeros(num_rows, dtype=bool)),
    )


def setup(method: str = "apfed-c", data: Partitioned | None = None, **changed: Any) -> Training:
    data = data or dealt()
    active = changed.pop("active", "bank")
    settings = {"epochs": 2, "batch_size": 16, "learning_rate": 0.05, **changed.pop("config", {})}
    plain = apfed.Config(**settings).model_dump(exclude_none=True)
    local_networks = changed.pop("own_networks", False)
    about = ("baselines", "evaluate_every")
    run = check_run(
        {
            "method": method,
            **{key: changed.pop(key) for key in about if key in changed},
            "apfed": {**plain, "patience": None, "encoder": [6, 5], "head": [4], "dropout": 0.5},
            "passive": {**apfed.PassiveConfig().model_dump(exclude_none=True), "encoder": [6, 5]},
            "data": {
                "source": "clients",
                "label": "buys",
                "partition": {
                    "kind": "columns",
                    "active": active,
                    "parties": {name: ["*"] for name in data.train.parties},
                },
            },
        },
        where="run.toml",
    )
    made = METHODS["apfed"].setup(run, Loaded(data, active, **changed), torch.device("cpu"))
    party_data = {
        name: replace(local_data, from_file=local_networks)
        if isinstance(local_data, PartnerData)
        else local_data
        for name, local_data in made.party_data.items()
    }
    return replace(made, party_data=party_data)


def outcomes(
    setup: Training, seed: int = 0
) -> tuple[dict[str, Outcome], list[tuple[str, int, Any]]]:
    lines: list[tuple[str, int, Any]] = []
    variants = runs.run(setup, seed, lambda *line: lines.append(line))
    return dict(variants), lines


# --- Pooling -------------------------------------------------------------------------------------


def test_pooled_columns_are_the_table() -> None:
    data = dealt()
    for part, whole in ((data.train, table(40)), (data.test, table(20, first_id=40, seed=1))):
        assert part is not None
        pooled = pool(data, part, "bank")
        inputs = [data.inputs[name] for name in SIDES]
        expected = [
            encoder.transform(whole.x)  # type: ignore[arg-type]
            for encoder in inputs
            if isinstance(encoder, TableEncoder)
        ]
        torch.testing.assert_close(pooled.joined(), torch.cat(expected, dim=1))
        assert pooled.ids.tolist() == whole.ids.tolist()
        assert torch.equal(pooled.labels, part["bank"].labels)


def test_a_row_that_a_party_lacks_is_pooled_as_the_mean() -> None:
    data = dealt(overlap={"shop": 0.5})
    pooled = pool(data, data.train, "bank").joined()
    held = np.isin(data.train["bank"].ids, data.train["shop"].ids)
    assert held.sum() == 20
    assert (pooled[~held, 2] == 0).all()
    assert (pooled[held, 2] != 0).all()


@pytest.mark.parametrize("axis", ["height", "width"])
def test_pooled_strips_are_the_images(axis: Any) -> None:
    data = strips(images(9), None, views=3, active=2, axis=axis)
    whole = images(9).x
    assert isinstance(whole, torch.Tensor)
    kept = whole[:, :, :6] if axis == "height" else whole  # 7 rows: one is dropped
    assert torch.equal(pool(data, data.train, "view-2").joined(), kept)
    assert isinstance(data.inputs["view-1"], ImageInput)


def test_pooling_copies() -> None:
    data = dealt(overlap={"shop": 0.5})
    before = data.train["shop"].joined().clone()
    pool(data, data.train, "bank")
    assert torch.equal(data.train["shop"].joined(), before)


# --- Variants -------------------------------------------------------------------------------------


def test_each_variant_is_scored_under_its_names() -> None:
    baselines: tuple[str, ...] = ("apfed-r", "apfed-mixed", "alone", "pooled", "tvfl", "apfed-c")
    done, lines = outcomes(setup(baselines=baselines))
    assert list(done) == ["apfed-c", "apfed-r", "apfed-mixed", "alone", "pooled", "tvfl"]
    names = {variant: list(outcome.scores) for variant, outcome in done.items()}
    assert names.pop("tvfl") == ["tvfl", "tvfl-0", "tvfl-a", "tvfl-r"]
    assert all(scored == [variant] for variant, scored in names.items())
    for outcome in done.values():
        for scores in outcome.scores.values():
            assert scores.keys() == {"bank"}
            assert scores["bank"].keys() == {*SCORES, "details"}
    assert [(variant, num_epochs, line["epoch"]) for variant, num_epochs, line in lines] == [
        (variant, 2, epoch) for variant in done for epoch in (1, 2)
    ]
    with_model = {variant for variant, outcome in done.items() if outcome.models}
    assert with_model == {"apfed-c", "apfed-r", "apfed-mixed", "alone"}  # pooled needs everybody
    silent = {variant for variant, outcome in done.items() if not outcome.ledger.bytes_by_party()}
    assert silent == {"alone", "pooled"}


def test_a_variant_is_the_same_beside_others_and_by_itself() -> None:
    beside, _ = outcomes(setup(baselines=("alone", "tvfl")))
    for variant in ("alone", "tvfl"):
        by_itself, _ = outcomes(setup(variant))
        assert beside[variant].scores == by_itself[variant].scores


def test_apfed_without_trade_off_scores_as_alone() -> None:
    done, _ = outcomes(setup(baselines=("apfed-r", "alone"), config={"trade_off": 0.0}))
    assert done["apfed-c"].scores["apfed-c"] == done["alone"].scores["alone"]
    assert done["apfed-r"].scores["apfed-r"] == done["alone"].scores["alone"]


@pytest.mark.slow
def test_scores_come_as_often_as_asked_for_and_after_the_last_epoch() -> None:
    for every, expected in ((1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (0, [5])):
        _, lines = outcomes(
            setup("tvfl", baselines=("alone",), evaluate_every=every, config={"epochs": 5})
        )
        for variant in ("tvfl", "alone"):
            scored = [line["epoch"] for name, _, line in lines if name == variant if "auc" in line]
            assert scored == expected


def test_without_test_rows_there_is_a_model_and_no_score() -> None:
    data = replace(dealt(), test=None)
    done, _ = outcomes(setup(data=data, baselines=("tvfl", "pooled")))
    assert all(not outcome.scores for outcome in done.values())
    assert done["apfed-c"].models.keys() == {"bank"}


def test_classic_vertical_learning_needs_a_partner() -> None:
    data = columns(table(40), table(20), parties={"bank": ["*"]}, active="bank")
    with pytest.raises(ConfigError, match="'tvfl' needs at least one party beside the active one"):
        outcomes(setup("tvfl", data))


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("alone", r"party 'bank': after training 'alone' its outputs are not finite on \d+ of 20"),
        ("tvfl", "party 'shop': its codes are not finite; lower its learning_rate"),
    ],
)
def test_weights_lost_in_the_last_step_are_an_error_with_a_name(method: str, words: str) -> None:
    config = {"epochs": 1, "batch_size": 40, "learning_rate": 1e30}  # one step: its loss is finite
    with pytest.raises((TrainingError, PartyError), match=words):
        outcomes(setup(method, config=config))


def test_a_party_that_is_left_out_is_told_of() -> None:
    data = dealt()
    far = replace(data.train["shop"], blocks={"columns": data.train["shop"].joined() * 1e30})
    others = [party for party in data.train.parties.values() if party.name != "shop"]
    broken = replace(data, train=Federation([*others, far]))
    done, lines = outcomes(setup("apfed-r", broken, baselines=("alone",)))
    missed = done["apfed-r"].missed["shop"]
    assert (missed["steps"], missed["of"]) == (6, 6)  # 3 steps in each of 2 epochs
    assert "epoch 1, step 1: its loss is not finite" in missed["first"]
    assert lines[0][2]["missed"] == {"shop": 3}
    assert done["alone"].missed == {}


# --- The run folder -------------------------------------------------------------------------------


def kept(
    path: Path,
    setup: Training,
    seed: int = 0,
    *,
    resume: bool = False,
    stop: tuple[str, int] | None = None,
    **run: Any,
) -> dict[str, Any]:
    """Train and write the folder; its result. ``stop`` is the epoch whose score is not reported."""
    settings = {"method": setup.method, "seed": seed, **run}

    def observe(variant: str, total: int, line: dict[str, Any]) -> None:
        if (variant, line["epoch"]) == stop:
            raise KeyboardInterrupt
        folder.epoch(variant, line)

    with RunFolder(path, settings, seed=seed, method=setup.method, resume=resume) as folder:
        variants = runs.run(
            setup, seed, observe, checkpoint=folder.checkpoint, skip=folder.done_variants
        )
        for variant, outcome in variants:
            folder.keep_variant(variant, outcome)
        return folder.finish()


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_folder_holds_every_file(tmp_path: Path) -> None:
    result = kept(tmp_path / "run", setup(baselines=("alone", "tvfl")), seed=3)
    files = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*.*")}
    assert files == {
        "run.toml",
        "metrics.jsonl",
        "result.json",
        "ledger.jsonl",
        "models/bank/model.json",
        "models/bank/model.safetensors",
        "models/bank/card.json",
        "models/bank/card.md",
    }
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert (result["method"], result["seed"]) == ("apfed-c", 3)
    assert list(result["parties"]) == ["bank"]
    assert result["parties"]["bank"].keys() == {*SCORES}
    assert list(result["baselines"]) == ["alone", "tvfl", "tvfl-0", "tvfl-a", "tvfl-r"]
    assert result["seconds"] == result["variants"]["apfed-c"]["seconds"] > 0
    metrics = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [(line["variant"], line["epoch"]) for line in metrics] == [
        (variant, epoch) for variant in ("apfed-c", "alone", "tvfl") for epoch in (1, 2)
    ]
    last = {line["variant"]: line for line in metrics}
    assert last["apfed-c"]["auc"] == result["parties"]["bank"]["auc"]
    assert last["alone"]["auc"] == result["baselines"]["alone"]["auc"]


def test_the_ledgers_bytes_are_the_results(tmp_path: Path) -> None:
    result = kept(tmp_path, setup(baselines=("apfed-r", "tvfl")))
    totals: dict[str, dict[str, dict[str, int]]] = {}
    for line in read_lines(tmp_path / "ledger.jsonl"):
        size = {"int64": 8, "float32": 4}
        each = sum(
            size[tensor["dtype"]] * int(np.prod(tensor["shape"])) for tensor in line["tensors"]
        )
        assert line["bytes"] == each * line["count"]
        variant = totals.setdefault(line["variant"], {})
        for party, direction in ((line["from"], "sent"), (line["to"], "received")):
            party_bytes = variant.setdefault(party, {"sent": 0, "received": 0})
            party_bytes[direction] += line["bytes"]
    assert totals == {variant: summary["bytes"] for variant, summary in result["variants"].items()}
    assert result["bytes"] == totals["apfed-c"]
    # 40 rows an epoch, 2 epochs, 2 partners: places (8 bytes) and codes of width 5 (4 bytes each).
    assert result["bytes"]["bank"] == {"sent": 2 * 2 * 40 * (8 + 20), "received": 2 * 2 * 40 * 20}


def test_what_stays_at_home_is_not_in_the_ledger(tmp_path: Path) -> None:
    kept(tmp_path, setup(baselines=("tvfl",)))
    sent = {
        tensor["name"]
        for line in read_lines(tmp_path / "ledger.jsonl")
        for tensor in line["tensors"]
    }
    assert sent == {"samples_B", "code_BD", "gradient_BD"}


def test_the_model_kept_is_the_methods_and_predicts_from_raw_columns(tmp_path: Path) -> None:
    result = kept(tmp_path, setup(baselines=("alone",)), seed=1)
    model = load(tmp_path / "models" / "bank")
    assert model.about == {"method": "apfed-c", "seed": 1, "label": "buys"}
    fitted = model.inputs["columns"]
    assert isinstance(fitted, TableEncoder)
    test = table(20, first_id=40, seed=1)
    predicted = model.predictions(fitted.transform(test.x)).values  # type: ignore[arg-type]
    assert (predicted == test.labels.values).mean() == result["parties"]["bank"]["accuracy"]


def test_a_new_run_leaves_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    kept(tmp_path, setup())
    assert (tmp_path / "models" / "bank").exists()
    with RunFolder(tmp_path, {}, seed=0, method="tvfl"):
        names = {path.name for path in tmp_path.rglob("*.*")}
        assert names == {"run.toml", "metrics.jsonl"}


def test_a_run_that_stopped_is_not_finished(tmp_path: Path) -> None:
    run = {"method": "alone", "seed": 0}
    assert runs.finished(tmp_path, run) is None
    result = kept(tmp_path, setup("alone"))
    assert runs.finished(tmp_path, run) == result
    assert runs.finished(tmp_path, {**run, "seed": 1}) is None
    (tmp_path / "result.json").write_text("{")
    assert runs.finished(tmp_path, run) is None

    def stops() -> None:
        with RunFolder(tmp_path, run, seed=0, method="alone") as folder:
            folder.epoch("alone", {"epoch": 1})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stops()
    assert runs.finished(tmp_path, run) is None
    assert read_lines(tmp_path / "metrics.jsonl") == [{"variant": "alone", "epoch": 1}]


def test_settings_are_written_as_toml(tmp_path: Path) -> None:
    run = {"method": "alone", "seed": 0, "data": {"source": "x", "labels": 3}}
    with RunFolder(tmp_path, run, seed=0, method="alone"):
        assert (tmp_path / "run.toml").read_text() == tomli_w.dumps(run)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(
            ConfigError, match=r"cannot write the run folder .*file/run: Not a directory"
        ),
        RunFolder(tmp_path / "file" / "run", {}, seed=0, method="alone"),
    ):
        pass


def test_a_summary_is_the_mean_and_spread_over_seeds() -> None:
    def result(seed: int, accuracy: float, alone: float) -> dict[str, Any]:
        return {
            "method": "apfed-r",
            "seed": seed,
            "parties": {"bank": {"accuracy": accuracy}},
            "baselines": {"alone": {"accuracy": alone}},
            "seconds": 2.0 + seed,
            "bytes": {"bank": {"sent": 8, "received": 8}},
            "missed": {"shop": {"steps": 1, "of": 4, "first": "why"}} if seed else {},
        }

    summary = runs.summarise([result(0, 0.5, 0.25), result(2, 0.75, 0.25)])
    assert summary == {
        "method": "apfed-r",
        "seeds": [0, 2],
        "parties": {"bank": {"accuracy": {"mean": 0.625, "std": pytest.approx(0.125 * 2**0.5)}}},
        "baselines": {"alone": {"accuracy": {"mean": 0.25, "std": 0.0}}},
        "seconds": 3.0,
        "bytes": {"bank": {"sent": 8, "received": 8}},
        "missed": {"2": {"shop": {"steps": 1, "of": 4, "first": "why"}}},
    }


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    runs.write_text(path, "one")
    runs.write_text(path, "two")
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_a_file_is_utf8_whatever_the_locale(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from dovetail import runs;"
        "runs.write_text(Path(sys.argv[1]), 'm\\xfcller \\u65e5')"
    )
    path = tmp_path / "result.json"
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run(
        [sys.executable, "-c", program, str(path)], env={**os.environ, **ascii_only}, check=True
    )
    assert path.read_bytes() == "müller 日".encode()


def test_party_data_is_untouched_by_a_run() -> None:
    data = dealt()
    before = {name: party.joined().clone() for name, party in data.train.parties.items()}
    outcomes(setup(data=data, baselines=("pooled", "tvfl")))
    for name, party in data.train.parties.items():
        assert isinstance(party, PartyData)
        assert torch.equal(party.joined(), before[name])


# --- Rows that only partly match -----------------------------------------------------------------


def test_common_overlap_restricts_learning_alone_to_the_same_rows() -> None:
    data = dealt(overlap=0.5)
    config = {"overlap": "common", "trade_off": 0.0}
    one, two = (
        outcomes(setup(method, data, config=config))[0][method] for method in ("apfed-c", "alone")
    )
    for ours, alone in zip(
        one.models["bank"].network.parameters(),
        two.models["bank"].network.parameters(),
        strict=True,
    ):
        assert torch.equal(ours, alone)


def test_classic_learning_says_on_how_many_rows_it_was_scored() -> None:
    data = dealt()
    assert data.test is not None
    fewer = [
        party.take(torch.arange(7)) if name == "shop" else party
        for name, party in data.test.parties.items()
    ]
    scores = outcomes(setup("tvfl", replace(data, test=Federation(fewer))))[0]["tvfl"].scores
    assert scores["tvfl"]["bank"]["rows"] == 7
    assert "rows" not in scores["tvfl-0"]["bank"]
    assert "rows" not in outcomes(setup("tvfl", data))[0]["tvfl"].scores["tvfl"]["bank"]


def test_classic_learning_is_not_scored_together_where_no_test_row_is_shared() -> None:
    data = dealt()
    assert data.test is not None
    alignment = data.test.align("bank")
    nowhere = {**alignment.rows, "shop": torch.full_like(alignment.rows["shop"], -1)}
    task = setup("tvfl", data, test_alignment=replace(alignment, rows=nowhere))
    scores = outcomes(task)[0]["tvfl"].scores
    assert set(scores) == {"tvfl-0", "tvfl-a", "tvfl-r"}


# --- Going on where a run stopped ----------------------------------------------------------------


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_seconds(each) for name, each in value.items() if name != "seconds"}
    return [without_seconds(each) for each in value] if isinstance(value, list) else value


STOPS = [("apfed-r", 1), ("apfed-r", 3), ("alone", 2), ("tvfl", 1), ("tvfl", 3)]


@pytest.mark.slow
@pytest.mark.parametrize("stop", STOPS, ids=str)
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not(
    tmp_path: Path, stop: tuple[str, int]
) -> None:
    ours = setup("apfed-r", baselines=("alone", "tvfl"), config={"epochs": 3})
    whole = kept(tmp_path / "whole", ours)
    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path / "resumed", ours, stop=stop)
    with (tmp_path / "resumed" / "metrics.jsonl").open("a") as file:
        file.write('{"variant": "alo')  # as a power cut leaves it
    assert runs.finished(tmp_path / "resumed", {"method": "apfed-r", "seed": 0}) is None
    resumed = kept(tmp_path / "resumed", ours, resume=True)
    assert without_seconds(resumed) == without_seconds(whole)
    for name in ("metrics.jsonl", "ledger.jsonl"):
        lines = [without_seconds(read_lines(tmp_path / run / name)) for run in ("resumed", "whole")]
        assert lines[0] == lines[1]
    weights = [tmp_path / run / "models/bank/model.safetensors" for run in ("resumed", "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert not (tmp_path / "resumed" / "checkpoint").exists()


def test_stages_that_are_done_are_not_trained_again(tmp_path: Path) -> None:
    ours = setup("apfed-r", baselines=("alone", "tvfl"))
    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path, ours, stop=("tvfl", 1))
    with RunFolder(
        tmp_path, {"method": "apfed-r", "seed": 0}, seed=0, method="apfed-r", resume=True
    ) as folder:
        assert list(folder.done_variants) == ["apfed-r", "alone"]
        assert (tmp_path / "models" / "bank" / "model.json").exists()


@pytest.mark.slow
def test_a_variant_that_was_stopped_after_its_last_epoch_keeps_its_scores(tmp_path: Path) -> None:
    for method in ("alone", "tvfl"):
        ours = setup(method)
        whole = kept(tmp_path / "whole", ours)

        def variant_fails(*_: Any) -> None:
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(RunFolder, "keep_variant", variant_fails)
            with pytest.raises(KeyboardInterrupt):
                kept(tmp_path / "resumed", ours)
        resumed = kept(tmp_path / "resumed", ours, resume=True)
        assert without_seconds(resumed) == without_seconds(whole)


def test_a_stopped_run_goes_on_at_another_address_but_not_at_another_precision(
    tmp_path: Path,
) -> None:
    ours = setup("alone")

    def engine(**changes: Any) -> dict[str, Any]:
        return {"kind": "stream", "partners": ["shop"], "listen": "a:1", "wait_s": 9.0, **changes}

    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path / "stopped", ours, stop=("alone", 2), engine=engine())
    for changes in ({"precision": "int8"}, {"partners": ["lab"]}, {"kind": "other"}):
        with pytest.raises(ConfigError, match=r"run\.toml differs in engine"):
            kept(tmp_path / "stopped", ours, resume=True, engine=engine(**changes))
    moved = engine(listen="b:2", wait_s=1.0, grace_s=2.0, timeout_s=3.0, certificates="c")
    resumed = kept(tmp_path / "stopped", ours, resume=True, engine=moved)
    whole = kept(tmp_path / "whole", ours, engine=engine())
    assert without_seconds(resumed) == without_seconds(whole)


def test_a_run_that_was_stopped_is_not_mixed_with_other_settings(tmp_path: Path) -> None:
    ours = setup("alone")
    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path, ours, stop=("alone", 2), rows=3)
    words = (
        r"was stopped, of other settings \(run\.toml differs in rows\); resume with the same, or"
    )
    with pytest.raises(ConfigError, match=words):
        kept(tmp_path, ours, resume=True, rows=4)
    anew = kept(tmp_path, ours, rows=4)
    assert without_seconds(anew) == without_seconds(kept(tmp_path / "other", ours))


# --- Partners who live elsewhere ------------------------------------------------------------------


def elsewhere(variants: tuple[str, ...], **changed: Any) -> Training:
    """The bank's side alone of what ``setup`` trains; partners stand behind engines."""
    whole = setup(variants[0], baselines=("tvfl",), own_networks=True)
    bank = whole.party_data["bank"]
    assert isinstance(bank, LabelOwnerData)
    assert bank.test_alignment is not None
    parties = {
        variant: whole.parties(whole.kind.variant(variant).variant_data(whole, variant))
        for variant in ("apfed-mixed", "tvfl")
    }

    def known_to_the_bank(alignment: Alignment) -> Alignment:
        return Alignment(
            {
                name: rows if name == "bank" else torch.where(rows >= 0, ELSEWHERE, -1)
                for name, rows in alignment.rows.items()
            }
        )

    data = whole.loaded.data
    assert data.test is not None
    section = replace(
        data, train=Federation([data.train["bank"]]), test=Federation([data.test["bank"]])
    )
    settings = {
        "alignment": known_to_the_bank(bank.alignment),
        "test_alignment": known_to_the_bank(bank.test_alignment),
        "connect": lambda variant: InProcess(parties[variant], driver="bank"),
        **changed,
    }
    return setup(variants[0], section, baselines=variants[1:], own_networks=True, **settings)


def test_partners_who_live_elsewhere_train_the_same() -> None:
    variants: tuple[str, ...] = ("apfed-mixed", "tvfl", "alone")
    here, _ = outcomes(setup(variants[0], baselines=variants[1:], own_networks=True))
    there, _ = outcomes(elsewhere(variants))
    for variant in variants:
        assert there[variant].scores == here[variant].scores
        assert list(there[variant].ledger.lines()) == list(here[variant].ledger.lines())


@pytest.mark.parametrize(
    ("variants", "changed", "words"),
    [
        (
            ("apfed-mixed",),
            {"alignment": None},
            "their ids are not here to compare: give alignment",
        ),
        (("apfed-mixed",), {"test_alignment": None}, "give alignment, and test_alignment"),
        (("apfed-mixed", "pooled"), {}, "'pooled' needs everybody's columns here; leave it out"),
    ],
)
def test_what_needs_partners_here_is_refused_where_they_are_elsewhere(
    variants: Any, changed: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        elsewhere(variants, **changed)


def test_a_joint_model_that_is_worse_than_saying_the_commonest_class_is_told() -> None:
    solo = {"clinic": {"accuracy": 0.8, "auc": 0.9}}
    for more, num_warnings in (
        ({}, 1),
        ({"rows": 9.0}, 0),
    ):  # of fewer rows the commonest is another
        joint = {"clinic": {"accuracy": 0.3, "auc": 0.5, **more}}
        about = {"clinic": {"commonest": 0.6}}
        warnings = [*runfolder._warnings(solo, {"joint": joint}, about)]
        assert len(warnings) == num_warnings
        assert all("the joint model of 'clinic' has accuracy 0.300" in each for each in warnings)


@pytest.mark.parametrize(
    ("here", "kept"),
    [
        ({"parties": ["clinic.toml"]}, "the model is saved as ever, in out:"),
        (
            {"engine": {"kind": "stream", "listen": "0.0.0.0:1", "partners": ["clinic", "lab"]}},
            "each party has its model at its site as ever, and out the rest:",
        ),
    ],
)
def test_a_run_that_a_party_missed_most_of_says_where_its_models_are(
    here: dict[str, Any], kept: str
) -> None:
    run = check_run({"method": "chfl", **here}, where="run.toml")
    missed = {"lab": {"rounds": 9, "of": 10, "first": "round 2: it did not answer"}}
    with pytest.raises(ParticipationError, match="'lab' was left out of 9 of 10 rounds") as error:
        check_participation(run, Path("out"), {"missed": missed})
    assert kept in str(error.value)
