"""How far every diagonal is from the exact one, as training goes on.

    python examples/benchmarks/error.py --data-dir DIR       # or LAE_DATA=DIR
    python examples/benchmarks/error.py --fresh calibrated   # measure that one anew
    python examples/benchmarks/error.py --smoke              # seconds, for tests

Four autoencoders are trained on the first 10,000 images of MNIST and kept before
training and after 1, 5 and 20 epochs. At each stage the diagonals of one batch of 64
images, and those accumulated over 1,024 images in such batches, are compared with
BackPACK's exact one. Trained nets, exact diagonals and rows are kept in a folder: the
first run takes about 40 minutes on one thread, of which exact diagonals are most, and
a run with one more structure takes a minute or two.
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
Row = dict[str, Any]
COLOURS = plt.get_cmap("tab10").colors  # pyright: ignore[reportAttributeAccessIssue]
HEADER = (
    f"{'net':<11}{'epoch':>5} {'images':>6} {'structure':<15}{'med |log|':>10}"
    f"{'90% |log|':>10}{'relative':>10}{'Spearman':>10}  worst layer's sum"
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
    missing = [name for name in STRUCTURES if name not in known]
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
    return {name: rows[name] for name in STRUCTURES}


def as_text(row: Row) -> str:
    """One line of the table.

    Args:
        row: The row.

    Returns:
        The line.
    """
    return (
        f"{row['net']:<11}{row['epoch']:>5} {row['images']:>6} {row['structure']:<15}"
        f"{row['median_log']:>10.3f}{row['high_log']:>10.3f}{row['relative']:>10.3f}"
        f"{row['spearman']:>10.3f}  x {row['worst_ratio']:.3g} ({row['worst_layer']})"
    )


def draw(rows: list[Row], path: Path) -> None:
    """Draw median errors against epochs, a panel for each net and number of images.

    Args:
        rows: The rows.
        path: Where to write the figure.
    """
    nets = list(dict.fromkeys(row["net"] for row in rows))
    counts = sorted({row["images"] for row in rows})
    figure, axes = plt.subplots(
        len(counts),
        len(nets),
        figsize=(3.2 * len(nets), 3 * len(counts)),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for i, count in enumerate(counts):
        for j, net in enumerate(nets):
            ax = axes[i][j]
            here = [r for r in rows if r["net"] == net and r["images"] == count]
            for k, name in enumerate(STRUCTURES):
                line = [r for r in here if r["structure"] == name]
                stages = range(len(line))
                errors = [r["median_log"] for r in line]
                style = "-" if name == "calibrated" else "--"
                colour = COLOURS[k % len(COLOURS)]
                ax.semilogy(stages, errors, style, marker="o", color=colour, label=name)
                ax.set_xticks(stages, [str(r["epoch"]) for r in line])
            ax.set_title(f"{net}, {count} images", fontsize=10)
            ax.grid(alpha=0.3)
            if i == len(counts) - 1:
                ax.set_xlabel("epochs of training")
            if j == 0:
                ax.set_ylabel("median |log(found / exact)|")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Compare, print the table, write JSON and the figure."""
    parser = command_line(__doc__, RESULTS)
    parser.add_argument("--fresh", nargs="+", choices=STRUCTURES, default=[])
    args, zoo = zoo_arguments(parser)
    print(HEADER)
    rows: list[Row] = []
    stages = [
        (net, epoch, count)
        for net in args.nets
        for epoch in zoo.epochs
        for count in (zoo.batch, zoo.n_images)
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
