"""One use of a module in a forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# A layer as its rule knows it: only the rule can tell which attributes it has.
Layer = Any


@dataclass(frozen=True)
class Call:
    """A module with what went in and what came out.

    Attributes:
        module: The module.
        inputs: The tensors it was called with.
        output: What it made.
        derivative: Of a random elementwise layer, as drawn in that call.
    """

    module: Layer
    inputs: tuple[Tensor, ...]
    output: Tensor
    derivative: Tensor | None = None

    @property
    def x(self) -> Tensor:
        """The first input.  # [N, *in]."""
        return self.inputs[0]

    def to(self, dtype: torch.dtype) -> Call:
        """Convert real numbers.

        Args:
            dtype: Another dtype.

        Returns:
            The same call in it; integers stay as they are.
        """

        def converted(tensor: Tensor) -> Tensor:
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        drawn = None if self.derivative is None else converted(self.derivative)
        inputs = tuple(converted(tensor) for tensor in self.inputs)
        return Call(self.module, inputs, converted(self.output), drawn)
