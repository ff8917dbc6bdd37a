"""The new diagonal ``hessian_structure``s of laplace-torch."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import torch
from laplace.baselaplace import DiagLaplace
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import override

from lae_backpack.curvature.policy import DEFAULT_MAX_DENSE_DIM
from lae_backpack.curvature.recorder import lock_of
from lae_backpack.posterior import propagated
from lae_backpack.posterior.choices import PRED_TYPES
from lae_backpack.posterior.chunks import checked_size, cut
from lae_backpack.posterior.engine_laplace import EngineLaplace
from lae_backpack.posterior.kept import Kept
from lae_backpack.posterior.sampling import (
    Weights,
    WeightSampler,
    evaluating,
    summing_dtype,
    weights_by_name,
)
from lae_backpack.posterior.shared_fit import starts_anew


class EngineDiagLaplace(EngineLaplace, DiagLaplace):
    """What the diagonal structures share.

    laplace-torch finds subclasses by ``_key``, helpers too, so this has one of its own.
    """

    _key: ClassVar[tuple[str, str]] = ("all", "engine_diag")
    pred_types = PRED_TYPES
    _looks: Tensor | None = None

    @property
    def looks(self) -> Tensor:
        """What H is estimated from, summed over the data.  # [R, P]."""
        if not self.backend.calibrates:
            return self.H[None]
        if self._looks is None:
            return self.H.new_zeros(self.backend.n_rows, self.n_params)
        return self._looks

    @override
    def _init_H(self) -> None:
        dtype = summing_dtype(self._dtype) if self._is_summing else self._dtype
        self.H = torch.zeros(self.n_params, device=self._device, dtype=dtype)

    def take_looks(self, looks: Tensor) -> None:
        """Estimate H.

        Args:
            looks: What it is estimated from.  # [R, P]
        """
        self.H = self.backend.estimate(looks).to(self._dtype)
        self._looks = looks if self.backend.calibrates else None

    @override
    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return state if self._looks is None else state | {"looks": self._looks}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        looks = state_dict.get("looks")
        self._looks = None if looks is None else looks.to(self._device)

    @override
    def sampler(self) -> WeightSampler:
        self._require_fit()
        return WeightSampler(self.model, self.mean, self.posterior_scale)

    @property
    @override
    def prior_precision_diag(self) -> Tensor:
        prior = torch.as_tensor(self.prior_precision)
        if prior.numel() == 1:  # equal numbers need no vector of their own
            return prior.reshape(1).expand(self.n_params)
        return super().prior_precision_diag

    @torch.inference_mode(False)  # where torch does not count who writes to a tensor
    def propagated(
        self, x: Tensor, part: str = "", chunk_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of the linearised model's output, in one pass.

        Args:
            x: A batch.  # [N, *in]
            part: The part of the model that is meant, by its name; all of it if empty.
            chunk_size: Samples that go through the net at once; ``None`` chooses.

        Returns:
            The output at the mean weights, and its variance.  # [N, *out] each
        """
        self._require_fit()
        x = x.clone() if x.is_inference() else x
        means, variances = self._named_weights(part)
        policy = propagated.forward_policy(self._backend_kwargs)
        model = self.model.get_submodule(part)
        size = checked_size(x, chunk_size, self.n_outputs)
        # The model holds other weights meanwhile, which no other thread may see.
        with lock_of(self.model), evaluating(self.model):
            moments = [
                propagated.moments(model, means, variances, chunk, policy)
                for chunk in cut(x.to(self._device), size)
            ]
        mean, variance = zip(*moments, strict=True)
        if len(moments) > 1:
            return torch.cat(mean), torch.cat(variance)
        # Of a part that only reshapes, the output is a view of what the user gave.
        shared = mean[0].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        return mean[0].clone() if shared else mean[0], variance[0]

    @cached_property
    def _kept_variances(self) -> Kept[Tensor]:
        return Kept()

    @cached_property
    def _kept_weights(self) -> Kept[dict[str, tuple[Weights, Weights]]]:
        return Kept()

    def _weight_variances(self) -> Tensor:
        """The posterior's variances, kept until it changes: one pass is short."""

        def make() -> Tensor:
            prior, factor = self.prior_precision_diag, self._H_factor
            return torch.addcmul(prior, self.H, factor).detach().reciprocal_()

        noise = torch.as_tensor(self.sigma_noise)
        tensors = self.H, self.prior_precision, noise
        return self._kept_variances.get(make, tensors, self.temperature)

    def _named_weights(self, part: str) -> tuple[Weights, Weights]:
        """Means and variances of a part's weights, cut once for all passes."""
        vectors = self.mean, self._weight_variances()
        parts = self._kept_weights.get(dict, vectors)
        if part not in parts:
            means, variances = weights_by_name(self.model, vectors, part)
            parts[part] = propagated.held(means), variances
        return parts[part]

    @override
    def __call__(
        self,
        x: Any,
        pred_type: str = "glm",
        joint: bool = False,
        link_approx: str = "probit",
        *args: Any,
        chunk_size: int | None = None,
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """As for every structure; ``pred_type="propagated"`` is one pass, no samples.

        Args:
            x: A batch.  # [N, *in]
            pred_type: ``"glm"``, ``"nn"`` or ``"propagated"``.
            joint: As in laplace-torch.
            link_approx: As in laplace-torch.
            *args: As in laplace-torch.
            chunk_size: Samples that go through the net at once; ``None`` chooses.
            **kwargs: As in laplace-torch.

        Returns:
            Mean and variance for regression, probabilities for classification.
        """
        if pred_type != "propagated":
            return super().__call__(
                x, pred_type, joint, link_approx, *args, chunk_size=chunk_size, **kwargs
            )
        propagated.require_single_outputs(joint, link_approx)
        mean, variance = self.propagated(x, chunk_size=chunk_size)
        if self.likelihood == "regression":
            return mean, variance
        return propagated.probit(mean, variance).softmax(1)


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
        return {"max_dense_dim", "memory_budget"}


class CalibratedDiagLaplace(EngineDiagLaplace):
    """``Laplace(..., subset_of_weights="all", hessian_structure="calibrated_diag")``.

    Random probes, ``n_probes`` for each sample, at a cost linear in the outputs: every
    entry is unbiased, and the last layer and all that comes before a narrow code are
    exact. For few data and nets without such a code, ``shrink=True`` in
    ``backend_kwargs`` shrinks the probes to the shape of the approximate diagonal (of
    the mixed one with ``max_dense_dim``): less noise, unbiased sums over tensors.
    """

    _key = ("all", "calibrated_diag")
    backend_settings = {"max_dense_dim": 0, "n_probes": 1, "shrink": False}

    @classmethod
    @override
    def allowed_settings(cls) -> set[str]:
        return {*cls.backend_settings, "memory_budget"}

    @override
    def fit(
        self,
        train_loader: DataLoader,
        override: bool = True,
        progress_bar: bool = False,
    ) -> None:
        if not self.backend.calibrates:
            super().fit(train_loader, override, progress_bar)
            return
        before = self._looks
        summed = self.looks.clone()
        self._looks = summed.zero_() if starts_anew(override) else summed
        try:
            super().fit(train_loader, override, progress_bar)
        except BaseException:
            self._looks = before
            raise
        self.take_looks(self._looks)

    @override
    def _tensors_to_add_up(self) -> list[Tensor]:
        return [self.H if self._looks is None else self._looks]

    @override
    def _curv_closure(self, X: Any, y: Tensor, N: int) -> tuple[Tensor, Tensor]:
        if not self.backend.calibrates:
            return self.backend.diag(X, y)
        assert self._looks is not None
        loss = self.backend.add_look(X, y, self._looks)
        return loss, torch.zeros_like(self.H)  # H follows when all data are seen
