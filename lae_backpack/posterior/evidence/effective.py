"""How many parameters the data determine, and how far each is left open."""

from __future__ import annotations

import torch
from laplace.baselaplace import (
    DiagLaplace,
    FullLaplace,
    KronLaplace,
    ParametricLaplace,
)
from laplace.subnetlaplace import SubnetLaplace
from laplace.utils.matrix import KronDecomposed
from torch import Tensor

from lae_backpack.posterior.block_diagonal import BlockDiagLaplace

KNOWN = "diagonal, block_diag, kron, full"


@torch.no_grad()
def marginal_variances(la: ParametricLaplace) -> Tensor:
    """The posterior variance of each weight.

    Args:
        la: A fitted posterior: any diagonal structure, block_diag, kron or full.

    Returns:
        The diagonal of the covariance.  # [P]

    Raises:
        TypeError: If the structure has no such diagonal.
    """
    require_fit(la)
    if isinstance(la, DiagLaplace):
        return la.posterior_precision.reciprocal()
    if isinstance(la, KronLaplace):
        precision = la.posterior_precision
        return precision.diag(exponent=-1)
    if isinstance(la, FullLaplace):
        return torch.linalg.vector_norm(la.posterior_scale, dim=1).square()
    if isinstance(la, BlockDiagLaplace):
        rows = [torch.linalg.vector_norm(s, dim=1) for s in la.posterior_scale.blocks]
        return torch.cat(rows).square()
    raise TypeError(_unknown(la))


@torch.no_grad()
def posterior_times(la: ParametricLaplace, vector: Tensor) -> Tensor:
    """Multiply by the posterior's covariance.

    Args:
        la: A fitted posterior: any diagonal structure, block_diag, kron or full.
        vector: A number for each weight.  # [P]

    Returns:
        The product.  # [P]

    Raises:
        TypeError: If the structure has no covariance to multiply by.
    """
    if isinstance(la, DiagLaplace):
        return vector / la.posterior_precision
    if isinstance(la, KronLaplace):
        return la.posterior_precision.bmm(vector, exponent=-1).reshape(-1)
    if isinstance(la, FullLaplace):
        return la.posterior_scale @ (la.posterior_scale.T @ vector)
    if isinstance(la, BlockDiagLaplace):
        return la.posterior_scale.times(la.posterior_scale.transposed_times(vector))
    raise TypeError(_unknown(la))


@torch.no_grad()
def effective_of_each(la: ParametricLaplace) -> Tensor:
    """How far the data, not the prior, determine each weight.

    Args:
        la: A fitted posterior.

    Returns:
        Between 0 (the prior alone) and 1 (the data alone).  # [P]
    """
    if isinstance(la, DiagLaplace):  # without the cancellation of 1 - prior * variance
        require_fit(la)
        return la._H_factor * la.H / la.posterior_precision
    shares = 1 - la.prior_precision_diag * marginal_variances(la)
    return shares.clamp(0, 1)  # rounding


def effective_parameters(la: ParametricLaplace) -> Tensor:
    """MacKay's gamma: how many parameters the data determine.

    Close to ``la.n_params`` it says that a larger network may do better.

    Args:
        la: A fitted posterior: any diagonal structure, block_diag, kron or full.

    Returns:
        Between 0 and the number of parameters.  # []
    """
    return effective_of_each(la).sum()


def weights_from_prior(la: ParametricLaplace) -> Tensor:
    """How far the network's weights are from the prior's mean.

    Args:
        la: A fitted posterior.

    Returns:
        One number for each weight that the posterior is about.  # [P]
    """
    if isinstance(la, SubnetLaplace):
        return la.mean_subnet - la.prior_mean
    return la.mean - la.prior_mean


def require_fit(la: ParametricLaplace) -> None:
    """Refuse a posterior without data.

    Args:
        la: The posterior.

    Raises:
        RuntimeError: If it is not fitted.
    """
    undecomposed = isinstance(la, KronLaplace) and not isinstance(la.H, KronDecomposed)
    if not la.n_data or undecomposed:
        raise RuntimeError(
            f"This {type(la).__name__} is not fitted. Call la.fit(loader) first."
        )


def _unknown(la: ParametricLaplace) -> str:
    return (
        f"{type(la).__name__} has no diagonal to count effective parameters with; "
        f"allowed: {KNOWN}. Choose one of them as hessian_structure."
    )
