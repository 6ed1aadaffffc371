"""A partner knows a run's seed and has read the code: it computes nothing of labels from both."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dovetail.alignment.columns import Description
from dovetail.data import CategorySummary, Classification
from dovetail.federated import Local
from dovetail.methods import fedoptimus, selection
from dovetail.methods.base import Site
from dovetail.methods.fedoptimus.local_data import Labels
from dovetail.methods.labels import draw_share
from dovetail.models.learners.vertical import Batches, held_out_rows
from dovetail.models.randomness import generator
from dovetail.node.driver import Driver
from dovetail.node.partyfile import open_site
from dovetail.node.runs import Runs
from dovetail.node.site_folder import Refusals
from dovetail.node.status_line import StatusLine
from dovetail.settings.models import ThresholdSettings

ROWS = 400
#: Sorted by class.
LABELS = torch.arange(ROWS) * 2 // ROWS


def bank(folder: Path, rows: int = ROWS) -> Site:
    label = np.array(["n", "y"])[np.random.default_rng(0).integers(2, size=rows)]
    table = pd.DataFrame(
        {"id": [f"p{row}" for row in range(rows)], "a": np.arange(rows), "y": label}
    )
    table.to_csv(folder / "bank.csv", index=False)
    (folder / "bank.toml").write_text(
        '[party]\nname = "bank"\ntable = "bank.csv"\nid = "id"\nlabel = "y"\n', encoding="utf-8"
    )
    return open_site(folder / "bank.toml")


def rows_that_test(site: Site) -> set[int]:
    return set(draw_share(site, np.arange(ROWS), 0.25, "test_share")[1].tolist())


def test_test_rows_do_not_follow_from_a_known_seed(tmp_path: Path) -> None:
    """Rows are drawn evenly within each class: whoever can draw them again reads the classes."""
    site = bank(tmp_path)
    by_seed = rows_that_test(site)  # in simulation
    secrets = [partial(bytes, [each] * 16) for each in range(3)]
    drawn = [rows_that_test(replace(site, secret=secret)) for secret in secrets]
    for one in drawn:
        assert len(one & by_seed) < 0.45 * len(by_seed)  # 0.25 by chance, 0.04 the deviation
    assert len({frozenset(each) for each in drawn}) == 3
    assert drawn[1] == rows_that_test(replace(site, secret=secrets[1]))


def test_who_drives_and_who_answers_split_by_the_secret_of_their_site(tmp_path: Path) -> None:
    site = bank(tmp_path)
    folder = tmp_path / "bank.site"
    folder.mkdir()
    assert site.split_seed("test") == 0
    section = cast(Any, SimpleNamespace(partners=("shop",), where="here", wait_s=0.0))
    driver = Driver(site, section, cast(Any, None))
    teller = StatusLine("shop", quiet=True)
    refusals = Refusals(folder / "refusals.jsonl", teller.print)
    runs = Runs(site, folder, refusals, teller, torch.device("cpu"))
    seeds = [each.split_seed("test") for each in (driver.site, runs._site, driver.sites["bank"])]
    for seed in seeds:
        assert isinstance(seed, np.ndarray)
        assert len(seed) == 8
        assert seed.tolist() == cast(np.ndarray, seeds[0]).tolist()
    # Of another table rows lie in other orders, and other rows test.
    first, key = seeds[0], driver.secret()
    other = Driver(bank(tmp_path, ROWS + 1), section, cast(Any, None))
    assert not np.array_equal(cast(Any, other.site.split_seed("test")), cast(Any, first))
    assert other.secret() != key


def test_batches_do_not_follow_from_a_known_seed() -> None:
    def order(key: bytes | None) -> Tensor:
        batches = Batches(torch.ones(1, ROWS, dtype=torch.bool), 64, seed=0, key=key)
        return torch.cat([batches.draw()[0] for _ in range(batches.epoch)])[:ROWS]

    assert torch.equal(order(None), order(None))
    known = order(None)
    for key in (b"one", b"other"):
        assert abs(np.corrcoef(order(key), known)[0, 1]) < 5 / ROWS**0.5
        assert torch.equal(order(key), order(key))


def test_members_are_filled_up_with_drawn_rows() -> None:
    stop_KN = torch.zeros(40, ROWS, dtype=torch.bool)
    stop_KN[:, :300] = True
    stop_KN[1::2, 299] = False
    rows_KV, real_KV = held_out_rows(stop_KN, generator(0, "filled", secret=b"one"))
    filled = rows_KV[real_KV == 0]
    assert len(filled) == 20
    assert len(filled.unique()) > 10


def test_a_selection_names_rows_in_an_order_of_its_own() -> None:
    choose = selection.Choose(seed=0, rows=ROWS, queries=50, neighbours=3)
    samples = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))

    def places(key: bytes | None) -> Tensor:
        chosen = selection.LabelOwner("bank", samples, LABELS, key).choose(choose)
        return samples.argsort()[chosen.samples_N]  # the table's row of each that is named

    assert torch.equal(places(None), torch.arange(ROWS))  # in simulation
    for key in (b"one", b"other"):
        assert sorted(places(key).tolist()) == list(range(ROWS))
        assert abs(np.corrcoef(places(key), np.arange(ROWS))[0, 1]) < 5 / ROWS**0.5
    assert not torch.equal(places(b"one"), places(b"other"))


def test_what_chooses_a_threshold_is_named_by_sample_and_drawn_by_the_site() -> None:
    samples = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    task = Classification(("n", "y"))

    def kept_out(key: bytes | None) -> Tensor:
        data = Labels("bank", task, LABELS[samples.argsort()], samples=samples, key=key)
        owner = fedoptimus.LabelOwner(data, Local("bank"))
        settings = fedoptimus.Config(decide=ThresholdSettings())
        owner.handle(fedoptimus.messages.BeginLabels(settings.model_dump_json(), 0, ""))
        return owner.held_out

    for key in (None, b"one"):
        held_out = kept_out(key)
        assert torch.equal(held_out, held_out.sort().values)
    assert not torch.equal(kept_out(None), kept_out(b"one"))


def test_categories_are_listed_by_name() -> None:
    counts = {"rare": 1, "a": 300, "other": 1}
    described = Description.of({"c": CategorySummary(counts, 0)}, Classification(("n", "y")), 302)
    assert described.categories == ("a", "other", "rare")
    assert described.category_counts == (300, 1, 1)
