"""Two drivers of one partner, real processes over gRPC, who put their answers together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Federation, Process, free_port
from processes import credentials
from sklearn.linear_model import RidgeCV

from dovetail import data as dd
from dovetail.alignment import psi
from dovetail.methods import apfed
from dovetail.methods.facets.views import whitened
from dovetail.network.certificates import Authority
from dovetail.network.quota import Quota
from dovetail.network.stream import Stream

pytestmark = [pytest.mark.network, pytest.mark.slow]

DRIVERS = ("bank", "hospital")
IDS = [f"P-{number:04d}" for number in range(600)]
KNOWN = 100

SHOP = """
[party]
name = "shop"
table = "shop.csv"
id = "person"

[policy]
algorithms = ["align", "apfed-mixed"]
together = true
max_runs_per_day = 4

[apfed]
loss = "reconstruction"
"""


@dataclass(eq=False)
class Shop:
    """``dovetail join`` of one partner, and the lines of two drivers to it."""

    folder: Path
    process: Process
    streams: dict[str, Stream]
    x_NF: np.ndarray

    def order(self, driver: str) -> np.ndarray:
        """The row of each shared sample, as this driver and the shop have agreed."""
        aligned = psi.align(self.streams[driver].engine("rows"), IDS)
        return aligned.alignment.rows[driver].numpy()

    def asked(self, driver: str, run: str, order: np.ndarray) -> np.ndarray:
        """(N, 32) answers to four codes about every row, by row."""
        engine = self.streams[driver].engine(f"rows/apfed/{run}")
        engine.ask({"shop": apfed.Begin((8,), 8, 0)}, apfed.Ready).or_raise()
        base_MD = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
        everybody = torch.arange(len(IDS))
        answers = []
        for shift in range(4):
            codes = apfed.Codes(everybody, base_MD[(everybody + shift) % 4])
            reply = engine.ask({"shop": codes}, apfed.CodeGradient).or_raise()["shop"]
            answers.append(reply.gradient_BD.numpy())
        gradients_4ND = np.stack(answers)
        by_code = [gradients_4ND[(code - everybody.numpy()) % 4, everybody] for code in range(4)]
        found = np.empty((len(IDS), 32))
        found[order] = np.concatenate(by_code, axis=1)
        return found

    def read(self, tables: list[np.ndarray]) -> float:
        """R2 of the shop's columns, from rows of which a hundred are known."""
        view, x = whitened(np.concatenate(tables, axis=1)), self.x_NF
        ridge = RidgeCV(np.logspace(-8, 3, 23)).fit(view[:KNOWN], x[:KNOWN])
        left = ((ridge.predict(view[KNOWN:]) - x[KNOWN:]) ** 2).mean(axis=0)
        return float(np.mean(1 - left / x[KNOWN:].var(axis=0)))


@pytest.fixture
def shop_of_two(tmp_path: Path) -> Iterator[Callable[[str], Shop]]:
    authority = Authority.create(now=datetime.now(UTC))
    x_NF = np.random.default_rng(0).normal(size=(len(IDS), 4))
    columns: dict[str, Any] = {"person": np.array(IDS, dtype=object)}
    dd.write_table(tmp_path / "shop.csv", columns | {f"x{j}": x_NF[:, j] for j in range(4)})
    made = credentials(authority, "shop")
    folder = tmp_path / "certificates" / "shop"
    folder.mkdir(parents=True)
    contents = ("ca.pem", made.ca), ("shop.pem", made.certificate), ("shop.key", made.key)
    for name, content in contents:
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    made_here = Federation(tmp_path, free_port(), local_secrets=True)
    with made_here.ending() as federation, ExitStack() as stack:

        def start(more: str) -> Shop:
            (tmp_path / "shop.toml").write_text(SHOP + more)
            arguments, streams = ["join", "shop.toml"], {}
            for name in DRIVERS:
                address = f"127.0.0.1:{free_port()}"
                shown = credentials(authority, name, listens=True)
                stream = Stream(address, driver=name, credentials=shown, parties=["shop"])
                stack.callback(stream.close)
                streams[name] = stream
                arguments += ["--driver", f"{name}={address}"]
            process = federation.start(*arguments)
            for name in DRIVERS:
                process.wait_for(f"connected to {name}")
            return Shop(tmp_path, process, streams, x_NF)

        yield start


def test_two_drivers_that_pool_their_answers_read_no_more_than_one(
    shop_of_two: Callable[[str], Shop],
) -> None:
    """What a site answers from is drawn once for all drivers and runs; their runs are counted."""
    shop = shop_of_two("")
    tables = []
    for driver in DRIVERS:
        order = shop.order(driver)
        tables += [shop.asked(driver, f"seed-{run}", order) for run in range(2)]
    one, pooled = shop.read(tables[:1]), shop.read(tables)
    assert pooled < one + 0.1
    assert pooled < 0.5
    # The fifth run of the day is one too many, whoever asks.
    engine = shop.streams["bank"].engine("rows/apfed/seed-9")
    replies = engine.ask({"shop": apfed.Begin((8,), 8, 0)}, apfed.Ready)
    assert "'bank', with all drivers together, has begun 4" in replies.failures["shop"].cause
    begun = Quota(shop.folder / "shop.site").read("SELECT driver FROM begins")
    assert sorted(driver for (driver,) in begun) == sorted(DRIVERS * 2)


def test_the_same_two_drivers_read_a_site_that_answers_exactly(
    shop_of_two: Callable[[str], Shop],
) -> None:
    """The attack is one: without the release it reads the table."""
    shop = shop_of_two("exact = true\n")
    tables = [shop.asked(driver, "seed-0", shop.order(driver)) for driver in DRIVERS]
    assert shop.read(tables) > 0.9
