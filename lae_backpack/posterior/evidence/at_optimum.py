"""Evidence that can be trusted: taken at the optimum of the linear model.

A network that was stopped early, or that has normalisation layers, is at no mode of its
posterior, and the evidence at its weights overestimates uncertainty. The linearised
network is a linear model with an optimum of its own; there the evidence is right.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from laplace.baselaplace import ParametricLaplace
from torch import Tensor

from lae_backpack.posterior.choices import require_at_least_one, require_one_of
from lae_backpack.posterior.conjugate_gradients import conjugate_gradients
from lae_backpack.posterior.evidence.effective import (
    marginal_variances,
    posterior_times,
    require_fit,
)
from lae_backpack.posterior.evidence.groups import Groups, PriorGroups
from lae_backpack.posterior.evidence.linear_model import LinearModel
from lae_backpack.posterior.evidence.mackay import (
    Evidence,
    Fit,
    log_evidence,
    noise_is_learned,
    reachable,
    summary,
    update,
)

METHODS = ("cg", "adam")
# A squared error needs one step; the others are for rounding, or few products.
QUADRATIC_STEPS, NEWTON_STEPS = 3, 50


def linear_optimum(
    la: ParametricLaplace,
    loader: Iterable[Any],
    start: Tensor | None = None,
    method: str = "cg",
    tolerance: float = 1e-4,
    max_steps: int = 200,
    lr: float = 0.1,
) -> Tensor:
    """The weights where the linearised network explains data best, given the prior.

    Args:
        la: A fitted posterior over all trainable weights; it stays as it is.
        loader: The data it was fitted to.
        start: Weights to start at; by default the network's.  # [P]
        method: ``"cg"``: Newton's method by conjugate gradients, preconditioned by the
            posterior; a product costs one pass over the data. ``"adam"``: as many
            passes as ``max_steps``.
        tolerance: The distance to stop at, in standard deviations of the posterior.
        max_steps: The products of one Newton step, or the steps of Adam, to stop at.
        lr: Adam's learning rate, in standard deviations of the posterior.

    Returns:
        The weights.  # [P]
    """
    require_one_of("method", method, METHODS)
    require_at_least_one("max_steps", max_steps)
    require_fit(la)
    model = LinearModel(la, loader)
    deviation = torch.zeros_like(model.start) if start is None else start - model.start
    if method == "adam":
        return model.start + _adam(model, deviation, tolerance, max_steps, lr)
    return model.start + _newton(model, deviation, tolerance, max_steps)


def _newton(
    model: LinearModel, deviation: Tensor, tolerance: float, max_steps: int
) -> Tensor:
    """Newton's method, with steps that are cut where they overshoot."""
    value, gradient = model.objective(deviation)
    rounding = 10 * torch.finfo(value.dtype).eps
    for _ in range(QUADRATIC_STEPS if model.is_quadratic else NEWTON_STEPS):
        size = float(_size(model, gradient))
        if size <= tolerance:
            break
        # Far from the optimum of a curved loss a rough step is as good.
        relative = (
            0.1 * tolerance / size if model.is_quadratic else min(0.01 * size, 0.1)
        )
        step = -conjugate_gradients(
            lambda v, at=deviation: model.curvature_times(at, v[0])[None],
            gradient[None],
            lambda v: posterior_times(model.la, v[0])[None],
            relative,
            max_steps,
        )[0]
        length, slope = 1.0, gradient @ step
        found = model.objective(deviation + step)
        while found[0] > value + 1e-4 * length * slope + rounding * value.abs():
            length /= 2
            if length < 1e-6:  # nothing better in this dtype
                return deviation
            found = model.objective(deviation + length * step)
        gained = float(value - found[0])
        deviation = deviation + length * step
        value, gradient = found
        if gained <= rounding * float(value.abs()):
            break
    return deviation


def _adam(
    model: LinearModel, deviation: Tensor, tolerance: float, max_steps: int, lr: float
) -> Tensor:
    """Adam in units of the posterior's deviations, with a rate that falls to zero."""
    units = marginal_variances(model.la).sqrt()
    point = deviation / units
    optimizer = torch.optim.Adam([point], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max_steps)
    for _ in range(max_steps):
        _, gradient = model.objective(point * units)
        if _size(model, gradient) <= tolerance:
            break
        point.grad = gradient * units
        optimizer.step()
        schedule.step()
    return point * units


def _size(model: LinearModel, gradient: Tensor) -> Tensor:
    """How far from the optimum: the gradient's length under the posterior."""
    return (gradient @ posterior_times(model.la, gradient)).clamp_min(0).sqrt()


def maximise_linear_evidence(
    la: ParametricLaplace,
    loader: Iterable[Any],
    groups: str | Groups = "scalar",
    learn_noise: bool | None = None,
    tolerance: float = 1e-3,
    max_rounds: int = 50,
    **optimum: Any,
) -> Evidence:
    """Choose prior and noise by the evidence at the optimum of the linear model.

    Optimum and prior are updated in turn, to a joint stationary point. Predictions stay
    linearised at the network's weights. For normalised networks, give every normalised
    layer a prior of its own: ``groups=normalised_groups(model, x)``; the predictive
    variance then does not depend on the scale of their weights.

    Args:
        la: A fitted posterior over all trainable weights.
        loader: The data it was fitted to.
        groups: As for ``maximise_evidence``.
        learn_noise: As for ``maximise_evidence``. It is the noise around the linear
            model, which may fit closer than the network that makes the predictions:
            with a network far from its optimum, keep that of the network's residuals
            by ``False``.
        tolerance: The relative change to stop at.
        max_rounds: The updates to stop at; each finds the optimum anew.
        **optimum: As for ``linear_optimum``.

    Returns:
        What was found; ``weights`` is the optimum.
    """
    require_at_least_one("max_rounds", max_rounds)
    learn_noise = noise_is_learned(la, learn_noise)
    require_fit(la)
    own, model = PriorGroups(la, groups), LinearModel(la, loader)
    tolerance = reachable(la, tolerance)
    start, history, change = None, [], float("inf")

    def fit_now() -> Fit:
        weights = linear_optimum(la, loader, start, **optimum)
        loss, _ = model.loss_and_gradient(weights - model.start)
        return Fit(weights - la.prior_mean, loss)

    for _ in range(max_rounds):
        fit = fit_now()
        start = fit.from_prior + la.prior_mean
        change = update(la, own, fit, learn_noise)
        history.append(float(log_evidence(la, fit)))
        if change < tolerance:
            break
    return summary(la, own, fit_now(), history, change < tolerance)
