"""Layers that standardise: by fixed statistics, or by those of the numbers themselves.

For a group of m numbers with standardised values h and scale s,

    J_oi = gamma_o / s (delta_oi - (1 + h_o h_i) / m),

so with ``a = (gamma / s)^2 d`` the sum over o of ``J_oi^2 d_o`` needs only the three
moments ``sum a``, ``sum a h`` and ``sum a h^2`` of the group: one pass, no Jacobian.
Without the mean (RMSNorm) the 1 in the bracket is gone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override

from lae_backpack.curvature.call import Call, Layer
from lae_backpack.curvature.registry import register_rule
from lae_backpack.curvature.rules.base import DiagRule
from lae_backpack.curvature.rules.image_inputs import without_batch_or_channels


class NormRule(DiagRule):
    """What all of them share: an affine map after standardising."""

    params = ("weight", "bias")

    def standardised(self, module: Layer, x: Tensor) -> tuple[Tensor, Tensor]:
        """The values before weight and bias, and what they were divided by.

        Args:
            module: The layer.
            x: Its input.  # [N, *in]

        Returns:
            Standardised values and their scale.  # [N, *in], broadcastable to it

        Raises:
            NotImplementedError: If a subclass does not write this.
        """
        raise NotImplementedError(f"{type(self).__name__} must write standardised")

    def param_shape(self, module: Layer, x: Tensor) -> tuple[int, ...]:
        """The shape in which weight and bias meet the input.

        Args:
            module: The layer.
            x: Its input.  # [N, C, ...]

        Returns:
            A shape that broadcasts to the input's.
        """
        return (1, x.shape[1], *[1] * (x.dim() - 2))

    def weight(self, module: Layer, x: Tensor, diag: Tensor) -> Tensor:
        """Curvature of the scale: ``h^2 d``.

        Args:
            module: The layer.
            x: Its input.  # [N, *in]
            diag: Diagonal at the output.  # [N, *in]

        Returns:
            The curvature.  # [*param]
        """
        values, _ = self.standardised(module, x)
        return self._to_param(module, x, values.square() * diag).sum(0)

    def bias(self, module: Layer, x: Tensor, diag: Tensor) -> Tensor:
        """Curvature of the shift: ``d``.

        Args:
            module: The layer.
            x: Its input.  # [N, *in]
            diag: Diagonal at the output.  # [N, *in]

        Returns:
            The curvature.  # [*param]
        """
        return self._to_param(module, x, diag).sum(0)

    @override
    def pull_columns_to_param(self, name: str, call: Call, columns: Tensor) -> Tensor:
        if name == "weight":
            columns = columns * self.standardised(call.module, call.x)[0]
        flat = self._to_param(call.module, call.x, columns.flatten(0, 1))
        return flat.unflatten(0, columns.shape[:2])

    def gain(self, module: Layer, x: Tensor, scale: Tensor) -> Tensor:
        """``gamma / s``, by what a number is multiplied in all.

        Args:
            module: The layer.
            x: Its input.  # [N, *in]
            scale: By what standardising divided.

        Returns:
            The gain, broadcastable to the input.
        """
        gain = scale.reciprocal()
        if module.weight is not None:
            gain = gain * module.weight.detach().reshape(self.param_shape(module, x))
        return gain

    def _to_param(self, module: Layer, x: Tensor, values: Tensor) -> Tensor:
        # Sum within each sample what one parameter meets: [N, *in] -> [N, *param]
        shape = (len(values), *self.param_shape(module, x)[1:])
        return values.sum_to_size(shape).reshape(len(values), *module.weight.shape)


@register_rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
class FixedStatisticsRule(NormRule):
    """Batch normalisation in eval mode: one gain per channel."""

    one_input_per_output = True
    one_output_per_input = True
    constant_jacobian = True

    @override
    def check(self, module: Layer, x: Tensor) -> str | None:
        if module.training:
            return (
                "in train mode it mixes the samples of a batch, so no curvature per "
                "sample exists. Call model.eval() first."
            )
        if module.running_var is None:
            return (
                "track_running_stats=False mixes the samples of a batch. Use "
                "track_running_stats=True and model.eval()."
            )
        return None

    @override
    def standardised(self, module: Layer, x: Tensor) -> tuple[Tensor, Tensor]:
        shape = self.param_shape(module, x)
        scale = (module.running_var + module.eps).sqrt().reshape(shape)
        return (x - module.running_mean.reshape(shape)) / scale, scale

    @override
    def input_diag(self, module: Layer, x: Tensor, diag: Tensor) -> Tensor:
        _, scale = self.standardised(module, x[:1])
        return self.gain(module, x, scale).square() * diag


class OwnStatisticsRule(NormRule):
    """Standardising by the statistics of groups within each sample."""

    centred = True

    def groups(self, module: Layer, x: Tensor) -> tuple[int, ...]:
        """How to see a batch as groups.

        Args:
            module: The layer.
            x: Its input.  # [N, *in]

        Returns:
            The shape ``(N, groups, members)``.

        Raises:
            NotImplementedError: If a subclass does not write this.
        """
        raise NotImplementedError(f"{type(self).__name__} must write groups")

    @override
    def standardised(self, module: Layer, x: Tensor) -> tuple[Tensor, Tensor]:
        values = x.reshape(self.groups(module, x))
        if self.centred:
            values = values - values.mean(2, keepdim=True)
        # Without an eps, torch takes that of the type it calculates in.
        calculates_in = torch.promote_types(x.dtype, torch.float32)
        eps = torch.finfo(calculates_in).eps if module.eps is None else module.eps
        scale = (values.square().mean(2, keepdim=True) + eps).sqrt()
        full_scale = scale.expand_as(values).reshape(x.shape)
        return (values / scale).reshape(x.shape), full_scale

    @override
    def pull_columns(self, call: Call, columns: Tensor) -> Tensor:
        # In closed form, because another forward pass may move running statistics.
        values, scale = self.standardised(call.module, call.x)
        weighted = self.gain(call.module, call.x, scale) * columns
        return self._projected(call, values, weighted)

    @override
    def push_columns(self, call: Call, x: Tensor, columns: Tensor) -> Tensor:
        values, scale = self.standardised(call.module, x)
        columns = columns.expand(-1, *x.shape)
        return self.gain(call.module, x, scale) * self._projected(call, values, columns)

    def _projected(self, call: Call, values: Tensor, columns: Tensor) -> Tensor:
        # Take out what standardising does: the mean and the part along the values.
        groups = self.groups(call.module, call.x)
        h, u = values.reshape(groups), columns.reshape(len(columns), *groups)
        along = h * (h * u).mean(-1, keepdim=True)
        mean = u.mean(-1, keepdim=True) if self.centred else 0.0
        return (u - mean - along).reshape(columns.shape)

    @override
    def input_diag(self, module: Layer, x: Tensor, diag: Tensor) -> Tensor:
        values, scale = self.standardised(module, x)
        groups = self.groups(module, x)
        h = values.reshape(groups)
        a = (self.gain(module, x, scale).square() * diag).reshape(groups)
        m = groups[2]
        one = 1.0 if self.centred else 0.0
        ah, h2 = a * h, h.square()
        a0, a1, a2 = (v.sum(2, keepdim=True) for v in (a, ah, ah * h))
        spread = one * (a0 + 2 * h * a1) + h2 * a2
        pulled = a * (1 - 2 * (one + h2) / m) + spread / m**2
        return pulled.reshape(x.shape)


@register_rule(nn.GroupNorm)
class GroupNormRule(OwnStatisticsRule):
    """Groups of channels."""

    @override
    def groups(self, module: Layer, x: Tensor) -> tuple[int, ...]:
        return (len(x), module.num_groups, x[0].numel() // module.num_groups)


@register_rule(nn.LayerNorm)
class LayerNormRule(OwnStatisticsRule):
    """The last dimensions."""

    @override
    def groups(self, module: Layer, x: Tensor) -> tuple[int, ...]:
        members = torch.Size(module.normalized_shape).numel()
        return (len(x), x[0].numel() // members, members)

    @override
    def check(self, module: Layer, x: Tensor) -> str | None:
        if len(module.normalized_shape) >= x.dim():
            return (
                f"normalized_shape={module.normalized_shape} takes in the batch. Leave "
                "out the first dimension."
            )
        return None

    @override
    def param_shape(self, module: Layer, x: Tensor) -> tuple[int, ...]:
        shape = module.normalized_shape
        return (*[1] * (x.dim() - len(shape)), *shape)


@register_rule(nn.RMSNorm)
class RMSNormRule(LayerNormRule):
    """The last dimensions, without their mean and without a bias."""

    params = ("weight",)
    centred = False


@register_rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
class InstanceNormRule(OwnStatisticsRule):
    """Each channel alone; by running statistics in eval mode, if it has them."""

    fixed: FixedStatisticsRule = FixedStatisticsRule()

    @override
    def check(self, module: Layer, x: Tensor) -> str | None:
        return without_batch_or_channels(module, x)

    @override
    def pull_columns(self, call: Call, columns: Tensor) -> Tensor:
        if _uses_running_statistics(call.module):
            return self.fixed.pull_columns(call, columns)
        return super().pull_columns(call, columns)

    @override
    def push_columns(self, call: Call, x: Tensor, columns: Tensor) -> Tensor:
        if _uses_running_statistics(call.module):
            return self.fixed.push_columns(call, x, columns)
        return super().push_columns(call, x, columns)

    @override
    def groups(self, module: Layer, x: Tensor) -> tuple[int, ...]:
        return (len(x), x.shape[1], x[0, 0].numel())

    @override
    def standardised(self, module: Layer, x: Tensor) -> tuple[Tensor, Tensor]:
        if _uses_running_statistics(module):
            return self.fixed.standardised(module, x)
        return super().standardised(module, x)

    @override
    def input_diag(self, module: Layer, x: Tensor, diag: Tensor) -> Tensor:
        if _uses_running_statistics(module):
            return self.fixed.input_diag(module, x, diag)
        return super().input_diag(module, x, diag)


def _uses_running_statistics(module: Layer) -> bool:
    return not module.training and module.running_var is not None
