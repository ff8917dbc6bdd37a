"""Table 1 of the VLAE paper in small: VLAE, VAE, semi-amortised VAE, Householder flow.

python examples/experiments/vlae.py                       # rows say how long they took
python examples/experiments/vlae.py --models vae --lr 5e-4          # and 5e-3
python examples/experiments/vlae.py --epochs 40 --name longer_vlae --models vae vlae
python examples/experiments/vlae.py --clip 30 --datasets binary    # clipped_vlae
python examples/experiments/vlae.py --smoke               # seconds, proves nothing

The learning rate is the one of 5e-4 (the paper's, for 2,000 epochs), 2e-3 and 5e-3 that
gives the *VAE* its best bound on validation images of MNIST. Runs that are in the
results already are not repeated, so it may be stopped and resumed.
"""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path
from statistics import mode
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from comparing import made_up
from latent_training import LR, Images, build, log_likelihood, over_batches, train
from resuming import Row, run_missing
from torch import Tensor

from lae_backpack.datasets import load_images
from lae_backpack.latent import VLAE

RESULTS = Path(__file__).parent / "results"
FOLDERS = {"mnist": "mnist", "fashion": "fashion-mnist", "binary": "mnist"}
DATASETS = tuple(FOLDERS)
TITLES = {"vae": "VAE", "savae": "SA-VAE", "hf": "VAE + HF", "vlae": "VLAE"}
MODELS = tuple(TITLES)
STYLES = ("-", "--", "-.", ":")


def images_of(dataset: str, args: argparse.Namespace) -> Images:
    """Load a dataset, or make one up.

    Args:
        dataset: One of ``DATASETS``.
        args: The command line.

    Returns:
        The images.
    """
    if args.smoke:
        generator = torch.Generator().manual_seed(0)
        parts = made_up(360, generator), made_up(40, generator)
    else:
        name = FOLDERS[dataset]
        parts = (
            load_images(name, "train", args.data_dir).flatten(1),
            load_images(name, "test", args.data_dir).flatten(1),
        )
    train_images, test_images = parts
    train_images = train_images[: args.train_images]
    test_images = test_images[: args.test_images]
    return Images.prepared(train_images, test_images, dataset == "binary", seed=0)


def measure(key: Row, images: Images) -> Row:
    """Train and evaluate one model.

    Args:
        key: What is run: data, model, T, seed, epochs, learning rate.
        images: The data.

    Returns:
        What was measured.
    """
    torch.manual_seed(key["seed"])
    model = build(key["model"], key["updates"], images)
    start = time.perf_counter()
    label = " ".join(str(value) for value in key.values())
    how = {"lr": key["lr"], "clip": key.get("clip")}
    curve = train(model, images, key["epochs"], key["seed"], label, **how)
    seconds = time.perf_counter() - start
    nats = log_likelihood(model, images.test, key["importance"], seed=0)
    bound = over_batches(lambda x: model.elbo(x, 10), images.test)
    measured = {
        "test_log_likelihood": nats.mean().item(),
        "standard_error": (nats.std() / len(nats) ** 0.5).item(),
        "test_elbo": bound.mean().item(),
        "validation_elbo_by_epoch": curve,
        "training_seconds": seconds,
    }
    if model.log_sigma is not None:
        measured["sigma"] = model.log_sigma.exp().item()
    if isinstance(model, VLAE):
        shares = lowering_steps(model, images)
        measured |= {f"lowering_{name}": share for name, share in shares.items()}
        measured |= norms_of_codes(model, images.test[:1000])
    return measured


@torch.no_grad()
def norms_of_codes(model: VLAE, x: Tensor) -> dict[str, float]:
    """How far out codes are, before the updates and after.

    Args:
        model: The model.
        x: Some images.  # [N, 784]

    Returns:
        The mean norm of the encoder's codes, and of the modes.
    """
    codes = {"start_norm": model.encoder(x), "mode_norm": model.posterior(x).loc}
    return {name: code.norm(dim=1).mean().item() for name, code in codes.items()}


@torch.no_grad()
def lowering_steps(model: VLAE, images: Images) -> dict[str, float]:
    """The share of updates that lower ``log p(x, z)``, by how they are made.

    In float64, where falls below 1e-9 nats are the rounding of updates that are done.

    Args:
        model: The model.
        images: The data, of which 1,000 test images are used.

    Returns:
        The share with the paper's decay, with full steps, and guarded.
    """
    model, shares = copy.deepcopy(model).double(), {}
    x = images.test[:1000].double()
    for name, alpha, guarded in (
        ("decayed", model.laplace.alpha, False),
        ("full", 1.0, False),
        ("guarded", 1.0, True),
    ):
        laplace = model.laplace
        laplace.alpha, laplace.guarded = alpha, guarded
        path = laplace.path(x, model.encoder(x), n_updates=8)
        rises = torch.stack([laplace.log_joint(x, z) for z in path]).diff(dim=0)
        shares[name] = (rises < -1e-9).double().mean().item()
    return shares


