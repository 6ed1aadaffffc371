"""A driver of a custom method meets the same limits as one of Dovetail's: the page's FedSGD.

What a policy must know of a message stands in its annotations, so nobody has to say it twice.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeCV
from torch import Tensor

from dovetail.data import Classification, TableEncoder, table_from_arrays, write_table
from dovetail.errors import ConfigError, MessageError
from dovetail.federated import Local, Party, handles
from dovetail.methods import METHODS
from dovetail.methods.base import Asked
from dovetail.methods.limits import LimitError
from dovetail.methods.local_data import LocalData, as_released
from dovetail.methods.method import Method, protocols
from dovetail.methods.settings.party import PolicySection
from dovetail.network import Floats, Message, Samples
from dovetail.network.checkpoint import Restore, Restored
from dovetail.network.quota import Quota
from dovetail.node.limits import Guard, RunLimits
from dovetail.node.partyfile import open_site
from dovetail.node.runs import Watched
from dovetail.node.status_line import Activity

PAGE = Path(__file__).parents[2] / "examples" / "own_method.py"


@pytest.fixture
def page() -> Iterator[ModuleType]:
    """The module of docs/own-method.md."""
    spec = importlib.util.spec_from_file_location("own_method", PAGE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["own_method"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("own_method")


class Open(Message):
    seed: int


class Embed(Message):
    samples_B: Samples


class Embedded(Message):
    code_BD: Floats


class Embedder(Party):
    """A custom method that answers about samples."""

    def __init__(self, x_NF: Tensor, local: Local) -> None:
        self.x_NF = x_NF

    @handles
    def begin(self, ask: Open) -> Open:
        return ask

    @handles
    def embed(self, ask: Embed) -> Embedded:
        return Embedded(self.x_NF[ask.samples_B])


class Embedding(Method):
    name = "embedding"
    Side = Embedder


def guard(
    method: Method, site_folder: Path, *, run: str = "run-1", **limits: int
) -> Callable[[Message, Callable[[Message], Message]], Message]:
    """What stands before a party at its site, after a restart."""
    policy = PolicySection.model_construct(
        **{**PolicySection().model_dump(), "algorithms": (method.name,), **limits}
    )
    ((prefix, algorithm),) = protocols(method).items()
    made: Guard = RunLimits(Quota(site_folder), policy).of("hub", run, prefix, algorithm)
    return made.answer


def test_a_run_of_the_page_begins_as_often_as_the_policy_says(
    page: ModuleType, tmp_path: Path
) -> None:
    """Each begin draws another network: six questions of six networks tell more than one."""
    ask = page.Begin((4,), 0)
    guard(page.FedSgd(), tmp_path, max_begins=1)(ask, lambda message: message)
    for _ in range(4):
        with pytest.raises(LimitError, match=r"policy\.max_begins is 1"):
            guard(page.FedSgd(), tmp_path, max_begins=1)(ask, lambda message: message)


def test_a_driver_of_the_page_begins_as_many_runs_a_day_as_the_policy_says(
    page: ModuleType, tmp_path: Path
) -> None:
    answered = 0
    for number in range(6):
        with_limits = guard(page.FedSgd(), tmp_path, run=f"run-{number}", max_runs_per_day=2)
        try:
            with_limits(page.Begin((4,), 0), lambda message: message)
        except LimitError as refusal:
            assert "max_runs_per_day is 2" in str(refusal)  # noqa: PT017 - counted
        else:
            answered += 1
    assert answered == 2


def test_the_page_does_not_go_back_in_the_middle_of_a_run(page: ModuleType, tmp_path: Path) -> None:
    ask = guard(page.FedSgd(), tmp_path)
    ask(page.Begin((4,), 0), lambda message: message)
    with pytest.raises(LimitError, match="refuses to go back to an earlier state"):
        ask(Restore("own_method", 1, True), lambda message: Restored(1))


def test_a_custom_method_answers_about_min_rows_samples_or_more(tmp_path: Path) -> None:
    party = Embedder(torch.zeros(40, 2), Local("shop"))
    ask = guard(Embedding(), tmp_path, min_rows=16)
    ask(Open(0), party.handle)
    ask(Embed(torch.arange(16)), party.handle)
    for asked in (torch.arange(15), torch.zeros(40, dtype=torch.int64)):
        with pytest.raises(LimitError, match=r"refuses"):
            ask(Embed(asked), party.handle)


def test_a_custom_method_answers_max_uses_times_about_a_sample(tmp_path: Path) -> None:
    party = Embedder(torch.zeros(40, 2), Local("shop"))
    ask = guard(Embedding(), tmp_path, max_uses=3)
    ask(Open(0), party.handle)
    for _ in range(3):
        ask(Embed(torch.arange(20)), party.handle)
    with pytest.raises(LimitError, match=r"answered 3 times in this run: its policy\.max_uses"):
        ask(Embed(torch.arange(20)), party.handle)


class Reader(Party):
    """A custom method whose answers are a party's own columns."""

    def __init__(self, local_data: LocalData, local: Local) -> None:
        self.data = local_data

    @handles
    def begin(self, ask: Open) -> Open:
        return ask

    @handles
    def embed(self, ask: Embed) -> Embedded:
        return Embedded(self.data.x_NF[ask.samples_B])


class Reading(Method):
    name = "reading"
    Side = Reader


