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


def calibrated(looks: Tensor, param_shapes: Sequence[torch.Size]) -> Tensor:
    """The calibrated diagonal.

    The sum over each tensor is the probes', so it is unbiased.

    Args:
        looks: Shape and probe, both from the two halves of the data.  # [4, P]
        param_shapes: The parameters' shapes.

    Returns:
        The diagonal.  # [P]
    """
    sizes = [shape.numel() for shape in param_shapes]
    parts = [
        _of_tensor(*look.unflatten(1, shape).unflatten(0, (2, 2))).flatten()
        for look, shape in zip(looks.split(sizes, 1), param_shapes, strict=True)
    ]
    return torch.cat(parts)


def _of_tensor(shape: Tensor, probe: Tensor) -> Tensor:
    """Calibrate one parameter: ``[2, *param]`` each to ``[*param]``."""
    dims = tuple(range(1, shape.dim()))
    estimate = shape * _ratio(probe.sum(), shape.sum())
    for within in (dims[1:], ()) if len(dims) > 1 else ((),):  # a row, an entry
        expected, seen = (
            t.sum(within, keepdim=True) if within else t for t in (estimate, probe)
        )
        surplus = _ratio(seen.sum(0), expected.sum(0)) - 1
        estimate = estimate * (1 + _agreement(expected, seen) * surplus)
    return estimate.sum(0)


def _agreement(expected: Tensor, seen: Tensor) -> Tensor:
    """How much of the surplus is no noise: what the halves have in common of it."""
    first, second = _ratio(seen, expected) - 1
    common, all_of_it = (first * second).mean(), ((first + second) / 2).square().mean()
    return _ratio(common, all_of_it).clamp(0, 1)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """The ratio, or 1 where nothing is expected."""
    return torch.where(below > 0, above / below, 1)
