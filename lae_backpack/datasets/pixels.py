"""Pixels of any layout as the package takes them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lae_backpack.datasets.errors import DataFileError

CHANNELS = (1, 3, 4)  # grey, colour, colour with transparency


def as_images(pixels: NDArray[np.generic], name: str) -> Tensor:
    """Bring images into the package's layout.

    Args:
        pixels: Grey, or with channels last or first; bytes, or floats in [0, 1].
            # [N, H, W], [N, H, W, C] or [N, C, H, W]
        name: Where they are from, for messages.

    Returns:
        Pixels in [0, 1].  # [N, C, H, W]

    Raises:
        DataFileError: If these are no images.
    """
    if pixels.dtype == np.uint8:
        values = torch.tensor(pixels).float() / 255
    elif np.issubdtype(pixels.dtype, np.floating):
        values = torch.tensor(pixels).float()
        if values.numel() and not (values.min() >= 0 and values.max() <= 1):
            raise DataFileError(
                f"Pixels of {name} are floats from {values.min().item():.4g} to "
                f"{values.max().item():.4g}, expected [0, 1]. Scale them."
            )
    else:
        raise DataFileError(
            f"Pixels of {name} are {pixels.dtype}, expected uint8 or floats."
        )
    if values.ndim == 3:
        values = values.unsqueeze(1)
    elif values.ndim == 4 and values.shape[-1] in CHANNELS:
        values = values.movedim(-1, 1).contiguous()
    if values.ndim != 4 or values.shape[1] not in CHANNELS or not values.numel():
        raise DataFileError(
            f"{name} has shape {list(pixels.shape)}, expected [N, H, W], [N, H, W, C] "
            "or [N, C, H, W] with 1, 3 or 4 channels."
        )
    return values
