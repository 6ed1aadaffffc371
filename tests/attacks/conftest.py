"""Homes that are attacked: a shop that joins the bank, as a process of its own or in this one."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Federation, Process, free_port

from dovetail import data as dd
from dovetail.network import Engine, InProcess
from dovetail.network.certificates import (
    Authority,
    certificate_pem,
    key_pem,
    new_key,
)
from dovetail.network.credentials import Credentials
from dovetail.network.quota import Quota
from dovetail.network.stream import Stream
from dovetail.node.partyfile import open_site
from dovetail.node.runs import Runs
from dovetail.node.site_folder import Refusals
from dovetail.node.status_line import StatusLine

SHOP = """
[party]
name = "shop"
table = "shop.csv"
id = "person"

[policy]
{policy}
"""


def write_shop(folder: Path, ids: list[str], policy: str) -> Path:
    x = np.random.default_rng(0).normal(size=(len(ids), 2))
    columns = {"person": np.array(ids, dtype=object), "x0": x[:, 0], "x1": x[:, 1]}
    dd.write_table(folder / "shop.csv", columns)
    if "algorithms" not in policy:
        policy = f'algorithms = ["align", "apfed-mixed"]\n{policy}'
    (folder / "shop.toml").write_text(SHOP.format(policy=policy))
    return folder / "shop.toml"


def put_credentials(folder: Path, authority: Authority, name: str, *, listens: bool) -> Credentials:
    key = new_key()
    certificate = authority.issue(name, key.public_key(), now=datetime.now(UTC), listens=listens)
    made = Credentials(authority.pem, certificate_pem(certificate), key_pem(key))
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in (("ca.pem", made.ca), (f"{name}.pem", made.certificate)):
        (folder / file).write_bytes(content)
    (folder / f"{name}.key").write_bytes(made.key)
    (folder / f"{name}.key").chmod(0o600)
    return made


@dataclass(eq=False)
class Shop:
    """The victim: ``dovetail join shop.toml``, and the attacker's line to it."""

    federation: Federation
    stream: Stream
    process: Process

    @property
    def site_folder(self) -> Path:
        return self.federation.folder / "shop.site"

    def engine(self, run: str) -> Engine:
        self.process.wait_for("connected to bank")
        return self.stream.engine(run)

    def killed_and_started_anew(self) -> None:
        self.process.signal(signal.SIGKILL)
        self.process.process.join()
        self.process = self.federation.join("shop")
        self.process.wait_for("connected to bank")

    def refused(self) -> list[dict[str, Any]]:
        lines = (self.site_folder / "refusals.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def shop_that_joins(tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    """Starts the shop with these ids and policy; the bank, its driver, is the attacker."""
    authority = Authority.create(now=datetime.now(UTC))
    streams: list[Stream] = []
    federation = Federation(tmp_path, free_port(), ("--name", "bank"))

    def start(ids: list[str], policy: str = "") -> Shop:
        write_shop(tmp_path, ids, policy)
        put_credentials(tmp_path / "certificates" / "shop", authority, "shop", listens=False)
        bank = put_credentials(tmp_path / "bank", authority, "bank", listens=True)
        address = f"127.0.0.1:{federation.port}"
        streams.append(Stream(address, driver="bank", credentials=bank, parties=["shop"]))
        return Shop(federation, streams[-1], federation.join("shop"))

    with federation.ending():
        yield start
        for stream in streams:
            stream.close()


@dataclass(eq=False)
class Site:
    """The victim's site in this process; ``again`` is what a restart leaves."""

    path: Path
    runs: Runs

    def engine(self, run: str, driver: str = "bank", algorithm: str = "psi") -> InProcess:
        return InProcess({"shop": self.runs.open(run, algorithm, driver)}, driver=driver)

    def printed(self, what: str) -> list[str]:
        """Lines of the terminal that contain this."""
        return [line for line in self.lines if what in line]

    @property
    def quota(self) -> Quota:
        """What it counts in."""
        return self.runs._quota

    lines: list[str]


@pytest.fixture
def shop_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Site]:
    lines: list[str] = []
    monkeypatch.setattr(StatusLine, "print", lambda self, text: lines.append(text))

    def start(
        ids: list[str], policy: str = "", change: Callable[[Path], None] = lambda table: None
    ) -> Site:
        party_file = write_shop(tmp_path, ids, policy)
        change(tmp_path / "shop.csv")
        site = open_site(party_file)
        site_folder = tmp_path / "shop.site"
        site_folder.mkdir(exist_ok=True)
        teller = StatusLine("bank", quiet=True)
        refusals = Refusals(site_folder / "refusals.jsonl", teller.print)
        return Site(
            site_folder, Runs(site, site_folder, refusals, teller, torch.device("cpu")), lines
        )

    return start
