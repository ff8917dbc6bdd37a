"""How far one diagonal is from another."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scores import rank_correlation
from torch import Tensor, nn


@dataclass(frozen=True)
class Deviation:
    """How far a diagonal is from the exact one.

    Attributes:
        median_log: Median of ``|log(found / exact)|`` where the exact one is not zero.
        high_log: Its 90th percentile.
        layer_medians: The same median within every layer. That of all entries is the
            largest layer's, and says nothing of others.
        worst_median: The largest of them.
        relative: Norm of the difference by the norm of the exact one.
        spearman: Rank correlation where the exact one is not zero.
        worst_layer: The layer whose sum is furthest off.
        worst_ratio: By what factor that layer's sum is off.
        layers: The factor of every layer's sum.
        zeros: Entries of the exact diagonal that are zero, of dead pixels.
        entries: Entries in all.
    """

    median_log: float
    high_log: float
    layer_medians: dict[str, float]
    worst_median: float
    relative: float
    spearman: float
    worst_layer: str
    worst_ratio: float
    layers: dict[str, float]
    zeros: int
    entries: int


def deviation(found: Tensor, exact: Tensor, model: nn.Module) -> Deviation:
    """Compare two diagonals.

    Args:
        found: A diagonal.  # [P]
        exact: The exact one.  # [P]
        model: Whose parameters they belong to.

    Returns:
        How far they are apart.
    """
    found, exact = found.double(), exact.double()
    sums = {
        name: (a.sum() / b.sum()).item()
        for name, (a, b) in by_layer(torch.stack([found, exact]), model).items()
        if b.sum() > 0
    }
    worst = max(sums, key=lambda name: abs(torch.tensor(sums[name]).log().item()))
    alive = exact > 0
    logs = (found[alive] / exact[alive]).log().abs()
    medians = {
        name: (a[b > 0] / b[b > 0]).log().abs().median().item()
        for name, (a, b) in by_layer(torch.stack([found, exact]), model).items()
        if (b > 0).any()
    }
    return Deviation(
        median_log=logs.median().item(),
        layer_medians=medians,
        worst_median=max(medians.values()),
        high_log=logs.kthvalue(int(0.9 * (len(logs) - 1)) + 1).values.item(),
        relative=((found - exact).norm() / exact.norm()).item(),
        spearman=rank_correlation(found[alive], exact[alive]),
        worst_layer=worst,
        worst_ratio=sums[worst],
        layers=sums,
        zeros=int((~alive).sum()),
        entries=len(exact),
    )


def by_layer(diagonals: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """Split diagonals into layers, weight and bias together.

    Args:
        diagonals: Some.  # [D, P]
        model: Whose parameters they belong to.

    Returns:
        The pieces by the layer's name.  # [D, size] each
    """
    pieces: dict[str, list[Tensor]] = {}
    sizes = [parameter.numel() for parameter in model.parameters()]
    split = diagonals.split(sizes, dim=1)
    for (name, _), piece in zip(model.named_parameters(), split, strict=True):
        pieces.setdefault(name.rpartition(".")[0], []).append(piece)
    return {layer: torch.cat(own, dim=1) for layer, own in pieces.items()}
