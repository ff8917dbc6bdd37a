"""Figures 9 and 10 of the paper: telling Fashion-MNIST from MNIST, and the reverse.

python examples/experiments/ood_scores.py                # rows say how long
python examples/experiments/ood_scores.py --nets linear  # only that net
python examples/experiments/ood_scores.py --recipe Muon --nets conv/4
python examples/experiments/ood_scores.py --smoke        # seconds, proves nothing

All models with the linear net and with the paper's convolutional net at a quarter of
its width; that net at full width once, trained online, for fewer epochs, with fewer
images and networks. "Dead pixels frozen": pixels that are zero in all training images
leave their first-layer weights at the prior, and these weights may be all that an
uncertainty sees of an outlier; here they do not vary. Finished runs are not repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from command_line import parser_of, zoo_of
from experiment_images import OUTLIERS
from recipes import RECIPES, USUAL
from resuming import Row, run_missing
from torch import Tensor
from trained_models import MODELS, Setting, Zoo, networks_of

from lae_backpack import LaplaceAE
from lae_backpack.downstream.ood import detection, mean_log_likelihood, outlier_scores
from lae_backpack.downstream.plots import score_histograms

FROZEN = ", dead pixels frozen"
ALL = (*MODELS, *(f"{name}{FROZEN}" for name in ("post hoc", "online")))
N_REFERENCE = 2_000
NEVER_MOVES = 1e30  # a precision
OF_VARIANCES = (
    "output_variance",
    "output_deviation",
    "latent_variance",
    "latent_deviation",
    "pairwise_divergence",
)
OF_ERRORS = {"log_likelihood": "minus log-likelihood", "typicality": "typicality"}
TITLES = OF_ERRORS | {
    "output_variance": "output variance",
    "latent_variance": "latent variance",
}
OF_PAPER = OF_ERRORS | {
    "output_deviation": "output deviation",
    "latent_deviation": "latent deviation",
}


def freeze_dead_pixels(la: LaplaceAE, x: Tensor) -> int:
    """Make first-layer weights of pixels that are always zero certain.

    Args:
        la: A posterior whose first layer is linear.
        x: The training images.  # [N, P]

    Returns:
        How many pixels these are.
    """
    dead = ~(x != 0).any(0)  # [P]
    first = next(la.model.parameters())  # [out, P]
    precision = la.H.clone()
    precision[: first.numel()].view_as(first)[:, dead] = NEVER_MOVES
    la.H = precision
    return int(dead.sum())


def scores_of(
    model: Any, parts: Mapping[str, Tensor], n_networks: int, seed: int
) -> dict[str, dict[str, Tensor]]:
    """Score images, all by the same networks.

    Args:
        model: The model.
        parts: Images by name; ``"reference"`` for typicality.  # [N, *in] each
        n_networks: How many networks.
        seed: Of the networks.

    Returns:
        The scores of the other parts by their names.
    """

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    n_samples = networks_of(model, n_networks)
    usual = mean_log_likelihood(model, parts["reference"], n_samples, generator())
    found = {}
    for part in parts.keys() - {"reference"}:
        x = parts[part]
        scores = outlier_scores(model, x, usual, n_samples, generator())
        if hasattr(model, "pixel_variance"):
            whole = model.pixel_variance(x, n_samples, generator()).flatten(1)
            scores["output_variance"] = whole.sum(1)
            scores["output_deviation"] = whole.sqrt().sum(1)
            del scores["pairwise_divergence"]  # its formula is for equal noise
            if n_samples == 1:
                del scores["latent_variance"], scores["latent_deviation"]
        elif n_samples == 1:
            for name in OF_VARIANCES:
                del scores[name]
        found[part] = scores
    return found


def measure(key: Row, zoo: Zoo) -> tuple[list[Row], dict[str, dict[str, Tensor]]]:
    """Ask one model about test images and outliers.

    Args:
        key: What is run.
        zoo: Has the models.

    Returns:
        One row for each score, and the scores themselves.
    """
    about = (key[name] for name in ("data", "net", "epochs", "seed"))
    setting = Setting(*about, recipe=key["recipe"])
    frozen = FROZEN in key["model"]
    model = zoo.model(key["model"].removesuffix(FROZEN), setting)
    images, outliers = zoo.images(setting.data), zoo.images(key["outliers"])
    found: Row = {}
    if frozen:
        x = setting.shaped(images.train.x)
        found["dead_pixels"] = freeze_dead_pixels(model, x)
    count = key["test_images"]
    parts = {
        "reference": setting.shaped(images.train.x[:N_REFERENCE]),
        "inside": setting.shaped(_some(images.test.x, count)),
        "outside": setting.shaped(_some(outliers.test.x, count)),
    }
    scores = scores_of(model, parts, key["networks"], setting.seed)
    rows = [
        {"score": name, **asdict(detection(inside, scores["outside"][name])), **found}
        for name, inside in scores["inside"].items()
    ]
    return rows, scores


def _some(x: Tensor, count: int) -> Tensor:
    """Some rows by lot: MNIST's images are in an order, the easier ones first."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order[:count]]


