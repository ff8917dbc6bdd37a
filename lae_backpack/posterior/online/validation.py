"""The loss that tells whether training still helps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lae_backpack.posterior import distributed
from lae_backpack.posterior.online.noisy_copy import NoisyCopy
from lae_backpack.posterior.sampling import evaluating

if TYPE_CHECKING:
    from lae_backpack.posterior.autoencoder import LaplaceAE


class SampledLoss:
    """The loss of sampled networks, with the same noise each time it is computed."""

    def __init__(self, la: LaplaceAE, seed: int, antithetic: bool, samples: bool):
        """Take the posterior as it is now.

        Args:
            la: The posterior.
            seed: The run's.
            antithetic: Mirror every other network.
            samples: Whether there are any; otherwise it is the mean weights' loss.
        """
        self._lossfunc, self._samples = la.backend.lossfunc, samples
        self._copy = NoisyCopy(la, distributed.own_seed(seed - 1), antithetic)
        self._copy.follow_precision()

    @torch.no_grad()
    def __call__(self, x: Tensor, number: int) -> float:
        """The loss of a batch.

        Args:
            x: The batch.  # [N, *in]
            number: Its number, from 0.

        Returns:
            The loss, summed over samples.
        """
        if self._samples:
            self._copy.draw(-number)
        with evaluating(self._copy.model):
            return self._lossfunc(self._copy.model(x), x).item()
