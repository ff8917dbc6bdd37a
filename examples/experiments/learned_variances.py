"""Baselines that learn how far pixels, and codes, may be from their means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from plain_autoencoder import UNLIMITED, MakeNet, PlainAutoEncoder
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from typing_extensions import override

from lae_backpack.posterior.chunks import Moments

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
        """The learned variance together with that of the means of different codes.

        Args:
            x: A batch.  # [N, *in]
            n_samples: How many codes.
            generator: Where randomness comes from.

        Returns:
            That of each pixel.  # [N, *in]
        """
        means, learned = Moments(len(x)), Moments(len(x))
        for codes in self.latent_samples(x, n_samples, generator=generator):
            pixels = self.pixels(codes)
            means.add([pixels.mean])
            learned.add([pixels.variance])
        return means.result()[1] + learned.result()[0]


class VAE(LearnedVariance):
    """Variational: two encoders and two decoders; the loss is minus the bound."""

    n_networks = UNLIMITED

    def _density(self, x: Tensor) -> Normal:
        deviation = (0.5 * self.spread.encoder(x)).exp()
        return Normal(self.net.encoder(x), deviation, validate_args=False)

    @override
    def code(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return next(self.codes(x, [generator]))

    @override
    def codes(self, x: Tensor, passes: Iterable[torch.Generator]) -> Iterator[Tensor]:
        density = self._density(x)  # the same in all passes
        for generator in passes:
            noise = torch.empty_like(density.mean).normal_(generator=generator)
            yield density.mean + density.stddev * noise

    @override
    def loss(self, x: Tensor) -> Tensor:
        codes = self._density(x)
        log_density = self.pixels(codes.rsample()).log_prob(x).sum()
        divergence = kl_divergence(codes, Normal(0.0, 1.0)).sum()
        return (divergence - log_density) / len(x)
