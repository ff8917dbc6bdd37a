"""Exact linearised predictives where one sample's Jacobian is small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from typing_extensions import override

from lae_backpack.posterior.chunks import Batch
from lae_backpack.posterior.sampling import evaluating

if TYPE_CHECKING:
    from laplace.baselaplace import ParametricLaplace as Host
else:
    Host = object

# A Jacobian of at most this many numbers is worth its exactness.
SMALL_JACOBIAN = 2**24


class SmallJacobians(Host):
    """laplace-torch's own linearised predictive, as many Jacobians at a time as fit.

    A mixin before one of laplace-torch's classes. It is none of them itself, so that
    laplace-torch does not take it for a structure.
    """

    def _jacobian_numbers(self, x: Batch) -> int | None:
        """Numbers in one sample's Jacobian; None if the outputs are not [N, C]."""
        one = x[:1] if isinstance(x, Tensor) else x
        with torch.no_grad(), evaluating(self.model):
            output = self.model(one)[:1]
        return self.n_params * output.numel() if output.dim() == 2 else None

    def _small_jacobian(self, x: Batch) -> bool:
        # Of one sample: what comes back must not depend on how many there are.
        numbers = self._jacobian_numbers(x)
        return numbers is not None and numbers <= SMALL_JACOBIAN

    @override
    def _glm_predictive_distribution(
        self, X: Batch, joint: bool = False, diagonal_output: bool = False
    ) -> tuple[Tensor, Tensor]:
        predict = super()._glm_predictive_distribution
        if joint or not isinstance(X, Tensor):
            return predict(X, joint, diagonal_output)
        size = max(1, SMALL_JACOBIAN // max(1, self._jacobian_numbers(X) or 1))
        parts = [predict(x, joint, diagonal_output) for x in X.split(size)]
        means, variances = zip(*parts, strict=True)
        return torch.cat(means), torch.cat(variances)
