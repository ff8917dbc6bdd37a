"""The part of the data that one rank has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sized
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from lae_backpack.posterior import distributed


class Shard:
    """A rank's loader without the samples that only fill up its part.

    ``DistributedSampler`` and Accelerate repeat samples until all ranks have equally
    many. Counted twice, they would make the posterior too sure.

    Attributes:
        dataset: The loader's dataset, if it has one.
        n_seen: The samples of the last pass.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        """Look for a sampler that repeats samples.

        Args:
            loader: The loader.
        """
        self._loader, self._n_own = loader, _n_own_of(loader)
        self.dataset = getattr(loader, "dataset", None)
        self.n_seen = 0

    def __len__(self) -> int:
        """The batches of the loader.

        Returns:
            Their number.
        """
        assert isinstance(self._loader, Sized)
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Go through the loader.

        Yields:
            Batches, shorter where samples are repeated ones.
        """
        self.n_seen = 0
        own = self._n_own
        for batch in self._loader:
            left = _rows(batch) if own is None else min(_rows(batch), own - self.n_seen)
            if left <= 0:
                continue  # Accelerate's loaders want to be gone through to their end
            self.n_seen += left
            yield batch if left == _rows(batch) else _first(batch, left)


def own_part(loader: Iterable[Any]) -> Iterable[Any]:
    """What a rank shall go through.

    Args:
        loader: Its loader.

    Returns:
        The loader itself in a single process, otherwise a ``Shard``.
    """
    return loader if distributed.n_ranks() == 1 else Shard(loader)


def n_own(sampler: DistributedSampler) -> int:
    """The samples of this rank that no rank has had before.

    Rank r has the places r, r + W, r + 2W, ... of a list of all samples, which starts
    anew at its end.

    Args:
        sampler: The sampler.

    Returns:
        Their number.
    """
    size = min(len(sampler.dataset), sampler.total_size)  # pyright: ignore
    return len(range(sampler.rank, size, sampler.num_replicas))


def n_own_samples(loader: Iterable[Any]) -> int | None:
    """As ``n_samples``, without those that other ranks have, too.

    Args:
        loader: The loader of this rank.

    Returns:
        Their number, or ``None``.
    """
    own = _n_own_of(loader)
    return n_samples(loader) if own is None else own


def n_samples(loader: Iterable[Any]) -> int | None:
    """The samples a loader yields in an epoch, as far as it tells.

    Args:
        loader: The loader.

    Returns:
        Their number, or ``None``.
    """
    # A sampler may leave some of the data out, and may stand below one of batches.
    names = "batch_sampler", "sampler", "dataset"
    holders = [getattr(loader, name, None) for name in names]
    below = [h.sampler for h in holders[:2] if type(h) is BatchSampler]
    found = (h for h in (*below, *holders[1:]) if isinstance(h, Sized))
    return next(map(len, found), None)


def yields_whole_items(loader: Iterable[Any]) -> bool:
    """Whether a loader takes an item of its dataset for a batch.

    Args:
        loader: The loader.

    Returns:
        Whether it does, so that nobody knows how many samples there are.
    """
    return (
        isinstance(loader, DataLoader)
        and loader.batch_sampler is None
        and type(loader.sampler) is not BatchSampler  # others may repeat, or leave out
        and _n_own_of(loader) is None
    )


def n_own_of_accelerate(shard: Any) -> int:
    """As ``n_own``, for Accelerate: ranks take whole batches in turn, or parts of each.

    Args:
        shard: Its ``BatchSamplerShard``.

    Returns:
        Their number.
    """
    inner, n_ranks, rank = shard.batch_sampler, shard.num_processes, shard.process_index
    size, n_data = inner.batch_size, len(inner.sampler)
    sizes = [min(size, n_data - i * size) for i in range(len(inner))]
    if shard.split_batches:
        part = size // n_ranks
        return sum(min(max(rows - rank * part, 0), part) for rows in sizes)
    if inner.drop_last:
        sizes = sizes[: len(sizes) // n_ranks * n_ranks]
    return sum(sizes[rank::n_ranks])


def _n_own_of(loader: object) -> int | None:
    """The samples of this rank that no other has, if its sampler is one we know.

    Returns:
        Their number, or ``None``.

    Raises:
        ValueError: If nobody can know.
    """
    names = {kind.__name__ for kind in type(loader).__mro__}
    if "DataLoaderDispatcher" in names and distributed.n_ranks() > 1:
        raise ValueError(
            "Accelerate's DataLoaderDispatcher repeats samples and does not say which, "
            "so they would count twice. Use DataLoaderConfiguration(dispatch_batches="
            "False), or a dataset with a length."
        )
    sampler = _distributed_sampler(loader)
    if sampler is not None:
        return n_own(sampler)
    for name in ("batch_sampler", "sampler"):
        shard = getattr(loader, name, None)
        # By its name: importing Accelerate takes long.
        if type(shard).__name__ == "BatchSamplerShard":
            if isinstance(getattr(shard, "batch_sampler", None), BatchSampler):
                return n_own_of_accelerate(shard)
    return None


def _distributed_sampler(loader: object) -> DistributedSampler | None:
    above = (getattr(loader, name, None) for name in ("batch_sampler", "sampler"))
    holders = [loader, *(one for one in above if isinstance(one, BatchSampler))]
    samplers = (getattr(holder, "sampler", None) for holder in holders)
    return next((s for s in samplers if isinstance(s, DistributedSampler)), None)


def _rows(batch: Any) -> int:
    if isinstance(batch, MutableMapping):
        return next(len(v) for v in batch.values() if isinstance(v, Tensor))
    return len(batch[0] if isinstance(batch, tuple | list) else batch)


def _first(batch: Any, n_rows: int) -> Any:
    if isinstance(batch, MutableMapping):
        return {name: value[:n_rows] for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return [part[:n_rows] for part in batch]
    return batch[:n_rows]
