"""Fitting post hoc on several ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lae_backpack.posterior import distributed
from lae_backpack.posterior.batches import NO_BATCH
from lae_backpack.posterior.rank_checks import require_same_posterior
from lae_backpack.posterior.sampling import as_vector, summing_dtype
from lae_backpack.posterior.shards import Shard, n_own_samples


class SharedFit:
    """Adds up what ranks see; in a single process it does nothing.

    A mixin before one of laplace-torch's classes. It is none of them itself, so that
    laplace-torch does not take it for a structure.
    """

    def fit(
        self: Any, train_loader: Any, override: bool = True, progress_bar: bool = False
    ) -> None:
        """Fit to this rank's data, and add what other ranks have seen.

        Args:
            train_loader: The data of this rank; samples that a ``DistributedSampler``
                repeats are left out.
            override: Start anew; otherwise add to what was fitted before.
            progress_bar: Show one on rank 0.
        """
        host = partial(_in_summing_dtype, self, super().fit)  # pyright: ignore
        if distributed.n_ranks() == 1:
            host(train_loader, override, progress_bar)
            return
        require_same_posterior(self)
        shard, anew = Shard(train_loader), starts_anew(override)
        count = 0 if anew else self.n_data
        if n_own_samples(train_loader):
            with distributed.own_randomness(self._device):
                host(shard, anew, progress_bar and distributed.rank() == 0)
        elif anew:  # the host would stumble
            self._init_H()
            self.loss = 0.0
        self.mean = as_vector(self.params)
        tensors, count = self._tensors_to_add_up(), count + shard.n_seen
        self.loss, self.n_data = seen_by_all(self, self.loss, tensors, count)

    _is_summing = False  # H is in a dtype that sums can be made in

    def _tensors_to_add_up(self: Any) -> list[Tensor]:
        return [self.H]


def _in_summing_dtype(
    la: Any, fit: Callable[..., None], loader: Any, override: bool, progress_bar: bool
) -> None:
    if not isinstance(la.H, Tensor):
        fit(loader, override, progress_bar)
        return
    if not override:
        la.H = la.H.to(summing_dtype(la.H.dtype))
    la._is_summing = True
    try:
        fit(loader, override, progress_bar)
    finally:
        la._is_summing = False
    la.H = la.H.to(la._dtype)


def seen_by_all(
    la: Any, loss: Tensor | float, tensors: Sequence[Tensor], count: int
) -> tuple[Tensor | float, int]:
    """Add up what ranks have seen, in place, and how many outputs there are.

    Args:
        la: The posterior.
        loss: The loss of this rank's data.
        tensors: What its curvature is made of; contiguous.
        count: The samples.

    Returns:
        Loss and count of all ranks.

    Raises:
        ValueError: If no rank has data.
    """
    if distributed.n_ranks() == 1:
        return loss, count
    loss = torch.as_tensor(loss).to(tensors[0]).clone()
    (count,) = distributed.add_up([loss, *tensors], count)
    if not count:
        raise ValueError(NO_BATCH)
    la.backend.n_outputs = max(distributed.gathered(la.backend.n_outputs))
    return loss, count


def starts_anew(override: bool) -> bool:
    """Whether this rank starts from nothing.

    Args:
        override: Whether all of them do.

    Returns:
        False on one rank at most: what was fitted before is on all, and counts once.
    """
    return override or distributed.rank() > 0
