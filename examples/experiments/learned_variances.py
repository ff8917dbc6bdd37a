"""Baselines that learn how far pixels, and codes, may be from their means."""

from __future__ import annotations

import torch
from plain_autoencoder import UNLIMITED, MakeNet, PlainAutoEncoder
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from typing_extensions import override

LEAST_LOG_SIGMA = -3.0  # below, constant pixels would decide everything


class LearnedVariance(PlainAutoEncoder):
    """A second decoder says how far pixels are from the first one's."""

    def __init__(self, make: MakeNet) -> None:
        """Make both; the second network's encoder is for the VAE alone.

        Args:
            make: Makes a network.
        """
        super().__init__(make)
        self.spread = make()

    def pixels(self, codes: Tensor) -> Normal:
        """What is likely to be seen.

        Args:
            codes: The codes.  # [N, K]

        Returns:
            The density of each pixel.  # [N, *in]
        """
        above = self.spread.decoder(codes) - LEAST_LOG_SIGMA
        log_sigma = LEAST_LOG_SIGMA + nn.functional.softplus(above)
        return Normal(self.net.decoder(codes), log_sigma.exp(), validate_args=False)

    @override
    def loss(self, x: Tensor) -> Tensor:
        return -self.pixels(self.net.encoder(x)).log_prob(x).sum() / len(x)

    def log_densities(
        self, x: Tensor, n_samples: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Log-densities with the learned variances, by the codes of ``samples``.

        Args:
            x: A batch.  # [N, *in]
            n_samples: How many codes.
            generator: Where randomness comes from.

        Returns:
            One for each code and image.  # [S, N]
        """
        drawn = self.latent_samples(x, n_samples, generator=generator)
        logs = [self.pixels(codes).log_prob(x).flatten(1).sum(1) for codes in drawn]
        return torch.stack(logs)

    @torch.no_grad()
    def pixel_variance(
        self, x: Tensor, n_samples: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """The learned variance, which samples of the mean do not show.

        Args:
            x: A batch.  # [N, *in]
            n_samples: How many codes.
            generator: Where randomness comes from.

        Returns:
            Summed over pixels, the mean over codes.  # [N]
        """
        total = torch.zeros(len(x))
        for _ in range(n_samples):
            drawn = self.latent_samples(x, 1, generator=generator)[0]
            total += self.pixels(drawn).variance.flatten(1).sum(1)
        return total / n_samples


class VAE(LearnedVariance):
    """Variational: two encoders and two decoders; the loss is minus the bound."""

    n_networks = UNLIMITED

    def _codes(self, x: Tensor) -> Normal:
        deviation = (0.5 * self.spread.encoder(x)).exp()
        return Normal(self.net.encoder(x), deviation, validate_args=False)

    @override
    def code(self, x: Tensor, generator: torch.Generator) -> Tensor:
        codes = self._codes(x)
        noise = torch.empty_like(codes.mean).normal_(generator=generator)
        return codes.mean + codes.stddev * noise

    @override
    def loss(self, x: Tensor) -> Tensor:
        codes = self._codes(x)
        log_density = self.pixels(codes.rsample()).log_prob(x).sum()
        divergence = kl_divergence(codes, Normal(0.0, 1.0)).sum()
        return (divergence - log_density) / len(x)
