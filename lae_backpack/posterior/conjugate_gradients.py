"""Solves with a matrix that is only known by its products, one for each sample."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]  # [N, K] -> [N, K], linear


@torch.no_grad()
def conjugate_gradients(
    product: Product,
    right: Tensor,
    precondition: Product | None = None,
    tolerance: float | None = None,
    max_steps: int | None = None,
) -> Tensor:
    """Solve ``A s = right`` for a symmetric positive definite ``A``.

    Without rounding it takes as many products as A has distinct eigenvalues, at most K.

    Args:
        product: Multiplies by A.
        right: The right-hand side.  # [N, K]
        precondition: Multiplies by something like A's inverse; the closer, the fewer
            steps.
        tolerance: The residual to stop at, relative to the first; by default as small
            as the dtype allows.
        max_steps: The products to stop at; by default ``10 K``.

    Returns:
        The solution.  # [N, K]
    """
    better = precondition or (lambda residual: residual)
    if tolerance is None:
        tolerance = 10 * torch.finfo(right.dtype).eps
    solution, residual = torch.zeros_like(right), right.clone()
    direction = better(residual)
    squares = _dot(residual, direction)
    enough = squares * tolerance**2
    for _ in range(10 * right.shape[1] if max_steps is None else max_steps):
        if (squares <= enough).all():
            break
        multiplied = product(direction)
        # A sample that is done has direction 0: 0 / 0 must stay 0.
        length = _ratio(squares, _dot(direction, multiplied))
        solution = solution + length * direction
        residual = residual - length * multiplied
        preconditioned = better(residual)
        before, squares = squares, _dot(residual, preconditioned)
        direction = preconditioned + _ratio(squares, before) * direction
    return solution


def _dot(first: Tensor, second: Tensor) -> Tensor:
    return (first * second).sum(1, keepdim=True)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below > 0, above / below, torch.zeros_like(above))
