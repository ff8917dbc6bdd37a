"""Data sets that torchvision knows, where the user has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lae_backpack.datasets.pixels import as_images

# What torchvision calls them.
NAMES = {
    "mnist": "MNIST",
    "fashion-mnist": "FashionMNIST",
    "kmnist": "KMNIST",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
}


def download(name: str, split: str, directory: Path) -> None:
    """Have torchvision fetch a data set; nothing else of the package does.

    Args:
        name: The data set.
        split: ``"train"`` or ``"test"``.
        directory: Where to put it.

    Raises:
        ValueError: If torchvision has no such data set.
        ImportError: If torchvision is not installed, or does not work.
    """
    if name not in NAMES:
        raise ValueError(
            f"download=True knows {', '.join(NAMES)}, got {name!r}. Put its files "
            "into the directory yourself."
        )
    datasets = _torchvision()
    if isinstance(datasets, Exception):
        raise ImportError(
            f"download=True needs torchvision, which does not import ({datasets}). "
            "Run: pip install torchvision, or put the files there yourself."
        ) from datasets
    getattr(datasets, NAMES[name])(str(directory), split == "train", download=True)


def from_torchvision(
    name: str, split: str, directory: Path
) -> tuple[Tensor, Tensor] | None:
    """Read what torchvision has downloaded before.

    Args:
        name: The data set.
        split: ``"train"`` or ``"test"``.
        directory: torchvision's root.

    Returns:
        Pixels in [0, 1] and classes, ``None`` if torchvision or the files are not
        there.  # [N, C, H, W] and [N]
    """
    datasets = _torchvision() if name in NAMES else None
    if datasets is None or isinstance(datasets, Exception):
        return None
    try:
        found = getattr(datasets, NAMES[name])(
            str(directory), split == "train", download=False
        )
    except RuntimeError:  # its way to say that files are missing
        return None
    return as_images(np.asarray(found.data), name), torch.tensor(
        np.asarray(found.targets), dtype=torch.long
    )


def _torchvision() -> Any:
    try:
        from torchvision import datasets  # pyright: ignore[reportMissingImports]
    except (ImportError, OSError, RuntimeError) as error:
        return error  # builds that do not fit torch raise RuntimeError
    return datasets
