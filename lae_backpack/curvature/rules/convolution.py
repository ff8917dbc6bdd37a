"""Convolutions of every dimension, transposed or not: one affine rule."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from lae_backpack.curvature.call import Call, Layer
from lae_backpack.curvature.registry import register_rule
from lae_backpack.curvature.rules.affine import AffineRule
from lae_backpack.curvature.rules.base import DiagRule
from lae_backpack.curvature.rules.by_autograd import linearised
from lae_backpack.curvature.rules.image_inputs import without_batch_or_channels
from lae_backpack.curvature.rules.repeated_inputs import cross_terms


@register_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
@register_rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
class ConvRule(AffineRule):
    """Every setting torch has; padding that torch does beforehand, so do we."""

    @override
    def check(self, module: Layer, x: Tensor) -> str | None:
        return without_batch_or_channels(module, x)

    @override
    def apply(self, call: Call, weight: Tensor, x: Tensor) -> Tensor:
        geometry = Geometry.of(call.module, call.x, call.output)
        return geometry.forward(weight, x)

    @override
    def separates_params(self, call: Call) -> bool:
        return call.output.shape[2:].numel() == 1  # no weight is used twice

    @override
    def push_diag(self, call: Call, variance: Tensor) -> Tensor:
        geometry = Geometry.of(call.module, call.x, call.output)
        if geometry.pad_mode == "constant":
            return super().push_diag(call, variance)
        return DiagRule.push_diag(self, call, variance)  # with its cross terms

    @override
    def push_param_diag(self, name: str, call: Call, variance: Tensor) -> Tensor:
        if name == "bias":
            return variance.reshape(-1, *[1] * (call.x.dim() - 2))
        return super().push_param_diag(name, call, variance)

    @override
    def input_gradient(
        self, module: Layer, weight: Tensor, x: Tensor, grad: Tensor
    ) -> Tensor:
        return Geometry.of(module, x, grad).input_gradient(weight, x, grad)

    @override
    def input_diag(self, module: Layer, x: Tensor, diag: Tensor) -> Tensor:
        pulled = super().input_diag(module, x, diag)
        geometry = Geometry.of(module, x, diag)
        if geometry.pad_mode == "constant":
            return pulled
        return pulled + cross_terms(
            module.weight.detach(),
            diag,
            x.shape[2:],
            pads=geometry.pads,
            mode=geometry.pad_mode,
            stride=geometry.stride,
            dilation=geometry.dilation,
            groups=geometry.groups,
        )

    @override
    def weight_gradient(self, module: Layer, x: Tensor, grad: Tensor) -> Tensor:
        geometry = Geometry.of(module, x, grad)
        return geometry.weight_gradient(module.weight.detach(), geometry.pad(x), grad)

    @override
    def weight_gradients(self, module: Layer, x: Tensor, grads: Tensor) -> Tensor:
        geometry, groups = Geometry.of(module, x, grads[0]), module.groups
        patches = geometry.patches(geometry.pad(x), module.kernel_size)
        patches = patches.unflatten(1, (groups, -1)).flatten(0, 1)  # [NG, i, *k, L]
        grads = grads.flatten(3).unflatten(2, (groups, -1))  # [K, N, G, o, L]
        n_columns, n_out = len(grads), grads.shape[3]
        # The columns' channels are rows of one product for each sample.
        rows = grads.movedim(0, 2).flatten(0, 1).flatten(1, 2)  # [NG, Ko, L]
        pulled = rows @ patches.flatten(1, -2).transpose(1, 2)
        pulled = pulled.reshape(
            -1, groups, n_columns, n_out, *patches.shape[1:-1]
        ).movedim(2, 0)  # [K, N, G, o, i, *k]
        return (pulled.transpose(3, 4) if module.transposed else pulled).flatten(2, 3)

    @override
    def bias_gradient(self, module: Layer, grad: Tensor) -> Tensor:
        return grad.flatten(2).sum(2)


@dataclass(frozen=True)
class Geometry:
    """A convolution's numbers as ``aten::convolution`` wants them."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    pads: tuple[int, ...]  # what F.pad does first: other modes, uneven "same"
    pad_mode: str

    @classmethod
    def of(cls, module: Layer, x: Tensor, out: Tensor) -> Geometry:
        """Read the numbers off a layer and one use of it.

        Args:
            module: The layer.
            x: An input.  # [N, C, *spatial]
            out: A tensor with the output's shape.  # [N, C, *spatial]

        Returns:
            The numbers, with padding resolved.
        """
        kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
        nothing = (0,) * len(kernel)
        padding, pads, mode = module.padding, (), "constant"
        if isinstance(padding, str) or module.padding_mode != "zeros":
            pads = tuple(module._reversed_padding_repeated_twice)
            before, after = pads[0::2][::-1], pads[1::2][::-1]
            if module.padding_mode != "zeros":
                padding, mode = nothing, module.padding_mode
            elif before == after:
                padding, pads = before, ()
            else:
                padding = nothing
        output_padding = nothing
        if module.transposed:
            # From the sizes: a caller may have chosen among the possible ones.
            output_padding = _missing(x, out, kernel, stride, padding, dilation)
        return cls(
            stride,
            padding,
            dilation,
            module.transposed,
            output_padding,
            module.groups,
            pads,
            mode,
        )

    def pad(self, x: Tensor) -> Tensor:
        """What torch does before it convolves.

        Args:
            x: An input.  # [N, C, *spatial]

        Returns:
            The input with the padding that the convolution does not do itself.
        """
        return F.pad(x, self.pads, mode=self.pad_mode) if self.pads else x

    def input_gradient(self, weight: Tensor, x: Tensor, grad: Tensor) -> Tensor:
        """Gradient with respect to the input, as one convolution.

        Args:
            weight: The weight to use.
            x: An input, of which only the shape counts.  # [N, C, *spatial]
            grad: Gradient at the output.  # [N, C, *spatial]

        Returns:
            Gradient at the input.  # [N, C, *spatial]
        """
        padded, unpad = x, None
        if self.pads:
            padded, unpad = linearised(self.pad, torch.zeros_like(x))
        nothing = (0,) * len(self.stride)
        kernel = weight.shape[2:]
        full = tuple(
            d * (k - 1) - p
            for d, k, p in zip(self.dilation, kernel, self.padding, strict=True)
        )
        if self.transposed:
            pulled = torch.convolution(
                grad, weight, None, self.stride, self.padding, self.dilation, False,
                nothing, self.groups,
            )  # fmt: skip
            pulled = pulled[(..., *(slice(n) for n in x.shape[2:]))]
        elif set(self.stride) == {1} and min(full) >= 0:
            # A plain convolution: on CPUs several times faster than its transpose.
            turned = (
                weight.unflatten(0, (self.groups, -1)).transpose(1, 2).flatten(0, 1)
            )
            turned = turned.flip(tuple(range(2, turned.dim())))
            pulled = torch.convolution(
                grad, turned, None, self.stride, full, self.dilation, False, nothing,
                self.groups,
            )  # fmt: skip
        else:
            rest = _missing(
                grad, padded, kernel, self.stride, self.padding, self.dilation
            )
            pulled = torch.convolution(
                grad, weight, None, self.stride, self.padding, self.dilation, True,
                rest, self.groups,
            )  # fmt: skip
        return unpad(pulled) if unpad else pulled

    def forward(self, weight: Tensor, x: Tensor) -> Tensor:
        """The convolution without its bias.

        Args:
            weight: The weight.
            x: An input.  # [N, C, *spatial]

        Returns:
            The output.  # [N, C, *spatial]
        """
        return torch.convolution(
            self.pad(x), weight, None, self.stride, self.padding, self.dilation,
            self.transposed, self.output_padding, self.groups,
        )  # fmt: skip

    def weight_gradient(self, weight: Tensor, x: Tensor, grad: Tensor) -> Tensor:
        """Gradient with respect to the weight, summed over the batch.

        Args:
            weight: A weight, of which only the shape counts.
            x: The padded input.  # [N, C, *spatial]
            grad: Gradient at the output.  # [N, C, *spatial]

        Returns:
            Gradient at the weight.  # [*weight]
        """
        return torch.ops.aten.convolution_backward(
            grad, x, weight, None, self.stride, self.padding, self.dilation,
            self.transposed, self.output_padding, self.groups, [False, True, False],
        )[1]  # fmt: skip

    def patches(self, x: Tensor, kernel: tuple[int, ...]) -> Tensor:
        """What each output reads, by kernel position.

        Args:
            x: The padded input.  # [N, C, *spatial]
            kernel: The kernel's size.

        Returns:
            The patches; L counts the outputs.  # [N, C, *kernel, L]
        """
        margins, stride = [(p, p) for p in self.padding], self.stride
        if self.transposed:
            # A transposed convolution is a plain one over its input with gaps.
            sizes = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], stride, strict=True)]
            gaps = x.new_zeros(*x.shape[:2], *sizes)
            gaps[(..., *(slice(None, None, s) for s in stride))] = x
            reach = [d * (k - 1) for d, k in zip(self.dilation, kernel, strict=True)]
            ends = zip(reach, self.padding, self.output_padding, strict=True)
            margins = [(r - p, r - p + extra) for r, p, extra in ends]
            x, stride = gaps, (1,) * len(kernel)
        x = F.pad(x, [amount for margin in reversed(margins) for amount in margin])
        for dim, k in enumerate(kernel):
            window = self.dilation[dim] * (k - 1) + 1
            x = x.unfold(2 + dim, window, stride[dim])[..., :: self.dilation[dim]]
        if self.transposed:
            x = x.flip(tuple(range(-len(kernel), 0)))
        places = range(2, 2 + len(kernel))
        # The kernel first, so that a product over outputs copies nothing again.
        return x.movedim(tuple(places), tuple(range(-len(kernel), 0))).flatten(
            -len(kernel)
        )


def _missing(
    small: Tensor,
    large: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[int, ...]:
    """How many pixels a transposed convolution must add to reach a size."""
    return tuple(
        wide - ((narrow - 1) * s - 2 * p + d * (k - 1) + 1)
        for wide, narrow, k, s, p, d in zip(
            large.shape[2:],
            small.shape[2:],
            kernel,
            stride,
            padding,
            dilation,
            strict=True,
        )  # fmt: skip
    )
