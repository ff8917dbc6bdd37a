"""Whether uncertainties are as large as errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lae_backpack.posterior.choices import require_at_least_one


@dataclass(frozen=True)
class CalibrationErrors:
    """How far confidence is from accuracy, over bins of equal width.

    Attributes:
        ece: The mean over predictions of the difference.
        mce: The largest difference.
        rmsce: The root of the mean over predictions of the squared difference.
    """

    ece: float
    mce: float
    rmsce: float


@dataclass(frozen=True)
class VarianceBins:
    """Mean variance and mean squared error, in bins of equally many by variance.

    Attributes:
        variance: Increasing.  # [B]
        error: The same as the variance, if that is calibrated.  # [B]
        count: How many there are in each bin.  # [B]
    """

    variance: Tensor
    error: Tensor
    count: Tensor


def calibration_errors(
    probabilities: Tensor, labels: Tensor, n_bins: int = 15
) -> CalibrationErrors:
    """Calibration of a classifier, for instance one that sees imputed images.

    Args:
        probabilities: Of the classes, averaged over imputations if there are several.
            # [N, C]
        labels: The true classes.  # [N]
        n_bins: Bins of equal width for the largest probability; the upper end of each
            belongs to the next one.

    Returns:
        The errors. Bins without predictions do not count.
    """
    require_at_least_one("n_bins", n_bins)
    _require_probabilities(probabilities, labels)
    confidence, predicted = probabilities.double().max(1)
    right = (predicted == labels.to(predicted.device)).double()
    bins = (confidence * n_bins).long().clamp(0, n_bins - 1)
    count = torch.bincount(bins, minlength=n_bins)
    total = torch.bincount(bins, right - confidence, minlength=n_bins)
    used = count > 0
    gap, share = (total[used] / count[used]).abs(), count[used] / len(bins)
    return CalibrationErrors(
        ece=float((share * gap).sum()),
        mce=float(gap.max()),
        rmsce=float((share * gap.square()).sum().sqrt()),
    )


def variance_against_error(
    variance: Tensor, squared_error: Tensor, n_bins: int = 10
) -> VarianceBins:
    """Compare predicted variances with squared errors.

    Args:
        variance: Predicted, of pixels or of whole images. Add the noise if errors
            contain it.
        squared_error: What the variance ought to be.  # shaped like variance
        n_bins: Bins of equally many, up to one, from the least variance to the largest.

    Returns:
        The means in each bin.

    Raises:
        ValueError: If there are fewer numbers than bins.
    """
    require_at_least_one("n_bins", n_bins)
    _require_same_shape(variance=variance, squared_error=squared_error)
    _require_no_negative(variance=variance, squared_error=squared_error)
    if variance.numel() < n_bins:
        raise ValueError(
            f"n_bins must be at most {variance.numel()}, the number of variances, got "
            f"{n_bins}. Give more images, or ask for fewer bins."
        )
    ordered, order = variance.flatten().sort()
    errors = squared_error.flatten()[order]
    split = ordered.tensor_split(n_bins), errors.tensor_split(n_bins)
    bins = list(zip(*split, strict=True))
    means = torch.stack([torch.stack([v.mean(), e.mean()]) for v, e in bins], dim=1)
    count = torch.tensor([len(v) for v, _ in bins], device=variance.device)
    return VarianceBins(variance=means[0], error=means[1], count=count)


def coverage(
    mean: Tensor, variance: Tensor, x: Tensor, levels: Sequence[float] | Tensor
) -> Tensor:
    """How many pixels are within central Gaussian intervals.

    Args:
        mean: The predicted mean.  # [N, *in]
        variance: The predicted variance, with the noise.  # [N, *in]
        x: The true images.  # [N, *in]
        levels: How many ought to be, each in (0, 1).  # [L]

    Returns:
        The shares; calibrated ones equal the levels.  # [L]

    Raises:
        ValueError: If a level is not in (0, 1), or there is none.
    """
    _require_same_shape(x=x, mean=mean, variance=variance)
    _require_no_negative(variance=variance)
    wanted = torch.as_tensor(levels, dtype=torch.float64)
    if wanted.dim() != 1 or len(wanted) == 0 or not ((wanted > 0) & (wanted < 1)).all():
        raise ValueError(
            f"levels must be a list of numbers in (0, 1), got {levels}. 0.95 is the "
            "interval that 95% of the pixels ought to be in."
        )
    radii = math.sqrt(2) * wanted.erfinv()
    distance, deviation = (x - mean).abs(), variance.sqrt()
    shares = [(distance <= float(r) * deviation).double().mean() for r in radii]
    return torch.stack(shares).to(mean.dtype)


def _require_probabilities(probabilities: Tensor, labels: Tensor) -> None:
    if probabilities.dim() != 2 or probabilities.numel() == 0:
        raise ValueError(
            f"probabilities must be [N, C] with N and C of at least 1, got shape "
            f"{tuple(probabilities.shape)}."
        )
    if labels.shape != probabilities.shape[:1] or labels.is_floating_point():
        raise ValueError(
            f"labels must be [{len(probabilities)}] integers, one for each row of "
            f"probabilities, got {labels.dtype} of shape {tuple(labels.shape)}."
        )
    n_classes = probabilities.shape[1]
    if labels.min() < 0 or labels.max() >= n_classes:
        raise ValueError(
            f"labels must be from 0 to {n_classes - 1}, got {int(labels.min())} to "
            f"{int(labels.max())}."
        )
    sums = probabilities.sum(1)
    if not (probabilities >= 0).all() or not torch.allclose(
        sums, torch.ones_like(sums), atol=1e-3
    ):
        raise ValueError(
            "probabilities must not be negative and sum to one in each row, got sums "
            f"from {sums.min():.3g} to {sums.max():.3g}. Apply a softmax to logits."
        )


def _require_same_shape(**tensors: Tensor) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1 or not all(t.numel() for t in tensors.values()):
        raise ValueError(
            f"{', '.join(shapes)} must have one shape and at least one number, got "
            f"{', '.join(map(str, shapes.values()))}."
        )


def _require_no_negative(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if not (tensor >= 0).all():
            raise ValueError(
                f"{name} must be numbers of at least 0, got {float(tensor.min()):.3g}. "
                "Pass variances and squared errors, not deviations."
            )
