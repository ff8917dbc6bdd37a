"""``J C J^T`` of many Jacobians, with gradients that cost less than autograd's.

C is symmetric, so the product with the one J serves the other, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from typing_extensions import override


class SharedGram(Function):
    """``J C J^T`` with one C for all samples."""

    @staticmethod
    @override
    def forward(columns: Tensor, curvature: Tensor) -> tuple[Tensor, Tensor]:
        """Multiply.

        Args:
            columns: J, the transposed Jacobians.  # [N, K, D]
            curvature: C.  # [D, D]

        Returns:
            The products, and ``J C`` for the backward pass.  # [N, K, K], [N, K, D]
        """
        curved = columns @ curvature
        return curved @ columns.mT, curved

    @staticmethod
    @override
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        gradient, columns, curvature, curved = gradients[0], *ctx.saved_tensors
        if gradient is None:
            return None, None
        if torch.is_grad_enabled():  # the gradient shall have a gradient itself
            curved = columns @ curvature
        both = gradient + gradient.mT
        turned = (both @ columns).flatten(0, 1)
        return both @ curved, turned.T @ columns.flatten(0, 1) / 2


class DiagonalGram(Function):
    """``J C J^T`` and ``J r``, with a diagonal C and a vector r for each sample."""

    @staticmethod
    @override
    def forward(
        columns: Tensor, curvature: Tensor, slope: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Multiply.

        Args:
            columns: J, the transposed Jacobians.  # [N, K, D]
            curvature: The diagonals of C.  # [N, D]
            slope: r.  # [N, D]

        Returns:
            The products.  # [N, K, K], [N, K]
        """
        gram = (columns * curvature[:, None]) @ columns.mT
        return gram, (columns @ slope[:, :, None])[:, :, 0]

    @staticmethod
    @override
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        (columns, curvature, slope), (gram, pulled) = ctx.saved_tensors, gradients
        turned = (gram + gram.mT) @ columns
        by_columns = turned * curvature[:, None] + pulled[:, :, None] * slope[:, None]
        by_slope = (pulled[:, None] @ columns)[:, 0]
        return by_columns, (turned * columns).sum(1) / 2, by_slope
