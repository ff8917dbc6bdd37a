"""Sampled networks one after the other, each with all that it says about a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from lae_backpack.downstream.models import (
    Encodes,
    KnowsDensity,
    Reconstructs,
    codes,
    reconstructions,
)
from lae_backpack.latent.likelihoods import Bernoulli, Likelihood, likelihood_named
from lae_backpack.posterior.autoencoder import LaplaceAE
from lae_backpack.posterior.batches import checked_images, require_reconstruction
from lae_backpack.posterior.choices import require_at_least_one
from lae_backpack.posterior.chunks import automatic_size, chunks_of
from lae_backpack.posterior.sampling import (
    Weights,
    evaluating,
    new_seed,
    run_with,
    without_hooks,
)


@dataclass(frozen=True)
class Network:
    """What one sampled network says about some images."""

    output: Tensor  # pixels or logits  [N, *in]
    code: Tensor | None  # [N, K]
    log_density: Tensor  # [N]


@dataclass(frozen=True)
class Block:
    """Some rows of a batch, and the networks that have seen them."""

    networks: Iterator[Network]
    n_rows: int


def likelihood_of(la: Reconstructs) -> Likelihood:
    """What a model's pixels are like.

    Args:
        la: The model.

    Returns:
        Bernoulli or Gaussian, with noise 1 if the model has none.
    """
    name = "bernoulli" if getattr(la, "bernoulli", False) else "gaussian"
    return likelihood_named(name, getattr(la, "sigma_noise", 1.0))


class Draw:
    """The same sampled networks for any number of batches."""

    def __init__(
        self, la: Reconstructs, n_samples: int, generator: torch.Generator | None
    ) -> None:
        """Choose the networks.

        Args:
            la: The model.
            n_samples: How many networks.
            generator: Where randomness comes from.
        """
        require_at_least_one("n_samples", n_samples)
        self._la = la
        self._n_samples = n_samples
        self._seed = new_seed(generator)
        self._device = None if generator is None else generator.device
        self.likelihood = likelihood_of(la)

    def blocks(self, x: Tensor) -> Iterator[Block]:
        """Run the networks, in memory that does not grow with their number.

        Args:
            x: A batch.  # [N, *in]

        Yields:
            The whole batch for a LaplaceAE, whose networks come one at a time. Fewer
            rows for other models, which give all of theirs at once.
        """
        if isinstance(self._la, LaplaceAE):
            yield Block(self._streamed(self._la, x), len(x))
            return
        numbers = x[0].numel() * self._n_samples
        for rows in x.split(automatic_size(x, numbers)):
            yield Block(self._at_once(rows), len(rows))

    def _generator(self, device: torch.device) -> torch.Generator:
        return torch.Generator(self._device or device).manual_seed(self._seed)

    def _streamed(self, la: LaplaceAE, x: Tensor) -> Iterator[Network]:
        x = checked_images(x, la.model)
        require_reconstruction(la.model, x)
        self.likelihood.check(x)
        generator = self._generator(la.mean.device)
        chunks = [c for c in chunks_of(x) if isinstance(c, Tensor)]
        model = without_hooks(la.model)
        for weights in la.sampler().draws(self._n_samples, generator):
            found = [self._run(model, weights, chunk) for chunk in chunks]
            yield Network(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    @torch.no_grad()
    def _run(
        self, model: Module, weights: Weights, x: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        caught: list[Tensor] = []

        def catch(_: Module, __: object, code: Tensor) -> None:
            caught.append(code)

        # The code on its way through: one pass, and whatever forward does with it.
        hook = model.get_submodule("encoder").register_forward_hook(catch)
        try:
            with evaluating(model):
                output = run_with(model, weights, x)
        finally:
            hook.remove()
        log_density = self.likelihood.log_prob(x, output).flatten(1).sum(1)
        return output, caught[0].flatten(1), log_density

    def _at_once(self, x: Tensor) -> Iterator[Network]:
        la, n_samples = self._la, self._n_samples
        self.likelihood.check(x)
        outputs = reconstructions(la, x, n_samples, self._generator(x.device))
        if isinstance(self.likelihood, Bernoulli):
            outputs = outputs.logit(torch.finfo(outputs.dtype).eps)
        found = [None] * n_samples
        if isinstance(la, Encodes):
            found = codes(la, x, n_samples, self._generator(x.device))
        if isinstance(la, KnowsDensity):
            generator = self._generator(x.device)
            densities = la.log_densities(x, n_samples, generator=generator)
        else:
            densities = self.likelihood.log_prob(x, outputs).flatten(2).sum(2)
        for output, code, density in zip(outputs, found, densities, strict=True):
            yield Network(output, code, density)
