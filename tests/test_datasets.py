"""Images from files of several kinds, whole and damaged."""

import gzip
import struct
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from lae_backpack.datasets import (
    DataFileError,
    load_images,
    load_labels,
    read_folder,
    read_idx,
)

PIXELS = bytes(range(12))
IMAGES = struct.pack(">HBBIII", 0, 8, 3, 2, 2, 3) + PIXELS
LABELS = struct.pack(">HBBI", 0, 8, 1, 2) + bytes([7, 3])


def write(folder: Path, packed: bool) -> None:
    folder.mkdir(parents=True)
    pack, end = (gzip.compress, ".gz") if packed else (bytes, "")
    (folder / f"t10k-images-idx3-ubyte{end}").write_bytes(pack(IMAGES))
    (folder / f"t10k-labels-idx1-ubyte{end}").write_bytes(pack(LABELS))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("place", ["mnist", "MNIST/raw"])
def test_images_and_labels(tmp_path, packed, place):
    write(tmp_path / place, packed)
    images = load_images("mnist", "test", tmp_path)
    true = torch.arange(12.0, dtype=torch.float32).reshape(2, 1, 2, 3) / 255
    torch.testing.assert_close(images, true)
    assert load_labels("mnist", "test", tmp_path).tolist() == [7, 3]


def test_the_directory_may_come_from_the_environment(tmp_path, monkeypatch):
    write(tmp_path / "mine", True)
    monkeypatch.setenv("LAE_DATA", str(tmp_path))
    assert load_images("mine", "test").shape == (2, 1, 2, 3)
    monkeypatch.delenv("LAE_DATA")
    with pytest.raises(ValueError, match="Pass directory=, or set LAE_DATA"):
        load_images("mine", "test")


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte of 'mnist'"):
        load_images("mnist", "train", tmp_path)
    with pytest.raises(ValueError, match="split must be one of"):
        load_images("mnist", "validation", tmp_path)


