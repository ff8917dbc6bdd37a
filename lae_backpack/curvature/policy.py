"""Which tensors carry a dense matrix instead of a diagonal."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lae_backpack.curvature.quantities import Dense, Diag, features


@dataclass(frozen=True)
class DensePolicy:
    """Dense where a tensor has at most ``max_dense_dim`` features per sample.

    Attributes:
        max_dense_dim: The limit. ``0`` means nowhere (the approximate diagonal),
            ``None`` everywhere (the exact diagonal).
    """

    max_dense_dim: int | None

    def __post_init__(self) -> None:
        """Refuse what is no limit.

        Raises:
            TypeError: If the limit is neither an integer nor ``None``.
            ValueError: If the limit is negative.
        """
        limit = self.max_dense_dim
        if limit is None:
            return
        if not isinstance(limit, int) or isinstance(limit, bool):
            raise TypeError(
                f"max_dense_dim must be an integer or None, got {limit!r}. Use 0 for "
                "the approximate and None for the exact diagonal."
            )
        if limit < 0:
            raise ValueError(
                f"max_dense_dim must be at least 0, got {limit}. Use 0 for the "
                "approximate and None for the exact diagonal."
            )

    def carries_dense(self, x: Tensor) -> bool:
        """Whether M at this tensor is kept dense.

        Args:
            x: A batch.  # [N, *shape]

        Returns:
            True if the number of features is within the limit.
        """
        return self.max_dense_dim is None or features(x) <= self.max_dense_dim

    @property
    def draws_columns(self) -> bool:
        """Whether random columns stand for M."""
        return False

    def columns(self, diag: Diag, n_samples: int) -> Dense:
        """Columns for a diagonal M that will not stay diagonal.

        Args:
            diag: M.
            n_samples: The samples of the batch.

        Returns:
            M in columns.
        """
        return diag.to_dense()


# The limit of the mixed diagonal unless told otherwise: benchmarks keep it within twice
# the approximate diagonal's cost.
DEFAULT_MAX_DENSE_DIM = 128

APPROX = DensePolicy(0)
EXACT = DensePolicy(None)
