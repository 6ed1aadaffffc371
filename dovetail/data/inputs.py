"""How a party's raw data becomes the block that its model sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.data.images import ImageInput
from dovetail.data.preprocessing import TableEncoder
from dovetail.data.regions import ImageRegion
from dovetail.data.saving import of_kind

Input = TableEncoder | ImageInput | ImageRegion


def input_from_json(stored: Mapping[str, Any]) -> Input:
    """The input a model was saved with.

    Raises:
        ModelError: an unknown kind of input, or fields that cannot be.
    """
    read: Input = of_kind(Input, stored)
    return read
