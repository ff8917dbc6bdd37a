"""``W o W``, which every pass of variances needs of the same weights."""

from __future__ import annotations

from torch import Tensor

# BackPACK, too, hangs on a parameter what belongs to it.
_PLACE = "_lae_square"


def keep_square(weight: Tensor) -> Tensor:
    """Let ``squared`` keep the square of a weight, on the weight.

    Only for who owns the tensor and does not write to its ``data``, of which torch
    cannot tell.

    Args:
        weight: The weight.

    Returns:
        The weight.
    """
    setattr(weight, _PLACE, None)
    return weight


def squared(weight: Tensor) -> Tensor:
    """The square of each number.

    Args:
        weight: A weight.

    Returns:
        Its square, the one that was kept if nobody has written to the weight since.
    """
    kept: tuple[int, Tensor] | None = getattr(weight, _PLACE, None)
    if kept is not None and kept[0] == weight._version:
        return kept[1]
    version, plain = weight._version, weight.detach()
    square = plain * plain
    if hasattr(weight, _PLACE):
        setattr(weight, _PLACE, (version, square))
    return square
