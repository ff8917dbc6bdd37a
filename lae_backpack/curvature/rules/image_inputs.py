"""What layers on images need of their input."""

from __future__ import annotations

import re

from torch import Tensor

from lae_backpack.curvature.call import Layer


def spatial_dims(module: Layer) -> int:
    """How many spatial dimensions a layer works on, from its class: ``Conv2d`` has two.

    Args:
        module: The layer, or an instance of a subclass of it.

    Returns:
        The number in the name of the nearest class that ends in one.
    """
    names = (re.search(r"(\d)d$", cls.__name__) for cls in type(module).__mro__)
    return next(int(found.group(1)) for found in names if found)


def without_batch_or_channels(module: Layer, x: Tensor) -> str | None:
    """Refuse inputs that torch takes for a single image, or for one without channels.

    Args:
        module: A layer on images of one, two or three dimensions.
        x: Its input.

    Returns:
        ``None``, or what to do.
    """
    wanted = spatial_dims(module) + 2
    if x.dim() == wanted:
        return None
    return (
        f"its input has {x.dim()} dimensions, {wanted} are needed: batch, channels and "
        f"{wanted - 2} of the image. Add the missing one with nn.Unflatten."
    )
