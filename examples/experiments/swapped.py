"""Convolutional nets whose hyperbolic tangents see small images, not large ones."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeVar

from torch import nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def quickened(model: AnyModule) -> AnyModule:
    """Let each Tanh of a model work before an image grows, or after it shrinks.

    The largest of four numbers also has the largest tangent, and copies of a number
    have copies of it: the function, its gradients and its curvature stay what they are.

    Args:
        model: Its chains of layers are changed.

    Returns:
        The model.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Sequential):
                setattr(parent, name, nn.Sequential(*_with_small_tanh(list(child))))
    return model


def _with_small_tanh(layers: list[nn.Module]) -> list[nn.Module]:
    for place, (first, second) in enumerate(pairwise(layers)):
        shrinks = isinstance(first, nn.Tanh) and isinstance(second, nn.MaxPool2d)
        grows = isinstance(first, nn.Upsample) and first.mode == "nearest"
        if shrinks or (grows and isinstance(second, nn.Tanh)):
            swapped = [*layers[:place], second, first, *layers[place + 2 :]]
            return _with_small_tanh(swapped)
    return layers
