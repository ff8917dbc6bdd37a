"""Images from idx files, whole and damaged."""

import gzip
import struct
from pathlib import Path

import pytest
import torch

from lae_backpack.datasets import DataFileError, load_images, load_labels, read_idx

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
