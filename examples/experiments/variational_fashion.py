"""Variational Laplace on Fashion-MNIST, against sampled weights and plain training.

    python examples/experiments/variational_fashion.py --data-dir DIR  # or LAE_DATA=DIR
    python examples/experiments/variational_fashion.py --cost   # on an idle machine

Trains a small Softplus CNN in every way for the same epochs, over beta and over the
learning-rate multiplier of log-sigma; or measures what an epoch costs, for that CNN and
for the paper's PreactResNet-18 in small, at the paper's batch of 128. Runs that are in
the results already are not repeated, so it may be stopped and resumed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from comparing import Contender, interleaved, made_up, ratio, write_json
from torch import Tensor, nn
from torch.nn.functional import nll_loss
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm
from variational_baselines import WAYS, preact_resnet, softplus_cnn

from lae_backpack.datasets import load_images, load_labels
from lae_backpack.downstream.calibration import calibration_errors
from lae_backpack.variational import VariationalLaplace

RESULTS = Path(__file__).parent / "results"
Data = tuple[Tensor, Tensor]
AT_MULTIPLIER = 10.0  # while beta varies
AT_BETA = 0.1  # while the multiplier varies


@dataclass(frozen=True)
class Plan:
    """How much is done.

    Attributes:
        epochs: Of every run.
        betas: How much the prior counts.
        multipliers: Of the learning rate of log-sigma.
        rounds: Of timing.
        width: Of the net.
        resnet_width: Of the paper's net, which is timed only.
        batch_size: Of training.
        lr: Of the means.
    """

    epochs: int = 10
    betas: tuple[float, ...] = (0.01, 0.1, 1.0)
    multipliers: tuple[float, ...] = (1.0, 3.0, 30.0)
    rounds: int = 30
    width: int = 16
    resnet_width: int = 8
    batch_size: int = 128
    lr: float = 1e-3


SMOKE = Plan(
    epochs=1, betas=(0.1,), multipliers=(1.0,), rounds=1, width=2, resnet_width=1
)


def train(
    way: str, train: Data, plan: Plan, beta: float, multiplier: float, seed: int
) -> tuple[VariationalLaplace, list[float]]:
    """Train one net.

    Args:
        way: One of ``WAYS``.
        train: Images and labels.
        plan: How long.
        beta: How much the prior counts.
        multiplier: Of the learning rate of log-sigma.
        seed: Where randomness starts.

    Returns:
        What was learned, and the bound after each epoch.
    """
    torch.manual_seed(seed)
    model = WAYS[way](softplus_cnn(plan.width), "classification", beta=beta)
    loader = DataLoader(TensorDataset(*train), plan.batch_size, shuffle=True)
    return model, model.fit(loader, plan.epochs, plan.lr, multiplier)


@torch.no_grad()
def scores(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Judge predictions.

    Args:
        probabilities: Of the classes.  # [N, C]
        labels: The true ones.  # [N]

    Returns:
        Negative log-likelihood, accuracy and calibration error.
    """
    logs = probabilities.clamp_min(1e-30).log()
    return {
        "nll": float(nll_loss(logs, labels)),
        "accuracy": float((logs.argmax(1) == labels).float().mean()),
        "ece": calibration_errors(probabilities, labels, n_bins=15).ece,
    }


@torch.no_grad()
def rows_of(
    way: str, model: VariationalLaplace, test: Data, seed: int
) -> dict[str, dict[str, float]]:
    """Judge a net in all the ways it can predict.

    Args:
        way: How it was trained.
        model: What was learned.
        test: Images and labels.
        seed: Of the sampled networks.

    Returns:
        The scores by the name of the prediction.
    """
    pieces = test[0].split(500)
    mean = torch.cat([model(x).softmax(1) for x in pieces])
    if way == "MAP":
        return {"MAP": scores(mean, test[1])}
    found = {f"{way} (mean)": scores(mean, test[1])}
    la, draw = model.to_laplace(), torch.Generator().manual_seed(seed)
    networks = {"pred_type": "nn", "link_approx": "mc", "n_samples": 10}
    sampled = [la(x, generator=draw, **networks) for x in pieces]
    probabilities = torch.cat([p for p in sampled if isinstance(p, Tensor)])
    found[f"{way} (10 samples)"] = scores(probabilities, test[1])
    return found


