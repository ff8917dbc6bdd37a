"""What each choice of online training does.

python examples/experiments/ablations.py              # rows say how long
python examples/experiments/ablations.py --seeds 0 1  # more seeds
python examples/experiments/ablations.py --smoke      # seconds, proves nothing

One choice is changed at a time, but for three ways: "as published" is all that the
published code does otherwise, the faster ema forgets faster too, and exact curvature is
looked at rarely. The linear net, both directions of MNIST and Fashion-MNIST, equally
many epochs for all. Finished runs are not repeated.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from command_line import parser_of, zoo_of
from experiment_images import OUTLIERS
from log_axis import readable_log
from online import Way, judge
from resuming import Row, run_missing
from trained_models import EXACT, NETS, RARELY, Setting, Zoo

from lae_backpack import LaplaceAE, OnlineSettings

DEFAULT = "default"
CHOICES: dict[str, list[Way]] = {
    DEFAULT: [Way("additive, alpha 1e-3, at the sample", OnlineSettings())],
    "alpha": [
        Way(f"{alpha:g}", OnlineSettings(alpha=alpha))
        for alpha in (1e-4, 3e-4, 3e-3, 1e-2)
    ],
    "update": [
        Way("ema, alpha 1e-3", OnlineSettings("ema", alpha=1e-3)),
        Way("ema, alpha 1e-2", OnlineSettings("ema", alpha=1e-2)),
    ],
    "Hessian": [Way("at the mean", OnlineSettings(curvature_at="mean"))],
    "samples per step": [
        Way(f"{count} networks", OnlineSettings(n_samples=count)) for count in (2, 4)
    ],
    "structure": [
        Way("approx", OnlineSettings(), {"hessian_structure": "approx_diag"}),
        Way("calibrated", OnlineSettings(), {"hessian_structure": "calibrated_diag"}),
        Way("mixed, every 25 steps", RARELY, {"hessian_structure": "mixed_diag"}),
        Way("exact, every 25 steps", RARELY, EXACT),
    ],
    "as published": [Way("as published", OnlineSettings.published(55_000))],
}
WAYS = {(choice, way.name): way for choice, ways in CHOICES.items() for way in ways}
MEASURES = {
    "error_of_networks": "error of networks",
    "error_of_mean": "error of their mean",
    "auroc_output": "AUROC, output variance",
    "auroc_latent": "AUROC, latent variance",
}


def measure(key: Row, zoo: Zoo) -> list[Row]:
    """Train in one way, and judge.

    Args:
        key: What is run.
        zoo: Has the images.

    Returns:
        One row.
    """
    way = WAYS[key["choice"], key["way"]]
    setting = Setting(key["data"], key["net"], key["epochs"], key["seed"])
    torch.manual_seed(setting.seed)
    la = LaplaceAE(NETS[setting.net](), **way.posterior)
    loader = zoo.loader(setting)
    la.fit_online(loader, setting.epochs, settings=way.settings, progress_bar=False)
    count = key["test_images"]
    test, outliers = (
        setting.shaped(zoo.images(name).test.by_lot(count).x)
        for name in (setting.data, OUTLIERS[setting.data])
    )
    found = judge(la, way.name, setting.data, test, outliers, key["networks"])
    return [asdict(found)]


def planned(args: Any) -> list[Row]:
    """All runs.

    Args:
        args: The command line.

    Returns:
        One key for each.
    """
    about = {"net": "small" if args.smoke else "linear", "epochs": args.epochs}
    about |= {"networks": args.networks, "test_images": args.test_images}
    return [
        {"choice": choice, "way": name, "data": data, **about, "seed": seed}
        for seed in args.seeds
        for data in args.data
        for choice, name in WAYS
    ]


def draw(rows: list[Row], path: Path) -> None:
    """Draw every measure of every way, beside that of the default.

    Args:
        rows: The results.
        path: The figure's file.
    """
    rows = [row for row in rows if _key(row) in WAYS]
    names = [key for key in WAYS if any(_key(row) == key for row in rows)][::-1]
    figure, axes = plt.subplots(
        1,
        len(MEASURES),
        figsize=(13, 0.32 * len(names) + 1.4),
        sharey=True,
        layout="constrained",
    )
    styles = zip(dict.fromkeys(row["data"] for row in rows), "os^", strict=False)
    for data, marker in styles:
        own = [row for row in rows if row["data"] == data]
        colour = {"o": "#0072b2", "s": "#d55e00"}.get(marker, "black")
        for ax, score in zip(axes, MEASURES, strict=True):
            values = [row[score] for row in own]
            places = [names.index(_key(row)) for row in own]
            ax.plot(values, places, marker, mfc="none", mec=colour, label=data)
            usual = [row[score] for row in own if row["choice"] == DEFAULT]
            if usual:
                ax.axvline(sum(usual) / len(usual), color=colour, lw=0.8, ls=":")
    labels = [name if name == choice else f"{choice}: {name}" for choice, name in names]
    axes[0].set_yticks(range(len(names)), labels)
    for ax, (score, title) in zip(axes, MEASURES.items(), strict=True):
        ax.set_xlabel(title)
        ax.grid(axis="x", alpha=0.3)
        if score.startswith("error"):
            readable_log(ax)
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper right", ncols=3, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _key(row: Row) -> tuple[str, str]:
    return row["choice"], row["way"]


def main() -> None:
    """Run what is missing, and draw all of it."""
    parser = parser_of(__doc__, epochs=10)
    parser.add_argument("--data", nargs="+", default=["mnist", "fashion-mnist"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--networks", type=int, default=50, help="sampled to judge")
    parser.add_argument("--test-images", type=int, default=2_000, help="of each kind")
    args = parser.parse_args()
    if args.smoke:
        args.epochs, args.networks, args.test_images = 1, 3, 32
        args.data = ["digits"]
    zoo = zoo_of(args)
    file = args.out / "ablations.json"
    rows = run_missing(file, planned(args), lambda key: measure(key, zoo))
    draw(rows, args.out / "ablations.png")


if __name__ == "__main__":
    main()
