"""MacKay's updates: the prior and the noise that make the data most probable."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from laplace.baselaplace import ParametricLaplace
from torch import Tensor

from lae_backpack.posterior.choices import require_at_least_one
from lae_backpack.posterior.evidence.effective import (
    effective_of_each,
    require_fit,
    weights_from_prior,
)
from lae_backpack.posterior.evidence.groups import Groups, PriorGroups

# Without curvature the best prior precision is 0, without weights it is infinite.
LEAST, MOST = 1e-10, 1e10


@dataclass(frozen=True)
class Evidence:
    """What maximising the evidence has found; the posterior has it already.

    Attributes:
        prior_precision: One number for each group.  # [G]
        sigma_noise: The standard deviation of the noise.  # []
        effective_parameters: How many of each group the data determine.  # [G]
        log_evidence: The log marginal likelihood, after each update.
        weights: Where it was evaluated: the network's, or the optimum of the linear
            model.  # [P]
        converged: Whether the last update changed less than the tolerance.
    """

    prior_precision: Tensor
    sigma_noise: Tensor
    effective_parameters: Tensor
    log_evidence: list[float]
    weights: Tensor
    converged: bool


@dataclass(frozen=True)
class Fit:
    """How a network, or its linear model, explains data.

    Attributes:
        from_prior: Its weights minus the prior's mean.  # [P]
        loss: Its loss, as laplace-torch counts it: half the squared error, or the
            cross-entropy, summed.  # []
    """

    from_prior: Tensor
    loss: Tensor


def maximise_evidence(
    la: ParametricLaplace,
    groups: str | Groups = "scalar",
    learn_noise: bool | None = None,
    tolerance: float = 1e-6,
    max_steps: int = 1000,
) -> Evidence:
    """Choose prior precision and noise where laplace-torch's evidence is highest.

    It ends where ``la.log_marginal_likelihood`` has no slope, without a step size.

    Args:
        la: A fitted posterior: any diagonal structure, block_diag, kron or full.
        groups: What shares a prior precision: ``"scalar"``, ``"layerwise"``, or names
            of parameters, group by group.
        learn_noise: Whether the noise is chosen, too; by default for regression.
        tolerance: The relative change to stop at.
        max_steps: The updates to stop at.

    Returns:
        What was found.
    """
    require_at_least_one("max_steps", max_steps)
    learn_noise = noise_is_learned(la, learn_noise)
    require_fit(la)
    own = PriorGroups(la, groups)
    fit = Fit(weights_from_prior(la).detach(), torch.as_tensor(la.loss).detach())
    tolerance = reachable(la, tolerance)
    history, change = [], float("inf")
    for _ in range(max_steps):
        # Halfway, on a log scale: the whole step overshoots, and would only crawl
        # towards the optimum where the prior outweighs the data.
        change = update(la, own, fit, learn_noise, share=0.5)
        history.append(float(log_evidence(la, fit)))
        if change < tolerance:
            break
    return summary(la, own, fit, history, change < tolerance)


@torch.no_grad()
def update(
    la: ParametricLaplace,
    groups: PriorGroups,
    fit: Fit,
    learn_noise: bool,
    share: float = 1.0,
) -> float:
    """Update prior and noise once.

    Args:
        la: The posterior, which is changed.
        groups: What shares a prior precision.
        fit: Where the evidence is evaluated.
        learn_noise: Whether the noise is updated, too.
        share: How much of the step is taken, on a log scale.

    Returns:
        By how much the logarithms changed at most, in whole steps.
    """
    before = groups.present(la)
    shares = effective_of_each(la)
    squares = groups.sums(fit.from_prior.square())
    least = torch.finfo(squares.dtype).tiny
    wanted = groups.sums(shares) / squares.clamp_min(least)
    step = (wanted.clamp(LEAST, MOST) / before).log()
    change = float(step.abs().max())
    if learn_noise:
        variance = torch.as_tensor(la.sigma_noise).square()
        better = _noise_variance(la, shares.sum(), fit.loss, variance)
        change = max(change, float((better / variance).log().abs()))
        la.sigma_noise = better.sqrt()
    groups.install(la, before * (share * step).exp())
    return change


def _noise_variance(
    la: ParametricLaplace, effective: Tensor, loss: Tensor, variance: Tensor
) -> Tensor:
    """MacKay's step; that of expectation maximisation where it would overshoot.

    Both have the same fixed point. A diagonal may count more effective parameters than
    there are numbers, and MacKay's variance would then be negative.

    Returns:
        The variance.
    """
    numbers = la.n_data * la.n_outputs
    squares = 2 * loss / la.temperature
    if effective < numbers / 2:
        better = squares / (numbers - effective)
    else:
        better = (squares + variance * effective) / numbers
    return better.clamp_min(torch.finfo(better.dtype).eps ** 2)


@torch.no_grad()
def log_evidence(la: ParametricLaplace, fit: Fit) -> Tensor:
    """The log marginal likelihood, evaluated at given weights.

    Args:
        la: The posterior.
        fit: The weights and their loss; with the network's own it is laplace-torch's.

    Returns:
        The number.  # []
    """
    scatter = (fit.from_prior.square() * la.prior_precision_diag).sum()
    kept, la.loss = la.loss, fit.loss  # type: ignore[assignment]
    try:
        return la.log_likelihood - 0.5 * (la.log_det_ratio + scatter)
    finally:
        la.loss = kept


def summary(
    la: ParametricLaplace,
    groups: PriorGroups,
    fit: Fit,
    history: list[float],
    converged: bool,
) -> Evidence:
    """Say what was found.

    Args:
        la: The posterior.
        groups: What shares a prior precision.
        fit: Where the evidence was evaluated.
        history: The log evidence after each update.
        converged: Whether the updates came to an end.

    Returns:
        The report.
    """
    return Evidence(
        prior_precision=groups.present(la),
        sigma_noise=torch.as_tensor(la.sigma_noise).detach(),
        effective_parameters=groups.sums(effective_of_each(la)),
        log_evidence=history,
        weights=fit.from_prior + la.prior_mean,
        converged=converged,
    )


def reachable(la: ParametricLaplace, tolerance: float) -> float:
    """A tolerance that rounding allows.

    Args:
        la: The posterior.
        tolerance: What was wanted.

    Returns:
        No less than what numbers of the posterior's dtype can tell apart.
    """
    return max(tolerance, 100 * torch.finfo(la._dtype).eps)


def noise_is_learned(la: ParametricLaplace, wanted: bool | None) -> bool:
    """Whether there is noise to learn.

    Args:
        la: The posterior.
        wanted: Whether it shall be learned; ``None`` for wherever there is any.

    Returns:
        What was wanted, or whether there is noise.

    Raises:
        ValueError: If it is wanted and there is none.
    """
    regression = la.likelihood == "regression"
    if wanted and not regression:
        raise ValueError(
            f"learn_noise=True needs likelihood='regression', got {la.likelihood!r}, "
            "which has no noise. Use learn_noise=None."
        )
    return regression if wanted is None else wanted
