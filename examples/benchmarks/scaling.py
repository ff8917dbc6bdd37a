"""Ranks against time, and how much of it goes into talking to each other.

python examples/benchmarks/scaling.py            # on an idle machine
python examples/benchmarks/scaling.py --smoke    # seconds, for tests; proves nothing

Each rank has one thread and its own part of the same data, so times should halve with
twice the ranks until the cores are used up.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from measuring import write_json
from models import mnist_autoencoder
from torch import Tensor
from torch.multiprocessing.spawn import start_processes
from torch.utils.data import DataLoader, DistributedSampler

from lae_backpack import LaplaceAE
from lae_backpack.posterior import distributed

RESULTS = Path(__file__).parent / "results"
RANKS_ON_PAPER = 64


class TalkingTime:
    """Counts the seconds that ranks spend on exchanges, waiting included."""

    def __init__(self) -> None:
        """Listen to all exchanges of the package."""
        self.seconds = 0.0
        self._travel = distributed._travel
        distributed._travel = self._timed

    def _timed(self, *args: Any) -> None:
        start = time.perf_counter()
        self._travel(*args)
        self.seconds += time.perf_counter() - start


def _work(rank: int, n: int, port: int, args: Any, rows: Any) -> None:
    """What one rank does."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=n)
    talking = TalkingTime()
    torch.manual_seed(args.seed)
    x, la = (
        torch.rand(args.samples, 784),
        LaplaceAE(mnist_autoencoder(width=args.width)),
    )
    sampler: DistributedSampler[Tensor] = DistributedSampler(x, shuffle=False)  # pyright: ignore
    batch = max(1, args.batch // n)  # of all ranks together: the same for any number
    loader = DataLoader(x, batch, sampler=sampler)  # pyright: ignore
    for what in ("fit", "fit_online"):
        seconds, shares = [], []
        for _ in range(args.rounds + 1):
            dist.barrier()
            talking.seconds, start = 0.0, time.perf_counter()
            if what == "fit":
                la.fit(loader)
            else:
                la.fit_online(loader, 1, progress_bar=False)
            seconds.append(time.perf_counter() - start)
            shares.append(talking.seconds / seconds[-1])
        if rank == 0:
            rows.append({
                "work": what,
                "ranks": n,
                "batch_per_rank": batch,
                "seconds": statistics.median(seconds[1:]),
                "communication_share": statistics.median(shares[1:]),
            })
    dist.destroy_process_group()


def on_paper(n_params: int, seconds: float, bandwidth: float, latency: float) -> float:
    """How long an online step would take on many ranks, each with a core of its own.

    A ring sends each number twice through every link; each of the three exchanges of a
    step has a latency that grows with the ring.

    Args:
        n_params: The parameters, of which gradient and precision travel in float32.
        seconds: Of a step's computation on one rank, whose batch every rank gets.
        bandwidth: Bytes per second of a link.
        latency: Seconds of a message.

    Returns:
        Seconds.
    """
    sent = 2 * (RANKS_ON_PAPER - 1) / RANKS_ON_PAPER * 2 * n_params * 4
    return seconds + sent / bandwidth + 3 * 2 * (RANKS_ON_PAPER - 1) * latency


def main() -> None:
    """Measure, print a table, and write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="seconds, proves nothing")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--samples", type=int, default=6400, help="of all ranks")
    parser.add_argument("--batch", type=int, default=512, help="of all ranks")
    parser.add_argument("--width", type=int, default=512, help="of the first layer")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    args = parser.parse_args()
    if args.smoke:
        args.ranks, args.samples, args.batch = [1, 2], 32, 16
        args.width, args.rounds = 8, 1
    server = mp.get_context("forkserver")  # imports once; ranks are its forks
    server.set_forkserver_preload(["lae_backpack", "torch._dynamo"])
    shared = server.Manager().list()
    for n in args.ranks:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        start_processes(
            _work, (n, port, args, shared), nprocs=n, start_method="forkserver"
        )
    rows = list(shared)
    print("work        ranks  seconds  speed-up  communication")
    for row in rows:
        one = next(r for r in rows if r["work"] == row["work"])
        row["speed_up"] = one["seconds"] / row["seconds"]
        print(
            f"{row['work']:11} {row['ranks']:5} {row['seconds']:8.3f} "
            f"{row['speed_up']:8.2f}x {row['communication_share']:13.0%}"
        )
    net = mnist_autoencoder(width=args.width)
    n_params = sum(p.numel() for p in net.parameters())
    one = next(r for r in rows if r["work"] == "fit_online")
    step = one["seconds"] / -(-args.samples // args.batch)
    links = {"10 Gbit/s, 50 us": (1.25e9, 5e-5), "100 Gbit/s, 5 us": (1.25e10, 5e-6)}
    paper = {
        name: step / on_paper(n_params, step, *link) for name, link in links.items()
    }
    for name, efficiency in paper.items():
        print(
            f"on paper, {RANKS_ON_PAPER} ranks over {name}: {efficiency:.0%} efficient"
        )
    content: dict[str, object] = {
        "seed": args.seed,
        "rows": rows,
        "parameters": n_params,
    }
    write_json(args.out / "scaling.json", content | {"efficiency_on_paper": paper})


if __name__ == "__main__":
    main()
