"""Figures of how well scores tell outliers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from log_axis import readable_log
from matplotlib.axes import Axes
from recipes import USUAL
from resuming import Row
from torch import Tensor

from lae_backpack.downstream.ood import roc
from lae_backpack.downstream.plots import score_histograms
from lae_backpack.downstream.plots.scores import INSIDE, LINES, OUTSIDE

TITLES = {
    "log_likelihood": "minus log-likelihood",
    "typicality": "typicality",
    "output_deviation": "output deviation",
    "latent_deviation": "latent deviation",
}
DEVIATIONS = ("output_deviation", "latent_deviation")
TRUE_RATES = torch.linspace(0, 1, 41)
SHARES = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)
Scores = dict[str, dict[str, Tensor]]


def to_draw(inside: Tensor, outside: Tensor) -> Row:
    """What of a score is kept for figures.

    Args:
        inside: Scores of test images.  # [N]
        outside: Scores of outliers.  # [M]

    Returns:
        The least false positive rates at ``TRUE_RATES``, and quantiles at ``SHARES``.
    """
    false, true = roc(inside, outside)
    at = torch.searchsorted(true.double(), TRUE_RATES.double() - 1e-6)  # are rounded
    parts = {"inside": inside, "outside": outside}
    quantiles = {
        f"quantiles_{name}": scores.double().cpu().quantile(SHARES).tolist()
        for name, scores in parts.items()
    }
    return {"false_rates": false[at].double().round(decimals=5).tolist(), **quantiles}


def trained_by(row: Row) -> tuple[str, ...]:
    """What has to be said of how a model was trained.

    Args:
        row: A result.

    Returns:
        The recipe, if it is not the usual one.
    """
    return () if row["recipe"] == USUAL else (row["recipe"],)


def file_of(kind: str, row: Row) -> str:
    """How a figure of some images, net, seed and recipe is called.

    Args:
        kind: What it shows.
        row: A result of these.

    Returns:
        The file's name.
    """
    words = "-".join((
        kind,
        row["data"],
        row["net"],
        str(row["seed"]),
        *trained_by(row),
    ))
    return words.replace("/", "_").replace(" ", "_") + ".png"


def draw_table(rows: list[Row], names: tuple[str, ...], path: Path) -> None:
    """Draw the areas under the curves of all models.

    Args:
        rows: The results.
        names: Of the models, in their order.
        path: The figure's file.
    """
    worlds: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        world = row["data"], row["net"], *trained_by(row)
        worlds.setdefault(world, []).append(row)
    present = [{row["model"] for row in own} for own in worlds.values()]
    shown = [[name for name in names if name in own] for own in present]
    heights = [0.3 * len(own) + 0.7 for own in shown]
    figure, axes = plt.subplots(
        len(worlds),
        len(TITLES),
        figsize=(11, sum(heights) + 0.6),
        height_ratios=heights,
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for line, own, (world, found) in zip(axes, shown, worlds.items(), strict=True):
        for ax, score in zip(line, TITLES, strict=True):
            points = [row for row in found if row["score"] == score]
            places = [own.index(row["model"]) for row in points]
            ax.plot([row["auroc"] for row in points], places, "o", color="#0072b2")
            ax.axvline(0.5, color="0.6", linewidth=1)
            ax.grid(axis="x", alpha=0.3)
        line[0].set_yticks(range(len(own)), own, fontsize=9)
        line[0].set_ylim(len(own) - 0.5, -0.5)  # the first one on top
        line[0].set_ylabel("\n".join(world))
    for ax, title in zip(axes[0], TITLES.values(), strict=True):
        ax.set_title(title, fontsize=10)
    for ax in axes[-1]:
        ax.set(xlim=(-0.03, 1.03), xlabel="AUROC")
    figure.align_ylabels(axes[:, 0])
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_curves(rows: list[Row], names: tuple[str, ...], folder: Path) -> None:
    """Draw figures 9 and 10, one file for models of the same images, net and recipe.

    None where rows of a model have no curves, as those of older runs.

    Args:
        rows: The results.
        names: Of the models, in their order.
        folder: Where to.
    """
    files: dict[str, list[Row]] = {}
    for row in rows:
        if row["score"] in TITLES:
            files.setdefault(file_of("ood_curves", row), []).append(row)
    for file, own in files.items():
        shown = [name for name in names if any(r["model"] == name for r in own)]
        if len(shown) > 1 and all("false_rates" in row for row in own):
            _draw_together(own, shown, folder / file)


def _draw_together(rows: list[Row], names: list[str], path: Path) -> None:
    heights = 4.2, 0.25 * len(names) + 1.1
    figure = plt.figure(figsize=(11, sum(heights)), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=heights)
    above, below = halves
    families = list(dict.fromkeys(name.split(",")[0] for name in names))
    curves = above.subplots(1, len(TITLES), sharey=True)
    for ax, (score, title) in zip(curves, TITLES.items(), strict=True):
        ax.set(title=title, xlabel="false positive rate", aspect="equal")
        ax.plot([0, 1], [0, 1], color="0.7", lw=1)
        for row in (row for row in rows if row["score"] == score):
            family, *variant = row["model"].split(",")
            colour, line = LINES[families.index(family) % len(LINES)]
            width = 0.8 if variant else 1.8
            style = {"color": colour, "linestyle": line, "lw": width}
            ax.plot(row["false_rates"], TRUE_RATES, label=row["model"], **style)
    curves[0].set_ylabel("true positive rate")
    handles = dict(zip(*curves[0].get_legend_handles_labels()[::-1], strict=True))
    listed = [handles[name] for name in names], names
    above.legend(*listed, loc="outside lower center", ncols=5, frameon=False)
    varying = [row for row in rows if row["score"] in DEVIATIONS]
    shown = [name for name in names if any(r["model"] == name for r in varying)]
    spreads = below.subplots(1, len(DEVIATIONS), sharey=True)
    for ax, score in zip(spreads, DEVIATIONS, strict=True):
        for row in (row for row in varying if row["score"] == score):
            _draw_quantiles(ax, row, shown.index(row["model"]))
        ax.set_xlabel(f"{TITLES[score]}, in medians of test images")
        readable_log(ax)
        ax.grid(axis="x", alpha=0.3)
    spreads[0].set_yticks(range(len(shown)), shown)
    spreads[0].set_ylim(len(shown) - 0.5, -0.5)  # the first one on top
    parts = dict(zip(*spreads[0].get_legend_handles_labels()[::-1], strict=True))
    listed = list(parts.values()), list(parts)
    below.legend(*listed, loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_quantiles(ax: Axes, row: Row, place: int) -> None:
    """A thin line from 5% to 95% of the images, a thick one for their middle half."""
    unit = row["quantiles_inside"][2]
    for part, name, colour, shift in (
        ("inside", row["data"], INSIDE, -0.16),
        ("outside", row["outliers"], OUTSIDE, 0.16),
    ):
        low, lower, middle, upper, high = (q / unit for q in row[f"quantiles_{part}"])
        at = place + shift
        ax.plot([low, high], [at, at], color=colour, lw=1.4)
        ax.plot([lower, upper], [at, at], color=colour, lw=4.5, label=name)
        ax.plot(middle, at, "|", color="black", ms=6)


def draw_histograms(key: Row, scores: Scores, path: Path) -> None:
    """Draw how one model's scores are spread.

    Args:
        key: What was run.
        scores: Of the two parts.
        path: The figure's file.
    """
    shown = [name for name in TITLES if name in scores["inside"]]
    figure, axes = plt.subplots(
        1, len(shown), figsize=(3.4 * len(shown), 3), layout="constrained"
    )
    for ax, name in zip(axes, shown, strict=True):
        pair = scores["inside"][name], scores["outside"][name]
        names = key["data"], key["outliers"]
        score_histograms(*pair, name=TITLES[name], names=names, ax=ax)
        ax.get_legend().remove()
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
