"""How well a predictive density fits, for choosing a prior precision."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics import Metric
from typing_extensions import override

from lae_backpack.curvature.quantities import features


class GaussianNLL(Metric):
    """Negative log density of targets under mean, variance and noise, per sample.

    laplace-torch scores regression by the squared error of the mean, which under a
    linearised predictive does not depend on the prior at all.
    """

    total: Tensor
    count: Tensor

    def __init__(self, noise_variance: Tensor) -> None:
        """Keep the noise.

        Args:
            noise_variance: The observation noise, added to the predictive variance.
        """
        super().__init__()
        self.noise_variance = noise_variance
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    @override
    def update(self, mean: Tensor, variance: Tensor, target: Tensor) -> None:
        if variance.dim() == mean.dim() + 1:  # laplace-torch's covariance
            variance = variance.diagonal(dim1=-2, dim2=-1)
        variance = variance + self.noise_variance
        errors = (target - mean).square() / variance + variance.log()
        constant = features(mean) * math.log(2 * math.pi)
        self.total += 0.5 * (errors.flatten(1).sum(1) + constant).sum()
        self.count += len(mean)

    @override
    def compute(self) -> Tensor:
        score = self.total / self.count
        self.reset()  # laplace-torch goes on with the same metric at the next value
        return score
