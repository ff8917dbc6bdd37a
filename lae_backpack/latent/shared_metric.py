"""A faster Jacobian for Gaussian pixels behind a last Linear layer.

There ``W^T W = V^T (L^T L) V`` with V the Jacobian of all layers but the last and L
the last one's weight. ``L^T L`` is the same for all samples and all updates, so it is
formed once, and columns of hidden units take the place of columns of pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import Module
from typing_extensions import override

from lae_backpack.latent.gram import SharedGram
from lae_backpack.latent.likelihoods import Gaussian, Likelihood
from lae_backpack.latent.linearisation import (
    ByEngine,
    ByJacobian,
    ByProducts,
    Linearisation,
    require_image,
)
from lae_backpack.latent.local_model import ExplicitModel, LocalModel
from lae_backpack.latent.pushing import is_chain, push_units, runs_as


@dataclass(frozen=True)
class Parts:
    """A decoder cut before its last Linear layer.

    Attributes:
        body: All before it.
        head: The Linear layer.
        tail: What only reshapes its output.
    """

    body: nn.Sequential
    head: nn.Linear
    tail: nn.Sequential


def cut(decoder: Module) -> Parts | None:
    """Cut a decoder before its last Linear layer.

    Args:
        decoder: The decoder.

    Returns:
        Its parts; ``None`` if it has another form or someone listens to it.
    """
    if not is_chain(decoder):
        return None
    layers = list(decoder)
    n_tail = 0
    while n_tail < len(layers) and _reshapes(layers[-1 - n_tail]):
        n_tail += 1
    *body, head = layers[: len(layers) - n_tail] or [decoder]
    if not isinstance(head, nn.Linear) or not runs_as(head, nn.Linear):
        return None
    if head.in_features >= head.out_features:
        return None
    tail = layers[len(layers) - n_tail :]
    return Parts(nn.Sequential(*body), head, nn.Sequential(*tail))


def _reshapes(layer: Module) -> bool:
    kinds = (nn.Flatten, nn.Unflatten)
    return any(isinstance(layer, kind) and runs_as(layer, kind) for kind in kinds)


class BySharedMetric(Linearisation):
    """Forms the Jacobian of the hidden layer, and ``L^T L`` once."""

    def __init__(self, decoder: Module, likelihood: Gaussian, parts: Parts) -> None:
        """Prepare what does not depend on codes.

        Args:
            decoder: The decoder.
            likelihood: Of the pixels.
            parts: The decoder, cut.
        """
        super().__init__(decoder, likelihood)
        self.parts = parts
        weight = parts.head.weight
        self.metric = weight.T @ weight / likelihood.sigma**2  # [H, H]

        self._pulled: tuple[Tensor, Tensor] | None = None

    @override
    def at(self, x: Tensor, z: Tensor) -> LocalModel:
        hidden, transposed = push_units(self.parts.body, z)  # [N, H], [N, K, H]
        slope = self._pull(x) - hidden @ self.metric
        gradient = (transposed @ slope[:, :, None])[:, :, 0] - z
        return ExplicitModel(gradient, SharedGram.apply(transposed, self.metric)[0])

    def _pull(self, x: Tensor) -> Tensor:
        """``L^T (x - bias)`` over the noise, once for all updates.  # [N, H]."""
        if self._pulled is None or self._pulled[0] is not x:
            head = self.parts.head
            at_zero = self.parts.tail(head(x.new_zeros(1, head.in_features)))
            at_zero = at_zero.expand(len(x), *at_zero.shape[1:])
            require_image(at_zero, x)
            residual = self.likelihood.gradient(x, at_zero).flatten(1)
            self._pulled = x, residual @ head.weight
        return self._pulled[1]


def by_jacobian(decoder: Module, likelihood: Likelihood) -> Linearisation:
    """The faster Jacobian where it applies, the plain one elsewhere.

    Args:
        decoder: The decoder.
        likelihood: Of the pixels.

    Returns:
        The linearisation.
    """
    parts = cut(decoder)
    if parts is None or not isinstance(likelihood, Gaussian):
        return ByJacobian(decoder, likelihood)
    return BySharedMetric(decoder, likelihood, parts)


ROUTES = {"jacobian": by_jacobian, "engine": ByEngine, "products": ByProducts}