BAD = {
    "empty": (b"", "starts with nothing"),
    "text": (b"hello world", "no idx file"),
    "floats": (struct.pack(">HBBI", 0, 13, 1, 2) + bytes(8), "no idx file"),
    "header cut": (IMAGES[:9], "ends within its header"),
    "pixels cut": (IMAGES[:-1], "promises 12 bytes .* has 11"),
    "too much": (IMAGES + b"x", "and has more"),
    "huge": (
        struct.pack(">HBBII", 0, 8, 2, 2**31, 2**31) + bytes(5),
        "and has 5|holds at most",
    ),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("packed", [True, False])
def test_damaged_files_say_so(tmp_path, kind, packed):
    content, words = BAD[kind]
    path = tmp_path / ("x.gz" if packed else "x")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(DataFileError, match=words):
        read_idx(path)


def test_a_broken_archive_says_so(tmp_path):
    path = tmp_path / "x.gz"
    for content in (b"hello", gzip.compress(IMAGES * 99)[:-20]):
        path.write_bytes(content)
        with pytest.raises(DataFileError, match="cannot be unpacked|and has"):
            read_idx(path)


def test_no_more_is_unpacked_than_promised(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(IMAGES + bytes(10**8)))
    with pytest.raises(DataFileError, match="and has more"):
        read_idx(path)


# npz


GREY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
COLOUR = np.arange(90, dtype=np.uint8).reshape(2, 3, 5, 3)


@pytest.mark.parametrize("place", ["mine.npz", "mine/mine.npz"])
@pytest.mark.parametrize("keys", [("x_test", "y_test"), ("test_images", "test_labels")])
def test_npz(tmp_path, place, keys):
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    np.savez(path, **{keys[0]: GREY, keys[1]: np.array([[4], [2]])})  # as MedMNIST
    images = load_images("mine", "test", tmp_path)
    torch.testing.assert_close(images[:, 0] * 255, torch.tensor(GREY).float())
    assert load_labels("mine", "test", tmp_path).tolist() == [4, 2]


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("floats", [True, False])
def test_npz_in_colour(tmp_path, channels_last, floats):
    pixels = COLOUR if channels_last else COLOUR.transpose(0, 3, 1, 2)
    np.savez(tmp_path / "mine.npz", x_train=pixels / 255 if floats else pixels)
    images = load_images("mine", "train", tmp_path)
    assert images.shape == (2, 3, 3, 5)
    assert images.dtype == torch.float32
    assert images[1, 2, 1, 3].item() == pytest.approx(COLOUR[1, 1, 3, 2] / 255)


BAD_ARRAYS = {
    "too bright": (GREY * 2.0, "floats from 0 to 46, expected \\[0, 1\\]"),
    "not a number": (GREY * np.nan, "floats from nan"),
    "whole numbers": (GREY.astype(int), "int64, expected uint8 or floats"),
    "flat": (GREY.reshape(2, 12), "shape \\[2, 12\\], expected"),
    "five channels": (np.zeros((2, 5, 8, 8), np.uint8), "1, 3 or 4 channels"),
    "nothing": (GREY[:0], "shape \\[0, 3, 4\\]"),
}


@pytest.mark.parametrize("kind", BAD_ARRAYS)
def test_arrays_that_are_no_images_say_so(tmp_path, kind):
    array, words = BAD_ARRAYS[kind]
    np.savez(tmp_path / "mine.npz", x_test=array)
    with pytest.raises(DataFileError, match=words):
        load_images("mine", "test", tmp_path)


def test_bad_npz_files_say_so(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, pictures=GREY, y_test=np.array([0.5, 1.0]))
    with pytest.raises(DataFileError, match="has pictures, y_test, expected .*x_test"):
        load_images("mine", "test", tmp_path)
    with pytest.raises(DataFileError, match="float64 of shape \\[2\\], expected whole"):
        load_labels("mine", "test", tmp_path)
    whole = path.read_bytes()
    for content in (b"", b"hello", whole[:-30]):
        path.write_bytes(content)
        with pytest.raises(DataFileError, match="cannot be read as npz"):
            load_images("mine", "test", tmp_path)
    np.savez(path, x_test=np.array([{"a": "pickle"}], dtype=object))
    with pytest.raises(DataFileError, match="cannot be read as npz"):
        load_images("mine", "test", tmp_path)  # would run code that is in the file


# folders


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_a_folder_of_images(tmp_path):
    save(tmp_path / "pets/train/cat/b.png", GREY[1])
    save(tmp_path / "pets/train/cat/a.png", GREY[0])
    save(tmp_path / "pets/train/dog/c.PNG", GREY[1])
    save(tmp_path / "pets/test/dog/d.png", GREY[0])
    (tmp_path / "pets/train/cat/notes.txt").write_text("not an image")
    images = load_images("pets", "train", tmp_path)
    torch.testing.assert_close(
        images[:, 0] * 255, torch.tensor(GREY[[0, 1, 1]]).float()
    )
    assert load_labels("pets", "train", tmp_path).tolist() == [0, 0, 1]
    assert load_labels("pets", "test", tmp_path).tolist() == [1]  # no cat there


def test_a_folder_may_be_in_colour_or_resized(tmp_path):
    save(tmp_path / "a.png", COLOUR[0])
    save(tmp_path / "b.png", np.zeros((6, 8, 3), np.uint8))
    with pytest.raises(DataFileError, match="b.png has shape .*size="):
        read_folder(tmp_path)
    assert read_folder(tmp_path, size=(5, 7)).shape == (2, 3, 5, 7)
    assert read_folder(tmp_path, size=(5, 7), mode="L").shape == (2, 1, 5, 7)
    (tmp_path / "c.png").write_text("no image")
    with pytest.raises(DataFileError, match="c.png cannot be read"):
        read_folder(tmp_path, size=(5, 7))


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_grey_images_of_16_bits_keep_their_depth(tmp_path, name):
    deep = np.array([[0, 1, 255], [256, 40000, 65535]], np.uint16)
    save(tmp_path / name, deep)
    save(tmp_path / "b.png", np.array([[0, 1, 2], [3, 128, 255]], np.uint8))
    images = read_folder(tmp_path)
    torch.testing.assert_close(images[0, 0], torch.tensor(deep / 65535).float())
    assert images[1, 0, 1].mul(255).tolist() == [3, 128, 255]
    colours = read_folder(tmp_path, mode="RGB")[0]
    assert colours.mul(255).round()[:, 1].tolist() == [[1, 156, 255]] * 3
    resized = read_folder(tmp_path, size=(8, 8))
    assert resized.min() >= 0 and resized.max() <= 1 and resized.std() > 0.1


def test_grey_with_transparency_is_grey(tmp_path):
    Image.new("LA", (4, 3), (51, 128)).save(tmp_path / "a.png")
    torch.testing.assert_close(
        read_folder(tmp_path), torch.full((1, 1, 3, 4), 0.2).float()
    )


@pytest.mark.parametrize(("mode", "kind"), [("I", np.int32), ("F", np.float32)])
def test_pixels_of_unknown_range_are_refused(tmp_path, mode, kind):
    save(tmp_path / "a.tif", np.array([[0, 7], [100_000, 3]], kind))
    with pytest.raises(DataFileError, match=f"a.tif .* mode '{mode}', .*unknown.*16"):
        read_folder(tmp_path)
    with pytest.raises(ValueError, match="mode must be one of .*RGB.* got 'CMYK'"):
        read_folder(tmp_path, mode="CMYK")


def test_folders_say_what_they_lack(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        read_folder(tmp_path / "nowhere")
    (tmp_path / "mine/test").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="No image is in .*.png"):
        load_images("mine", "test", tmp_path)
    save(tmp_path / "mine/test/a.png", GREY[0])
    with pytest.raises(DataFileError, match="'a.png' .* is in no class"):
        load_labels("mine", "test", tmp_path)


def test_without_pillow_only_folders_fail(tmp_path, monkeypatch):
    save(tmp_path / "a.png", GREY[0])
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install pillow"):
        read_folder(tmp_path)


# torchvision


class Stored:
    """A data set of torchvision that writes two images when asked to download."""

    def __init__(self, root, train, download=False):
        file = Path(root) / "stored"
        if download:
            file.touch()
        if not file.exists():
            raise RuntimeError("Dataset not found.")
        self.data, self.targets = (COLOUR if train else COLOUR[:1]), [3, 5]


@pytest.fixture
def torchvision(monkeypatch):
    fake = ModuleType("torchvision")
    fake.datasets = SimpleNamespace(CIFAR10=Stored)
    monkeypatch.setitem(sys.modules, "torchvision", fake)


def test_torchvision_downloads_only_if_asked(tmp_path, torchvision):
    with pytest.raises(FileNotFoundError, match="download=True"):
        load_images("cifar10", "train", tmp_path)
    assert not list(tmp_path.iterdir())
    images = load_images("cifar10", "train", tmp_path, download=True)
    assert images.shape == (2, 3, 3, 5)
    again = load_images("cifar10", "test", tmp_path)
    assert again.shape == (1, 3, 3, 5)
    assert load_labels("cifar10", "train", tmp_path).tolist() == [3, 5]


def test_what_is_there_is_not_downloaded_again(tmp_path, torchvision):
    np.savez(tmp_path / "cifar10.npz", x_test=GREY)
    images = load_images("cifar10", "test", tmp_path, download=True)
    assert images.shape == (2, 1, 3, 4)
    assert not (tmp_path / "stored").exists()


def test_downloads_that_cannot_be(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match="needs torchvision"):
        load_images("mnist", "train", tmp_path, download=True)
    with pytest.raises(ValueError, match="download=True knows mnist"):
        load_images("mine", "train", tmp_path, download=True)
