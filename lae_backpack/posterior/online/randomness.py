"""The random states that a run's data depends on."""

from __future__ import annotations

import torch
from torch import Tensor

States = dict[str, Tensor]


def random_states(loader: object, device: torch.device) -> States:
    """Write down all random states at this moment.

    Args:
        loader: The loader; it and its samplers may have generators of their own.
        device: The model's device.

    Returns:
        The states by name.
    """
    states = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    for name, generator in _generators(loader).items():
        states[name] = generator.get_state()
    return states


def set_random_states(states: States, loader: object, device: torch.device) -> None:
    """Go back to a moment.

    Args:
        states: What was written down.
        loader: The loader.
        device: The model's device.
    """
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
    for name, generator in _generators(loader).items():
        if name in states:
            generator.set_state(states[name].cpu())


def _generators(loader: object) -> dict[str, torch.Generator]:
    found = {}
    holders = {
        "loader": loader,
        "sampler": getattr(loader, "sampler", None),
        "batch_sampler": getattr(loader, "batch_sampler", None),
    }
    for name, holder in holders.items():
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator):
            found[name] = generator
    return found
