"""Solves with a matrix known by its products, with a gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from lae_backpack.posterior.conjugate_gradients import Product, conjugate_gradients


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
