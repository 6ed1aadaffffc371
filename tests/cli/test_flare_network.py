"""Runs as jobs of a provisioned NVFlare federation: mutual TLS, server and sites on loopback.

One federation serves all tests: a site reads its ``dovetail.toml`` when a job begins.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import same_secrets
import torch
from federations import PATIENCE_S, Federation, free_port
from flare_jobs import launching, write_changes
from member_files import MEMBERS, SETTINGS, assert_equal, looped, state_of, write_members

from dovetail.companions.flare.site import prepare_site
from dovetail.network.ledger import verify

pytestmark = [
    pytest.mark.network,
    pytest.mark.filterwarnings("default"),  # NVFlare's own
]

flarehere = pytest.importorskip("dovetail.companions.flare.federation", exc_type=ImportError)

SITES = ("site-1", "site-2", "site-3")


@dataclass(eq=False)
class Deployed:
    """The federation, and the admin's hands.

    Attributes:
        forks: where a server listens that forks processes of jobs; without it NVFlare begins them.
        server: where it listens for all tests.
        end_jobs: ends the jobs that it has forked and that still run.
    """

    federation: Any
    folder: Path
    forks: Path
    server: Path
    end_jobs: Callable[[], None]

    @property
    def kits(self) -> Path:
        kits: Path = self.federation.kits
        return kits

    def settle(
        self, parties: Mapping[str, Path | None], *, driver: str, driver_file: Path | None = None
    ) -> None:
        """Site -> its party file; the server has the driver's own."""
        for site, file in parties.items():
            settings = {"party": None if file is None else str(file), "driver": driver}
            prepare_site(self.kits / site, settings)
        prepare_site(
            self.kits / flarehere.SERVER,
            {
                "party": None if driver_file is None else str(driver_file),
                "runs": str(self.folder / "runs"),
            },
        )

    def submit(self, job: Path) -> str:
        number: str = self.federation.submit(job)
        return number

    def finish(self, number: str) -> tuple[str, Path]:
        """How a job ended, and what it left."""
        status = self.federation.wait(number, PATIENCE_S + 120)
        return status, self.federation.fetch(number, self.folder / "fetched")

    def nvflare(self, *arguments: object) -> str:
        """NVFlare's own command line, as its admin types it."""
        command = [sys.executable, "-m", "nvflare.cli", *map(str, arguments)]
        kit = ("--startup-kit", str(self.kits / flarehere.ADMIN))
        done = subprocess.run(
            [*command, *kit], cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(autouse=True)
def _same_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    same_secrets.as_in_one_process(monkeypatch.setattr)  # a driver may be this process


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("flare")
    kits = flarehere.provision(folder / "federation", SITES)
    for each in (flarehere.SERVER, *SITES):
        prepare_site(kits / each, {})  # NVFlare reads which classes a job may name as it starts
    changes, forks = folder / "changes", folder / "forks"
    write_changes(changes, forks)
    path = os.pathsep.join(filter(None, (str(changes), os.environ.get("PYTHONPATH"))))
    server = folder / "server"
    with (
        launching(server) as end_jobs,
        flarehere.FlareFederation(kits, {"PYTHONPATH": path}) as federation,
    ):
        federation.start(flarehere.SERVER, *SITES)
        federation.ready(SITES)
        yield Deployed(federation, folder, forks, server, end_jobs)


@pytest.fixture
def forked_jobs(deployed: Deployed) -> Iterator[None]:
    """NVFlare's processes of jobs have read the libraries, as in two tests they have not."""
    deployed.forks.symlink_to(deployed.server)
    yield
    deployed.forks.unlink()
    deployed.end_jobs()


def outcome(folder: Path) -> Any:
    """What a run found, but seconds and what was told of them."""
    outcome = json.loads((folder / "result.json").read_text())
    return {key: outcome[key] for key in ("parties", "baselines", "missed")}


# --- APFed ----------------------------------------------------------------------------------------

APFED = """
method = "apfed-mixed"
baselines = ["alone", "tvfl"]
evaluate_every = 0
{parties}
test = 0.25
{engine}
[apfed]
encoder = [8]
head = [8]
epochs = 2
learning_rate = 0.05
"""

FLARE = """
[engine]
kind = "flare"
partners = ["lab", "registry"]
sites = { lab = "site-1", registry = "site-2" }
wait_s = 120
grace_s = 3
"""

STREAM = """
[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = ["lab", "registry"]
wait_s = 180
"""

#: Long enough to be struck in mid-run.
LONGER = ("epochs = 2", "epochs = 14\nsteps_per_epoch = 20\ntimeout_s = 60")


@pytest.fixture
def clinics(deal: Callable[..., Any], deployed: Deployed) -> Any:
    """A clinic that drives, a lab and a registry, each at its site."""
    dealt = deal()
    for name, loss in (("lab", "reconstruction"), ("registry", "contrastive")):
        dealt.change(f"{name}.toml", ("[apfed]", f'[apfed]\nloss = "{loss}"'))
    folder = dealt.folder
    for kind, engine in (("flare", FLARE), ("here", "")):
        names = ["lab", "registry"] if kind == "here" else []
        listed = json.dumps(["clinic.toml", *(f"{name}.toml" for name in names)])
        parties = "" if kind == "flare" else f"parties = {listed}"
        (folder / f"{kind}.toml").write_text(APFED.format(parties=parties, engine=engine))
    deployed.settle(
        {"site-1": folder / "lab.toml", "site-2": folder / "registry.toml"},
        driver="clinic",
        driver_file=folder / "clinic.toml",
    )
    return dealt


def weights(folder: Path, name: str = "clinic") -> bytes:
    return (folder / "models" / name / "model.safetensors").read_bytes()


def test_apfed_from_export_to_a_prediction_gives_the_weights_of_every_engine(
    clinics: Any, deployed: Deployed, dovetail: Any
) -> None:
    folder = clinics.folder
    job = folder / "fraud"
    done = dovetail("flare", "export", "flare.toml", "--out", job)
    assert done.code == 0, done.err
    text = "".join(each.read_text() for each in job.rglob("*") if each.is_file())
    assert str(folder) not in text
    assert not list(job.rglob("*.py"))

    output = deployed.nvflare("job", "submit", "-j", job)
    number = next(word for word in output.replace('"', " ").split() if word.count("-") == 4)
    status, fetched = deployed.finish(number)
    assert status == "FINISHED:COMPLETED", (fetched / "dovetail-failed.txt").read_text()
    deployed.nvflare("job", "download", number, "-o", folder / "downloaded")
    (run,) = (folder / "downloaded").rglob("dovetail")
    assert weights(run) == weights(fetched / "dovetail")
    predicted = dovetail("predict", run, "clinic.csv", "--id", "person")
    assert predicted.code == 0, predicted.err
    assert len(predicted.out.splitlines()) == 161
    verified = verify(folder / "clinic.site" / "ledger.jsonl")
    assert verified.bytes_to().keys() == {"lab", "registry"}
    for name in ("lab", "registry"):
        assert verify(folder / f"{name}.site" / "ledger.jsonl").bytes_to().keys() == {"clinic"}

    assert dovetail("train", "here.toml", "--out", "here", "-q").code == 0
    assert weights(run) == weights(folder / "here")
    assert outcome(run) == outcome(folder / "here")

    port = free_port()
    (folder / "stream.toml").write_text(
        APFED.format(parties='parties = ["clinic.toml"]', engine=STREAM.format(port=port))
    )
    named = ("clinic", "lab", "registry", "--driver", "clinic", "--host", "127.0.0.1")
    assert dovetail("certificates", *named, "-q").code == 0
    with Federation(folder, port, ("--name", "clinic")).ending() as apart:
        for name in ("lab", "registry"):
            apart.join(name)
        streamed = dovetail("train", "stream.toml", "--out", "streamed", "-q")
        assert streamed.code == 0, streamed.err
    assert weights(run) == weights(folder / "streamed")


@pytest.mark.usefixtures("forked_jobs")
def test_a_site_that_must_sign_answers_the_job_that_all_have_signed(
    clinics: Any, deployed: Deployed, dovetail: Any
) -> None:
    folder = clinics.folder
    signed = 'id = "person"\n\n[policy]\ndrivers = ["clinic"]\napproval = "signed"\n'
    for name in ("lab", "registry"):
        clinics.change(f"{name}.toml", ('id = "person"\n', signed))
    text = APFED.format(parties='parties = ["clinic.toml"]', engine=FLARE)
    (folder / "flare.toml").write_text(text.replace('"alone", "tvfl"', ""))
    named = ("clinic", "lab", "registry", "--driver", "clinic", "-q")
    assert dovetail("certificates", *named).code == 0
    asked = dovetail("propose", "flare.toml", "--purpose", "Who comes back?")
    assert asked.code == 0, asked.err
    export = ("flare", "export", "flare.toml", "-q", "--proposal", "proposal.json", "--out")
    early = dovetail(*export, "early")
    assert early.code == 2
    assert "is not signed by lab, registry yet" in early.err
    for name in ("lab", "registry"):
        review = ("review", "proposal.json", "--party", f"{name}.toml", "--yes")
        assert dovetail(*review).code == 0
    assert dovetail("flare", "export", "flare.toml", "--out", "bare", "-q").code == 0
    status, fetched = deployed.finish(deployed.submit(folder / "bare"))
    assert status != "FINISHED:COMPLETED"
    assert "was not proposed" in (fetched / "dovetail-failed.txt").read_text()
    assert dovetail(*export, "agreed").code == 0
    status, fetched = deployed.finish(deployed.submit(folder / "agreed"))
    assert status == "FINISHED:COMPLETED", (fetched / "dovetail-failed.txt").read_text()
    name = json.loads((folder / "proposal.clinic.json").read_text())["proposal"]
    result = json.loads((fetched / "dovetail" / "result.json").read_text())
    assert result["proposal"] == name
    assert f"agreed-{name}" in (folder / "lab.site" / "ledger.jsonl").read_text()
    site_folders = [f"{party}.site" for party in ("clinic", "lab", "registry")]
    record = fetched / "dovetail" / "record.json"
    shown = dovetail("ledger", "verify", "--record", record, *site_folders)
    assert shown.code == 0, shown.err
    assert "proposal signed by 'registry'" in shown.out
    assert dovetail("ledger", "verify", *site_folders).code == 0


#: Variant of APFed -> keys of its run in the place of the method's.
DISTILLED = {
    "apfed-d": """
[apfed.distil]
exchange = "gradients"
folds = 2
teachers = ["linear"]
students = ["linear"]
max_steps = 40
""",
    "apfed": """
[apfed.distil]
folds = 2
students = ["linear"]
""",
}


@pytest.mark.usefixtures("forked_jobs")
@pytest.mark.parametrize("variant", DISTILLED)
def test_apfed_d_and_s_as_a_job_distil_the_model_of_one_process(
    clinics: Any, deployed: Deployed, dovetail: Any, variant: str
) -> None:
    folder = clinics.folder
    for name in ("lab", "registry"):
        clinics.change(f"{name}.toml", ('"align", "apfed-mixed", "tvfl"', f'"align", "{variant}"'))
    for kind in ("flare", "here"):
        text = (folder / f"{kind}.toml").read_text()
        method, baselines = f'method = "{variant}"', "baselines = []"
        text = text.replace('method = "apfed-mixed"', method).replace(
            'baselines = ["alone", "tvfl"]', baselines
        )
        (folder / f"{kind}.toml").write_text(text + DISTILLED[variant])
    job = folder / "distilled"
    done = dovetail("flare", "export", "flare.toml", "--out", job)
    assert done.code == 0, done.err
    status, fetched = deployed.finish(deployed.submit(job))
    assert status == "FINISHED:COMPLETED", (fetched / "dovetail-failed.txt").read_text()
    run = fetched / "dovetail"
    assert dovetail("train", "here.toml", "--out", "here", "-q").code == 0
    assert weights(run) == weights(folder / "here")
    assert outcome(run)["baselines"]["joint"] == pytest.approx(
        outcome(folder / "here")["baselines"]["joint"]
    )
    assert list((folder / "lab.site" / "models").glob("*/bottom.json"))
    # What reads the lab's answers does not travel with the job's results.
    assert not list(fetched.rglob("keys.safetensors"))
    kept = list((folder / "clinic.site" / "keys").glob("*.safetensors"))
    assert len(kept) == (variant == "apfed")


def epochs_of(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_epochs(run: Path, number: int, deployed: Deployed, job: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    looked = time.monotonic()
    while epochs_of(run) < number:
        assert time.monotonic() < deadline
        if time.monotonic() - looked > 5:
            looked = time.monotonic()
            assert not deployed.federation.status(job).startswith("FINISHED")
        time.sleep(0.02)


def test_a_site_whose_process_is_killed_is_done_without_and_named(
    clinics: Any, deployed: Deployed, dovetail: Any
) -> None:
    folder = clinics.folder
    run_file = folder / "flare.toml"
    text = run_file.read_text().replace(*LONGER)
    run_file.write_text("min_participation = 1\n" + text.replace('"alone", "tvfl"', ""))
    assert dovetail("flare", "export", run_file, "--out", folder / "killed", "-q").code == 0
    number = deployed.submit(folder / "killed")
    run = deployed.folder / "runs" / number
    wait_for_epochs(run, 2, deployed, number)
    process = deployed.federation.job_process("site-1", number)
    assert process is not None
    flarehere.end(process)
    status, fetched = deployed.finish(number)
    # It had no part in all of it, which the run asks for; the model is in the job even so.
    assert status != "FINISHED:COMPLETED"
    why = (fetched / "dovetail-failed.txt").read_text()
    assert "party 'lab' was left out of" in why
    assert (
        "and min_participation = 1 asks for more; the model is saved as ever, in dovetail:" in why
    )
    assert (fetched / "dovetail" / "models" / "clinic" / "model.safetensors").exists()
    missed = outcome(fetched / "dovetail")["missed"]
    assert missed.keys() == {"lab"}
    assert 0 < missed["lab"]["steps"] < missed["lab"]["of"] == 280
    assert missed["lab"]["first"].startswith("epoch")
    log = (folder / "clinic.site" / "driver.log").read_text()
    assert re.search("lost lab: site 'site-1' .*its process of this job is gone, or stopped", log)
    assert "not been connected since" in missed["lab"]["first"]


@pytest.mark.usefixtures("forked_jobs")
def test_a_job_that_was_aborted_goes_on_to_the_same_model(
    clinics: Any, deployed: Deployed, dovetail: Any
) -> None:
    folder = clinics.folder
    for name in ("flare.toml", "here.toml"):
        path = folder / name
        text = path.read_text().replace(*LONGER).replace('"alone", "tvfl"', "")
        # Its sites end at once, and NVFlare gives the driver ten seconds: it is to wait for them.
        path.write_text(text.replace("grace_s = 3", "grace_s = 60"))
    assert dovetail("flare", "export", "flare.toml", "--out", folder / "begun", "-q").code == 0
    number = deployed.submit(folder / "begun")
    wait_for_epochs(deployed.folder / "runs" / number, 2, deployed, number)
    deployed.federation.session().abort_job(number)
    assert deployed.federation.wait(number, PATIENCE_S) != "FINISHED:COMPLETED"
    assert epochs_of(deployed.folder / "runs" / number) < 14
    again = ("flare", "export", "flare.toml", "--out", folder / "again", "-q", "--resume", number)
    assert dovetail(*again).code == 0
    status, fetched = deployed.finish(deployed.submit(folder / "again"))
    assert status == "FINISHED:COMPLETED", (fetched / "dovetail-failed.txt").read_text()
    assert dovetail("train", "here.toml", "--out", "here", "-q").code == 0
    assert outcome(fetched / "dovetail")["missed"] == {}
    assert weights(fetched / "dovetail") == weights(folder / "here")


@pytest.mark.usefixtures("forked_jobs")
def test_a_site_that_refuses_ends_the_job_with_one_sentence(
    clinics: Any, deployed: Deployed, dovetail: Any
) -> None:
    folder = clinics.folder
    assert dovetail("flare", "export", "flare.toml", "--out", folder / "refused", "-q").code == 0
    clinics.change("lab.toml", ("[apfed]", '[policy]\nalgorithms = ["tvfl"]\n[apfed]'))
    status, fetched = deployed.finish(deployed.submit(folder / "refused"))
    assert status != "FINISHED:COMPLETED"
    cause = (fetched / "dovetail-failed.txt").read_text()
    assert cause.startswith(
        "party 'lab': refuses 'align': its policy allows tvfl; its owner may add "
    )
    assert cause.count("\n") == 1
    assert "refuses 'align'" in (folder / "lab.site" / "refusals.jsonl").read_text()


def test_a_site_without_a_certificate_of_the_federation_is_refused(
    deployed: Deployed, tmp_path: Path
) -> None:
    other = flarehere.provision(tmp_path / "other", ("site-9",))
    stranger = deployed.kits / "site-9"  # its own kit, of another authority, and this one's server
    shutil.copytree(other / "site-9", stranger)
    client = json.loads((deployed.kits / "site-1" / "startup" / "fed_client.json").read_text())
    client["client"]["fqsn"] = "site-9"
    (stranger / "startup" / "fed_client.json").write_text(json.dumps(client))
    deployed.federation.start("site-9")
    log = deployed.kits / "site-9.log"
    deadline = time.monotonic() + PATIENCE_S
    while "CERTIFICATE_VERIFY_FAILED" not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
    known = deployed.federation.session().get_system_info().client_info
    assert {client.name for client in known} == set(SITES)


# --- Methods that a coordinator drives ------------------------------------------------------------

FLARE_MEMBERS = """
[engine]
kind = "flare"
partners = ["north", "south", "west"]
sites = { north = "site-1", south = "site-2", west = "site-3" }
wait_s = 120
timeout_s = 120
"""


def members(folder: Path, method: str) -> None:
    """Three parties that a coordinator without data drives, and the run here and as a job."""
    folder.mkdir(exist_ok=True)
    write_members(folder, method)
    files = json.dumps([f"{name}.toml" for name in MEMBERS])
    for kind, where in (("flare", FLARE_MEMBERS), ("here", f"parties = {files}")):
        text = f'method = "{method}"\n{where}\n{SETTINGS[method]}'
        (folder / f"{kind}.toml").write_text(text)


def states_here(folder: Path, method: str, dovetail: Any) -> dict[str, dict[str, torch.Tensor]]:
    """Party -> the weights that it has in one process."""
    if method == "chfl":
        return looped(folder / "here.toml")
    assert dovetail("train", "here.toml", "--out", "here", "-q").code == 0
    return {name: state_of(folder / "here" / "models" / name) for name in MEMBERS}


@pytest.mark.usefixtures("forked_jobs")
@pytest.mark.parametrize("method", SETTINGS)
def test_parties_that_a_coordinator_drives_end_with_the_weights_of_one_process(
    deployed: Deployed, dovetail: Any, tmp_path: Path, method: str
) -> None:
    flared = tmp_path / "flared"
    for folder in (tmp_path, flared):
        members(folder, method)
    sites = dict(zip(SITES, MEMBERS, strict=True))
    deployed.settle(
        {site: flared / f"{name}.toml" for site, name in sites.items()}, driver="coordinator"
    )
    assert dovetail("flare", "export", "flare.toml", "--out", flared / "job", "-q").code == 0
    status, fetched = deployed.finish(deployed.submit(flared / "job"))
    assert status == "FINISHED:COMPLETED", (fetched / "dovetail-failed.txt").read_text()
    assert json.loads((fetched / "dovetail" / "result.json").read_text())["method"] == method
    here = states_here(tmp_path, method, dovetail)
    for name in MEMBERS:
        (kept,) = (flared / f"{name}.site" / "models").iterdir()
        assert_equal(state_of(kept), here[name])


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda federation, job: federation.submit(job), "the number of job"),
        (lambda federation, job: federation.status("7"), "RUNNING"),
        (lambda federation, job: federation.fetch("7", job), Path("7", "workspace")),
        (lambda federation, job: federation.ready(["clinic"], timeout_s=10.0), None),
    ],
    ids=["submit", "status", "fetch", "ready"],
)
def test_the_server_may_end_an_idle_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[..., Any], answer: Any
) -> None:
    from nvflare.fuel.flare_api import api_spec, flare_api

    class Session:
        def __init__(self, *, expired: bool) -> None:
            self.expired = expired

        def __getattribute__(self, name: str) -> Any:
            if object.__getattribute__(self, "expired"):
                raise api_spec.SessionExpired("closed due to inactivity")
            return object.__getattribute__(self, name)

        def submit_job(self, job: str) -> str:
            return f"the number of {Path(job).name}"

        def get_job_meta(self, job: str) -> dict[str, str]:
            return {"status": "RUNNING"}

        def download_job_result(self, job: str, folder: str) -> str:
            return job

        def get_system_info(self) -> SimpleNamespace:
            return SimpleNamespace(client_info=[SimpleNamespace(name="clinic")])

    sessions = [Session(expired=False), Session(expired=True)]
    monkeypatch.setattr(flare_api, "new_secure_session", lambda *_, **__: sessions.pop())
    assert ask(flarehere.FlareFederation(tmp_path), tmp_path / "job") == answer
    assert not sessions
