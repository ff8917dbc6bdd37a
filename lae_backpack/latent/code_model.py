"""Generative models with a Gaussian over each image's code, however it is found."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.nn import Module, Parameter

from lae_backpack.latent.checks import code_size
from lae_backpack.latent.likelihoods import Likelihood, likelihood_named
from lae_backpack.latent.linearisation import require_image
from lae_backpack.posterior.choices import require_at_least_one


class CodeModel(Module, ABC):
    """``z ~ N(0, I)``, ``x ~ p(x | decoder(z))``, and a posterior that subclasses give.

    Attributes:
        decoder: Maps codes to images, or to their logits.
        log_sigma: Of Gaussian pixels, one learned number; ``None`` for Bernoulli ones.
    """

    def __init__(
        self,
        decoder: Module,
        likelihood: str = "gaussian",
        *,
        sigma: float = 1.0,
        code_dim: int | None = None,
    ) -> None:
        """Keep the generative part.

        Args:
            decoder: Maps codes to images, or to their logits.
            likelihood: ``"gaussian"`` or ``"bernoulli"``.
            sigma: The standard deviation of Gaussian pixels to begin with.
            code_dim: The size of a code, if the decoder's first layer does not tell.
        """
        super().__init__()
        likelihood_named(likelihood, sigma)
        self.decoder = decoder
        self.likelihood_name = likelihood
        self.code_dim = code_dim
        log_sigma = torch.tensor(float(sigma)).log()
        self.log_sigma = Parameter(log_sigma) if likelihood == "gaussian" else None

    @abstractmethod
    def posterior(self, x: Tensor) -> MultivariateNormal:
        """The Gaussian over each image's code.

        Args:
            x: The images.  # [N, *in]

        Returns:
            One Gaussian for each image.
        """

    @property
    def sigma(self) -> Tensor | float:
        """The standard deviation of Gaussian pixels; of no meaning for others."""
        return 1.0 if self.log_sigma is None else self.log_sigma.exp()

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood with the present noise."""
        return likelihood_named(self.likelihood_name, self.sigma)

    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        """``log p(x | z)``.

        Args:
            x: The images.  # [N, *in]
            z: Their codes.  # [N, K]

        Returns:
            One number for each image.  # [N]
        """
        output = self.decoder(z)
        require_image(output, x)
        return self.likelihood.log_prob(x, output).flatten(1).sum(1)

    def elbo(
        self, x: Tensor, n_samples: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """The evidence lower bound of each image, in nats.

        The expected log-density is sampled, the divergence from the prior exact.

        Args:
            x: The images.  # [N, *in]
            n_samples: How many codes are drawn for each.
            generator: Where randomness comes from.

        Returns:
            The bounds.  # [N]
        """
        require_at_least_one("n_samples", n_samples)
        q = self.posterior(x)
        log_probs = [self.log_prob(x, draw(q, generator)) for _ in range(n_samples)]
        return torch.stack(log_probs).mean(0) - divergence_from_prior(q)

    @torch.no_grad()
    def log_likelihood(
        self,
        x: Tensor,
        n_importance: int = 100,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """``log p(x)`` by importance sampling from the posterior.

        A lower bound in expectation that rises with the number of samples; the memory
        it takes does not.

        Args:
            x: The images.  # [N, *in]
            n_importance: How many codes are drawn for each.
            generator: Where randomness comes from.

        Returns:
            One estimate for each image.  # [N]
        """
        require_at_least_one("n_importance", n_importance)
        q = self.posterior(x)
        log_det = q.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        total = x.new_full((len(x),), -math.inf)
        for _ in range(n_importance):
            noise = torch.empty_like(q.mean).normal_(generator=generator)
            z = shifted(q, noise)
            # Both densities have the same constant, and the noise is the code again.
            ratio = 0.5 * (noise.square() - z.square()).sum(1) + log_det
            total = torch.logaddexp(total, self.log_prob(x, z) + ratio)
        return total - math.log(n_importance)

    def reconstruct(self, x: Tensor) -> Tensor:
        """Decode the posterior's mean.

        Args:
            x: The images.  # [N, *in]

        Returns:
            Expected pixels.  # [N, *in]
        """
        return self.likelihood.mean(self.decoder(self.posterior(x).mean))

    def forward(self, x: Tensor) -> Tensor:
        """As ``reconstruct``.

        Args:
            x: The images.  # [N, *in]

        Returns:
            Expected pixels.  # [N, *in]
        """
        return self.reconstruct(x)

    @torch.no_grad()
    def sample(
        self, n_samples: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """Decode codes drawn from the prior.

        Args:
            n_samples: How many.
            generator: Where randomness comes from.

        Returns:
            Expected pixels, without their noise.  # [S, *in]
        """
        require_at_least_one("n_samples", n_samples)
        size = self.code_dim or code_size(self.decoder)
        weight = next(self.decoder.parameters())
        z = weight.new_empty(n_samples, size).normal_(generator=generator)
        return self.likelihood.mean(self.decoder(z))


def draw(q: MultivariateNormal, generator: torch.Generator | None = None) -> Tensor:
    """Draw from Gaussians, differentiably.

    Args:
        q: The Gaussians.
        generator: Where randomness comes from; torch's own method takes none.

    Returns:
        One draw of each.  # [N, K]
    """
    return shifted(q, torch.empty_like(q.mean).normal_(generator=generator))


def shifted(q: MultivariateNormal, noise: Tensor) -> Tensor:
    """Standard normal noise as draws from Gaussians.

    Args:
        q: The Gaussians.
        noise: The noise.  # [N, K]

    Returns:
        Draws of them.  # [N, K]
    """
    return q.mean + (q.scale_tril @ noise[..., None])[..., 0]


def divergence_from_prior(q: MultivariateNormal) -> Tensor:
    """The Kullback-Leibler divergence from N(0, I).

    Args:
        q: The Gaussians.

    Returns:
        One number for each, in nats.  # [N]
    """
    root = q.scale_tril
    trace = root.square().sum((-2, -1))
    log_det = root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return 0.5 * (trace + q.mean.square().sum(-1) - q.mean.shape[-1]) - log_det
