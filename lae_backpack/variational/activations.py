"""Which activations have a second derivative to learn from."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn import Module

from lae_backpack.curvature.graph import nodes_below

# Straight lines with kinks: the second derivative is zero wherever it exists.
KINKED: tuple[type[Module], ...] = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.PReLU,
    nn.RReLU,
    nn.SELU,
    nn.Hardtanh,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardshrink,
    nn.Softshrink,
    nn.Threshold,
)
# Activations only. What chooses among features (max_pool, amax, sort) passes curvature
# on, and a softmax by hand, which is smooth, subtracts its amax. So an activation that
# is written with amax or where is not found.
KINKED_NODES = (
    "ReluBackward",
    "LeakyReluBackward",
    "PreluKernelBackward",
    "RreluWithNoiseBackward",
    "HardtanhBackward",
    "HardsigmoidBackward",
    "HardswishBackward",
    "HardshrinkBackward",
    "SoftshrinkBackward",
    "ThresholdBackward",
    "AbsBackward",
    "ClampBackward",
    "ClampMinBackward",
    "ClampMaxBackward",
    "MaximumBackward",
    "MinimumBackward",
)
NORMS = ("NormBackward", "LinalgVectorNormBackward")


def require_smooth(model: Module) -> None:
    """Refuse layers with kinks.

    Args:
        model: The model.

    Raises:
        ValueError: If there is one.
    """
    for name, module in model.named_modules():
        bent_elu = isinstance(module, nn.ELU) and module.alpha != 1
        if isinstance(module, KINKED) or bent_elu:
            raise ValueError(
                f"Layer {name!r} is {type(module).__name__}, whose second derivative "
                "is zero or infinite; Variational Laplace learns from it. Allowed are "
                "smooth activations. Replace it: "
                f"model{_path(name)} = torch.nn.Softplus()"
            )


def require_smooth_graph(output: Tensor) -> None:
    """Refuse activations with kinks that no layer tells of.

    Args:
        output: What a model made, with its graph.

    Raises:
        ValueError: If there is one.
    """
    nodes = nodes_below(output.grad_fn)
    harmless = {inner for node in nodes for inner in _of_softsign(node)}
    for node in nodes:
        if node not in harmless and _is_kinked(node):
            function = _name(node).removesuffix("Backward")
            raise ValueError(
                f"The model's forward calls {function} as a function. Its second "
                "derivative is zero or infinite; Variational Laplace learns from it. "
                "Replace it: torch.nn.functional.softplus(x)"
            )


def _name(node: Node | None) -> str:
    return "" if node is None else node.name().rstrip("0123456789")


def _is_kinked(node: Any) -> bool:
    if _name(node) == "EluBackward":  # SELU, too
        return node._saved_alpha * node._saved_input_scale != 1
    if _name(node) == "ClampMinBackward":  # after a norm it guards a division
        return _name(node.next_functions[0][0]) not in NORMS
    return _name(node) in KINKED_NODES


def _of_softsign(node: Any) -> list[Any]:
    """The absolute value in ``x / (1 + |x|)``, whose kink cancels."""
    if _name(node) != "DivBackward" or len(node.next_functions) != 2:
        return []
    above, (below, _) = node.next_functions
    if _name(below) != "AddBackward":
        return []
    inner = below.next_functions[0][0]
    kinked = _name(inner) == "AbsBackward"
    return [inner] if kinked and inner.next_functions[0] == above else []


def _path(name: str) -> str:
    parts = name.split(".") if name else []
    return "".join(f"[{p}]" if p.isdigit() else f".{p}" for p in parts)
