"""From a learned Gaussian to laplace-torch's, and from loaders to batches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lae_backpack.posterior.sampling import as_vector, evaluating
from lae_backpack.posterior.structures import ApproxDiagLaplace

if TYPE_CHECKING:
    from lae_backpack.variational.variational_laplace import VariationalLaplace


def inputs_and_targets(batch: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """What goes in and what shall come out.

    Args:
        batch: ``(x, y)``; or ``x`` or ``(x,)`` of an autoencoder.
        device: Where to.

    Returns:
        The inputs and the targets.
    """
    both = batch if isinstance(batch, list | tuple) else [batch]
    return both[0].to(device), both[-1].to(device)


@torch.no_grad()
def as_laplace(
    vl: VariationalLaplace, loader: Iterable[Any] | None
) -> ApproxDiagLaplace:
    """A posterior with given variances, none of them from curvature.

    Args:
        vl: What was learned.
        loader: The data, for the loss.

    Returns:
        The posterior.
    """
    la = ApproxDiagLaplace(
        vl.model,
        vl.likelihood_name,
        sigma_noise=vl.sigma_noise,
        prior_precision=as_vector(
            scale.expand_as(mean)
            for scale, mean in zip(vl.prior_scales, vl.means, strict=True)
        )
        ** -2,
    )
    precision = (-2 * as_vector(vl.log_sigmas)).exp()
    la.H = (precision - la.prior_precision_diag) / la._H_factor
    la.mean = as_vector(vl.means)
    la.n_data, la.n_outputs = vl.n_data, vl.n_outputs
    la.loss = math.nan if loader is None else _loss_of(vl, loader)
    return la


def _loss_of(vl: VariationalLaplace, loader: Iterable[Any]) -> float:
    """As laplace-torch counts it: half the squared error, or the cross-entropy."""
    loss, factor = nn.CrossEntropyLoss(reduction="sum"), 1.0
    if vl.likelihood_name == "regression":
        loss, factor = nn.MSELoss(reduction="sum"), 0.5
    batches = (inputs_and_targets(batch, vl.log_sigmas[0].device) for batch in loader)
    with evaluating(vl.model):
        return sum(factor * float(loss(vl.model(x), y)) for x, y in batches)
