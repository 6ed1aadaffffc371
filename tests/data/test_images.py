import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dovetail.data import ImageInput, images, input_from_json, read_images
from dovetail.errors import DataError, ModelError


def picture(value, size=(3, 2), mode="L", **options):
    """The bytes of a one-colour picture; ``size`` is (width, height)."""
    file = io.BytesIO()
    Image.new(mode, size, value).save(file, **({"format": "PNG"} | options))
    return file.getvalue()


def streams(pictures):
    offset = np.cumsum([0, *map(len, pictures)])
    return np.frombuffer(b"".join(pictures), dtype=np.uint8), offset


def save(path, **arrays):
    np.savez(path / "set.npz", **arrays)
    return path / "set.npz"


def folder(path, classes):
    for name, pictures in classes.items():
        (path / name).mkdir(parents=True)
        for index, content in enumerate(pictures):
            (path / name / f"{index}.png").write_bytes(content)
    return path


def test_a_strip_is_cut_from_whole_images_and_taken_as_it_is():
    strip = ImageInput(1, 4, 3, "height", 2, 4)
    whole = torch.arange(24).reshape(2, 1, 4, 3)
    cut = strip.transform(whole)
    assert strip.shape == cut.shape[1:] == (1, 2, 3)
    assert cut.tolist() == whole[:, :, 2:].tolist()
    assert cut.is_contiguous()
    assert torch.equal(strip.transform(cut), cut)


def test_a_strip_can_be_cut_along_the_width():
    strip = ImageInput(1, 2, 4, "width", 1, 3)
    whole = torch.arange(8).reshape(1, 1, 2, 4)
    assert strip.shape == (1, 2, 2)
    assert strip.transform(whole).tolist() == [[[[1, 2], [5, 6]]]]
    assert strip.transform(whole).is_contiguous()


def test_images_of_another_shape_are_refused():
    words = r"wrong image shape: expected \(1, 4, 3\) .* part's \(1, 2, 3\), got \(3, 4, 3\)"
    with pytest.raises(DataError, match=words):
        ImageInput(1, 4, 3, "height", 2, 4).transform(torch.zeros(5, 3, 4, 3))


def test_an_image_input_survives_json():
    strip = ImageInput(3, 4, 5, "width", 1, 3)
    stored = json.loads(json.dumps(strip.to_json()))
    assert stored["kind"] == "image"
    assert input_from_json(stored) == strip


@pytest.mark.parametrize("change", [{"stop": 6}, {"start": 3}, {"axis": "depth"}, {"height": "x"}])
def test_a_malformed_image_input_is_refused(change):
    with pytest.raises(ModelError, match="the model's image"):
        ImageInput.from_json(ImageInput(3, 4, 5, "width", 1, 3).to_json() | change)


def test_grey_arrays_get_one_channel(tmp_path):
    x = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    path = save(tmp_path, x_train=x, y_train=[7, 8], x_test=x[:1], y_test=[8])
    images = read_images(path)
    assert images.train.x.dtype == torch.uint8
    assert images.train.x.tolist() == x[:, None].tolist()
    assert images.train.labels.values.tolist() == [7, 8]
    assert images.test.x.shape == (1, 1, 4, 3)


def test_coloured_arrays_become_channels_first(tmp_path):
    x = np.arange(36, dtype=np.float64).reshape(2, 3, 2, 3)
    images = read_images(save(tmp_path, x=x, y=[1, 0], classes=["cat", "dog"]))
    assert images.test is None
    assert images.train.x.dtype == torch.float32
    assert images.train.x.is_contiguous()
    assert images.train.x.tolist() == x.transpose(0, 3, 1, 2).tolist()
    assert images.train.labels.values.tolist() == ["dog", "cat"]


def test_integers_of_other_widths_become_uint8(tmp_path):
    x = np.array([[[0, 255]]], dtype=np.int64)
    assert read_images(save(tmp_path, x=x, y=[0])).train.x.dtype == torch.uint8
    with pytest.raises(DataError, match=r"integers outside 0\.\.255"):
        read_images(save(tmp_path, x=x + 1, y=[0]))


def test_jpeg_streams_are_decoded(tmp_path):
    pictures = [picture(value, format="JPEG", quality=95) for value in (10, 200)]
    jpeg, offset = streams(pictures)
    path = save(tmp_path, jpeg_test=jpeg, offset_test=offset, y_test=[1, 0], classes=["a", "b"])
    images = read_images(path)
    assert images.test is None  # a test part alone is the whole set
    assert images.train.x.shape == (2, 1, 2, 3)
    np.testing.assert_allclose(images.train.x[:, 0, 0, 0], [10, 200], atol=2)
    assert images.train.labels.values.tolist() == ["b", "a"]


def test_a_folder_per_class_is_read(tmp_path):
    folder(tmp_path, {"dog": [picture(1)], "cat": [picture(2), picture(3)]})
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    images = read_images(tmp_path)
    assert images.test is None
    assert images.train.x[:, 0, 0, 0].tolist() == [2, 3, 1]
    assert images.train.labels.values.tolist() == ["cat", "cat", "dog"]


