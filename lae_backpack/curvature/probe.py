"""Random columns instead of a matrix: unbiased, at the cost of a backward pass."""

from __future__ import annotations

import math
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
        max_code: Where all outputs depend on a code with at most so many features, M is
            computed there, and all that comes before the code is exact.
    """

    max_dense_dim: int | None = field(default=None, init=False)
    n_columns: int = 1
    generator: torch.Generator | None = None
    max_code: int = 4

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
        shape = self.n_columns, n_samples, *like.shape[1:]
        count = math.prod(shape)
        # One draw has eight bytes, and the last bit of each makes a sign.
        draws = torch.empty(-(-count // 8), dtype=torch.int64, device=like.device)
        bits = draws.random_(generator=self.generator).view(torch.uint8) & 1
        return bits[:count].to(like.dtype).mul_(2).sub_(1).view(shape)

    def root(self, columns: Tensor) -> Dense:
        """Average over the columns.

        Args:
            columns: Each with expectation M.  # [K, N, *shape]

        Returns:
            M, in expectation.
        """
        columns = columns / self.n_columns**0.5
        return Dense(columns, columns)
