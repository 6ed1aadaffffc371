"""A driver whose clock was set back does not train alone, and nobody is silent about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from attackers import Town, town

pytestmark = pytest.mark.network


def test_a_driver_whose_clock_went_back_an_hour_trains_with_its_partner(tmp_path: Path) -> None:
    """Messages that were numbered by the clock would be replays to the shop, one and all."""
    with town(tmp_path).ending() as federation:
        assert isinstance(federation, Town)
        federation.write(epochs=2)
        shop = federation.join("shop")
        first = federation.start("train", "run.toml", "--out", "first")
        assert first.ended() == 0, first.printed()
        second = federation.start_late(1, "train", "run.toml", "--out", "second")
        assert second.ended() == 0, second.printed()
        assert federation.result("second")["missed"] == {}
        sent = [federation.result(name)["bytes"]["shop"]["sent"] for name in ("first", "second")]
        assert sent[0] == sent[1] > 0
        assert not (tmp_path / "shop.site" / "refusals.jsonl").exists()
        assert "left out" not in second.printed()
        assert shop.running()
