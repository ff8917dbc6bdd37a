"""From a local model to a Gaussian over codes, whole or along few directions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from lae_backpack.latent.local_model import LocalModel


def gaussian_at(
    z: Tensor, local: LocalModel, rank: int | None, n_iterations: int
) -> MultivariateNormal:
    """The Gaussian with a code for its mean and the local model's precision.

    Args:
        z: The codes.  # [N, K]
        local: The model at them.
        rank: How many directions of the pixels' precision are kept; ``None`` for all.
        n_iterations: Power iterations to find them.

    Returns:
        One Gaussian for each code.
    """
    if rank is None or rank >= z.shape[1]:
        precision = local.precision()
    else:
        precision = truncated_precision(local, rank, n_iterations)
    # torch's own check of symmetry is too strict for float32; a matrix that is not
    # positive definite fails in the Cholesky decomposition anyway.
    return MultivariateNormal(z, precision_matrix=precision, validate_args=False)


def truncated_precision(local: LocalModel, rank: int, n_iterations: int) -> Tensor:
    """``I + V B V^T``, with V the leading eigenvectors of the pixels' precision.

    Directions that are left out keep the prior's variance: with V converged, the
    Gaussian is wider than the whole one, never narrower. Gradients flow through
    ``B = V^T (W^T S W) V``; V is taken as given.

    Args:
        local: The model at the codes.
        rank: The number of directions.
        n_iterations: Power iterations, all directions at once.

    Returns:
        The precision.  # [N, K, K]
    """
    directions = leading_directions(local, rank, n_iterations)
    inner = directions.transpose(1, 2) @ _times(local, directions)
    inner = (inner + inner.transpose(1, 2)) / 2
    size = directions.shape[1]
    eye = torch.eye(size, dtype=directions.dtype, device=directions.device)
    return eye + directions @ inner @ directions.transpose(1, 2)


@torch.no_grad()
def leading_directions(local: LocalModel, rank: int, n_iterations: int) -> Tensor:
    """The leading eigenvectors of ``W^T S W`` by power iteration.

    Args:
        local: The model at the codes.
        rank: How many.
        n_iterations: How many iterations, each of ``rank`` products.

    Returns:
        Orthonormal columns that span them.  # [N, K, rank]
    """
    batch, size = local.gradient.shape
    # Always the same start, so that equal inputs have equal posteriors.
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(size, rank, generator=generator, dtype=torch.float64)
    directions = torch.linalg.qr(start)[0].to(local.gradient).expand(batch, -1, -1)
    for _ in range(n_iterations):
        directions = torch.linalg.qr(_times(local, directions))[0]
    return directions


def _times(local: LocalModel, columns: Tensor) -> Tensor:
    """``W^T S W`` times each of several columns.  # [N, K, R]."""
    products = [local.pixels_precision(column) for column in columns.unbind(-1)]
    return torch.stack(products, dim=-1)
