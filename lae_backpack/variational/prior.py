"""How far weights are from zero before data are seen."""

from __future__ import annotations

from torch import Tensor
from torch.nn import Module


def default_scale(model: Module, name: str) -> float:
    """``1 / sqrt(fan_in)`` of a tensor's layer; a bias has that of its weight.

    Args:
        model: The network.
        name: The name of one of its parameters.

    Returns:
        The prior's standard deviation.
    """
    place, _, own = name.rpartition(".")
    module = model.get_submodule(place)
    weight = getattr(module, "weight", None)
    tensor = weight if isinstance(weight, Tensor) and weight.dim() > 1 else None
    if tensor is None:
        tensor = getattr(module, own)
    return tensor[0].numel() ** -0.5 if tensor.dim() > 1 else 1.0
