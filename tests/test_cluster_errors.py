"""What is said where there is no Ray, or no cluster at the address."""

from __future__ import annotations

import pickle
import sys

import pytest

from dovetail.cluster import LOCAL, tasks_at
from dovetail.errors import ConfigError, PartyError
from dovetail.node.engines import RaySection
from dovetail.runs.runfile import check_run


def test_without_ray_the_pip_command_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    sentence = r"--ray needs Ray.*pip install 'dovetail-fl\[ray\]'"
    with pytest.raises(ConfigError, match=sentence), tasks_at("auto"):
        pass
    with tasks_at(None) as tasks:
        assert tasks is LOCAL


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:1", "nothing answers at 127.0.0.1:1"),
        ("ray://127.0.0.1:1", "nothing answers at ray://127.0.0.1:1"),
        ("cluster", "takes auto, HOST:PORT or ray://HOST:PORT"),
        ("http://127.0.0.1:80", "takes auto, HOST:PORT or ray://HOST:PORT"),
    ],
)
def test_an_address_that_will_not_do_is_one_sentence(address: str, sentence: str) -> None:
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'dovetail-fl[ray]'")
    with pytest.raises(ConfigError, match=sentence), tasks_at(address):
        pass


def test_tasks_of_one_process_are_drawn_as_they_are_needed() -> None:
    drawn = []

    def given() -> object:
        for number in range(3):
            drawn.append(number)
            yield number

    results = LOCAL.map(str, given())
    assert next(results) == "0"
    assert drawn == [0]


def test_what_travels_to_a_cluster_comes_back_alike() -> None:
    error = pickle.loads(pickle.dumps(PartyError("shop", "is away")))
    assert (error.party, error.cause, str(error)) == ("shop", "is away", "party 'shop': is away")
    columns = {"kind": "columns", "active": "a", "parties": {"a": ["mean *"], "b": ["worst *"]}}
    data = {"source": "breast-cancer", "test": 0.3, "partition": columns}
    run = check_run(
        {"method": "apfed-r", "data": data, "engine": {"kind": "ray", "cpus": 0.25}}, where="test"
    )
    assert isinstance(run.engine, RaySection)
    again = pickle.loads(pickle.dumps(run))
    assert again == run
    assert type(again) is type(run)
