"""What autograd's graph tells about a model between BackPACK's hooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import Tensor
from torch.autograd.graph import Node

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
    node, index = tensor.grad_fn, tensor.output_nr
    while node is not None and _is_hook(node):
        node, index = node.next_functions[index]
    if node is None or node.name() == "torch::autograd::AccumulateGrad":
        return None
    return node, index


def _edges_below(root: Node) -> Iterator[tuple[Node, Node]]:
    seen, waiting = {root}, [root]
    while waiting:
        node = waiting.pop()
        for following, _ in node.next_functions:
            if following is None:
                continue
            yield node, following
            if following not in seen:
                seen.add(following)
                waiting.append(following)


def parameter_used_twice(output: Tensor) -> Tensor | None:
    """Look for a trainable parameter that two operations read.

    Args:
        output: The model's output.

    Returns:
        The first one found.
    """
    if output.grad_fn is None:
        return None
    leaves = Counter(
        below
        for _, below in _edges_below(output.grad_fn)
        if below.name() == "torch::autograd::AccumulateGrad"
    )
    shared = (node for node, uses in leaves.items() if uses > 1)
    return next((node.variable for node in shared if _is_parameter(node)), None)


def _is_parameter(node: Node) -> bool:
    return type(node.variable).__name__ == "Parameter"


def comes_from_a_module(place: Origin) -> bool:
    """Whether any module's hook lies behind an operation.

    Args:
        place: The operation's output.

    Returns:
        True if the operation works on what a module made.
    """
    return any(_is_hook(below) for _, below in _edges_below(place[0]))
