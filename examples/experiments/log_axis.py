"""A logarithmic axis whose few numbers can be read."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter


def readable_log(ax: Axes) -> None:
    """Make the horizontal axis logarithmic, with plain numbers, also below a decade.

    Args:
        ax: The axes, with all that is drawn in them.
    """
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    narrow = high < 10 * low
    ticks = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if narrow else (1.0, 3.0)
    ax.xaxis.set_major_locator(LogLocator(subs=ticks))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())
