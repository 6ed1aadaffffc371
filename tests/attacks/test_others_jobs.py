"""Who may submit jobs to an NVFlare federation tries to reach what is another's at its server."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dovetail.companions.flare.export import write_job
from dovetail.companions.flare.section import FlareSection
from dovetail.errors import ConfigError
from dovetail.runs.runfile import check_run

pytestmark = pytest.mark.filterwarnings("default")  # NVFlare's own

ANNA, MALLORY = "anna@bank.example.org, bank", "mallory@shop.example.org, shop"

JOB = {
    "method": "apfed-mixed",
    "test": 0.25,
    "engine": {"kind": "flare", "partners": ["shop"]},
    "track": {"to": ["mlflow"], "uri": "/srv/bank/anywhere", "experiment": "mine"},
}


@pytest.fixture
def flarejob() -> Any:
    """A server's side of a job."""
    pytest.importorskip("nvflare")
    return importlib.import_module("dovetail.companions.flare.job")


def test_a_job_does_not_go_on_with_the_run_of_another_person(flarejob: Any, tmp_path: Path) -> None:
    kept = tmp_path / "runs" / "anna-s-job"
    flarejob.claim_run(kept, ANNA, resume="")
    kept.mkdir(parents=True)
    flarejob.claim_run(kept, ANNA, resume="anna-s-job")
    with pytest.raises(ConfigError, match="the run of job 'anna-s-job' was not submitted by 'mal"):
        flarejob.claim_run(kept, MALLORY, resume="anna-s-job")
    # Nor with one whose owner nobody has written down.
    with pytest.raises(ConfigError, match="was not submitted by 'mallory"):
        flarejob.claim_run(tmp_path / "runs" / "older", MALLORY, resume="older")


@pytest.mark.parametrize("method", ["apfed", "chfl"])
def test_a_job_says_nowhere_where_the_server_writes(
    flarejob: Any, tmp_path: Path, method: str
) -> None:
    """Neither a job as the command writes it, nor one whose run file was written by hand."""
    values = {**JOB, "method": method}
    if method == "chfl":
        del values["test"]
    run = check_run(values, where="run.toml")
    assert run.track.uri == "/srv/bank/anywhere"
    write_job(run, tmp_path / "job")
    text = (tmp_path / "job" / "app_server" / "config" / "run.toml").read_text()
    assert "track" not in tomllib.loads(text)

    assert isinstance(run.engine, FlareSection)
    local_run = flarejob._of_job(run, flarejob.SiteSection(party="bank.toml"))
    assert (local_run.track.to, local_run.track.uri) == ((), None)


@pytest.mark.parametrize("key", ["data = { source = 'x', partition = { assignment = '%s' } }", ""])
def test_a_job_reads_no_file_of_the_server_that_it_names(
    flarejob: Any, tmp_path: Path, key: str
) -> None:
    """What a file's first line is was told; of one named as a party's table, its SHA-256."""
    secret = tmp_path / "secret.csv"
    secret.write_text("root:password\n")
    (tmp_path / "mine.toml").write_text(f'[party]\nname = "a"\ntable = "{secret}"\n')
    asked = key % secret if key else 'parties = ["mine.toml"]'
    path = tmp_path / "run.toml"
    path.write_text(f'method = "chfl"\n{asked}\n[engine]\nkind = "flare"\npartners = ["a", "b"]\n')
    if not key:
        assert flarejob.job_run(path, flarejob.SiteSection()).parties is None
        return
    with pytest.raises(ConfigError) as refused:
        flarejob.job_run(path, flarejob.SiteSection())
    assert "root" not in str(refused.value)
