"""What pixels are like, given the decoder's output: Gaussian or Bernoulli.

Each likelihood gives its log-density with gradient and curvature (the negative second
derivative) at the decoder's output; both are diagonal, one number per pixel.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn import functional as F
from typing_extensions import override

from lae_backpack.posterior.choices import require_one_of

LIKELIHOODS = ("gaussian", "bernoulli")


class Likelihood(ABC):
    """``p(x | output)``, independent over pixels.

    Attributes:
        loss: The loss whose Hessian, times ``scale``, is the curvature.
    """

    loss: Module

    @property
    @abstractmethod
    def scale(self) -> float | Tensor:
        """What the loss has to be multiplied by."""

    @abstractmethod
    def log_prob(self, x: Tensor, output: Tensor) -> Tensor:
        """The log-density of images.

        Args:
            x: The images.  # [..., N, *in]
            output: What the decoder made.  # [..., N, *in]

        Returns:
            One number for each pixel.  # [..., N, *in]
        """

    @abstractmethod
    def gradient(self, x: Tensor, output: Tensor) -> Tensor:
        """How the log-density changes with the output.

        Args:
            x: The images.  # [N, *in]
            output: What the decoder made.  # [N, *in]

        Returns:
            The derivative.  # [N, *in]
        """

    @abstractmethod
    def curvature(self, output: Tensor) -> Tensor:
        """The negative second derivative of the log-density.

        Args:
            output: What the decoder made.  # [N, *in]

        Returns:
            The curvature, never negative.  # [N, *in]
        """

    @abstractmethod
    def mean(self, output: Tensor) -> Tensor:
        """The expected image.

        Args:
            output: What the decoder made.  # [..., *in]

        Returns:
            Pixels, or their probabilities.  # [..., *in]
        """

    def check(self, x: Tensor) -> None:  # noqa: B027  most pixels may be anything
        """Refuse images that this likelihood cannot explain.

        Args:
            x: The images.  # [N, *in]
        """


class Gaussian(Likelihood):
    """Pixels are the decoder's output plus noise."""

    def __init__(self, sigma: float | Tensor) -> None:
        """Keep the noise.

        Args:
            sigma: Its standard deviation, one number for all pixels.

        Raises:
            ValueError: If it is not one positive number.
        """
        self.sigma = torch.as_tensor(sigma)
        if self.sigma.numel() != 1 or not 0 < float(self.sigma.detach()) < math.inf:
            raise ValueError(f"sigma must be one positive number, got {sigma}.")
        self.sigma = self.sigma.reshape(())
        self.loss = nn.MSELoss(reduction="sum")

    @property
    @override
    def scale(self) -> float | Tensor:
        return 0.5 / self.sigma**2

    @override
    def log_prob(self, x: Tensor, output: Tensor) -> Tensor:
        constant = self.sigma.log() + 0.5 * math.log(2 * math.pi)
        return (x - output).square() * (-0.5 / self.sigma**2) - constant

    @override
    def gradient(self, x: Tensor, output: Tensor) -> Tensor:
        return (x - output) / self.sigma**2

    @override
    def curvature(self, output: Tensor) -> Tensor:
        return (1 / self.sigma**2).to(output).expand_as(output)

    @override
    def mean(self, output: Tensor) -> Tensor:
        return output


class Bernoulli(Likelihood):
    """Pixels are 0 or 1; the decoder's output is the logit."""

    def __init__(self) -> None:
        """Takes no arguments."""
        self.loss = nn.BCEWithLogitsLoss(reduction="sum")

    @property
    @override
    def scale(self) -> float | Tensor:
        return 1.0

    @override
    def log_prob(self, x: Tensor, output: Tensor) -> Tensor:
        x = x.expand_as(output)
        return -F.binary_cross_entropy_with_logits(output, x, reduction="none")

    @override
    def gradient(self, x: Tensor, output: Tensor) -> Tensor:
        return x - output.sigmoid()

    @override
    def curvature(self, output: Tensor) -> Tensor:
        return output.sigmoid() * (-output).sigmoid()

    @override
    def mean(self, output: Tensor) -> Tensor:
        return output.sigmoid()

    @override
    def check(self, x: Tensor) -> None:
        if x.min() < 0 or x.max() > 1:
            raise ValueError(
                f"Bernoulli pixels must be within [0, 1], got {x.min():g} to "
                f"{x.max():g}. Scale or binarise them, or use likelihood='gaussian'."
            )


def likelihood_named(name: str, sigma: float | Tensor) -> Likelihood:
    """The likelihood of a name.

    Args:
        name: ``"gaussian"`` or ``"bernoulli"``.
        sigma: The standard deviation of Gaussian pixels.

    Returns:
        The likelihood.
    """
    require_one_of("likelihood", name, LIKELIHOODS)
    return Gaussian(sigma) if name == "gaussian" else Bernoulli()
