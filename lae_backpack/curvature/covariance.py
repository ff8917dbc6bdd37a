"""What travels forwards through a net: a covariance, as columns and a rest.

It belongs to a tensor of shape ``[N, *shape]``, one matrix ``[F, F]`` per sample with
``F = prod(shape)``, and reads ``sum_k c_k c_k^T + diag(rest)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lae_backpack.curvature.quantities import features, unit_columns


class Source:
    """Standard normal numbers, independent of those of every other source.

    A set of columns says how a tensor depends on the numbers of one source. Columns
    of the *same* source may travel along several branches and are added where these
    meet: that keeps the branches' correlation.
    """


@dataclass(frozen=True, eq=False)
class Covariance:
    """Columns by their source, and a diagonal rest that is taken as independent.

    Two of them are equal only if they are the same one.

    Attributes:
        columns: The columns.  # [K, N, *shape] each
        rest: The variances besides.  # [N, *shape]
    """

    columns: Mapping[Source, Tensor] = field(default_factory=dict)
    rest: Tensor | None = None

    @classmethod
    def from_matrix(
        cls, matrix: Tensor, like: Tensor, max_columns: int | None = None
    ) -> Covariance:
        """Take a root of a matrix.

        Args:
            matrix: One positive semidefinite matrix per sample.  # [N, F, F]
            like: A tensor with the features' shape.  # [N, *shape]
            max_columns: Take no more columns than that; variances that they miss
                become the rest.

        Returns:
            The covariance, of a new source.
        """
        size = features(like)
        count = size if max_columns is None else min(size, max_columns)
        if count == size and matrix.dtype in (torch.float32, torch.float64):
            root, failed = torch.linalg.cholesky_ex(matrix)
            if not failed.any():
                columns = root.permute(2, 0, 1).reshape(count, *like.shape)
                return cls({Source(): columns})
        columns, missed = pivoted_root(matrix, count)
        columns = columns.reshape(count, *like.shape)
        rest = missed.reshape(like.shape) if count < size else None
        return cls({Source(): columns}, rest)

    def n_columns(self) -> int:
        """How many columns there are.

        Returns:
            Their number over all sources.
        """
        return sum(len(c) for c in self.columns.values())

    def variance(self, like: Tensor) -> Tensor:
        """The diagonal.

        Args:
            like: The tensor it belongs to.  # [N, *shape]

        Returns:
            The variances.  # [N, *shape]
        """
        total = torch.zeros_like(like) if self.rest is None else self.rest
        for columns in self.columns.values():
            for column in columns:
                # The first sum is a tensor of its own, to which the others are added.
                out = None if total is self.rest else total
                total = torch.addcmul(total, column, column, out=out)
        return total

    def matrix(self, like: Tensor) -> Tensor:
        """The covariance itself.

        Args:
            like: The tensor it belongs to.  # [N, *shape]

        Returns:
            One matrix per sample.  # [N, F, F]
        """
        size = features(like)
        total = like.new_zeros(len(like), size, size)
        if self.rest is not None:
            total = total + torch.diag_embed(self.rest.flatten(1))
        for columns in self.columns.values():
            total = total + gram(columns)
        return total

    def gathered(self, like: Tensor, max_columns: int | None = None) -> Covariance:
        """The same covariance, of one new source.

        Args:
            like: The tensor it belongs to.  # [N, *shape]
            max_columns: As for ``from_matrix``.

        Returns:
            At most one column per feature.
        """
        return Covariance.from_matrix(self.matrix(like), like, max_columns)

    def without_rest(self) -> Covariance:
        """The same covariance, with the rest as one column for each feature.

        Returns:
            Columns only; those that were there keep their source.
        """
        if self.rest is None:
            return self
        columns = unit_columns(self.rest) * self.rest.sqrt()
        return Covariance({**self.columns, Source(): columns})

    def scaled(self, factor: float) -> Covariance:
        """The covariance of a multiple of the tensor.

        Args:
            factor: By what the tensor is multiplied.

        Returns:
            Columns times the factor, the rest times its square.
        """
        rest = None if self.rest is None else factor**2 * self.rest
        return Covariance({s: factor * c for s, c in self.columns.items()}, rest)

    def __add__(self, other: Covariance) -> Covariance:
        """The covariance of a sum of two tensors.

        Args:
            other: The other tensor's covariance.

        Returns:
            Columns of the same source are added, with all cross terms; rests are taken
            as independent.
        """
        columns = dict(self.columns)
        for source, theirs in other.columns.items():
            columns[source] = columns[source] + theirs if source in columns else theirs
        rests = [r for r in (self.rest, other.rest) if r is not None]
        return Covariance(columns, sum(rests[1:], rests[0]) if rests else None)


def gram(columns: Tensor) -> Tensor:
    """The matrix that columns stand for.

    Args:
        columns: The columns.  # [K, N, *shape]

    Returns:
        The sum of their outer products.  # [N, F, F]
    """
    flat = columns.flatten(2).transpose(0, 1)  # [N, K, F]
    return flat.transpose(1, 2) @ flat


def pivoted_root(matrix: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first columns of a Cholesky root, the largest variance first.

    Unlike a plain one it takes singular matrices, and may stop early.

    Args:
        matrix: One positive semidefinite matrix per sample.  # [N, F, F]
        count: How many columns.

    Returns:
        The columns, and the variances that they miss.  # [K, N, F], [N, F]
    """
    missed = matrix.diagonal(dim1=1, dim2=2).clone()  # [N, F]
    columns = matrix.new_zeros(count, *missed.shape)
    samples = torch.arange(len(matrix), device=matrix.device)
    # What is below is rounding.
    floor = missed.amax(1) * torch.finfo(matrix.dtype).eps
    for k in range(count):
        variance, pivot = missed.max(1)
        column = matrix[samples, pivot]
        if k:
            known = columns[:k, samples, pivot]  # [k, N]
            column = column - torch.einsum("kn,knf->nf", known, columns[:k])
        factor = torch.where(variance > floor, variance.rsqrt(), 0.0)
        columns[k] = column * factor[:, None]
        missed = (missed - columns[k].square()).clamp(min=0)
        missed[samples, pivot] = 0
    return columns, missed
