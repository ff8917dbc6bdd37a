"""What all figures share: matplotlib itself, and a colour map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAP = "cividis"  # grows in brightness, the same for colour-blind readers


def axes(ax: Axes | None) -> Axes:
    """Where to draw.

    Args:
        ax: The axes, or ``None`` for pyplot's present ones.

    Returns:
        The axes.

    Raises:
        ImportError: If there is no matplotlib.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "Plots need matplotlib, which is not installed. Run: "
            "pip install lae-backpack[examples]"
        ) from error
    return plt.gca() if ax is None else ax


def figure(ax: Axes) -> Any:
    """The figure of axes.

    Args:
        ax: The axes.

    Returns:
        The figure.
    """
    return ax.get_figure()
