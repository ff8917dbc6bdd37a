"""What must be the same on all ranks, and models that ranks share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from laplace.baselaplace import ParametricLaplace
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from lae_backpack.posterior import distributed


def require_same(what: str, value: object, remedy: str) -> None:
    """Refuse ranks that do different things.

    Args:
        what: What has to be the same.
        value: This rank's; equal ones have equal texts.
        remedy: What to do about it.

    Raises:
        ValueError: If another rank has another.
    """
    texts = distributed.gathered(repr(value))
    differing = [i for i, text in enumerate(texts) if text != texts[0]]
    if differing:
        raise ValueError(
            f"Rank {differing[0]} has another {what} than rank 0: "
            f"{texts[differing[0]]} instead of {texts[0]}. {remedy}"
        )


def require_same_tensors(what: str, tensors: Sequence[Tensor], remedy: str) -> None:
    """Refuse ranks that hold different numbers.

    Args:
        what: What has to be the same.
        tensors: This rank's.
        remedy: What to do about it.
    """
    if distributed.n_ranks() > 1:
        sums = [t.detach().double().sum().item() for t in tensors]
        # Not all digits: kinds of processors may add in another order.
        rounded = [f"{total:.5g}" for total in sums]
        require_same(what, [len(tensors), *rounded], remedy)


def require_same_posterior(la: ParametricLaplace) -> None:
    """Refuse ranks with different weights or hyperparameters.

    Args:
        la: This rank's posterior.
    """
    require_same_tensors(
        "model",
        [*la.params, *map(torch.as_tensor, (la.sigma_noise, la.prior_precision))],
        "Give all ranks the same weights, for instance by DistributedDataParallel(model"
        ") or torch.manual_seed(0) before making it.",
    )


def unwrapped(model: Module) -> Module:
    """A model without what trains it on several ranks, or compiles it.

    Args:
        model: The model, maybe wrapped.

    Returns:
        The model inside DistributedDataParallel and torch.compile; it has the same
        parameters, and modules with names and hooks.

    Raises:
        ValueError: If ranks hold different pieces of the parameters.
    """
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := model._modules.get("_orig_mod"), Module):
            model = inner
        else:
            break
    names = {type(m).__name__ for m in model.modules()}
    names |= {type(p).__name__ for p in model.parameters()}
    if names & {"FullyShardedDataParallel", "DTensor"}:  # importing them takes long
        raise ValueError(
            "The model's parameters are in pieces on several ranks (FSDP), and a "
            "posterior needs them whole. Use DistributedDataParallel, or gather the "
            "model with summon_full_params or get_model_state_dict first."
        )
    return model
