"""Outliers: scores from sampled networks, and how well they tell."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics.functional.classification import (
    binary_auroc,
    binary_average_precision,
    binary_roc,
)

from lae_backpack.downstream.accumulators import Covariance, LogMean
from lae_backpack.downstream.models import Reconstructs, require_images
from lae_backpack.downstream.networks import Block, Draw
from lae_backpack.latent.likelihoods import Gaussian, Likelihood
from lae_backpack.posterior.chunks import Moments


@dataclass(frozen=True)
class Detection:
    """How well a score tells outliers, which are the positives.

    Attributes:
        auroc: Area under the receiver operating characteristic.
        auprc: Average precision.
        fpr80: The least false positive rate at which 80% of the outliers are found.
        fpr95: The same at 95%.
    """

    auroc: float
    auprc: float
    fpr80: float
    fpr95: float


def outlier_scores(
    la: Reconstructs,
    x: Tensor,
    reference: Tensor | float,
    n_samples: int = 100,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Score images; higher is more outlying, and all scores use the same networks.

    - ``log_likelihood``: minus the log of the networks' mean density.
    - ``typicality``: how far the log-likelihood is from its mean over ``reference``.
    - ``output_variance``: the variance over networks, summed over pixels.
    - ``output_deviation``: the standard deviation, summed over pixels, which is what
      the Laplacian-autoencoder paper calls the output's sigma.
    - ``latent_variance``, ``latent_deviation``: the same of the code, if the model has
      ``latent_samples``.
    - ``pairwise_divergence``: the mean Kullback-Leibler divergence between two
      networks' densities. For Gaussian pixels of equal noise it is the output variance
      divided by that of the noise.

    Args:
        la: A LaplaceAE, or what else has ``samples``. Pixels are Gaussian with its
            ``sigma_noise`` (else 1), Bernoulli if it says so, and have the density of
            its ``log_densities`` if there is such a method.
        x: The images.  # [N, *in]
        reference: Images that are no outliers, or what ``mean_log_likelihood`` gave
            for them.  # [M, *in]
        n_samples: How many networks.
        generator: Where randomness comes from.

    Returns:
        The scores by name.  # [N] each
    """
    require_images(x)
    if isinstance(reference, Tensor):
        require_images(reference, "reference")
    draw = Draw(la, n_samples, generator)
    found = [_scores(block, draw.likelihood) for block in draw.blocks(x)]
    scores = {name: torch.cat([part[name] for part in found]) for name in found[0]}
    usual = _mean_log_likelihood(draw, reference)
    typicality = (scores["log_likelihood"] + usual).abs()
    return {
        "log_likelihood": scores.pop("log_likelihood"),
        "typicality": typicality,
        **scores,
    }


def mean_log_likelihood(
    la: Reconstructs,
    reference: Tensor,
    n_samples: int = 100,
    generator: torch.Generator | None = None,
) -> float:
    """The mean over images of the log of the networks' mean density.

    Args:
        la: As for ``outlier_scores``.
        reference: The images.  # [M, *in]
        n_samples: How many networks.
        generator: Where randomness comes from.

    Returns:
        The mean, in nats per image.
    """
    require_images(reference, "reference")
    return _mean_log_likelihood(Draw(la, n_samples, generator), reference)


def detection(inside: Tensor, outside: Tensor) -> Detection:
    """How well a score tells outliers from other images.

    Args:
        inside: Scores of images that are no outliers.  # [N]
        outside: Scores of outliers; higher is more outlying.  # [M]

    Returns:
        The usual figures.
    """
    ranks, target = _ranked(inside, outside)
    false, true = roc(inside, outside)
    return Detection(
        auroc=float(binary_auroc(ranks, target)),
        auprc=float(binary_average_precision(ranks, target)),
        fpr80=_least_false_rate(false, true, 0.80),
        fpr95=_least_false_rate(false, true, 0.95),
    )


def roc(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """How many are taken for outliers, by all thresholds from the highest down.

    Args:
        inside: Scores of images that are no outliers.  # [N]
        outside: Scores of outliers; higher is more outlying.  # [M]

    Returns:
        False and true positive rates.  # [T] each
    """
    false, true, _ = binary_roc(*_ranked(inside, outside))
    return false, true


def _ranked(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Bring scores into a form that torchmetrics leaves alone.

    Returns:
        Ranks of all scores in [0, 1], and which are outliers'.

    Raises:
        ValueError: If there are no scores, or some are no numbers.
    """
    for name, scores in (("inside", inside), ("outside", outside)):
        if scores.dim() != 1 or len(scores) == 0 or scores.isnan().any():
            raise ValueError(
                f"{name} must be [N] scores with N of at least 1 and without nan, got "
                f"shape {tuple(scores.shape)} with {int(scores.isnan().sum())} nan. "
                "Take one entry of outlier_scores."
            )
    # torchmetrics squashes scores outside [0, 1], which makes ties; ranks stay apart.
    ranks = torch.cat((inside, outside)).unique(return_inverse=True)[1].double()
    ranks = ranks / ranks.max().clamp_min(1)
    target = (torch.arange(len(ranks), device=ranks.device) >= len(inside)).long()
    return ranks, target


def _least_false_rate(false: Tensor, true: Tensor, level: float) -> float:
    reached = true >= level - 1e-6  # rates are rounded
    return float(false[reached].min())


@torch.no_grad()
def _scores(block: Block, likelihood: Likelihood) -> dict[str, Tensor]:
    pixels, latent = Moments(block.n_rows), Moments(block.n_rows)
    divergence = None if isinstance(likelihood, Gaussian) else Covariance()
    density = LogMean()
    for network in block.networks:
        mean = likelihood.mean(network.output)
        pixels.add([mean])
        if divergence is not None:
            divergence.add(mean, network.output)
        if network.code is not None:
            latent.add([network.code])
        density.add(network.log_density)
    scores = {"log_likelihood": -density.result()} | _spread("output", pixels)
    if latent.count:
        scores |= _spread("latent", latent)
    variance = scores["output_variance"]
    if isinstance(likelihood, Gaussian):
        scores["pairwise_divergence"] = variance / likelihood.sigma.to(variance) ** 2
    elif divergence is not None:
        scores["pairwise_divergence"] = _total(divergence.result())
    return scores


@torch.no_grad()
def _mean_log_likelihood(draw: Draw, reference: Tensor | float) -> float:
    if not isinstance(reference, Tensor):
        return reference
    found = []
    for block in draw.blocks(reference):
        density = LogMean()
        for network in block.networks:
            density.add(network.log_density)
        found.append(density.result())
    return float(torch.cat(found).mean())


def _spread(name: str, moments: Moments) -> dict[str, Tensor]:
    variance = moments.result()[1]
    return {
        f"{name}_variance": _total(variance),
        f"{name}_deviation": _total(variance.sqrt()),
    }


def _total(values: Tensor) -> Tensor:
    return values.flatten(1).sum(1)
