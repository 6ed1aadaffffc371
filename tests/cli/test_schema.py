"""``dovetail schema``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dovetail.runs.keys import schema_of


def test_the_command_prints_or_writes_it(dovetail: Any, tmp_path: Path) -> None:
    assert json.loads(dovetail("schema", "run").out) == json.loads(json.dumps(schema_of("run")))
    dovetail("schema", "party", "--out", tmp_path / "party.json")
    assert json.loads((tmp_path / "party.json").read_text())["title"] == "Dovetail party file"
