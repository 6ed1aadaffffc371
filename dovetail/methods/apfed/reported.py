"""Reported figures of APFed: by ``dovetail audit FILE --fast`` with seed 0 (APFed-S without
``--fast``; docs/privacy.md) and by ``dovetail bench worth``, beside the best local model."""

from __future__ import annotations

from dovetail.methods.facets.declared import Reported

_LABELS = ("apfed.label_epsilon", "apfed.label_stages")

REPORTED = {
    "apfed": Reported(
        shows=(
            "labels and columns, to partners: none on digits and credit",
            "partners' columns, to the label owner: high on digits, low on credit",
        ),
        gain="solo model 2.6 points, joint model 11.4 (25 settings)",
        bounds=("policy.sealed",),
        letters=(2, 0),
    ),
    "apfed-d": Reported(
        shows=(
            "labels, to partners: none on digits and credit",
            "partners' columns, to the label owner: low on both",
            'with apfed.distil.exchange = "gradients" labels and columns, both ways: high on both',
        ),
        gain='solo model 0.0 points (25 settings); with exchange = "gradients" 2.2, joint model '
        "13.8 (25 settings)",
        bounds=(*_LABELS, "apfed.distil.exchange", "passive.distil.release"),
        letters=(3, 0),
    ),
    "apfed-mixed": Reported(
        shows=(
            "labels, to partners: high on digits (all labelled), none on credit",
            "columns, both ways: high on digits and on credit",
        ),
        gain="-3.7 points by reconstruction, -0.6 by contrast, of tables (5 settings)",
        bounds=(
            "apfed.projection", "apfed.codes", *_LABELS, "apfed.decorrelate", "apfed.spread",
            "apfed.private", "passive.gradients",
        ),
        also=("apfed-r", "apfed-c"),
    ),
    "tvfl": Reported(
        shows=(
            "labels that are trained on, to partners: high (all of them on credit)",
            "partners' columns, to the label owner: high",
        ),
        bounds=("apfed.gradients", *_LABELS, "apfed.spread", "passive.codes"),
    ),
}  # fmt: skip
