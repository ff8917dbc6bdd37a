"""Images, reconstructions and imputations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from lae_backpack.downstream.imputation import Imputation
from lae_backpack.downstream.plots.drawing import MAP, axes, figure
from lae_backpack.downstream.plots.mosaic import Mosaic, as_pictures, grey, seen_only

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def reconstructions(
    x: Tensor, mean: Tensor, deviation: Tensor, *, ax: Axes | None = None
) -> Axes:
    """Images, the mean of their reconstructions, and its standard deviation.

    Args:
        x: The images.  # [N, *in]
        mean: The mean over networks.  # [N, *in]
        deviation: The standard deviation over networks.  # [N, *in]
        ax: Where to draw; by default pyplot's present axes.

    Returns:
        The axes.
    """
    ax = axes(ax)
    pictures = as_pictures(x, "x"), as_pictures(mean, "mean")
    spread = as_pictures(deviation, "deviation")
    if spread.dim() == 4:
        spread = spread.mean(-1)
    shape = tuple(spread.shape[1:3])
    mosaic = Mosaic(ax, 3, len(spread), (shape[0], shape[1]))
    drawn = None
    for column in range(len(spread)):
        for row, of_row in enumerate(pictures):
            picture = of_row[column].clamp(0, 1)
            mosaic.put(row, column, picture, **grey(picture))
        drawn = mosaic.put(
            2, column, spread[column], cmap=MAP, vmin=0, vmax=float(spread.max())
        )
    mosaic.name_rows(["image", "mean", "standard\ndeviation"])
    figure(ax).colorbar(drawn, ax=ax, label="standard deviation", shrink=0.8)
    return ax


def imputations(
    x: Tensor, observed: Tensor, found: Imputation, *, ax: Axes | None = None
) -> Axes:
    """Images, what was seen of them, and how each mode fills in the rest.

    Args:
        x: The whole images.  # [N, *in]
        observed: True where pixels were known; broadcasts to ``x``.
        found: What ``impute`` returned for them.
        ax: Where to draw; by default pyplot's present axes.

    Returns:
        The axes.
    """
    ax = axes(ax)
    pictures = as_pictures(x, "x")
    mask = as_pictures(observed.cpu().expand_as(x), "observed") > 0.5
    modes = [as_pictures(mode, "found.mean") for mode in found.mean]
    n_samples = found.samples.shape[:2].numel()
    every = found.samples.flatten(0, 1)  # [M S, N, *in]
    spread = as_pictures(
        every.std(0, correction=min(1, n_samples - 1)), "found.samples"
    )
    if spread.dim() == 4:
        spread = spread.mean(-1)
    shape = tuple(spread.shape[1:3])
    mosaic = Mosaic(ax, len(x), 3 + len(modes), (shape[0], shape[1]))
    for row, picture in enumerate(pictures):
        shown = [picture, seen_only(picture, mask[row]), *[m[row] for m in modes]]
        for column, each in enumerate(shown):
            mosaic.put(row, column, each.clamp(0, 1), **grey(each))
        mosaic.put(
            row, len(shown), spread[row], cmap=MAP, vmin=0, vmax=float(spread.max())
        )
    filled = [f"filled in\n({number + 1})" for number in range(len(modes))]
    mosaic.name_columns(["image", "seen", *filled, "standard\ndeviation"])
    return ax
