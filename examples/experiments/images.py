"""28x28 images: MNIST and Fashion-MNIST from a folder, or digits that need none."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor


def idx_images(data_dir: Path, name: str, part: str) -> Tensor:
    """Read images as they are published.

    Args:
        data_dir: The folder that holds one folder for each data set.
        name: ``"mnist"`` or ``"fashion-mnist"``.
        part: ``"train"`` or ``"t10k"``.

    Returns:
        Pixels in [0, 1].  # [N, 1, 28, 28]
    """
    with gzip.open(data_dir / name / f"{part}-images-idx3-ubyte.gz") as file:
        numbers = np.frombuffer(file.read(), np.uint8, offset=16)
    return torch.tensor(numbers).reshape(-1, 1, 28, 28).float() / 255


def small_digits() -> Tensor:
    """The digits that come with scikit-learn.

    Returns:
        Pixels in [0, 1], enlarged.  # [1797, 1, 28, 28]
    """
    pixels, _ = load_digits(return_X_y=True)
    digits = torch.tensor(pixels).float().reshape(-1, 1, 8, 8) / 16
    return F.interpolate(digits, size=(28, 28))