def test_a_folder_may_be_split(tmp_path):
    folder(tmp_path / "train", {"a": [picture((1, 2, 3), mode="RGB")], "b": [picture(9, mode="P")]})
    folder(tmp_path / "test", {"b": [picture((4, 5, 6, 7), mode="RGBA")]})
    images = read_images(tmp_path)
    assert images.train.x[0, :, 0, 0].tolist() == [1, 2, 3]
    assert images.test.x[0, :, 0, 0].tolist() == [4, 5, 6]
    assert images.test.labels.values.tolist() == ["b"]


def test_images_of_two_sizes_are_refused(tmp_path):
    folder(tmp_path, {"a": [picture(1), picture(1, size=(5, 5))]})
    words = r"1\.png has shape \(1, 5, 5\) .*0\.png has \(1, 2, 3\)"
    with pytest.raises(DataError, match=words):
        read_images(tmp_path)


def test_a_file_that_is_no_image_is_refused(tmp_path):
    folder(tmp_path, {"a": [picture(1), b"not an image"]})
    with pytest.raises(DataError, match=r"cannot decode .*1\.png"):
        read_images(tmp_path)


def test_a_cut_off_image_is_refused(tmp_path):
    folder(tmp_path, {"a": [picture(1, size=(200, 200), mode="RGB")[:60]]})
    with pytest.raises(DataError, match=r"cannot decode .*0\.png"):
        read_images(tmp_path)


def test_sixteen_bit_images_are_refused(tmp_path):
    folder(tmp_path, {"a": [picture(1, mode="I;16")]})
    with pytest.raises(DataError, match="not 8-bit"):
        read_images(tmp_path)


x, y = np.zeros((2, 4, 3), dtype=np.uint8), np.array([0, 1])
jpeg, offset = streams([picture(1), picture(2)])


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"z": x}, "holds no images: expected x_train"),
        ({"x": x}, r"has no array 'y'; it has \['x'\]"),
        ({"x": x, "y": y[:1]}, r"one value for each of the 2 images, got shape \(1,\)"),
        ({"x": x[0], "y": y}, r"must be \(N, height, width\)"),
        ({"x": x[:, None], "y": np.array([0, 1]), "classes": ["a"]}, "y must lie in 0..0"),
        ({"x": np.full((2, 1, 1), np.nan), "y": y}, "NaN or infinite pixels"),
        ({"x_train": x, "y_train": y, "x_test": x[:, 1:], "y_test": y}, "test images"),
        ({"x": np.array([{}]), "y": y}, "as an .npz file of plain arrays"),
        ({"jpeg": jpeg, "y": y}, "has jpeg but not offset"),
        ({"jpeg": jpeg, "offset": offset + 1, "y": y}, "offset must be rising integers"),
        ({"jpeg": jpeg, "offset": offset[::-1], "y": y}, "offset must be rising integers"),
        ({"jpeg": jpeg, "offset": [0, 5, 9], "y": y}, "cannot decode image 0 of jpeg in"),
    ],
)
def test_an_npz_file_that_cannot_be_used_is_refused(tmp_path, arrays, words):
    with pytest.raises(DataError, match=words):
        read_images(save(tmp_path, **arrays))


def test_a_path_without_images_is_refused(tmp_path):
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 cut off")
    np.save(tmp_path / "one.npy", x)
    (tmp_path / "empty").mkdir()
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as file, file.open("x.npy", "w") as array:
        header = {"descr": "<f4", "fortran_order": False, "shape": (10**9, 3, 64, 64)}
        np.lib.format.write_array_header_1_0(array, header)
    for name, words in {
        "huge.npz": "cannot read .*huge.npz as an .npz file of plain arrays",
        "nowhere.npz": "there is no file or folder",
        "broken.npz": "cannot read .*broken",
        "one.npy": "it is one array",
        "empty": "a folder per class",
    }.items():
        with pytest.raises(DataError, match=words):
            read_images(tmp_path / name)


@pytest.mark.skipif("DOVETAIL_DATA" not in os.environ, reason="DOVETAIL_DATA is not set")
def test_a_test_part_alone_is_the_whole_of_cifar_100():
    path = Path(os.environ["DOVETAIL_DATA"]) / "cifar100_test10k_jpeg.npz"
    if not path.exists():
        pytest.skip(f"DOVETAIL_DATA has no {path.name}")
    images = read_images(path)
    assert images.test is None
    assert images.train.x.shape == (9999, 3, 32, 32)
    assert len(set(images.train.labels.values.tolist())) == 100


def test_an_archive_that_unpacks_to_more_than_memory_has_is_refused_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "zeros.npz"
    np.savez_compressed(path, x=np.zeros((1000, 100, 100), dtype=np.uint8), id=np.arange(1000))
    assert path.stat().st_size < 50_000
    free = images.free_bytes()
    assert free is None or free > 10**8  # what memory has, by Linux
    assert len(images.read_image_samples(path, id="id", label=None)[0]) == 1000
    monkeypatch.setattr(images, "free_bytes", lambda: 9_000_000)
    words = "its array 'x' takes 0.01 GB unpacked, and 0.009 GB of memory are free; split the file"
    with pytest.raises(DataError, match=words):
        images.read_image_samples(path, id="id", label=None)
    with pytest.raises(DataError, match=words):
        images.read_images(path)
