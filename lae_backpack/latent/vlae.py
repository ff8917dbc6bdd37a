"""Variational Laplace autoencoders, after Park, Kim and Kim (2019)."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.nn import Module
from typing_extensions import override

from lae_backpack.latent.code_model import CodeModel
from lae_backpack.latent.latent_laplace import LatentLaplace
from lae_backpack.latent.mode import Decay, halved_decay
from lae_backpack.posterior.choices import require_at_least


class VLAE(CodeModel):
    """An autoencoder whose codes have full-covariance posteriors from the decoder.

    The encoder says where the search for the mode starts; all gradients flow through
    the updates into both parts. Train it in your own loop:
    ``(-vlae.elbo(x).mean()).backward()``. Nothing keeps the encoder's codes near the
    modes, so clip gradients with ``torch.nn.utils.clip_grad_norm_``, above all with
    Bernoulli pixels: a few images with very long ones can lead all codes astray.
    """

    def __init__(
        self,
        encoder: Module,
        decoder: Module,
        likelihood: str = "gaussian",
        *,
        sigma: float = 1.0,
        n_updates: int = 1,
        alpha: Decay = halved_decay,
        guarded: bool = False,
        linearisation: str = "jacobian",
        rank: int | None = None,
        code_dim: int | None = None,
    ) -> None:
        """Keep both parts.

        Args:
            encoder: Maps images to codes ``[N, K]``.
            decoder: Maps codes to images, or to their logits.
            likelihood: ``"gaussian"`` or ``"bernoulli"``.
            sigma: The standard deviation of Gaussian pixels to begin with; one number
                for all pixels, learned.
            n_updates: T, how many updates of the mode.
            alpha: The share of each step, as for ``LatentLaplace``; the paper's.
            guarded: Shorten steps that would lower ``log p(x, z)``.
            linearisation: ``"jacobian"`` or ``"products"``.
            rank: As for ``LatentLaplace``.
            code_dim: The size of a code, if the decoder's first layer does not tell.

        Raises:
            ValueError: If a choice is not one that can be trained.
        """
        super().__init__(decoder, likelihood, sigma=sigma, code_dim=code_dim)
        if linearisation == "engine":
            raise ValueError(
                "linearisation='engine' has no gradients, so a VLAE cannot train by "
                "it. Use 'jacobian' or 'products'; LatentLaplace takes all three."
            )
        require_at_least("n_updates", n_updates, 0)
        self.encoder = encoder
        self.n_updates = n_updates
        self.settings: dict[str, Any] = {
            "alpha": alpha,
            "guarded": guarded,
            "linearisation": linearisation,
            "rank": rank,
            "code_dim": code_dim,
        }
        _ = self.laplace  # refuses what makes no sense

    @property
    def laplace(self) -> LatentLaplace:
        """The Laplace approximation at the present weights and noise."""
        return LatentLaplace(
            self.decoder, self.likelihood_name, self.sigma, **self.settings
        )

    @override
    def posterior(self, x: Tensor, n_updates: int | None = None) -> MultivariateNormal:
        """The Gaussian over each image's code.

        Args:
            x: The images.  # [N, *in]
            n_updates: How many updates of the mode, if not as in training.

        Returns:
            One Gaussian for each image.
        """
        n_updates = self.n_updates if n_updates is None else n_updates
        return self.laplace.posterior(x, self.encoder(x), n_updates)
