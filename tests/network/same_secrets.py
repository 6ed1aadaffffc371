"""For tests that compare engines bit for bit: homes that draw what parties of one process draw.

A site mixes a secret into its random numbers, which a simulated party has not. Where a test holds
what processes compute against one process, or against another process with another site, they are
given the same: none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from dovetail.methods.apfed import inference, sealed
from dovetail.methods.apfed.sealed import row_names
from dovetail.methods.base import Site
from dovetail.models import generator

#: Whoever asks for a site's secret.
_ASKING = (
    "federated.local",
    "methods.apfed.distilling",
    "methods.fedoptimus.coordinator",
)

#: ``dovetail``, as a program of its own whose site mixes no secret in.
COMMAND = """
from same_secrets import as_in_one_process
as_in_one_process()
from dovetail.cli.main import main
main()
"""


def as_in_one_process(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """From here on this process mixes no secret in; ``monkeypatch.setattr`` ends it with a test."""
    for name in _ASKING:
        module = importlib.import_module(f"dovetail.{name}")
        assert callable(module.key_of)
        put(module, "key_of", lambda secret: None)
    put(Site, "key", None)
    put(sealed, "lasting", lambda local, *purpose: generator(local.seed, local.name, *purpose))
    for module in (sealed, inference):  # parties of one process know no ids
        put(module, "row_names", lambda ids, x: row_names([0] * len(x), x))
