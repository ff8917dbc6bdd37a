"""What travels backwards, and the rules by which it passes each layer.

Importing this package registers the rules of all supported layers.
"""

from lae_backpack.curvature.rules import (
    affine,
    averaging,
    branching,
    convolution,
    elementwise,
    losses,
    normalization,
    selection,
)

__all__ = [
    "affine",
    "averaging",
    "branching",
    "convolution",
    "elementwise",
    "losses",
    "normalization",
    "selection",
]
