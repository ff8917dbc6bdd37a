"""VLAE against VAE, semi-amortised VAE and Householder flow: log-likelihoods.

python examples/experiments/vlae.py --data-dir DATA --epochs 100
python examples/experiments/vlae.py --smoke    # seconds, for tests; proves nothing

Runs that are in the results already are not repeated, so it may be stopped and resumed.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any

import torch
from comparing import made_up, write_json
from latent_training import Images, build, log_likelihood, over_batches, train

from lae_backpack.datasets import load_images
from lae_backpack.latent import VLAE

RESULTS = Path(__file__).parent / "results"
MODELS = ("vae", "savae", "hf", "vlae")
FOLDERS = {"mnist": "mnist", "fashion": "fashion-mnist", "binary": "mnist"}
DATASETS = tuple(FOLDERS)


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


def run(key: dict[str, Any], images: Images, n_importance: int) -> dict[str, Any]:
    """Train and evaluate one model.

    Args:
        key: What is run: dataset, model, T, seed, epochs.
        images: The data.
        n_importance: Importance samples for each test image.

    Returns:
        The key and what was measured.
    """
    torch.manual_seed(key["seed"])
    model = build(key["model"], key["updates"], images)
    start = time.perf_counter()
    label = " ".join(str(value) for value in key.values())
    curve = train(model, images, key["epochs"], key["seed"], label)
    seconds = time.perf_counter() - start
    nats = log_likelihood(model, images.test, n_importance, seed=0)
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
        measured["lowering_steps"] = lowering_steps(model, images)
    return {**key, **measured}


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


def planned(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All runs that the command line asks for.

    Args:
        args: The command line.

    Returns:
        One key for each.
    """
    return [
        {
            "dataset": dataset,
            "model": model,
            "updates": updates,
            "seed": seed,
            "epochs": args.epochs,
            "train_images": args.train_images,
            "test_images": args.test_images,
            "importance": args.importance,
        }
        for seed in args.seeds
        for dataset in args.datasets
        for model in args.models
        for updates in ([0] if model == "vae" else args.updates)
    ]


def main() -> None:
    """Run what is missing, print each result, write all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="seconds, proves nothing")
    parser.add_argument("--data-dir", type=Path, help="or environment LAE_DATA")
    parser.add_argument("--datasets", nargs="+", default=DATASETS, choices=DATASETS)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--updates", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--importance", type=int, default=100)
    parser.add_argument("--train-images", type=int, help="only the first so many")
    parser.add_argument("--test-images", type=int, help="only the first so many")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    args = parser.parse_args()
    if args.smoke:
        args.epochs, args.importance, args.updates = 1, 2, [1]
    file = args.out / "vlae.json"
    runs = json.loads(file.read_text())["runs"] if file.exists() else []
    images = {dataset: images_of(dataset, args) for dataset in args.datasets}
    for key in planned(args):
        if any(key.items() <= done.items() for done in runs):
            continue
        result = run(key, images[key["dataset"]], args.importance)
        runs.append(result)
        write_json(file, {"seed": args.seeds[0], "runs": runs})
        name = f"{key['dataset']} {key['model']} T={key['updates']}"
        nats, error = result["test_log_likelihood"], result["standard_error"]
        print(f"{name:<18} seed {key['seed']}: {nats:9.2f} +- {error:.2f}", flush=True)


if __name__ == "__main__":
    main()
