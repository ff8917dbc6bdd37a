"""Variational Laplace autoencoders, after Park, Kim and Kim (2019)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.nn import Module, Parameter

from lae_backpack.latent.checks import code_size, require_count
from lae_backpack.latent.latent_laplace import LatentLaplace
from lae_backpack.latent.linearisation import require_image
from lae_backpack.latent.mode import Decay, halved_decay


class VLAE(Module):
    """An autoencoder whose codes have full-covariance posteriors from the decoder.

    The encoder says where the search for the mode starts; all gradients flow through
    the updates into both parts. Train it in your own loop:
    ``(-vlae.elbo(x).mean()).backward()``.
    """

    def __init__(
        self,
        encoder: Module,
        decoder: Module,
        likelihood: str = "gaussian",
        *,
        sigma: float = 1.0,
        n_updates: int = 1,
        alpha: Decay = halved_decay,
        guarded: bool = False,
        linearisation: str = "jacobian",
        rank: int | None = None,
        code_dim: int | None = None,
    ) -> None:
        """Keep both parts.

        Args:
            encoder: Maps images to codes ``[N, K]``.
            decoder: Maps codes to images, or to their logits.
            likelihood: ``"gaussian"`` or ``"bernoulli"``.
            sigma: The standard deviation of Gaussian pixels to begin with; one number
                for all pixels, learned.
            n_updates: T, how many updates of the mode.
            alpha: The share of each step, as for ``LatentLaplace``; the paper's.
            guarded: Shorten steps that would lower ``log p(x, z)``.
            linearisation: ``"jacobian"`` or ``"products"``.
            rank: As for ``LatentLaplace``.
            code_dim: The size of a code, if the decoder's first layer does not tell.

        Raises:
            ValueError: If a choice is not one that can be trained.
        """
        super().__init__()
        if linearisation == "engine":
            raise ValueError(
                "linearisation='engine' has no gradients, so a VLAE cannot train by "
                "it. Use 'jacobian' or 'products'; LatentLaplace takes all three."
            )
        require_count("n_updates", n_updates, 0)
        self.encoder = encoder
        self.decoder = decoder
        self.n_updates = n_updates
        self.likelihood_name = likelihood
        self.settings: dict[str, Any] = {
            "alpha": alpha,
            "guarded": guarded,
            "linearisation": linearisation,
            "rank": rank,
            "code_dim": code_dim,
        }
        LatentLaplace(decoder, likelihood, sigma, **self.settings)  # checks them
        log_sigma = torch.tensor(float(sigma)).log()
        self.log_sigma = Parameter(log_sigma) if likelihood == "gaussian" else None

    @property
    def laplace(self) -> LatentLaplace:
        """The Laplace approximation at the present weights and noise."""
        sigma = 1.0 if self.log_sigma is None else self.log_sigma.exp()
        return LatentLaplace(self.decoder, self.likelihood_name, sigma, **self.settings)

    def posterior(self, x: Tensor, n_updates: int | None = None) -> MultivariateNormal:
        """The Gaussian over each image's code.

        Args:
            x: The images.  # [N, *in]
            n_updates: How many updates of the mode, if not as in training.

        Returns:
            One Gaussian for each image.
        """
        n_updates = self.n_updates if n_updates is None else n_updates
        return self.laplace.posterior(x, self.encoder(x), n_updates)

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
        require_count("n_samples", n_samples, 1)
        q = self.posterior(x)
        log_probs = [self._log_prob(x, draw(q, generator)) for _ in range(n_samples)]
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
        require_count("n_importance", n_importance, 1)
        q = self.posterior(x)
        total = x.new_full((len(x),), -math.inf)
        for _ in range(n_importance):
            z = draw(q, generator)
            prior = -0.5 * (z.square() + math.log(2 * math.pi)).sum(1)
            weight = self._log_prob(x, z) + prior - q.log_prob(z)
            total = torch.logaddexp(total, weight)
        return total - math.log(n_importance)

    def reconstruct(self, x: Tensor) -> Tensor:
        """Decode the posterior's mean.

        Args:
            x: The images.  # [N, *in]

        Returns:
            Expected pixels.  # [N, *in]
        """
        return self._mean(self.posterior(x).mean)

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
        require_count("n_samples", n_samples, 1)
        size = self.settings["code_dim"] or code_size(self.decoder)
        weight = next(self.decoder.parameters())
        z = weight.new_empty(n_samples, size).normal_(generator=generator)
        return self._mean(z)

    def forward(self, x: Tensor) -> Tensor:
        """As ``reconstruct``.

        Args:
            x: The images.  # [N, *in]

        Returns:
            Expected pixels.  # [N, *in]
        """
        return self.reconstruct(x)

    def _log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        output = self.decoder(z)
        require_image(output, x)
        return self.laplace.likelihood.log_prob(x, output).flatten(1).sum(1)

    def _mean(self, z: Tensor) -> Tensor:
        return self.laplace.likelihood.mean(self.decoder(z))


def draw(q: MultivariateNormal, generator: torch.Generator | None = None) -> Tensor:
    """Draw from Gaussians, differentiably.

    Args:
        q: The Gaussians.
        generator: Where randomness comes from; torch's own method takes none.

    Returns:
        One draw of each.  # [N, K]
    """
    noise = torch.empty_like(q.mean).normal_(generator=generator)
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
