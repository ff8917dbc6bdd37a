"""Images and labels in numpy's npz files."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lae_backpack.datasets.errors import DataFileError
from lae_backpack.datasets.pixels import as_images

# How Keras names the arrays, how MedMNIST does, and the plainest way.
IMAGE_KEYS = ("x_{split}", "{split}_images", "{split}")
LABEL_KEYS = ("y_{split}", "{split}_labels")


def read_npz_images(path: str | Path, split: str) -> Tensor:
    """Images of one split of an npz file.

    Args:
        path: The file.
        split: Its array is called ``x_<split>``, ``<split>_images`` or ``<split>``.

    Returns:
        Pixels in [0, 1].  # [N, C, H, W]
    """
    path = Path(path)
    return as_images(_array(path, IMAGE_KEYS, split), path.name)


def read_npz_labels(path: str | Path, split: str) -> Tensor:
    """Labels of one split of an npz file.

    Args:
        path: The file.
        split: Its array is called ``y_<split>`` or ``<split>_labels``.

    Returns:
        The classes.  # [N]

    Raises:
        DataFileError: If they are no whole numbers of shape [N] or [N, 1].
    """
    path = Path(path)
    labels = _array(path, LABEL_KEYS, split)
    flat = labels.squeeze(-1) if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1 or not np.issubdtype(flat.dtype, np.integer):
        raise DataFileError(
            f"Labels of {path.name} are {labels.dtype} of shape {list(labels.shape)}, "
            "expected whole numbers of shape [N]."
        )
    return torch.tensor(flat.astype(np.int64))


def _array(path: Path, keys: tuple[str, ...], split: str) -> NDArray[np.generic]:
    """Read the first array with one of these names.

    Returns:
        The array.

    Raises:
        DataFileError: If there is none, or the file is damaged.
    """
    wanted = [key.format(split=split) for key in keys]
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            for key in wanted:
                if key in arrays:
                    return arrays[key]
            found = ", ".join(arrays) or "nothing"
    except (ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataFileError(
            f"{path.name} cannot be read as npz ({error}). Write it with "
            "numpy.savez(file, x_train=..., y_train=..., x_test=..., y_test=...)."
        ) from error
    raise DataFileError(
        f"{path.name} has {found}, expected one of {', '.join(wanted)}. Name it so."
    )
