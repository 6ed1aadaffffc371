"""What audits of default settings found, on built-in data: what ``dovetail inspect`` tells.

Each line is of ``dovetail audit FILE --fast`` with seed 0; docs/privacy.md has files and figures.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Method, as a run file names it -> what receivers learn, and the verdict.
MEASURED: Mapping[str, tuple[str, ...]] = {
    "apfed": (
        "labels, to partners: high on digits (all labelled), none on credit",
        "columns, both ways: high on digits and on credit",
    ),
    "tvfl": (
        "labels that are trained on, to partners: high (all of them on credit)",
        "partners' columns, to the label owner: high",
    ),
}
