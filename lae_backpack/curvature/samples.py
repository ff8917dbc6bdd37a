"""Some samples of a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from lae_backpack.curvature.call import Call
from lae_backpack.curvature.quantities import Dense, Diag


def samples_in_pieces(
    call: Call, quantity: Diag | Dense, at_most: int
) -> Iterator[tuple[Call, Diag | Dense]]:
    """Go through the samples of a batch in pieces.

    Args:
        call: The use of a layer.
        quantity: M at its output.
        at_most: Samples in a piece.

    Yields:
        The layer's use by some of the samples, and their M.
    """
    for start in range(0, len(call.x), at_most):
        piece = slice(start, start + at_most)

        def cut(tensor: Tensor, dim: int, piece: slice = piece) -> Tensor:
            if tensor.shape[dim] == 1:
                return tensor  # shared by all samples
            return tensor[piece] if dim == 0 else tensor[:, piece]

        part = replace(
            call,
            inputs=tuple(x[piece] for x in call.inputs),
            output=call.output[piece],
        )
        if isinstance(quantity, Diag):
            yield part, Diag(cut(quantity.values, 0))
        else:
            yield part, quantity.each(lambda columns, cut=cut: cut(columns, 1))
