"""Scores of outliers, and whether variances are as large as errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lae_backpack.downstream import calibration
from lae_backpack.downstream.ood import roc
from lae_backpack.downstream.plots.drawing import axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours of Okabe and Ito, each with a line of its own.
LINES = (
    ("#0072b2", "-"),
    ("#d55e00", "--"),
    ("#000000", "-."),
    ("#009e73", ":"),
    ("#cc79a7", (0, (5, 1, 1, 1, 1, 1))),
    ("#e69f00", (0, (1, 3))),
    ("#56b4e9", (0, (8, 2))),
)
INSIDE, OUTSIDE = "#9ecae1", "#d55e00"


def score_histograms(
    inside: Tensor,
    outside: Tensor,
    *,
    name: str = "score",
    names: tuple[str, str] = ("test data", "outliers"),
    n_bins: int = 40,
    log: bool | None = None,
    ax: Axes | None = None,
) -> Axes:
    """How scores of test data and of outliers are spread.

    Args:
        inside: Scores of test data.  # [N]
        outside: Scores of outliers.  # [M]
        name: Of the score.
        names: Of the two data sets.
        n_bins: How many bins.
        log: Whether bins are equally wide in the logarithm; by default when all scores
            are positive and cover more than two powers of ten.
        ax: Where to draw; by default pyplot's present axes.

    Returns:
        The axes.
    """
    ax = axes(ax)
    both = torch.cat([inside, outside]).detach().cpu().double()
    low, high = float(both.min()), float(both.max())
    if log is None:
        log = low > 0 and high > 100 * low
    if low == high:
        low, high = low - 0.5, high + 0.5
        log = False
    edges = torch.logspace if log else torch.linspace
    ends = (torch.tensor([low, high]).double().log10().tolist()) if log else (low, high)
    bins = edges(ends[0], ends[1], n_bins + 1, dtype=torch.float64)
    bins[0], bins[-1] = low, high  # rounding must not push any score out
    styles: tuple[dict[str, Any], dict[str, Any]] = (
        {"facecolor": INSIDE, "edgecolor": "black"},
        {"facecolor": "none", "edgecolor": OUTSIDE, "hatch": "//"},
    )
    for scores, label, style in zip((inside, outside), names, styles, strict=True):
        values = scores.detach().cpu().double().numpy()
        share = torch.full((len(values),), 1 / len(values)).numpy()
        ax.hist(
            values,
            bins.tolist(),
            weights=share,
            histtype="stepfilled",
            label=label,
            linewidth=1.2,
            **style,
        )
    if log:
        ax.set_xscale("log")
    ax.set(xlabel=name, ylabel="share of images")
    ax.legend(frameon=False)
    return ax


def roc_curves(
    inside: Mapping[str, Tensor],
    outside: Mapping[str, Tensor],
    *,
    names: Mapping[str, str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """How well scores tell outliers, by all thresholds.

    Args:
        inside: Scores of test data by name, as ``outlier_scores`` gives them.  # [N]
        outside: Scores of outliers by the same names.  # [M]
        names: What to write for a name; by default the name itself.
        ax: Where to draw; by default pyplot's present axes.

    Returns:
        The axes.
    """
    ax = axes(ax)
    for number, name in enumerate(inside):
        colour, line = LINES[number % len(LINES)]
        false, true = roc(inside[name], outside[name])
        auroc = torch.trapezoid(true, false).item()
        ax.plot(
            false.cpu().numpy(),
            true.cpu().numpy(),
            color=colour,
            linestyle=line,
            linewidth=2,
            label=f"{(names or {}).get(name, name)}: {auroc:.3f}",
        )
    ax.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    ax.set(xlabel="false positive rate", ylabel="true positive rate")
    ax.legend(title="area under the curve", frameon=False, loc="lower right")
    return ax


def variance_against_error(
    variance: Tensor,
    squared_error: Tensor,
    n_bins: int = 10,
    *,
    label: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Mean squared error against predicted variance, beside the line where both agree.

    Args:
        variance: Predicted, of pixels or of whole images.
        squared_error: What the variance ought to be.  # shaped like variance
        n_bins: Bins of equally many.
        label: What the legend says; call again with another one to compare.
        ax: Where to draw; by default pyplot's present axes.

    Returns:
        The axes.
    """
    ax = axes(ax)
    bins = calibration.variance_against_error(variance, squared_error, n_bins)
    drawn = [line for line in ax.lines if line.get_gid() == "bins"]
    colour, line = LINES[len(drawn) % len(LINES)]
    x, y = bins.variance.cpu().numpy(), bins.error.cpu().numpy()
    marker = "osD^v"[len(drawn) % 5]
    ax.loglog(x, y, marker, linestyle=line, color=colour, label=label, gid="bins")
    for diagonal in [line for line in ax.lines if line.get_gid() == "diagonal"]:
        diagonal.remove()
    drawn = [np.asarray(line.get_data()).ravel() for line in ax.lines]
    values = np.concatenate(drawn)
    values = values[values > 0] if (values > 0).any() else np.ones(1)
    ends = [values.min(), values.max()]
    ax.plot(ends, ends, color="0.6", linewidth=1, label="equal", gid="diagonal")
    ax.set(xlabel="predicted variance", ylabel="mean squared error")
    ax.legend(frameon=False)
    return ax
