"""Figure 12 of the paper: how far a few labels go, and a replacement for table 4.

python examples/experiments/few_labels.py           # three seeds; rows say how long
python examples/experiments/few_labels.py --smoke   # seconds, proves nothing

Labelled images are embedded 100 times, neighbours vote, and test images are where their
mean code is. Labelled images are from the validation part, which no model was trained
on; the same ones for all models. CelebA is not to be had: ten labels and five
attributes of Fashion-MNIST, which are groups of its classes, stand in for it. The
ensemble is not here: its members have code spaces of their own. Finished runs are not
repeated.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from command_line import parser_of, zoo_of
from recipes import USUAL
from resuming import Row, run_missing
from torch import Tensor
from trained_models import ENSEMBLE, MODELS, Setting, Zoo, networks_of

from lae_backpack.downstream.plots.scores import LINES
from lae_backpack.downstream.semisupervised import CodeNeighbours

NAMES = tuple(name for name in MODELS if name != ENSEMBLE)
PER_CLASS = (1, 2, 4, 6, 8, 10, 15, 25, 50, 100)
ATTRIBUTES = {
    "footwear": (5, 7, 9),
    "worn above the waist": (0, 2, 4, 6),
    "long sleeves": (2, 4, 6),
    "covers the legs": (1, 3),
    "a bag": (8,),  # rare, as baldness is
}
CONVOLUTIONS = "Muon"  # how these nets are trained
N_LABELS = 10  # of an attribute, in all
NEIGHBOURS = tuple(range(1, 11))


class EmbeddedOnce:
    """Codes that are looked up: images are rows, given by their numbers."""

    def __init__(self, codes: Tensor) -> None:
        """Keep them.

        Args:
            codes: The codes of all images.  # [S, N, K]
        """
        self.codes = codes

    def latent_samples(
        self, x: Tensor, n_samples: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Look codes up.

        Args:
            x: Numbers of rows.  # [N, 1]
            n_samples: How many codes of each.
            generator: Not needed.

        Returns:
            The codes.  # [S, N, K]
        """
        del generator
        return self.codes[:n_samples, x[:, 0].long()]


def labelled_rows(labels: Tensor, per_class: int, generator: torch.Generator) -> Tensor:
    """Choose images to label.

    Args:
        labels: The classes of those there are.  # [N]
        per_class: How many of each.
        generator: Where randomness comes from.

    Returns:
        Their numbers.
    """
    order = torch.randperm(len(labels), generator=generator)
    return torch.cat([order[labels[order] == c][:per_class] for c in labels.unique()])


def accuracy(
    codes: EmbeddedOnce, known: Tensor, unknown: Tensor, labels: Tensor, seed: int
) -> float:
    """Classify images by others that are labelled.

    Args:
        codes: Of all images.
        known: Rows of labelled images.
        unknown: Rows of the others.
        labels: The classes of all images.  # [N]
        seed: Of the folds.

    Returns:
        The share that is right.
    """
    generator = torch.Generator().manual_seed(seed)
    neighbours = CodeNeighbours(codes, len(codes.codes), NEIGHBOURS, 2, generator)
    neighbours.fit(known[:, None].float(), labels[known])
    return neighbours.accuracy(unknown[:, None].float(), labels[unknown])


def measure(key: Row, zoo: Zoo) -> list[Row]:
    """Ask one model.

    Args:
        key: What is run.
        zoo: Has the models.

    Returns:
        One row for each number of labels, or for each attribute.
    """
    about = (key[name] for name in ("data", "net", "epochs", "seed"))
    setting = Setting(*about, recipe=key["recipe"])
    images = zoo.images(setting.data)
    test = images.test.rows(None, key["test_images"])
    x = setting.shaped(torch.cat((images.validation.x, test.x)))
    labels = torch.cat((images.validation.labels, test.labels)).long()
    model, n_known = zoo.model(key["model"], setting), len(images.validation.x)
    count = networks_of(model, key["copies"])
    generator = torch.Generator().manual_seed(setting.seed)
    with torch.no_grad():
        codes = EmbeddedOnce(model.latent_samples(x, count, generator=generator))
    unknown = torch.arange(n_known, len(x))

    def repeated(truth: Tensor, choose: Any) -> Row:
        found = []
        for repetition in range(key["repetitions"]):
            draw = torch.Generator().manual_seed(repetition)
            known = choose(draw)
            found.append(accuracy(codes, known, unknown, truth, repetition))
        return {"accuracy": mean(found), "accuracies": found}

    if key["task"] == "classes":
        return [
            {
                "per_class": count,
                **repeated(labels, _chooses_classes(labels[:n_known], count)),
            }
            for count in PER_CLASS
            if count <= key["most_labels"]
        ]
    rows = []
    for attribute, classes in ATTRIBUTES.items():
        truth = torch.isin(labels, torch.tensor(classes)).long()
        share = truth[n_known:].double().mean().item()
        row = repeated(
            truth, lambda draw: torch.randperm(n_known, generator=draw)[:N_LABELS]
        )
        rows.append({
            "attribute": attribute,
            **row,
            "by_guessing": max(share, 1 - share),
        })
    return rows


