"""Three routes to the decoder's linear model ``g(z) = W z + b`` at given codes.

``"jacobian"`` pushes the K unit vectors of the code through the decoder and forms W.
``"engine"`` pulls the likelihood's curvature back to the code by the package's own
rules, which gives ``W^T S W`` without W; nothing is differentiable behind it.
``"products"`` forms neither: one forward and one backward pass for each product.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.func import functional_call, vjp
from torch.nn import Module
from typing_extensions import override

from lae_backpack.curvature.at_input import input_ggn
from lae_backpack.latent.elementary_norms import push_forward
from lae_backpack.latent.gram import DiagonalGram
from lae_backpack.latent.likelihoods import Likelihood
from lae_backpack.latent.local_model import ExplicitModel, LocalModel, MatrixFreeModel
from lae_backpack.latent.pushing import Decode, push_units
from lae_backpack.posterior.sampling import without_hooks


def decode_of(decoder: Module) -> Decode:
    """A decoder that ``torch.func`` can go through.

    Args:
        decoder: The decoder, maybe extended by BackPACK.

    Returns:
        The decoder, or its hookless copy that runs with the decoder's own weights, so
        that gradients arrive at them.
    """
    plain = without_hooks(decoder)
    if plain is decoder:
        return decoder
    own = {**dict(decoder.named_parameters()), **dict(decoder.named_buffers())}
    return lambda z: functional_call(plain, own, (z,))


def linear_model(decode: Decode, z: Tensor) -> tuple[Tensor, Tensor]:
    """The decoder's linear model at codes; exact nearby if it is piecewise linear.

    Args:
        decode: The decoder.
        z: The codes.  # [N, K]

    Returns:
        W and b over flattened pixels.  # [N, D, K], [N, D]
    """
    output, transposed = push_units(decode, z)
    return transposed.mT, output.flatten(1) - (z[:, None] @ transposed)[:, 0]


class Linearisation(ABC):
    """Local models of one decoder with its present weights."""

    def __init__(self, decoder: Module, likelihood: Likelihood) -> None:
        """Prepare what does not depend on codes.

        Args:
            decoder: The decoder.
            likelihood: Of the pixels.
        """
        self.decoder = decoder
        self.decode = decode_of(decoder)
        self.likelihood = likelihood

    @abstractmethod
    def at(self, x: Tensor, z: Tensor) -> LocalModel:
        """The local model of ``log p(x, z)``.

        Args:
            x: The images.  # [N, *out]
            z: The codes.  # [N, K]

        Returns:
            The model.
        """


class ByJacobian(Linearisation):
    """Forms W."""

    @override
    def at(self, x: Tensor, z: Tensor) -> LocalModel:
        output, transposed = push_units(self.decode, z)
        require_image(output, x)
        slope = self.likelihood.gradient(x, output).flatten(1)
        curvature = self.likelihood.curvature(output).flatten(1)
        pixels, gradient = DiagonalGram.apply(transposed, curvature, slope)
        return ExplicitModel(gradient - z, pixels)


class ByEngine(Linearisation):
    """Forms ``W^T S W`` by the rules of the decoder's layers, without gradients."""

    @override
    @torch.no_grad()
    def at(self, x: Tensor, z: Tensor) -> LocalModel:
        output, pull, *_ = vjp(self.decode, z)
        require_image(output, x)
        (gradient,) = pull(self.likelihood.gradient(x, output))
        curvature = input_ggn(self.decoder, self.likelihood.loss, z, x)
        return ExplicitModel(gradient - z, self.likelihood.scale * curvature)


class ByProducts(Linearisation):
    """Forms nothing: products with W and its transpose."""

    @override
    def at(self, x: Tensor, z: Tensor) -> LocalModel:
        output, pull, *_ = vjp(self.decode, z)
        require_image(output, x)
        (gradient,) = pull(self.likelihood.gradient(x, output))
        curvature = self.likelihood.curvature(output)

        def product(v: Tensor) -> Tensor:
            _, pushed = push_forward(self.decode, z, v)
            return pull(curvature * pushed)[0]

        return MatrixFreeModel(gradient - z, product)


def require_image(output: Tensor, x: Tensor) -> None:
    """Refuse outputs that are not shaped like the images.

    Args:
        output: What the decoder made.  # [N, *out]
        x: The images.

    Raises:
        ValueError: If the shapes differ.
    """
    if output.shape != x.shape:
        raise ValueError(
            f"The decoder makes {tuple(output.shape)} of these codes, but x is "
            f"{tuple(x.shape)}. Reshape x, or end the decoder with nn.Unflatten."
        )
