"""Codes on a map."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from lae_backpack.downstream.plots.drawing import MAP, axes, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def latent_map(
    codes: Tensor,
    labels: Tensor | None = None,
    uncertainty: Tensor | None = None,
    extent: tuple[float, float, float, float] | None = None,
    *,
    log: bool | None = None,
    uncertainty_name: str = "standard deviation",
    ax: Axes | None = None,
) -> Axes:
    """Two-dimensional codes over a map of how uncertain each place is.

    Args:
        codes: The codes.  # [N, 2]
        labels: Classes, written at the codes; dots without.  # [N]
        uncertainty: A grid of values, first row at the bottom.  # [H, W]
        extent: Left, right, bottom and top of the grid's outermost points; by default
            those of the codes.
        log: Whether brightness follows the uncertainty's logarithm; by default when it
            covers more than a power of ten.
        uncertainty_name: What is written at the colour bar.
        ax: Where to draw; by default pyplot's present axes.

    Returns:
        The axes.

    Raises:
        ValueError: If codes are not two-dimensional.
    """
    if codes.dim() != 2 or codes.shape[1] != 2:
        raise ValueError(
            f"codes must be [N, 2], got {list(codes.shape)}. Choose two of the code's "
            "dimensions, or project it."
        )
    ax = axes(ax)
    codes = codes.detach().cpu()
    low, high = codes.amin(0).tolist(), codes.amax(0).tolist()
    extent = extent or (low[0], high[0], low[1], high[1])
    if uncertainty is not None:
        from matplotlib.colors import LogNorm

        least, largest = map(float, uncertainty.aminmax())
        if log is None:
            log = least > 0 and largest > 10 * least
        drawn = ax.imshow(
            uncertainty.detach().cpu().numpy(),
            extent=_edges(extent, uncertainty),
            origin="lower",
            aspect="auto",
            cmap=MAP,
            norm=LogNorm() if log else None,
            interpolation="bilinear",
        )
        figure(ax).colorbar(drawn, ax=ax, label=uncertainty_name)
    classes = [None] if labels is None else sorted(set(labels.tolist()))
    for label in classes:
        at = codes if labels is None else codes[labels.cpu() == label]
        marker = "o" if label is None else f"${label}$"
        size = 12 if label is None else 30
        _mark(ax, at, marker, size, None if label is None else str(label))
    ax.set(xlim=extent[:2], ylim=extent[2:])
    ax.set(xlabel="first dimension of the code", ylabel="second dimension of the code")
    return ax


def _edges(
    extent: tuple[float, float, float, float], grid: Tensor
) -> tuple[float, float, float, float]:
    """Edges of cells around a grid's points, which are in their middle."""
    left, right, bottom, top = extent
    rows, columns = grid.shape
    across = (right - left) / max(1, columns - 1) / 2
    up = (top - bottom) / max(1, rows - 1) / 2
    return left - across, right + across, bottom - up, top + up


def _mark(ax: Axes, at: Tensor, marker: str, size: float, label: str | None) -> None:
    """White marks with a dark rim are seen on every shade."""
    from matplotlib.patheffects import withStroke

    x, y = at.T.numpy()
    drawn = ax.scatter(
        x, y, s=size, color="white", marker=marker, linewidths=0, label=label
    )
    drawn.set_path_effects([withStroke(linewidth=1.6, foreground="black")])
