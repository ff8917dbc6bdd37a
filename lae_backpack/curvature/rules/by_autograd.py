"""Exact dense steps for any layer, from vector-Jacobian products of its ``forward``.

Columns are folded into the batch, which needs no more of a layer than that its samples
do not see each other. ``module.forward`` is called, never the module: hooks would fire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.func import functional_call, vjp, vmap
from torch.nn import Module

from lae_backpack.curvature.call import Layer
from lae_backpack.curvature.quantities import features

# Columns are worked on in pieces of about this many numbers.
CHUNK = 2**24
# So few are pulled one by one through one forward pass, more in a batch of their own.
FEW = 4


def chunks(columns: Tensor, numbers_each: int) -> Iterator[Tensor]:
    """Go through columns in pieces that keep memory flat.

    Args:
        columns: The columns.  # [K, ...]
        numbers_each: How many numbers one column needs on the way.

    Yields:
        Pieces of the columns.  # [k, ...]
    """
    yield from columns.split(max(1, CHUNK // max(1, numbers_each)))


def in_chunks(
    function: Callable[[Tensor], Tensor], columns: Tensor, numbers_each: int
) -> Tensor:
    """Apply a function to columns piece by piece.

    Args:
        function: Maps columns to columns.
        columns: The columns.  # [K, ...]
        numbers_each: How many numbers one column needs on the way.

    Returns:
        What it makes of them.  # [K, ...]
    """
    if columns.shape[0] * numbers_each <= CHUNK:  # as nearly always
        return function(columns)
    return torch.cat([function(piece) for piece in chunks(columns, numbers_each)])


def forward_of(module: Layer) -> Callable[[Tensor], Tensor]:
    """A layer as a function that leaves its argument alone.

    Args:
        module: The layer.

    Returns:
        Its ``forward``; on a copy of the input if the layer works in place.
    """
    if getattr(module, "inplace", False):
        return lambda x: module.forward(x.clone())
    return module.forward


def linearised(
    function: Callable[[Tensor], Tensor], x: Tensor
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """A function's value and its transposed Jacobian at a point.

    Args:
        function: The function.
        x: The point.

    Returns:
        The value, and a function that maps ``v`` to ``J^T v``.
    """
    value, pull, *_ = vjp(function, x)
    return value, lambda v: pull(v)[0]


def transposed(
    function: Callable[[Tensor], Tensor], like: Tensor, vector: Tensor
) -> Tensor:
    """The transpose of a linear function, applied to a vector.

    Args:
        function: Linear; it may use all of torch, also what works in place.
        like: A tensor shaped like its argument.
        vector: A vector shaped like its value.

    Returns:
        The transpose's value, shaped like ``like``.
    """
    with torch.enable_grad():
        argument = torch.zeros_like(like).requires_grad_()
        value = function(argument)
        return torch.autograd.grad(value, argument, vector.reshape(value.shape))[0]


def _repeated(x: Tensor, times: int) -> Tensor:
    return x.repeat(times, *[1] * (x.dim() - 1))


def pull_columns(module: Layer, x: Tensor, columns: Tensor) -> Tensor:
    """``Jx^T v`` for many vectors per sample.

    Args:
        module: The layer.
        x: Its input.  # [N, *in]
        columns: Vectors at the output.  # [K, N or 1, *out]

    Returns:
        Vectors at the input.  # [K, N, *in]
    """
    columns = columns.expand(-1, len(x), *columns.shape[2:])
    if len(columns) <= FEW:
        _, pull = linearised(forward_of(module), x)
        return torch.stack([pull(column) for column in columns])
    pieces = []
    for piece in chunks(columns, len(x) * max(features(x), features(columns[0]))):
        _, pull = linearised(forward_of(module), _repeated(x, len(piece)))
        pieces.append(pull(piece.flatten(0, 1)).unflatten(0, (-1, len(x))))
    return torch.cat(pieces)


def push_columns(module: Layer, x: Tensor, columns: Tensor) -> Tensor:
    """``Jx v`` for many vectors.

    Args:
        module: The layer.
        x: Its input.  # [N, *in]
        columns: Vectors at the input.  # [K, N or 1, *in]

    Returns:
        Vectors at the output.  # [K, N, *out]
    """
    output, pull = linearised(forward_of(module), _repeated(x, len(columns)))
    # Pulling is linear, so pulling through it pushes (and torch.func.jvp would load
    # deprecated parts of torch).
    _, push = linearised(pull, torch.zeros_like(output))
    vectors = columns.expand(-1, *x.shape).flatten(0, 1)
    return push(vectors).unflatten(0, (-1, len(x)))


def push_linear(module: Layer, columns: Tensor) -> Tensor:
    """``Jx v`` for a layer that is linear, up to constants that it puts in.

    Args:
        module: The layer.
        columns: Vectors at the input.  # [K, N, *in]

    Returns:
        Vectors at the output.  # [K, N, *out]
    """
    pushed = module.forward(columns.flatten(0, 1))
    if getattr(module, "value", 0):  # of pads; what is constant does not vary
        pushed = pushed - module.forward(torch.zeros_like(columns[0, :1]))
    return pushed.unflatten(0, columns.shape[:2])


def pull_columns_to_param(
    module: Layer, name: str, x: Tensor, columns: Tensor
) -> Tensor:
    """``Jw^T v`` for many vectors, sample by sample.

    Args:
        module: The layer.
        name: The parameter's name.
        x: The layer's input.  # [N, *in]
        columns: Vectors at the output.  # [K, N, *out]

    Returns:
        Vectors at the parameter.  # [K, N, *param]
    """
    layer = _WithoutHooks(module)

    def pull(one: Tensor, vectors: Tensor) -> Tensor:  # [*in], [K, *out]
        def forward(value: Tensor) -> Tensor:
            return functional_call(layer, {f"layer.{name}": value}, (one[None],))[0]

        _, pull_one = linearised(forward, getattr(module, name).detach())
        return vmap(pull_one)(vectors)

    return vmap(pull, in_dims=(0, 1), out_dims=1)(x, columns)


def push_columns_from_param(
    module: Layer, name: str, x: Tensor, columns: Tensor
) -> Tensor:
    """``Jw v`` for many vectors.

    Args:
        module: The layer.
        name: The parameter's name.
        x: The layer's input.  # [N, *in]
        columns: Vectors at the parameter.  # [K, *param]

    Returns:
        Vectors at the output.  # [K, N, *out]
    """
    layer = _WithoutHooks(module)

    def forward(value: Tensor) -> Tensor:
        return functional_call(layer, {f"layer.{name}": value}, (x,))

    output, pull = linearised(forward, getattr(module, name).detach())
    _, push = linearised(pull, torch.zeros_like(output))
    return vmap(push)(columns)


class _WithoutHooks(Module):
    def __init__(self, layer: Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.forward(x)
