"""Looks for numbers that are not finite, at next to no cost while there are none."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Module


def first_not_finite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """Find a tensor that is not finite.

    Args:
        named: Tensors by name.

    Returns:
        The name of the first one, if any.
    """
    named = list(named)
    # One sum each and one look at all: a sum is finite only if its parts are.
    sums = [tensor.detach().sum() for _, tensor in named]
    if not sums or torch.stack(sums).isfinite().all():
        return None
    # A sum may overflow by itself.
    return next((n for n, tensor in named if not tensor.isfinite().all()), None)


@torch.no_grad()
def first_layer_not_finite(model: Module, x: Tensor) -> str:
    """Find out where a forward pass goes wrong.

    Args:
        model: The model.
        x: A batch.  # [N, *in]

    Returns:
        The name of the first layer with an output that is not finite, or ``"loss"``.
    """
    found: list[str] = []

    def look(name: str, output: object) -> None:
        if isinstance(output, Tensor) and not output.isfinite().all():
            found.append(name)

    handles = [
        module.register_forward_hook(lambda _, __, out, name=name: look(name, out))
        for name, module in model.named_modules()
        if not any(module.children())
    ]
    try:
        model(x)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else "loss"


def stop_message(what: str, layer: str, step: int) -> str:
    """What to tell when a run has to stop.

    Args:
        what: What is not finite.
        layer: Where.
        step: When.

    Returns:
        The message.
    """
    return (
        f"The {what} is not finite at step {step}, first in {layer!r}. The step is not "
        "applied. Lower the learning rate, or look at the data of that step."
    )
