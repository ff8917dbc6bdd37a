"""What travels backwards through a net: a diagonal, or a dense matrix in columns.

Both describe M, the loss Hessian pulled back to a tensor of shape ``[N, *shape]``,
one matrix ``[F, F]`` per sample with ``F = prod(shape)``. The batch dimension may be 1
where every sample has the same M (a squared error, until the first non-linearity).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lae_backpack.curvature.errors import UnsupportedModelError


def features(x: Tensor) -> int:
    """Number of features of one sample of a batch.

    Args:
        x: A batch.  # [N, *shape]

    Returns:
        The product of all dimensions but the first.
    """
    return x.numel() // x.shape[0]  # len(x) takes several times as long


@dataclass(frozen=True)
class Diag:
    """M is diagonal, or taken to be."""

    values: Tensor  # [N or 1, *shape]

    def to_dense(self) -> Dense:
        """The same M in columns.

        Returns:
            A dense quantity with one column per feature.
        """
        right = unit_columns(self.values)
        return Dense(right * self.values, right)

    def __add__(self, other: Diag | Dense) -> Diag | Dense:
        """Sum what two branches pulled back to the same tensor.

        Args:
            other: What the other branch carries.

        Returns:
            The sum. The cross term between the branches needs more than diagonals
            and is dropped.
        """
        if isinstance(other, Dense):
            return self.to_dense() + other
        return Diag(self.values + other.values)


@dataclass
class Fork:
    """How many pieces of one dense M are on their way to be summed again."""

    pieces: int = 1


@dataclass(frozen=True)
class Dense:
    """M in columns: ``M = sum_k left_k right_k^T``.

    Two sets of columns instead of one root, because ``(M, I)`` is always at hand
    where a root would need an eigendecomposition. Pulling back is linear in each set,
    so pieces of the *same* columns may travel different branches and be added where
    the branches meet: that keeps all cross terms.
    """

    left: Tensor  # [K, N or 1, *shape]
    right: Tensor  # [K, N or 1, *shape]
    fork: Fork = field(default_factory=Fork)

    @classmethod
    def from_matrix(cls, matrix: Tensor, like: Tensor) -> Dense:
        """Read the columns off a matrix.

        Args:
            matrix: One symmetric matrix per sample.  # [N or 1, F, F]
            like: A tensor with the features' shape.  # [any, *shape]

        Returns:
            The quantity ``(M, I)``.
        """
        left = matrix.transpose(0, 1).reshape(-1, len(matrix), *like.shape[1:])
        return cls(left, unit_columns(like))

    def matrix(self) -> Tensor:
        """M itself.

        Returns:
            One matrix per sample.  # [N or 1, F, F]
        """
        left, right = (c.flatten(2).transpose(0, 1) for c in (self.left, self.right))
        return left.transpose(1, 2) @ right

    def diag(self) -> Tensor:
        """The diagonal of M.

        Returns:
            The diagonal in the features' shape.  # [N or 1, *shape]
        """
        if len(self.left) == 1:
            return self.left[0] * self.right[0]
        return (self.left * self.right).sum(0)

    @property
    def is_root(self) -> bool:
        """Whether both sets are the same: ``M = sum_k v_k v_k^T``."""
        return self.left is self.right

    def each(self, change: Callable[[Tensor], Tensor]) -> Dense:
        """Change both sets of columns in the same way.

        Args:
            change: What happens to a set.  # [K, N or 1, *shape] -> [K, N or 1, ...]

        Returns:
            The changed columns; of a root, changed once.
        """
        left = change(self.left)
        right = left if self.is_root else change(self.right)
        return Dense(left, right, self.fork)

    def split(self, pieces: int) -> Dense:
        """Announce that these columns now travel along several branches.

        Args:
            pieces: The number of branches.

        Returns:
            The same columns, to be handed to every branch.
        """
        self.fork.pieces += pieces - 1
        return self

    def leave_fork(self) -> None:
        """Announce that this piece goes on as a diagonal and will not be summed."""
        self.fork.pieces -= 1

    def compressed(self) -> Dense:
        """Use no more columns than there are features.

        Columns that are still to be summed with another branch's stay as they are.

        Returns:
            The same M.
        """
        if self.fork.pieces > 1 or len(self.left) <= features(self.left[0]):
            return self
        return Dense.from_matrix(self.matrix(), self.left[0])

    def __add__(self, other: Diag | Dense) -> Dense:
        """Sum what two branches pulled back to the same tensor.

        Args:
            other: What the other branch carries.

        Returns:
            The sum, with all cross terms if both are pieces of the same columns.

        Raises:
            UnsupportedModelError: If the sum would lose cross terms.
        """
        if isinstance(other, Diag):
            other = other.to_dense()
        if self.fork is other.fork:
            self.fork.pieces -= 1
            left = self.left + other.left
            both_roots = self.is_root and other.is_root
            right = left if both_roots else self.right + other.right
            return Dense(left, right, self.fork)
        if max(self.fork.pieces, other.fork.pieces) > 1:
            raise UnsupportedModelError(
                "Two losses meet in a branch whose other part is still on its way, "
                "which dense quantities cannot follow. Run one pass for each loss."
            )
        return Dense(
            _stack_columns(self.left, other.left),
            _stack_columns(self.right, other.right),
        )


def unit_columns(like: Tensor) -> Tensor:
    """The identity matrix in columns.

    Args:
        like: A tensor with the features' shape.  # [any, *shape]

    Returns:
        One unit vector per feature.  # [F, 1, *shape]
    """
    size = features(like)
    eye = torch.eye(size, dtype=like.dtype, device=like.device)
    return eye.reshape(size, 1, *like.shape[1:])


def _stack_columns(first: Tensor, second: Tensor) -> Tensor:
    batch = max(first.shape[1], second.shape[1])
    shape = (-1, batch, *first.shape[2:])
    return torch.cat([first.expand(shape), second.expand(shape)])
