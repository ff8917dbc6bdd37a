"""Whether longer or better training brings autoencoders to the errors of table 2.

python examples/experiments/longer_training.py             # rows say how long
python examples/experiments/longer_training.py --smoke     # seconds, proves nothing

The plain and the online autoencoder as we train them for table 2 by either recipe, one
of which takes six times as many epochs. They are judged on images they have seen, on
the validation images of the paper's numbers, and on the test images of ours. Finished
runs are not repeated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from command_line import parser_of, zoo_of
from recipes import RECIPES, USUAL
from resuming import Row, run_missing
from table2 import residual_of
from trained_models import Setting, Zoo

from lae_backpack import LaplaceAE

PARTS = ("train", "validation", "test")
COLOURS = "#0072b2", "#d55e00"
BETTER, LONGEST = "Muon", 6  # a recipe, and times the epochs


def measure(key: Row, zoo: Zoo) -> list[Row]:
    """Train one model, and judge its mean weights.

    Args:
        key: What is run.
        zoo: Has the models.

    Returns:
        One row: the errors by part.
    """
    about = ("data", "net", "epochs", "seed", "lr", "recipe")
    setting = Setting(*(key[name] for name in about))
    model = zoo.model(key["model"], setting)
    net = model.model if isinstance(model, LaplaceAE) else model.net
    images = zoo.images(setting.data)
    errors = {}
    for part in PARTS:
        x = setting.shaped(getattr(images, part).x)
        errors[part] = residual_of(net, x) ** 2 * x[0].numel()
    return [{**errors, "training_seconds": zoo.training_seconds(key["model"], setting)}]


def planned(args: Any) -> list[Row]:
    """All runs.

    Args:
        args: The command line.

    Returns:
        One key for each.
    """
    about = {"data": "mnist", "net": "linear"}
    about |= {"data": "digits", "net": "small"} if args.smoke else {}
    lengths = {USUAL: args.epochs, BETTER: LONGEST * args.epochs}
    trained = [
        {"recipe": recipe, "epochs": epochs, "lr": RECIPES[recipe].lr}
        for recipe, epochs in lengths.items()
    ]
    return [
        {"model": name, **about, **way, "seed": seed}
        for seed in args.seeds
        for way in trained
        for name in ("autoencoder", "online")
    ]


def draw(rows: list[Row], path: Path) -> None:
    """Draw the errors by part, a line for each model.

    Args:
        rows: The results.
        path: The figure's file.
    """
    figure, ax = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
    recipes = dict.fromkeys(row["recipe"] for row in rows)
    colours = dict(zip(recipes, COLOURS, strict=True))
    for row in rows:
        ax.plot(
            PARTS,
            [row[part] for part in PARTS],
            "o-" if row["model"] == "online" else "s:",
            color=colours[row["recipe"]],
            label=f"{row['model']}, {row['epochs']} epochs, {row['recipe']}",
        )
    ax.set_ylabel("squared error, summed over pixels")
    ax.grid(axis="y", alpha=0.3)
    ax.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Run what is missing, and draw all of it."""
    parser = parser_of(__doc__, epochs=20)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    args = parser.parse_args()
    if args.smoke:
        args.epochs = 1
    zoo = zoo_of(args)
    rows = run_missing(
        args.out / "longer_training.json",
        planned(args),
        lambda key: measure(key, zoo),
    )
    draw(rows, args.out / "longer_training.png")


if __name__ == "__main__":
    main()
