"""MNIST in two strips as every peer gets it, in one file that needs NumPy alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dovetail import data

#: The upper halves and the labels are the owner's, the lower halves the partner's.
OWNER, PARTNER = "view-1", "view-2"


def prepare(folder: Path, rows: int | None = None, labels: int | None = None) -> Path:
    """Write ``strips.npz``: flat pixels in 0..1.

    Args:
        rows: so many train, the first; None: all.
        labels: the first so many of them have labels; None: all.

    Raises:
        DataError: MNIST is not there; DOVETAIL_DATA names the folder that has it.
    """
    train, test = data.load("mnist")
    parts = data.strips(train, test, views=2, active=1)
    assert parts.test is not None
    arrays: dict[str, np.ndarray] = {}
    for name, each in (("train", parts.train), ("test", parts.test)):
        for party, letter in ((OWNER, "x"), (PARTNER, "z")):
            pixels = each[party].joined().flatten(1).float() / 255
            arrays[f"{letter}_{name}"] = pixels.numpy()[: rows if name == "train" else None]
        labels_N = each[OWNER].labels
        assert labels_N is not None
        arrays[f"y_{name}"] = labels_N.numpy()[: labels if name == "train" else None]
    np.savez(folder / "strips.npz", **arrays)
    return folder / "strips.npz"
