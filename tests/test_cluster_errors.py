"""What is said where there is no Ray, or no cluster at the address."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dovetail import cluster
from dovetail.cli.join import join
from dovetail.cluster import LOCAL, tasks_at
from dovetail.errors import ConfigError, PartyError
from dovetail.node.engines import RaySection
from dovetail.runs.runfile import check_run


def test_without_ray_the_pip_command_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    sentence = r"--ray needs.*pip install 'dovetail-fl\[ray\]'"
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


def test_a_machine_without_dovetail_or_of_another_version_is_one_sentence() -> None:
    ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'dovetail-fl[ray]'")
    text = "No module named 'dovetail'"
    lacks = ray.exceptions.RaySystemError(ImportError(text))
    told = cluster.failed(ray, ray.exceptions.RayTaskError("_run", f"{text}\n", lacks), "a task")
    assert isinstance(told, ConfigError)
    assert "cannot read a task: they have no package 'dovetail'; install the same" in str(told)
    assert cluster._run(str, 1, 1, cluster._versions()) == ("1", [])
    with pytest.raises(ConfigError, match=r"has Dovetail .*, and here are Dovetail 0.1 and PyTor"):
        cluster._run(str, 1, 1, "Dovetail 0.1 and PyTorch 1.0")


@pytest.mark.parametrize("peer", ["127.0.0.1", "10.1.2.3", "fe80::1%eth0", "fd00::1"])
def test_a_cluster_lies_at_a_private_address(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    cluster._check_private(peer, f"ray://{peer}:10001", "party.compute")
    for public in ("8.8.8.8", "2001:4860:4860::8888"):
        with pytest.raises(ConfigError, match=r"party.compute: .* an address of the open internet"):
            cluster._check_private(public, f"ray://{public}:10001", "party.compute")
        monkeypatch.setenv("RAY_USE_TLS", "1")
        cluster._check_private(public, "", "")
        monkeypatch.delenv("RAY_USE_TLS")


@pytest.mark.slow
@pytest.mark.network
def test_a_cluster_that_a_command_starts_lets_nobody_else_in(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'dovetail-fl[ray]'")
    connects = "import ray, sys; ray.init(sys.argv[1], logging_level=50)"
    starts = f"""
import os, subprocess, sys
from dovetail.cluster import tasks_at
if __name__ == "__main__":
    with tasks_at("auto") as tasks:
        address = tasks.ray.get_runtime_context().gcs_address
        others = {{k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}}
        for environment in (others, dict(os.environ)):
            command = [sys.executable, "-c", {connects!r}, address]
            done = subprocess.run(command, env=environment, capture_output=True)
            print(done.returncode)
"""
    script = tmp_path / "starts.py"
    script.write_text(starts)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_A")}
    with tempfile.TemporaryDirectory() as folder:  # sockets lie there: a short path
        environment["RAY_TMPDIR"] = folder  # of no other cluster
        environment["PYTHONPATH"] = str(Path(__file__).parents[1])
        command = [sys.executable, str(script)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["1", "0"], done.stderr


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


def test_torchrun_does_not_start_a_party_that_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="start dovetail join without torchrun"):
        join(Path("shop.toml"), driver=["127.0.0.1:1"])
