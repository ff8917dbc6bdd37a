"""What targets are like, given a network's output, and targets drawn from it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from lae_backpack.posterior.choices import require_one_of

LIKELIHOODS = ("classification", "regression")


class Likelihood(ABC):
    """``p(y | output)``."""

    @abstractmethod
    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        """The log-density of a batch.

        Args:
            output: What the network made.  # [N, *out]
            y: The targets.

        Returns:
            The sum over the batch.  # []
        """

    @abstractmethod
    def sample(self, output: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw targets that the network itself believes in.

        Args:
            output: What the network made.  # [N, *out]
            generator: Where randomness comes from.

        Returns:
            The targets, without a gradient.
        """


class Categorical(Likelihood):
    """Classes along dimension 1; the output is logits."""

    @override
    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        return -F.cross_entropy(output, y, reduction="sum")

    @override
    @torch.no_grad()
    def sample(self, output: Tensor, generator: torch.Generator | None) -> Tensor:
        probabilities = output.softmax(1).movedim(1, -1)  # [N, ..., C]
        rows = probabilities.reshape(-1, probabilities.shape[-1])
        drawn = torch.multinomial(rows, 1, generator=generator)
        return drawn.reshape(probabilities.shape[:-1])


class Gaussian(Likelihood):
    """Numbers with noise."""

    def __init__(self, sigma: float) -> None:
        """Keep the noise.

        Args:
            sigma: Its standard deviation.

        Raises:
            ValueError: If it is not positive.
        """
        if not 0 < sigma < math.inf:
            raise ValueError(
                f"sigma_noise must be finite and above 0, got {sigma}. Give the "
                "standard deviation of the noise."
            )
        self.sigma = sigma

    @override
    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        squares = (output - y).square().sum() / self.sigma**2
        constant = math.log(2 * math.pi * self.sigma**2)
        return -0.5 * (squares + output.numel() * constant)

    @override
    @torch.no_grad()
    def sample(self, output: Tensor, generator: torch.Generator | None) -> Tensor:
        noise = torch.empty_like(output).normal_(generator=generator)
        return output + self.sigma * noise


def likelihood_named(name: str, sigma_noise: float) -> Likelihood:
    """The likelihood of a name.

    Args:
        name: ``"classification"`` or ``"regression"``.
        sigma_noise: The standard deviation of a regression's noise.

    Returns:
        The likelihood.

    Raises:
        ValueError: If there is no such likelihood, or noise where there is none.
    """
    require_one_of("likelihood", name, LIKELIHOODS)
    if name == "regression":
        return Gaussian(sigma_noise)
    if sigma_noise != 1:
        raise ValueError(
            f"Classes have no noise, got sigma_noise={sigma_noise}. Use 1."
        )
    return Categorical()
