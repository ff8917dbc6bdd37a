"""Where curvature starts: Hessians of the losses at the model's output."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override

from lae_backpack.curvature.call import Layer
from lae_backpack.curvature.probe import Probe
from lae_backpack.curvature.quantities import Dense
from lae_backpack.curvature.registry import register_rule
from lae_backpack.curvature.rules.loss_rule import LossRule


class ReducedLossRule(LossRule):
    """What the losses share: they are summed or averaged."""

    @override
    def check(self, module: Layer, x: Tensor, target: Tensor) -> str | None:
        if module.reduction not in ("sum", "mean"):
            return (
                f"reduction={module.reduction!r} gives no single loss. Use 'sum' or "
                "'mean'."
            )
        if x.dim() < 2:
            return (
                f"the model's output has shape {tuple(x.shape)}, [N, ...] with a batch "
                "dimension is needed. Keep the last dimension, for instance [N, 1]."
            )
        return None


@register_rule(nn.MSELoss)
class MSERule(ReducedLossRule):
    """Twice the identity, the same for every sample."""

    @override
    def check(self, module: Layer, x: Tensor, target: Tensor) -> str | None:
        if x.shape != target.shape:
            return (
                f"output {tuple(x.shape)} and target {tuple(target.shape)} differ in "
                "shape. Give the target the output's shape."
            )
        return super().check(module, x, target)

    @override
    def seed_diag(self, module: Layer, x: Tensor, target: Tensor) -> Tensor:
        count = x.numel() if module.reduction == "mean" else 1
        return torch.full_like(x[:1], 2.0 / count)


@register_rule(nn.BCEWithLogitsLoss)
class BCEWithLogitsRule(ReducedLossRule):
    """``p (1 - p)``, weighted as the loss is; targets may be soft."""

    @override
    def seed_diag(self, module: Layer, x: Tensor, target: Tensor) -> Tensor:
        hessian = x.sigmoid() * (-x).sigmoid()  # 1 - p would vanish for sure outputs
        if module.pos_weight is not None:
            hessian = hessian * (module.pos_weight * target + 1 - target)
        if module.weight is not None:
            hessian = hessian * module.weight
        return hessian / x.numel() if module.reduction == "mean" else hessian


@register_rule(nn.CrossEntropyLoss)
class CrossEntropyRule(ReducedLossRule):
    """``t (diag(p) - p p^T)`` at every position, t the weight of its target."""

    @override
    def seed_diag(self, module: Layer, x: Tensor, target: Tensor) -> Tensor:
        p = x.softmax(1)
        weight = self._target_weight(module, x, target).unsqueeze(1)
        return weight * p * _one_minus(p)

    @override
    def seed_dense(self, module: Layer, x: Tensor, target: Tensor) -> Dense:
        p = x.softmax(1).flatten(2) if x.dim() > 2 else x.softmax(1)[..., None]
        t = self._target_weight(module, x, target).reshape(len(x), 1, -1)
        classes, positions = p.shape[1:]
        hessian = -torch.einsum("nas,nbs->nsab", t * p, p)  # [N, S, C, C]
        diagonal = (t * p * _one_minus(p)).transpose(1, 2)
        hessian.diagonal(dim1=2, dim2=3).copy_(diagonal)
        # Positions do not see each other: [N, C, S, C, S] with equal positions only.
        spread = hessian.new_zeros(len(x), classes, positions, classes, positions)
        index = torch.arange(positions, device=x.device)
        spread[:, :, index, :, index] = hessian.transpose(0, 1)
        size = classes * positions
        return Dense.from_matrix(spread.reshape(len(x), size, size), x)

    @override
    def seed_random(
        self, module: Layer, x: Tensor, target: Tensor, probe: Probe
    ) -> Dense:
        # (diag(sqrt p) - p sqrt(p)^T) is a root of diag(p) - p p^T, as p sums to 1.
        p = x.softmax(1)
        weight = self._target_weight(module, x, target).unsqueeze(1)
        signed = p.sqrt() * probe.signs(p, len(p))  # [K, N, C, ...]
        columns = weight.sqrt() * (signed - p * signed.sum(2, keepdim=True))
        return probe.root(columns)

    def _target_weight(self, module: Layer, x: Tensor, target: Tensor) -> Tensor:
        # How much each position's target weighs in the loss: [N, ...]
        classes = x.shape[1]
        weight = x.new_ones(classes) if module.weight is None else module.weight
        smooth = module.label_smoothing
        if target.is_floating_point():
            at_target = torch.einsum("nc...,c->n...", target, weight)
            total = (1 - smooth) * at_target + smooth * weight.mean()
            return total / total.numel() if module.reduction == "mean" else total
        target = target.long()
        counts = target != module.ignore_index
        at_target = weight[target.where(counts, 0)] * counts
        total = (1 - smooth) * at_target + smooth * weight.mean() * counts
        return total / at_target.sum() if module.reduction == "mean" else total


def _one_minus(p: Tensor) -> Tensor:
    # 1 - p along the classes; for the largest one the sum of the others, because the
    # difference would vanish for sure outputs.
    largest = p.argmax(1, keepdim=True)
    others = p.scatter(1, largest, 0).sum(1, keepdim=True)
    return (1 - p).scatter(1, largest, others)