def _chooses_classes(labels: Tensor, per_class: int) -> Any:
    return lambda draw: labelled_rows(labels, per_class, draw)


def planned(args: Any) -> list[Row]:
    """All runs.

    Args:
        args: The command line.

    Returns:
        One key for each.
    """
    classes = {"task": "classes", "data": "mnist", "net": "linear", "recipe": USUAL}
    attributes = {"task": "attributes", "data": "fashion-mnist", "net": "conv/4"}
    attributes |= {"recipe": CONVOLUTIONS}  # the models of ood_scores.py
    classes |= {"epochs": args.epochs, "repetitions": args.repetitions}
    attributes |= {"epochs": args.conv_epochs, "repetitions": 4 * args.repetitions}
    both = {"copies": args.copies, "test_images": args.test_images}
    both |= {"most_labels": args.most_labels}
    if args.smoke:
        classes |= {"data": "digits", "net": "small"}
        attributes |= {"data": "digits", "net": "conv/16"}
    runs = [(classes, seed) for seed in args.seeds] + [(attributes, args.seeds[0])]
    return [
        {"model": model, **task, **both, "seed": seed}
        for task, seed in runs
        if task["task"] in args.tasks
        for model in NAMES
    ]


def draw(rows: list[Row], path: Path) -> None:
    """Draw accuracy over the number of labels.

    Args:
        rows: The results.
        path: The figure's file.
    """
    figure, ax = plt.subplots(figsize=(7.6, 4.2), layout="constrained")
    for number, name in enumerate(NAMES):
        own = [r for r in rows if r["model"] == name and r["task"] == "classes"]
        counts = sorted({row["per_class"] for row in own})
        values = [[r["accuracy"] for r in own if r["per_class"] == c] for c in counts]
        colour, line = LINES[len(NAMES) - 1 - number]  # online: the plainest line
        means = [mean(found) for found in values]
        ax.plot(counts, means, color=colour, linestyle=line, lw=2, label=name)
        ends = [min(v) for v in values], [max(v) for v in values]
        ax.fill_between(counts, *ends, color=colour, alpha=0.12, lw=0)
    ax.set(xscale="log", xlabel="labelled images of each class", ylabel="accuracy")
    ticks = [count for count in PER_CLASS if count not in (6, 8)]
    ax.set_xticks(ticks, [str(count) for count in ticks])
    ax.set_xticks([], minor=True)
    ax.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Run what is missing, and draw it."""
    parser = parser_of(__doc__, epochs=20)
    parser.add_argument("--conv-epochs", type=int, default=15, help="for attributes")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tasks", nargs="+", default=["classes", "attributes"])
    parser.add_argument("--copies", type=int, default=100, help="codes of an image")
    parser.add_argument("--repetitions", type=int, default=5, help="choices of images")
    parser.add_argument("--most-labels", type=int, default=100, help="of each class")
    parser.add_argument("--test-images", type=int, default=2_000)
    args = parser.parse_args()
    if args.smoke:
        args.epochs = args.conv_epochs = args.repetitions = 1
        args.seeds, args.copies, args.most_labels, args.test_images = [0], 3, 4, 32
    zoo, file = zoo_of(args), args.out / "few_labels.json"
    rows = run_missing(file, planned(args), lambda key: measure(key, zoo))
    draw(rows, args.out / "few_labels.png")


if __name__ == "__main__":
    main()
