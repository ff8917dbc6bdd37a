"""Block-diagonal matrices: one full block per layer, nothing between layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override


class BlockDiag:
    """A symmetric or triangular matrix in blocks."""

    def __init__(self, blocks: Sequence[Tensor]) -> None:
        """Take the blocks.

        Args:
            blocks: Square matrices, in the order of the parameters.  # [B, B] each
        """
        self.blocks = list(blocks)

    @classmethod
    def zeros(cls, sizes: Sequence[int], like: Tensor) -> BlockDiag:
        """A matrix of zeros that takes no memory until something is added.

        Args:
            sizes: The widths of the blocks.
            like: A tensor with the dtype and device.

        Returns:
            The matrix.
        """
        return cls([like.new_zeros(()).expand(size, size) for size in sizes])

    @property
    def sizes(self) -> list[int]:
        """The widths of the blocks."""
        return [len(block) for block in self.blocks]

    @property
    def nbytes(self) -> int:
        """The memory it takes."""
        return sum(block.untyped_storage().nbytes() for block in self.blocks)

    def clone(self) -> BlockDiag:
        """Copy the matrix.

        Returns:
            A matrix that shares no memory with this one.
        """
        return BlockDiag([block.clone() for block in self.blocks])

    def __iadd__(self, other: BlockDiag) -> BlockDiag:
        """Add a matrix and empty it, because laplace-torch would keep it for a while.

        Args:
            other: A matrix of the same sizes.

        Returns:
            This matrix.
        """
        for i, block in enumerate(other.blocks):
            if self.blocks[i].stride() == (0, 0):  # as zeros() made it
                self.blocks[i] = block
            else:
                self.blocks[i] += block
        other.blocks.clear()
        return self

    def split(self, vectors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through blocks and what they meet of some vectors.

        Args:
            vectors: Vectors of all parameters.  # [..., P]

        Yields:
            A block and a view of its part.  # [B, B], [..., B]
        """
        yield from zip(self.blocks, vectors.split(self.sizes, -1), strict=True)

    def quadratic(self, vector: Tensor) -> Tensor:
        """``v^T A v``.

        Args:
            vector: A vector of all parameters.  # [P]

        Returns:
            The number.  # []
        """
        return torch.stack([v @ (block @ v) for block, v in self.split(vector)]).sum()

    def times(self, vectors: Tensor) -> Tensor:
        """``A v``.

        Args:
            vectors: Vectors of all parameters.  # [..., P]

        Returns:
            The products.  # [..., P]
        """
        return torch.cat([v @ block.T for block, v in self.split(vectors)], -1)

    def transposed_times(self, vectors: Tensor) -> Tensor:
        """``A^T v``.

        Args:
            vectors: Vectors of all parameters.  # [..., P]

        Returns:
            The products.  # [..., P]
        """
        return torch.cat([v @ block for block, v in self.split(vectors)], -1)

    def detach(self) -> BlockDiag:
        """Leave autograd's graph.

        Returns:
            The same numbers.
        """
        return BlockDiag([block.detach() for block in self.blocks])

    def diag(self) -> Tensor:
        """The diagonal.

        Returns:
            The numbers.  # [P]
        """
        return torch.cat([block.diagonal() for block in self.blocks])

    def to_matrix(self) -> Tensor:
        """The whole matrix, with its zeros.

        Returns:
            The matrix.  # [P, P]
        """
        return torch.block_diag(*self.blocks)


class LogDet(torch.autograd.Function):
    """``log det(factor A + diag(prior))``, differentiable without keeping a matrix."""

    @staticmethod
    @override
    def forward(ctx: Any, block: Tensor, factor: Tensor, prior: Tensor) -> Tensor:
        precision = regularised(block, factor, prior)
        if not any(ctx.needs_input_grad):
            return 2 * torch.linalg.cholesky(precision).diagonal().log().sum()
        scale = root(precision)
        # d/dprior = diag(P^-1) and d/dfactor = tr(P^-1 A), A = (P - diag) / factor.
        variances = torch.linalg.vector_norm(scale, dim=1).square()
        by_factor = (len(block) - prior @ variances) / factor
        ctx.save_for_backward(by_factor, variances)
        return -2 * scale.diagonal().log().sum()

    @staticmethod
    @override
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor]:
        by_factor, variances = ctx.saved_tensors
        return None, grads[0] * by_factor, grads[0] * variances


def regularised(block: Tensor, factor: Tensor, prior: Tensor) -> Tensor:
    """The precision of a layer.

    Args:
        block: Its curvature.  # [B, B]
        factor: What noise and temperature make of it.  # []
        prior: The prior's precision.  # [B]

    Returns:
        ``factor A + diag(prior)``.  # [B, B]
    """
    precision = factor * block
    precision.diagonal().add_(prior)
    return precision


def root(precision: Tensor) -> Tensor:
    """The triangular root of a covariance, as laplace-torch's own ``full`` takes it.

    Args:
        precision: The inverse of the covariance.  # [B, B]

    Returns:
        Lower triangular S with ``S S^T = precision^-1``.  # [B, B]
    """
    # precision = U U^T with U upper triangular, so S = U^-T.
    upper = torch.linalg.cholesky(precision.flip(0, 1)).flip(0, 1)
    eye = torch.eye(len(upper), dtype=upper.dtype, device=upper.device)
    return torch.linalg.solve_triangular(upper.T, eye, upper=False)
