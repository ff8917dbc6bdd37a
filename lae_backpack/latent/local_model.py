"""log p(x, z) near one code, to second order and with a linear decoder.

At a code z the decoder is ``g(z') = W z' + b``. With r and S the likelihood's gradient
and curvature at the output, and the prior N(0, I) over codes,

    gradient   W^T r - z
    precision  W^T S W + I

and the mode of the linear model is ``z + precision^-1 gradient``: equation 20 of the
paper for Gaussian pixels, 41 for Bernoulli ones, a Gauss-Newton step for any decoder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from lae_backpack.latent.conjugate_gradients import solve
from lae_backpack.posterior.conjugate_gradients import Product


class LocalModel(ABC):
    """A quadratic model of ``log p(x, z)``, one for each sample.

    Attributes:
        gradient: Of ``log p(x, z)`` in z.  # [N, K]
    """

    def __init__(self, gradient: Tensor) -> None:
        """Keep the gradient.

        Args:
            gradient: Of ``log p(x, z)``.  # [N, K]
        """
        self.gradient = gradient

    @abstractmethod
    def pixels_precision(self, v: Tensor) -> Tensor:
        """What the pixels add to the precision, times a vector: ``W^T S W v``.

        Args:
            v: One vector for each sample.  # [N, K]

        Returns:
            The product.  # [N, K]
        """

    @abstractmethod
    def precision(self) -> Tensor:
        """``W^T S W + I``.

        Returns:
            One matrix for each sample.  # [N, K, K]
        """

    @abstractmethod
    def step(self) -> Tensor:
        """The way to the mode of the linear model.

        Returns:
            ``precision^-1 gradient``.  # [N, K]
        """


class ExplicitModel(LocalModel):
    """The matrix is at hand."""

    def __init__(self, gradient: Tensor, pixels: Tensor) -> None:
        """Keep both.

        Args:
            gradient: Of ``log p(x, z)``.  # [N, K]
            pixels: ``W^T S W``.  # [N, K, K]
        """
        super().__init__(gradient)
        self._pixels = pixels

    @override
    def pixels_precision(self, v: Tensor) -> Tensor:
        return (self._pixels @ v[:, :, None])[:, :, 0]

    @override
    def precision(self) -> Tensor:
        return self._pixels + torch.eye(
            self._pixels.shape[-1], dtype=self._pixels.dtype, device=self._pixels.device
        )

    @override
    def step(self) -> Tensor:
        # Its gradient is one solve, that of a Cholesky decomposition is several.
        return torch.linalg.solve(self.precision(), self.gradient)


class MatrixFreeModel(LocalModel):
    """Only products are at hand; W is never formed."""

    def __init__(self, gradient: Tensor, product: Product) -> None:
        """Keep both.

        Args:
            gradient: Of ``log p(x, z)``.  # [N, K]
            product: Maps ``v`` to ``W^T S W v``.
        """
        super().__init__(gradient)
        self._product = product

    @override
    def pixels_precision(self, v: Tensor) -> Tensor:
        return self._product(v)

    @override
    def precision(self) -> Tensor:
        size = self.gradient.shape[1]
        units = torch.eye(size, dtype=self.gradient.dtype, device=self.gradient.device)
        columns = [self._plus_prior(unit.expand_as(self.gradient)) for unit in units]
        return torch.stack(columns, dim=-1)

    @override
    def step(self) -> Tensor:
        return solve(self._plus_prior, self.gradient)

    def _plus_prior(self, v: Tensor) -> Tensor:
        return self._product(v) + v
