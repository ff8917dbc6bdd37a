"""One block of the curvature for all parameters of a layer: ``sum_n Jw^T M Jw``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lae_backpack.curvature.call import Call
from lae_backpack.curvature.quantities import Dense, Diag, features, unit_columns
from lae_backpack.curvature.rules.by_autograd import CHUNK
from lae_backpack.curvature.samples import samples_in_pieces

if TYPE_CHECKING:
    from lae_backpack.curvature.rules.base import DiagRule


def by_columns(
    rule: DiagRule, names: Sequence[str], call: Call, quantity: Diag | Dense
) -> Tensor:
    """The block of any layer, from columns pulled back to its parameters.

    Args:
        rule: The layer's rule.
        names: Its trainable parameters, in the order of rows and columns.
        call: The use of the layer.
        quantity: M at its output.

    Returns:
        The block.  # [B, B]
    """
    params = [getattr(call.module, name) for name in names]
    size = sum(param.numel() for param in params)
    numbers = max(size, features(call.x), features(call.output))
    # On the way, less than the block itself or than what M takes anyway.
    carried = len(call.x) * features(call.output) ** 2
    at_once = max(numbers, min(CHUNK, max(size**2, carried) // 4))
    total = params[0].new_zeros(size, size)

    def pulled(part: Call, columns: Tensor) -> Tensor:
        columns = columns.expand(-1, len(part.x), *columns.shape[2:])
        pieces = [rule.pull_columns_to_param(name, part, columns) for name in names]
        return torch.cat([piece.flatten(2) for piece in pieces], 2)  # [K, N, B]

    for part, m in samples_in_pieces(call, quantity, at_once // numbers):
        step = max(1, at_once // (len(part.x) * numbers))
        if isinstance(m, Diag):
            # M = sum_k d_k e_k e_k^T: one set of columns is enough.
            weights = m.values.flatten(1).T[..., None]  # [F, N or 1, 1]
            columns = unit_columns(m.values)
            for unit, weight in zip(
                columns.split(step), weights.split(step), strict=True
            ):
                right = pulled(part, unit)
                total.addmm_((weight * right).flatten(0, 1).T, right.flatten(0, 1))
            continue
        for left, right in zip(m.left.split(step), m.right.split(step), strict=True):
            total.addmm_(
                pulled(part, left).flatten(0, 1).T, pulled(part, right).flatten(0, 1)
            )
    return total


def by_kronecker(names: Sequence[str], call: Call, quantity: Diag | Dense) -> Tensor:
    """The block of a linear layer on vectors: ``sum_n M_n (x) x_n x_n^T``.

    Args:
        names: Its trainable parameters, in the order of rows and columns.
        call: The use of the layer.
        quantity: M at its output.

    Returns:
        The block.  # [B, B]
    """
    n_out, ones = features(call.output), call.x.new_ones(len(call.x), 1)
    # Each output of the layer sees its own weights, which meet x, and its own bias,
    # which meets 1.
    widths = [call.x.shape[1] if name == "weight" else 1 for name in names]
    starts = [n_out * sum(widths[:i]) for i in range(len(widths))]
    places = list(zip(starts, widths, strict=True))
    total = ones.new_zeros(n_out * sum(widths), n_out * sum(widths))
    met = [call.x if name == "weight" else ones for name in names]
    extended = replace(call, inputs=tuple(met))
    for part, m in samples_in_pieces(extended, quantity, max(1, CHUNK // len(total))):
        matrix = m.values if isinstance(m, Diag) else m.matrix()
        for o in range(n_out):
            for (start, width), left in zip(places, part.inputs, strict=True):
                rows = total[start + o * width :][:width]
                for (begin, breadth), right in zip(places, part.inputs, strict=True):
                    if isinstance(m, Diag):  # outputs do not see each other
                        columns = rows[:, begin + o * breadth :][:, :breadth]
                        columns += left.T @ (matrix[:, o, None] * right)
                    else:
                        columns = rows[:, begin : begin + n_out * breadth]
                        row = matrix[:, o, :, None] * right[:, None]  # [N, out, in]
                        columns += left.T @ row.flatten(1)
    return total
