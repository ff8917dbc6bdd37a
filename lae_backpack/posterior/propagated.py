"""Predictive mean and variance in one forward pass, without samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn import Module

from lae_backpack.curvature.forward import propagate
from lae_backpack.curvature.policy import DEFAULT_MAX_DENSE_DIM, DensePolicy
from lae_backpack.curvature.squares import keep_square
from lae_backpack.posterior.sampling import Weights


def held(mean: Weights) -> Weights:
    """Weights for many passes.

    Args:
        mean: The mean of a model's trainable weights.

    Returns:
        The same numbers. In a pass, ``requires_grad`` tells which weights have a
        variance, and their squares are kept.
    """
    own = {n: w.clone() if w.is_inference() else w.detach() for n, w in mean.items()}
    return {n: keep_square(w.requires_grad_()) for n, w in own.items()}


def moments(
    model: Module, mean: Weights, variances: Weights, x: Tensor, policy: DensePolicy
) -> tuple[Tensor, Tensor]:
    """Mean and variance of a model with independent Gaussian weights.

    Args:
        model: The model, in eval mode; it keeps its own weights.
        mean: The mean of its trainable weights, as ``held`` gives it.
        variances: Their variances.
        x: A batch.  # [N, *in]
        policy: Where covariances are dense.

    Returns:
        The output at the mean weights, and its variance.  # [N, *out] each
    """
    with _holding(model, mean):
        return propagate(model, x, variances, policy)


@contextmanager
def _holding(model: Module, weights: Weights) -> Iterator[None]:
    """Let a model hold other weights for a while, as ``functional_call`` does.

    That one takes a module's call alone, and several times as long.
    """
    places = [_place(model, name) for name in weights]
    own = [params[name] for params, name in places]
    try:
        for (params, name), weight in zip(places, weights.values(), strict=True):
            params[name] = weight
        yield
    finally:
        for (params, name), param in zip(places, own, strict=True):
            params[name] = param


def _place(module: Module, name: str) -> tuple[dict[str, Any], str]:
    *path, last = name.split(".")
    for part in path:  # get_submodule takes ten times as long
        child = module._modules[part]
        assert child is not None
        module = child
    return module._parameters, last


def forward_policy(settings: Mapping[str, int | None]) -> DensePolicy:
    """Where covariances are dense, given a structure's settings.

    Args:
        settings: The structure's ``backend_kwargs``.

    Returns:
        Its own limit. The approximate diagonal has none and takes the default: few
        columns from a bottleneck cost little, and without them pixels would have no
        correlation.
    """
    limit = settings.get("max_dense_dim")
    return DensePolicy(DEFAULT_MAX_DENSE_DIM if limit == 0 else limit)


def require_single_outputs(joint: bool, link_approx: str) -> None:
    """Refuse what needs samples, or more than the variance of each output.

    Args:
        joint: Whether the outputs' covariance is wanted.
        link_approx: How class probabilities are made.

    Raises:
        ValueError: If one pass does not give it.
    """
    if joint or link_approx != "probit":
        raise ValueError(
            f"pred_type='propagated' got joint={joint}, link_approx={link_approx!r}, "
            "allowed: joint=False, link_approx='probit'. Use pred_type='glm' else."
        )


def probit(mean: Tensor, variance: Tensor) -> Tensor:
    """Logits that stand for Gaussian logits.

    Args:
        mean: The logits' mean.
        variance: The logits' variance.

    Returns:
        The mean, drawn towards 0 where the variance is large.
    """
    return mean / (1 + math.pi / 8 * variance).sqrt()


def sigmoid_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of probabilities whose logits are Gaussian.

    Args:
        mean: The logits' mean.
        variance: The logits' variance.

    Returns:
        The mean by the probit approximation, the variance to first order.
    """
    p = mean.sigmoid()
    return probit(mean, variance).sigmoid(), (p * (1 - p)).square() * variance
