"""How good uncertainties are."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score
from torch import Tensor

WITHIN_95 = 1.96  # standard deviations


def auroc(inside: Tensor, outside: Tensor) -> float:
    """How well a score tells outliers.

    Args:
        inside: Scores of test data.  # [N]
        outside: Scores of outliers, which should be higher.  # [M]

    Returns:
        The area under the ROC curve.
    """
    truth = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))])
    return float(roc_auc_score(truth.numpy(), torch.cat([inside, outside]).numpy()))


def rank_correlation(one: Tensor, other: Tensor) -> float:
    """Spearman's correlation.

    Args:
        one: Numbers.
        other: As many.

    Returns:
        The correlation of their ranks.
    """
    result: Any = spearmanr(one.flatten(), other.flatten())  # scipy has no types
    return float(result.statistic)


def calibration(error: Tensor, variance: Tensor, noise: float) -> dict[str, float]:
    """Hold variances against errors.

    Args:
        error: Of the mean.  # [N, pixels]
        variance: Of the model.  # [N, pixels]
        noise: The variance of the data's noise.

    Returns:
        Rank correlations of variance and squared error, per image and per pixel; the
        mean squared z-score, 1 at best; how many pixels are within the 95% interval;
        the negative log density of a pixel.
    """
    squares, total = error.square(), variance + noise
    z = squares / total
    density = 0.5 * (z + total.log() + math.log(2 * math.pi))
    return {
        "correlation_images": rank_correlation(variance.sum(1), squares.sum(1)),
        "correlation_pixels": rank_correlation(variance, squares),
        "z_squared": z.mean().item(),
        "coverage": (z < WITHIN_95**2).float().mean().item(),
        "nll": density.mean().item(),
    }
