"""MNIST and Fashion-MNIST from their idx files."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FOLDERS = {"mnist": "mnist", "fashion": "fashion-mnist", "binary": "mnist"}
FILES = {"train": "train-images-idx3-ubyte.gz", "test": "t10k-images-idx3-ubyte.gz"}
HEADER = 16  # bytes before the pixels


def data_folder(given: Path | None) -> Path:
    """Where the data lies.

    Args:
        given: What the command line says.

    Returns:
        That, or what the environment variable LAE_DATA says.

    Raises:
        SystemExit: If neither does.
    """
    folder = given or os.environ.get("LAE_DATA")
    if not folder:
        raise SystemExit(
            "Say where the data is: --data-dir, or the environment variable LAE_DATA. "
            f"It needs the folders {sorted(set(FOLDERS.values()))} with "
            f"{sorted(FILES.values())}."
        )
    return Path(folder)


def load(folder: Path, dataset: str, part: str) -> Tensor:
    """All images of a dataset.

    Args:
        folder: What ``data_folder`` returned.
        dataset: ``"mnist"``, ``"fashion"`` or ``"binary"``.
        part: ``"train"`` or ``"test"``.

    Returns:
        Pixels in [0, 1].  # [N, 784]
    """
    raw = gzip.decompress((folder / FOLDERS[dataset] / FILES[part]).read_bytes())
    pixels = np.frombuffer(raw, np.uint8, offset=HEADER).reshape(-1, 784)
    return torch.tensor(pixels, dtype=torch.float32) / 255


def made_up(n_images: int, generator: torch.Generator) -> Tensor:
    """Smooth blobs for smoke runs, which need no data.

    Args:
        n_images: How many.
        generator: Where randomness comes from.

    Returns:
        Pixels in [0, 1].  # [N, 784]
    """
    rows, columns = torch.meshgrid(torch.arange(28), torch.arange(28), indexing="ij")
    centre = 28 * torch.rand(n_images, 2, 1, 1, generator=generator)
    squares = (rows - centre[:, 0]) ** 2 + (columns - centre[:, 1]) ** 2
    return torch.exp(-squares / 20).flatten(1)
