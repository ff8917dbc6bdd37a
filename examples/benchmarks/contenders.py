"""One pass of everything that is compared, over the same model and batch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from backpack import backpack, extend
from backpack.extensions.backprop_extension import BackpropExtension
from measuring import Contender
from stochman import nnj
from torch import Tensor, nn

from lae_backpack import diag_ggn

# Makes the extension anew for each pass.
Extension = Callable[[], BackpropExtension]

# BackPACK's hooks on the first layer, whose input needs no gradient
warnings.filterwarnings("ignore", "Full backward hook is firing")


def plain(model: nn.Module, x: Tensor, target: Tensor) -> Contender:
    """A forward and backward pass.

    Args:
        model: The model.
        x: A batch.
        target: Its target.

    Returns:
        The pass.
    """
    model, loss = copy.deepcopy(model), nn.MSELoss(reduction="sum")

    def run() -> None:
        model.zero_grad()
        loss(model(x), target).backward()

    return run


def hooked(
    model: nn.Module, x: Tensor, target: Tensor, extension: Extension
) -> Contender:
    """A forward and backward pass with a BackPACK extension.

    Args:
        model: The model.
        x: A batch.
        target: Its target.
        extension: The extension, made anew for each pass.

    Returns:
        The pass.
    """
    model, loss = extend(copy.deepcopy(model)), extend(nn.MSELoss(reduction="sum"))

    def run() -> None:
        model.zero_grad()
        with backpack(extension()):
            loss(model(x), target).backward()

    return run


def hooked_flat(
    model: nn.Module, x: Tensor, target: Tensor, extension: Extension
) -> Contender:
    """As ``hooked``, for BackPACK's own extensions, whose MSELoss wants vectors.

    Args:
        model: The model.
        x: A batch.
        target: Its target.
        extension: The extension, made anew for each pass.

    Returns:
        The pass.
    """
    flat = nn.Sequential(model, nn.Flatten())
    return hooked(flat, x, target.flatten(1), extension)


def alone(
    model: nn.Module, x: Tensor, target: Tensor, max_dense_dim: int | None = 0
) -> Contender:
    """Our curvature without gradients.

    Args:
        model: The model.
        x: A batch.
        target: Its target.
        max_dense_dim: The limit of the mixed diagonal.

    Returns:
        The pass.
    """
    loss = nn.MSELoss(reduction="sum")
    return lambda: diag_ggn(model, loss, x, target, max_dense_dim=max_dense_dim)


def stochman(model: nn.Sequential, x: Tensor) -> Contender:
    """Stochman's approximate diagonal, as the papers' code runs it.

    Args:
        model: A stack of ``Conv2d`` and ``Tanh``.
        x: A batch.

    Returns:
        The pass.
    """
    layers: list[Any] = []
    for layer in model:
        if isinstance(layer, nn.Conv2d):
            twin = nnj.Conv2d(layer.in_channels, layer.out_channels, 3, padding=1)
            twin.load_state_dict(layer.state_dict())
            layers.append(twin)
        else:
            layers.append(nnj.Tanh())

    @torch.no_grad()
    def run() -> list[Tensor]:
        features = [x]
        for layer in layers:
            features.append(layer(features[-1]))
        diag = torch.full_like(features[-1], 2.0).flatten(1)
        results = []
        for i in reversed(range(len(layers))):
            step = layers[i], features[i], features[i + 1]
            weights = step[0]._jacobian_wrt_weight_sandwich(*step[1:], diag, True, True)
            if weights is not None:
                results.append(weights.sum(0))
            if i:
                diag = step[0]._jacobian_wrt_input_sandwich(*step[1:], diag, True, True)
        return results

    return run