def costs(make: Callable[[], nn.Module], plan: Plan, data: Data) -> dict[str, float]:
    """What training costs, as ratios to plain training.

    Args:
        make: Gives the net.
        plan: How many rounds.
        data: Images and labels of a short epoch.

    Returns:
        Median ratios by way.
    """
    loader = DataLoader(TensorDataset(*data), plan.batch_size)

    def epoch_of(way: Callable[..., VariationalLaplace]) -> Contender:
        model = way(make())
        return lambda: model.fit(loader, 1)

    epochs: dict[str, Contender] = {name: epoch_of(way) for name, way in WAYS.items()}
    times = interleaved(epochs, plan.rounds, "cost")
    return {name: ratio(times, name, "MAP") for name in epochs}


def draw_scores(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the scores over beta, and over the multiplier.

    Args:
        rows: What ``main`` writes.
        path: Where to.
    """
    studies = {
        "beta": [row for row in rows if row["multiplier"] == AT_MULTIPLIER],
        "multiplier": [row for row in rows if row["beta"] == AT_BETA],
    }
    measures = ("nll", "accuracy", "ece")
    figure, axes = plt.subplots(
        len(studies), len(measures), figsize=(11, 6), layout="constrained"
    )
    for line, (varied, own) in zip(axes, studies.items(), strict=True):
        for ax, measure in zip(line, measures, strict=True):
            for i, way in enumerate(dict.fromkeys(row["way"] for row in rows)):
                points = sorted((r[varied], r[measure]) for r in own if r["way"] == way)
                style = {
                    "marker": "osv^D*p"[i % 7],
                    "ls": "-" if "mean" in way else ":",
                }
                ax.plot(*zip(*points, strict=True), label=way, **style)
            ax.set(xscale="log", xlabel=varied, ylabel=measure)
            ax.grid(alpha=0.3)
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right", fontsize=8)  # pyright: ignore
    figure.savefig(path, dpi=110)
    plt.close(figure)


def planned(plan: Plan) -> list[tuple[str, float, float]]:
    """All runs.

    Args:
        plan: How much is done.

    Returns:
        Way, beta and multiplier of each.
    """
    runs = [(way, beta, AT_MULTIPLIER) for beta in plan.betas for way in WAYS]
    uncertain = [way for way in WAYS if way != "MAP"]
    return runs + [(way, AT_BETA, m) for m in plan.multipliers for way in uncertain]


def main() -> None:
    """Run the experiment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="seconds, proves nothing")
    parser.add_argument("--data-dir", type=Path, help="by default what LAE_DATA says")
    parser.add_argument("--cost", action="store_true", help="measure epochs only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    args = parser.parse_args()
    plan = SMOKE if args.smoke else Plan()
    if args.smoke:
        draw = torch.Generator().manual_seed(args.seed)
        images = made_up(64, draw).reshape(-1, 1, 28, 28)
        data = test = images, torch.arange(64) % 10
    else:
        data, test = (
            (
                load_images("fashion-mnist", split, args.data_dir),
                load_labels("fashion-mnist", split, args.data_dir),
            )
            for split in ("train", "test")
        )
    if args.cost:
        nets = {
            "CNN": (partial(softplus_cnn, plan.width), 60),
            "PreactResNet-18": (partial(preact_resnet, plan.resnet_width), 5),
        }
        content = {"seed": args.seed, "cost_over_map": {}}
        content |= {"batch_size": plan.batch_size, "rounds": plan.rounds}
        for net, (make, n_batches) in nets.items():
            short = slice(n_batches * plan.batch_size)
            found = costs(make, plan, (data[0][short], data[1][short]))
            for way, value in found.items():
                print(f"{net}, an epoch of {way}: {value:.3f} times that of MAP")
            content["cost_over_map"][net] = found
            content[net] = {"batches": n_batches, "layers": str(make())}
        write_json(args.out / "variational_cost.json", content)
        return
    file = args.out / "variational_fashion.json"
    settings = {"seed": args.seed, "epochs": plan.epochs, "lr": plan.lr}
    settings |= {"batch_size": plan.batch_size, "net": str(softplus_cnn(plan.width))}
    before = json.loads(file.read_text()) if file.exists() else {}
    is_same = settings.items() <= before.items()
    rows = before.get("rows", []) if is_same else []
    done = {(row["trained"], row["beta"], row["multiplier"]) for row in rows}
    for key in tqdm(planned(plan), disable=None):
        if key in done:
            continue
        way, beta, multiplier = key
        model, bounds = train(way, data, plan, beta, multiplier, args.seed)
        for name, found in rows_of(way, model, test, args.seed).items():
            row = {"trained": way, "beta": beta, "multiplier": multiplier, **found}
            print(name, "  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
            rows.append({"way": name, **row, "bounds": bounds})
        write_json(file, {**settings, "rows": rows})
    draw_scores(rows, args.out / "variational_fashion.png")


if __name__ == "__main__":
    main()
