"""What VLAE is compared with: VAE, semi-amortised VAE, VAE with Householder flow.

All three give a Gaussian over codes, so they share everything but ``posterior`` with
VLAE; their encoders give 2 K numbers, means and log-variances.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.nn import Module
from typing_extensions import override

from lae_backpack.latent import CodeModel
from lae_backpack.latent.code_model import divergence_from_prior


class VAE(CodeModel):
    """Independent Gaussians from the encoder (Kingma and Welling, 2014)."""

    def __init__(
        self,
        encoder: Module,
        decoder: Module,
        likelihood: str = "gaussian",
        *,
        sigma: float = 1.0,
    ) -> None:
        """Keep both parts.

        Args:
            encoder: Maps images to means and log-variances.  # [N, 2 K]
            decoder: Maps codes to images, or to their logits.
            likelihood: ``"gaussian"`` or ``"bernoulli"``.
            sigma: The standard deviation of Gaussian pixels to begin with.
        """
        super().__init__(decoder, likelihood, sigma=sigma)
        self.encoder = encoder

    @override
    def posterior(self, x: Tensor) -> MultivariateNormal:
        return independent(*self.encoder(x).chunk(2, dim=1))


class SemiAmortisedVAE(VAE):
    """Gradient steps from the encoder's Gaussian up the bound (Kim et al., 2018).

    Up: the code published with the VLAE paper steps down, which its comment calls
    ascent. Gradients flow through the steps into encoder and decoder.
    """

    def __init__(
        self,
        encoder: Module,
        decoder: Module,
        likelihood: str = "gaussian",
        *,
        sigma: float = 1.0,
        n_steps: int = 1,
        step_size: float = 1e-2,
        max_norm: float = 5.0,
    ) -> None:
        """Keep both parts.

        Args:
            encoder: As for ``VAE``.
            decoder: As for ``VAE``.
            likelihood: As for ``VAE``.
            sigma: As for ``VAE``.
            n_steps: T, how many steps.
            step_size: Their size.
            max_norm: Longer gradients are cut, for each image.
        """
        super().__init__(encoder, decoder, likelihood, sigma=sigma)
        self.n_steps = n_steps
        self.step_size = step_size
        self.max_norm = max_norm

    @override
    def posterior(self, x: Tensor) -> MultivariateNormal:
        return independent(*self.path(x)[-1].chunk(2, dim=1))

    def path(self, x: Tensor) -> list[Tensor]:
        """The parameters that the steps go through.

        Args:
            x: The images.  # [N, *in]

        Returns:
            Means and log-variances after 0 to T steps.  # [N, 2 K] each
        """
        differentiable = torch.is_grad_enabled()
        path = [self.encoder(x)]
        with torch.enable_grad():
            for _ in range(self.n_steps):
                now = path[-1] if differentiable else path[-1].detach()
                now = now if now.requires_grad else now.requires_grad_()
                bound = self._bound(x, *now.chunk(2, dim=1)).sum()
                (up,) = torch.autograd.grad(bound, now, create_graph=differentiable)
                norm = up.norm(dim=1, keepdim=True)
                up = up * (self.max_norm / norm).clamp(max=1)
                path.append(now + self.step_size * up)
        return path if differentiable else [p.detach() for p in path]

    def _bound(self, x: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
        q = independent(mean, log_variance)
        return self.log_prob(x, q.rsample()) - divergence_from_prior(q)


class HouseholderVAE(CodeModel):
    """Reflections of independent Gaussians (Tomczak and Welling, 2016).

    A chain of reflections U turns N(m, D) into N(U m, U D U^T), a Gaussian with
    correlations whose density needs no Jacobian.
    """

    def __init__(
        self,
        encoder: nn.Sequential,
        decoder: Module,
        likelihood: str = "gaussian",
        *,
        sigma: float = 1.0,
        n_flows: int = 1,
    ) -> None:
        """Keep both parts and make the layers of the flow.

        Args:
            encoder: As for ``VAE``, ending in a Linear layer.
            decoder: As for ``VAE``.
            likelihood: As for ``VAE``.
            sigma: As for ``VAE``.
            n_flows: T, how many reflections.
        """
        super().__init__(decoder, likelihood, sigma=sigma)
        *trunk, head = encoder
        assert isinstance(head, nn.Linear), "the encoder must end in a Linear layer"
        self.trunk, self.head = nn.Sequential(*trunk), head
        size = head.out_features // 2
        sizes = [head.in_features] + [size] * (n_flows - 1)
        self.flows = nn.ModuleList(nn.Linear(n, size) for n in sizes)

    @override
    def posterior(self, x: Tensor) -> MultivariateNormal:
        hidden = self.trunk(x)
        mean, log_variance = self.head(hidden).chunk(2, dim=1)
        mean, root = mean[:, :, None], torch.diag_embed((0.5 * log_variance).exp())
        for flow in self.flows:
            hidden = flow(hidden)
            mean, root = (reflect(hidden, columns) for columns in (mean, root))
        # The density needs a triangular root: root = L Q, so covariance = L L^T.
        upper = torch.linalg.qr(root.mT)[1]
        lower = upper.mT * upper.diagonal(dim1=1, dim2=2).sign()[:, None]
        return MultivariateNormal(mean[:, :, 0], scale_tril=lower, validate_args=False)


def reflect(normal: Tensor, columns: Tensor) -> Tensor:
    """Reflect vectors at the plane through zero with a given normal.

    Args:
        normal: Of any length.  # [N, K]
        columns: The vectors.  # [N, K, C]

    Returns:
        Their mirror images.  # [N, K, C]
    """
    unit = normal / normal.norm(dim=1, keepdim=True)
    return columns - 2 * unit[:, :, None] * (unit[:, None] @ columns)


def independent(mean: Tensor, log_variance: Tensor) -> MultivariateNormal:
    """Independent Gaussians as one.

    Args:
        mean: Their means.  # [N, K]
        log_variance: The logarithms of their variances.  # [N, K]

    Returns:
        The Gaussian.
    """
    root = torch.diag_embed((0.5 * log_variance).exp())
    return MultivariateNormal(mean, scale_tril=root, validate_args=False)
