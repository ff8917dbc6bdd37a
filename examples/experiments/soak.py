"""Ten thousand online steps, and what memory does meanwhile.

python examples/experiments/soak.py            # minutes
python examples/experiments/soak.py --smoke    # seconds, for tests; proves nothing
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
from pathlib import Path

import torch
from comparing import write_json
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack import AutoEncoder, LaplaceAE
from lae_backpack.posterior.online.settings import History

RESULTS = Path(__file__).parent / "results"
STATM = Path("/proc/self/statm")
STEPS_PER_EPOCH = 50


def resident_bytes() -> int:
    """The memory of this process.

    Returns:
        Bytes that are in memory now.
    """
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def n_tensors() -> int:
    """How many tensors are alive.

    Returns:
        Their number, once garbage is gone.
    """
    gc.collect()
    return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())


def model() -> AutoEncoder:
    """A tiny autoencoder with the layers that matter.

    Returns:
        The model.
    """
    encoder = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten())
    encoder.append(nn.Linear(256, 2))
    decoder = nn.Sequential(
        nn.Linear(2, 16),
        nn.Tanh(),
        nn.Unflatten(1, (1, 4, 4)),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(1, 1, 3, padding=1),
    )
    return AutoEncoder(encoder, decoder)


def soak(n_steps: int, checkpoint: Path) -> list[dict[str, int]]:
    """Train, and write memory down after each epoch.

    Args:
        n_steps: How many steps.
        checkpoint: A file to write after each epoch.

    Returns:
        Steps, resident bytes and living tensors after each epoch.
    """
    la, rows = LaplaceAE(model()), []

    def watch(_: LaplaceAE, history: History) -> None:
        rows.append({
            "step": len(history.losses),
            "resident_bytes": resident_bytes(),
            "tensors": n_tensors(),
        })

    images = TensorDataset(torch.rand(8 * STEPS_PER_EPOCH, 1, 8, 8))
    data = DataLoader(images, 8, shuffle=True)
    la.fit_online(
        data,
        n_steps // STEPS_PER_EPOCH,
        validation_loader=[torch.rand(8, 1, 8, 8)],
        callbacks=[watch],
        checkpoint=checkpoint,
        progress_bar=False,
    )
    return rows


def growth(rows: list[dict[str, int]]) -> dict[str, float]:
    """What memory does after the first fifth.

    Args:
        rows: What ``soak`` returned.

    Returns:
        The growth of medians from the second fifth to the last one.
    """
    fifth = max(1, len(rows) // 5)
    return {
        name: statistics.median(r[name] for r in rows[-fifth:])
        - statistics.median(r[name] for r in rows[fifth : 2 * fifth] or rows[:fifth])
        for name in ("resident_bytes", "tensors")
    }


def draw(rows: list[dict[str, int]], path: Path) -> None:
    """Draw the curve.

    Args:
        rows: What ``soak`` returned.
        path: Where to.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, left = plt.subplots(figsize=(5, 3), layout="constrained")
    steps = [row["step"] for row in rows]
    memory = [row["resident_bytes"] / 2**20 for row in rows]
    left.plot(steps, memory)
    top = 1.2 * max(memory)
    left.set(xlabel="online step", ylabel="resident memory, MiB", ylim=(0, top))
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Soak, print, and write the curve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="seconds, proves nothing")
    parser.add_argument("--steps", type=int, default=10_000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    n_steps = 4 * STEPS_PER_EPOCH if args.smoke else args.steps
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = soak(n_steps, Path(folder) / "run.pt")
    found = growth(rows)
    print(f"{n_steps} steps, {rows[-1]['resident_bytes'] / 2**20:.0f} MiB at the end")
    print(f"growth after the first fifth: {found['resident_bytes'] / 2**20:+.2f} MiB")
    print(f"and {found['tensors']:+.0f} tensors")
    results = {"seed": args.seed, "steps": n_steps, "growth": found, "rows": rows}
    write_json(args.out / "soak.json", results)
    draw(rows, args.out / "soak.png")


if __name__ == "__main__":
    main()
