"""Selection over gRPC streams with mutual TLS: the same scores as in process."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import processes
import pytest
import torch
from torch import Tensor

from dovetail.methods import selection
from dovetail.network import Engine, InProcess, Party
from dovetail.network.certificates import Authority
from dovetail.network.client import serve
from dovetail.network.host import Host
from dovetail.network.stream import Stream

pytestmark = pytest.mark.network

OWNERS = ("shop", "clinic", "lab")
LABELS = torch.arange(60) % 3


def party(name: str) -> Party:
    """Data owners whose columns tell ever less of the class; the insurer has the labels."""
    if name == "insurer":
        return selection.LabelOwner(name, torch.arange(60), LABELS)
    index = OWNERS.index(name)
    rng = torch.Generator().manual_seed(index)
    x = torch.randn(60, 2, generator=rng) + (2.0 - index) * LABELS[:, None]

    def features(label_owner: str, samples_B: Tensor) -> Tensor:
        assert label_owner == "insurer"
        return x[samples_B]

    return selection.DataOwner(name, features)


@pytest.fixture
def engine() -> Iterator[Engine]:
    """A coordinator's, with every party dialled in from a thread of its own."""
    authority = Authority.create(now=processes.NOW)
    shown = processes.credentials(authority, "coordinator", listens=True)
    names = (*OWNERS, "insurer")
    stop = threading.Event()
    with Stream("127.0.0.1:0", driver="coordinator", credentials=shown, parties=names) as stream:
        threads = []
        for name in names:
            host = Host(name, lambda run, algorithm, driver, name=name: party(name))
            thread = threading.Thread(
                target=serve,
                args=(host, f"127.0.0.1:{stream.port}", processes.credentials(authority, name)),
                kwargs={"driver": "coordinator", "stop": stop},
            )
            thread.start()
            threads.append(thread)
        stream.wait(20)
        yield stream.engine("selection")
        stop.set()
        for thread in threads:
            thread.join(20)


def test_scores_over_the_network_are_those_in_process(engine: Engine) -> None:
    here = InProcess({name: party(name) for name in (*OWNERS, "insurer")}, driver="coordinator")
    for secure in (False, True):
        config = selection.Config(secure=secure)
        expected = selection.score(here, OWNERS, ["insurer"], config, seed=1)
        assert selection.score(engine, OWNERS, ["insurer"], config, seed=1) == expected
        assert expected.ranked == OWNERS
