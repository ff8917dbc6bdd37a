"""Error against cost of every diagonal, in one picture.

    python examples/benchmarks/pareto.py --data-dir DIR    # or LAE_DATA=DIR
    python examples/benchmarks/pareto.py --smoke           # seconds, proves nothing

The trained autoencoders of error.py and one batch of 64 images: the time of its
diagonal as a ratio to a plain forward and backward pass of the same round, and how far
it is from the exact one, averaged over seeds. Takes a few minutes on an idle machine if
error.py has left its nets; trains them first otherwise.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from contenders import plain
from deviations import Deviation, deviation
from diagonals import STRUCTURES, exact
from error import COLOURS
from measuring import interleaved, ratio, write_json
from table import command_line
from trained import Zoo, zoo_arguments

RESULTS = Path(__file__).parent / "results"
N_SEEDS = 5
MEASURES = {
    "median_log": "median |log(found / exact)|",
    "worst_median": "the same within the worst layer",
    "worst_log": "|log| of the worst layer's sum",
    "relative": "relative error",
}
MARKERS = "osv^Dphx"  # structures may coincide
COSTS = (1, 2, 5, 10, 20)
Row = dict[str, Any]


def rows_of(zoo: Zoo, net: str, rounds: int) -> list[Row]:
    """Measure all structures on one net.

    Args:
        zoo: The nets.
        net: Which one.
        rounds: How many rounds count.

    Returns:
        One row for each.
    """
    model, x = zoo.model(net, zoo.last), zoo.images(net)[: zoo.batch]
    true = zoo.exact(net, zoo.last, zoo.batch)
    diagonals = {name: make(model) for name, make in STRUCTURES.items()}
    runs = {
        name: lambda diagonal=diagonal: diagonal(x, zoo.batch)
        for name, diagonal in diagonals.items()
    }
    times = interleaved({"plain": plain(model, x, x), **runs}, rounds, net)
    start = time.perf_counter()
    exact(model)(x, zoo.batch)  # takes seconds, so once is enough
    taken = time.perf_counter() - start
    costs = {name: ratio(times, name, "plain") for name in STRUCTURES}
    rows = [
        {
            "net": net,
            "structure": "BackPACK exact",
            "cost": taken / statistics.median(times["plain"]),
            **dict.fromkeys(MEASURES, 0.0),
        }
    ]
    for name, diagonal in diagonals.items():
        found = []
        for seed in range(N_SEEDS):
            torch.manual_seed(zoo.seed + seed)
            found.append(deviation(diagonal(x, zoo.batch), true, model))
        errors = {
            key: statistics.mean(error_by(key, one) for one in found)
            for key in MEASURES
        }
        rows.append({"net": net, "structure": name, "cost": costs[name], **errors})
    return rows


def error_by(measure: str, found: Deviation) -> float:
    """One number of a deviation.

    Args:
        measure: Which one.
        found: The deviation.

    Returns:
        The number.
    """
    if measure == "worst_log":
        return abs(torch.tensor(found.worst_ratio).log().item())
    return getattr(found, measure)


def draw(rows: list[Row], path: Path) -> None:
    """Draw errors against cost, a column of panels for each net.

    Args:
        rows: The rows.
        path: Where to write the figure.
    """
    nets = list(dict.fromkeys(row["net"] for row in rows))
    figure, axes = plt.subplots(
        len(MEASURES),
        len(nets),
        figsize=(3.4 * len(nets) + 2.4, 2.6 * len(MEASURES)),
        sharex="col",
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for j, net in enumerate(nets):
        for i, (measure, label) in enumerate(MEASURES.items()):
            ax = axes[i][j]
            for k, name in enumerate(STRUCTURES):
                row = next(
                    r for r in rows if r["net"] == net and r["structure"] == name
                )
                star = name == "calibrated"
                ax.loglog(
                    row["cost"],
                    max(row[measure], 1e-4),  # what is exact still has a place
                    "*" if star else MARKERS[k % len(MARKERS)],
                    ms=13 if star else 7,
                    alpha=0.8,
                    color=COLOURS[k % len(COLOURS)],
                    label=name,
                )
            ax.set_xticks(COSTS, [str(cost) for cost in COSTS])
            ax.tick_params(which="minor", labelbottom=False)
            ax.grid(alpha=0.3)
            if i == 0:
                ax.set_title(net)
            if j == 0:
                ax.set_ylabel(label, fontsize=9)
            if i == len(MEASURES) - 1:
                ax.set_xlabel("time / plain pass")
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Measure, print the table, write JSON and the figure."""
    args, zoo = zoo_arguments(command_line(__doc__, RESULTS))
    rows: list[Row] = []
    print(f"{'net':<11}{'structure':<15}{'/ plain':>9}  " + "  ".join(MEASURES))
    for net in args.nets:
        found = rows_of(zoo, net, 1 if args.smoke else args.rounds)
        for row in found:
            errors = "".join(f"{row[key]:>12.3f}" for key in MEASURES)
            name = f"{row['net']:<11}{row['structure']:<15}"
            print(f"{name}{row['cost']:9.2f}{errors}", flush=True)
        rows += found
    write_json(args.out / "pareto.json", {"seed": args.seed, "rows": rows})
    draw(rows, args.out / "pareto.png")


if __name__ == "__main__":
    main()
