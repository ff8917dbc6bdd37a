"""Whether blocks fit into memory, before anything is computed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from lae_backpack.posterior.layers import Layer

MEMINFO = Path("/proc/meminfo")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def bytes_needed(layers: Sequence[Layer], itemsize: int) -> int:
    """The most that a fit, samples and the evidence hold of blocks at one time.

    Three matrices of all blocks: the curvature, that of a batch, and what was fitted
    before, should the fit fail. Samples need two, the curvature and its root. On top,
    three more of the largest layer: what factorising it takes on the way.

    Args:
        layers: The layers.
        itemsize: The bytes of a number.

    Returns:
        The bytes.
    """
    squares = [layer.size**2 for layer in layers]
    return itemsize * (3 * sum(squares) + 3 * max(squares, default=0))


def batch_bytes(n_samples: int, width: int, itemsize: int) -> int:
    """The most that a batch carries through the net.

    Two sets of columns at a layer's output, two at its input, and as much while they
    are made.

    Args:
        n_samples: The size of the batch.
        width: The most features that carry a matrix.
        itemsize: The bytes of a number.

    Returns:
        The bytes.
    """
    return itemsize * 6 * n_samples * width**2


def available_bytes(device: torch.device) -> float:
    """The memory that is left.

    Args:
        device: Where.

    Returns:
        The bytes; infinite where the system does not tell.
    """
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(
            device
        )
        return torch.cuda.mem_get_info(device)[0] + cached
    limits = [_available_to_all()]
    if CGROUP_LIMIT.exists():  # a container's
        given = CGROUP_LIMIT.read_text().strip()
        limits += [float(given)] if given.isdecimal() else []
    return min(limits)


def _available_to_all() -> float:
    if MEMINFO.exists():
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:  # other systems tell how much there is at least
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return float("inf")


def require_memory(layers: Sequence[Layer], itemsize: int, limit: float) -> None:
    """Refuse blocks that do not fit.

    Args:
        layers: The layers.
        itemsize: The bytes of a number.
        limit: The bytes there are.

    Raises:
        MemoryError: If more would be needed.
    """
    needed = bytes_needed(layers, itemsize)
    if needed <= limit:
        return
    largest = max(layers, key=lambda layer: layer.size)
    raise MemoryError(
        f"hessian_structure='block_diag' needs {in_words(needed)} ({needed} bytes), "
        f"got a limit of {in_words(limit)}. The largest layer {largest.name!r} has "
        f"{largest.size} parameters, and its block that many rows and columns. Use "
        "hessian_structure='mixed_diag' or 'approx_diag', freeze layers with "
        "requires_grad_(False), or pass backend_kwargs={'max_memory': bytes} if there "
        "is more memory than that."
    )


def require_memory_for_batch(
    layers: Sequence[Layer], n_samples: int, width: int, itemsize: int, limit: float
) -> None:
    """Refuse a batch whose matrices do not fit beside the blocks.

    Args:
        layers: The layers.
        n_samples: The size of the batch.
        width: The most features that carry a matrix.
        itemsize: The bytes of a number.
        limit: The bytes there are.

    Raises:
        MemoryError: If more would be needed.
    """
    left = limit - bytes_needed(layers, itemsize)
    needed = batch_bytes(n_samples, width, itemsize)
    if needed <= left:
        return
    fitting = int(max(0, left) // batch_bytes(1, width, itemsize))
    smaller = f"a batch size of at most {fitting}, " if fitting else ""
    raise MemoryError(
        f"hessian_structure='block_diag' needs {in_words(needed)} for a batch of "
        f"{n_samples} samples, each with matrices of {width} x {width} numbers, got "
        f"{in_words(max(0, left))} beside the blocks. Use {smaller}hessian_structure="
        "'mixed_diag' or 'approx_diag', or pass backend_kwargs={'max_memory': bytes} "
        "if there is more memory than that."
    )


def in_words(count: float) -> str:
    """Tell a size.

    Args:
        count: The bytes.

    Returns:
        The size in a unit that people read.
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.1f} {unit}"
