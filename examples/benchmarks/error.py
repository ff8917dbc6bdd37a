"""How far every diagonal is from the exact one, as training goes on.

    python examples/benchmarks/error.py --data-dir DIR       # or LAE_DATA=DIR
    python examples/benchmarks/error.py --fresh calibrated   # measure that one anew
    python examples/benchmarks/error.py --smoke              # seconds, for tests

Five autoencoders are trained on the first 10,000 images of MNIST and kept before
training and after 1, 5 and 20 epochs. At each stage the diagonals of one batch of 64
images, and those accumulated over 1,024 images in such batches, are compared with
BackPACK's exact one; those of trained nets also over all 10,000. Trained nets, exact
diagonals and rows are kept in a folder, so that a run with one more structure takes
minutes. On one thread, training a net took 35 to 95 seconds of processor time and an
exact diagonal of 1,024 images 19 to 86, which makes three hours for the first run. In
the table, "layer" is the median of the worst layer: that of all entries is ruled by the
largest layer.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from deviations import deviation
from diagonals import STRUCTURES
from measuring import write_json
from table import command_line
from tqdm import tqdm
from trained import Zoo, zoo_arguments

RESULTS = Path(__file__).parent / "results"
DRAWN = {
    "median_log": "median |log ratio|, all entries",
    "worst_median": "median |log ratio|, worst layer",
}
# What is compared over all data; others would take hours.
CHEAP = ("approx", "mixed 128", "BackPACK MC 1", "probe", "calibrated", "shrunk")
LEAST = 1e-3  # what is exact still has a place on log paper
Row = dict[str, Any]
COLOURS = plt.get_cmap("tab10").colors  # pyright: ignore[reportAttributeAccessIssue]
HEADER = (
    f"{'net':<11}{'epoch':>5} {'images':>6} {'structure':<15}{'med |log|':>10}"
    f"{'layer':>8}{'90%':>8}{'relative':>10}{'Spearman':>10}  worst layer's sum"
)


def rows_of(
    zoo: Zoo, net: str, epoch: int, n_images: int, known: dict[str, Row]
) -> dict[str, Row]:
    """Compare all structures at one stage.

    Args:
        zoo: The nets.
        net: Which one.
        epoch: After which epoch.
        n_images: Over how many images; of one batch or of all.
        known: Rows that need not be measured.

    Returns:
        One row for each structure, by its name.
    """
    chosen = STRUCTURES if n_images <= zoo.n_images else CHEAP
    missing = [name for name in chosen if name not in known]
    rows = dict(known)
    if missing:
        exact, x = zoo.exact(net, epoch, n_images), zoo.images(net)[:n_images]
    for name in missing:
        torch.manual_seed(zoo.seed)
        model = zoo.model(net, epoch)
        found = STRUCTURES[name](model)(x, zoo.batch)
        rows[name] = {
            "net": net,
            "epoch": epoch,
            "images": n_images,
            "structure": name,
            **asdict(deviation(found, exact, model)),
        }
    return {name: rows[name] for name in chosen}


def as_text(row: Row) -> str:
    """One line of the table.

    Args:
        row: The row.

    Returns:
        The line.
    """
    return (
        f"{row['net']:<11}{row['epoch']:>5} {row['images']:>6} {row['structure']:<15}"
        f"{row['median_log']:>10.3f}{row['worst_median']:>8.3f}{row['high_log']:>8.3f}"
        f"{row['relative']:>10.3f}"
        f"{row['spearman']:>10.3f}  x {row['worst_ratio']:.3g} ({row['worst_layer']})"
    )


def draw(rows: list[Row], path: Path) -> None:
    """Draw errors against epochs, of one batch and of all data.

    Args:
        rows: The rows.
        path: Where to write the figure.
    """
    nets = list(dict.fromkeys(row["net"] for row in rows))
    epochs = sorted({row["epoch"] for row in rows})
    counts = [pick(row["images"] for row in rows) for pick in (min, max)]
    lines = [(count, key) for count in counts for key in DRAWN]
    figure, axes = plt.subplots(
        len(lines),
        len(nets),
        figsize=(3.2 * len(nets) + 2, 2.6 * len(lines)),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for (count, key), row_of_axes in zip(lines, axes, strict=True):
        for net, ax in zip(nets, row_of_axes, strict=True):
            here = [r for r in rows if r["net"] == net and r["images"] == count]
            for k, name in enumerate(STRUCTURES):
                line = [r for r in here if r["structure"] == name]
                style = "-" if name == "calibrated" else "--"
                ax.plot(
                    [epochs.index(r["epoch"]) for r in line],
                    [max(r[key], LEAST) for r in line],
                    style,
                    marker="o",
                    ms=4,
                    color=COLOURS[k % len(COLOURS)],
                    label=name,
                )
            ax.set_xticks(range(len(epochs)), map(str, epochs))
            ax.set_yscale("log")
            ax.set_title(f"{net}, {count} images", fontsize=10)
            ax.grid(alpha=0.3)
        row_of_axes[0].set_ylabel(DRAWN[key], fontsize=9)
    for ax in axes[-1]:
        ax.set_xlabel("epochs of training")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Compare, print the table, write JSON and the figure."""
    parser = command_line(__doc__, RESULTS)
    parser.add_argument("--fresh", nargs="+", choices=STRUCTURES, default=[])
    parser.add_argument("--epochs", nargs="+", type=int, choices=Zoo.epochs)
    args, zoo = zoo_arguments(parser)
    print(HEADER)
    rows: list[Row] = []
    stages = [
        (net, epoch, count)
        for net in args.nets
        for epoch in args.epochs or zoo.epochs
        for count in zoo.counts(epoch)
    ]
    for net, epoch, count in tqdm(stages, "stages", disable=None):
        kept = zoo.path(net, epoch, f"rows-{count}", "json")
        known = json.loads(kept.read_text()) if kept.exists() else {}
        known = {name: row for name, row in known.items() if name not in args.fresh}
        found = rows_of(zoo, net, epoch, count, known)
        kept.write_text(json.dumps({**known, **found}))
        rows += found.values()
        print(*map(as_text, found.values()), sep="\n", flush=True)
    settings = {"n_train": zoo.n_train, "batch": zoo.batch, "images": zoo.n_images}
    content = {"seed": args.seed, "settings": settings, "rows": rows}
    write_json(args.out / "error.json", content)
    draw(rows, args.out / "error.png")


if __name__ == "__main__":
    main()
