"""How a party's raw data becomes the block that its model sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.data.images import ImageInput
from dovetail.data.preprocessing import TableEncoder
from dovetail.data.regions import ImageRegion
from dovetail.errors import ModelError

Input = TableEncoder | ImageInput


def input_from_json(stored: Mapping[str, Any]) -> Input:
    """The input a model was saved with.

    Raises:
        ModelError: an unknown kind of input, or fields that cannot be.
    """
    kind = stored.get("kind")
    if kind == "table":
        return TableEncoder.from_json(stored)
    if kind == "image":
        return ImageInput.from_json(stored)
    if kind == "region":
        return ImageRegion.from_json(stored)
    raise ModelError(f"a model's input is a 'table' or an 'image', got {kind!r}")
