"""Images from files that are there already; nothing is downloaded."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, Literal

import torch
from torch import Tensor

Split = Literal["train", "test"]
VARIABLE = "LAE_DATA"
PREFIXES = {"train": "train", "test": "t10k"}
PIECE = 2**24  # bytes
MOST_PACKED = 200  # images shrink tenfold; a thousandfold is an attack
UNSIGNED_BYTES = 0x08  # the third byte of an idx file says what it holds
# Where torchvision puts what it has downloaded.
TORCHVISION = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}


class DataFileError(ValueError):
    """A file that does not hold what its name promises."""


def load_images(
    name: str, split: Split = "train", directory: str | Path | None = None
) -> Tensor:
    """The images of a data set in idx files, as MNIST is published.

    Args:
        name: The data set's folder, for instance ``"mnist"`` or ``"fashion-mnist"``.
        split: ``"train"`` or ``"test"``.
        directory: Where that folder is; by default what ``LAE_DATA`` says.

    Returns:
        Pixels in [0, 1].  # [N, 1, H, W]
    """
    pixels = read_idx(_find(name, split, "images-idx3-ubyte", directory))
    return pixels.unsqueeze(1).float() / 255


def load_labels(
    name: str, split: Split = "train", directory: str | Path | None = None
) -> Tensor:
    """The labels of a data set in idx files.

    Args:
        name: The data set's folder.
        split: ``"train"`` or ``"test"``.
        directory: Where that folder is; by default what ``LAE_DATA`` says.

    Returns:
        The classes.  # [N]
    """
    return read_idx(_find(name, split, "labels-idx1-ubyte", directory)).long()


def read_idx(path: str | Path) -> Tensor:
    """Read an idx file, compressed or not.

    Args:
        path: The file; ``.gz`` at its end means compressed.

    Returns:
        Its numbers.  # [*shape], uint8

    Raises:
        DataFileError: If the file is damaged, or something else.
    """
    path = Path(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            packed = path.suffix == ".gz"
            most = path.stat().st_size * MOST_PACKED if packed else math.inf
            return _read_numbers(file, path.name, most)  # pyright: ignore
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataFileError(
            f"{path.name} cannot be unpacked ({error}). Get the file anew."
        ) from error


def _read_numbers(file: BinaryIO, name: str, most: float) -> Tensor:
    """Read no more than the header promises, whatever a file unpacks to.

    Returns:
        The numbers.

    Raises:
        DataFileError: If header and content do not fit.
    """
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != UNSIGNED_BYTES:
        raise DataFileError(
            f"{name} is no idx file: it starts with {magic.hex() or 'nothing'}, "
            "000008.. is expected. Give a file as MNIST is published."
        )
    header = file.read(4 * magic[3])
    if len(header) < 4 * magic[3]:
        raise DataFileError(f"{name} ends within its header. Get the file anew.")
    shape = struct.unpack(f">{magic[3]}I", header)
    promised = math.prod(shape)
    if promised > most + PIECE:
        raise DataFileError(
            f"{name} promises {promised:,} bytes of shape {shape}, and a file of its "
            f"size holds at most {most:,}. Get the file anew; one that is packed more "
            f"than {MOST_PACKED} times has to be unpacked by hand."
        )
    content = bytearray()
    # In pieces: a header may promise more than the memory holds.
    while piece := file.read(min(PIECE, promised + 1 - len(content))):
        content += piece
    if len(content) != promised or not promised:
        has = "more" if len(content) > promised else f"{len(content):,}"
        raise DataFileError(
            f"{name} promises {promised:,} bytes of shape {shape} and has {has}. Get "
            "the file anew."
        )
    return torch.frombuffer(content, dtype=torch.uint8).reshape(shape)


def _find(name: str, split: str, kind: str, directory: str | Path | None) -> Path:
    """Find a file in one of the usual places.

    Returns:
        The file.

    Raises:
        ValueError: If there is no such split, or nobody says where the data is.
        FileNotFoundError: If the file is not there.
    """
    if split not in PREFIXES:
        raise ValueError(f"split must be one of {tuple(PREFIXES)}, got {split!r}.")
    given = directory or os.environ.get(VARIABLE)
    if not given:
        raise ValueError(
            f"Nobody says where {name!r} is. Pass directory=, or set {VARIABLE}."
        )
    folders = [Path(given) / name]
    if name in TORCHVISION:
        folders.append(Path(given) / TORCHVISION[name])
    file = f"{PREFIXES[split]}-{kind}"
    looked_at = [folder / (file + end) for folder in folders for end in (".gz", "")]
    for path in looked_at:
        if path.is_file():
            return path
    places = ", ".join(str(path) for path in looked_at)
    raise FileNotFoundError(f"{file} of {name!r} is missing. Looked for: {places}.")
