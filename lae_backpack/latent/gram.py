"""``J C J^T`` of many Jacobians, with gradients that cost less than autograd's.

C is symmetric, so the product with the one J serves the other, too. And Jacobians are
large: they are gone through in chunks that stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from typing_extensions import override

CACHED = 2**17  # numbers, a quarter or half of what a core's second cache holds

Gradients = tuple[Tensor, Tensor, Tensor]


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
        grams, pulled = zip(
            *(
                ((j * c[:, None]) @ j.mT, (j @ r[:, :, None])[:, :, 0])
                for j, c, r in _chunks(columns, curvature, slope)
            ),
            strict=True,
        )
        return torch.cat(grams), torch.cat(pulled)

    @staticmethod
    @override
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        columns, curvature, slope = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradients shall have gradients themselves
            return DiagonalGram._pull(columns, curvature, slope, *gradients)
        by_columns, others = torch.empty_like(columns), []
        chunks = _chunks(columns, curvature, slope, *gradients, by_columns)
        for *chunk, target in chunks:
            by_chunk, *rest = DiagonalGram._pull(*chunk)
            target.copy_(by_chunk)
            others.append(rest)
        by_curvature, by_slope = (
            torch.cat(parts) for parts in zip(*others, strict=True)
        )
        return by_columns, by_curvature, by_slope

    @staticmethod
    def _pull(
        columns: Tensor, curvature: Tensor, slope: Tensor, gram: Tensor, pulled: Tensor
    ) -> Gradients:
        turned = (gram + gram.mT) @ columns
        by_columns = turned * curvature[:, None] + pulled[:, :, None] * slope[:, None]
        by_slope = (pulled[:, None] @ columns)[:, 0]
        return by_columns, (turned * columns).sum(1) / 2, by_slope


def _chunks(columns: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    size = max(1, CACHED // columns[0].numel())
    return zip(*(t.split(size) for t in (columns, *others)), strict=True)
