"""Time and peak memory of curvature, beside every peer, in one run.

    python examples/benchmarks/cost.py            # minutes, on an idle machine
    python examples/benchmarks/cost.py --smoke    # seconds, for tests; proves nothing

Five 3x3 convolutions that keep channels and size (Fig. 7 of the paper), against pixels,
channels and batch. What would take more than 2 GB or 10 seconds is not run, and the
table says why. Interleaved rounds, medians; the ratio is to a plain pass of that round.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from measuring import Contender, interleaved, peak_memory, ratio, write_json
from models import conv_stack
from peers import PEERS, Peer, Size
from table import arguments
from tqdm import tqdm

RESULTS = Path(__file__).parent / "results"
MOST_BYTES = 2e9
MOST_SECONDS = 10.0
SLOW = 0.5  # seconds, from which on one round has to do
SWEEPS = {
    "pixels": [Size(8, 3, side) for side in (8, 16, 32, 64, 128, 256)],
    "channels": [Size(8, channels, 32) for channels in (1, 3, 8, 16, 32, 64)],
    "batch": [Size(batch, 3, 32) for batch in (1, 4, 16, 64, 256)],
}
SMOKE = {
    "pixels": [Size(2, 1, 4), Size(2, 1, 8)],
    "batch": [Size(1, 1, 4), Size(2, 1, 4)],
}


@dataclass(frozen=True)
class Cost:
    """What one peer costs at one size.

    Attributes:
        sweep: What is varied.
        at: Its value.
        peer: Who.
        seconds: Of a pass.
        times_plain: By how much it takes longer than a plain pass.
        bytes: The most it holds.
        does_not_fit: Why it was not run; empty if it was.
    """

    sweep: str
    at: int
    peer: str
    seconds: float | None = None
    times_plain: float | None = None
    bytes: int | None = None
    does_not_fit: str = ""

    def __str__(self) -> str:
        """The row of the printed table."""
        head = f"{self.sweep:<9}{self.at:>7}  {self.peer:<24}"
        if self.seconds is None or self.bytes is None:
            return f"{head}does not fit: {self.does_not_fit}"
        return (
            f"{head}{1e3 * self.seconds:10.2f} ms {self.times_plain:9.2f} x plain"
            f"{self.bytes / 2**20:10.1f} MB"
        )


def refusal(
    peer: Peer,
    size: Size,
    smaller: tuple[Size, float] | None,
    most_seconds: float = MOST_SECONDS,
) -> str:
    """Why a peer is not run at a size.

    Args:
        peer: The peer.
        size: The size.
        smaller: The last size that it was run at, and its seconds there.
        most_seconds: What a pass may take.

    Returns:
        The reason, or nothing.
    """
    wanted = peer.bytes(size)
    if wanted > MOST_BYTES:
        return f"about {wanted / 1e9:.0f} GB for {peer.holds}"
    if smaller is not None:
        seconds = smaller[1] * peer.work(size) / peer.work(smaller[0])
        if seconds > most_seconds:
            return f"about {seconds:.0f} s a pass by its growth"
    return ""


def measure(
    sweep: str, sizes: list[Size], rounds: int, most_seconds: float
) -> list[Cost]:
    """Measure all peers at growing sizes.

    Args:
        sweep: What is varied.
        sizes: The sizes.
        rounds: How many rounds count.
        most_seconds: What a pass may take.

    Returns:
        One row for each peer and size.
    """
    costs: list[Cost] = []
    last: dict[str, tuple[Size, float]] = {}
    for size in tqdm(sizes, sweep, disable=None):
        at = size.pixels if sweep == "pixels" else getattr(size, sweep)
        model, x = conv_stack(size.channels), size.images()
        quick: dict[str, Contender] = {}
        slow: dict[str, Contender] = {}
        for name, peer in PEERS.items():
            reason = refusal(peer, size, last.get(name), most_seconds)
            if reason:
                costs.append(Cost(sweep, at, name, does_not_fit=reason))
                continue
            run = peer.make(model, x)
            for _ in range(2):  # the first pass of all is not like others
                start = time.perf_counter()
                run()
                last[name] = size, time.perf_counter() - start
                if last[name][1] > SLOW:
                    break
            (slow if last[name][1] > SLOW else quick)[name] = run
        times = interleaved(quick, rounds, f"{sweep} {at}")
        plain = {"plain": quick["plain"]} if "plain" in quick else {}
        for name, run in {**quick, **slow}.items():
            taken = times
            if name in slow:
                taken = interleaved({**plain, name: run}, 1, name, warm_up=0)
            costs.append(
                Cost(
                    sweep,
                    at,
                    name,
                    statistics.median(taken[name]),
                    ratio(taken, name, "plain") if plain else None,
                    peak_memory(run),
                )
            )
        shown = {cost.peer: cost for cost in costs if cost.at == at}
        print(*(shown[name] for name in PEERS), sep="\n", flush=True)
    return costs


def draw(costs: list[Cost], path: Path) -> None:
    """Draw time and memory on log-log paper; a cross is what did not fit.

    Args:
        costs: The rows.
        path: Where to write the figure.
    """
    sweeps = {k: list(g) for k, g in groupby(costs, lambda cost: cost.sweep)}
    size = 4.2 * len(sweeps), 7
    figure, axes = plt.subplots(
        2, len(sweeps), figsize=size, squeeze=False, layout="constrained"
    )
    colours = plt.get_cmap("tab20").colors  # pyright: ignore
    for j, (sweep, rows) in enumerate(sweeps.items()):
        for ax, unit in ((axes[0][j], "seconds"), (axes[1][j], "bytes")):
            for i, name in enumerate(PEERS):
                own = [row for row in rows if row.peer == name]
                points = [(r.at, getattr(r, unit)) for r in own if not r.does_not_fit]
                missing = [r.at for r in own if r.does_not_fit]
                style = {"color": colours[i], "label": name}
                if points:
                    ax.loglog(*zip(*points, strict=True), marker="o", ms=3, **style)
                if missing:
                    high = 0.98 - 0.03 * (i % 5)
                    heights = [high] * len(missing)
                    place = ax.get_xaxis_transform()
                    ax.plot(missing, heights, "x", color=colours[i], transform=place)
            ax.set(xlabel=sweep, ylabel=f"{unit} of a pass")
            ax.grid(alpha=0.3)
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right center")
    figure.suptitle("Five convolutions; a cross at the top is what does not fit")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Measure, print the table, write JSON and the figure."""
    args = arguments(__doc__, RESULTS)
    torch.manual_seed(args.seed)
    # Sizes of a smoke run are small; only a busy machine makes one of them slow.
    rounds, most_seconds = (1, math.inf) if args.smoke else (args.rounds, MOST_SECONDS)
    costs: list[Cost] = []
    for sweep, sizes in (SMOKE if args.smoke else SWEEPS).items():
        costs += measure(sweep, sizes, rounds, most_seconds)
    content = {"seed": args.seed, "rows": [asdict(cost) for cost in costs]}
    write_json(args.out / "cost.json", content)
    draw(costs, args.out / "cost.png")


if __name__ == "__main__":
    main()
