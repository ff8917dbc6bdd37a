"""Predictive mean and variance without ever building a Jacobian."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.func import functional_call, jvp
from torch.nn import Module

from lae_backpack.posterior.sampling import (
    Weights,
    WeightSampler,
    moments_of,
    run_with,
    without_hooks,
)


def sampled(
    model: Module,
    sampler: WeightSampler,
    x: Tensor,
    n_samples: int,
    generator: torch.Generator | None = None,
) -> Iterator[Tensor]:
    """Outputs of sampled networks, one after the other.

    Args:
        model: The model.
        sampler: Draws its weights.
        x: A batch.  # [N, *in]
        n_samples: How many networks.
        generator: Where randomness comes from.

    Yields:
        The output of each.  # [N, *out]
    """
    for _ in range(n_samples):
        yield run_with(model, sampler.draw(generator), x)


def linearised(
    model: Module,
    sampler: WeightSampler,
    x: Tensor,
    n_samples: int,
    generator: torch.Generator | None = None,
) -> Iterator[Tensor]:
    """Outputs of the linearised model, one Jacobian-vector product each.

    Args:
        model: The model.
        sampler: Draws its weights.
        x: A batch.  # [N, *in]
        n_samples: How many deviations from the mean.
        generator: Where randomness comes from.

    Yields:
        ``f(x; mean) + J deviation``.  # [N, *out]
    """
    model = without_hooks(model)
    mean = sampler.by_name(sampler.mean)

    def forward(weights: Weights) -> Tensor:
        return functional_call(model, weights, (x,))

    for _ in range(n_samples):
        deviation = sampler.by_name(sampler.deviation(generator))
        output, pushed, *_ = jvp(forward, (mean,), (deviation,))
        yield output + pushed


@torch.no_grad()
def sampled_moments(
    model: Module,
    sampler: WeightSampler,
    x: Tensor,
    n_samples: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance over sampled networks, in memory that does not grow with them.

    Args:
        model: The model.
        sampler: Draws its weights.
        x: A batch.  # [N, *in]
        n_samples: How many networks.
        generator: Where randomness comes from.

    Returns:
        Mean and unbiased variance.  # [N, *out] each
    """
    return moments_of(sampled(model, sampler, x, n_samples, generator))


@torch.no_grad()
def linearised_moments(
    model: Module,
    sampler: WeightSampler,
    x: Tensor,
    n_samples: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the linearised model.

    Args:
        model: The model.
        sampler: Draws its weights.
        x: A batch.  # [N, *in]
        n_samples: How many deviations from the mean.
        generator: Where randomness comes from.

    Returns:
        The model's output, which is the mean, and the variance.  # [N, *out] each
    """
    mean = run_with(model, sampler.by_name(sampler.mean), x)
    squares = torch.zeros_like(mean)
    for output in linearised(model, sampler, x, n_samples, generator):
        squares += (output - mean).square()
    return mean, squares / n_samples  # the mean is known, so no n - 1


@torch.no_grad()
def mean_probabilities(outputs: Iterator[Tensor]) -> Tensor:
    """Class probabilities averaged over networks.

    Args:
        outputs: The networks' logits, with classes along dimension 1.

    Returns:
        Probabilities.  # [N, C, ...]
    """
    return moments_of(logits.softmax(1) for logits in outputs)[0]
