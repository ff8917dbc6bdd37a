"""Which parameters belong to which layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch.nn import Module


@dataclass(frozen=True)
class Layer:
    """A module that owns trainable parameters.

    Attributes:
        name: Its name in the model.
        sizes: The numbers of its trainable parameters by their names in the model.
    """

    name: str
    sizes: dict[str, int]

    @property
    def size(self) -> int:
        """The width of its block."""
        return sum(self.sizes.values())


def layers_of(model: Module) -> list[Layer]:
    """The modules that own trainable parameters, in the order of ``parameters()``.

    Args:
        model: The model.

    Returns:
        The layers.
    """
    names = {p: name for name, p in model.named_parameters() if p.requires_grad}
    layers = []
    for place, module in model.named_modules():
        own = [p for p in module.parameters(recurse=False) if p in names]
        sizes = {names.pop(p): p.numel() for p in own}  # each belongs to one layer
        if sizes:
            layers.append(Layer(place or type(module).__name__, sizes))
    return layers
