"""What LaplaceAE costs: ratios in one run against plain training and laplace-torch.

python examples/benchmarks/posterior.py            # make bench
python examples/benchmarks/posterior.py --smoke    # seconds, for tests; proves nothing
"""

from __future__ import annotations

import math
from itertools import count
from pathlib import Path
from typing import Any

import torch
from laplace import Laplace
from measuring import Contender, interleaved, peak_memory, ratio, write_json
from models import fashion_autoencoder, mnist_autoencoder
from table import Row, Table, arguments
from torch import Tensor, nn
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack import LaplaceAE, OnlineSettings
from lae_backpack.posterior.online.noisy_copy import SHIFTS
from lae_backpack.posterior.online.step import EMStep

RESULTS = Path(__file__).parent / "results"
N_DATA = 60_000
NET = "784-512-256-2"


def plain_step(model: nn.Module, optimizer: Adam, x: Tensor) -> None:
    """Train on one batch as everybody does.

    Args:
        model: The model.
        optimizer: Its optimiser.
        x: A batch.  # [N, *in]
    """
    optimizer.zero_grad()
    (nn.functional.mse_loss(model(x), x, reduction="sum") / len(x)).backward()
    optimizer.step()


def plain_training(x: Tensor, fused: bool | None = None) -> Contender:
    """A plain Adam step.

    Args:
        x: A batch.  # [N, 784]
        fused: Whether Adam is one kernel.

    Returns:
        What to time.
    """
    model = mnist_autoencoder()
    optimizer = Adam(model.parameters(), 1e-3, fused=fused)
    return lambda: plain_step(model, optimizer, x)


def online_training(
    x: Tensor, settings: OnlineSettings, structure: str = "mixed_diag"
) -> Contender:
    """A step of ``fit_online``.

    Args:
        x: A batch.  # [N, 784]
        settings: How the precision follows.
        structure: The diagonal.

    Returns:
        What to time.
    """
    la = LaplaceAE(mnist_autoencoder(), hessian_structure=structure)
    optimizer = Adam(la.params, 1e-3, fused=True)  # as fit_online makes it
    step, numbers = EMStep(la, optimizer, settings, N_DATA, 0, seed=0), count()
    return lambda: step(x, next(numbers))


def online_steps(rounds: int, smoke: bool) -> list[Row]:
    """Online steps against plain Adam steps.

    Args:
        rounds: How many rounds count.
        smoke: A small batch.

    Returns:
        The rows.
    """
    rows = []
    for batch in (4,) if smoke else (128, 50):
        x, tenth = torch.rand(batch, 784), OnlineSettings(refresh_every=10)
        contenders = {
            "plain": plain_training(x),
            "plain, fused": plain_training(x, fused=True),
            "default": online_training(x, OnlineSettings()),
            "mean": online_training(x, OnlineSettings(curvature_at="mean")),
            "tenth": online_training(x, tenth),
            "approx": online_training(x, OnlineSettings(), "approx_diag"),
            "approx, tenth": online_training(x, tenth, "approx_diag"),
            "calibrated, tenth": online_training(x, tenth, "calibrated_diag"),
        }
        runs = {name: several(run, smoke) for name, run in contenders.items()}
        times = interleaved(runs, rounds, f"online, N={batch}")
        name = f"{NET}, N={batch}: online step"
        limit = 1.7 if batch == 128 else None
        rows += [
            Row(f"{name} / plain Adam step", ratio(times, "default", "plain"), limit),
            Row(
                f"{name} / plain step, both with fused Adam",
                ratio(times, "default", "plain, fused"),
            ),
            *(
                Row(f"{name}, {what} / plain Adam step", ratio(times, key, "plain"))
                for key, what in (
                    ("mean", "every step at the mean"),
                    ("tenth", "curvature every 10"),
                )
            ),
            Row(
                f"{name}, calibrated every 10 / approx every step",
                ratio(times, "calibrated, tenth", "approx"),
                1.1 if batch == 128 else None,
            ),
            Row(
                f"{name}, calibrated every 10 / approx every 10",
                ratio(times, "calibrated, tenth", "approx, tenth"),
                1.1 if batch == 128 else None,
            ),
        ]
    return rows


def several(run: Contender, smoke: bool) -> Contender:
    """Do something as often as all that is done now and then comes out even.

    Noise is drawn for 16 steps at once, and curvature looked at in each or each tenth.

    Args:
        run: What to do.
        smoke: Do it less often.

    Returns:
        What to time.
    """

    def all_of_them() -> None:
        for _ in range(2 * SHIFTS if smoke else math.lcm(2 * SHIFTS, 10)):
            run()

    return all_of_them


