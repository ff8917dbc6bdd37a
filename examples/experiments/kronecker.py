"""KFAC by laplace-torch and BackPACK, with all that a LaplaceAE can do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from laplace import Laplace
from laplace.curvature.backpack import BackPackGGN
from torch import Tensor, nn
from typing_extensions import override

from lae_backpack import AutoEncoder, LaplaceAE
from lae_backpack.posterior.batches import Pairs
from lae_backpack.posterior.sampling import WeightSampler


class KroneckerAE(LaplaceAE):
    """Samples networks from Kronecker factors.

    The loss Hessian's factors are drawn, once for each image, instead of summed over
    all outputs, which would cost as much as 784 backward passes.
    """

    _key: ClassVar[tuple[str, str]] = ("all", "lae_kronecker")

    def __init__(self, model: AutoEncoder) -> None:
        """Choose noise 1 and prior 1.

        Args:
            model: The autoencoder, of two ``nn.Sequential``.
        """
        super().__init__(model, sigma_noise=1.0, hessian_structure="approx_diag")
        parts: list[Any] = [model.encoder, model.decoder]
        self._flat = nn.Sequential(*(layer for part in parts for layer in part))

    @override
    def fit(
        self,
        train_loader: Iterable[object],
        override: bool = True,
        progress_bar: bool = False,
    ) -> None:
        self._factors: Any = Laplace(
            self._flat,
            "regression",
            "all",
            "kron",
            backend=BackPackGGN,
            backend_kwargs={"stochastic": True},
        )
        self._factors.fit(Pairs(train_loader), override, progress_bar)
        self.mean = self._factors.mean
        self.n_outputs, self.n_data = self._factors.n_outputs, self._factors.n_data

    @override
    def optimize_prior_precision(self, *args: Any, **kwargs: Any) -> None:
        self._factors.optimize_prior_precision(*args, **kwargs)
        self.prior_precision = self._factors.prior_precision

    @override
    def sampler(self) -> WeightSampler:
        self._factors.prior_precision = self.prior_precision
        self._factors.sigma_noise = self.sigma_noise
        precision = self._factors.posterior_precision

        def scale(noise: Tensor) -> Tensor:
            return precision.bmm(noise[None], exponent=-0.5).reshape(-1)

        return WeightSampler(self.model, self.mean, scale)
