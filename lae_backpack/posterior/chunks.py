"""Large batches in chunks, so that memory does not grow with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from lae_backpack.posterior.choices import require_at_least_one

# What the inputs or outputs of a chunk take at most when nobody says otherwise.
AUTOMATIC_BYTES = 2**24

Batch: TypeAlias = "Tensor | MutableMapping[str, Any]"  # [N, *in], or a dict of such
Pieces = Iterable[Tensor]  # one network's outputs for all chunks, in order


def chunks_of(
    x: Batch, chunk_size: int | None = None, n_outputs: int = 0
) -> tuple[Batch, ...]:
    """Cut a batch; one that is not a tensor stays whole.

    Args:
        x: A batch.  # [N, *in]
        chunk_size: Samples in a chunk; ``None`` takes as many as have inputs and
            outputs of 16 MB.
        n_outputs: Outputs per sample, as far as known.

    Returns:
        Views of the batch.  # [chunk_size, *in] each, the last one maybe shorter
    """
    if not isinstance(x, Tensor):
        return (x,)
    return cut(x, checked_size(x, chunk_size, n_outputs))


def cut(x: Tensor, size: int) -> tuple[Tensor, ...]:
    """Cut a batch, if it has to be: most are small, and passes are short.

    Args:
        x: A batch.  # [N, *in]
        size: Samples in a chunk.

    Returns:
        Views of the batch, or itself.  # [size, *in] each, the last one maybe shorter
    """
    return (x,) if x.shape[0] <= size else x.split(size)


def checked_size(x: Tensor, chunk_size: int | None, n_outputs: int = 0) -> int:
    """How large chunks are.

    Args:
        x: A batch.  # [N, *in]
        chunk_size: What the user says.
        n_outputs: Outputs per sample, as far as known.

    Returns:
        Samples in a chunk.
    """
    if chunk_size is None:
        return automatic_size(x, n_outputs)
    require_at_least_one("chunk_size", chunk_size)
    return chunk_size


def automatic_size(x: Tensor, n_outputs: int = 0) -> int:
    """How large chunks are when nobody says.

    Args:
        x: A batch.  # [N, *in]
        n_outputs: Outputs per sample, as far as known.

    Returns:
        Samples in a chunk.
    """
    numbers = max(1, math.prod(x.shape[1:]), n_outputs)
    return max(1, AUTOMATIC_BYTES // (numbers * x.element_size()))


def rows_of(chunks: Sequence[Batch]) -> int:
    """How many samples there are.

    Args:
        chunks: A batch.  # [n, *in] each

    Returns:
        The samples in all chunks together.
    """
    return sum(
        len(chunk if isinstance(chunk, Tensor) else next(iter(chunk.values())))
        for chunk in chunks
    )


class Moments:
    """Mean and variance of a stream of networks' outputs, by Welford's updates.

    It holds two tensors of the output's shape, and works on one chunk at a time.
    """

    def __init__(self, n_rows: int) -> None:
        """Start with nothing.

        Args:
            n_rows: The samples in all chunks together.
        """
        self.count = 0
        self._n_rows = n_rows
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None

    def add(self, pieces: Pieces) -> None:
        """Take in the outputs of one more network.

        Args:
            pieces: The outputs, chunk by chunk.
        """
        self.count += 1
        for rows, piece in located(pieces):
            if self._mean is None or self._squares is None:
                shape = self._n_rows, *piece.shape[1:]
                self._mean, self._squares = (
                    piece.new_zeros(shape),
                    piece.new_zeros(shape),
                )
            mean, squares = self._mean[rows], self._squares[rows]
            before = piece - mean
            mean.add_(before, alpha=1 / self.count)
            # before * (piece - new mean), without computing that difference
            squares.addcmul_(before, before, value=1 - 1 / self.count)

    def result(self) -> tuple[Tensor, Tensor]:
        """Finish; nothing can be added any more.

        Returns:
            Mean and unbiased variance, which is zero after one network.
        """
        assert self._mean is not None and self._squares is not None, "nothing was added"
        return self._mean, self._squares.div_(max(1, self.count - 1))


def moments_of(networks: Iterable[Pieces], n_rows: int) -> tuple[Tensor, Tensor]:
    """Mean and variance over networks, in memory that does not grow with them.

    Args:
        networks: The outputs of each network, chunk by chunk.
        n_rows: The samples in all chunks together.

    Returns:
        Mean and unbiased variance.  # [n_rows, *out] each
    """
    moments = Moments(n_rows)
    for pieces in networks:
        moments.add(pieces)
    return moments.result()


def stacked(networks: Iterable[Pieces], n_samples: int, n_rows: int) -> Tensor:
    """The outputs of all networks.

    Args:
        networks: The outputs of each network, chunk by chunk.
        n_samples: How many networks.
        n_rows: The samples in all chunks together.

    Returns:
        All of them.  # [S, N, *out]
    """
    found: Tensor | None = None
    for number, pieces in enumerate(networks):
        for rows, piece in located(pieces):
            if found is None:
                found = piece.new_empty(n_samples, n_rows, *piece.shape[1:])
            found[number, rows] = piece
    assert found is not None, "there is no network"
    return found


def located(pieces: Pieces) -> Iterator[tuple[slice, Tensor]]:
    """Where each chunk's output belongs.

    Args:
        pieces: The outputs, chunk by chunk.

    Yields:
        The rows of the whole batch, and the output there.
    """
    start = 0
    for piece in pieces:
        rows = slice(start, start + len(piece))
        yield rows, piece
        start = rows.stop
