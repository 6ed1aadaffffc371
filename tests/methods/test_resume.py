"""A run that was stopped and goes on is the run that was not, bit for bit."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dovetail.data import Alignment, Classification, PartyData, SharedRows
from dovetail.errors import CheckpointError, ConfigError, PartyError, TrainingError
from dovetail.federated import Local
from dovetail.methods import apfed, vertical
from dovetail.models import Head, Perceptron, RandomStream
from dovetail.network import (
    Checkpoint,
    Checkpointed,
    InProcess,
    Message,
    State,
    Stateful,
    StatefulParty,
)
from dovetail.network.checkpoint import load_state

NUM_ROWS, NUM_EPOCHS = 24, 4
WIDTHS = Perceptron((8, 6))
HEAD = Head((5,), dropout=0.5)
TASK = Classification(("no", "yes", "perhaps"))


def rows_of(name: str) -> Tensor:
    rng = torch.Generator().manual_seed(len(name))
    return torch.randn(NUM_ROWS, len(name), generator=rng)


def clinic(*, num_labels: int = NUM_ROWS) -> PartyData:
    labels = torch.randint(3, (NUM_ROWS,), generator=torch.Generator().manual_seed(0))
    labels[num_labels:] = -1
    return PartyData("clinic", np.arange(NUM_ROWS), {"columns": rows_of("clinic")}, labels)


def alignment(*partners: str, lacking: int = 0) -> Alignment:
    """Row i is sample i; partners lack the first samples."""
    rows = {"clinic": torch.arange(NUM_ROWS)}
    for name in partners:
        rows[name] = torch.arange(NUM_ROWS)
        rows[name][:lacking] = -1
    return Alignment(rows)


@dataclass
class Run:
    """A driver and its parties, all new, as in a new process."""

    driver: Any
    parties: Mapping[str, Any]
    train: Callable[..., Any]

    def go(self, folder: Path | None = None, *, stop: int | None = None, **settings: Any) -> Run:
        """Train to the end, or until an epoch that is then not saved."""
        checkpoint = Checkpoint(folder, **settings)
        self.network = InProcess(checkpoint.hosting(self.parties), driver="clinic")
        self.losses = {}
        for epoch in self.train(self.driver, self.network, checkpoint):
            self.losses[epoch.number] = epoch.loss
            if epoch.number == stop:
                break
        return self

    def states(self) -> dict[str, State]:
        return {name: one.state() for name, one in {"": self.driver, **self.parties}.items()}


def apfed_run(
    losses: Mapping[str, str],
    *,
    num_labels: int = NUM_ROWS,
    lacking: int = 0,
    seed: int = 0,
    network: Perceptron | Callable[..., nn.Module] = WIDTHS,
    passive: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Run:
    aligned = alignment(*losses, lacking=lacking)
    config = apfed.Config(
        **{"epochs": NUM_EPOCHS, "batch_size": 10, "learning_rate": 0.1, **settings}
    )
    driver = apfed.Active(
        clinic(num_labels=num_labels),
        aligned,
        TASK,
        config,
        Local("clinic"),
        seed=seed,
        encoder=WIDTHS,
        head=HEAD,
    )
    parties = {
        name: apfed.Passive(
            SharedRows(name, rows_of(name), aligned.rows[name]),
            apfed.PassiveConfig(**{"loss": loss, "learning_rate": 0.05, **(passive or {})}),
            network,
            Local(name),
        )
        for name, loss in losses.items()
    }
    return Run(driver, parties, apfed.train)


def dropping(name: str, dropout: float) -> nn.Module:
    """A network that draws random numbers; weights are the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(len(name), 6), nn.Dropout(dropout))


def vertical_run(*, seed: int = 0, dropout: float = 0.0, **settings: Any) -> Run:
    aligned = alignment("lab", "shop")
    config = vertical.Config(
        **{"epochs": NUM_EPOCHS, "batch_size": 10, "learning_rate": 0.1, **settings}
    )
    driver = vertical.Owner(
        clinic(), aligned, TASK, config, Local("clinic"), seed=seed, encoder=WIDTHS, head=HEAD
    )
    parties = {
        name: vertical.Member(
            SharedRows(name, rows_of(name), aligned.rows[name]),
            None,
            config,
            dropping(name, dropout) if dropout else WIDTHS,
            Local(name),
        )
        for name in ("lab", "shop")
    }
    return Run(driver, parties, vertical.train)


