"""What Variational Laplace is compared with: plain training and sampled weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from typing_extensions import override

from lae_backpack.variational import Terms, VariationalLaplace


class _Drawn(torch.autograd.Function):
    """Weights around their means, in one node for all tensors."""

    @staticmethod
    def forward(
        ctx: Any, generator: torch.Generator | None, count: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        means, log_sigmas = tensors[:count], tensors[count:]
        noises = [torch.empty_like(m).normal_(generator=generator) for m in means]
        shifts = [
            logs.exp().mul_(n) for logs, n in zip(log_sigmas, noises, strict=True)
        ]
        ctx.save_for_backward(*shifts)
        return tuple(map(torch.add, means, shifts))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *above, *map(torch.mul, above, ctx.saved_tensors)


class SampledWeights(VariationalLaplace):
    """Mean-field variational inference: the same Gaussian, one sample a step."""

    @override
    def terms(
        self,
        x: Tensor,
        y: Tensor,
        n_data: int,
        generator: torch.Generator | None = None,
    ) -> Terms:
        means = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        drawn = _Drawn.apply(generator, len(means), *means.values(), *self.log_sigmas)
        weights = dict(zip(means, drawn, strict=True))
        output = functional_call(self.model, weights, (x,))
        self.n_data, self.n_outputs = n_data, output[0].numel()
        log_likelihood = self.likelihood.log_prob(output, y) / len(x)
        kl = self.beta * self.kl() / n_data
        return Terms(log_likelihood, torch.zeros_like(kl), kl)


class PointEstimate(VariationalLaplace):
    """MAP: the mean alone, with the prior's penalty."""

    @override
    def terms(
        self,
        x: Tensor,
        y: Tensor,
        n_data: int,
        generator: torch.Generator | None = None,
    ) -> Terms:
        output = self.model(x)
        self.n_data, self.n_outputs = n_data, output[0].numel()
        pairs = zip(self.means, self.prior_scales, strict=True)
        squares = [torch.dot(m.flatten(), m.flatten()) / s**2 for m, s in pairs]
        penalty = 0.5 * self.beta * torch.stack(squares).sum() / n_data
        log_likelihood = self.likelihood.log_prob(output, y) / len(x)
        return Terms(log_likelihood, torch.zeros_like(penalty), penalty)


WAYS: dict[str, Callable[..., VariationalLaplace]] = {
    "VL": partial(VariationalLaplace, penalty_samples=None),  # the whole batch
    "VL, 16 of a batch": partial(VariationalLaplace, penalty_samples=16),
    "VI": SampledWeights,
    "MAP": PointEstimate,
}


def softplus_cnn(width: int = 16, classes: int = 10) -> nn.Sequential:
    """A small convolutional net for 28x28 images, smooth everywhere.

    Args:
        width: The channels of the first layer.
        classes: The outputs.

    Returns:
        The net.
    """
    return nn.Sequential(
        nn.Conv2d(1, width, 3, stride=2, padding=1),
        nn.Softplus(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.Softplus(),
        nn.Flatten(),
        nn.Linear(2 * width * 49, 64),
        nn.Softplus(),
        nn.Linear(64, classes),
    )


class PreactBlock(nn.Module):
    """Two convolutions beside a shortcut, activations first."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        """Make the layers.

        Args:
            width_in: Channels that come in.
            width: Channels that go out.
            stride: Of the first convolution and of the shortcut.
        """
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(1, width_in),
            nn.Softplus(),
            nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False),
            nn.GroupNorm(1, width),
            nn.Softplus(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
        )
        same = stride == 1 and width_in == width
        self.shortcut = (
            nn.Identity() if same else nn.Conv2d(width_in, width, 1, stride, bias=False)
        )

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.body(x)


def preact_resnet(width: int = 8, classes: int = 10) -> nn.Sequential:
    """The paper's PreactResNet-18 in small: an eighth of its width.

    It has Softplus instead of ReLU, and normalises each image for itself: the penalty
    sees some images of a batch only.

    Args:
        width: The channels of the first stage; the paper has 64.
        classes: The outputs.

    Returns:
        The net.
    """
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1, bias=False)]
    before = width
    for stage in range(4):
        for stride in (1 if stage == 0 else 2, 1):
            layers.append(PreactBlock(before, width * 2**stage, stride))
            before = width * 2**stage
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    return nn.Sequential(*layers, nn.GroupNorm(1, before), nn.Softplus(), *head)