def at_a_site(folder: Path, section: str, method: Method) -> tuple[Party, Tensor]:
    """A party as its site makes it for a driver, and its columns as they are."""
    rng = np.random.default_rng(0)
    columns = {f"c{index}": rng.normal(size=400) for index in range(6)}
    labels = np.where(columns["c0"] > 0, "yes", "no").astype(object)
    write_table(folder / "shop.csv", {"id": np.arange(400), **columns, "ill": labels})
    (folder / "shop.toml").write_text(
        f'[party]\nname = "shop"\ntable = "shop.csv"\nid = "id"\nlabel = "ill"\n'
        f'[policy]\nalgorithms = ["{method.name}"]\n{section}'
    )
    site = open_site(folder / "shop.toml")

    def nothing(*_: object) -> None:
        """Nobody saves a model or counts numbers here."""

    asked = Asked(
        local=lambda: Local("shop", secret=lambda: bytes(16), lasting=bytes(range(16))),
        rows_S=lambda: torch.arange(400),
        keep=nothing,
        kept=lambda run: folder / run,
        run="run-1",
        driver="hub",
        aligned=folder,
        quota=Quota(folder),
        guard=RunLimits(Quota(folder), PolicySection()).of(
            "hub", "run-1", "x", *protocols(method).values()
        ),
    )
    (maker,) = method.members(site, [*protocols(method)]).values()
    return maker(asked)(), method.local_data(site).x_NF


@pytest.fixture
def reading() -> Iterator[Method]:
    """A method that is installed."""
    method = METHODS["reading"] = Reading()
    yield method
    del METHODS["reading"]


@pytest.mark.trained
@pytest.mark.parametrize("exact", [True, False])
def test_a_custom_method_that_answers_about_samples_reads_what_is_released_once(
    reading: Method, tmp_path: Path, exact: bool
) -> None:
    """By default: a driver of another organisation may ask what it likes."""
    section = "[reading]\nexact = true\n" if exact else ""
    party, x_NF = at_a_site(tmp_path, section, reading)
    party.handle(Open(0))
    told_NF = party.handle(Embed(torch.arange(len(x_NF)))).code_BD
    known, rest = slice(None, 100), slice(100, None)
    ridge = RidgeCV(np.logspace(-6, 3, 10)).fit(told_NF[known], x_NF[known])
    left = ((ridge.predict(told_NF[rest]) - x_NF[rest].numpy()) ** 2).sum(axis=0)
    spread = ((x_NF[rest] - x_NF[rest].mean(dim=0)) ** 2).sum(dim=0).numpy()
    r2 = float((1 - left / spread).mean())
    assert (r2 > 0.99) == exact
    assert exact or r2 < 0.3
    (*cost,) = party.spent()
    assert len(cost) == (not exact)


def test_a_custom_method_that_names_no_samples_learns_from_the_columns(page: ModuleType) -> None:
    local_data, local = page_home(), Local("shop", lasting=bytes(16))
    assert as_released(local_data, local, page.Member.accepts) is local_data
    assert as_released(local_data, Local("shop"), Reader.accepts) is local_data  # simulated
    assert as_released(local_data, local, Reader.accepts) is not local_data


def test_weights_of_the_page_may_be_more_than_max_rows_and_other_tensors_not(
    page: ModuleType,
) -> None:
    """A custom network of more than 100,000 parameters trains over a network."""
    refused: list[str] = []

    class Deaf:
        accepts = page.Member.accepts

        def handle(self, message: Message) -> Message:
            return message

    party = Watched(Deaf(), Activity(), 100_000, lambda message, why: refused.append(why))
    party.handle(page.Parameters(torch.zeros(100_001)))
    assert not refused
    with pytest.raises(ConfigError, match="refuses 100001 rows in one message"):
        party.handle(page.Parameters(torch.zeros(100_001, 1)))
    with pytest.raises(ConfigError, match="refuses 100001 rows in one message"):
        party.handle(Embed(torch.arange(100_001)))


def test_a_driver_of_the_page_cannot_exhaust_a_party_by_the_widths_it_asks_for(
    page: ModuleType,
) -> None:
    local_data = page_home()
    party = page.Member(local_data, Local("shop"))
    for widths in ((2**14, 2**14), (2**40,)):
        with pytest.raises(MessageError, match=r"268435456 bytes|too large|overflow|invalid"):
            party.handle(page.Begin(widths, 0))
    party.handle(page.Begin((4,), 0))


def page_home() -> LocalData:
    """Rows of a party, as the page's method is given them."""
    task, names = Classification((0, 1)), ("a", "b")
    table = table_from_arrays("shop", dict(zip(names, torch.randn(2, 20).numpy(), strict=True)))
    encoder = TableEncoder.fit(table, names, party="shop")
    x_NF = encoder.transform(table)
    return LocalData("shop", x_NF, torch.arange(20) % 2, names, 2, task, "ill", encoder, "columns")


def test_a_tensor_that_is_declared_as_nothing_reaches_no_party() -> None:
    """A forgotten annotation must not be silent: its limits would be."""

    class Bare(Message):
        samples: Tensor

    with pytest.raises(TypeError, match=r"Bare\.samples is a tensor of nothing: declare it"):

        class Careless(Party):
            embed = handles(_takes(Bare))


def _takes(kind: type[Message]) -> Callable[[Party, Message], Message]:
    """A handler of this message."""

    def handler(self: Party, ask: Message) -> Message:
        return ask

    handler.__annotations__ = {"ask": kind, "return": kind}
    return handler
