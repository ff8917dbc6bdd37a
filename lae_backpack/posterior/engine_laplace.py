"""What the new ``hessian_structure``s share, whatever the form of their curvature."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, ClassVar

import torch
from laplace.baselaplace import ParametricLaplace
from torch import Tensor
from torch.nn import Module
from torch.utils.data import DataLoader
from typing_extensions import override

from lae_backpack.posterior import distributed, predictive
from lae_backpack.posterior.backend import EngineCurvature
from lae_backpack.posterior.batches import require_sized
from lae_backpack.posterior.choices import require_at_least_one, require_one_of
from lae_backpack.posterior.chunks import Batch, chunks_of, rows_of, stacked
from lae_backpack.posterior.density import GaussianNLL
from lae_backpack.posterior.hyperparameters import PositiveHyperparameters
from lae_backpack.posterior.jacobians import SmallJacobians
from lae_backpack.posterior.look import require_finite
from lae_backpack.posterior.propagated import probit
from lae_backpack.posterior.rank_checks import unwrapped
from lae_backpack.posterior.sampling import (
    WeightSampler,
    evaluating,
    run_with,
    without_hooks,
)
from lae_backpack.posterior.shared_fit import SharedFit
from lae_backpack.posterior.states import FORMAT, checked_state


class EngineLaplace(
    PositiveHyperparameters, SmallJacobians, SharedFit, ParametricLaplace
):
    """A Laplace approximation on our curvature, safe for many outputs.

    laplace-torch finds subclasses by ``_key``; this one has none, so it is not found.
    """

    backend_settings: ClassVar[dict[str, Any]] = {"max_dense_dim": 0}
    pred_types: ClassVar[tuple[str, ...]] = ("glm", "nn")

    def __init__(
        self,
        model: Module,
        likelihood: str,
        *args: Any,
        backend: type | None = None,
        backend_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """As ``ParametricLaplace``, with our curvature.

        Args:
            model: The model; DistributedDataParallel is taken off.
            likelihood: ``"regression"`` or ``"classification"``.
            *args: As for ``ParametricLaplace``.
            backend: ``None``; another backend would compute other curvature.
            backend_kwargs: Settings of the curvature.
            **kwargs: As for ``ParametricLaplace``.

        Raises:
            ValueError: If another backend or an unknown setting is given.
        """
        if backend not in (None, EngineCurvature):
            raise ValueError(
                f"{type(self).__name__} has its own curvature, got backend="
                f"{backend.__name__}, which would give another one. Pass "
                "backend=None."
            )
        given = backend_kwargs or {}
        unknown = sorted(given.keys() - self.allowed_settings())
        if unknown:
            raise ValueError(
                f"{type(self).__name__} got backend_kwargs {unknown}, allowed: "
                f"{sorted(self.allowed_settings())}. Use hessian_structure="
                "'mixed_diag' for max_dense_dim."
            )
        super().__init__(
            unwrapped(model),
            likelihood,
            *args,
            backend=EngineCurvature,
            backend_kwargs=self.backend_settings | given,
            **kwargs,
        )

    @property
    @override
    def backend(self) -> EngineCurvature:
        backend = super().backend
        assert isinstance(backend, EngineCurvature)
        return backend

    @classmethod
    def allowed_settings(cls) -> set[str]:
        """What ``backend_kwargs`` may hold.

        Returns:
            The names of the settings.
        """
        return {"memory_budget"}

    @override
    def fit(
        self,
        train_loader: DataLoader,
        override: bool = True,
        progress_bar: bool = False,
    ) -> None:
        if distributed.n_ranks() == 1:  # otherwise some rank may have no data
            require_sized(train_loader)
        before = {name: self.__dict__.get(name) for name in ("mean", "n_data")}
        before["loss"] = copy.deepcopy(self.loss)  # the host adds in place
        precision = self.H if override else self.H.clone()
        n_outputs = self.n_outputs
        try:
            with distributed.failing_together(), evaluating(self.model):
                super().fit(train_loader, override, progress_bar)
            require_finite(torch.as_tensor(self.loss), *self._curvature_tensors())
        except BaseException:
            self.__dict__.update(before)
            self.H, self.n_outputs = precision, n_outputs
            raise
        # The host counts the last dimension only, which is the width of an image.
        self.n_outputs = self.backend.n_outputs
        setattr(self.model, "output_size", self.n_outputs)  # noqa: B010

    def sampler(self) -> WeightSampler:
        """Draw networks from this posterior.

        Returns:
            A sampler of their weights.

        Raises:
            NotImplementedError: If a subclass does not write this.
        """
        raise NotImplementedError(f"{type(self).__name__} must write sampler")

    @override
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"format": FORMAT}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        before = dict(self.__dict__)
        try:
            super().load_state_dict(checked_state(self, state_dict))
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _curvature_tensors(self) -> list[Tensor]:
        return [self.H]

    def _require_fit(self) -> None:
        if not self.n_data:
            raise RuntimeError(
                f"This {type(self).__name__} is not fitted. Call la.fit(loader) first."
            )

    @override
    def __call__(
        self,
        x: Batch,
        pred_type: str = "glm",
        joint: bool = False,
        link_approx: str = "probit",
        n_samples: int = 100,
        diagonal_output: bool = False,
        generator: torch.Generator | None = None,
        fitting: bool = False,
        chunk_size: int | None = None,
        **model_kwargs: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Predict, in memory that is safe for any number of outputs.

        ``"glm"`` is laplace-torch's own where the Jacobian is small; elsewhere the
        model is linearised one Jacobian-vector product at a time, and the variance has
        the output's shape. ``"nn"`` samples networks and streams their moments.

        Args:
            x: A batch, or a dict-like one.  # [N, *in]
            pred_type: ``"glm"`` or ``"nn"``.
            joint: As in laplace-torch; for small Jacobians only.
            link_approx: As in laplace-torch; ``"probit"`` or ``"mc"`` for many outputs.
            n_samples: How many networks or deviations are sampled.
            diagonal_output: As in laplace-torch.
            generator: Where randomness comes from.
            fitting: As in laplace-torch.
            chunk_size: Samples that go through the net at once; ``None`` chooses. Small
                Jacobians are always built in chunks of their own.
            **model_kwargs: As in laplace-torch.

        Returns:
            Mean and variance for regression, probabilities for classification.

        Raises:
            ValueError: If a setting is unknown or does not fit many outputs.
        """
        require_one_of("pred_type", pred_type, self.pred_types)
        require_at_least_one("n_samples", n_samples)
        self._require_fit()
        rewards = self.likelihood == "reward_modeling"
        classifies = fitting if rewards else self.likelihood == "classification"
        x = x.to(self._device) if isinstance(x, Tensor) else x
        chunks = chunks_of(x, chunk_size, self.n_outputs)
        if pred_type == "glm" and self._small_jacobian(x):
            settings = n_samples, diagonal_output, generator
            if classifies and link_approx == "mc":  # the host forgets the generator
                return self.predictive_samples(x, pred_type, *settings).mean(0)
            with evaluating(self.model):
                return super().__call__(
                    x, pred_type, joint, link_approx, *settings, fitting
                )
        draw = self.sampler(), chunks, n_samples, generator
        run = partial(run_with, without_hooks(self.model))
        if pred_type == "nn":
            with evaluating(self.model):
                if not classifies:
                    return predictive.sampled_moments(run, *draw)
                outputs = predictive.sampled(run, *draw)
                return predictive.mean_probabilities(outputs, rows_of(chunks))
        if joint:
            raise ValueError(
                "joint=True needs a covariance of all outputs, which does not fit for "
                f"{rows_of(chunks)} x {self.n_outputs} of them. Use joint=False."
            )
        if classifies:
            require_one_of("link_approx", link_approx, ("probit", "mc"))
        with evaluating(self.model):
            if classifies and link_approx == "mc":
                outputs = predictive.linearised(run, *draw)
                return predictive.mean_probabilities(outputs, rows_of(chunks))
            mean, variance = predictive.linearised_moments(run, *draw)
        if not classifies:
            return mean, variance
        return probit(mean, variance).softmax(1)

    @override
    def functional_samples(
        self,
        x: Batch,
        pred_type: str = "glm",
        n_samples: int = 100,
        diagonal_output: bool = False,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        require_one_of("pred_type", pred_type, ("glm", "nn"))
        require_at_least_one("n_samples", n_samples)
        self._require_fit()
        x = x.to(self._device) if isinstance(x, Tensor) else x
        if pred_type == "glm" and self._small_jacobian(x):
            with evaluating(self.model):
                return super().functional_samples(
                    x, pred_type, n_samples, diagonal_output, generator
                )
        chunks = chunks_of(x, None, self.n_outputs)
        draw = self.sampler(), chunks, n_samples, generator
        stream = predictive.linearised if pred_type == "glm" else predictive.sampled
        with evaluating(self.model), torch.no_grad():
            outputs = stream(partial(run_with, without_hooks(self.model)), *draw)
            return stacked(outputs, n_samples, rows_of(chunks))

    @override
    def predictive_samples(
        self,
        x: Batch,
        pred_type: str = "glm",
        n_samples: int = 100,
        diagonal_output: bool = False,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        samples = self.functional_samples(
            x, pred_type, n_samples, diagonal_output, generator
        )
        return samples if self.likelihood == "regression" else samples.softmax(2)

    @override
    def optimize_prior_precision(
        self, pred_type: str = "glm", method: str = "marglik", **kwargs: Any
    ) -> None:
        if method == "gridsearch" and self.likelihood == "regression":
            kwargs.setdefault(
                "loss", GaussianNLL(torch.as_tensor(self.sigma_noise).square())
            )
        with evaluating(self.model):
            super().optimize_prior_precision(pred_type, method, **kwargs)