def planned(args: Any) -> list[Row]:
    """All runs.

    Args:
        args: The command line.

    Returns:
        One key for each.
    """
    runs = []
    for seed in args.seeds:
        for net in args.nets:
            full = net == "conv"
            epochs = {"linear": args.epochs, "conv": args.full_epochs}
            names = ["online"] if full else [m for m in ALL if m in args.models]
            if net not in ("linear", "small"):
                names = [name for name in names if FROZEN not in name]
            for data in ["fashion-mnist"] if full else args.data:
                about = {"net": net, "data": data, "outliers": OUTLIERS[data]}
                about |= {"epochs": epochs.get(net, args.conv_epochs)}
                about |= {"recipe": args.recipe}
                about |= {"networks": 10 if full else args.networks}
                about |= {"test_images": min(args.test_images, 1000 if full else 10**9)}
                runs += [{"model": name, **about, "seed": seed} for name in names]
    return runs


def draw_table(rows: list[Row], path: Path) -> None:
    """Draw the areas under the curves of all models.

    Args:
        rows: The results.
        path: The figure's file.
    """
    worlds: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        trained = () if row["recipe"] == USUAL else (row["recipe"],)
        worlds.setdefault((row["data"], row["net"], *trained), []).append(row)
    present = [{row["model"] for row in own} for own in worlds.values()]
    names = [[name for name in ALL if name in own] for own in present]
    heights = [0.3 * len(own) + 0.7 for own in names]
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
    for line, shown, (world, own) in zip(axes, names, worlds.items(), strict=True):
        for ax, score in zip(line, TITLES, strict=True):
            found = [row for row in own if row["score"] == score]
            places = [shown.index(row["model"]) for row in found]
            ax.plot([row["auroc"] for row in found], places, "o", color="#0072b2")
            ax.axvline(0.5, color="0.6", linewidth=1)
            ax.grid(axis="x", alpha=0.3)
        line[0].set_yticks(range(len(shown)), shown, fontsize=9)
        line[0].set_ylim(len(shown) - 0.5, -0.5)  # the first one on top
        line[0].set_ylabel("\n".join(world))
    for ax, title in zip(axes[0], TITLES.values(), strict=True):
        ax.set_title(title, fontsize=10)
    for ax in axes[-1]:
        ax.set(xlim=(-0.03, 1.03), xlabel="AUROC")
    figure.align_ylabels(axes[:, 0])
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_histograms(key: Row, scores: dict[str, dict[str, Tensor]], path: Path) -> None:
    """Draw figure 10 for one model: how scores are spread.

    Args:
        key: What was run.
        scores: Of the two parts.
        path: The figure's file.
    """
    shown = [name for name in OF_PAPER if name in scores["inside"]]
    figure, axes = plt.subplots(
        1, len(shown), figsize=(3.4 * len(shown), 3), layout="constrained"
    )
    for ax, name in zip(axes, shown, strict=True):
        pair = scores["inside"][name], scores["outside"][name]
        names = key["data"], key["outliers"]
        score_histograms(*pair, name=OF_PAPER[name], names=names, ax=ax)
        ax.get_legend().remove()
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Run what is missing, and draw all of it."""
    parser = parser_of(__doc__, epochs=20)
    parser.add_argument("--conv-epochs", type=int, default=15, help="quarter width")
    parser.add_argument("--full-epochs", type=int, default=6, help="full width")
    parser.add_argument("--nets", nargs="+", default=["linear", "conv/4", "conv"])
    parser.add_argument("--data", nargs="+", default=["fashion-mnist", "mnist"])
    parser.add_argument("--models", nargs="+", default=ALL, choices=ALL)
    parser.add_argument("--recipe", default=USUAL, choices=RECIPES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--networks", type=int, default=100, help="sampled to judge")
    parser.add_argument("--test-images", type=int, default=10_000, help="of each kind")
    args = parser.parse_args()
    if args.smoke:
        args.epochs = args.conv_epochs = 1
        args.nets, args.data, args.networks = ["small", "conv/16"], ["digits"], 3
        args.test_images = 32
    zoo = zoo_of(args)

    def run(key: Row) -> list[Row]:
        rows, scores = measure(key, zoo)
        if key["model"] == "online":
            words = ["ood_histograms", key["data"], key["net"], str(key["seed"])]
            words += [] if key["recipe"] == USUAL else [key["recipe"]]
            name = "-".join(words).replace("/", "_").replace(" ", "_")
            draw_histograms(key, scores, args.out / f"{name}.png")
        return rows

    args.out.mkdir(parents=True, exist_ok=True)
    rows = run_missing(args.out / "ood_scores.json", planned(args), run)
    draw_table(rows, args.out / "ood_scores.png")


if __name__ == "__main__":
    main()
