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
from typing import Any

import numpy as np
import pytest
import same_secrets
import torch
from federations import PATIENCE_S, Federation, free_port

import dovetail as package
from dovetail import data as dd
from dovetail.experiment.runfile import load_run
from dovetail.experiment.setup import load_data, setup
from dovetail.methods import chfl
from dovetail.methods.chfl.stages import ChflSetup
from dovetail.models.owners import load_bottom
from dovetail.network import InProcess
from dovetail.network.ledger import verify
from dovetail.site.flaresite import prepare_site

pytestmark = [
    pytest.mark.network,
    pytest.mark.filterwarnings("default"),  # NVFlare's own
]

flarehere = pytest.importorskip("dovetail.site.flarehere", exc_type=ImportError)

SITES = ("site-1", "site-2", "site-3")


@dataclass(eq=False)
class Deployed:
    """The federation, and the admin's hands."""

    federation: Any
    folder: Path

    @property
    def kits(self) -> Path:
        kits: Path = self.federation.kits
        return kits

    def settle(
        self, parties: Mapping[str, Path | None], *, driver: str, own: Path | None = None
    ) -> None:
        """Site -> its party file; the server has the driver's own."""
        for site, file in parties.items():
            said = {"party": None if file is None else str(file), "driver": driver}
            prepare_site(self.kits / site, said)
        prepare_site(
            self.kits / flarehere.SERVER,
            {"party": None if own is None else str(own), "runs": str(self.folder / "runs")},
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


#: Read by every process of the federation as it starts: homes draw what one process draws.
SAME_SECRETS = """
import importlib.util
import sys


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "dovetail.experiment.flarejob":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        read = spec.loader.exec_module

        def read_and_change(module):
            read(module)
            sys.path.append({tests!r})
            from same_secrets import as_in_one_process

            as_in_one_process()

        spec.loader.exec_module = read_and_change
        return spec


sys.meta_path.insert(0, Finder())
"""


@pytest.fixture(autouse=True)
def _same_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    same_secrets.as_in_one_process(monkeypatch.setattr)  # a driver may be this process


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("flare")
    kits = flarehere.provision(folder / "federation", SITES)
    for each in (flarehere.SERVER, *SITES):
        prepare_site(kits / each, {})  # NVFlare reads which classes a job may name as it starts
    changes = folder / "changes"
    changes.mkdir()
    tests = str(Path(same_secrets.__file__).parent)
    (changes / "sitecustomize.py").write_text(SAME_SECRETS.format(tests=tests))
    path = os.pathsep.join(filter(None, (str(changes), os.environ.get("PYTHONPATH"))))
    with flarehere.Federation(kits, {"PYTHONPATH": path}) as federation:
        federation.start(flarehere.SERVER, *SITES)
        federation.ready(SITES)
        yield Deployed(federation, folder)


def outcome(folder: Path) -> Any:
    """What a run found, but seconds and what was told of them."""
    found = json.loads((folder / "result.json").read_text())
    return {key: found[key] for key in ("parties", "rulers", "missed")}


# --- APFed ----------------------------------------------------------------------------------------

APFED = """
method = "apfed"
rulers = ["alone", "tvfl"]
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
LONGER = ("epochs = 2", "epochs = 14\nsteps_per_epoch = 20\ntimeout_s = 10")


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
        own=folder / "clinic.toml",
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

    said = deployed.nvflare("job", "submit", "-j", job)
    number = next(word for word in said.replace('"', " ").split() if word.count("-") == 4)
    status, fetched = deployed.finish(number)
    assert status == "FINISHED:COMPLETED", (fetched / "dovetail-failed.txt").read_text()
    deployed.nvflare("job", "download", number, "-o", folder / "downloaded")
    (run,) = (folder / "downloaded").rglob("dovetail")
    assert weights(run) == weights(fetched / "dovetail")
    predicted = dovetail("predict", run, "clinic.csv", "--id", "person")
    assert predicted.code == 0, predicted.err
    assert len(predicted.out.splitlines()) == 161
    own = verify(folder / "clinic.site" / "ledger.jsonl")
    assert own.bytes_to().keys() == {"lab", "registry"}
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


#: Keys of a run of APFed-D in the place of the method's.
DISTIL = """
[apfed.distil]
folds = 2
teachers = ["linear"]
students = ["linear"]
max_steps = 40
"""


def test_apfed_d_as_a_job_distils_the_model_of_one_process(
    clinics: Any, deployed: Deployed, dovetail: Any
) -> None:
    folder = clinics.folder
    for name in ("lab", "registry"):
        clinics.change(f"{name}.toml", ('"align", "apfed", "tvfl"', '"align", "apfed-d"'))
    for kind in ("flare", "here"):
        text = (folder / f"{kind}.toml").read_text()
        method, rulers = 'method = "apfed-d"', "rulers = []"
        text = text.replace('method = "apfed"', method).replace(
            'rulers = ["alone", "tvfl"]', rulers
        )
        (folder / f"{kind}.toml").write_text(text + DISTIL)
    job = folder / "distilled"
    done = dovetail("flare", "export", "flare.toml", "--out", job)
    assert done.code == 0, done.err
    status, fetched = deployed.finish(deployed.submit(job))
    assert status == "FINISHED:COMPLETED", (fetched / "dovetail-failed.txt").read_text()
    run = fetched / "dovetail"
    assert dovetail("train", "here.toml", "--out", "here", "-q").code == 0
    assert weights(run) == weights(folder / "here")
    assert outcome(run)["rulers"]["joint"] == pytest.approx(
        outcome(folder / "here")["rulers"]["joint"]
    )
    assert list((folder / "lab.site" / "models").glob("*/bottom.json"))


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
    text = run_file.read_text().replace(*LONGER).replace("timeout_s = 10", "timeout_s = 60")
    run_file.write_text(text.replace('"alone", "tvfl"', ""))
    assert dovetail("flare", "export", run_file, "--out", folder / "killed", "-q").code == 0
    number = deployed.submit(folder / "killed")
    run = deployed.folder / "runs" / number
    wait_for_epochs(run, 2, deployed, number)
    process = deployed.federation.job_process("site-1", number)
    assert process is not None
    flarehere.end(process)
    status, fetched = deployed.finish(number)
    assert status == "FINISHED:COMPLETED", (fetched / "dovetail-failed.txt").read_text()
    missed = outcome(fetched / "dovetail")["missed"]
    assert missed.keys() == {"lab"}
    assert 0 < missed["lab"]["steps"] < missed["lab"]["of"] == 280
    assert missed["lab"]["first"].startswith("epoch")
    log = (folder / "clinic.site" / "driver.log").read_text()
    assert re.search("lost lab: site 'site-1' .*its process of this job is gone, or stopped", log)
    assert "not been connected since" in missed["lab"]["first"]


def test_a_job_that_was_aborted_goes_on_to_the_same_model(
    clinics: Any, deployed: Deployed, dovetail: Any
) -> None:
    folder = clinics.folder
    for name in ("flare.toml", "here.toml"):
        path = folder / name
        path.write_text(path.read_text().replace(*LONGER).replace('"alone", "tvfl"', ""))
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
    assert weights(fetched / "dovetail") == weights(folder / "here")
    assert outcome(fetched / "dovetail")["missed"] == {}


def test_a_site_that_refuses_ends_the_job_with_one_sentence(
    clinics: Any, deployed: Deployed, dovetail: Any
) -> None:
    folder = clinics.folder
    assert dovetail("flare", "export", "flare.toml", "--out", folder / "refused", "-q").code == 0
    clinics.change("lab.toml", ("[apfed]", '[policy]\nalgorithms = ["tvfl"]\n[apfed]'))
    status, fetched = deployed.finish(deployed.submit(folder / "refused"))
    assert status != "FINISHED:COMPLETED"
    cause = (fetched / "dovetail-failed.txt").read_text()
    assert cause == "party 'lab': refuses 'align': its policy allows tvfl\n"
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

NAMES = ("north", "south", "west")

MEMBERS_FLARE = """
[engine]
kind = "flare"
partners = ["north", "south", "west"]
sites = { north = "site-1", south = "site-2", west = "site-3" }
wait_s = 120
timeout_s = 120
"""

MEMBERS_STREAM = """
[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = ["north", "south", "west"]
wait_s = 180
timeout_s = 120
"""

FEDOPTIMUS = """
[fedoptimus]
epochs = 3
batch_size = 16
optimizer = "adam"
learning_rate = 0.01
embedding = 8
top = [8]
"""

CHFL = """
[chfl]
widths = [8, 4]
rounds = 3
local_epochs = 1
batch_size = 16
learning_rate = 0.01
"""

HYFEM = """
[hyfem]
classes = ["benign", "malignant"]
rounds = 3
local_steps = 4
batch_size = 16
learning_rate = 0.1
[hyfem.extractors]
size = [4]
looks = [4]
shape = [3]
"""

GROUPS = {"size": ["* area", "* radius"], "looks": ["* texture"], "shape": ["* symmetry"]}
HELD = {"north": ("size", "looks"), "south": ("looks", "shape"), "west": ("size", "shape")}

MEMBER = """
[party]
name = "{name}"
table = "{name}.csv"
id = "row"
{label}
{blocks}
[policy]
algorithms = ["align", "{method}"]
{own}
"""

SETTINGS = {"chfl": CHFL, "hyfem": HYFEM, "fedoptimus": FEDOPTIMUS}


def own_part(pooled: Any, place: int, name: str, method: str) -> tuple[Any, list[str], str, str]:
    """A party's rows and columns, its blocks in its file, and its section there."""
    if method == "fedoptimus":  # north has labels, the others columns of partly the same people
        part = pooled.take(np.arange(20 * place, 300 + 20 * place))
        globs = ([], ["mean *"], ["worst *"])[place]
        own = "[fedoptimus]\nbottom = [8]" if globs else ""
        return part, part.x.select(globs) if globs else [], "", own
    part = pooled.take(np.arange(place, pooled.num_rows, 3))
    if method == "chfl":
        alone = ("worst area", "worst texture", "area error")[place]
        return part, [*part.x.select(["mean *"]), alone], "", '[chfl]\ncommon = ["mean *"]'
    names = [column for each in HELD[name] for column in part.x.select(GROUPS[each])]
    blocks = "".join(f"blocks.{each} = {json.dumps(GROUPS[each])}\n" for each in HELD[name])
    return part, names, blocks, '[hyfem]\nwidths = [5]\nclasses = ["benign", "malignant"]'


def members(folder: Path, method: str) -> None:
    """Three parties that a coordinator without data drives, and the run on each engine."""
    pooled, _ = dd.load("breast-cancer")
    for place, name in enumerate(NAMES):
        part, names, blocks, own = own_part(pooled, place, name, method)
        columns = {column: part.x.column(column).values for column in names}
        has_labels = method != "fedoptimus" or not names
        if has_labels:
            columns["diagnosis"] = part.labels.values
        dd.write_table(folder / f"{name}.csv", {"row": part.ids, **columns})
        label = 'label = "diagnosis"' if has_labels else ""
        text = MEMBER.format(name=name, method=method, label=label, blocks=blocks, own=own)
        (folder / f"{name}.toml").write_text(text)
    files = json.dumps([f"{name}.toml" for name in NAMES])
    for kind, where in (("flare", MEMBERS_FLARE), ("here", f"parties = {files}")):
        text = f'method = "{method}"\n{where}\n{SETTINGS[method]}'
        (folder / f"{kind}.toml").write_text(text)


def state_of(kept: Path) -> dict[str, torch.Tensor]:
    """The weights of a model, or of a data owner's part of one."""
    found = load_bottom(kept) if (kept / "bottom.json").exists() else package.load(kept)
    state: dict[str, torch.Tensor] = found.network.state_dict()
    return state


def states_at_home(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Party -> the weights that it has kept of its only run."""
    found = {}
    for name in NAMES:
        (kept,) = (folder / f"{name}.site" / "models").iterdir()
        found[name] = state_of(kept)
    return found


def states_here(folder: Path, method: str, dovetail: Any) -> dict[str, dict[str, torch.Tensor]]:
    """The same, of one process; CHFL's command trains a stack, whose sums have another order."""
    if method != "chfl":
        assert dovetail("train", "here.toml", "--out", "here", "-q").code == 0
        models = folder / "here" / "models"
        return {name: state_of(models / name) for name in NAMES}
    run = load_run(folder / "here.toml")
    task = setup(run, 0, load_data(run))
    assert isinstance(task, ChflSetup)
    held = {name: chfl.Member(own.rows) for name, own in task.parties.items()}
    coordinator = chfl.Coordinator(task.config_of("chfl"), seed=0)
    for _ in chfl.train(coordinator, InProcess(held, driver="coordinator")):
        pass
    return {name: member.model().network.state_dict() for name, member in held.items()}


@pytest.mark.parametrize("method", SETTINGS)
def test_parties_that_a_coordinator_drives_end_with_the_weights_of_every_engine(
    deployed: Deployed, dovetail: Any, tmp_path: Path, method: str
) -> None:
    flared, streamed = tmp_path / "flared", tmp_path / "streamed"
    for folder in (tmp_path, flared, streamed):
        folder.mkdir(exist_ok=True)
        members(folder, method)
    sites = dict(zip(SITES, NAMES, strict=True))
    deployed.settle(
        {site: flared / f"{name}.toml" for site, name in sites.items()}, driver="coordinator"
    )
    assert dovetail("flare", "export", "flare.toml", "--out", flared / "job", "-q").code == 0
    status, fetched = deployed.finish(deployed.submit(flared / "job"))
    assert status == "FINISHED:COMPLETED", (fetched / "dovetail-failed.txt").read_text()
    assert json.loads((fetched / "dovetail" / "result.json").read_text())["method"] == method

    port = free_port()
    named = (*NAMES, "coordinator", "--driver", "coordinator", "--host", "127.0.0.1")
    kept = ("--out", streamed / "certificates", "-q")
    assert dovetail("certificates", *named, *kept).code == 0
    text = (streamed / "flare.toml").read_text()
    stream = text.replace(MEMBERS_FLARE, MEMBERS_STREAM.format(port=port))
    (streamed / "stream.toml").write_text(stream)
    with Federation(streamed, port, ("--name", "coordinator")).ending() as apart:
        for name in NAMES:
            apart.join(name)
        driver = apart.start("train", "stream.toml", "--out", "apart")
        assert driver.ended() == 0, driver.said()

    here = states_here(tmp_path, method, dovetail)
    for others in (states_at_home(flared), states_at_home(streamed)):
        for name in NAMES:
            assert here[name].keys() == others[name].keys()
            for key, value in here[name].items():
                assert torch.equal(value, others[name][key]), (name, key)
