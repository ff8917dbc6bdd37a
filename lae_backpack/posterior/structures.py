"""The new diagonal ``hessian_structure``s of laplace-torch."""

from __future__ import annotations

from typing import ClassVar

from laplace.baselaplace import DiagLaplace
from typing_extensions import override

from lae_backpack.curvature.policy import DEFAULT_MAX_DENSE_DIM
from lae_backpack.posterior.engine_laplace import EngineLaplace
from lae_backpack.posterior.sampling import WeightSampler


class EngineDiagLaplace(EngineLaplace, DiagLaplace):
    """What the diagonal structures share.

    laplace-torch finds subclasses by ``_key``, helpers too, so this has one of its own.
    """

    _key: ClassVar[tuple[str, str]] = ("all", "engine_diag")

    @override
    def sampler(self) -> WeightSampler:
        self._require_fit()
        return WeightSampler(self.model, self.mean, self.posterior_scale)


class ApproxDiagLaplace(EngineDiagLaplace):
    """``Laplace(..., subset_of_weights="all", hessian_structure="approx_diag")``."""

    _key = ("all", "approx_diag")


class MixedDiagLaplace(EngineDiagLaplace):
    """``Laplace(..., subset_of_weights="all", hessian_structure="mixed_diag")``.

    ``backend_kwargs={"max_dense_dim": ...}`` sets where matrices travel.
    """

    _key = ("all", "mixed_diag")
    backend_settings = {"max_dense_dim": DEFAULT_MAX_DENSE_DIM}

    @classmethod
    @override
    def allowed_settings(cls) -> set[str]:
        return {"max_dense_dim"}
