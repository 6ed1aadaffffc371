"""What is saved comes back bit for bit, is whole or absent, and belongs to one run."""

from __future__ import annotations

import errno
import os
import re
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dovetail.errors import CheckpointError, ConfigError, MessageError, PartyError
from dovetail.network import Checkpoint, Checkpointed, Engine, InProcess, Message, State
from dovetail.network.checkpoint import (
    Restore,
    Restored,
    Save,
    load_state,
    read_about,
    save_state,
)


def same(one: Any, two: Any) -> bool:
    """Equal in type, structure and bits."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and bits(one) == bits(two)
    if isinstance(one, float):
        return one.hex() == two.hex()  # tells -0.0 from 0.0, and nan is nan
    return bool(one == two)


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]

tensors = st.builds(
    lambda dtype, shape, seed: (
        torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
        if dtype is torch.bool
        else torch.randint(
            0, 256, (*shape, dtype.itemsize), generator=torch.Generator().manual_seed(seed)
        )
        .to(torch.uint8)
        .view(dtype)
        .reshape(shape)
    ),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.integers(0, 9),
)
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), tensors
)
keys = st.one_of(st.text(max_size=5), st.integers())
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(state=st.dictionaries(keys, values, max_size=4))
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_state_comes_back_as_it_was(tmp_path: Path, state: State) -> None:
    save_state(tmp_path / "state", state, {"done": 3})
    loaded, about = load_state(tmp_path / "state")
    assert same(loaded, state)
    assert about == read_about(tmp_path / "state") == {"done": 3}


@pytest.mark.parametrize("name", ["sgd", "plain sgd", "adam", "adam on slices"])
def test_an_optimizers_state_comes_back_as_it_was(tmp_path: Path, name: str) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer: torch.optim.Optimizer = {
        "sgd": lambda: torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, fused=True),
        "plain sgd": lambda: torch.optim.SGD(network.parameters(), lr=0.1),
        "adam": lambda: torch.optim.Adam(network.parameters(), lr=0.1, fused=True),
        "adam on slices": lambda: torch.optim.Adam(network[0].parameters(), amsgrad=True),
    }[name]()
    network(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    save_state(tmp_path / "state", {"optimizer": optimizer.state_dict()}, {})
    assert same(load_state(tmp_path / "state")[0], {"optimizer": optimizer.state_dict()})


def test_names_of_one_tensor_and_views_of_one_memory_are_saved_each(tmp_path: Path) -> None:
    whole = torch.arange(6.0).reshape(2, 3)
    state = {"whole": whole, "again": whole, "turned": whole.T, "row": whole[1]}
    save_state(tmp_path / "state", state, {})
    assert same(load_state(tmp_path / "state")[0], state)


@pytest.mark.parametrize("stranger", [{"a": {1, 2}}, {True: 1}, {1.5: 1}, {"a": 2j}], ids=repr)
def test_what_no_state_holds_is_refused(tmp_path: Path, stranger: State) -> None:
    with pytest.raises(TypeError, match="a state holds no"):
        save_state(tmp_path / "state", stranger, {})
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_a_safetensors_file_for_its_owners_eyes(tmp_path: Path) -> None:
    save_state(tmp_path / "state", {"weights": torch.ones(2)}, {})
    assert same(safetensors.torch.load_file(tmp_path / "state"), {"0": torch.ones(2)})
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o600


# --- Damage ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_changed_byte_and_every_shorter_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "state"
    save_state(path, {"weights": torch.arange(4.0), "step": 7}, {"done": 7})
    data = path.read_bytes()
    accepted = []
    for index in range(len(data)):
        path.write_bytes(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
        try:
            load_state(path)
        except CheckpointError:
            continue
        accepted.append(index)
    assert accepted == []
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            load_state(path)


@pytest.mark.parametrize("data", [b"", b"not this", b"\xff" * 100, b"\x02" + b"\0" * 7 + b"{}"])
def test_another_file_is_no_checkpoint(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "state").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"the checkpoint .* is damaged"):
        load_state(tmp_path / "state")


def test_another_format_is_told(tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.ones(1)}, tmp_path / "state", {"format": "pt"})
    with pytest.raises(CheckpointError, match="has the format 'pt', expected 'dovetail check"):
        load_state(tmp_path / "state")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot read .*No such file"):
        load_state(tmp_path / "state")


@pytest.mark.slow
def test_a_full_disk_leaves_the_older_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    save_state(path, {"step": 1}, {})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match=r"cannot write .*No space left on device.*--resume"):
        save_state(path, {"step": 2}, {})
    assert load_state(path)[0] == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_cut_off_while_it_is_written_leaves_the_older_checkpoint_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state"
    save_state(path, {"step": 1}, {})
    allowed, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write .*File too large"):
            save_state(path, {"weights": torch.ones(4096)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, most))
    assert load_state(path)[0] == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write the checkpoint"):
        save_state(tmp_path / "file" / "state", {}, {})


# --- An algorithm that gets it by a few lines --------------------------------------------------


class Add(Message):
    """Driver -> party."""

    number: int


class Total(Message):
    """Party -> driver."""

    total: int


class Adder:
    """A party that adds up what it is sent."""

    accepts = (Add,)

    def __init__(self) -> None:
        self.total = 0

    def handle(self, message: Message) -> Message:
        assert isinstance(message, Add)
        self.total += message.number
        return Total(self.total)

    def state(self) -> State:
        return {"total": self.total}

    def restore(self, state: State) -> None:
        self.total = state["total"]


class Driver:
    """Keeps all totals it was told."""

    def __init__(self) -> None:
        self.totals: list[tuple[int, ...]] = []

    def state(self) -> State:
        return {"totals": self.totals}

    def restore(self, state: State) -> None:
        self.totals = state["totals"]


def train(
    driver: Driver, network: Engine, checkpoint: Checkpoint, *, tolerate_missing: bool = False
) -> Iterator[int]:
    done = checkpoint.resume(driver, network, tolerate_missing=tolerate_missing)
    if not done:
        checkpoint.save(0, driver, network)
    for number in range(done + 1, 7):
        replies = network.ask(dict.fromkeys(network.parties, Add(number)), Total)
        driver.totals.append(tuple(reply.total for reply in replies.values()))
        yield number
        checkpoint.save(number, driver, network)


def fresh(
    folder: Path | None, **settings: Any
) -> tuple[Driver, InProcess, Checkpoint, dict[str, Adder]]:
    """Everything new, as in a new process."""
    checkpoint = Checkpoint(folder, **settings)
    parties = {"lab": Adder(), "shop": Adder()}
    return Driver(), InProcess(checkpoint.hosting(parties), driver="clinic"), checkpoint, parties


UNDISTURBED = [(1, 1), (3, 3), (6, 6), (10, 10), (15, 15), (21, 21)]


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("stop", range(1, 7))
def test_a_run_that_stops_anywhere_goes_on_as_if_it_had_not(
    tmp_path: Path, stop: int, every: int
) -> None:
    driver, network, checkpoint, _ = fresh(tmp_path, every=every)
    for number in train(driver, network, checkpoint):
        if number == stop:
            break  # before this step is saved
    driver, network, checkpoint, parties = fresh(tmp_path, every=every)
    again = list(train(driver, network, checkpoint))
    assert again == list(range((stop - 1) // every * every + 1, 7))
    assert driver.totals == UNDISTURBED
    assert [party.total for party in parties.values()] == [21, 21]


def test_the_ledger_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    driver, undisturbed, checkpoint, _ = fresh(tmp_path / "one")
    list(train(driver, undisturbed, checkpoint))
    driver, network, checkpoint, _ = fresh(tmp_path / "two")
    next(run := train(driver, network, checkpoint))
    next(run)
    driver, network, checkpoint, _ = fresh(tmp_path / "two")
    list(train(driver, network, checkpoint))
    assert list(network.ledger.lines()) == list(undisturbed.ledger.lines())


def test_the_last_step_is_saved_whatever_every_says(tmp_path: Path) -> None:
    driver, network, checkpoint, _ = fresh(tmp_path, every=4, last=6)
    list(train(driver, network, checkpoint))
    assert Checkpoint(tmp_path).done() == 6


def test_no_checkpoint_sends_and_writes_nothing(tmp_path: Path) -> None:
    driver, network, checkpoint, _ = fresh(None)
    list(train(driver, network, checkpoint))
    assert {line["message"] for line in network.ledger.lines()} == {
        Add.wire_name(),
        Total.wire_name(),
    }
    assert driver.totals == UNDISTURBED
    assert Checkpoint.none().done() == 0


def test_a_party_keeps_the_last_two_steps_only(tmp_path: Path) -> None:
    driver, network, checkpoint, _ = fresh(tmp_path)
    list(train(driver, network, checkpoint))
    assert Checkpointed(Adder(), tmp_path / "parties" / "lab").steps() == [6, 5]


def test_a_driver_that_falls_between_the_parties_save_and_its_own_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, network, checkpoint, _ = fresh(tmp_path)
    run = train(driver, network, checkpoint)
    for _ in range(3):
        next(run)  # steps 1 and 2 are saved
    monkeypatch.setattr(driver, "state", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(run)
    assert Checkpointed(Adder(), tmp_path / "parties" / "lab").steps() == [3, 2]
    driver, network, checkpoint, _ = fresh(tmp_path)
    assert list(train(driver, network, checkpoint)) == [3, 4, 5, 6]
    assert driver.totals == UNDISTURBED


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2, 3])
def test_where_every_party_is_needed_a_save_that_one_missed_is_none(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    times: int,
) -> None:
    driver, network, checkpoint, parties = fresh(tmp_path)
    run = train(driver, network, checkpoint)
    for _ in range(3):
        next(run)
    with monkeypatch.context() as broken:

        def full() -> State:
            raise CheckpointError("its disk is full")

        broken.setattr(parties["shop"], "state", full)
        for _ in range(times):
            next(run)
    assert list(checkpoint.failures) == ["shop"]
    (message,) = (words for words in caplog.messages if "not saved there" in words)
    assert message.startswith(
        "step 3 is not saved there: party 'shop': its saved state of step 3 can"
    )
    assert "its disk is full" in caplog.messages  # in the log at its site
    driver, network, checkpoint, _ = fresh(tmp_path)
    assert list(train(driver, network, checkpoint)) == [3, 4, 5, 6]
    assert driver.totals == UNDISTURBED


def test_a_party_whose_process_was_restarted_goes_on_from_its_own_save(tmp_path: Path) -> None:
    keeper = Checkpointed(Adder(), tmp_path)
    assert keeper.resume_latest() is None
    for number in (1, 2, 3):
        keeper.handle(Add(number))
        assert keeper.handle(Save("toy", number, number - 1)).done == number  # type: ignore[attr-defined]
    restarted = Adder()
    assert Checkpointed(restarted, tmp_path).resume_latest() == 3
    assert restarted.total == 6
    (tmp_path / "3.safetensors").write_bytes(b"half a file")
    assert Checkpointed(restarted, tmp_path).resume_latest() == 2
    assert restarted.total == 3


def test_saving_the_beginning_forgets_what_an_older_run_left(tmp_path: Path) -> None:
    keeper = Checkpointed(Adder(), tmp_path)
    keeper.handle(Save("toy", 9, 8))
    keeper.handle(Save("toy", 0, 0))
    assert keeper.steps() == [0]
    reply = keeper.handle(Restore("toy", 0, exactly=True))
    assert isinstance(reply, Restored)
    assert keeper.steps() == []


@pytest.mark.parametrize("done", [-1, 2**63])
def test_a_party_saves_no_step_that_cannot_be(tmp_path: Path, done: int) -> None:
    with pytest.raises(MessageError, match="there is no step"):
        Checkpointed(Adder(), tmp_path).handle(Save("toy", done, 0))
    assert list(tmp_path.iterdir()) == []


def saved_run(folder: Path, steps: int, **settings: Any) -> None:
    driver, network, checkpoint, _ = fresh(folder, **settings)
    run = train(driver, network, checkpoint)
    for _ in range(steps + 1):
        next(run)


def test_a_party_without_the_step_says_which_it_has(tmp_path: Path) -> None:
    saved_run(tmp_path, 3)
    (tmp_path / "parties" / "shop" / "3.safetensors").unlink()
    driver, network, checkpoint, _ = fresh(tmp_path)
    with pytest.raises(
        PartyError, match=r"party 'shop': it has no state of step 3 \(it has: 2\); start anew"
    ):
        checkpoint.resume(driver, network)


def test_a_lenient_resume_names_who_is_behind_and_who_lost_everything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved_run(tmp_path, 3)
    (tmp_path / "parties" / "shop" / "3.safetensors").unlink()
    for path in (tmp_path / "parties" / "lab").iterdir():
        path.unlink()
    driver, network, checkpoint, parties = fresh(tmp_path)
    assert checkpoint.resume(driver, network, tolerate_missing=True) == 3
    assert checkpoint.behind == {"lab": 0, "shop": 2}
    assert checkpoint.lost == ("lab",)
    assert "party 'shop' goes on from step 2, not 3" in caplog.messages
    assert {name: party.total for name, party in parties.items()} == {"lab": 0, "shop": 3}


def test_a_party_that_cannot_save_is_told_before_the_first_step() -> None:
    driver, checkpoint = Driver(), Checkpoint("nowhere")
    network = InProcess({"lab": Adder()}, driver="clinic")
    with pytest.raises(PartyError, match=r"'lab': it does not answer checkpoint\.Restore"):
        checkpoint.resume(driver, network)


def test_a_lie_about_the_step_is_not_believed(tmp_path: Path) -> None:
    saved_run(tmp_path, 3)

    class Liar(Checkpointed):
        def handle(self, message: Message) -> Message:
            return Restored(2) if isinstance(message, Restore) else super().handle(message)

    network = InProcess({"lab": Liar(Adder(), tmp_path / "lab")}, driver="clinic")
    with pytest.raises(PartyError, match="was to go on from step 3, went on from 2"):
        Checkpoint(tmp_path).resume(Driver(), network)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"method": "apfed-mixed", "seed": 4}, "seed was 3 and is 4"),
        ({"method": "chfl", "seed": 3}, "method was 'apfed-mixed' and is 'chfl'"),
        (
            {"method": "apfed-mixed", "seed": 3, "rate": {"lab": 0.1}},
            "rate was None and is {'lab': 0.1}",
        ),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    tmp_path: Path, about: dict[str, Any], words: str
) -> None:
    saved_run(tmp_path, 3, about={"method": "apfed-mixed", "seed": 3})
    driver, network, checkpoint, _ = fresh(tmp_path, about=about)
    for ask in (checkpoint.done, lambda: checkpoint.resume(driver, network)):
        with pytest.raises(ConfigError, match=re.escape(words) + ".*start anew with --overwrite"):
            ask()
    assert list(network.ledger.lines()) == []  # no party was touched


def test_a_partys_file_is_no_drivers(tmp_path: Path) -> None:
    save_state(tmp_path / "driver.safetensors", {}, {"done": 3})
    with pytest.raises(CheckpointError, match="is no checkpoint of a driver"):
        Checkpoint(tmp_path).done()


def test_a_state_that_does_not_fit_is_told_without_torchs_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Wide(Adder):
        def restore(self, state: State) -> None:
            nn.Linear(2, 2).load_state_dict(nn.Linear(3, 2).state_dict())

    Checkpointed(Adder(), tmp_path).handle(Save("toy", 1, 0))
    with pytest.raises(CheckpointError, match=r"1\.safetensors does not fit .*size mismatch"):
        Checkpointed(Wide(), tmp_path).resume_latest()
    with pytest.raises(CheckpointError) as raised:
        Checkpointed(Wide(), tmp_path).handle(Restore("toy", 1, exactly=True))
    # What the driver hears; the log at its site has the rest.
    assert str(raised.value) == (
        "its saved state of step 1 cannot be read, written or does not fit; its log has the "
        "details: mend that there, or start anew with --overwrite"
    )
    assert "1.safetensors does not fit" in caplog.text
    assert "size mismatch" in caplog.text


def test_where_a_party_cannot_write_no_path_is_told(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder")
    with pytest.raises(CheckpointError, match=r"^its saved state of step 1 cannot be") as raised:
        Checkpointed(Adder(), tmp_path / "home").handle(Save("toy", 1, 0))
    assert "home" not in str(raised.value)


def test_a_party_that_missed_a_save_keeps_the_newest_one_before(tmp_path: Path) -> None:
    keeper = Checkpointed(Adder(), tmp_path)
    keeper.handle(Save("toy", 4, 3))
    keeper.handle(Save("toy", 5, 4))
    keeper.handle(Save("toy", 7, 6))  # it was away when 6 was saved, and the driver falls now
    assert keeper.steps() == [7, 5]
    restored = keeper.handle(Restore("toy", 6, exactly=False))
    assert isinstance(restored, Restored)
    assert restored.done == 5


def test_extra_comes_back_with_the_driver(tmp_path: Path) -> None:
    driver, network, checkpoint, _ = fresh(tmp_path)
    run = train(driver, network, checkpoint)
    for number in run:
        checkpoint.extra["scores"] = {"lab": number / 10}
        if number == 4:
            break
    driver, network, checkpoint, _ = fresh(tmp_path)
    extra = checkpoint.extra
    next(train(driver, network, checkpoint))
    assert extra == {"scores": {"lab": 0.3}}


def test_requests_name_the_drivers_file(tmp_path: Path) -> None:
    asked = []

    class Listening(Checkpointed):
        def handle(self, message: Message) -> Message:
            asked.append(message)
            return super().handle(message)

    network = InProcess({"lab": Listening(Adder(), tmp_path / "lab")}, driver="clinic")
    next(train(Driver(), network, Checkpoint(tmp_path)))
    assert [type(message) for message in asked] == [Restore, Save, Add]
    assert {m.algorithm for m in asked if isinstance(m, Save | Restore)} == {"test_checkpoint"}


def test_every_must_be_a_step_or_more() -> None:
    with pytest.raises(ConfigError, match="checkpoint_every must be 1 or more steps here, got 0"):
        Checkpoint("anywhere", every=0)
