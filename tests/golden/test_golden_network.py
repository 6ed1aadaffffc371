"""Parties in processes of their own, over gRPC with mTLS, compute what is recorded.

Over NVFlare, tests/cli/test_flare_network.py holds every method to the weights of both engines.
"""

from __future__ import annotations

from pathlib import Path

import golden
import golden_stream
import pytest
from golden_cases import FEDERATIONS

pytestmark = pytest.mark.network


@pytest.mark.trained
@pytest.mark.parametrize("method", FEDERATIONS)
def test_a_federation_of_processes_computes_what_is_recorded(method: str, tmp_path: Path) -> None:
    golden.check(golden.recorded(f"stream-{method}"), golden_stream.run(method, tmp_path))
