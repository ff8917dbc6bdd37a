"""Whether longer or better training brings autoencoders to the errors of table 2.

python examples/experiments/longer_training.py             # rows say how long
python examples/experiments/longer_training.py --smoke     # seconds, proves nothing

The plain and the online autoencoder as we train them for table 2, for three times as
many epochs from a higher learning rate, and for six times as many by another recipe.
They are judged on images they have seen, on the validation images of the paper's
numbers, and on the test images of ours. Finished runs are not repeated.
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
LONGER, FASTER = 3, 3  # times the epochs, and the learning rate
COLOURS = "#0072b2", "#d55e00", "#009e73"
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
    lr = RECIPES[USUAL].lr
    usual = {"recipe": USUAL, "epochs": args.epochs, "lr": lr}
    longer = {"recipe": USUAL, "epochs": LONGER * args.epochs, "lr": FASTER * lr}
    best = {"recipe": BETTER, "epochs": LONGEST * args.epochs}
    best["lr"] = RECIPES[BETTER].lr
    return [
        {"model": name, **about, **length, "seed": seed}
        for seed in args.seeds
        for length in (usual, longer, best)
        for name in ("autoencoder", "online")
    ]


def draw(rows: list[Row], path: Path) -> None:
    """Draw the errors by part, a line for each model.

    Args:
        rows: The results.
        path: The figure's file.
    """
    figure, ax = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
    ways = dict.fromkeys((row["recipe"], row["lr"]) for row in rows)
    colours = dict(zip(ways, COLOURS, strict=True))
    for row in rows:
        ax.plot(
            PARTS,
            [row[part] for part in PARTS],
            "o-" if row["model"] == "online" else "s:",
            color=colours[row["recipe"], row["lr"]],
            label=f"{row['model']}, {row['epochs']} epochs, {row['recipe']}, "
            f"{row['lr']:g}",
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
