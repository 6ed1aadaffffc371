"""For tests that compare engines bit for bit: homes that draw what parties of one process draw.

A home mixes a secret into its random numbers, which a simulated party has not. Where a test holds
what processes compute against one process, or against another process with another home, they are
given the same: none.
"""

from __future__ import annotations

import importlib

#: Whoever asks for a home's secret.
_ASKING = ("apfed", "apfed.distil", "vertical", "chfl", "hyfem", "fedoptimus")


def as_in_one_process() -> None:
    """From here on this process mixes no secret in; for processes of tests alone."""
    for name in _ASKING:
        module = importlib.import_module(f"dovetail.methods.{name}")
        assert callable(module.key_of)
        module.key_of = lambda secret: None
