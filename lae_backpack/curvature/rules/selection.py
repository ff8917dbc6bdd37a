"""Layers that copy: every output is one input, or a constant; ``Jx o Jx = Jx``."""

from __future__ import annotations

from backpack.custom_module.pad import Pad
from backpack.custom_module.permute import Permute
from backpack.custom_module.slicing import Slicing
from torch import Tensor, nn
from typing_extensions import override

from lae_backpack.curvature.call import Call, Layer
from lae_backpack.curvature.registry import register_rule
from lae_backpack.curvature.rules import by_autograd
from lae_backpack.curvature.rules.base import DiagRule

PADS = [
    getattr(nn, f"{kind}Pad{dim}d")
    for kind in ("Zero", "Constant", "Reflection", "Replication", "Circular")
    for dim in (1, 2, 3)
]


REPEATING = tuple(
    pad for pad in PADS if pad.__name__.startswith(("Reflection", "Repl", "Circ"))
)


class SelectionRule(DiagRule):
    """A 0/1 Jacobian: a diagonal travels like a gradient."""

    one_input_per_output = True

    @override
    def pull_diag(self, call: Call, diag: Tensor) -> Tensor:
        return self.pull_columns(call, diag[None])[0]

    @override
    def push_diag(self, call: Call, variance: Tensor) -> Tensor:
        return self.push_columns(call, call.x, variance[None])[0]

    @override
    def input_diag(self, module: Layer, x: Tensor, diag: Tensor) -> Tensor:
        return self.pull_diag(Call(module, (x,), module.forward(x)), diag)


@register_rule(*PADS, Pad, nn.PixelShuffle, nn.PixelUnshuffle)
class FixedSelectionRule(SelectionRule):
    """A selection that is the same for every input."""

    constant_jacobian = True

    @override
    def separates_inputs(self, module: Layer) -> bool:
        # Of these, only pads that repeat pixels use an input twice.
        mode = getattr(module, "mode", "constant")
        return mode == "constant" and not isinstance(module, REPEATING)

    @override
    def push_columns(self, call: Call, x: Tensor, columns: Tensor) -> Tensor:
        return by_autograd.push_linear(call.module, columns)


@register_rule(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
@register_rule(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
class MaxPoolRule(SelectionRule):
    """The largest of a window."""

    @override
    def check(self, module: Layer, x: Tensor) -> str | None:
        if module.return_indices:
            return (
                "return_indices=True makes the output a tuple. Use "
                "return_indices=False."
            )
        return None


@register_rule(nn.Flatten, nn.Unflatten, nn.Identity)
class ReshapeRule(FixedSelectionRule):
    """The same numbers in another shape."""

    @override
    def hands_on(self, module: Layer) -> bool:
        return isinstance(module, nn.Identity)

    @override
    def check(self, module: Layer, x: Tensor) -> str | None:
        dims = {nn.Flatten: "start_dim", nn.Unflatten: "dim"}
        names = [dims[kind] for kind in dims if isinstance(module, kind)]
        if any(getattr(module, name) % x.dim() == 0 for name in names):
            return "it reshapes the batch dimension. Reshape from dimension 1 on."
        return None

    @override
    def pull_columns(self, call: Call, columns: Tensor) -> Tensor:
        return columns.reshape(*columns.shape[:2], *call.x.shape[1:])


@register_rule(Permute)
class PermuteRule(FixedSelectionRule):
    """BackPACK's Permute, whose ``dims`` leave the batch in place."""


@register_rule(Slicing)
class SlicingRule(FixedSelectionRule):
    """BackPACK's Slicing, as long as it keeps all samples."""

    @override
    def check(self, module: Layer, x: Tensor) -> str | None:
        info = module.slice_info
        parts = info if isinstance(info, tuple) else (info,)
        spared = parts[0] is Ellipsis and len(parts) <= x.dim()
        if spared or (isinstance(parts[0], slice) and parts[0] == slice(None)):
            return None
        return f"slice_info={info!r} drops samples. Start it with slice(None)."
