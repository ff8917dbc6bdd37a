"""Which activations have a second derivative to learn from."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import Module

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
)


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
    """Refuse functions with kinks that no layer tells of.

    Args:
        output: What a model made, with its graph.

    Raises:
        ValueError: If there is one.
    """
    seen, waiting = set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = node.name().rstrip("0123456789")
        if name in KINKED_NODES:
            function = name.removesuffix("Backward")
            raise ValueError(
                f"The model's forward calls {function} as a function. Its second "
                "derivative is zero or infinite; Variational Laplace learns from it. "
                "Replace it: torch.nn.functional.softplus(x)"
            )
        waiting += [parent for parent, _ in node.next_functions]


def _path(name: str) -> str:
    parts = name.split(".") if name else []
    return "".join(f"[{p}]" if p.isdigit() else f".{p}" for p in parts)
