"""What moves the mean, and what it must be like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

if TYPE_CHECKING:
    from lae_backpack.posterior.autoencoder import LaplaceAE


def adam(params: Sequence[Tensor] | Sequence[dict[str, Any]], lr: float) -> Adam:
    """The optimiser of a run that was given none.

    Args:
        params: What it moves, or groups of it.
        lr: The learning rate of what has none of its own.

    Returns:
        Adam.
    """
    # One kernel instead of a dozen, where there is one; on the CPU it ignores strides.
    tensors = chain.from_iterable(
        one["params"] if isinstance(one, dict) else [one] for one in params
    )
    fused = all(p.device.type in ("cpu", "cuda") and p.is_contiguous() for p in tensors)
    return Adam(params, lr, fused=fused)


def cosine(optimizer: Optimizer, n_steps: int) -> LambdaLR:
    """A learning rate that falls to nothing.

    Args:
        optimizer: Whose rate it is.
        n_steps: When it is nothing.

    Returns:
        The scheduler.
    """
    return LambdaLR(optimizer, lambda t: 0.5 + 0.5 * math.cos(math.pi * t / n_steps))


def require_gradient_steps(
    optimizer: Optimizer | None, scheduler: LRScheduler | None
) -> None:
    """Refuse an optimiser that wants more than gradients, or another's scheduler.

    Args:
        optimizer: The optimiser, if one was given.
        scheduler: Its scheduler, if one was given.

    Raises:
        ValueError: If they do not fit.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "optimizer is LBFGS, which asks for the loss several times in a step. Use "
            "one that takes gradients, such as Adam or SGD."
        )
    if scheduler is not None and optimizer is None:
        raise ValueError(
            "scheduler belongs to an optimizer, got optimizer=None. Pass the optimiser "
            "that the scheduler was made for."
        )
    if scheduler is not None and scheduler.optimizer is not optimizer:
        raise ValueError(
            "scheduler was made for another optimizer. Make it with this one."
        )


def require_optimizer_of(la: LaplaceAE, optimizer: Optimizer) -> None:
    """Refuse an optimiser of another model.

    Args:
        la: The posterior of this one.
        optimizer: The optimiser.

    Raises:
        ValueError: If it does not hold a trainable parameter of this one.
    """
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not all(id(p) in held for p in la.params):
        raise ValueError(
            "optimizer does not hold all trainable parameters of the model. Make it "
            "with la.params, or freeze the others before LaplaceAE(model)."
        )
