"""The random states that a run's data depends on."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

States = dict[str, Any]


def random_states(loader: object, device: torch.device) -> States:
    """Write down all random states at this moment.

    Args:
        loader: The loader; it and its samplers may have generators of their own.
        device: The model's device.

    Returns:
        The states by name.
    """
    version, numbers, cached = random.getstate()
    name, keys, *rest = np.random.get_state()
    states: States = {
        "torch": torch.get_rng_state(),
        "python": [version, list(numbers), cached],
        "numpy": [name, np.asarray(keys).tolist(), *rest],
    }
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
    version, numbers, cached = states["python"]
    random.setstate((version, tuple(numbers), cached))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), *rest))
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
    for name, generator in _generators(loader).items():
        if name in states:
            generator.set_state(states[name].cpu())


def _generators(loader: object) -> dict[str, torch.Generator]:
    found, waiting = {}, {"loader": loader}
    while waiting:
        name, holder = waiting.popitem()
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator):
            found[name] = generator
        for part in ("sampler", "batch_sampler"):
            inner = getattr(holder, part, None)
            if inner is not None:
                waiting[f"{name}.{part}"] = inner
    return found
