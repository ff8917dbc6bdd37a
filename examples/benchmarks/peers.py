"""Everybody who computes curvature, with what is known of their cost beforehand."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from backpack.extensions import KFAC, DiagGGNExact, DiagGGNMC
from contenders import alone, hooked, hooked_flat, plain, stochman
from diagonals import by_laplace
from laplace.curvature import AsdlGGN, CurvlinopsGGN
from laplace.curvature.curvature import CurvatureInterface
from measuring import Contender
from torch import Tensor, nn

from lae_backpack import DiagGGNApprox

# Asdl's hooks
warnings.filterwarnings("ignore", "Using a non-full backward hook")

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Size:
    """A batch for a stack of five 3x3 convolutions.

    Attributes:
        batch: How many images.
        channels: Their channels, and those of every convolution.
        side: Their height and width.
    """

    batch: int
    channels: int
    side: int

    @property
    def pixels(self) -> int:
        """Pixels of a channel."""
        return self.side**2

    @property
    def outputs(self) -> int:
        """Outputs of an image, as many as any layer has features."""
        return self.channels * self.pixels

    @property
    def parameters(self) -> int:
        """Weights and biases of the stack."""
        return 5 * (9 * self.channels**2 + self.channels)

    def images(self) -> Tensor:
        """A batch of noise."""
        return torch.randn(self.batch, self.channels, self.side, self.side)


def of_a_pass(size: Size) -> float:
    """Work of a plain pass, up to a factor.

    Args:
        size: The size.

    Returns:
        Multiplications in a convolution.
    """
    return float(size.batch * size.pixels * size.channels**2)


def of_a_pass_per_output(size: Size) -> float:
    """Work of as many passes as there are outputs, up to a factor.

    Args:
        size: The size.

    Returns:
        Multiplications in a convolution, for every output.
    """
    return of_a_pass(size) * size.outputs


@dataclass(frozen=True)
class Peer:
    """One way to curvature.

    Attributes:
        make: Makes a pass from a stack and a batch.
        work: How its time grows.
        bytes: About what it will hold; 0 if that is no more than a few activations.
        holds: What takes them.
    """

    make: Callable[[nn.Sequential, Tensor], Contender]
    work: Callable[[Size], float] = of_a_pass
    bytes: Callable[[Size], float] = lambda size: 0.0
    holds: str = ""


def by_backend(
    backend: type[CurvatureInterface],
) -> Callable[[nn.Sequential, Tensor], Contender]:
    """The diagonal of one of laplace-torch's backends.

    Args:
        backend: The backend.

    Returns:
        Makes the pass.
    """

    def make(model: nn.Sequential, x: Tensor) -> Contender:
        # A copy, for their hooks; flat, because they know outputs of vectors only
        flat = nn.Sequential(copy.deepcopy(model), nn.Flatten())
        # laplace-torch sets it where it makes a backend
        flat.output_size = x[0].numel()  # pyright: ignore[reportArgumentType]
        made: Any = backend(flat, "regression")
        return lambda: made.diag(x, x.flatten(1), N=len(x))

    return make


def columns(size: Size) -> float:
    """Bytes of a column for every output, in and out and squared.

    Args:
        size: The size.

    Returns:
        Bytes.
    """
    return 6.0 * FLOAT * size.batch * size.outputs**2


def jacobians(size: Size) -> float:
    """Bytes of the Jacobian of every image, with what is needed to get there.

    As measured from 1 to 8 images and 192 to 3,072 outputs, where the factor was 14 to
    25: gradients of all images travel back for every output of every image.

    Args:
        size: The size.

    Returns:
        Bytes.
    """
    return 20.0 * FLOAT * (size.batch * size.outputs) ** 2


PEERS: dict[str, Peer] = {
    "plain": Peer(lambda m, x: plain(m, x, x)),
    "approx + gradient": Peer(lambda m, x: hooked(m, x, x, DiagGGNApprox)),
    "approx alone": Peer(lambda m, x: alone(m, x, x)),
    "BackPACK MC 1": Peer(lambda m, x: hooked_flat(m, x, x, DiagGGNMC)),
    "BackPACK KFAC": Peer(lambda m, x: hooked_flat(m, x, x, KFAC)),
    "stochman nnj": Peer(stochman),
    "BackPACK exact": Peer(
        lambda m, x: hooked_flat(m, x, x, DiagGGNExact),
        of_a_pass_per_output,
        columns,
        "a column for every output",
    ),
    "laplace-torch Curvlinops": Peer(
        by_backend(CurvlinopsGGN),
        of_a_pass_per_output,
        jacobians,
        "the Jacobian of every image",
    ),
    "laplace-torch Asdl": Peer(by_backend(AsdlGGN), of_a_pass_per_output),
}


def calibrated(model: nn.Sequential, x: Tensor) -> Contender:
    """Our calibrated diagonal, fitted as users do.

    Args:
        model: The model.
        x: A batch.

    Returns:
        The pass.
    """
    diagonal = by_laplace(model, "calibrated_diag")
    return lambda: diagonal(x, len(x))


PEERS["calibrated"] = Peer(calibrated)
