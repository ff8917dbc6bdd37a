"""Jacobians of decoders, by pushing the unit vectors of the code through them.

Linear layers and activations, one after the other, need no more than a product each;
``torch.func`` goes through everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap
from torch.nn import Module
from torch.nn import functional as F
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from lae_backpack.curvature.registry import find_rule, registered_class
from lae_backpack.curvature.rules.elementwise import ElementwiseRule
from lae_backpack.latent.elementary_norms import push_forward

Decode = Callable[[Tensor], Tensor]  # [N, K] -> [N, *out]

# Whose derivative is constant, piece by piece.
STEPWISE = {
    nn.ReLU,
    nn.LeakyReLU,
    nn.ReLU6,
    nn.Hardtanh,
    nn.Hardsigmoid,
    nn.Hardshrink,
    nn.Softshrink,
    nn.Threshold,
}


def push_units(decode: Decode, z: Tensor) -> tuple[Tensor, Tensor]:
    """Output and Jacobian of a decoder, or of a part of it.

    Args:
        decode: The decoder.
        z: The codes.  # [N, K]

    Returns:
        The output, and the transposed Jacobian.  # [N, *out], [N, K, D]
    """
    units = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    output, columns = _push(decode, z, units[None])
    return output, columns.flatten(2).expand(len(z), -1, -1)


def is_chain(decode: Decode) -> TypeGuard[nn.Sequential]:
    """Whether a decoder is its layers, one after the other, and nobody listens.

    Args:
        decode: The decoder.

    Returns:
        Whether its layers may be run one by one.
    """
    return (
        isinstance(decode, nn.Sequential)
        and runs_as(decode, nn.Sequential)
        and not any(map(_is_heard, decode.modules()))
    )


def runs_as(module: Module, cls: type[Module]) -> bool:
    """Whether a module does what its class does, and not something of its own.

    Args:
        module: The module.
        cls: One of its classes.

    Returns:
        Whether its forward pass is that of the class.
    """
    return "forward" not in vars(module) and type(module).forward is cls.forward


def _is_heard(module: Module) -> bool:
    own = module._forward_hooks or module._forward_pre_hooks
    return bool(own or _global_forward_hooks or _global_forward_pre_hooks)


def _is_activation(module: Module) -> bool:
    cls = registered_class(module)
    is_elementwise = isinstance(find_rule(module), ElementwiseRule)
    return is_elementwise and cls is not None and runs_as(module, cls)


def _push(decode: Decode, x: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Push an input and columns, the same for all samples or some for each.

    Args:
        decode: What they go through.
        x: The input.  # [N, *in]
        columns: The columns.  # [1 or N, K, *in]

    Returns:
        The output, and columns at it.  # [N, *out], [1 or N, K, *out]
    """
    if is_chain(decode):
        for layer in decode:  # a layer may stand in it twice
            x, columns = _push(layer, x, columns)
        return x, columns
    if isinstance(decode, Module) and not _is_heard(decode):
        if isinstance(decode, nn.Linear) and runs_as(decode, nn.Linear):
            return decode(x), F.linear(columns, decode.weight)
        if _is_activation(decode):
            output, slope, *_ = jvp(decode, (x,), (torch.ones_like(x),))
            # Steps have no slope: autograd would find it out at the columns' price.
            slope = slope.detach() if type(decode) in STEPWISE else slope
            return output, slope[:, None] * columns
    return _push_by_func(decode, x, columns)


def _push_by_func(decode: Decode, x: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    def push(column: Tensor) -> tuple[Tensor, Tensor]:
        return push_forward(decode, x, column)

    # The output is the same for all columns: vmap hands it through once.
    each = columns.expand(len(x), *columns.shape[1:])
    once_and_each: Any = (None, 1)
    return vmap(push, in_dims=1, out_dims=once_and_each)(each)
