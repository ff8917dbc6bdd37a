"""A few weights with all their covariances: those that are left most open."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

import torch
from laplace.baselaplace import ParametricLaplace
from laplace.laplace import Laplace
from laplace.subnetlaplace import SubnetLaplace
from torch import Tensor

from lae_backpack.posterior.batches import NO_BATCH, Pairs, images_of
from lae_backpack.posterior.evidence.effective import marginal_variances
from lae_backpack.posterior.reconstruction import Reconstructions
from lae_backpack.posterior.sampling import evaluating


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
        loader: The data; of an autoencoder, in any form that its ``fit`` takes.
        n_weights: How many weights.
        hessian_structure: ``"full"`` or ``"diag"``.
        **kwargs: As for laplace-torch's ``SubnetLaplace``; by default with the noise,
            temperature and prior of ``la``.

    Returns:
        The posterior, fitted.

    Raises:
        TypeError: If pixels are Bernoulli, which laplace-torch does not know.
    """
    if isinstance(la, Reconstructions):
        if la.bernoulli:
            raise TypeError(
                "subnetwork_laplace got a LaplaceAE with likelihood='bernoulli', and "
                "laplace-torch's subnetworks know Gaussian pixels and classes only. "
                "Use a LaplaceAE with likelihood='regression'."
            )
        loader = Pairs(loader)
    _require_vectors(la, loader)
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
    # The host reads one number for each weight of the subnetwork, but its setters
    # refuse that.
    if "prior_precision" not in kwargs:
        prior = torch.as_tensor(la.prior_precision)
        one_each = la.prior_precision_diag if prior.numel() > 1 else prior
        subnetwork._prior_precision = _of(indices, one_each)
    if "prior_mean" not in kwargs:
        subnetwork._prior_mean = _of(indices, torch.as_tensor(la.prior_mean))
    subnetwork.fit(loader)  # pyright: ignore[reportArgumentType]
    return subnetwork


@torch.no_grad()
def _require_vectors(la: ParametricLaplace, loader: Iterable[Any]) -> None:
    """Refuse images, for which laplace-torch's subnetworks have no Jacobian.

    Raises:
        ValueError: If the model's outputs are no vectors, or there are no data.
    """
    first = next(iter(loader), None)
    if first is None:
        raise ValueError(NO_BATCH)
    # laplace-torch gives mappings to the model as they are.
    is_mapping = isinstance(first, MutableMapping)
    x = first if is_mapping else images_of(first)[:1].to(la._device)
    with evaluating(la.model):
        shape = la.model(x).shape
    if len(shape) != 2:
        raise ValueError(
            f"subnetwork_laplace got a model with outputs of shape {tuple(shape[1:])}, "
            "and laplace-torch's subnetworks need vectors. Let the model end with "
            "nn.Flatten() and flatten the targets, too."
        )


def _of(indices: Tensor, numbers: Tensor) -> Tensor:
    """Those of some weights, if there is more than one for all."""
    numbers = numbers.detach().reshape(-1)
    return numbers if len(numbers) == 1 else numbers[indices.to(numbers.device)]
