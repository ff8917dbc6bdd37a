"""A Gaussian over the code of each image, from the decoder's own curvature."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.nn import Module

from lae_backpack.curvature.allocator import keep_freed_memory
from lae_backpack.latent.checks import check_codes, code_size
from lae_backpack.latent.covariance import gaussian_at
from lae_backpack.latent.likelihoods import likelihood_named
from lae_backpack.latent.linearisation import (
    Linearisation,
    decode_of,
    linear_model,
    require_image,
)
from lae_backpack.latent.mode import Decay, guarded_shares, share_at
from lae_backpack.latent.shared_metric import ROUTES
from lae_backpack.posterior.batches import checked_images
from lae_backpack.posterior.choices import (
    require_at_least,
    require_at_least_one,
    require_one_of,
)
from lae_backpack.posterior.sampling import evaluating


class LatentLaplace:
    """Laplace approximations of ``p(z | x)`` for any differentiable decoder.

    Codes have the prior N(0, I). From a starting code, updates go to the mode of the
    linear model ``g(z) = W z + b``; the posterior is ``N(z, (W^T S W + I)^-1)`` at the
    last one, with S the likelihood's curvature. It is exact for linear decoders and
    Gaussian pixels (probabilistic PCA). The decoder runs in eval mode.
    """

    def __init__(
        self,
        decoder: Module,
        likelihood: str = "gaussian",
        sigma: float | Tensor = 1.0,
        *,
        alpha: Decay = 1.0,
        guarded: bool = True,
        linearisation: str = "jacobian",
        rank: int | None = None,
        n_iterations: int = 20,
        code_dim: int | None = None,
    ) -> None:
        """Choose the pixels' noise and how the mode is looked for.

        Args:
            decoder: Maps codes ``[N, K]`` to images; samples must not see each other.
            likelihood: ``"gaussian"``, or ``"bernoulli"`` for pixels in [0, 1] and a
                decoder that gives logits.
            sigma: The standard deviation of Gaussian pixels.
            alpha: The share of each step that is taken: one number, one for each
                update, or a function of the update's number such as ``halved_decay``.
            guarded: Shorten steps that would lower ``log p(x, z)``.
            linearisation: ``"jacobian"`` forms W, ``"engine"`` forms ``W^T S W`` by the
                package's rules and without gradients, ``"products"`` forms neither and
                solves by conjugate gradients.
            rank: How many directions of ``W^T S W`` the covariance keeps, found by
                power iteration; ``None`` keeps all.
            n_iterations: How many power iterations.
            code_dim: The size of a code, if the decoder's first layer does not tell.
        """
        require_one_of("linearisation", linearisation, tuple(ROUTES))
        if rank is not None:
            require_at_least_one("rank", rank)
        require_at_least_one("n_iterations", n_iterations)
        share_at(alpha, 0)
        keep_freed_memory()
        self.likelihood = likelihood_named(likelihood, sigma)
        self.decoder = decoder
        self.alpha = alpha
        self.guarded = guarded
        self.linearisation = linearisation
        self.rank = rank
        self.n_iterations = n_iterations
        self.code_dim = code_dim

    def posterior(
        self, x: Tensor, z0: Tensor | None = None, n_updates: int = 5
    ) -> MultivariateNormal:
        """The Gaussian over each image's code.

        Args:
            x: The images.  # [N, *in]
            z0: Codes to start from, an encoder's for instance; zero if not given.
                # [N, K]
            n_updates: How many updates of the mode.

        Returns:
            One Gaussian for each image, differentiable in everything that went in
            unless the engine linearises.
        """
        linearised = self._linearised()
        *_, z = self._updates(linearised, x, z0, n_updates)
        with evaluating(self.decoder):
            local = linearised.at(x, z)
            return gaussian_at(z, local, self.rank, self.n_iterations)

    def path(self, x: Tensor, z0: Tensor | None = None, n_updates: int = 5) -> Tensor:
        """The codes that the updates go through.

        Args:
            x: The images.  # [N, *in]
            z0: Codes to start from, as for ``posterior``.  # [N, K]
            n_updates: How many updates of the mode.

        Returns:
            The starting codes and those after each update.  # [T + 1, N, K]
        """
        return torch.stack(list(self._updates(self._linearised(), x, z0, n_updates)))

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """``log p(x, z)`` up to the prior's constant.

        Args:
            x: The images.  # [N, *in]
            z: Their codes.  # [N, K]

        Returns:
            One number for each image.  # [N]
        """
        with evaluating(self.decoder):
            output = self.decoder(z)
        require_image(output, x)
        pixels = self.likelihood.log_prob(x, output)
        return pixels.flatten(1).sum(1) - 0.5 * z.square().sum(1)

    def linear_model(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The decoder's linear model ``g(z) = W z + b`` at codes.

        Args:
            z: The codes.  # [N, K]

        Returns:
            W and b over flattened pixels.  # [N, D, K], [N, D]
        """
        with evaluating(self.decoder):
            return linear_model(decode_of(self.decoder), z)

    def _linearised(self) -> Linearisation:
        with evaluating(self.decoder):  # of which it may keep a copy
            return ROUTES[self.linearisation](self.decoder, self.likelihood)

    def _updates(
        self, linearised: Linearisation, x: Tensor, z0: Tensor | None, n_updates: int
    ) -> Iterator[Tensor]:
        checked_images(x, self.decoder)
        self.likelihood.check(x)
        require_at_least("n_updates", n_updates, 0)
        if z0 is None:
            z0 = x.new_zeros(len(x), self.code_dim or code_size(self.decoder))
        check_codes(z0, x)
        # Half a gradient would be worse than none.
        z = z0.detach() if self.linearisation == "engine" else z0
        yield z
        for t in range(n_updates):
            z = self._update(linearised, x, z, share_at(self.alpha, t))
            yield z

    def _update(
        self, linearised: Linearisation, x: Tensor, z: Tensor, share: float
    ) -> Tensor:
        with evaluating(self.decoder):
            local = linearised.at(x, z)
            step = local.step()
            if not self.guarded:
                return z + share * step
            log_joint = partial(self.log_joint, x)
            shares = guarded_shares(log_joint, z, step, local.gradient, share)
            return z + shares * step
