"""An autoencoder whose weights are Gaussian."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn.utils import parameters_to_vector
from tqdm import tqdm
from typing_extensions import override

from lae_backpack.curvature.policy import DEFAULT_MAX_DENSE_DIM
from lae_backpack.posterior.backend import EngineCurvature
from lae_backpack.posterior.batches import checked_batches
from lae_backpack.posterior.choices import PRED_TYPES, require_one_of
from lae_backpack.posterior.encoder_decoder import require_encoder_and_decoder
from lae_backpack.posterior.online import History, OnlineSettings, train
from lae_backpack.posterior.propagated import sigmoid_moments
from lae_backpack.posterior.sampling import Weights, evaluating, moments_of, run_with
from lae_backpack.posterior.structures import EngineDiagLaplace

LIMITS = {"approx_diag": 0, "mixed_diag": DEFAULT_MAX_DENSE_DIM}


class LaplaceAE(EngineDiagLaplace):
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
        hessian_structure: str = "mixed_diag",
        sigma_noise: float | Literal["residual"] = "residual",
        backend_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Choose likelihood, curvature and noise.

        Args:
            model: An ``AutoEncoder``, or any module with ``encoder`` and ``decoder``.
            likelihood: ``"regression"`` for Gaussian pixels, ``"bernoulli"`` for pixels
                in [0, 1] and a decoder that gives logits.
            hessian_structure: ``"approx_diag"`` or ``"mixed_diag"``.
            sigma_noise: The standard deviation of Gaussian pixels; ``"residual"`` takes
                the root mean squared error of reconstructions when fitting.
            backend_kwargs: ``{"max_dense_dim": ...}`` for the mixed diagonal.
            **kwargs: As for laplace-torch's ``DiagLaplace``.
        """
        require_encoder_and_decoder(model)
        require_one_of("likelihood", likelihood, ("regression", "bernoulli"))
        require_one_of("hessian_structure", hessian_structure, tuple(LIMITS))
        self.bernoulli = likelihood == "bernoulli"
        self.noise_from_residuals = sigma_noise == "residual" and not self.bernoulli
        given = {"max_dense_dim": LIMITS[hessian_structure]} | (backend_kwargs or {})
        super().__init__(
            model,
            "classification" if self.bernoulli else "regression",
            sigma_noise=1.0 if sigma_noise == "residual" else sigma_noise,
            backend_kwargs=given,
            **kwargs,
        )

    @classmethod
    @override
    def allowed_settings(cls) -> set[str]:
        return {"max_dense_dim"}

    @property
    @override
    def backend(self) -> EngineCurvature:
        backend = super().backend
        assert isinstance(backend, EngineCurvature)
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
            train_loader: Yields ``x``, ``(x,)`` or ``(x, label)``.
            override: Start anew; otherwise add to what was fitted before.
            progress_bar: Show one.
        """
        curvature = torch.zeros_like(self.H) if override else self.H.clone()
        loss = torch.zeros_like(curvature[0]) if override else self.loss
        count = 0 if override else self.n_data
        with evaluating(self.model):
            batches = checked_batches(train_loader, self.model)
            for x in tqdm(batches, "fit", disable=not progress_bar):
                loss_batch, diagonal = self.backend.diag(x, x)
                curvature += diagonal
                loss = loss + loss_batch
                count += len(x)
        self.H, self.loss, self.n_data = curvature, loss, count
        self.n_outputs = self.backend.n_outputs
        self.mean = parameters_to_vector(self.params).detach()
        if self.noise_from_residuals:
            squares = torch.as_tensor(2 * loss / (count * self.n_outputs))
            self.sigma_noise = squares.sqrt()

    def fit_online(
        self,
        loader: Iterable[object],
        n_epochs: int = 10,
        *,
        settings: OnlineSettings | None = None,
        lr: float = 1e-3,
        optimizer: torch.optim.Optimizer | None = None,
        generator: torch.Generator | None = None,
        progress_bar: bool = True,
        callbacks: Iterable[Callable[[LaplaceAE, History], None]] = (),
    ) -> History:
        """Train the mean and the precision together, by Monte-Carlo EM.

        The noise is taken as 1, as in the paper, unless ``sigma_noise`` was given.

        Args:
            loader: Yields ``x``, ``(x,)`` or ``(x, label)``; needs ``loader.dataset``.
            n_epochs: How many epochs.
            settings: How the precision follows the data.
            lr: The learning rate of Adam, if no optimiser is given.
            optimizer: An optimiser of the model's parameters.
            generator: Where randomness comes from.
            progress_bar: Show one.
            callbacks: Called with this object and the history after each epoch.

        Returns:
            The history.

        Raises:
            TypeError: If the loader does not tell how much data it has.
        """
        dataset = getattr(loader, "dataset", None)
        if dataset is None:
            raise TypeError(
                f"fit_online must know how much data there is, and "
                f"{type(loader).__name__} has no dataset. Use a DataLoader."
            )
        n_data = len(dataset)
        optimizer = optimizer or torch.optim.Adam(self.params, lr)
        history = train(
            self,
            loader,
            n_data,
            n_epochs,
            settings or OnlineSettings(),
            optimizer,
            generator,
            progress_bar,
            callbacks,
        )
        self.mean = parameters_to_vector(self.params).detach()
        self.n_data, self.n_outputs = n_data, self.backend.n_outputs
        return history

    @override
    def __call__(
        self,
        x: Tensor,
        pred_type: str = "nn",
        n_samples: int = 100,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of the reconstruction.

        Args:
            x: A batch.  # [N, *in]
            pred_type: ``"nn"`` samples, ``"glm"`` linearises, ``"propagated"`` neither.
            n_samples: How many networks.
            generator: Where randomness comes from.
            **kwargs: As for the other structures.

        Returns:
            Mean and variance of pixels, or of their probabilities.  # [N, *in] each

        Raises:
            ValueError: If the likelihood does not allow it.
        """
        require_one_of("pred_type", pred_type, PRED_TYPES)
        if pred_type == "nn":
            return moments_of(self._reconstructions(x, n_samples, generator))
        self._require_fit()
        if self.bernoulli and pred_type == "glm":
            raise ValueError(
                "pred_type='glm' linearises logits, whose variance is not that of the "
                "pixels. Use pred_type='nn' or 'propagated' for 'bernoulli'."
            )
        moments = self.moments(x, pred_type, n_samples, generator)
        return sigmoid_moments(*moments) if self.bernoulli else moments

    def latent(
        self,
        x: Tensor,
        n_samples: int = 100,
        generator: torch.Generator | None = None,
        pred_type: str = "nn",
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of the code.

        Args:
            x: A batch.  # [N, *in]
            n_samples: How many encoders are sampled.
            generator: Where randomness comes from.
            pred_type: As for reconstructions.

        Returns:
            Mean and variance.  # [N, *code] each
        """
        require_one_of("pred_type", pred_type, PRED_TYPES)
        if pred_type == "nn":
            return moments_of(self._codes(x, n_samples, generator))
        self._require_fit()
        return self.moments(x, pred_type, n_samples, generator, "encoder")

    def samples(
        self, x: Tensor, n_samples: int = 100, generator: torch.Generator | None = None
    ) -> Tensor:
        """Reconstructions by sampled networks.

        Args:
            x: A batch.  # [N, *in]
            n_samples: How many networks.
            generator: Where randomness comes from.

        Returns:
            Pixels, or their probabilities.  # [S, N, *in]
        """
        return torch.stack(list(self._reconstructions(x, n_samples, generator)))

    def latent_samples(
        self, x: Tensor, n_samples: int = 100, generator: torch.Generator | None = None
    ) -> Tensor:
        """Codes by sampled encoders.

        With equal generators they belong to the same networks as ``samples``.

        Args:
            x: A batch.  # [N, *in]
            n_samples: How many networks.
            generator: Where randomness comes from.

        Returns:
            The codes.  # [S, N, *code]
        """
        return torch.stack(list(self._codes(x, n_samples, generator)))

    @torch.no_grad()
    def _networks(
        self, n_samples: int, generator: torch.Generator | None
    ) -> Iterator[Weights]:
        self._require_fit()
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1, got {n_samples}.")
        sampler = self.sampler()
        for _ in range(n_samples):
            yield sampler.draw(generator)

    def _reconstructions(
        self, x: Tensor, n_samples: int, generator: torch.Generator | None
    ) -> Iterator[Tensor]:
        x = x.to(self._device)
        with evaluating(self.model), torch.no_grad():
            for weights in self._networks(n_samples, generator):
                output = run_with(self.model, weights, x)
                yield output.sigmoid() if self.bernoulli else output

    def _codes(
        self, x: Tensor, n_samples: int, generator: torch.Generator | None
    ) -> Iterator[Tensor]:
        x, prefix = x.to(self._device), "encoder."
        encoder = self.model.get_submodule("encoder")
        with evaluating(self.model), torch.no_grad():
            for weights in self._networks(n_samples, generator):
                names = [name for name in weights if name.startswith(prefix)]
                own = {name.removeprefix(prefix): weights[name] for name in names}
                yield run_with(encoder, own, x)

    def _require_fit(self) -> None:
        if not self.n_data:
            raise RuntimeError(
                "This LaplaceAE is not fitted. Call la.fit(loader) first."
            )
