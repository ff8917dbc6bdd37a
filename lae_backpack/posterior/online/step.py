"""One step: a gradient at sampled weights, and a look at the curvature."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lae_backpack.curvature.quantities import features
from lae_backpack.posterior.online.finite import (
    first_layer_not_finite,
    first_not_finite,
    stop_message,
)
from lae_backpack.posterior.online.noisy_copy import NoisyCopy
from lae_backpack.posterior.online.settings import OnlineSettings

if TYPE_CHECKING:
    from lae_backpack.posterior.autoencoder import LaplaceAE

Curvature = dict[str, Tensor]


class EMStep:
    """Moves mean and precision together.

    Sampled weights live in a copy. A step is applied only if all of it is finite.
    """

    def __init__(
        self,
        la: LaplaceAE,
        optimizer: torch.optim.Optimizer,
        settings: OnlineSettings,
        n_data: int,
        warmup_steps: int,
        seed: int,
    ) -> None:
        """Copy the model and prepare the buffers.

        Args:
            la: The posterior, whose mean is trained.
            optimizer: Moves the mean.
            settings: How the precision follows.
            n_data: How much data an epoch has.
            warmup_steps: Steps at the mean weights.
            seed: Where the weights' noise comes from.
        """
        self._la, self._optimizer, self._settings = la, optimizer, settings
        self._n_data, self._warmup_steps, self._seed = n_data, warmup_steps, seed
        self._copy = NoisyCopy(la, seed, settings.antithetic)
        named = self._copy.model.named_parameters()
        self._names = [name for name, param in named if param.requires_grad]
        # Looks alternate between two buffers; an H that users may hold is in neither.
        self._looks, self._spare = la.looks.clone(), torch.empty_like(la.looks)
        self._generator = torch.Generator(la.H.device)

    def __call__(self, x: Tensor, number: int) -> float:
        """Do one step.

        Args:
            x: A batch.  # [N, *in]
            number: The step's number, from 0.

        Returns:
            The loss per sample of the sampled networks.
        """
        settings = self._settings
        refreshes = number % settings.refresh_every == 0
        shares_pass = refreshes and settings.curvature_at == "sample"
        loss, looks = self._gradients(x, number, shares_pass)
        if refreshes and not shares_pass:
            self._copy.be_mean()
            looks = [self._look(x, None, number)[1]]
        summed = self._next_looks(looks, x, number) if refreshes else None

        self._require_finite_gradients(number)
        self._optimizer.zero_grad(set_to_none=True)  # also of what it holds besides
        for param, noisy in zip(self._la.params, self._copy.params, strict=True):
            param.grad = noisy.grad
        self._optimizer.step()
        if summed is not None:
            self._looks, self._spare = summed, self._looks
            self._la.take_looks(summed)
        if self._la.learns_noise:
            self._follow_noise(loss / features(x), number)
        return loss

    def _gradients(
        self, x: Tensor, number: int, shares_pass: bool
    ) -> tuple[float, list[Curvature]]:
        """Gradients into the copy, averaged over networks.

        Returns:
            The loss per sample, and each network's curvature if wanted.

        Raises:
            FloatingPointError: If a loss is not finite.
        """
        copy, lossfunc = self._copy, self._la.backend.lossfunc
        samples = number >= self._warmup_steps
        n_samples = self._settings.n_samples if samples else 1
        scale = 1 / (n_samples * len(x))
        copy.forget_gradients()
        copy.follow_precision()
        total, looks = 0.0, []
        for i in range(n_samples):
            if samples:
                copy.draw(number * n_samples + i)
            else:
                copy.be_mean()
            if shares_pass:
                loss, look = self._look(x, scale, number * n_samples + i)
                looks.append(look)
            else:
                loss = lossfunc(copy.model(x), x)
                torch.autograd.backward(loss, torch.full_like(loss, scale))
            total += scale * loss.item()
            if not torch.isfinite(loss):
                layer = first_layer_not_finite(copy.model, x)
                raise FloatingPointError(stop_message("loss", layer, number))
        return total, looks

    def _look(
        self, x: Tensor, scale: float | None, number: int
    ) -> tuple[Tensor, Curvature]:
        # As the weights' noise, a function of the seed and a number alone.
        self._generator.manual_seed(self._seed + number)
        model = self._copy.model
        return self._la.backend.sweep(model, x, x, scale, self._generator)

    def _next_looks(self, looks: list[Curvature], x: Tensor, number: int) -> Tensor:
        """Compute what the next H is estimated from.

        Returns:
            The spare buffer with it.

        Raises:
            FloatingPointError: If it is not finite.
        """
        share = len(x) / self._n_data / self._la.backend.factor * len(looks)
        parts = self._spare.split([param.numel() for param in self._la.params], 1)
        torch.mul(self._looks, self._settings.decay, out=self._spare)
        for look in looks:
            for name, part in zip(self._names, parts, strict=True):
                if name in look:  # the model may not use a parameter at all
                    weight = self._settings.gain / share
                    part.add_(look[name].reshape(part.shape), alpha=weight)
        if first_not_finite([("", self._spare)]) is not None:
            # What travels backwards goes wrong in the last layer first.
            named = zip(reversed(self._names), reversed(parts), strict=True)
            layer = first_not_finite(named) or ""
            raise FloatingPointError(stop_message("precision", layer, number))
        return self._spare

    def _require_finite_gradients(self, number: int) -> None:
        gradients = [
            (name, param.grad)
            for name, param in zip(self._names, self._copy.params, strict=True)
            if param.grad is not None
        ]
        layer = first_not_finite(reversed(gradients))
        if layer is not None:
            raise FloatingPointError(stop_message("gradient", layer, number))

    def _follow_noise(self, squared_error: float, number: int) -> None:
        # The M-step's variance is the mean squared error, here with a memory.
        rate = max(1 / (number + 1), self._settings.alpha)
        variance = torch.as_tensor(self._la.sigma_noise).square()
        variance = variance + rate * (squared_error - variance)
        least = torch.finfo(variance.dtype).eps
        self._la.sigma_noise = variance.sqrt().clamp_min(least)
