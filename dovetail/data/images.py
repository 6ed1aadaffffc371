"""Image sets in arrays, JPEG streams or folders, and the part of an image that a party sees.

A block is a rectangle of pixels, in some of an image's channels.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from dovetail.data.kinds import Column
from dovetail.data.other_kinds import refuse_workbook
from dovetail.data.saving import Saved
from dovetail.errors import DataError

_SUFFIXES = (".png", ".jpg", ".jpeg")

#: What a file that is no archive of arrays raises, or one that says it has a trillion numbers.
_UNREADABLE = (ValueError, OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error)

#: How a file's own pixels become one channel or three; 16-bit and float files are refused.
_MODES = {"1": "L", "L": "L", "LA": "L"} | dict.fromkeys(
    ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB"), "RGB"
)


@dataclass(frozen=True)
class ImageInput(Saved):
    """The part of an image that a party sees: here a strip.

    Attributes:
        channels, height, width: of the whole image.
        axis: the side that is cut.
        start, stop: where the strip starts and ends on that side; all of it for whole images.
    """

    channels: int
    height: int
    width: int
    axis: Literal["height", "width"]
    start: int
    stop: int

    kind: ClassVar[str] = "image"

    def __post_init__(self) -> None:
        whole = (self.channels, self.height, self.width)
        for part, size in zip(self.box, whole, strict=True):
            if not 0 <= part.start < part.stop <= size:
                raise ValueError(f"{part.start} to {part.stop} is no part of {size}")

    @property
    def box(self) -> tuple[slice, slice, slice]:
        """Which channels, rows and columns of pixels."""
        cut = slice(self.start, self.stop)
        if self.axis == "height":
            return slice(0, self.channels), cut, slice(0, self.width)
        return slice(0, self.channels), slice(0, self.height), cut

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the part."""
        channels, rows, columns = (each.stop - each.start for each in self.box)
        return channels, rows, columns

    def transform(self, images: Tensor) -> Tensor:
        """(N, C, H, W) parts, contiguous, cut from whole images or taken as they are.

        Raises:
            DataError: images that are neither whole images nor parts of this shape.
        """
        got = tuple(images.shape[1:])
        whole = (self.channels, self.height, self.width)
        if got == whole:
            return images[(slice(None), *self.box)].contiguous()
        if got == self.shape:
            return images.contiguous()
        raise DataError(
            f"wrong image shape: expected {whole} (channels, height, width) or the part's "
            f"{self.shape}, got {got}"
        )


@dataclass(frozen=True, eq=False)
class ImagePart:
    """Images of one size and their labels.

    Attributes:
        x: (N, C, H, W) uint8, or float32 if stored as floats; contiguous.
        labels: (N,) numbers, or class names.
    """

    x: Tensor
    labels: Column


@dataclass(frozen=True, eq=False)
class ImageSet:
    """An image set; ``test`` is None where it has no split of its own."""

    train: ImagePart
    test: ImagePart | None


def read_images(path: str | Path) -> ImageSet:
    """Images from an .npz file or a folder.

    An .npz file holds ``x_train``, ``y_train``, ``x_test``, ``y_test``, or ``x`` and ``y``, where
    x is (N, H, W) or (N, H, W, C); or ``jpeg_train``, ``offset_train``, ``y_train``, ..., or
    ``jpeg``, ``offset``, ``y``, where image i is the JPEG stream in bytes offset[i] to
    offset[i + 1]. ``classes`` may name the classes. A folder has a folder of .png and .jpg files
    per class, perhaps below ``train`` and ``test``. One part alone is the whole set.

    Raises:
        DataError: files that cannot be read, or images of different sizes.
    """
    path = Path(path)
    if path.is_dir():
        parts = _read_folder(path)
    elif not path.is_file():
        raise DataError(f"there is no file or folder {path}; check the path")
    else:
        with _archive(path) as stored:
            parts = _read_npz(path, stored)
    if "train" in parts:
        train, test = parts["train"], parts.get("test")
    else:  # one part alone, whatever it is called, is the whole set
        train, test = next(iter(parts.values())), None
    if test is not None and train.x.shape[1:] != test.x.shape[1:]:
        raise DataError(
            f"{path}: training images have shape {tuple(train.x.shape[1:])}, "
            f"test images {tuple(test.x.shape[1:])}; all must have one"
        )
    return ImageSet(train, test)


def read_image_samples(
    path: Path, *, id: str, label: str | None
) -> tuple[Tensor, Column, Column | None]:
    """Images of one party, their ids and perhaps labels.

    Args:
        path: an .npz file with images in ``x``, or ``jpeg`` and ``offset``; or a folder with a
            folder of images per class, or images alone.
        id: the .npz file's array of ids; for a folder "file": a file's name without its ending.
        label: the .npz file's array of labels; for a folder "folder": its folder's name.

    Raises:
        DataError: files that cannot be read, or an array that is not there.
    """
    if path.is_dir():
        return _read_folder_samples(path, id, label)
    with _archive(path) as stored:
        x = _images(path, "", stored)
        if x is None:
            raise DataError(f"{path} holds no images: expected x or jpeg, got {list(stored)}")
        columns = [_array_column(path, name, stored, len(x)) for name in (id, label) if name]
    return x, columns[0], columns[1] if label else None


