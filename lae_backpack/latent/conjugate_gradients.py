"""Solves with a matrix that is only known by its products, one for each sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

Product = Callable[[Tensor], Tensor]  # [N, K] -> [N, K], linear


@torch.no_grad()
def conjugate_gradients(product: Product, right: Tensor) -> Tensor:
    """Solve ``A s = right`` for a symmetric positive definite ``A``.

    Without rounding it takes as many products as A has distinct eigenvalues, at most K.

    Args:
        product: Multiplies by A.
        right: The right-hand side.  # [N, K]

    Returns:
        The solution, as exact as the dtype allows.  # [N, K]
    """
    solution, residual = torch.zeros_like(right), right.clone()
    direction, squares = residual, _dot(residual, residual)
    enough = squares * (10 * torch.finfo(right.dtype).eps) ** 2
    for _ in range(10 * right.shape[1]):
        if (squares <= enough).all():
            break
        multiplied = product(direction)
        # A sample that is done has direction 0: 0 / 0 must stay 0.
        length = _ratio(squares, _dot(direction, multiplied))
        solution = solution + length * direction
        residual = residual - length * multiplied
        before, squares = squares, _dot(residual, residual)
        direction = residual + _ratio(squares, before) * direction
    return solution


def solve(product: Product, right: Tensor) -> Tensor:
    """As ``conjugate_gradients``, with a gradient that costs one more solve.

    It is the solution's own, by the implicit function theorem: no iteration is kept.

    Args:
        product: Multiplies by A; may depend on what requires a gradient.
        right: The right-hand side, which may, too.  # [N, K]

    Returns:
        The solution.  # [N, K]
    """
    solution = conjugate_gradients(product, right)
    if not torch.is_grad_enabled():
        return solution
    # d s = A^-1 (d right - dA s): all that varies is in the residual, which is zero.
    return _Implicit.apply(right - product(solution), solution, product)


class _Implicit(torch.autograd.Function):
    """``solution + A^-1 residual``, where the residual is zero but varies."""

    @staticmethod
    @override
    def forward(
        ctx: Any, residual: Tensor, solution: Tensor, product: Product
    ) -> Tensor:
        ctx.product = product
        return solution.clone()

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return conjugate_gradients(ctx.product, gradient), None, None


def _dot(first: Tensor, second: Tensor) -> Tensor:
    return (first * second).sum(1, keepdim=True)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below > 0, above / below, torch.zeros_like(above))