MIXED = {"lab": "reconstruction", "shop": "contrastive", "insurer": "contrastive"}


def normalised(code_shape: tuple[int, ...], row_shape: tuple[int, ...]) -> nn.Module:
    """Keeps statistics of what passes, in buffers."""
    return nn.Sequential(nn.Linear(row_shape[0], 6), nn.BatchNorm1d(6), nn.Dropout(0.2))


RUNS: dict[str, Callable[[], Run]] = {
    "R": lambda: apfed_run({"lab": "reconstruction"}),
    "C": lambda: apfed_run({"lab": "contrastive"}, momentum=0.0, passive={"momentum": 0.0}),
    "mixed": lambda: apfed_run(MIXED, projection=4),
    "labels missing": lambda: apfed_run(MIXED, num_labels=13, lacking=5),
    "common rows": lambda: apfed_run(MIXED, lacking=5, overlap="common", steps_per_epoch=2),
    "adam": lambda: apfed_run(MIXED, optimizer="adam", passive={"optimizer": "adam"}),
    "batch norm": lambda: apfed_run({"lab": "contrastive"}, network=normalised),
    "alone": lambda: apfed_run({}),
    "vertical": vertical_run,
    "vertical adam": lambda: vertical_run(optimizer="adam", dropout=0.5, steps_per_epoch=2),
}


def assert_same(one: Any, two: Any) -> None:
    """Nested states of the same bits."""
    assert type(one) is type(two)
    if isinstance(one, Mapping):
        assert list(one) == list(two)
        for key in one:
            assert_same(one[key], two[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(two)
        for inner, other in zip(one, two, strict=True):
            assert_same(inner, other)
    elif isinstance(one, Tensor):
        assert torch.equal(one, two)
    else:
        assert one == two


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_stopped_after_any_epoch_goes_on_bit_for_bit(tmp_path: Path, name: str) -> None:
    undisturbed = RUNS[name]().go()
    saved = RUNS[name]().go(tmp_path / "whole")
    assert_same(saved.states(), undisturbed.states())  # saving changes nothing
    for stop in range(1, NUM_EPOCHS + 1):
        folder = tmp_path / str(stop)
        RUNS[name]().go(folder, stop=stop)
        resumed = RUNS[name]().go(folder)
        assert list(resumed.losses) == list(range(stop, NUM_EPOCHS + 1))  # the stopped one again
        assert resumed.losses.items() <= undisturbed.losses.items()
        assert_same(resumed.states(), undisturbed.states())
        assert list(resumed.network.ledger.lines()) == list(saved.network.ledger.lines())


def test_a_run_that_ended_trains_no_more_and_has_its_model(tmp_path: Path) -> None:
    ended = RUNS["mixed"]().go(tmp_path)
    again = RUNS["mixed"]().go(tmp_path)
    assert again.losses == {}
    x = clinic().joined()
    assert torch.equal(again.driver.model().outputs(x), ended.driver.model().outputs(x))


@pytest.mark.parametrize("name", ["mixed", "vertical"])
def test_an_error_inside_an_epoch_costs_that_epoch_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run = RUNS[name]()
    drawn: Callable[[], Tensor] = (labelled := _batches(run)).__next__
    left = iter([True] * 8)  # 3 steps an epoch: fails in the third

    class Failing:
        def __next__(self) -> Tensor:
            if next(left, None) is None:
                raise TrainingError("the power failed")
            return drawn()

        def __getattr__(self, name: str) -> Any:
            return getattr(labelled, name)

    drawing = run.driver.questions if name == "mixed" else run.driver.rows
    monkeypatch.setattr(drawing, "labelled" if name == "mixed" else "batches", Failing())
    with pytest.raises(TrainingError, match="the power failed"):
        run.go(tmp_path)
    resumed = RUNS[name]().go(tmp_path)
    assert list(resumed.losses) == [3, 4]
    assert_same(resumed.states(), RUNS[name]().go().states())


def _batches(run: Run) -> Any:
    driver = run.driver
    return driver.questions.labelled if hasattr(driver, "questions") else driver.rows.batches


@pytest.mark.parametrize("name", ["mixed", "vertical"])
def test_parties_whose_processes_lived_on_go_back_with_the_driver(
    tmp_path: Path, name: str
) -> None:
    first = RUNS[name]().go(tmp_path, stop=3)  # parties have made steps that nobody saved
    resumed = RUNS[name]()
    resumed.parties = first.parties
    assert_same(resumed.go(tmp_path).states(), RUNS[name]().go().states())


class Restarting:
    """A passive party whose process is killed between two epochs, and starts again."""

    def __init__(self, make: Callable[[], apfed.Passive], folder: Path, at: int) -> None:
        self.make, self.folder, self.at = make, folder, at
        self.num_codes = 0
        self.keeper = Checkpointed(make(), folder)

    @property
    def accepts(self) -> tuple[type[Message], ...]:
        return self.keeper.accepts

    def handle(self, message: Message) -> Message:
        if isinstance(message, apfed.Codes):
            if self.num_codes == self.at:
                self.keeper = Checkpointed(self.make(), self.folder)
                assert self.keeper.resume_latest() == self.at // 3
            self.num_codes += 1
        return self.keeper.handle(message)


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 3, 6, 9])
def test_a_passive_killed_between_epochs_returns_as_if_it_had_not(tmp_path: Path, at: int) -> None:
    """Killed right after ``Begin``, or after a save: nothing is lost."""
    run = RUNS["mixed"]()
    checkpoint = Checkpoint(tmp_path)
    hosted = checkpoint.hosting(run.parties)
    restarting = Restarting(lambda: RUNS["mixed"]().parties["shop"], tmp_path / "shop", at)
    network = InProcess({**hosted, "shop": restarting}, driver="clinic")
    assert all(not epoch.missed for epoch in apfed.train(run.driver, network, checkpoint))
    run.parties = {**run.parties, "shop": restarting.keeper.party}  # type: ignore[dict-item]
    assert_same(run.states(), RUNS["mixed"]().go().states())


