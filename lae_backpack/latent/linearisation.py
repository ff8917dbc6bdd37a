"""Three routes to the decoder's linear model ``g(z) = W z + b`` at given codes.

``"jacobian"`` pushes the K unit vectors of the code through the decoder and forms W.
``"engine"`` pulls the likelihood's curvature back to the code by the package's own
rules, which gives ``W^T S W`` without W; nothing is differentiable behind it.
``"products"`` forms neither: one forward and one backward pass for each product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, jvp, vjp, vmap
from torch.nn import Module

from lae_backpack.curvature.at_input import input_ggn
from lae_backpack.latent.likelihoods import Likelihood
from lae_backpack.latent.local_model import ExplicitModel, LocalModel, MatrixFreeModel
from lae_backpack.posterior.sampling import without_hooks

Decode = Callable[[Tensor], Tensor]  # [N, K] -> [N, *out]
Route = Callable[[Module, Likelihood, Tensor, Tensor], LocalModel]


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


def linearise(decode: Decode, z: Tensor) -> tuple[Tensor, Tensor]:
    """Output and Jacobian of a decoder.

    Args:
        decode: The decoder.
        z: The codes.  # [N, K]

    Returns:
        The output, and W in columns.  # [N, *out], [K, N, *out]
    """

    def push(unit: Tensor) -> tuple[Tensor, Tensor]:
        output, column, *_ = jvp(decode, (z,), (unit.expand_as(z),))
        return output, column

    units = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    # The output is the same for all units: vmap hands it through once.
    once_and_each: Any = (None, 0)
    return vmap(push, out_dims=once_and_each)(units)


def linear_model(decode: Decode, z: Tensor) -> tuple[Tensor, Tensor]:
    """The decoder's linear model at codes; exact nearby if it is piecewise linear.

    Args:
        decode: The decoder.
        z: The codes.  # [N, K]

    Returns:
        W and b over flattened pixels.  # [N, D, K], [N, D]
    """
    output, columns = linearise(decode, z)
    weight = columns.flatten(2).permute(1, 2, 0)
    return weight, output.flatten(1) - (weight @ z[:, :, None])[:, :, 0]


def by_jacobian(
    decoder: Module, likelihood: Likelihood, x: Tensor, z: Tensor
) -> LocalModel:
    """The local model with W formed.

    Args:
        decoder: The decoder.
        likelihood: Of the pixels.
        x: The images.  # [N, *out]
        z: The codes.  # [N, K]

    Returns:
        The model.
    """
    output, columns = linearise(decode_of(decoder), z)
    require_image(output, x)
    weight = columns.flatten(2).transpose(0, 1)  # [N, K, D]
    slope = likelihood.gradient(x, output).flatten(1)[:, :, None]  # [N, D, 1]
    curvature = likelihood.curvature(output).flatten(1)[:, None]  # [N, 1, D]
    pixels = (curvature * weight) @ weight.transpose(1, 2)
    return ExplicitModel((weight @ slope)[:, :, 0] - z, pixels)


@torch.no_grad()
def by_engine(
    decoder: Module, likelihood: Likelihood, x: Tensor, z: Tensor
) -> LocalModel:
    """The local model from the curvature that the engine pulls back to the code.

    Args:
        decoder: The decoder, of layers that have rules.
        likelihood: Of the pixels.
        x: The images.  # [N, *out]
        z: The codes.  # [N, K]

    Returns:
        The model, without gradients.
    """
    output, pull, *_ = vjp(decode_of(decoder), z)
    require_image(output, x)
    (gradient,) = pull(likelihood.gradient(x, output))
    pixels = likelihood.scale * input_ggn(decoder, likelihood.loss, z, x)
    return ExplicitModel(gradient - z, pixels)


def by_products(
    decoder: Module, likelihood: Likelihood, x: Tensor, z: Tensor
) -> LocalModel:
    """The local model by products with W and its transpose alone.

    Args:
        decoder: The decoder.
        likelihood: Of the pixels.
        x: The images.  # [N, *out]
        z: The codes.  # [N, K]

    Returns:
        The model.
    """
    decode = decode_of(decoder)
    output, pull, *_ = vjp(decode, z)
    require_image(output, x)
    (gradient,) = pull(likelihood.gradient(x, output))
    curvature = likelihood.curvature(output)

    def product(v: Tensor) -> Tensor:
        _, pushed, *_ = jvp(decode, (z,), (v,))
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


ROUTES: dict[str, Route] = {
    "jacobian": by_jacobian,
    "engine": by_engine,
    "products": by_products,
}
