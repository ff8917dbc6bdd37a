"""Layers whose outputs are weighted means of inputs, with weights fixed in advance."""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor, nn
from typing_extensions import override

from lae_backpack.curvature.call import Call, Layer
from lae_backpack.curvature.registry import register_rule
from lae_backpack.curvature.rules import by_autograd
from lae_backpack.curvature.rules.base import DiagRule
from lae_backpack.curvature.rules.image_inputs import without_batch_or_channels


class AveragingRule(DiagRule):
    """Row o of ``Jx`` holds ``1 / k_o`` or 0: ``(Jx o Jx)^T d = Jx^T (d / k)``."""

    constant_jacobian = True

    @override
    def check(self, module: Layer, x: Tensor) -> str | None:
        return without_batch_or_channels(module, x)

    def divisors(self, module: Layer, x: Tensor) -> list[Tensor]:
        """By what each output's sum was divided, as an outer product.

        Args:
            module: The layer.
            x: Its input.  # [N, C, *spatial]

        Returns:
            One vector for each spatial dimension.  # [[out_1], [out_2], ...]

        Raises:
            NotImplementedError: If a subclass does not write this.
        """
        raise NotImplementedError(f"{type(self).__name__} must write divisors")

    @override
    def input_diag(self, module: Layer, x: Tensor, diag: Tensor) -> Tensor:
        diag = self._divided(module, x, diag)
        return by_autograd.pull_columns(module, x, diag[None])[0]

    @override
    def push_diag(self, call: Call, variance: Tensor) -> Tensor:
        means = by_autograd.push_linear(call.module, variance[None])[0]
        return self._divided(call.module, call.x, means)

    @override
    def push_columns(self, call: Call, x: Tensor, columns: Tensor) -> Tensor:
        return by_autograd.push_linear(call.module, columns)

    def _divided(self, module: Layer, x: Tensor, diag: Tensor) -> Tensor:
        divisors = self.divisors(module, x)
        for dim, divisor in enumerate(divisors, start=diag.dim() - len(divisors)):
            shape = [-1 if d == dim else 1 for d in range(diag.dim())]
            diag = diag / divisor.reshape(shape).to(diag)
        return diag


def _per_dim(setting: int | tuple[int, ...] | None, dims: int) -> list[int]:
    return [setting] * dims if isinstance(setting, int) else list(setting or [])


