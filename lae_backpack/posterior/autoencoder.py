"""An autoencoder whose weights are Gaussian."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import Module
from tqdm import tqdm
from typing_extensions import override

from lae_backpack.posterior import distributed
from lae_backpack.posterior.backend import EngineCurvature
from lae_backpack.posterior.batches import Pairs, checked_batches
from lae_backpack.posterior.choices import require_one_of
from lae_backpack.posterior.density import BernoulliNLL
from lae_backpack.posterior.encoder_decoder import require_encoder_and_decoder
from lae_backpack.posterior.evidence.effective import effective_parameters
from lae_backpack.posterior.look import require_finite
from lae_backpack.posterior.online.training import OnlineTraining
from lae_backpack.posterior.rank_checks import require_same_posterior, unwrapped
from lae_backpack.posterior.reconstruction import Reconstructions
from lae_backpack.posterior.sampling import as_vector, evaluating, summing_dtype
from lae_backpack.posterior.shared_fit import seen_by_all, starts_anew
from lae_backpack.posterior.structures import (
    CalibratedDiagLaplace,
    EngineDiagLaplace,
    MixedDiagLaplace,
)

SETTINGS: dict[str, dict[str, Any]] = {
    "approx_diag": {"max_dense_dim": 0},
    "mixed_diag": MixedDiagLaplace.backend_settings,
    "calibrated_diag": CalibratedDiagLaplace.backend_settings,
}


class LaplaceAE(OnlineTraining, Reconstructions, EngineDiagLaplace):
    """A Laplace approximation of an autoencoder; targets are the inputs.

    ``la.fit(loader)`` fits it post hoc, ``la(x)`` gives mean and variance shaped like
    ``x``, ``la.latent(x)`` those of the code.
    """

    _key: ClassVar[tuple[str, str]] = ("all", "lae")

    def __init__(
        self,
        model: Module,
        likelihood: str = "regression",
        *,
        hessian_structure: str | None = None,
        sigma_noise: float | Literal["residual", "learned"] = "residual",
        backend_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Choose likelihood, curvature and noise.

        Args:
            model: An ``AutoEncoder``, or any module with ``encoder`` and ``decoder``.
            likelihood: ``"regression"`` for Gaussian pixels, ``"bernoulli"`` for pixels
                in [0, 1] and a decoder that gives logits.
            hessian_structure: ``"approx_diag"``, ``"mixed_diag"`` or
                ``"calibrated_diag"``. ``None`` takes what measured best: the calibrated
                one to fit post hoc, the mixed one to train online.
            sigma_noise: The standard deviation of Gaussian pixels; ``"residual"`` takes
                the root mean squared error of reconstructions when fitting post hoc;
                ``"learned"`` maximises the evidence post hoc, and follows the error of
                sampled networks online.
            backend_kwargs: Settings of the curvature, as for these structures.
            **kwargs: As for laplace-torch's ``DiagLaplace``.
        """
        model = unwrapped(model)
        require_encoder_and_decoder(model)
        require_one_of("likelihood", likelihood, ("regression", "bernoulli"))
        structure = "mixed_diag" if hessian_structure is None else hessian_structure
        require_one_of("hessian_structure", structure, tuple(SETTINGS))
        _require_settings_of(structure, backend_kwargs or {})
        asked = {"max_dense_dim"} & (backend_kwargs or {}).keys()  # a limit of mixed's
        self._chooses_structure = hessian_structure is None and not asked
        self.bernoulli = likelihood == "bernoulli"
        if isinstance(sigma_noise, str):
            require_one_of("sigma_noise", sigma_noise, ("residual", "learned"))
        self.noise_from_residuals = sigma_noise == "residual" and not self.bernoulli
        self.learns_noise = sigma_noise == "learned" and not self.bernoulli
        given = SETTINGS[structure] | (backend_kwargs or {})
        super().__init__(
            model,
            "classification" if self.bernoulli else "regression",
            sigma_noise=1.0 if isinstance(sigma_noise, str) else sigma_noise,
            backend_kwargs=given,
            **kwargs,
        )

    @classmethod
    @override
    def allowed_settings(cls) -> set[str]:
        return CalibratedDiagLaplace.allowed_settings()

    @property
    @override
    def backend(self) -> EngineCurvature:
        backend = super().backend
        if self.bernoulli:
            backend.lossfunc = nn.BCEWithLogitsLoss(reduction="sum")
        return backend

    @override
    def fit(
        self,
        train_loader: Iterable[object],
        override: bool = True,
        progress_bar: bool = False,
    ) -> None:
        """Fit post hoc, at the model's present weights.

        Args:
            train_loader: Yields ``x``, ``(x,)`` or ``(x, label)``; of several ranks,
                each has its own.
            override: Start anew; otherwise add to what was fitted before.
            progress_bar: Show one.
        """
        self.choose_structure(post_hoc=True)
        with distributed.failing_together(), evaluating(self.model):
            require_same_posterior(self)
            loss, looks, count = self._look_at(train_loader, override, progress_bar)
        require_finite(torch.as_tensor(loss), looks)
        self.take_looks(looks)
        self.loss, self.n_data = loss, count
        self.n_outputs = self.backend.n_outputs
        self.mean = as_vector(self.params)
        if self.noise_from_residuals or self.learns_noise:
            squares = torch.as_tensor(2 * loss / (count * self.n_outputs))
            least = torch.finfo(squares.dtype).eps  # a perfect fit is no reason to fail
            self.sigma_noise = squares.sqrt().clamp_min(least)
        if self.learns_noise:
            self._learn_noise()

    def choose_structure(self, post_hoc: bool) -> None:
        """Take the curvature that measured best, unless one was asked for.

        Post hoc, calibrated curvature gives sampled networks that reconstruct better,
        by far. Trained online they reconstruct alike, and mixed curvature told outliers
        of Fashion-MNIST better (the results of ``examples/experiments/online.py``).

        Args:
            post_hoc: Whether the model is trained already.
        """
        if self._chooses_structure:
            self.backend.n_probes = 1 if post_hoc else 0

    def _look_at(
        self, loader: Iterable[object], override: bool, progress_bar: bool
    ) -> tuple[Tensor | float, Tensor, int]:
        """Go through the data.

        Returns:
            Loss, looks and count, of all ranks and of what was fitted before.
        """
        anew = starts_anew(override)
        looks = self.looks.to(summing_dtype(self._dtype), copy=True)
        looks = looks.zero_() if anew else looks
        loss = looks.new_zeros(()) if anew else self.loss
        count = 0 if anew else self.n_data
        batches = checked_batches(loader, self.model, self.bernoulli)
        shows = progress_bar and distributed.rank() == 0
        with distributed.own_randomness(self._device):
            for x in tqdm(batches, "fit", disable=not shows):
                loss = loss + self.backend.add_look(x, x, looks)
                count += len(x)
        loss, count = seen_by_all(self, loss, [looks], count)
        return loss, looks, count

    @override
    def optimize_prior_precision(
        self,
        pred_type: str | None = None,
        method: str = "marglik",
        val_loader: Iterable[object] | None = None,
        **kwargs: Any,
    ) -> None:
        """Choose the prior precision, as in laplace-torch.

        Args:
            pred_type: What grid search scores; by default ``"glm"``, and ``"nn"`` for
                Bernoulli pixels.
            method: ``"marglik"``, or ``"gridsearch"`` by the predictive density.
            val_loader: For grid search; yields ``x``, ``(x,)`` or ``(x, label)``.
            **kwargs: As in laplace-torch.
        """
        if val_loader is not None:
            kwargs["val_loader"] = Pairs(val_loader)
        if not self.bernoulli:
            super().optimize_prior_precision(pred_type or "glm", method, **kwargs)
            return
        if method == "gridsearch":
            kwargs.setdefault("loss", BernoulliNLL())
        with warnings.catch_warnings():  # of link_approx, which pixels have none of
            warnings.filterwarnings("ignore", message=".*link_approx")
            super().optimize_prior_precision(pred_type or "nn", method, **kwargs)

    def _learn_noise(self, n_halvings: int = 30) -> None:
        """Maximise the evidence over the noise, starting at the residuals'.

        The maximum has ``squared error / variance = numbers - effective parameters``
        (MacKay), with the error divided by the temperature. The left side falls with
        the variance and the right side rises, so there is one, and it is never below
        the residuals' variance, divided likewise.
        """

        def is_below_the_maximum(variance: Tensor) -> bool:
            self.sigma_noise = variance.sqrt()
            free = self.n_data * self.n_outputs - effective_parameters(self)
            return bool(2 * self.loss / (self.temperature * variance) > free)

        lower = torch.as_tensor(self.sigma_noise).square() / self.temperature
        upper = 2 * lower
        while is_below_the_maximum(upper):
            lower, upper = upper, 2 * upper
        for _ in range(n_halvings):
            middle = (lower * upper).sqrt()
            if is_below_the_maximum(middle):
                lower = middle
            else:
                upper = middle
        self.sigma_noise = upper.sqrt()


def _require_settings_of(structure: str, given: dict[str, Any]) -> None:
    """Refuse settings that the structure has no use for.

    Raises:
        ValueError: If there are any.
    """
    allowed = SETTINGS[structure].keys() | {"memory_budget"}
    unknown = sorted(given.keys() - allowed)
    if unknown:
        raise ValueError(
            f"hessian_structure={structure!r} got backend_kwargs {unknown}, allowed: "
            f"{sorted(allowed)}. n_probes and shrink belong to 'calibrated_diag'."
        )
