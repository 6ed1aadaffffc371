"""The part of an image that is one block: a rectangle of pixels, in some of its channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from dovetail.data.images import ImageInput
from dovetail.errors import DataError, ModelError

#: HyFEM's four, in the paper's order (section 4).
QUADRANTS = ("top-left", "top-right", "bottom-left", "bottom-right")
_COLOURS = ("red", "green", "blue")


@dataclass(frozen=True)
class ImageRegion(ImageInput):
    """A strip of the height (``axis``, ``start``, ``stop``) cut along the width and by channel.

    Attributes:
        left, right: where it begins and ends on the width.
        first_channel, end_channel: which channels it has.
    """

    left: int
    right: int
    first_channel: int
    end_channel: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the region."""
        return (
            self.end_channel - self.first_channel,
            self.stop - self.start,
            self.right - self.left,
        )

    def transform(self, images: Tensor) -> Tensor:
        """(N, C, H, W) regions, contiguous, cut from whole images or taken as they are.

        Raises:
            DataError: images that are neither whole images nor regions of this shape.
        """
        got = tuple(images.shape[1:])
        whole = (self.channels, self.height, self.width)
        if got == whole:
            return images[
                :,
                self.first_channel : self.end_channel,
                self.start : self.stop,
                self.left : self.right,
            ].contiguous()
        if got == self.shape:
            return images.contiguous()
        raise DataError(
            f"wrong image shape: expected {whole} (channels, height, width) or the region's "
            f"{self.shape}, got {got}"
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "kind": "region"}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> ImageRegion:
        """The region that ``to_json`` stored.

        Raises:
            ModelError: fields that are missing or cannot be.
        """
        strip = ImageInput.from_json(stored)
        names = ("left", "right", "first_channel", "end_channel")
        try:
            left, right, first, end = (int(stored[name]) for name in names)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"the model's image region cannot be read ({error!r}); save the model again"
            ) from None
        if strip.axis != "height" or not (
            0 <= left < right <= strip.width and 0 <= first < end <= strip.channels
        ):
            raise ModelError(
                f"the model's image region is no part of an image: {dict(stored)}; "
                "save the model again"
            )
        return cls(
            strip.channels,
            strip.height,
            strip.width,
            "height",
            strip.start,
            strip.stop,
            left=left,
            right=right,
            first_channel=first,
            end_channel=end,
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
