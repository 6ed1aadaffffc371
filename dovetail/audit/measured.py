"""What audits of default settings found, on built-in data, and what can be set against it: what
``dovetail inspect`` tells.

Each line is of ``dovetail audit FILE --fast`` with seed 0 (APFed-S without ``--fast``);
docs/privacy.md has files and figures.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Method, as a run file names it -> what receivers learn, and the verdict.
MEASURED: Mapping[str, tuple[str, ...]] = {
    "apfed": (
        "labels, to partners: high on digits (all labelled), none on credit",
        "columns, both ways: high on digits and on credit",
    ),
    "apfed-d": (
        "labels, to partners: none on digits and credit",
        "partners' columns, to the label owner: low on both",
        'with apfed.distil.exchange = "gradients" labels and columns, both ways: high on both',
    ),
    "apfed-s": (
        "labels and columns, to partners: none on digits and credit",
        "partners' columns, to the label owner: high on digits and on credit",
    ),
    "tvfl": (
        "labels that are trained on, to partners: high (all of them on credit)",
        "partners' columns, to the label owner: high",
    ),
    "chfl": (
        "rows, to the coordinator from a member's weights: none on Adult",
        "who was trained on, to the coordinator: low at one member of five on Adult, else none",
    ),
    "hyfem": (
        "rows, to the server from a party's weights: none on Adult",
        "who was trained on, to the server: low at one party of three on Adult, else none",
    ),
    "fedoptimus": (
        "labels, to coordinator and data owners: high (all of them on Adult)",
        "data owners' columns, to the coordinator: high, from embeddings and from the selection",
    ),
}

_LABELS = ("apfed.label_epsilon", "apfed.label_stages")

#: The same -> settings of a run that bound what its messages tell.
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "apfed": (
        "apfed.projection", "apfed.codes", *_LABELS, "apfed.decorrelate", "apfed.spread",
        "apfed.private", "passive.gradients",
    ),
    "apfed-d": (*_LABELS, "apfed.distil.exchange", "passive.distil.release"),
    "apfed-s": ("apfed.sealed.kernels", "apfed.sealed.ridges"),
    "tvfl": ("apfed.gradients", *_LABELS, "apfed.spread", "passive.codes"),
    "fedoptimus": (
        "fedoptimus.embeddings", "fedoptimus.gradients", "fedoptimus.selection.secure",
    ),
    "chfl": ("chfl.secure", "chfl.private"),
    "hyfem": ("hyfem.private",),
}  # fmt: skip