@register_rule(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
class AvgPoolRule(AveragingRule):
    """The mean of a window."""

    @override
    def divisors(self, module: Layer, x: Tensor) -> list[Tensor]:
        dims = x.dim() - 2
        override = getattr(module, "divisor_override", None)
        kernel, stride, padding = (
            _per_dim(s, dims)
            for s in (module.kernel_size, module.stride, module.padding)
        )
        out = module.forward(x[:1]).shape[2:]
        divisors = []
        for d, size in enumerate(x.shape[2:]):
            start = torch.arange(out[d]) * stride[d] - padding[d]
            # In ceil mode the last window may stick out even of the padding.
            stop = (start + kernel[d]).clamp(max=size + padding[d])
            if not module.count_include_pad:
                start, stop = start.clamp(min=0), stop.clamp(max=size)
            divisors.append(stop - start)
        if override:
            divisors = [torch.ones_like(n) for n in divisors]
            divisors[0] = divisors[0] * override
        return divisors


@register_rule(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
class AdaptiveAvgPoolRule(AveragingRule):
    """The mean of a window whose size follows from the sizes of input and output."""

    @override
    def divisors(self, module: Layer, x: Tensor) -> list[Tensor]:
        divisors = []
        for size, out in zip(x.shape[2:], module.forward(x[:1]).shape[2:], strict=True):
            index = torch.arange(out)
            start, stop = index * size // out, -(-(index + 1) * size // out)
            divisors.append(stop - start)
        return divisors


@register_rule(nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d)
class UpsampleRule(DiagRule):
    """Interpolation: a selection per channel, or separable weights to be squared."""

    constant_jacobian = True

    @override
    def keeps_diagonal(self, module: Layer) -> bool:
        return module.mode.startswith("nearest")

    @override
    def push_diag(self, call: Call, variance: Tensor) -> Tensor:
        if self.keeps_diagonal(call.module):
            return by_autograd.push_linear(call.module, variance[None])[0]
        return super().push_diag(call, variance)

    @override
    def push_columns(self, call: Call, x: Tensor, columns: Tensor) -> Tensor:
        return by_autograd.push_linear(call.module, columns)

    @override
    def pull_columns(self, call: Call, columns: Tensor) -> Tensor:
        if not _repeats_pixels(call):
            return super().pull_columns(call, columns)
        # torch's own way backwards. Autograd would have to go forwards first.
        name = f"upsample_nearest{call.x.dim() - 2}d_backward"
        folded = columns.flatten(0, 1)
        pulled = getattr(torch.ops.aten, name)(
            folded, folded.shape[2:], (len(folded), *call.x.shape[1:])
        )
        return pulled.unflatten(0, columns.shape[:2])

    @override
    def input_diag(self, module: Layer, x: Tensor, diag: Tensor) -> Tensor:
        if self.keeps_diagonal(module):
            return by_autograd.pull_columns(module, x, diag[None])[0]
        for dim in range(2, x.dim()):
            index, weight = _taps(module, x, dim)
            shape = [-1 if d == dim else 1 for d in range(diag.dim())]
            pulled = diag.new_zeros(
                *diag.shape[:dim], x.shape[dim], *diag.shape[dim + 1 :]
            )
            for i, w in zip(index, weight, strict=True):
                squared = w.square().to(diag).reshape(shape)
                pulled.index_add_(dim, i, squared * diag)
            diag = pulled
        return diag


def _repeats_pixels(call: Call) -> bool:
    """Whether every pixel becomes a block of its own, all of the same size."""
    scale, sizes = call.module.scale_factor, call.x.shape[2:]
    scales = scale if isinstance(scale, tuple) else (scale,) * len(sizes)
    pairs = zip(call.output.shape[2:], sizes, scales, strict=True)
    return call.module.mode == "nearest" and all(
        out == size * s if s else out % size == 0 for out, size, s in pairs
    )


def _taps(module: Layer, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """From which inputs, with which weights, interpolation makes each output.

    The layer itself is asked, so that all its settings count: with a ramp, which linear
    interpolation reproduces, or with unit vectors.

    Returns:
        Indices and weights.  # [taps, out], [taps, out]
    """
    size = x.shape[dim]
    if module.mode == "bicubic":
        units = torch.eye(size, dtype=torch.float64, device=x.device)
        answer = _ask(module, units, x.dim(), dim).T  # [in, out]
        index = answer.abs().topk(min(size, 4), dim=0).indices
        return index, answer.gather(0, index)
    ramp = torch.arange(size, dtype=torch.float64, device=x.device)[None]
    position = _ask(module, ramp, x.dim(), dim)[:, 0]
    lower = position.floor().clamp(max=size - 1)
    upper = (lower + 1).clamp(max=size - 1)
    weight = position - lower
    index = torch.stack([lower, upper]).long()
    return index, torch.stack([1 - weight, weight])


def _ask(module: Layer, lines: Tensor, n_dims: int, dim: int) -> Tensor:
    """What a layer makes of lines along one dimension.  # [K, in] -> [out, K]."""
    scale = module.scale_factor or 1.0
    few = ceil(1 / min(scale if isinstance(scale, tuple) else (scale,)))
    shape = [len(lines) if d == 1 else 1 for d in range(n_dims)]
    shape[dim] = lines.shape[1]
    wide = [few if d > 1 and d != dim else n for d, n in enumerate(shape)]
    answer = module.forward(lines.reshape(shape).expand(wide))  # others hold constants
    answer = answer.movedim(dim, 2)
    return answer.reshape(len(lines), answer.shape[2], -1)[:, :, 0].T