@contextmanager
def _archive(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """The arrays of an .npz file; each is read when it is asked for, if memory has room."""
    refuse_workbook(path)
    try:
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise ValueError("it is one array, not an archive of arrays")
            yield _Roomy(stored)
    except _UNREADABLE as error:
        raise DataError(f"cannot read {path} as an .npz file of plain arrays: {error}") from None


class _Roomy(Mapping[str, np.ndarray]):
    """Arrays of an archive; what would not fit is refused, where a system would end the process."""

    def __init__(self, stored: np.lib.npyio.NpzFile) -> None:
        self._stored = stored

    def __getitem__(self, name: str) -> np.ndarray:
        assert self._stored.zip is not None
        packed, free = self._stored.zip.NameToInfo.get(f"{name}.npy"), free_bytes()
        if packed is not None and free is not None and packed.file_size > free:
            raise ValueError(
                f"its array {name!r} takes {packed.file_size / 1e9:,.3g} GB unpacked, and "
                f"{free / 1e9:,.3g} GB of memory are free; split the file"
            )
        array: np.ndarray = self._stored[name]
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored.files)

    def __len__(self) -> int:
        return len(self._stored.files)


def free_bytes() -> int | None:
    """Memory that a process may still take, by Linux; None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable:")), None)


def _array_column(path: Path, name: str, stored: Mapping[str, np.ndarray], count: int) -> Column:
    if name not in stored:
        raise DataError(f"{path} has no array {name!r}; it has {sorted(stored)[:20]}")
    values = np.asarray(stored[name])
    if values.shape != (count,):
        raise DataError(
            f"{path}: {name} must have one value for each of the {count} images, "
            f"got shape {values.shape}"
        )
    if values.dtype.kind in "US":
        values = np.char.strip(values.astype(str)).astype(object)
        return Column(values, values == "")
    if values.dtype.kind in "biu":
        return _present(values.astype(np.int64))
    return Column(values, np.isnan(values)) if values.dtype.kind == "f" else _present(values)


def _present(values: np.ndarray) -> Column:
    """A column that lacks no value."""
    return Column(values, np.zeros(len(values), dtype=bool))


def _read_folder_samples(
    path: Path, id: str, label: str | None
) -> tuple[Tensor, Column, Column | None]:
    if id != "file" or label not in (None, "folder"):
        raise DataError(
            f'{path} is a folder of images: write id = "file" and, where folders are classes, '
            f'label = "folder"; got id {id!r} and label {label!r}'
        )
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in _SUFFIXES)
    if not files:
        raise DataError(f"{path} holds no .png or .jpg images")
    x = _decoded(((str(file), file) for file in files), len(files))
    ids = _present(np.array([file.stem for file in files], dtype=object))
    folders = _present(np.array([file.parent.name for file in files], dtype=object))
    return x, ids, folders if label else None


def _read_npz(path: Path, stored: Mapping[str, np.ndarray]) -> dict[str, ImagePart]:
    parts = {}
    for part, ending in (("train", "_train"), ("test", "_test"), ("all", "")):
        x = _images(path, ending, stored)
        if x is not None:
            parts[part] = ImagePart(x, _labels(path, ending, stored, len(x)))
    if not parts:
        raise DataError(
            f"{path} holds no images: expected x_train, x, jpeg_train or jpeg, "
            f"got {sorted(stored)[:20]}"
        )
    return parts


def _images(path: Path, ending: str, stored: Mapping[str, np.ndarray]) -> Tensor | None:
    """(N, C, H, W) of a part of an .npz file; None: it has no such part."""
    if f"x{ending}" in stored:
        return _from_array(path, f"x{ending}", stored[f"x{ending}"])
    return _from_streams(path, ending, stored) if f"jpeg{ending}" in stored else None


def _from_array(path: Path, key: str, values: np.ndarray) -> Tensor:
    """(N, C, H, W) images from (N, H, W) or (N, H, W, C)."""
    if values.ndim == 3:
        values = values[..., None]
    if values.ndim != 4 or values.shape[-1] not in (1, 3, 4) or not values.size:
        raise DataError(
            f"{path}: {key} must be (N, height, width) or (N, height, width, channels) with 1, 3 "
            f"or 4 channels, got {values.shape}"
        )
    if values.dtype.kind in "biu" and values.dtype != np.uint8:
        if values.min() < 0 or values.max() > 255:
            raise DataError(
                f"{path}: {key} holds integers outside 0..255 "
                f"({values.min()} to {values.max()}); store floats instead"
            )
        values = values.astype(np.uint8)
    if values.dtype.kind == "f":
        values = values.astype(np.float32)
        if not np.isfinite(values).all():
            raise DataError(f"{path}: {key} holds NaN or infinite pixels; remove those images")
    if values.dtype not in (np.uint8, np.float32):
        raise DataError(f"{path}: {key} must hold integers or floats, got {values.dtype}")
    return torch.from_numpy(np.ascontiguousarray(values.transpose(0, 3, 1, 2)))


def _from_streams(path: Path, ending: str, stored: Mapping[str, np.ndarray]) -> Tensor:
    """(N, C, H, W) uint8 images from one array of JPEG streams."""
    if f"offset{ending}" not in stored:
        raise DataError(f"{path} has jpeg{ending} but not offset{ending}, where each image begins")
    streams, offsets = stored[f"jpeg{ending}"], stored[f"offset{ending}"]
    if streams.ndim != 1 or streams.dtype != np.uint8:
        raise DataError(
            f"{path}: jpeg{ending} must be one row of uint8, got {streams.dtype} {streams.shape}"
        )
    if (
        offsets.ndim != 1
        or offsets.dtype.kind not in "iu"
        or len(offsets) < 2
        or int(offsets[0]) < 0
        or int(offsets[-1]) > len(streams)
        or (offsets[1:] <= offsets[:-1]).any()
    ):
        raise DataError(
            f"{path}: offset{ending} must be rising integers from 0 to the {len(streams)} bytes of "
            f"jpeg{ending}, one more than there are images"
        )
    bounds = offsets.tolist()
    buffer = streams.tobytes()
    return _decoded(
        (
            (f"image {i} of jpeg{ending} in {path}", io.BytesIO(buffer[start:stop]))
            for i, (start, stop) in enumerate(pairwise(bounds))
        ),
        len(bounds) - 1,
    )


def _labels(path: Path, ending: str, stored: Mapping[str, np.ndarray], count: int) -> Column:
    """(N,) labels; names where the file names its classes."""
    labels = _array_column(path, f"y{ending}", stored, count)
    if labels.is_text or "classes" not in stored:
        return labels
    classes, places = np.asarray(stored["classes"]).astype(str), labels.values
    if places.dtype.kind != "i" or places.min() < 0 or places.max() >= len(classes):
        raise DataError(
            f"{path}: y{ending} must lie in 0..{len(classes) - 1}, places in its {len(classes)} "
            f"classes; got {places.dtype} from {places.min()} to {places.max()}"
        )
    return _present(classes[places].astype(object))


def _read_folder(path: Path) -> dict[str, ImagePart]:
    below = [name for name in ("train", "test") if (path / name).is_dir()]
    if not below:
        return {"all": _read_classes(path)}
    return {name: _read_classes(path / name) for name in below}


def _read_classes(path: Path) -> ImagePart:
    """Images of a folder with a folder per class; files in the order of their names."""
    files = [
        (folder.name, file)
        for folder in sorted(path.iterdir())
        if folder.is_dir()
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in _SUFFIXES
    ]
    if not files:
        raise DataError(
            f"{path} holds no images: expected a folder per class with .png or .jpg files in it"
        )
    x = _decoded(((str(file), file) for _, file in files), len(files))
    return ImagePart(x, _present(np.array([name for name, _ in files], dtype=object)))


def _decoded(files: Iterable[tuple[str, Path | io.BytesIO]], count: int) -> Tensor:
    """(N, C, H, W) uint8, decoded one by one into one array.

    Args:
        files: what each is called in errors, and where its bytes are.
        count: how many there are; at least one.

    Raises:
        DataError: a file that cannot be decoded, or that differs in size from the first.
    """
    images: np.ndarray | None = None
    for index, (name, file) in enumerate(files):
        pixels = _decode(name, file)
        if images is None:
            images, first = np.empty((count, *pixels.shape), dtype=np.uint8), name
        if pixels.shape != images.shape[1:]:
            raise DataError(
                f"{name} has shape {pixels.shape} (channels, height, width), but {first} has "
                f"{images.shape[1:]}; all images of a set must have one shape"
            )
        images[index] = pixels
    assert images is not None
    return torch.from_numpy(images)


def _decode(name: str, file: Path | io.BytesIO) -> np.ndarray:
    """(C, H, W) uint8."""
    from PIL import Image  # two MB, for pictures alone

    try:
        with Image.open(file) as image:
            if image.mode not in _MODES:
                raise ValueError(f"pixels of kind {image.mode} are not 8-bit")
            pixels = np.asarray(image.convert(_MODES[image.mode]))
    # Pillow raises SyntaxError for a broken PNG.
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"cannot decode {name}: {error}; replace or remove it") from None
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


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
