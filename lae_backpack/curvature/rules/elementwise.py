"""Layers that act on each number alone: the Jacobian is diagonal, ``f'(x)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from backpack.custom_module.scale_module import ScaleModule
from torch import Tensor, nn
from typing_extensions import override

from lae_backpack.curvature.call import Call, Layer
from lae_backpack.curvature.covariance import Covariance
from lae_backpack.curvature.policy import DensePolicy
from lae_backpack.curvature.registry import register_rule
from lae_backpack.curvature.rules.base import DiagRule
from lae_backpack.curvature.rules.by_autograd import forward_of, linearised

aten = torch.ops.aten


@register_rule(
    nn.CELU,
    nn.Hardshrink,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,  # and ReLU6, its subclass
    nn.LogSigmoid,
    nn.Mish,
    nn.ReLU6,
    nn.SELU,
    nn.Softplus,
    nn.Softshrink,
    nn.Softsign,
    nn.Tanhshrink,
    nn.Threshold,
)
class ElementwiseRule(DiagRule):
    """``f'(x)^2 d``, with ``f'`` from autograd.

    A new activation needs no more than ``register_rule(MyAct)(ElementwiseRule)``.
    """

    one_input_per_output = True
    one_output_per_input = True

    def derivative(self, call: Call) -> Tensor:
        """``f'(x)``.

        Args:
            call: The use of the activation.

        Returns:
            The derivative, or one number for all.  # [N, *in] or []
        """
        _, pull = linearised(forward_of(call.module), call.x)
        return pull(torch.ones_like(call.x))

    @override
    def pull_diag(self, call: Call, diag: Tensor) -> Tensor:
        derivative = self.derivative(call)
        return derivative * derivative * diag

    @override
    def pull_columns(self, call: Call, columns: Tensor) -> Tensor:
        return self.derivative(call) * columns

    @override
    def push(
        self,
        call: Call,
        arrived: Sequence[Covariance],
        variances: Mapping[str, Tensor],
        policy: DensePolicy,
    ) -> Covariance:
        if variances:
            return super().push(call, arrived, variances, policy)
        # What came dense goes on dense, and what came diagonal goes on diagonal.
        columns, rest = arrived[0].columns, arrived[0].rest
        return Covariance(
            {s: self.push_columns(call, call.x, c) for s, c in columns.items()},
            None if rest is None else self.push_diag(call, rest),
        )

    @override
    def push_diag(self, call: Call, variance: Tensor) -> Tensor:
        return self.pull_diag(call, variance)

    @override
    def push_columns(self, call: Call, x: Tensor, columns: Tensor) -> Tensor:
        return self.pull_columns(call, columns)

    @override
    def input_diag(self, module: Layer, x: Tensor, diag: Tensor) -> Tensor:
        return self.pull_diag(Call(module, (x,), forward_of(module)(x)), diag)


class KernelRule(ElementwiseRule):
    """An activation for which torch has a kernel that multiplies by ``f'(x)``.

    Running it twice gives ``f'(x)^2 d`` without a tensor for ``f'``, and where the
    kernel reads the output, nothing of the forward pass is computed again.
    """

    def __init__(
        self, kernel: Callable[[Call, Tensor], Tensor], zero_or_one: bool = False
    ) -> None:
        """Keep the kernel.

        Args:
            kernel: Maps a call and ``v``, shaped like its output, to ``f'(x) v``.
            zero_or_one: ``f'`` is 0 or 1, hence its own square.
        """
        self.kernel = kernel
        self.zero_or_one = zero_or_one

    @override
    def derivative(self, call: Call) -> Tensor:
        return self.kernel(call, torch.ones_like(call.output))

    @override
    def pull_diag(self, call: Call, diag: Tensor) -> Tensor:
        once = self.kernel(call, diag.expand_as(call.output))
        return once if self.zero_or_one else self.kernel(call, once)

    @override
    def pull_columns(self, call: Call, columns: Tensor) -> Tensor:
        return self.kernel(call, columns)  # kernels broadcast


for activation, kernel in {
    nn.Tanh: lambda call, v: aten.tanh_backward(v, call.output),
    nn.Sigmoid: lambda call, v: aten.sigmoid_backward(v, call.output),
    nn.SiLU: lambda call, v: aten.silu_backward(v, call.x),
    # In low precision its kernel may be one that does not broadcast.
    nn.GELU: lambda call, v: aten.gelu_backward(
        *torch.broadcast_tensors(v, call.x), approximate=call.module.approximate
    ),
    nn.LeakyReLU: lambda call, v: aten.leaky_relu_backward(
        v, call.x, call.module.negative_slope, False
    ),
    nn.ELU: lambda call, v: aten.elu_backward(
        v, call.module.alpha, 1, 1, False, call.x
    ),
}.items():
    register_rule(activation)(KernelRule(kernel))

register_rule(nn.ReLU)(
    KernelRule(
        lambda call, v: aten.threshold_backward(v, call.output, 0), zero_or_one=True
    )
)


@register_rule(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
class DropoutRule(ElementwiseRule):
    """Identity in eval mode; in train mode the mask of that forward pass."""

    @override
    def is_random(self, module: Layer) -> bool:
        return module.training

    @override
    def hands_on(self, module: Layer) -> bool:
        return not module.training

    @override
    def derivative(self, call: Call) -> Tensor:
        if not call.module.training:
            return call.x.new_ones(())
        assert call.derivative is not None
        return call.derivative


@register_rule(ScaleModule)
class ScaleRule(ElementwiseRule):
    """Multiplication by a number."""

    @override
    def derivative(self, call: Call) -> Tensor:
        return call.x.new_tensor(call.module.weight)


@register_rule(nn.PReLU)
class PReLURule(ElementwiseRule):
    """A leaky ReLU whose slope is learned, one for all channels or one each."""

    params = ("weight",)

    def weight(self, module: Layer, x: Tensor, diag: Tensor) -> Tensor:
        """Curvature of the slope: ``min(x, 0)^2 d``.

        Args:
            module: The activation.
            x: Its input.  # [N, C, ...]
            diag: Diagonal at the output.  # [N, C, ...]

        Returns:
            The curvature.  # [1] or [C]
        """
        return _per_slope(x.clamp(max=0).square() * diag, module).sum(0)

    @override
    def pull_columns_to_param(self, name: str, call: Call, columns: Tensor) -> Tensor:
        products = (call.x.clamp(max=0) * columns).flatten(0, 1)
        return _per_slope(products, call.module).unflatten(0, columns.shape[:2])


def _per_slope(values: Tensor, module: Layer) -> Tensor:
    # Sum within each sample what belongs to the same slope: [N, C, ...] -> [N, S]
    if module.weight.numel() == 1:
        return values.flatten(1).sum(1, keepdim=True)
    return values.flatten(2).sum(2) if values.dim() > 2 else values
