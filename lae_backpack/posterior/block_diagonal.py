"""One full block of curvature per layer, for nets small enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # pyright: ignore
from torch.nn import Module
from torch.utils.data import DataLoader
from typing_extensions import override

from lae_backpack.curvature.footprint import widest_carried
from lae_backpack.posterior import distributed
from lae_backpack.posterior.backend import EngineCurvature
from lae_backpack.posterior.blocks import (
    BlockDiag,
    LogDet,
    regularised,
    root,
)
from lae_backpack.posterior.engine_laplace import EngineLaplace
from lae_backpack.posterior.layers import layers_of
from lae_backpack.posterior.memory import (
    available_bytes,
    require_memory,
    require_memory_for_batch,
)
from lae_backpack.posterior.rank_checks import unwrapped
from lae_backpack.posterior.sampling import WeightSampler
from lae_backpack.posterior.states import checked_state


class BlockDiagLaplace(EngineLaplace):
    """``Laplace(..., subset_of_weights="all", hessian_structure="block_diag")``.

    A layer's weight and bias have all their covariances; layers are independent. Each
    block is exact. ``backend_kwargs={"max_memory": bytes}`` sets what blocks may take.

    Attributes:
        H: The curvature.
        layers: The layers, in the order of their blocks.
    """

    _key = ("all", "block_diag")
    _posterior_scale: BlockDiag | None
    backend_settings = {"max_dense_dim": None}

    def __init__(
        self,
        model: Module,
        likelihood: str,
        *args: Any,
        backend_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """See whether the blocks fit, then as for the other structures.

        Args:
            model: The model.
            likelihood: ``"regression"`` or ``"classification"``.
            *args: As for ``ParametricLaplace``.
            backend_kwargs: ``{"max_memory": bytes}``; by default what is available.
            **kwargs: As for ``ParametricLaplace``.

        Raises:
            ValueError: If ``max_memory`` is not a positive number.
        """
        settings = dict(backend_kwargs or {})
        limit = settings.pop("max_memory", None)
        if limit is not None and not (isinstance(limit, int | float) and limit > 0):
            raise ValueError(
                f"max_memory must be a positive number of bytes, got {limit!r}."
            )
        model = unwrapped(model)
        self.model, self.layers, self._max_memory = model, layers_of(model), limit
        self._memory_limit = self._require_memory(held=0)
        self._checked_samples, self._scale_temperature = 0, 1.0
        super().__init__(model, likelihood, *args, backend_kwargs=settings, **kwargs)

    @classmethod
    @override
    def allowed_settings(cls) -> set[str]:
        return {"max_memory"}

    def _require_memory(self, held: int) -> float:
        limit = self._max_memory
        if limit is None:
            limit = available_bytes(self._device) + held
        require_memory(self.layers, self._dtype.itemsize, limit)
        return limit

    @override
    def _init_H(self) -> None:
        like = next(self.model.parameters()).detach()
        self.H = BlockDiag.zeros([layer.size for layer in self.layers], like)

    @override
    def _curv_closure(self, X: Tensor, y: Tensor, N: int) -> tuple[Tensor, BlockDiag]:
        assert isinstance(self.backend, EngineCurvature)
        if len(X) > self._checked_samples:
            matrix_at_output = self.likelihood != "regression"
            require_memory_for_batch(
                self.layers,
                len(X),
                widest_carried(self.model, X, at_output=matrix_at_output),
                self._dtype.itemsize,
                self._memory_limit,
            )
            self._checked_samples = len(X)
        return self.backend.blocks(X, y, self.layers)

    @override
    def fit(
        self,
        train_loader: DataLoader,
        override: bool = True,
        progress_bar: bool = False,
    ) -> None:
        with distributed.failing_together():
            self._memory_limit = self._require_memory(held=self.H.nbytes)
            self._checked_samples, self._posterior_scale = 0, None
            super().fit(train_loader, override, progress_bar)

    @override
    def _tensors_to_add_up(self) -> list[Tensor]:
        self.H.blocks = [block.contiguous() for block in self.H.blocks]
        return self.H.blocks

    # The Gaussian ------------------------------------------------------------------

    def _for_each_block(
        self, function: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> list[Tensor]:
        """Call a function with curvature, factor and prior of each layer."""
        factor, results = self._H_factor, []
        parts = self.H.split(self.prior_precision_diag)
        for layer, (block, prior) in zip(self.layers, parts, strict=True):
            try:
                results.append(function(block, factor, prior))
            except LinAlgError as error:
                raise LinAlgError(
                    f"The posterior precision of layer {layer.name!r}, {layer.size} "
                    "parameters wide, is not positive definite after rounding. Raise "
                    "prior_precision, or use a model in float64."
                ) from error
        return results

    @property
    @override
    def posterior_precision(self) -> BlockDiag:
        """The precision; ``posterior_precision.to_matrix()`` has its zeros, too."""
        return BlockDiag(self._for_each_block(regularised))

    @property
    def posterior_scale(self) -> BlockDiag:
        """Lower triangular blocks S with ``S S^T`` the covariance."""
        scale = self._posterior_scale
        if scale is None or self._scale_temperature != self.temperature:
            scale = BlockDiag(
                self._for_each_block(lambda *parts: root(regularised(*parts)))
            )
            self._posterior_scale = scale
            self._scale_temperature = self.temperature
        return scale

    @property
    def posterior_covariance(self) -> BlockDiag:
        """The covariance."""
        return BlockDiag([scale @ scale.T for scale in self.posterior_scale.blocks])

    @property
    @override
    def log_det_posterior_precision(self) -> Tensor:
        return torch.stack(self._for_each_block(LogDet.apply)).sum()

    @override
    def square_norm(self, value: Tensor) -> Tensor:
        delta = value - self.mean
        prior = delta @ (self.prior_precision_diag * delta)
        return self._H_factor * self.H.quadratic(delta) + prior

    @override
    def functional_variance(self, Js: Tensor) -> Tensor:
        self._check_jacobians(Js)
        pulled = self.posterior_scale.transposed_times(Js)  # [N, out, P]
        return pulled @ pulled.mT

    @override
    def functional_covariance(self, Js: Tensor) -> Tensor:
        self._check_jacobians(Js)
        return self.functional_variance(Js.flatten(0, 1)[None])[0]

    @override
    def sample(
        self, n_samples: int = 100, generator: torch.Generator | None = None
    ) -> Tensor:
        noise = torch.randn(
            n_samples,
            self.n_params,
            device=self._device,
            dtype=self._dtype,
            generator=generator,
        )
        return self.mean + self.posterior_scale.times(noise)

    @override
    def _curvature_tensors(self) -> list[Tensor]:
        return self.H.blocks

    @override
    def sampler(self) -> WeightSampler:
        self._require_fit()
        return WeightSampler(self.model, self.mean, self.posterior_scale.detach().times)

    # Saving ------------------------------------------------------------------------

    @override
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"H": self.H.blocks}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        blocks = state_dict.get("H") if isinstance(state_dict, dict) else None
        if isinstance(blocks, list):
            found = BlockDiag(blocks).sizes
            wanted = [layer.size for layer in self.layers]
            if found != wanted:
                raise ValueError(
                    f"The state has blocks of sizes {found}, the model's layers have "
                    f"{wanted}. Load it into the model it was made with."
                )
        state = checked_state(self, state_dict)
        super().load_state_dict(state | {"H": BlockDiag(state["H"])})
