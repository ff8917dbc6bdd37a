"""What the experiments share."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from measuring import Contender, interleaved, ratio, write_json  # noqa: E402
from models import fashion_autoencoder, mnist_autoencoder  # noqa: E402
from scores import auroc, rank_correlation  # noqa: E402

__all__ = [
    "Contender",
    "auroc",
    "fashion_autoencoder",
    "interleaved",
    "made_up",
    "mnist_autoencoder",
    "rank_correlation",
    "ratio",
    "small_digits",
    "write_json",
]


def small_digits() -> Tensor:
    """The digits that come with scikit-learn, for runs without data.

    Returns:
        Pixels in [0, 1].  # [1797, 1, 8, 8]
    """
    pixels, _ = load_digits(return_X_y=True)
    return torch.tensor(pixels).float().reshape(-1, 1, 8, 8) / 16


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
