"""Norms whose Jacobians can be differentiated.

torch keeps mean and deviation of a layer norm for its gradient and takes them as
constants in the third derivative, so what is pushed forward has a wrong gradient. An
instance norm is the same. Written with elementary operations both are right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from typing_extensions import override


def push_forward(
    function: Callable[[Tensor], Tensor], x: Tensor, tangent: Tensor
) -> tuple[Tensor, Tensor]:
    """A function's output, and its Jacobian times a vector, with right gradients.

    Args:
        function: The function.
        x: Where.
        tangent: The vector, shaped like ``x``.

    Returns:
        Output and product.
    """
    with ElementaryNorms():
        output, pushed, *_ = jvp(function, (x,), (tangent,))
    return output, pushed


class ElementaryNorms(TorchFunctionMode):
    """Where this is entered, layer and instance norms are elementary operations."""

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        own = _OWN[func] if func in _OWN else func
        return own(*args, **(kwargs or {}))


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: object,
    **__: object,
) -> Tensor:
    dims = list(range(-len(normalized_shape), 0))
    return _affine(_standardised(input, dims, eps), weight, bias)


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not use_input_stats:  # its statistics are constants then
        statistics = running_mean, running_var, weight, bias
        return F.instance_norm(input, *statistics, False, momentum, eps)
    dims = list(range(2, input.dim()))
    weight, bias = (
        None if p is None else p.reshape(-1, *[1] * len(dims)) for p in (weight, bias)
    )
    return _affine(_standardised(input, dims, eps), weight, bias)


def _torch_instance_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    del cudnn_enabled
    statistics = running_mean, running_var, weight, bias
    return _instance_norm(input, *statistics, use_input_stats, momentum, eps)


_OWN: dict[Any, Callable[..., Tensor]] = {
    F.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
    F.instance_norm: _instance_norm,
    torch.instance_norm: _torch_instance_norm,
}


def _standardised(x: Tensor, dims: list[int], eps: float) -> Tensor:
    centred = x - x.mean(dims, keepdim=True)
    return centred * (centred.square().mean(dims, keepdim=True) + eps).rsqrt()


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = x if weight is None else x * weight
    return scaled if bias is None else scaled + bias
