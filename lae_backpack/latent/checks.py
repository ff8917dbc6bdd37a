"""What images and codes must be like."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import Module


def code_size(decoder: Module) -> int:
    """How many numbers a code has.

    Args:
        decoder: The decoder.

    Returns:
        The inputs of its first layer.

    Raises:
        ValueError: If that is not a ``Linear``.
    """
    leaves = [m for m in decoder.modules() if not any(True for _ in m.children())]
    if not isinstance(leaves[0], nn.Linear):
        raise ValueError(
            f"The size of a code cannot be told from {type(leaves[0]).__name__}, the "
            "decoder's first layer. Pass code_dim=..., or codes to start from."
        )
    return leaves[0].in_features


def check_images(x: Tensor, decoder: Module) -> None:
    """Refuse images that the decoder cannot have made.

    Args:
        x: The images.  # [N, *in]
        decoder: The decoder.

    Raises:
        TypeError: If their dtype is not the decoder's.
        ValueError: If there are none, or one is not finite.
    """
    if x.dim() < 2 or len(x) == 0:
        raise ValueError(
            f"x must be a batch [N, ...] of at least one image, got {tuple(x.shape)}. "
            "For one image use x[None]."
        )
    weight = next(decoder.parameters(), None)
    if weight is not None and weight.dtype != x.dtype:
        raise TypeError(
            f"x has dtype {x.dtype}, the decoder {weight.dtype}. Convert one of them, "
            f"for instance with x.to({weight.dtype})."
        )
    if not torch.isfinite(x).all():
        raise ValueError(
            "x has pixels that are not finite. Clean the data, for instance with "
            "torch.nan_to_num."
        )


def check_codes(z: Tensor, x: Tensor) -> None:
    """Refuse codes that do not belong to the images.

    Args:
        z: The codes.  # [N, K]
        x: The images.  # [N, *in]

    Raises:
        ValueError: If they are not one vector for each image.
        TypeError: If their dtype is not the images'.
    """
    if z.dim() != 2 or len(z) != len(x):
        raise ValueError(
            f"Codes must be [{len(x)}, K], one vector for each image, got "
            f"{tuple(z.shape)}. Flatten them, for instance by nn.Unflatten as the "
            "decoder's and nn.Flatten as the encoder's end."
        )
    if z.dtype != x.dtype:
        raise TypeError(
            f"Codes have dtype {z.dtype}, images {x.dtype}. Convert one of them, for "
            f"instance with z.to({x.dtype})."
        )


def require_count(name: str, value: int, least: int) -> None:
    """Refuse what cannot be a number of things.

    Args:
        name: The argument.
        value: What was given.
        least: The least that is allowed.

    Raises:
        ValueError: If it is less, or no integer.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(
            f"{name} must be an integer of at least {least}, got {value!r}."
        )
