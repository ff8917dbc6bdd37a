"""Statistics of streams of networks, in memory that does not grow with them."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class LogMean:
    """The log of the mean of a stream of densities."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._count = 0
        self._total: Tensor | None = None

    def add(self, log_density: Tensor) -> None:
        """Take in one more.

        Args:
            log_density: Its logs.  # [N]
        """
        self._count += 1
        if self._total is None:
            self._total = log_density
        else:
            self._total = torch.logaddexp(self._total, log_density)

    def result(self) -> Tensor:
        """The log of the mean so far.

        Returns:
            One number for each image.  # [N]
        """
        assert self._total is not None, "nothing was added"
        return self._total - math.log(self._count)


class Covariance:
    """Covariance of two streams of tensors, element by element.

    Of the mean and the natural parameter of an exponential family it is the mean
    divergence between two different members: the other terms cancel in pairs.
    """

    def __init__(self) -> None:
        """Start with nothing."""
        self._count = 0
        self._first: Tensor | None = None
        self._second: Tensor | None = None
        self._products: Tensor | None = None

    def add(self, first: Tensor, second: Tensor) -> None:
        """Take in one more of each.

        Args:
            first: Of the one stream.  # [N, *out]
            second: Of the other.  # [N, *out]
        """
        if self._first is None or self._second is None or self._products is None:
            self._first, self._second, self._products = (
                torch.zeros_like(first) for _ in range(3)
            )
        self._count += 1
        before = first - self._first
        self._first += before / self._count
        self._second += (second - self._second) / self._count
        self._products += before * (second - self._second)

    def result(self) -> Tensor:
        """The unbiased covariance, zero after one.

        Returns:
            One number for each element.  # [N, *out]
        """
        assert self._products is not None, "nothing was added"
        return self._products / max(1, self._count - 1)
