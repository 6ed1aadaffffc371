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
        "partners' columns, to the label owner: high on digits, low on credit",
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

#: Method -> what it gained, in points of AUC or accuracy, the median over settings: of APFed's
#: variants beside the best local model (``dovetail bench worth``), of the others in their own
#: benches. Tests recompute them from ``benchmarks/results/bench``.
GAINS: Mapping[str, str] = {
    "apfed-s": "solo model 2.6 points, joint model 11.4 (25 settings)",
    "apfed-d": 'solo model 0.0 points (25 settings); with exchange = "gradients" 2.2, joint model '
    "13.8 (25 settings)",
    "apfed": "-3.7 points by reconstruction, -0.6 by contrast, of tables (5 settings)",
    "chfl": "-1.1 points beside the better of a network and boosted trees alone (4 settings)",
    "hyfem": "17.1 points beside networks alone, of pictures, texts and views (3 settings)",
    "fedoptimus": "-1.7 points beside label owners alone (1 setting)",
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