def planned(args: argparse.Namespace, images: dict[str, Images]) -> list[Row]:
    """All runs that the command line asks for.

    Args:
        args: The command line.
        images: The data.

    Returns:
        One key for each.
    """
    return [
        {
            "data": dataset,
            "model": model,
            "updates": updates,
            "seed": seed,
            "epochs": args.epochs,
            "lr": args.lr,
            "train_images": len(images[dataset].train),
            "test_images": len(images[dataset].test),
            "importance": args.importance,
            **({} if args.clip is None else {"clip": args.clip}),
        }
        for seed in args.seeds
        for dataset in args.datasets
        for model in args.models
        for updates in ([0] if model == "vae" else args.updates)
    ]


def draw_curves(rows: list[Row], path: Path) -> None:
    """Draw validation bounds over epochs, and how far they are above the VAE's.

    Args:
        rows: What was measured; those with the usual seed and learning rate are
            drawn, and of each data set those with most epochs.
        path: The figure's file.
    """
    usual = {name: mode(row[name] for row in rows) for name in ("seed", "lr")}
    rows = [row for row in rows if usual.items() <= row.items()]
    updates = sorted({row["updates"] for row in rows} - {0})
    names = list(dict.fromkeys(row["data"] for row in rows))
    figure, axes = plt.subplots(
        2,
        len(names),
        figsize=(1 + 4 * len(names), 6.5),
        squeeze=False,
        sharex="col",
        layout="constrained",
    )
    for (above, below), name in zip(axes.T, names, strict=True):
        own = [row for row in rows if row["data"] == name]
        longest = max(row["epochs"] for row in own)
        own = [row for row in own if row["epochs"] == longest]
        known = [r["validation_elbo_by_epoch"] for r in own if r["model"] == "vae"]
        floor = min(r["validation_elbo_by_epoch"][2] for r in own)
        for row in own:
            curve = torch.tensor(row["validation_elbo_by_epoch"])
            epochs = torch.arange(1, len(curve) + 1)
            curve[(epochs > 2) & (curve < floor)] = torch.nan  # training has diverged
            style: dict[str, Any] = {
                "color": f"C{MODELS.index(row['model'])}",
                "linestyle": "-",
            }
            label = TITLES[row["model"]]
            if row["updates"]:
                style["linestyle"] = STYLES[updates.index(row["updates"]) % len(STYLES)]
                label += f", T={row['updates']}"
            # The first epochs are far below and would flatten the rest.
            above.plot(epochs[2:], curve[2:], label=label, **style)
            if known and row["model"] != "vae":
                below.plot(epochs, curve - torch.tensor(known[0]), **style)
        above.set(title=name, ylabel="bound, nats")
        below.set(xlabel="epoch", ylabel="above the VAE's")
        below.axhline(0, color="0.6", linewidth=1)
    lines = {str(line.get_label()): line for ax in axes[0] for line in ax.get_lines()}
    figure.legend(lines.values(), lines, loc="outside right", fontsize=8)  # pyright: ignore
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Run what is missing, print each result, write and draw all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="seconds, proves nothing")
    parser.add_argument("--data-dir", type=Path, help="or environment LAE_DATA")
    parser.add_argument("--datasets", nargs="+", default=DATASETS, choices=DATASETS)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--updates", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=LR)
    parser.add_argument("--clip", type=float, help="gradients to this norm")
    parser.add_argument("--importance", type=int, default=100)
    parser.add_argument("--train-images", type=int, help="only the first so many")
    parser.add_argument("--test-images", type=int, help="only the first so many")
    parser.add_argument("--name", help="of the file with results")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    args = parser.parse_args()
    if args.smoke:
        args.epochs, args.importance, args.updates = 3, 2, [1]
    # Apart: a run without a limit would be taken for done by the same one with it.
    args.name = args.name or ("vlae" if args.clip is None else "clipped_vlae")
    args.out.mkdir(parents=True, exist_ok=True)
    images = {dataset: images_of(dataset, args) for dataset in args.datasets}
    rows = run_missing(
        args.out / f"{args.name}.json",
        planned(args, images),
        lambda key: [measure(key, images[key["data"]])],
    )
    draw_curves(rows, args.out / f"{args.name}.png")


if __name__ == "__main__":
    main()
