"""Both uncertainties of a LaplaceAE's codes: from the weights and from the code.

Each network drawn from the weights' posterior has a decoder, and with it a Laplace
approximation over codes. The variance of their means is the weights' part, the mean of
their variances the code's, and the law of total variance adds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.nn import Module

from lae_backpack.curvature.quantities import features
from lae_backpack.latent.latent_laplace import LatentLaplace
from lae_backpack.posterior.autoencoder import LaplaceAE
from lae_backpack.posterior.batches import checked_images
from lae_backpack.posterior.choices import require_at_least_one
from lae_backpack.posterior.chunks import automatic_size
from lae_backpack.posterior.code_parts import register_code_part
from lae_backpack.posterior.sampling import (
    Weights,
    evaluating,
    run_with,
    weights_of,
    without_hooks,
)


class Reweighted(Module):
    """One part of an autoencoder, run with weights that are not its own."""

    def __init__(self, model: Module, part: str, weights: Weights) -> None:
        """Pick the part and its weights.

        Args:
            model: The autoencoder.
            part: ``"encoder"`` or ``"decoder"``.
            weights: The whole model's, by name.
        """
        super().__init__()
        self.module = getattr(model, part)
        self.weights = weights_of(part, weights)

    def forward(self, x: Tensor) -> Tensor:
        """Run the part.

        Args:
            x: Its input.

        Returns:
            Its output.
        """
        return run_with(self.module, self.weights, x)


def sampled_posteriors(
    la: LaplaceAE,
    x: Tensor,
    n_samples: int = 100,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
    n_updates: int = 0,
    **settings: Any,
) -> Iterator[MultivariateNormal]:
    """The Gaussian over codes under each of several sampled networks.

    With equal generators they belong to the same networks as ``la.samples``.

    Args:
        la: Fitted.
        x: A batch.  # [N, *in]
        n_samples: How many networks.
        generator: Where randomness comes from.
        chunk_size: Images whose Jacobians are there at once; ``None`` chooses.
        n_updates: Updates from the encoder's code to the mode. None keeps the code
            where the encoder puts it, which knows no prior over codes.
        **settings: As for ``LatentLaplace``.

    Yields:
        One Gaussian for each image, network by network.
    """
    require_at_least_one("n_samples", n_samples)
    draws = la.sampler().draws(n_samples, generator)
    yield from _posteriors(la, x, draws, chunk_size, n_updates, **settings)


@register_code_part("code")
def code_moments(
    la: LaplaceAE,
    x: Tensor,
    n_samples: int,
    generator: torch.Generator | None,
    chunk_size: int | None,
) -> tuple[Tensor, Tensor]:
    """The code's own uncertainty, under the mean weights.

    Args:
        la: Fitted.
        x: A batch.  # [N, *in]
        n_samples: Not needed.
        generator: Not needed.
        chunk_size: As for ``la(x)``.

    Returns:
        Mean and variance.  # [N, K] each
    """
    sampler = la.sampler()
    networks = [sampler.by_name(sampler.mean)]
    (q,) = _posteriors(la, x, networks, chunk_size, n_updates=0)
    return q.mean, q.variance


@register_code_part("both")
def total_moments(
    la: LaplaceAE,
    x: Tensor,
    n_samples: int,
    generator: torch.Generator | None,
    chunk_size: int | None,
) -> tuple[Tensor, Tensor]:
    """The weights' and the code's uncertainty together.

    Args:
        la: Fitted.
        x: A batch.  # [N, *in]
        n_samples: How many networks are sampled.
        generator: Where randomness comes from.
        chunk_size: As for ``la(x)``.

    Returns:
        Mean and variance.  # [N, K] each
    """
    posteriors = sampled_posteriors(la, x, n_samples, generator, chunk_size)
    moments = [torch.stack([q.mean, q.variance]) for q in posteriors]
    means, variances = torch.stack(moments, dim=1)  # [S, N, K] each
    between = means.var(0, correction=min(1, n_samples - 1))
    return means.mean(0), between + variances.mean(0)


def _posteriors(
    la: LaplaceAE,
    x: Tensor,
    networks: Iterable[Weights],
    chunk_size: int | None,
    n_updates: int,
    **settings: Any,
) -> Iterator[MultivariateNormal]:
    if chunk_size is not None:
        require_at_least_one("chunk_size", chunk_size)
    model = without_hooks(la.model)
    x = checked_images(x, model)
    likelihood = "bernoulli" if la.bernoulli else "gaussian"
    for weights in networks:
        # Nothing of this may hold while the caller has its turn.
        with evaluating(model), torch.no_grad():
            codes = Reweighted(model, "encoder", weights)(x)
            decoder = Reweighted(model, "decoder", weights)
            laplace = LatentLaplace(decoder, likelihood, la.sigma_noise, **settings)
            # A Jacobian has as many numbers as the image times those of the code.
            size = automatic_size(x, features(x) * features(codes))
            size = size if chunk_size is None else chunk_size
            found = [
                laplace.posterior(chunk, code, n_updates)
                for chunk, code in zip(x.split(size), codes.split(size), strict=True)
            ]
        mean = torch.cat([q.mean for q in found])
        root = torch.cat([q.scale_tril for q in found])
        yield MultivariateNormal(mean, scale_tril=root, validate_args=False)
