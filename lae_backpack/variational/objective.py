"""The terms of Variational Laplace's objective, as functions of plain tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Terms:
    """An estimate of the evidence bound, per sample of the data.

    Attributes:
        log_likelihood: At the mean weights.  # []
        penalty: What the variances cost, by the curvature.  # []
        kl: The divergence from the prior, times beta.  # []
    """

    log_likelihood: Tensor
    penalty: Tensor
    kl: Tensor

    @property
    def bound(self) -> Tensor:
        """What is maximised."""
        return self.log_likelihood - self.penalty - self.kl


def divergence(
    means: Sequence[Tensor], log_sigmas: Sequence[Tensor], scales: Sequence[Tensor]
) -> Tensor:
    """How far Gaussians are from the prior (eq. 12).

    Args:
        means: The weights' means.
        log_sigmas: The logarithms of their standard deviations.
        scales: The prior's standard deviations, one for each tensor; they get no
            gradient.  # [] each

    Returns:
        The Kullback-Leibler divergence, summed over weights.  # []

    Raises:
        ValueError: If their numbers differ.
    """
    counts = len(means), len(log_sigmas), len(scales)
    if len(set(counts)) > 1:
        raise ValueError(
            "Means, log-sigmas and prior scales must be equally many, got {} of them, "
            "{} and {}. Freeze parameters before making a "
            "VariationalLaplace.".format(*counts)
        )
    return _Divergence.apply(torch.stack(list(scales)), *means, *log_sigmas)


class _Divergence(torch.autograd.Function):
    """Brings its gradient along: a graph of many small nodes costs more than it."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        del output
        ctx.save_for_backward(*inputs)

    @staticmethod
    def forward(scales: Tensor, *tensors: Tensor) -> Tensor:
        means, log_sigmas = (_flat(part) for part in _halves(tensors))
        squares = [torch.dot(m, m) for m in means]
        variances = [torch.dot(s, s) for s in (logs.exp() for logs in log_sigmas)]
        sizes = scales.new_tensor([len(m) for m in means])
        spread = (torch.stack(squares) + torch.stack(variances)) / scales**2
        logs = torch.stack([logs.sum() for logs in log_sigmas]) - sizes * scales.log()
        return (0.5 * (spread - sizes) - logs).sum()

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        scales, *tensors = ctx.saved_tensors
        means, log_sigmas = _halves(tensors)
        factors = (above[0] / scales**2).unbind()
        of_means = map(torch.mul, means, factors)
        of_log_sigmas = [
            (2 * logs).exp() * factor - above[0]
            for logs, factor in zip(log_sigmas, factors, strict=True)
        ]
        return None, *of_means, *of_log_sigmas


def _halves(tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    count = len(tensors) // 2
    return tensors[:count], tensors[count:]


def _flat(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.flatten() for tensor in tensors]


def fisher_penalty(
    log_prob: Tensor,
    n_samples: int,
    means: Sequence[Tensor],
    log_sigmas: Sequence[Tensor],
) -> Tensor:
    """Half the variance-weighted squared gradient, for targets drawn from the model.

    The gradient is that of the batch's sum: products of different samples vanish on
    average, so no gradients of single samples are needed.

    Args:
        log_prob: Of the drawn targets, summed over a batch, with its graph.  # []
        n_samples: The samples of that batch.
        means: The weights.
        log_sigmas: The logarithms of their standard deviations.

    Returns:
        The penalty per sample; its mean is half of ``sum(sigma^2 Fisher)``.  # []
    """
    gradients = torch.autograd.grad(
        log_prob / n_samples, list(means), create_graph=True
    )
    return 0.5 * n_samples * _weighted(log_sigmas, [g.square() for g in gradients])


def hessian_penalty(
    log_prob: Tensor,
    n_samples: int,
    means: Sequence[Tensor],
    log_sigmas: Sequence[Tensor],
    generator: torch.Generator | None,
) -> Tensor:
    """Minus half the variance-weighted Hessian of the data's log-likelihood (eq. 20).

    It may be negative, and variances then grow without bound: it is here to show that.

    Args:
        log_prob: Of the data, summed over a batch, with its graph.  # []
        n_samples: The samples of that batch.
        means: The weights.
        log_sigmas: The logarithms of their standard deviations.
        generator: Where randomness comes from.

    Returns:
        The penalty per sample, by one random probe of the diagonal.  # []
    """
    gradients = torch.autograd.grad(
        log_prob / n_samples, list(means), create_graph=True
    )
    signs = [_signs(mean, generator) for mean in means]
    products = torch.autograd.grad(gradients, list(means), signs, create_graph=True)
    diagonal = [s * p for s, p in zip(signs, products, strict=True)]
    return -0.5 * _weighted(log_sigmas, diagonal)


def _signs(like: Tensor, generator: torch.Generator | None) -> Tensor:
    uniform = torch.empty_like(like).uniform_(-1, 1, generator=generator)
    return torch.where(uniform < 0, -1.0, 1.0).to(like)


def _weighted(log_sigmas: Sequence[Tensor], numbers: Sequence[Tensor]) -> Tensor:
    pairs = zip(log_sigmas, numbers, strict=True)
    return torch.stack([((2 * s).exp() * n).sum() for s, n in pairs]).sum()