def test_apfed_resumes_with_a_passive_that_is_an_epoch_behind(tmp_path: Path) -> None:
    RUNS["mixed"]().go(tmp_path, stop=4)
    (tmp_path / "parties" / "shop" / "3.safetensors").write_bytes(b"half a file")
    resumed = RUNS["mixed"]()
    checkpoint = Checkpoint(tmp_path)
    network = InProcess(checkpoint.hosting(resumed.parties), driver="clinic")
    epochs = list(apfed.train(resumed.driver, network, checkpoint))
    assert checkpoint.behind == {"shop": 2}
    assert [(epoch.number, dict(epoch.missed)) for epoch in epochs] == [(4, {})]


def test_apfed_resumes_with_a_passive_that_lost_its_disk_as_at_its_beginning(
    tmp_path: Path,
) -> None:
    RUNS["mixed"]().go(tmp_path, stop=4)
    for path in (tmp_path / "parties" / "shop").iterdir():
        path.unlink()
    resumed = RUNS["mixed"]()
    checkpoint = Checkpoint(tmp_path)
    network = InProcess(checkpoint.hosting(resumed.parties), driver="clinic")
    epochs = list(apfed.train(resumed.driver, network, checkpoint))
    assert checkpoint.lost == ("shop",)
    assert [(epoch.number, dict(epoch.missed)) for epoch in epochs] == [(4, {})]


def test_apfed_resumes_without_a_passive_that_lost_its_disk_and_cannot_begin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    RUNS["mixed"]().go(tmp_path, stop=4)
    for path in (tmp_path / "parties" / "shop").iterdir():
        path.unlink()
    resumed = RUNS["mixed"]()
    checkpoint = Checkpoint(tmp_path)
    hosted = checkpoint.hosting(resumed.parties)

    class Broken:
        accepts = hosted["shop"].accepts

        def handle(self, message: Message) -> Message:
            if isinstance(message, apfed.Begin):
                raise ConfigError("it has no memory left")
            return hosted["shop"].handle(message)

    network = InProcess({**hosted, "shop": Broken()}, driver="clinic")
    (epoch,) = apfed.train(resumed.driver, network, checkpoint)
    assert set(epoch.missed) == {"shop"}
    assert "was sent apfed.Codes before training began" in epoch.reasons["shop"]
    assert "does not begin anew: party 'shop': it has no memory left" in caplog.text


