"""Random columns instead of a matrix: unbiased, at the cost of a backward pass."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from lae_backpack.curvature.policy import DensePolicy
from lae_backpack.curvature.quantities import Dense, Diag


@dataclass(frozen=True)
class Probe(DensePolicy):
    """``v v^T`` with random signs in v, whose expectation is M.

    M is kept while it is diagonal, so the last layer's curvature is exact; from there
    on each sample has its own random columns, and every diagonal is unbiased.

    Attributes:
        n_columns: Columns per sample.
        generator: Where randomness comes from.
    """

    max_dense_dim: int | None = field(default=None, init=False)
    n_columns: int = 1
    generator: torch.Generator | None = None

    @property
    @override
    def draws_columns(self) -> bool:
        return True

    @override
    def columns(self, diag: Diag, n_samples: int) -> Dense:
        return self.root(diag.values.sqrt() * self.signs(diag.values, n_samples))

    def signs(self, like: Tensor, n_samples: int) -> Tensor:
        """Draw +1 and -1. Of all noise with unit variance they spread least.

        Args:
            like: A tensor with the features' shape.  # [any, *shape]
            n_samples: The samples of the batch.

        Returns:
            The signs.  # [K, N, *shape]
        """
        signs = like.new_empty(self.n_columns, n_samples, *like.shape[1:])
        return signs.bernoulli_(0.5, generator=self.generator).mul_(2).sub_(1)

    def root(self, columns: Tensor) -> Dense:
        """Average over the columns.

        Args:
            columns: Each with expectation M.  # [K, N, *shape]

        Returns:
            M, in expectation.
        """
        columns = columns / self.n_columns**0.5
        return Dense(columns, columns)
