"""What the tools here ask of a model: not to be a LaplaceAE, but to sample."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lae_backpack.posterior.choices import require_at_least_one


@runtime_checkable
class Reconstructs(Protocol):
    """A model that draws networks, or whatever else makes its outputs differ.

    ``sigma_noise`` (a number, 1 where there is none) and ``bernoulli`` (a bool) say
    what its pixels are like.
    """

    def samples(
        self, x: Tensor, n_samples: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Reconstructions. Each call draws anew, also for ``n_samples=1``.

        Args:
            x: A batch.  # [N, *in]
            n_samples: How many networks.
            generator: Where randomness comes from.

        Returns:
            Pixels, or their probabilities.  # [S, N, *in]
        """
        ...


@runtime_checkable
class Encodes(Protocol):
    """A model that draws codes."""

    def latent_samples(
        self, x: Tensor, n_samples: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Codes, by the networks of ``samples`` when the generators are equal.

        Args:
            x: A batch.  # [N, *in]
            n_samples: How many networks.
            generator: Where randomness comes from.

        Returns:
            The codes.  # [S, N, *code]
        """
        ...


@runtime_checkable
class KnowsDensity(Protocol):
    """A model whose density is its own, for instance with learned variances."""

    def log_densities(
        self, x: Tensor, n_samples: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Log-densities of images, by the networks of ``samples``.

        Args:
            x: A batch.  # [N, *in]
            n_samples: How many networks.
            generator: Where randomness comes from.

        Returns:
            One number for each network and image.  # [S, N]
        """
        ...


def require_images(x: Tensor, name: str = "x") -> None:
    """Refuse what is no batch of images.

    Args:
        x: The batch.  # [N, *in]
        name: What it is called.

    Raises:
        TypeError: If it is not a tensor of floating point numbers.
        ValueError: If it is empty or has no batch dimension.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        got = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(
            f"{name} must be a tensor of floating point numbers, got {got}. Convert "
            "it, for instance with x.float()."
        )
    if x.dim() < 2 or x.numel() == 0:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}, [N, ...] with N of at least 1 is "
            "needed. Give a single image a batch dimension with x[None]."
        )


def reconstructions(
    la: Reconstructs, x: Tensor, n_samples: int, generator: torch.Generator | None
) -> Tensor:
    """The model's samples, checked.

    Args:
        la: The model.
        x: A batch.  # [N, *in]
        n_samples: How many networks.
        generator: Where randomness comes from.

    Returns:
        Pixels, or their probabilities.  # [S, N, *in]

    Raises:
        TypeError: If the model has no ``samples``.
        ValueError: If their shape is not as promised.
    """
    require_at_least_one("n_samples", n_samples)
    if not isinstance(la, Reconstructs):
        raise TypeError(
            f"{type(la).__name__} has no samples(x, n_samples, generator=...). Use a "
            "LaplaceAE, or write that method."
        )
    with torch.no_grad():
        found = la.samples(x, n_samples, generator=generator)
    if found.shape != (n_samples, *x.shape):
        raise ValueError(
            f"{type(la).__name__}.samples gave {tuple(found.shape)} for x of shape "
            f"{tuple(x.shape)}; [{n_samples}, *x.shape] is needed, one reconstruction "
            "for each network."
        )
    return found


def codes(
    la: Encodes, x: Tensor, n_samples: int, generator: torch.Generator | None
) -> Tensor:
    """The model's codes, checked.

    Args:
        la: The model.
        x: A batch.  # [N, *in]
        n_samples: How many networks.
        generator: Where randomness comes from.

    Returns:
        The codes, as vectors.  # [S, N, K]

    Raises:
        TypeError: If the model has no ``latent_samples``.
        ValueError: If their shape is not as promised.
    """
    require_at_least_one("n_samples", n_samples)
    if not isinstance(la, Encodes):
        raise TypeError(
            f"{type(la).__name__} has no latent_samples(x, n_samples, generator=...). "
            "Use a LaplaceAE, or write that method."
        )
    with torch.no_grad():
        found = la.latent_samples(x, n_samples, generator=generator)
    if found.dim() < 3 or found.shape[:2] != (n_samples, len(x)):
        raise ValueError(
            f"{type(la).__name__}.latent_samples gave {tuple(found.shape)} for "
            f"{len(x)} images; [{n_samples}, {len(x)}, *code] is needed, one code for "
            "each network and image."
        )
    return found.flatten(2)
