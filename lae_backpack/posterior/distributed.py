"""One posterior on several processes, which ``torch.distributed`` connects.

Every rank holds the same posterior and its own part of the data. Nothing here does
anything in a single process.

A rank that fails must not leave the others waiting. So ranks exchange nothing without
``meet``, which is the same for all exchanges: a rank that has failed meets the others
once more, wherever they are, and all of them stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module

Value = TypeVar("Value")
# Tensors of fewer numbers travel together: each journey has a latency.
SMALL = 2**20
# Between the seeds of ranks. CPU generators use 32 bits of a seed, so this must be far
# below 2**32; each 16 steps take the next seed, so ranks meet after 16 million steps.
SEEDS_PER_RANK = 2**20

_alone: ContextVar[bool] = ContextVar("_alone", default=False)
_fails_together: ContextVar[bool] = ContextVar("_fails_together", default=False)


class RankFailedError(RuntimeError):
    """Another process has failed, so this one cannot go on."""


def n_ranks() -> int:
    """How many processes share a posterior.

    Returns:
        Their number; 1 without ``torch.distributed.init_process_group``.
    """
    if _alone.get() or not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size()


def rank() -> int:
    """Which of the processes this is.

    Returns:
        Its number, from 0.
    """
    return dist.get_rank() if n_ranks() > 1 else 0


@contextmanager
def alone() -> Iterator[None]:
    """Fit in this process as if there were no others.

    Yields:
        Nothing; in the block, other ranks do not count.
    """
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def meet(*numbers: int) -> list[int]:
    """Wait for all ranks, and add up numbers.

    Args:
        *numbers: At most two.

    Returns:
        Their sums over ranks.
    """
    return list(numbers) if n_ranks() == 1 else _meet(numbers, None)


@contextmanager
def failing_together() -> Iterator[None]:
    """Let no rank wait for one that fails in the block.

    Yields:
        Nothing; in the block, ranks meet equally often.

    Raises:
        RankFailedError: If another rank has failed.
    """
    if n_ranks() == 1 or _fails_together.get():
        yield
        return
    token = _fails_together.set(True)
    try:
        yield
    except RankFailedError:
        raise  # all ranks know
    except BaseException as error:
        _meet((), error)
        raise
    else:
        _meet((), None)
    finally:
        _fails_together.reset(token)


def add_up(tensors: Sequence[Tensor], *numbers: int) -> list[int]:
    """Sum tensors over ranks, in place; all ranks get bit by bit the same.

    Args:
        tensors: Contiguous ones, of the same shapes and dtypes on all ranks.
        *numbers: As for ``meet``. If all sums are 0, tensors are left alone.

    Returns:
        The numbers' sums over ranks.
    """
    if n_ranks() == 1:
        return list(numbers)
    sums = _meet(numbers, None)
    if not numbers or any(sums):
        sum_of_met(tensors)
    return sums


def sum_of_met(tensors: Sequence[Tensor]) -> None:
    """As ``add_up``, on ranks that have met and could not fail since.

    Args:
        tensors: As for ``add_up``.
    """
    together: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() < SMALL:
            together.setdefault(tensor.dtype, []).append(tensor)
        else:
            _travel(dist.all_reduce, tensor)
    for small in together.values():
        joint = torch.cat([tensor.reshape(-1) for tensor in small])
        _travel(dist.all_reduce, joint)
        parts = joint.split([tensor.numel() for tensor in small])
        for tensor, part in zip(small, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def as_long_as_others(batches: Iterable[Value]) -> Iterator[Value | None]:
    """Go on when a rank has no more batches, because others may have.

    Args:
        batches: This rank's.

    Yields:
        Its batches; if there are other ranks, then ``None`` for ever.
    """
    yield from batches
    while n_ranks() > 1:
        yield None


def gathered(value: Value) -> list[Value]:
    """What all ranks have.

    Args:
        value: What this rank has; anything that can be pickled.

    Returns:
        The values in the order of ranks.
    """
    if n_ranks() == 1:
        return [value]
    _meet((), None)
    values: list[Any] = [None] * n_ranks()
    _travel(dist.all_gather_object, values, value)
    return values


def of_rank_zero(make: Callable[[], Value]) -> Value:
    """What only rank 0 can make or read.

    Args:
        make: Called on rank 0.

    Returns:
        What it gave there.
    """
    if n_ranks() == 1:
        return make()
    values: list[Any] = [make() if rank() == 0 else None]
    _meet((), None)
    _travel(dist.broadcast_object_list, values)
    return values[0]


def take_buffers_of_rank_zero(model: Module) -> None:
    """Give all ranks the same running statistics, as DistributedDataParallel does.

    Args:
        model: The model.
    """
    if n_ranks() > 1:
        _meet((), None)
        for buffer in model.buffers():
            _travel(dist.broadcast, buffer, 0)


def own_seed(seed: int) -> int:
    """A seed of this rank's own.

    Args:
        seed: The one that all ranks have.

    Returns:
        The same on rank 0, others elsewhere.
    """
    return seed + rank() * SEEDS_PER_RANK


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Let ranks that started from the same seed draw differently.

    Args:
        device: Where they draw.

    Yields:
        Nothing; rank 0 draws as it would without.
    """
    if rank() == 0:
        yield
        return
    seed = own_seed(int(torch.randint(2**31, ())))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _meet(numbers: Sequence[int], error: BaseException | None) -> list[int]:
    """Add up numbers, and hear whether a rank has failed.

    Returns:
        The sums.

    Raises:
        RankFailedError: If another rank has failed, and this one has not.
    """
    assert len(numbers) <= 2
    padded = [*numbers, 0, 0][:2]
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    told = torch.tensor([error is not None, *padded], device=device, dtype=torch.int64)
    _travel(dist.all_reduce, told)
    n_failed, *sums = told.tolist()
    if n_failed:
        messages: list[Any] = [None] * n_ranks()
        own = None if error is None else f"{type(error).__name__}: {error}"
        _travel(dist.all_gather_object, messages, own)
        if error is None:
            told_by = [f"rank {i}: {text}" for i, text in enumerate(messages) if text]
            raise RankFailedError(
                f"Stopped, because {n_failed} of {n_ranks()} ranks failed. "
                + " | ".join(told_by)
            )
    return sums[: len(numbers)]


def _travel(exchange: Callable[..., Any], *args: Any) -> None:
    """Exchange something with other ranks.

    Raises:
        RankFailedError: If one does not answer.
    """
    try:
        exchange(*args)
    except RuntimeError as error:
        raise RankFailedError(
            f"Rank {dist.get_rank()} of {dist.get_world_size()} has lost another rank: "
            "it has died, is stuck, or does something else. Look for the first error "
            "among all ranks. Only some ranks fitting on purpose need "
            "lae_backpack.posterior.distributed.alone(). "
            f"{type(error).__name__}: {error}"
        ) from error
