"""``J C J^T`` of many Jacobians, with gradients that cost less than autograd's.

C is symmetric, so the product with the one J serves the other, too.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from typing_extensions import override


class SharedGram(Function):
    """``J C J^T`` with one C for all samples."""

    generate_vmap_rule = True

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
        ctx.save_for_forward(*inputs, output[1])

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        gradient, saved = gradients[0], ctx.saved_tensors
        if gradient is None:
            return None, None
        gradient, columns, curvature, curved = _of_one_dtype(gradient, *saved)
        if torch.is_grad_enabled():  # the gradient shall have a gradient itself
            curved = columns @ curvature
        both = gradient + gradient.mT
        turned = (both @ columns).reshape(-1, columns.shape[-1])
        return both @ curved, turned.T @ columns.reshape(turned.shape) / 2

    @staticmethod
    @override
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, None]:
        columns, _, curved = ctx.saved_tensors
        by_columns, by_curvature = tangents
        half = torch.zeros_like(curved @ columns.mT)
        if by_columns is not None:
            half = half + curved @ by_columns.mT
        if by_curvature is not None:
            half = half + columns @ by_curvature @ columns.mT / 2
        return half + half.mT, None


class DiagonalGram(Function):
    """``J C J^T`` and ``J r``, with a diagonal C and a vector r for each sample."""

    generate_vmap_rule = True

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
        ctx.save_for_forward(*inputs)

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        tensors = _of_one_dtype(*ctx.saved_tensors, *gradients)
        columns, curvature, slope, gram, pulled = tensors
        turned = (gram + gram.mT) @ columns
        by_columns = turned * curvature[:, None] + pulled[:, :, None] * slope[:, None]
        by_slope = (pulled[:, None] @ columns)[:, 0]
        return by_columns, (turned * columns).sum(1) / 2, by_slope

    @staticmethod
    @override
    def jvp(ctx: Any, *tangents: Tensor) -> tuple[Tensor, Tensor]:
        columns, curvature, slope = ctx.saved_tensors
        by_columns, by_curvature, by_slope = tangents
        scaled = by_columns * curvature[:, None] + columns * by_curvature[:, None] / 2
        half = scaled @ columns.mT
        pulled = by_columns @ slope[:, :, None] + columns @ by_slope[:, :, None]
        return half + half.mT, pulled[:, :, 0]


def _of_one_dtype(*tensors: Tensor) -> list[Tensor]:
    """Autocast may have left them in different ones."""
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    return [tensor.to(dtype) for tensor in tensors]