def post_hoc_epoch(rounds: int, smoke: bool) -> list[Row]:
    """``fit`` against an epoch of plain training, over the same loader.

    Args:
        rounds: How many rounds count.
        smoke: Little data.

    Returns:
        The rows.
    """
    x = torch.rand(8 if smoke else 1280, 784)
    loader = DataLoader(TensorDataset(x), 4 if smoke else 128)
    model = mnist_autoencoder()
    optimizer = Adam(model.parameters(), 1e-3)
    structures = {
        name: LaplaceAE(mnist_autoencoder(), hessian_structure=name)
        for name in ("approx_diag", "mixed_diag", "calibrated_diag")
    }

    def train() -> None:
        for (batch,) in loader:
            plain_step(model, optimizer, batch)

    fits = {name: lambda la=la: la.fit(loader) for name, la in structures.items()}
    times = interleaved({"train": train, **fits}, rounds, "post hoc")
    return [
        Row(
            f"{NET}, N=128: post-hoc epoch, {name} / plain training epoch",
            ratio(times, name, "train"),
            1.3,
        )
        for name in structures
    ]


def fitted(model: nn.Module, x: Tensor) -> LaplaceAE:
    """A posterior to ask.

    Args:
        model: An autoencoder.
        x: Data.  # [N, *in]

    Returns:
        The posterior.
    """
    la = LaplaceAE(model)
    la.fit([x])
    return la


def sampled_predictive(rounds: int, smoke: bool) -> list[Row]:
    """Sampled networks against laplace-torch's own.

    Args:
        rounds: How many rounds count.
        smoke: Few images and networks.

    Returns:
        The rows.
    """
    n_samples, x = (3, torch.rand(4, 784)) if smoke else (100, torch.rand(128, 784))
    ours = fitted(mnist_autoencoder(), x)
    theirs: Any = Laplace(mnist_autoencoder(), "regression", "all", "diag")
    theirs.H, theirs.mean, theirs.n_outputs = ours.H, ours.mean, 784

    def run_ours(n: int = n_samples) -> object:
        return ours(x, n_samples=n)

    def run_theirs(n: int = n_samples) -> object:
        return theirs(x, pred_type="nn", link_approx="mc", n_samples=n)

    times = interleaved({"ours": run_ours, "theirs": run_theirs}, rounds, "sampled")
    grows = peak_memory(run_ours) / peak_memory(
        lambda: run_ours(max(2, n_samples // 10))
    )
    return [
        Row(
            f"{NET}, N={len(x)}, {n_samples} networks: laplace-torch / ours",
            ratio(times, "theirs", "ours"),
            1.5,
            at_least=True,
        ),
        Row("peak memory, ten times as many networks / once", grows, 1.01),
        Row(
            "peak memory, laplace-torch / ours",
            peak_memory(run_theirs) / peak_memory(run_ours),
        ),
    ]


def propagated_predictive(rounds: int, smoke: bool) -> list[Row]:
    """The single pass against plain forward passes.

    Args:
        rounds: How many rounds count.
        smoke: Few images.

    Returns:
        The rows.
    """
    batch = 4 if smoke else 128
    rows = []
    for name, model, shape in (
        (NET, mnist_autoencoder(), (784,)),
        ("FMNIST conv width/4", fashion_autoencoder(4), (1, 28, 28)),
    ):
        x = torch.rand(batch, *shape)
        la = fitted(model, x)

        def forward(model: nn.Module = model, x: Tensor = x) -> None:
            with torch.no_grad():
                model(x)

        def propagate(la: LaplaceAE = la, x: Tensor = x) -> None:
            la(x, pred_type="propagated")

        times = interleaved({"forward": forward, "propagated": propagate}, rounds, name)
        rows.append(
            Row(
                f"{name}, N={batch}: propagated / plain forward pass",
                ratio(times, "propagated", "forward"),
                4.0,
            )
        )
    return rows


def main() -> None:
    """Print the table and write the results."""
    args = arguments(__doc__, RESULTS)
    torch.manual_seed(args.seed)
    rounds = 1 if args.smoke else args.rounds
    table = Table()
    for measure in (
        online_steps,
        post_hoc_epoch,
        sampled_predictive,
        propagated_predictive,
    ):
        table.show(measure(rounds, args.smoke))
    content = {"seed": args.seed, "rows": table.content()}
    write_json(args.out / "posterior.json", content)


if __name__ == "__main__":
    main()
