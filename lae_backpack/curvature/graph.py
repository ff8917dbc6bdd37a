"""What autograd's graph tells about a model between BackPACK's hooks."""

from __future__ import annotations

from collections import Counter
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


def _nodes_below(root: Node | None) -> list[Node]:
    nodes = [] if root is None else [root]
    seen = set(nodes)
    for node in nodes:  # grows while it is read
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
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
    for node in _nodes_below(output.grad_fn):
        if _is_hook(node):
            made |= {_behind_hooks(*edge) for edge in node.next_functions}
    return {found for found in made if found is not None}


def parameter_used_twice(output: Tensor) -> Tensor | None:
    """Look for a trainable parameter that two operations read.

    Args:
        output: The model's output.

    Returns:
        The first one found.
    """
    reads = Counter(
        below
        for node in _nodes_below(output.grad_fn)
        for below, _ in node.next_functions
        if below is not None and _is_leaf(below)
    )
    shared = (_leaf(node) for node, count in reads.items() if count > 1)
    return next((leaf for leaf in shared if isinstance(leaf, Parameter)), None)


def _leaf(node: Any) -> Tensor:
    return node.variable


def comes_from_a_module(place: Origin) -> bool:
    """Whether any module's hook lies behind an operation.

    Args:
        place: The operation's output.

    Returns:
        True if the operation works on what a module made.
    """
    return any(map(_is_hook, _nodes_below(place[0])))
