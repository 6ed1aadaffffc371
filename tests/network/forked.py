"""Processes of tests are forked from a server that has read the libraries once, and has no threads.

There is one such server for all tests of a process, so what it reads is said in one place.
"""

from __future__ import annotations

import multiprocessing

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "dovetail.methods.apfed",
        "dovetail.alignment.psi",
        "dovetail.cli.output",
        "dovetail.experiment.train",
        "dovetail.face.reading",
        "dovetail.site.join",
        "dovetail.site.partyfile",
        "dovetail.network.dialling",
        "dovetail.network.stream",
        "sklearn.metrics",
        "torch._dynamo",  # the first step of an optimizer reads it
    ]
)
