"""Missing pixels: first explore modes, then average within each.

A mode starts from noise where pixels are missing, and goes through sampled networks;
what was observed is put back after each. Then several networks reconstruct each mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from lae_backpack.downstream.models import (
    Reconstructs,
    reconstructions,
    require_images,
)
from lae_backpack.posterior.choices import require_at_least_one


@dataclass(frozen=True)
class Imputation:
    """Images whose observed pixels are as they were.

    Attributes:
        modes: Where exploring ended.  # [M, N, *in]
        samples: Reconstructions of each mode.  # [M, S, N, *in]
        mean: Of the samples of each mode.  # [M, N, *in]
        variance: The same, unbiased; zero for one sample.  # [M, N, *in]
    """

    modes: Tensor
    samples: Tensor
    mean: Tensor
    variance: Tensor


@torch.no_grad()
def impute(
    la: Reconstructs,
    x: Tensor,
    observed: Tensor,
    n_modes: int = 5,
    n_per_mode: int = 5,
    n_steps: int = 1,
    generator: torch.Generator | None = None,
) -> Imputation:
    """Fill in missing pixels, in several ways.

    All modes of an image start from the same noise in [0, 1], so that they differ only
    by their networks.

    Args:
        la: A LaplaceAE, or what else has ``samples``.
        x: Images; missing pixels may be anything.  # [N, *in]
        observed: True where pixels are known; any mask that broadcasts to ``x``.
        n_modes: How many modes are explored.
        n_per_mode: How many networks reconstruct each.
        n_steps: Through how many networks a mode goes; the papers take one.
        generator: Where randomness comes from.

    Returns:
        Modes and their reconstructions.
    """
    require_images(x)
    for name, count in (
        ("n_modes", n_modes),
        ("n_per_mode", n_per_mode),
        ("n_steps", n_steps),
    ):
        require_at_least_one(name, count)
    mask = _mask(x, observed)
    _require_finite_where_observed(x, mask)

    def put_back(images: Tensor) -> Tensor:
        return torch.where(mask, x, images.to(x))

    filled = put_back(_noise(x, generator))
    modes = put_back(reconstructions(la, filled, n_modes, generator))  # [M, N, *in]
    for _ in range(n_steps - 1):
        modes = put_back(_each_by_its_own_network(la, modes, generator))
    found = reconstructions(la, modes.flatten(0, 1), n_per_mode, generator)
    samples = put_back(found.unflatten(1, modes.shape[:2]).transpose(0, 1))
    variance, mean = torch.var_mean(samples, 1, correction=min(1, n_per_mode - 1))
    return Imputation(modes, samples, mean, variance)


@torch.no_grad()
def generate(
    la: Reconstructs,
    shape: Sequence[int],
    n_images: int,
    n_steps: int = 10,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Make images from noise: each starts from its own, and has networks of its own.

    Args:
        la: A LaplaceAE, or what else has ``samples``.
        shape: The shape of an image, without batch.
        n_images: How many.
        n_steps: Through how many networks each goes.
        generator: Where randomness comes from.

    Returns:
        Pixels, or their probabilities.  # [n_images, *shape]

    Raises:
        ValueError: If the shape is empty.
    """
    require_at_least_one("n_images", n_images)
    require_at_least_one("n_steps", n_steps)
    if len(shape) == 0 or any(size < 1 for size in shape):
        raise ValueError(
            f"shape must be that of an image, without batch, got {tuple(shape)}. "
            "(1, 28, 28) for instance."
        )
    empty = torch.empty(n_images, *shape, **_kind(la))
    images = _noise(empty, generator)[:, None]  # [n_images, 1, *shape]
    for _ in range(n_steps):
        images = _each_by_its_own_network(la, images, generator)
    return images[:, 0]


def _each_by_its_own_network(
    la: Reconstructs, batches: Tensor, generator: torch.Generator | None
) -> Tensor:
    found = [reconstructions(la, batch, 1, generator)[0] for batch in batches]
    return torch.stack(found)


def _noise(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Gaussian noise, stretched so that each image goes from 0 to 1."""
    device = x.device if generator is None else generator.device
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=device)
    flat = noise.to(x.device).flatten(1)
    least, largest = flat.aminmax(dim=1, keepdim=True)
    spread = (largest - least).clamp_min(torch.finfo(x.dtype).tiny)  # one pixel
    return ((flat - least) / spread).view_as(x)


def _mask(x: Tensor, observed: Tensor) -> Tensor:
    if not isinstance(observed, Tensor) or observed.dtype != torch.bool:
        got = observed.dtype if isinstance(observed, Tensor) else type(observed)
        raise TypeError(
            f"observed must be a bool tensor, True where pixels are known, got {got}. "
            "Make one, for instance with mask > 0."
        )
    try:
        return observed.to(x.device).expand_as(x)
    except RuntimeError as error:
        raise ValueError(
            f"observed of shape {tuple(observed.shape)} does not broadcast to x of "
            f"shape {tuple(x.shape)}. Give one mask for all images, or one for each."
        ) from error


def _require_finite_where_observed(x: Tensor, mask: Tensor) -> None:
    if not torch.isfinite(x[mask]).all():
        raise ValueError(
            "x has observed pixels that are not finite. Mark them as missing, for "
            "instance with observed & x.isfinite()."
        )


def _kind(la: Any) -> dict[str, Any]:
    """The dtype and device of a model's weights, or torch's default."""
    model = la if isinstance(la, Module) else getattr(la, "model", None)
    weight = next(model.parameters(), None) if isinstance(model, Module) else None
    if weight is None:
        return {}
    return {"dtype": weight.dtype, "device": weight.device}
