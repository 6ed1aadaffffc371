"""The round that the server of HyFEM keeps, by rows that parties keep out of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hyfem_members import (
    HELD,
    SHAPES,
    TASK,
    assert_same_bits,
    coordinator,
    made,
    members,
    trained,
    weights,
)
from pydantic import ValidationError

from dovetail.data import PartyData
from dovetail.errors import TrainingError
from dovetail.methods import hyfem
from dovetail.methods.hyfem import layers
from dovetail.methods.settings.hyfem import HyfemSection
from dovetail.network import Checkpoint, Message
from dovetail.settings.models import ThresholdSettings
from dovetail.settings.privacy import PrivateSteps

#: What learns few rows of noise by heart.
HARD = {"rounds": 12, "local_steps": 10, "optimizer": "adam", "learning_rate": 0.01}


def noise(name: str, blocks: tuple[str, ...], num_rows: int = 40, **more: Any) -> hyfem.Member:
    """A party whose labels have little to do with its columns."""
    rng = torch.Generator().manual_seed(len(name))
    x = {block: torch.randn(num_rows, *SHAPES[block], generator=rng) for block in blocks}
    size = sum(value.flatten(1)[:, 0] for value in x.values())
    drawn = torch.randint(0, 3, (num_rows,), generator=rng)
    is_drawn = torch.rand(num_rows, generator=rng) < 0.5
    labels = torch.where(is_drawn, drawn, torch.bucketize(size, torch.tensor([-0.6, 0.6])))
    part = PartyData(name, np.arange(num_rows), x, labels)
    return made(hyfem.HyfemData(part, TASK, (64, 64), **more))


def noisy(**more: Any) -> dict[str, hyfem.Member]:
    return {name: noise(name, blocks, **more) for name, blocks in HELD.items()}


def losses_of(played: list[hyfem.Round]) -> list[float]:
    return [each.metrics["validation_loss"] for each in played]


def test_the_round_of_the_least_loss_is_kept_and_is_what_a_run_that_ends_there_has() -> None:
    server, parties = coordinator(choose="loss", **HARD), noisy()
    losses = losses_of(trained(server, parties))
    best = losses.index(min(losses)) + 1
    assert 1 < best < len(losses) == 12  # it learns the noise by heart after that
    shorter, same = coordinator(choose="loss", **{**HARD, "rounds": best}), noisy()
    trained(shorter, same)
    assert_same_bits(weights(server.model()), weights(shorter.model()))
    for name, party in parties.items():
        assert_same_bits(weights(party.model()), weights(same[name].model()))
        assert_same_bits(weights(party.model()), weights(server.model_of(name)))


def test_it_is_less_sure_of_noise_than_the_last_round() -> None:
    wrong = {}
    for choose in ("loss", "last"):
        server = coordinator(choose=choose, **{**HARD, "rounds": 30})
        trained(server, noisy())
        new = noise("somebody else", tuple(HELD["clinic"]), 2000)
        outputs = server.model().outputs(new.blocks)
        wrong[choose] = torch.nn.functional.cross_entropy(outputs, new.labels).item()
    assert wrong["loss"] < wrong["last"] - 0.3  # log 3 = 1.1 is a coin's


def test_what_is_reported_is_the_mean_over_rows_of_the_parties_losses() -> None:
    server, parties = coordinator(choose="loss", rounds=1), noisy()
    parties["lab"] = noise("lab", HELD["lab"], 200)
    (played,) = trained(server, parties)
    total, num = 0.0, 0
    for name, party in parties.items():
        x = {block: value[party.judged] for block, value in party.blocks.items()}
        outputs = server.model_of(name).outputs(x)
        labels = party.labels[party.judged]
        total += torch.nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
        num += len(labels)
    assert num == (40 + 40 + 200) / 5
    assert played.metrics["validation_loss"] == pytest.approx(total / num, rel=1e-5)


def test_training_stops_after_so_many_rounds_without_a_better() -> None:
    losses = losses_of(trained(coordinator(choose="loss", **HARD), noisy()))
    best = losses.index(min(losses)) + 1
    played = trained(coordinator(choose="loss", patience=3, **HARD), noisy())
    assert len(played) == best + 3


def test_rows_that_judge_do_not_train() -> None:
    server, parties = coordinator(choose="mean"), members()
    trained(server, parties)
    for party in parties.values():
        judged = set(party.judged.tolist())
        assert judged
        trains = {row for _ in range(50) for row in next(party.batches).tolist()}
        assert judged | trains == set(range(12))
        assert not judged & trains


@pytest.mark.parametrize(
    "settings", [{"average_last": 2}, {"classifier": "own"}, {"classifier": "frozen"}]
)
def test_where_no_one_round_has_the_model_all_rows_train(settings: dict[str, Any]) -> None:
    (one, parties), (two, others) = [
        (coordinator(choose=choose, **settings), members()) for choose in ("loss", "last")
    ]
    trained(one, parties)
    trained(two, others)
    for name in HELD:
        assert not len(parties[name].judged)
        assert_same_bits(weights(parties[name].model()), weights(others[name].model()))


def test_a_party_with_noise_keeps_no_row_and_says_no_score() -> None:
    steps = PrivateSteps(clip=1.0, noise=1.0)
    server, parties = coordinator(choose="loss"), noisy()
    parties["lab"] = noise("lab", HELD["lab"], private=steps)
    trained(server, parties)
    lab = parties["lab"]
    assert not len(lab.judged)
    assert lab.handle(hyfem.Validate(*server.slice("lab"))).num_rows == 0


def test_where_nobody_says_a_score_the_last_round_is_kept() -> None:
    steps = PrivateSteps(clip=1.0, noise=1.0)
    server, parties = coordinator(choose="loss"), noisy(private=steps)
    played = trained(server, parties)
    assert [each.metrics["best"] for each in played] == [1, 2, 3]
    plain, others = coordinator(choose="last"), noisy(private=steps)
    trained(plain, others)
    assert_same_bits(weights(server.model()), weights(plain.model()))


def test_a_party_that_says_no_score_trains_and_has_no_say_in_the_choice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Silent(hyfem.Member):
        def handle(self, message: Message) -> Message:
            if isinstance(message, hyfem.Validate):
                raise TrainingError("it is nobody's business")
            return super().handle(message)

    server, parties = coordinator(choose="loss", **HARD), noisy()
    parties["lab"] = Silent(parties["lab"].data, parties["lab"].local)
    played = trained(server, parties)
    assert len(played) == 12
    assert all(set(each.losses) == set(HELD) and not each.missed for each in played)
    words = "lab has no say in which round is kept: it is nobody's business"
    assert [each.getMessage() for each in caplog.records] == [words]
    assert server.best_round is not None
    assert set(server.best_round.accuracies) == {"clinic", "surgery"}


def test_a_party_asked_in_a_run_that_chooses_nothing_has_no_row_to_score() -> None:
    server, parties = coordinator(), members()
    trained(server, parties)
    asked = hyfem.Validate(*server.slice("lab"))
    assert parties["lab"].handle(asked).num_rows == 0


@pytest.mark.slow
def test_a_resumed_run_keeps_the_round_that_the_unbroken_one_keeps(tmp_path: Path) -> None:
    whole, parties = coordinator(choose="loss", **HARD), noisy()
    losses = losses_of(trained(whole, parties))
    best = losses.index(min(losses)) + 1
    checkpoint = Checkpoint(tmp_path)
    trained(coordinator(choose="loss", **{**HARD, "rounds": best + 1}), noisy(), checkpoint)
    again, others = coordinator(choose="loss", **HARD), noisy()
    trained(again, others, Checkpoint(tmp_path))
    assert_same_bits(weights(again.model()), weights(whole.model()))
    for name in HELD:
        assert_same_bits(weights(parties[name].model()), weights(others[name].model()))


def test_a_calibrated_classifier_is_that_of_the_best_round_refitted() -> None:
    kept = coordinator(choose="loss", calibrate=True, **HARD)
    trained(kept, noisy(moments=True))
    plain = coordinator(choose="loss", **HARD)
    trained(plain, noisy(moments=True))
    report = kept.calibrated
    assert report is not None
    assert report["rows"] == 3 * 8
    same = [
        torch.equal(one, weights(plain.model())[name])
        for name, one in weights(kept.model()).items()
    ]
    assert all(same) == (not report["kept"])


def test_a_new_party_makes_what_was_best_void() -> None:
    server, parties = coordinator(choose="loss", rounds=2), noisy()
    trained(server, parties)
    newcomer = noise("newcomer", HELD["lab"])
    server.welcome("newcomer", newcomer.handle(hyfem.Hello(count_classes=False)))
    assert server.best_round is not None
    assert server.best_round.number == 0
    assert not server.kept.extractors


def test_users_have_it_and_the_paper_has_the_last_round() -> None:
    assert HyfemSection().choose == "loss"
    assert hyfem.Settings().choose == "last"


def test_of_many_rows_no_more_are_kept_than_a_score_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "MOST_SCORED", 10)
    server, parties = coordinator(choose="loss", rounds=1), noisy(num_rows=200)
    trained(server, parties)
    for party in parties.values():
        judged = set(party.judged.tolist())
        assert len(judged) == 10
        trains = {row for _ in range(200) for row in next(party.batches).tolist()}
        assert trains == set(range(200)) - judged
    decided = {"decide": ThresholdSettings(threshold="f1")}
    server, parties = coordinator(choose="loss", rounds=1, **decided), noisy(num_rows=200)
    trained(server, parties)
    for party in parties.values():
        assert len(party.judged) == 40
        assert len(party.scored) == 10
        assert set(party.scored.tolist()) <= set(party.judged.tolist())


@pytest.mark.parametrize(
    "settings", [{"choose": "last"}, {"average_last": 2}, {"classifier": "own"}]
)
def test_patience_is_refused_where_no_round_is_chosen(settings: dict[str, Any]) -> None:
    assert HyfemSection(patience=3).chooses
    with pytest.raises(ValidationError, match=r"patience counts rounds.* leave patience out"):
        HyfemSection(patience=3, **settings)
