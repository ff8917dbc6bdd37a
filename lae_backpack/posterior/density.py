"""How well a predictive density fits, for choosing a prior precision."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy
from torchmetrics import Metric
from typing_extensions import override


class PredictiveNLL(Metric):
    """Negative log density of targets, per sample."""

    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        """Start with nothing."""
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def add(self, densities: Tensor) -> None:
        """Take in a batch.

        Args:
            densities: Negative log densities of all outputs.  # [N, *out]
        """
        self.total += densities.sum()
        self.count += len(densities)

    @override
    def compute(self) -> Tensor:
        score = self.total / self.count
        self.reset()  # laplace-torch goes on with the same metric at the next value
        return score


class GaussianNLL(PredictiveNLL):
    """The density under mean, variance and noise.

    laplace-torch scores regression by the squared error of the mean, which under a
    linearised predictive does not depend on the prior at all.
    """

    def __init__(self, noise_variance: Tensor) -> None:
        """Keep the noise.

        Args:
            noise_variance: The observation noise, added to the predictive variance.
        """
        super().__init__()
        self.noise_variance = noise_variance

    @override
    def update(self, mean: Tensor, variance: Tensor, target: Tensor) -> None:
        if variance.dim() == mean.dim() + 1:  # laplace-torch's covariance
            variance = variance.diagonal(dim1=-2, dim2=-1)
        variance = variance + self.noise_variance
        errors = (target - mean).square() / variance
        self.add(0.5 * (errors + (2 * math.pi * variance).log()))


class BernoulliNLL(PredictiveNLL):
    """The density under mean probabilities."""

    @override
    def update(self, mean: Tensor, variance: Tensor, target: Tensor) -> None:
        self.add(binary_cross_entropy(mean, target, reduction="none"))
