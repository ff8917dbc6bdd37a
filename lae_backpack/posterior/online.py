"""Monte-Carlo EM: train the mean under sampled weights, and track the curvature."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector
from tqdm import tqdm

from lae_backpack.posterior.batches import checked_batches
from lae_backpack.posterior.sampling import Weights, WeightSampler, run_with

if TYPE_CHECKING:
    from lae_backpack.posterior.autoencoder import LaplaceAE

Update = Literal["additive", "ema"]


@dataclass(frozen=True)
class OnlineSettings:
    """How the precision follows the data.

    Attributes:
        update: ``"additive"`` is the paper's ``(1 - alpha) H + GGN``, which settles at
            ``GGN / alpha``, an effective temperature of alpha; ``"ema"`` is the convex
            ``(1 - alpha) H + alpha GGN``.
        alpha: How fast the past is forgotten.
        n_samples: Networks sampled for each step.
        warmup_steps: Steps at the mean weights before sampling starts.
        refresh_every: Steps between two looks at the curvature.
    """

    update: Update = "additive"
    alpha: float = 1e-3
    n_samples: int = 1
    warmup_steps: int = 0
    refresh_every: int = 1

    def __post_init__(self) -> None:
        """Refuse settings that make no sense.

        Raises:
            ValueError: If one does.
        """
        if self.update not in ("additive", "ema"):
            raise ValueError(
                f"update must be 'additive' or 'ema', got {self.update!r}."
            )
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be within [0, 1], got {self.alpha}.")
        for name, least in (
            ("n_samples", 1),
            ("warmup_steps", 0),
            ("refresh_every", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(
                    f"{name} must be at least {least}, got {getattr(self, name)}."
                )


@dataclass
class History:
    """What one watches.

    Attributes:
        losses: The loss per sample, of each step.
        epochs: How many epochs are done.
    """

    losses: list[float] = field(default_factory=list)
    epochs: int = 0


def updated_precision(
    precision: Tensor, batch: Tensor, share: float, settings: OnlineSettings
) -> Tensor:
    """One step of the precision.

    Args:
        precision: H so far.  # [P]
        batch: The curvature of a batch.  # [P]
        share: How much of the data the batch is.
        settings: How to go on.

    Returns:
        The new H.  # [P]
    """
    weight = settings.alpha if settings.update == "ema" else 1.0
    return (1 - settings.alpha) * precision + weight / share * batch


def train(
    la: LaplaceAE,
    loader: Iterable[object],
    n_data: int,
    n_epochs: int,
    settings: OnlineSettings,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator | None,
    progress_bar: bool,
    callbacks: Iterable[Callable[[LaplaceAE, History], None]],
) -> History:
    """Run the loop.

    Sampled weights never enter the model: gradients are taken at them by
    ``functional_call`` and applied to the mean, which is in the model at every moment.

    Args:
        la: The posterior, whose mean is trained.
        loader: Yields ``x``, ``(x,)`` or ``(x, label)``.
        n_data: The number of samples in an epoch.
        n_epochs: How many epochs.
        settings: How the precision follows.
        optimizer: Moves the mean.
        generator: Where randomness comes from.
        progress_bar: Show one.
        callbacks: Called after each epoch.

    Returns:
        The history.

    Raises:
        FloatingPointError: If a loss or a precision is not finite; the last good state
            is kept.
    """
    history = History()
    for epoch in range(n_epochs):
        bar = tqdm(
            checked_batches(loader, la.model),
            desc=f"epoch {epoch + 1}/{n_epochs}",
            disable=not progress_bar,
        )
        for x in bar:
            step = len(history.losses)
            loss = _gradient_step(la, x, settings, optimizer, step, generator)
            if step % settings.refresh_every == 0:
                _, batch = la.backend.diag(x, x)
                share = len(x) / n_data
                precision = updated_precision(la.H, batch, share, settings)
                if not torch.isfinite(precision).all():
                    raise FloatingPointError(
                        f"The precision is not finite at step {step}. Lower the "
                        "learning rate, or look at the data of that step."
                    )
                la.H = precision
            history.losses.append(loss)
            bar.set_postfix(loss=f"{loss:.4g}")
        history.epochs += 1
        for callback in callbacks:
            callback(la, history)
    return history


def _gradient_step(
    la: LaplaceAE,
    x: Tensor,
    settings: OnlineSettings,
    optimizer: torch.optim.Optimizer,
    step: int,
    generator: torch.Generator | None,
) -> float:
    mean = parameters_to_vector(la.params).detach()
    la.mean = mean
    scale = la.posterior_scale
    if step < settings.warmup_steps:
        scale = torch.zeros_like(scale)
    sampler = WeightSampler(la.model, mean, scale)
    optimizer.zero_grad()
    total = 0.0
    for _ in range(settings.n_samples):
        weights = _leaves(sampler.draw(generator))
        loss = la.backend.lossfunc(run_with(la.model, weights, x), x) / len(x)
        if not torch.isfinite(loss):
            raise FloatingPointError(
                f"The loss is not finite at step {step}. Lower the learning rate, or "
                "look at the data of that step."
            )
        gradients = torch.autograd.grad(loss, list(weights.values()))
        for param, gradient in zip(la.params, gradients, strict=True):
            gradient = gradient / settings.n_samples
            param.grad = gradient if param.grad is None else param.grad + gradient
        total += loss.item() / settings.n_samples
    optimizer.step()
    return total


def _leaves(weights: Weights) -> Weights:
    return {name: w.detach().clone().requires_grad_() for name, w in weights.items()}
