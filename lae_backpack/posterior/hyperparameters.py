"""Prior precision, noise and temperature that make a Gaussian."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor


class PositiveHyperparameters:
    """Refuses values that laplace-torch would turn into NaN.

    A mixin before one of laplace-torch's classes. It is none of them itself, so that
    laplace-torch does not take it for a structure.
    """

    @property
    def prior_precision(self) -> Tensor:
        """The precision of the prior: one number, one per tensor or one per weight."""
        return self._of_host("prior_precision").fget(self)

    @prior_precision.setter
    def prior_precision(self, prior_precision: float | Tensor) -> None:
        _require_finite("prior_precision", prior_precision, zero_allowed=True)
        self._of_host("prior_precision").fset(self, prior_precision)

    @property
    def sigma_noise(self) -> Tensor:
        """The standard deviation of the noise."""
        return self._of_host("sigma_noise").fget(self)

    @sigma_noise.setter
    def sigma_noise(self, sigma_noise: float | Tensor) -> None:
        _require_finite("sigma_noise", sigma_noise)
        self._of_host("sigma_noise").fset(self, sigma_noise)

    @property
    def temperature(self) -> float:
        """The temperature of the likelihood."""
        return self._temperature

    @temperature.setter
    def temperature(self, temperature: float) -> None:
        _require_finite("temperature", temperature)
        self._temperature = temperature

    def _of_host(self, name: str) -> Any:
        return getattr(super(PositiveHyperparameters, type(self)), name)


def _require_finite(name: str, value: object, zero_allowed: bool = False) -> None:
    """Refuse numbers that are negative, NaN or infinite; other types are the host's.

    Raises:
        ValueError: If there is one.
    """
    if not isinstance(value, Real | Tensor):
        return
    numbers = torch.as_tensor(value).detach()
    good = numbers.isfinite() & (numbers >= 0 if zero_allowed else numbers > 0)
    if not good.all():
        wrong = numbers[~good].flatten()[0].item()
        bound = "at least 0" if zero_allowed else "above 0"
        raise ValueError(
            f"{name} must be finite and {bound}, got {wrong}. Give a positive number."
        )
