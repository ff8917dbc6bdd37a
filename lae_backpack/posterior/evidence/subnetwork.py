"""A few weights with all their covariances: those that are left most open."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from laplace.baselaplace import ParametricLaplace
from laplace.laplace import Laplace
from laplace.subnetlaplace import SubnetLaplace
from torch import Tensor

from lae_backpack.posterior.evidence.effective import marginal_variances


def largest_variances(la: ParametricLaplace, n_weights: int) -> Tensor:
    """The weights with the largest marginal variances.

    Args:
        la: A fitted posterior, for instance a cheap diagonal one.
        n_weights: How many.

    Returns:
        Their places in the vector of trainable weights, in order.  # [n_weights]

    Raises:
        ValueError: If there are not as many weights.
    """
    variances = marginal_variances(la)
    if not 1 <= n_weights <= len(variances):
        raise ValueError(
            f"n_weights must be from 1 to {len(variances)}, the posterior's weights, "
            f"got {n_weights}."
        )
    return variances.topk(n_weights).indices.sort().values.cpu()


def subnetwork_laplace(
    la: ParametricLaplace,
    loader: Iterable[Any],
    n_weights: int,
    hessian_structure: str = "full",
    **kwargs: Any,
) -> SubnetLaplace:
    """laplace-torch's posterior over the weights that are left most open.

    Args:
        la: A fitted posterior over all weights, for instance a cheap diagonal one.
        loader: The data.
        n_weights: How many weights.
        hessian_structure: ``"full"`` or ``"diag"``.
        **kwargs: As for laplace-torch's ``SubnetLaplace``; by default with the noise,
            temperature and prior of ``la``.

    Returns:
        The posterior, fitted.
    """
    indices = largest_variances(la, n_weights)
    settings = {
        "sigma_noise": la.sigma_noise,
        "temperature": la.temperature,
        **kwargs,
    }
    subnetwork = Laplace(
        la.model,
        la.likelihood,
        subset_of_weights="subnetwork",
        hessian_structure=hessian_structure,
        subnetwork_indices=indices,
        **settings,
    )
    assert isinstance(subnetwork, SubnetLaplace)
    if "prior_precision" not in kwargs:
        prior = torch.as_tensor(la.prior_precision).detach()
        if prior.numel() > 1:
            prior = la.prior_precision_diag.detach()[indices.to(prior.device)]
        # The host reads one number for each weight, but its setter refuses it.
        subnetwork._prior_precision = prior.reshape(-1)
    subnetwork.fit(loader)  # pyright: ignore[reportArgumentType]
    return subnetwork
