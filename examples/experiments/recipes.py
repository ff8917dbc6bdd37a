"""Ways to train autoencoders: the usual one, and two that get further."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from typing_extensions import override

from lae_backpack import AutoEncoder, DiagRule, OnlineSettings, register_rule
from lae_backpack.posterior.online.optimizers import adam, cosine

MUON_LR = 0.02
BLOCK = 128  # the shorter side of what Muon orthogonalises


def blocks_of(matrix: Tensor, side: int | None) -> tuple[Tensor, ...]:
    """Cut a matrix across its shorter side.

    Args:
        matrix: The matrix.
        side: That of a block; ``None`` leaves the matrix whole.

    Returns:
        Views of it that are no part of a graph.
    """
    across = int(matrix.shape[0] > matrix.shape[1])
    return matrix.detach().split(side or matrix.shape[across], across)


class BlockMuon(Optimizer):
    """Muon for each block of a matrix by itself, whose steps cost a fraction.

    Orthogonalising takes products of the shorter side cubed, and most of the time of a
    training step of these nets, if it is that of whole matrices.
    """

    def __init__(self, matrices: Sequence[Tensor], lr: float, side: int | None) -> None:
        """Cut the matrices.

        Args:
            matrices: What it moves.
            lr: The learning rate.
            side: As for ``blocks_of``.

        Raises:
            ImportError: If torch has no Muon yet.
        """
        if not hasattr(torch.optim, "Muon"):
            raise ImportError(
                f"The recipe Muon needs torch 2.9 or newer, got {torch.__version__}. "
                "Update torch, or use the recipe Adam."
            )
        super().__init__(matrices, {"lr": lr})
        self._side = side
        self._blocks = [blocks_of(matrix, side) for matrix in matrices]
        groups = [{"params": [block]} for blocks in self._blocks for block in blocks]
        self._muon = torch.optim.Muon(groups, lr=lr, weight_decay=0.0)

    @override
    def step(self, closure: Any = None) -> None:
        del closure
        (own,) = self.param_groups
        groups = iter(self._muon.param_groups)
        for matrix, blocks in zip(own["params"], self._blocks, strict=True):
            gradients = blocks_of(matrix.grad, self._side)
            for block, gradient in zip(blocks, gradients, strict=True):
                block.grad = gradient
                group = next(groups)
                # Muon's rate grows with a block's height; that of the matrix counts.
                group["lr"] = own["lr"] * _growth(matrix) / _growth(block)
        self._muon.step()


def _growth(matrix: Tensor) -> float:
    height, width = matrix.shape
    return max(1.0, height / width) ** 0.5


class MuonAndAdam(Optimizer):
    """Muon for blocks of the matrices between hidden layers, Adam for all else.

    Matrices with a side of one or two numbers, as at a small code, are Adam's, too.
    """

    def __init__(
        self, params: Sequence[Tensor], lr: float, side: int | None = BLOCK
    ) -> None:
        """Share the parameters out.

        Args:
            params: All of them.
            lr: Adam's learning rate.
            side: As for ``blocks_of``.
        """
        params = list(params)
        super().__init__(params, {"lr": lr})
        wide = [p for p in params if p.dim() == 2 and min(p.shape) > 2]
        others = [p for p in params if all(p is not matrix for matrix in wide)]
        self._parts = BlockMuon(wide, MUON_LR, side), adam(others, lr)
        # The parts' own, so that whoever changes a rate here changes it there.
        self.param_groups = [g for part in self._parts for g in part.param_groups]

    @override
    def step(self, closure: Any = None) -> None:
        del closure
        for part in self._parts:
            part.step()


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
# rate of 1e-2 was not held against 5e-3 at this noise. The blocks' side is the best of
# 32, 64 and 128 after 20 epochs, where whole matrices are as good.
MUON = Recipe(256, 1e-2, MuonAndAdam, linear, noise=0.2)
WHOLE = replace(MUON, optimizer=partial(MuonAndAdam, side=None))
RECIPES = {
    USUAL: Recipe(128, 1e-3, adam, cosine),
    "Muon": MUON,
    "whole Muon": WHOLE,
    # For runs of many epochs: outliers are told by errors, which sampled weights raise.
    "whole Muon-late": replace(WHOLE, at_mean=0.5, look_every=4),
}
