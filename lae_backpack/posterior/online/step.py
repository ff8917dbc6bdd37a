"""One step: a gradient at sampled weights, and a look at the curvature."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from lae_backpack.posterior import distributed
from lae_backpack.posterior.finite import (
    first_layer_not_finite,
    first_not_finite,
    stop_message,
)
from lae_backpack.posterior.online.noisy_copy import NoisyCopy
from lae_backpack.posterior.online.settings import OnlineSettings
from lae_backpack.posterior.sampling import summing_dtype

if TYPE_CHECKING:
    from lae_backpack.posterior.autoencoder import LaplaceAE

Rows = list[dict[str, Tensor]]


class Taken(NamedTuple):
    """What a step was like, on all ranks.

    Attributes:
        loss: The loss per sample of the sampled networks.
        n_rows: The samples of the batch.
        n_outputs: The outputs of each.
    """

    loss: float
    n_rows: int
    n_outputs: int


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
        self._n_data, self._warmup_steps = n_data, warmup_steps
        self._seed = distributed.own_seed(seed)
        self._copy = NoisyCopy(la, self._seed, settings.antithetic)
        named = self._copy.model.named_parameters()
        self._names = [name for name, param in named if param.requires_grad]
        # Looks alternate between two buffers; an H that users may hold is in neither.
        dtype = summing_dtype(la.H.dtype)
        self._looks = la.looks.to(dtype, copy=True)
        self._spare = torch.empty_like(self._looks)
        self._generator = torch.Generator(la.H.device)

    def __call__(self, x: Tensor | None, number: int) -> Taken | None:
        """Do one step, together with other ranks if there are any.

        Args:
            x: A batch, or ``None`` if this rank has no more.  # [N, *in]
            number: The step's number, from 0.

        Returns:
            What it was like, or ``None`` if no rank had a batch.
        """
        refreshes = number % self._settings.refresh_every == 0
        loss, looks = 0.0, []
        if x is not None:
            loss, looks = self._look_at(x, number, refreshes)
        own = (0, 0) if x is None else (len(x), x.numel())
        n_rows, n_pixels = distributed.meet(*own)
        if not n_rows:
            return None
        summed = self._next_looks(looks, n_rows) if refreshes else None
        loss = self._add_up_ranks(loss, own[0] / n_rows, summed)
        if summed is not None:
            self._require_finite_looks(number)
        self._require_finite_gradients(number)
        self._optimizer.zero_grad(set_to_none=True)  # also of what it holds besides
        for param, noisy in zip(self._la.params, self._copy.params, strict=True):
            param.grad = noisy.grad
        self._optimizer.step()
        if summed is not None:
            self._looks, self._spare = summed, self._looks
            self._la.take_looks(summed)
        taken = Taken(loss, n_rows, n_pixels // n_rows)
        if self._la.learns_noise:
            self._follow_noise(loss / taken.n_outputs, number)
        return taken

    def _look_at(
        self, x: Tensor, number: int, refreshes: bool
    ) -> tuple[float, list[Rows]]:
        shares_pass = refreshes and self._settings.curvature_at == "sample"
        loss, looks = self._gradients(x, number, shares_pass)
        if refreshes and not shares_pass:
            self._copy.be_mean()
            looks = [self._look(x, None, number)[1]]
        return loss, looks

    def _add_up_ranks(self, loss: float, share: float, looks: Tensor | None) -> float:
        """Make gradients, looks and loss those of all ranks' batches.

        Nothing may fail between the ranks' meeting and this.

        Args:
            loss: Of this rank's batch.
            share: How much of all rows this rank has.
            looks: Ready to be added.

        Returns:
            The loss.
        """
        if distributed.n_ranks() == 1:
            return loss
        if not share:
            self._copy.forget_gradients()
        for param in self._copy.params:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            param.grad.mul_(share)
        total = self._spare.new_tensor(share * loss)
        gradients = [
            param.grad for param in self._copy.params if param.grad is not None
        ]
        distributed.sum_of_met([*gradients, total, *([] if looks is None else [looks])])
        return total.item()

    def _gradients(
        self, x: Tensor, number: int, shares_pass: bool
    ) -> tuple[float, list[Rows]]:
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

    def _look(self, x: Tensor, scale: float | None, number: int) -> tuple[Tensor, Rows]:
        # As the weights' noise, a function of the seed and a number alone.
        self._generator.manual_seed(self._seed + number)
        model = self._copy.model
        return self._la.backend.sweep(model, x, x, scale, self._generator)

    def _next_looks(self, looks: list[Rows], n_rows: int) -> Tensor:
        """Compute what the next H is estimated from; of several ranks, their parts.

        Returns:
            The spare buffer with it.
        """
        share = n_rows / self._n_data / self._la.backend.factor * len(looks)
        # The past is on all ranks, and counts once.
        decay = self._settings.decay if distributed.rank() == 0 else 0.0
        torch.mul(self._looks, decay, out=self._spare)
        for look in looks:
            weight = self._settings.gain / share
            self._la.backend.add_rows(self._spare, look, weight)
        return self._spare

    def _spare_parts(self) -> tuple[Tensor, ...]:
        return self._spare.split([param.numel() for param in self._la.params], 1)

    def _require_finite_looks(self, number: int) -> None:
        if first_not_finite([("", self._spare)]) is not None:
            # What travels backwards goes wrong in the last layer first.
            parts = reversed(self._spare_parts())
            layer = first_not_finite(zip(reversed(self._names), parts, strict=True))
            raise FloatingPointError(stop_message("precision", layer or "", number))

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
