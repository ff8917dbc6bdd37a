"""What autograd's graph tells about a model between BackPACK's hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import Parameter

# A tensor as autograd knows it: the node that made it, and which of its outputs.
Origin = tuple[Node, int]


def _is_hook(node: Node) -> bool:
    """Whether a node is only there to run a module's backward hook."""
    return node.name() == "BackwardHookFunctionBackward"


def origin(tensor: Tensor) -> Origin | None:
    """The operation that made a tensor, seen through the hooks around modules.

    Unlike an address in memory it cannot be met again by chance.

    Args:
        tensor: A module's input or output.

    Returns:
        The node and the number of its output; ``None`` for what enters the net.
    """
    return _behind_hooks(tensor.grad_fn, tensor.output_nr)


def _behind_hooks(node: Node | None, index: int) -> Origin | None:
    while node is not None and _is_hook(node):
        node, index = node.next_functions[index]
    return None if node is None or _is_leaf(node) else (node, index)


def _is_leaf(node: Node) -> bool:
    return node.name() == "torch::autograd::AccumulateGrad"


def nodes_below(
    root: Node | None, stop: Callable[[Node], bool] = lambda node: False
) -> list[Node]:
    """All operations that one depends on, and itself.

    Args:
        root: The operation; ``None`` for what nothing has made.
        stop: Where not to go on, those operations left out.

    Returns:
        The operations, the nearest ones first.
    """
    nodes = [] if root is None else [root]
    seen = set(nodes)
    for node in nodes:  # grows while it is read
        for below, _ in node.next_functions:
            if below is not None and below not in seen and not stop(below):
                seen.add(below)
                nodes.append(below)
    return nodes


def made_by_modules(output: Tensor) -> set[Origin]:
    """The operations whose outputs modules handed to each other.

    Args:
        output: The model's output.

    Returns:
        What lies right behind hooks; in a net of modules only, each module's result.
    """
    made = {origin(output)}
    for node in nodes_below(output.grad_fn):
        if _is_hook(node):
            made |= {_behind_hooks(*edge) for edge in node.next_functions}
    return {found for found in made if found is not None}


def parameters_below(output: Tensor) -> set[Parameter]:
    """All trainable parameters that a tensor depends on.

    Args:
        output: The tensor.

    Returns:
        The parameters.
    """
    return _parameters(nodes_below(output.grad_fn))


def parameters_behind(place: Origin) -> set[Parameter]:
    """All trainable parameters that an operation depends on.

    Args:
        place: The operation's output.

    Returns:
        The parameters.
    """
    return _parameters(nodes_below(place[0]))


def parameters_read(place: Origin) -> set[Parameter]:
    """The trainable parameters that one module reads.

    Args:
        place: What the module made.

    Returns:
        What is behind it before the next module's hook.
    """
    return _parameters(nodes_below(place[0], _is_hook))


def _parameters(nodes: list[Node]) -> set[Parameter]:
    leaves = (_leaf(node) for node in nodes if _is_leaf(node))
    return {leaf for leaf in leaves if isinstance(leaf, Parameter)}


def _leaf(node: Any) -> Tensor:
    return node.variable
