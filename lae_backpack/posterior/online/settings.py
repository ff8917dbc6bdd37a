"""How online training goes about its work, and what it tells."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lae_backpack.posterior.choices import require_one_of


@dataclass(frozen=True)
class OnlineSettings:
    """How the precision follows the data.

    Attributes:
        update: ``"additive"`` is the paper's ``(1 - alpha) H + GGN``, which settles at
            ``GGN / alpha``, an effective temperature of alpha; ``"ema"`` is the convex
            ``(1 - alpha) H + alpha GGN``.
        alpha: How fast the past is forgotten.
        n_samples: Networks sampled for each step.
        warmup_steps: Steps at the mean weights before sampling starts, while the
            precision builds up: at a precision of nothing but the prior, sampled
            networks know nothing. ``None`` takes ``1 / alpha`` steps, or a tenth of the
            run if that is less.
        refresh_every: Steps between two looks at the curvature, each of which then
            stands for all of them.
        curvature_at: ``"sample"`` shares the forward pass of the gradient;
            ``"mean"`` linearises at the mean weights, in a pass of its own.
        antithetic: Every other network mirrors the one before at the mean, which
            halves the cost of randomness and takes noise out of the gradients.
        initial_precision: What H starts from; ``None`` goes on from what it is.
        curvature_factor: Multiplies the GGN.
    """

    update: Literal["additive", "ema"] = "additive"
    alpha: float = 1e-3
    n_samples: int = 1
    warmup_steps: int | None = None
    refresh_every: int = 1
    curvature_at: Literal["sample", "mean"] = "sample"
    antithetic: bool = True
    initial_precision: float | None = None
    curvature_factor: float = 1.0

    def __post_init__(self) -> None:
        """Refuse settings that make no sense.

        Raises:
            ValueError: If one does.
        """
        for name, kind in (
            ("alpha", float),
            ("n_samples", int),
            ("warmup_steps", int),
            ("refresh_every", int),
            ("initial_precision", float),
            ("curvature_factor", float),
        ):  # checkpoints hold plain numbers, not numpy's
            if getattr(self, name) is not None:
                object.__setattr__(self, name, kind(getattr(self, name)))
        require_one_of("update", self.update, ("additive", "ema"))
        require_one_of("curvature_at", self.curvature_at, ("sample", "mean"))
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be within [0, 1], got {self.alpha}.")
        for name, least in (
            ("n_samples", 1),
            ("warmup_steps", 0),
            ("refresh_every", 1),
            ("initial_precision", 0),
            ("curvature_factor", 0),
        ):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ValueError(f"{name} must be at least {least}, got {value}.")

    @classmethod
    def published(cls, n_data: int) -> OnlineSettings:
        """What the published code does where it departs from its paper.

        H starts at the number of data instead of nothing, the GGN is halved, the
        curvature is that of the sampled network, and nothing warms up.

        Args:
            n_data: How much data there is.

        Returns:
            Settings for a comparison.
        """
        return cls(
            curvature_at="sample",
            warmup_steps=0,
            antithetic=False,
            initial_precision=float(n_data),
            curvature_factor=0.5,
        )

    def warmup_steps_of(self, n_steps: int) -> int:
        """How many steps of a run are at the mean weights.

        Args:
            n_steps: The steps of the run.

        Returns:
            The number that was given, or the default.
        """
        if self.warmup_steps is not None:
            return self.warmup_steps
        tenth = n_steps // 10
        return min(tenth, round(1 / self.alpha)) if self.alpha else tenth

    @property
    def decay(self) -> float:
        """How much of H is left after a look at the curvature."""
        return (1 - self.alpha) ** self.refresh_every

    @property
    def gain(self) -> float:
        """How much of the data's GGN is added by one look at the curvature."""
        steps = (1 - self.decay) / self.alpha if self.alpha else self.refresh_every
        weight = self.alpha if self.update == "ema" else 1.0
        return weight * steps * self.curvature_factor


@dataclass
class History:
    """What one watches.

    Attributes:
        losses: The loss per sample of each step: the squared error summed over pixels,
            or the cross entropy.
        validation: The same over the validation data after each epoch.
        epochs: How many epochs are done.
        best_epoch: The epoch with the lowest validation loss, counted from 1.
        stopped_early: Whether the validation loss had stopped falling.
    """

    losses: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    epochs: int = 0
    best_epoch: int = 0
    stopped_early: bool = False
