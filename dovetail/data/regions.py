"""The part of an image that is one block: a rectangle of pixels, in some of its channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dovetail.data.images import ImageInput
from dovetail.errors import DataError

#: HyFEM's four, in the paper's order (section 4).
QUADRANTS = ("top-left", "top-right", "bottom-left", "bottom-right")
_COLOURS = ("red", "green", "blue")


@dataclass(frozen=True)
class ImageRegion(ImageInput):
    """A strip of the height (``axis``, ``start``, ``stop``) cut along the width and by channel.

    Attributes:
        left, right: where it starts and ends on the width.
        first_channel, end_channel: which channels it has.
    """

    left: int
    right: int
    first_channel: int
    end_channel: int

    kind: ClassVar[str] = "region"

    @property
    def box(self) -> tuple[slice, slice, slice]:
        """Which channels, rows and columns of pixels."""
        return (
            slice(self.first_channel, self.end_channel),
            slice(self.start, self.stop),
            slice(self.left, self.right),
        )


def quadrants(shape: tuple[int, int, int], *, by_channel: bool = False) -> dict[str, ImageRegion]:
    """Block name -> region: four, or four times the channels ("top-left-red", ...).

    A row or column of pixels that remains of an odd side, at the end, is dropped.

    Args:
        shape: (C, H, W) of the whole images.
        by_channel: cut the channels apart as well, in the order of the channels within a quadrant.

    Raises:
        DataError: images of one row or column.
    """
    channels, height, width = shape
    if min(height, width) < 2:
        raise DataError(f"images of {height} x {width} pixels have no quadrants; they need 2 x 2")
    half, side = height // 2, width // 2
    regions = {}
    for index, quadrant in enumerate(QUADRANTS):
        top, left = half * (index // 2), side * (index % 2)
        spans = {quadrant: (0, channels)}
        if by_channel:
            colours = _COLOURS if channels == 3 else [f"channel-{c + 1}" for c in range(channels)]
            spans = {f"{quadrant}-{colour}": (c, c + 1) for c, colour in enumerate(colours)}
        for name, (first, end) in spans.items():
            regions[name] = ImageRegion(
                channels,
                height,
                width,
                "height",
                top,
                top + half,
                left=left,
                right=left + side,
                first_channel=first,
                end_channel=end,
            )
    return regions
