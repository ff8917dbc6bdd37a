"""What codes must be like."""

from __future__ import annotations

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
