"""Updates that bring a code nearer to the mode of ``p(z | x)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# The share of each step that is taken: one number, one for each update, or a function
# of the update's number.
Decay = float | Sequence[float] | Callable[[int], float]


def halved_decay(t: int) -> float:
    """The paper's ``alpha_t = 0.5 / (t + 1)``.

    Args:
        t: The update's number, from 0.

    Returns:
        The share of the step that is taken.
    """
    return 0.5 / (t + 1)


def share_at(alpha: Decay, t: int) -> float:
    """The share of the step that update t takes.

    Args:
        alpha: The decay.
        t: The update's number, from 0.

    Returns:
        The share.

    Raises:
        ValueError: If there is none for this update, or it is not within (0, 1].
    """
    if callable(alpha):
        share = alpha(t)
    elif isinstance(alpha, Sequence):
        if t >= len(alpha):
            raise ValueError(
                f"alpha has {len(alpha)} numbers, and update {t + 1} needs one more. "
                "Give one for each update, one number for all, or a function of t."
            )
        share = alpha[t]
    else:
        share = alpha
    if not 0 < share <= 1:
        raise ValueError(
            f"alpha must be within (0, 1], got {share} for update {t + 1}. 1 takes the "
            "full step, less is smoother."
        )
    return share


# A step has to bring this part of what its slope promises. A full step on a linear
# decoder brings one half; one that overshoots the mode by far brings less.
SUFFICIENT = 0.25


@torch.no_grad()
def guarded_shares(
    log_joint: Callable[[Tensor], Tensor],
    z: Tensor,
    step: Tensor,
    gradient: Tensor,
    share: float,
    n_halvings: int = 20,
) -> Tensor:
    """Halve each sample's share until ``log p(x, z)`` rises enough.

    The direction is one of ascent, so a short enough step always does it; where
    the promised rise is lost in rounding the code stays where it is.

    Args:
        log_joint: ``log p(x, z)`` of codes, one number for each.
        z: The codes.  # [N, K]
        step: The full step.  # [N, K]
        gradient: Of ``log p(x, z)``.  # [N, K]
        share: The share to begin with.
        n_halvings: How often it is halved at most.

    Returns:
        The shares, zero where nothing helped.  # [N, 1]
    """
    start, slope = log_joint(z)[:, None], (gradient * step).sum(1, keepdim=True)
    rounding = torch.finfo(z.dtype).eps * start.abs()
    none = torch.zeros_like(slope)
    shares = torch.full_like(slope, share)
    for _ in range(n_halvings + 1):
        shares = torch.where(shares * slope > rounding, shares, none)
        reached = log_joint(z + shares * step)[:, None]
        # Not "<": a log-density that is not a number counts as too low.
        too_low = ~(reached >= start + SUFFICIENT * shares * slope)
        if not too_low.any():
            return shares
        shares = torch.where(too_low, shares / 2, shares)
    return torch.where(too_low, none, shares)
