"""A partner that returns with other values under the same ids, or another network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail.alignment import psi
from dovetail.errors import PartyError
from dovetail.methods import apfed, vertical
from dovetail.network.checkpoint import Restore, Restored, Save, Saved, load_state, save_state
from dovetail.node.fingerprint import table_digest
from dovetail.node.partyfile import open_site

IDS = [f"P-{number:03d}" for number in range(40)]
RUN = "a1/apfed/seed-0"
ASK = apfed.Codes(torch.arange(8), torch.arange(32.0).sin().view(8, 4))
POLICY = """
drivers = ["bank"]
algorithms = ["align", "apfed-mixed", "tvfl"]
min_rows = 1

[apfed]
encoder = [8, 4]
"""


@pytest.fixture
def saved(shop_site: Any, tmp_path: Path) -> Callable[..., Any]:
    """The shop, which has saved step 7 of a run with the bank, and ``restart``."""
    site = shop_site(IDS, POLICY)
    psi.align(site.engine("a1"), np.array(IDS))
    party = site.runs.open(RUN, "apfed", "bank")
    party.handle(apfed.Begin((4,), 0, 0))
    party.handle(ASK)
    assert isinstance(party.handle(Save("apfed", 7, 0)), Saved)

    def restart(policy: str = POLICY, change: Callable[[Path], None] = lambda table: None) -> Any:
        return shop_site(IDS, policy, change)

    return restart


def states(site_folder: Path) -> list[Path]:
    return sorted((site_folder / "checkpoints").glob("bank/*/apfed/*.safetensors"))


def other_value(path: Path) -> None:
    """One number of one row, as the shop's own table has it under the same id."""
    lines = path.read_text().splitlines()
    person, x0, x1 = lines[5].split(",")
    lines[5] = f"{person},{float(x0) + 1e-3},{x1}"
    path.write_text("\n".join(lines) + "\n")


def refused(site_folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (site_folder / "refusals.jsonl").read_text().splitlines()]


def test_other_values_under_the_same_ids_are_noticed_and_the_run_is_refused(saved: Any) -> None:
    site = saved(POLICY.replace("min_rows = 1", "min_rows = 1\nmax_begins = 9"), other_value)
    kept = [path.read_bytes() for path in states(site.path)]
    engine = site.engine(RUN, algorithm="apfed")
    asked = [ASK, apfed.Begin((4,), 0, 0), Save("apfed", 8, 7), Restore("apfed", 7, exactly=False)]
    for message in asked:  # nor does it begin anew in the middle of a run
        (failure,) = engine.ask({"shop": message}, Saved).failures.values()
        assert str(failure) == (
            "party 'shop': refuses to go on from step 7: since it saved that, its table changed; "
            "put back what was there and start it again, or align and train anew"
        )
    lines = [line for line in refused(site.path) if "its table changed" in line["why"]]
    assert {(line["driver"], line["run"]) for line in lines} == {("bank", RUN)}
    assert site.printed("refused apfed.Codes of 'bank': refuses to go on from step 7")
    assert [path.read_bytes() for path in states(site.path)] == kept


def test_the_table_that_was_put_back_goes_on(saved: Any) -> None:
    engine = saved(change=other_value).engine(RUN, algorithm="apfed")
    assert engine.ask({"shop": ASK}, apfed.CodeGradient).failures
    site = saved()
    site.engine(RUN, algorithm="apfed").ask({"shop": ASK}, apfed.CodeGradient).or_raise()
    assert site.printed("goes on from step 7")


def test_another_network_of_the_same_code_width_is_noticed(saved: Any) -> None:
    site = saved(POLICY.replace("[8, 4]", "[16, 4]"))
    engine = site.engine(RUN, algorithm="apfed")
    with pytest.raises(PartyError, match=r"its \[apfed\] section changed; put back"):
        engine.ask({"shop": ASK}, apfed.CodeGradient).or_raise()


def test_another_rate_of_the_same_network_is_noticed(saved: Any) -> None:
    """Weights of the same shapes fit, so that nothing else would tell."""
    site = saved(POLICY + "learning_rate = 0.5\n", other_value)
    engine = site.engine(RUN, algorithm="apfed")
    with pytest.raises(PartyError, match=r"its table and its \[apfed\] section changed; put back"):
        engine.ask({"shop": ASK}, apfed.CodeGradient).or_raise()


def test_a_driver_that_begins_the_run_anew_begins_with_what_is_there(saved: Any) -> None:
    engine = saved(change=other_value).engine(RUN, algorithm="apfed")
    answer = engine.ask({"shop": Restore("apfed", 0, exactly=False)}, Restored).or_raise()
    assert answer["shop"].done == 0
    engine.ask({"shop": apfed.Begin((4,), 0, 0)}, apfed.Ready).or_raise()
    engine.ask({"shop": ASK}, apfed.CodeGradient).or_raise()


def test_a_state_that_does_not_say_of_what_it_is_goes_on(saved: Any, tmp_path: Path) -> None:
    (path,) = states(tmp_path / "shop.site")
    state, about = load_state(path)
    assert about.pop("of").keys() == {"table", "[party] section", "[apfed] section"}
    save_state(path, state, about)
    engine = saved(change=other_value).engine(RUN, algorithm="apfed")
    engine.ask({"shop": ASK}, apfed.CodeGradient).or_raise()


def test_a_member_of_classic_vertical_learning_refuses_when_it_is_told_to_go_on(
    saved: Any, shop_site: Any
) -> None:
    run = "a1/tvfl/seed-0"
    before = saved().engine(run, algorithm="vertical")
    before.ask({"shop": vertical.Open(0)}, vertical.Opened).or_raise()
    before.ask({"shop": Save("vertical", 1, 0)}, Saved).or_raise()
    site = saved(change=other_value)
    with pytest.raises(PartyError, match="from step 1: since it saved that, its table changed"):
        site.engine(run, algorithm="vertical").ask(
            {"shop": Restore("vertical", 1, exactly=True)}, Restored
        ).or_raise()
    assert any("its table changed" in line["why"] for line in refused(site.path))


def test_a_table_that_only_moved_is_the_same(saved: Any, tmp_path: Path) -> None:
    party = tmp_path / "shop.toml"
    then = table_digest(open_site(party).table)
    (tmp_path / "shop.csv").rename(tmp_path / "moved.csv")
    party.write_text(party.read_text().replace("shop.csv", "moved.csv"))
    assert table_digest(open_site(party).table) == then
