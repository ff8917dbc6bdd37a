"""A biased shape and unbiased, noisy probes make one diagonal.

The approximate (or mixed) diagonal knows a lot about the shape of the exact one, but
not its scale; random probes are right on average, but noisy. So the shape is multiplied
by what the probes say of it: of a whole tensor, then of each of its rows, then of each
entry. The finer the group, the noisier its probes, so they are believed as far as two
halves of the data agree on them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# How far entries are believed is one number; so many of them are enough to tell.
ENOUGH_ENTRIES = 2**14


def calibrated(looks: Tensor, param_shapes: Sequence[torch.Size]) -> Tensor:
    """The calibrated diagonal.

    The sum over each tensor is the probes', so it is unbiased.

    Args:
        looks: Shape and probe, both from the two halves of the data.  # [4, P]
        param_shapes: The parameters' shapes.

    Returns:
        The diagonal.  # [P]
    """
    diagonal = torch.empty_like(looks[0])
    sizes = [shape.numel() for shape in param_shapes]
    parts = zip(looks.split(sizes, 1), diagonal.split(sizes), strict=True)
    for (look, part), shape in zip(parts, param_shapes, strict=True):
        n_rows = shape[0] if len(shape) else 1
        halves = look.view(4, n_rows, -1)
        part.copy_(_of_tensor(halves[:2], halves[2:]).flatten())
    return diagonal


def _of_tensor(shape: Tensor, probe: Tensor) -> Tensor:
    """Calibrate one parameter: ``[2, rows, columns]`` each to ``[rows, columns]``."""
    of_rows, seen_of_rows = shape.sum(2), probe.sum(2)
    whole = _ratio(seen_of_rows.sum(), of_rows.sum())
    of_rows = whole * of_rows
    surplus = _ratio(seen_of_rows.sum(0), of_rows.sum(0)) - 1
    scales = whole * (1 + _agreement(of_rows, seen_of_rows) * surplus)  # [rows]
    some = slice(None, None, -(-shape[0].numel() // ENOUGH_ENTRIES))  # of the rows
    believed = _agreement(shape[:, some] * scales[some, None], probe[:, some])
    estimate = (shape[0] + shape[1]).mul_(scales[:, None])
    # (1 - b) estimate + b probe is estimate (1 + b surplus), entry by entry.
    return estimate.lerp_(probe[0] + probe[1], believed) if believed else estimate


def _agreement(expected: Tensor, seen: Tensor) -> Tensor:
    """How much of the surplus is no noise: what the halves have in common of it."""
    first, second = _ratio(seen, expected) - 1
    common, all_of_it = (first * second).mean(), ((first + second) / 2).square().mean()
    return _ratio(common, all_of_it).clamp(0, 1)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """The ratio, or 1 where nothing is expected."""
    return torch.where(below > 0, above / below, 1)
