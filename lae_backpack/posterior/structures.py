"""The new ``hessian_structure``s of laplace-torch."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from laplace.baselaplace import DiagLaplace
from torch import Tensor
from torch.nn import Module
from torch.utils.data import DataLoader
from typing_extensions import override

from lae_backpack.curvature.policy import DEFAULT_MAX_DENSE_DIM
from lae_backpack.posterior import predictive, propagated
from lae_backpack.posterior.backend import EngineCurvature
from lae_backpack.posterior.choices import PRED_TYPES, require_one_of
from lae_backpack.posterior.density import GaussianNLL
from lae_backpack.posterior.sampling import WeightSampler, evaluating, weights_by_name

# A Jacobian of at most this many numbers is worth its exactness.
SMALL_JACOBIAN = 2**24


class EngineDiagLaplace(DiagLaplace):
    """What the structures share.

    laplace-torch finds subclasses by ``_key``, helpers too, so this has one of its own.
    """

    _key: ClassVar[tuple[str, str]] = ("all", "engine_diag")
    backend_settings: ClassVar[dict[str, Any]] = {"max_dense_dim": 0}

    def __init__(
        self,
        model: Module,
        likelihood: str,
        *args: Any,
        backend: type | None = None,
        backend_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """As ``DiagLaplace``, with our curvature.

        Args:
            model: The model.
            likelihood: ``"regression"`` or ``"classification"``.
            *args: As for ``DiagLaplace``.
            backend: ``None``; another backend would compute another diagonal.
            backend_kwargs: Settings of the curvature.
            **kwargs: As for ``DiagLaplace``.

        Raises:
            ValueError: If another backend or an unknown setting is given.
        """
        if backend not in (None, EngineCurvature):
            raise ValueError(
                f"{type(self).__name__} has its own curvature, got backend="
                f"{backend.__name__}, which would give another diagonal. Pass "
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
            model,
            likelihood,
            *args,
            backend=EngineCurvature,
            backend_kwargs=self.backend_settings | given,
            **kwargs,
        )

    @classmethod
    def allowed_settings(cls) -> set[str]:
        """What ``backend_kwargs`` may hold.

        Returns:
            The names of the settings.
        """
        return set()

    @override
    def fit(
        self,
        train_loader: DataLoader,
        override: bool = True,
        progress_bar: bool = False,
    ) -> None:
        before = {name: self.__dict__.get(name) for name in ("mean", "loss", "n_data")}
        precision = self.H if override else self.H.clone()
        n_outputs = self.n_outputs
        try:
            with evaluating(self.model):
                super().fit(train_loader, override, progress_bar)
        except BaseException:
            self.__dict__.update(before)
            self.H, self.n_outputs = precision, n_outputs
            raise
        # The host counts the last dimension only, which is the width of an image.
        assert isinstance(self.backend, EngineCurvature)
        self.n_outputs = self.backend.n_outputs
        setattr(self.model, "output_size", self.n_outputs)  # noqa: B010

    def sampler(self) -> WeightSampler:
        """Draw networks from this posterior.

        Returns:
            A sampler of their weights.
        """
        return WeightSampler(self.model, self.mean, self.posterior_scale)

    @property
    @override
    def prior_precision_diag(self) -> Tensor:
        prior = torch.as_tensor(self.prior_precision)
        if prior.numel() == 1:  # equal numbers need no vector of their own
            return prior.reshape(1).expand(self.n_params)
        return super().prior_precision_diag

    def moments(
        self,
        x: Tensor,
        pred_type: str,
        n_samples: int = 100,
        generator: torch.Generator | None = None,
        part: str = "",
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of the linearised model's output.

        Args:
            x: A batch.  # [N, *in]
            pred_type: ``"glm"`` samples deviations, ``"propagated"`` needs none.
            n_samples: How many deviations.
            generator: Where randomness comes from.
            part: The part of the model that is meant, by its name; all of it if empty.

        Returns:
            The output at the mean weights, and its variance.  # [N, *out] each
        """
        x, model = x.to(self._device), self.model.get_submodule(part)
        with evaluating(self.model):
            if pred_type == "propagated":
                variance = self.posterior_precision.detach().reciprocal_()
                mean, variances = (
                    weights_by_name(self.model, vector, part)
                    for vector in (self.mean, variance)
                )
                policy = propagated.forward_policy(self._backend_kwargs)
                return propagated.moments(model, mean, variances, x, policy)
            sampler = self.sampler().of_part(part) if part else self.sampler()
            draw = n_samples, generator
            return predictive.linearised_moments(model, sampler, x, *draw)

    def _small_jacobian(self, x: Tensor) -> bool:
        with torch.no_grad(), evaluating(self.model):
            output = self.model(x[:1].to(self._device))
        numbers = len(x) * self.n_params * output.numel()
        return output.dim() == 2 and numbers <= SMALL_JACOBIAN

    @override
    def __call__(
        self,
        x: Tensor,
        pred_type: str = "glm",
        joint: bool = False,
        link_approx: str = "probit",
        n_samples: int = 100,
        diagonal_output: bool = False,
        generator: torch.Generator | None = None,
        fitting: bool = False,
        **model_kwargs: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Predict, in memory that is safe for any number of outputs.

        ``"glm"`` is laplace-torch's own where the Jacobian is small; elsewhere the
        model is linearised one Jacobian-vector product at a time, and the variance has
        the output's shape. ``"nn"`` samples networks and streams their moments.
        ``"propagated"`` is one pass without samples.

        Args:
            x: A batch.  # [N, *in]
            pred_type: ``"glm"``, ``"nn"`` or ``"propagated"``.
            joint: As in laplace-torch; for small Jacobians only.
            link_approx: As in laplace-torch; ``"probit"`` or ``"mc"`` for many outputs.
            n_samples: How many networks or deviations are sampled.
            diagonal_output: As in laplace-torch.
            generator: Where randomness comes from.
            fitting: As in laplace-torch.
            **model_kwargs: As in laplace-torch.

        Returns:
            Mean and variance for regression, probabilities for classification.

        Raises:
            ValueError: If a setting is unknown or does not fit many outputs.
        """
        require_one_of("pred_type", pred_type, PRED_TYPES)
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1, got {n_samples}.")
        classifies = self.likelihood != "regression"
        x = x.to(self._device)
        if pred_type == "nn":
            with evaluating(self.model):
                draw = self.model, self.sampler(), x, n_samples, generator
                if classifies:
                    return predictive.mean_probabilities(predictive.sampled(*draw))
                return predictive.sampled_moments(*draw)
        if pred_type == "propagated":
            propagated.require_single_outputs(joint, link_approx)
        elif self._small_jacobian(x):
            return super().__call__(
                x, pred_type, joint, link_approx, n_samples, diagonal_output, generator
            )
        elif joint:
            raise ValueError(
                "joint=True needs a covariance of all outputs, which does not fit for "
                f"{len(x)} x {self.n_outputs} of them. Use joint=False."
            )
        if classifies and link_approx == "mc":
            draw = self.model, self.sampler(), x, n_samples, generator
            with evaluating(self.model):
                return predictive.mean_probabilities(predictive.linearised(*draw))
        mean, variance = self.moments(x, pred_type, n_samples, generator)
        if not classifies:
            return mean, variance
        require_one_of("link_approx", link_approx, ("probit", "mc"))
        return propagated.probit(mean, variance).softmax(1)

    @override
    def functional_samples(
        self,
        x: Tensor,
        pred_type: str = "glm",
        n_samples: int = 100,
        diagonal_output: bool = False,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        require_one_of("pred_type", pred_type, ("glm", "nn"))
        x = x.to(self._device)
        if pred_type == "glm" and self._small_jacobian(x):
            return super().functional_samples(
                x, pred_type, n_samples, diagonal_output, generator
            )
        stream = predictive.linearised if pred_type == "glm" else predictive.sampled
        with evaluating(self.model), torch.no_grad():
            outputs = stream(self.model, self.sampler(), x, n_samples, generator)
            return torch.stack(list(outputs))

    @override
    def predictive_samples(
        self,
        x: Tensor,
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