def test_apfed_resumes_without_a_passive_that_does_not_answer(tmp_path: Path) -> None:
    RUNS["mixed"]().go(tmp_path, stop=4)

    class Gone:
        accepts = ()

        def handle(self, message: Message) -> Message:
            raise AssertionError

    resumed = RUNS["mixed"]()
    checkpoint = Checkpoint(tmp_path)
    network = InProcess({**checkpoint.hosting(resumed.parties), "shop": Gone()}, driver="clinic")
    epochs = list(apfed.train(resumed.driver, network, checkpoint))
    assert list(checkpoint.failures) == ["shop"]
    assert [(epoch.number, dict(epoch.missed)) for epoch in epochs] == [(4, {"shop": 3})]
    assert Checkpoint(tmp_path).done() == NUM_EPOCHS


def test_vertical_learning_does_not_resume_without_a_party(tmp_path: Path) -> None:
    vertical_run().go(tmp_path, stop=4)
    (tmp_path / "parties" / "shop" / "3.safetensors").unlink()
    with pytest.raises(PartyError, match=r"'shop': it has no state of step 3 \(it has: 2\)"):
        vertical_run().go(tmp_path)


def test_another_seed_does_not_go_on_from_this_ones_checkpoint(tmp_path: Path) -> None:
    RUNS["R"]().go(tmp_path, stop=3, about={"seed": 0})
    with pytest.raises(ConfigError, match="seed was 0 and is 1; resume with the same settings"):
        apfed_run({"lab": "reconstruction"}, seed=1).go(tmp_path, about={"seed": 1})


def test_networks_of_another_size_do_not_go_on(tmp_path: Path) -> None:
    RUNS["R"]().go(tmp_path, stop=3)
    other = apfed_run({"lab": "reconstruction"}, projection=4)
    with pytest.raises(CheckpointError, match=r"driver\.safetensors does not fit .*projection"):
        other.go(tmp_path)


def test_random_numbers_of_another_kind_of_device_do_not_go_on() -> None:
    stream = RandomStream(0, "dropout")
    with pytest.raises(ConfigError, match=r"of device 'cuda', this run computes on 'cpu'"):
        stream.restore({**stream.state(), "cuda": torch.zeros(16, dtype=torch.uint8)})


@pytest.mark.parametrize("name", ["R", "vertical"])
def test_nobody_saves_before_training_began(name: str) -> None:
    for party in RUNS[name]().parties.values():
        with pytest.raises(TrainingError, match="nothing to save before training began"):
            party.state()


def test_every_driver_and_party_is_stateful() -> None:
    drivers: list[Stateful] = [RUNS["R"]().driver, RUNS["vertical"]().driver]
    parties: list[StatefulParty] = [*RUNS["R"]().parties.values(), *vertical_run().parties.values()]
    for one in [*drivers, *parties]:
        assert callable(one.state)
        assert callable(one.restore)


KILLED = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("test_resume", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["test_resume"] = module
spec.loader.exec_module(module)
run = module.RUNS[sys.argv[2]]()
checkpoint = module.Checkpoint(sys.argv[3])
network = module.InProcess(checkpoint.hosting(run.parties), driver="clinic")
for epoch in run.train(run.driver, network, checkpoint):
    print(epoch.number, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixed", "vertical"])
def test_a_process_killed_while_it_saves_or_trains_goes_on_bit_for_bit(
    tmp_path: Path, name: str
) -> None:
    undisturbed = RUNS[name]().go()
    for after, wait_s in ((1, 0.0), (2, 0.003), (3, 0.01)):
        folder = tmp_path / str(after)
        with forked.begin(tmp_path, KILLED, __file__, name, folder) as process:
            assert process.stdout is not None
            for _ in range(after):
                process.stdout.readline()
            time.sleep(wait_s)
            process.send_signal(signal.SIGKILL)
        assert Checkpoint(folder).done() >= after - 1
        assert_same(RUNS[name]().go(folder).states(), undisturbed.states())


def test_a_saved_driver_is_one_file_of_tensors_and_text(tmp_path: Path) -> None:
    RUNS["mixed"]().go(tmp_path)
    state, about = load_state(tmp_path / "driver.safetensors")
    assert set(state) == {"driver", "ledger", "extra"}
    assert about == {"done": NUM_EPOCHS, "run": {}}
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {
        "driver.safetensors",
        "3.safetensors",
        "4.safetensors",
    }
