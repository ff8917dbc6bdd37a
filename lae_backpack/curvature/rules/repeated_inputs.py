"""What padding modes other than zeros add to a convolution's squared Jacobian.

With reflected, replicated or circular borders a pixel may enter one window several
times, at kernel positions k and l, say. Its Jacobian there is ``W_k + W_l``, the square
of which has the cross term ``2 W_k W_l`` beyond what squared weights give. Only outputs
near the border are concerned.
"""

from __future__ import annotations

from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_terms(
    weight: Tensor,
    diag: Tensor,
    size: torch.Size,
    *,
    pads: tuple[int, ...],
    mode: str,
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Tensor:
    """The cross terms of ``(Jx o Jx)^T d`` for a convolution after padding.

    Args:
        weight: The convolution's weight.  # [C_out, C_in / groups, *kernel]
        diag: Diagonal at the output.  # [N, C_out, *out]
        size: The input's spatial size.
        pads: How much was padded, as ``F.pad`` takes it.
        mode: How it was padded.
        stride: The convolution's stride.
        dilation: The convolution's dilation.
        groups: The convolution's groups.

    Returns:
        What is to be added at the input.  # [N, C_in, *size]
    """
    dims = len(size)
    # For each dimension: which pixel is read, by kernel position and output.
    reads = [
        _pixels(size[d], pads[2 * (dims - 1 - d) :][:2], mode)[
            torch.arange(weight.shape[2 + d])[:, None] * dilation[d]
            + torch.arange(diag.shape[2 + d]) * stride[d]
        ].to(diag.device)
        for d in range(dims)
    ]  # [kernel_d, out_d] each
    d_groups = diag.unflatten(1, (groups, -1))
    w_groups = weight.unflatten(0, (groups, -1))
    channels = w_groups.shape[0] * w_groups.shape[2]
    total = diag.new_zeros(len(diag), channels, size.numel())
    for meeting in product(*(_meetings(read) for read in reads)):
        k, other, where = zip(*meeting, strict=True)
        if k >= other:  # the same position, or a pair that has had its turn
            continue
        near_border = d_groups
        for d, w in enumerate(where):
            near_border = near_border.index_select(3 + d, w)
        weights = 2 * w_groups[(..., *k)] * w_groups[(..., *other)]  # [G, C_out, C_in]
        terms = torch.einsum("ngo...,goc->ngc...", near_border, weights)
        terms = terms.flatten(3).flatten(1, 2)
        pixel = torch.zeros(1, dtype=torch.long, device=diag.device)
        for read, a, w, n in zip(reads, k, where, size, strict=True):
            pixel = (pixel[:, None] * n + read[a][w]).flatten()
        total.index_add_(2, pixel, terms)
    return total.unflatten(2, size)


def _pixels(size: int, pads: tuple[int, ...], mode: str) -> Tensor:
    """Which pixel stands where after padding one dimension."""
    line = torch.arange(size, dtype=torch.float64)[None, None]
    return F.pad(line, pads, mode=mode)[0, 0].long()


def _meetings(read: Tensor) -> list[tuple[int, int, Tensor]]:
    """Pairs of kernel positions, and the outputs at which both read the same pixel."""
    same = read[:, None] == read  # [kernel, kernel, out]
    return [
        (k, other, outputs.nonzero().flatten())
        for k, row in enumerate(same)
        for other, outputs in enumerate(row)
        if outputs.any()
    ]
