"""State dicts that load whole or not at all, on any device, from older packages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lae_backpack.posterior.engine_laplace import EngineLaplace

# Counts changes that older packages could not read. Without a number: 0, which differs
# from 1 in nothing else.
FORMAT = 1
REMEDY = "Load it into the model and the structure it was made with."


def checked_state(la: EngineLaplace, state: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict that can be loaded.

    Args:
        la: The posterior it is for.
        state: What ``state_dict`` gave, maybe that of an older package or of another
            device.

    Returns:
        The same on the posterior's device, without the format's number.

    Raises:
        ValueError: If it cannot be loaded.
    """
    if not isinstance(state, Mapping):
        raise ValueError(
            f"state_dict must be a dict, got {type(state).__name__}. Give what "
            "la.state_dict() returned."
        )
    found = {name: _on_device(value, la._device) for name, value in state.items()}
    number = found.pop("format", 0)
    if not isinstance(number, int) or number > FORMAT:
        raise ValueError(
            f"The state dict has format {number!r}, this package reads 0 to {FORMAT}. "
            "Use the package that wrote it."
        )
    missing = sorted(_NAMES - found.keys())
    if missing:
        raise ValueError(f"The state dict lacks {missing}. {REMEDY}")
    shapes = {"mean": [la.n_params]}
    if isinstance(la.H, Tensor):
        shapes["H"] = [la.n_params]
    if "looks" in found:
        shapes["looks"] = [4, la.n_params]
    for name, shape in shapes.items():
        value = found[name]
        if not isinstance(value, Tensor) or list(value.shape) != shape:
            got = list(value.shape) if isinstance(value, Tensor) else type(value)
            raise ValueError(
                f"The state dict has {name} of shape {got}, {shape} is needed, the "
                f"number of trainable parameters. {REMEDY}"
            )
    return found


_NAMES = {
    "mean", "H", "loss", "prior_mean", "prior_precision", "sigma_noise", "n_data",
    "n_outputs", "likelihood", "temperature", "enable_backprop", "cls_name",
}  # fmt: skip


def _on_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, list):
        return [_on_device(part, device) for part in value]
    return value
