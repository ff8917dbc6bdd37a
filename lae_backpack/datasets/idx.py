"""Idx files, as MNIST is published."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from lae_backpack.datasets.errors import DataFileError

PIECE = 2**24  # bytes
MOST_PACKED = 200  # images shrink tenfold; a thousandfold is an attack
UNSIGNED_BYTES = 0x08  # the third byte of an idx file says what it holds


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
