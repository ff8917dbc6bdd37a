"""Tomography in small: projections of an image, and a network as its prior."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from typing_extensions import override


def radon_matrix(size: int, n_angles: int) -> Tensor:
    """Sums of pixels along parallel rays.

    Each pixel's mass falls on the two nearest detectors, in proportion.

    Args:
        size: The image's width and height.
        n_angles: Directions, spread over half a turn.

    Returns:
        The matrix.  # [angles * detectors, size * size]
    """
    n_detectors = math.ceil(size * math.sqrt(2)) + 1
    centre = torch.arange(size) - (size - 1) / 2
    rows, columns = torch.meshgrid(centre, centre, indexing="ij")
    pixels = torch.arange(size * size)
    matrix = torch.zeros(n_angles, n_detectors, size * size)
    for number in range(n_angles):
        angle = math.pi * number / n_angles
        place = columns * math.cos(angle) + rows * math.sin(angle)
        place = place.flatten() + (n_detectors - 1) / 2
        lower = place.floor().long().clamp(0, n_detectors - 2)
        share = place - lower
        matrix[number, lower, pixels] += 1 - share
        matrix[number, lower + 1, pixels] += share
    return matrix.flatten(0, 1)


class SmallUNet(nn.Module):
    """Two scales with a skip connection, and dropout that may be off."""

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        """Build the layers.

        Args:
            width: Channels.
            dropout: The share of channels that is left out.
        """
        super().__init__()

        def block(inputs: int, stride: int = 1) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(inputs, width, 3, stride=stride, padding=1),
                nn.LeakyReLU(0.2),
                nn.Dropout2d(dropout),
            )

        self.first, self.down = block(1), block(width, stride=2)
        self.inner, self.up = block(width), nn.Upsample(scale_factor=2)
        self.skip = nn.Conv2d(width, 4, 1)
        self.join, self.last = block(width + 4), nn.Conv2d(width, 1, 1)

    @override
    def forward(self, x: Tensor) -> Tensor:
        fine = self.first(x)
        coarse = self.up(self.inner(self.down(fine)))
        return self.last(self.join(torch.cat((coarse, self.skip(fine)), 1))).sigmoid()


def total_variation(image: Tensor) -> Tensor:
    """How much neighbouring pixels differ.

    Args:
        image: The image.  # [1, 1, H, W]

    Returns:
        The sum of absolute differences.  # []
    """
    return image.diff(dim=2).abs().sum() + image.diff(dim=3).abs().sum()
