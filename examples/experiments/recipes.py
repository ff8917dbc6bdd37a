"""Ways to train autoencoders: the usual one, and those that get further."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from muon import MuonAndAdam
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from typing_extensions import override

from lae_backpack import AutoEncoder, DiagRule, OnlineSettings, register_rule
from lae_backpack.posterior.online.optimizers import adam, cosine


def linear(optimizer: Optimizer, n_steps: int) -> LambdaLR:
    """A learning rate that falls to nothing in a straight line.

    Args:
        optimizer: Whose rate it is.
        n_steps: When it is nothing.

    Returns:
        The scheduler.
    """
    return LambdaLR(optimizer, lambda t: 1 - t / n_steps)


class NoisyInput(nn.Module):
    """Adds noise in training, for an encoder that does not learn images by heart."""

    def __init__(self, sigma: float) -> None:
        """Take a strength.

        Args:
            sigma: The noise's standard deviation.
        """
        super().__init__()
        self.sigma = sigma

    def forward(self, x: Tensor) -> Tensor:
        """Add the noise.

        Args:
            x: Images.  # [N, *in]

        Returns:
            Noisy ones in training.
        """
        return x + self.sigma * torch.randn_like(x) if self.training else x


@register_rule(NoisyInput)
class NoisyInputRule(DiagRule):
    """What the noise is added to does not change it."""

    @override
    def is_random(self, module: nn.Module) -> bool:
        return module.training

    @override
    def input_diag(self, module: Any, x: Tensor, diag: Tensor) -> Tensor:
        return diag


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes:
        batch: Images of a step.
        lr: Adam's learning rate at the start, if nobody says.
        optimizer: Made of parameters and that rate.
        decay: Makes a scheduler for so many steps.
        noise: That of the encoder's input.
        at_mean: The share of online training that is at the mean weights, before
            networks are sampled; ``None`` leaves it to ``fit_online``.
        look_every: Steps between two looks at the curvature, if a model needs no more.
    """

    batch: int
    lr: float
    optimizer: Callable[[Sequence[Tensor], float], Optimizer]
    decay: Callable[[Optimizer, int], LambdaLR]
    noise: float = 0.0
    at_mean: float | None = None
    look_every: int = 1

    def settings(self, usual: OnlineSettings, n_steps: int) -> OnlineSettings:
        """How this recipe trains online.

        Args:
            usual: The settings of a model.
            n_steps: The steps of the run.

        Returns:
            These settings, with this recipe's start and looks.
        """
        every = max(self.look_every, usual.refresh_every)
        if self.at_mean is None:
            return replace(usual, refresh_every=every)
        warmup = int(self.at_mean * n_steps)
        return replace(usual, warmup_steps=warmup, refresh_every=every)

    def prepared(self, net: AutoEncoder) -> AutoEncoder:
        """The net as this recipe trains it.

        Args:
            net: Of two ``nn.Sequential``.

        Returns:
            The same, with noise in front if there is any.
        """
        if not self.noise:
            return net
        layers: Any = net.encoder
        return AutoEncoder(nn.Sequential(NoisyInput(self.noise), *layers), net.decoder)


USUAL = "Adam"
# Muon's numbers were chosen by errors of MNIST's validation images, in some two dozen
# runs of plain linear nets with one seed. Not all were compared with each other: Adam's
# rate of 1e-2 was not held against 5e-3 at this noise.
MUON = Recipe(256, 1e-2, MuonAndAdam, linear, noise=0.2)
RECIPES = {
    USUAL: Recipe(128, 1e-3, adam, cosine),
    "Muon": MUON,
    # For runs of many epochs: outliers are told by errors, which sampled weights raise.
    "Muon-late": replace(MUON, at_mean=0.5, look_every=4),
}
