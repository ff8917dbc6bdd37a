"""Train a Laplace autoencoder online, print what it knows, and write a page about it.

make demo                                    # scikit-learn's digits, no download
python examples/demo/demo.py --dataset mnist --data-dir DIR
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import torch
from demo_data import OTHERS, DemoImages, published_images, small_digits
from explorer import decode_grid
from judging import judge
from report import Found, one_of_each, write_page
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from lae_backpack import AutoEncoder, LaplaceAE
from lae_backpack.downstream.imputation import impute
from lae_backpack.posterior.online.settings import History


@dataclass(frozen=True)
class Plan:
    """How a data set is trained on and judged."""

    widths: tuple[int, ...]
    n_epochs: int
    batch_size: int
    lr: float
    n_networks: int = 100
    grid_size: int = 41
    n_threads: int | None = None  # as torch chooses


PLANS = {
    # Its layers are too small to share; threads would only wait for each other.
    "digits": Plan((64, 32), n_epochs=150, batch_size=64, lr=3e-3, n_threads=1),
    "mnist": Plan((512, 256), n_epochs=20, batch_size=128, lr=1e-3),
    "fashion-mnist": Plan((512, 256), n_epochs=20, batch_size=128, lr=1e-3),
}
CODE = 2  # dimensions, so that there is a map


def autoencoder(shape: tuple[int, ...], widths: tuple[int, ...]) -> AutoEncoder:
    """An autoencoder of linear layers.

    Args:
        shape: Of an image.
        widths: Of the encoder's hidden layers; the decoder mirrors them.

    Returns:
        The autoencoder.
    """
    sizes = (math.prod(shape), *widths, CODE)

    def layers(sizes: tuple[int, ...]) -> list[nn.Module]:
        found: list[nn.Module] = []
        for size, following in zip(sizes, sizes[1:], strict=False):
            found += [nn.Linear(size, following), nn.Tanh()]
        return found[:-1]

    return AutoEncoder(
        nn.Sequential(nn.Flatten(), *layers(sizes)),
        nn.Sequential(*layers(sizes[::-1]), nn.Unflatten(1, shape)),
    )


def train(images: DemoImages, plan: Plan, seed: int, quiet: bool) -> LaplaceAE:
    """Train mean and precision of the weights together.

    Args:
        images: What to train on.
        plan: How.
        seed: Of weights, order and noise.
        quiet: Show no progress.

    Returns:
        The posterior.
    """
    torch.manual_seed(seed)
    la = LaplaceAE(autoencoder(tuple(images.train.shape[1:]), plan.widths))
    loader = DataLoader(TensorDataset(images.train), plan.batch_size, shuffle=True)
    with tqdm(total=plan.n_epochs, desc="epochs", disable=quiet) as bar:

        def tell(_: LaplaceAE, history: History) -> None:
            bar.update()
            bar.set_postfix(loss=f"{history.losses[-1]:.2f}")

        settings = {"callbacks": [tell], "progress_bar": False}
        la.fit_online(loader, plan.n_epochs, lr=plan.lr, **settings)
    return la


def run(images: DemoImages, plan: Plan, seed: int, quiet: bool) -> Found:
    """Train, judge, and gather what the page shows.

    Args:
        images: What to look at.
        plan: How.
        seed: Of everything random.
        quiet: Show no progress.

    Returns:
        Everything that is shown.
    """
    began = time.perf_counter()
    la = train(images, plan, seed, quiet)
    seconds = time.perf_counter() - began
    judgement, evidence = judge(la, images, plan.n_networks, seed)
    codes, _ = la.latent(images.test, n_samples=plan.n_networks)
    grid = decode_grid(la, codes, plan.grid_size, plan.n_networks, seed, not quiet)
    chosen = one_of_each(images.labels)
    height, width = images.test.shape[-2:]
    observed = (torch.arange(height) < height // 2)[:, None].expand(height, width)
    generator = torch.Generator().manual_seed(seed)
    filled = impute(la, images.test[chosen[:5]], observed, generator=generator)
    return Found(
        images=images,
        codes=codes,
        grid=grid,
        judgement=judgement,
        evidence=evidence,
        chosen=chosen,
        observed=observed,
        imputation=filled,
        n_networks=plan.n_networks,
        seconds=seconds,
        n_epochs=plan.n_epochs,
    )


def parser() -> argparse.ArgumentParser:
    """The command line.

    Returns:
        Its parser.
    """
    about = (__doc__ or "").splitlines()[0]
    options = argparse.ArgumentParser(
        description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    options.add_argument(
        "--dataset",
        choices=tuple(PLANS),
        default="digits",
        help="what to train on; digits come with scikit-learn, the other two are each "
        "other's outliers and need --data-dir",
    )
    options.add_argument(
        "--data-dir",
        type=Path,
        help="the folder that holds mnist/ and fashion-mnist/ with their idx files; "
        "without it, what the environment variable LAE_DATA says",
    )
    options.add_argument(
        "--epochs", type=int, help="how often to go through the training images; "
        "without it, 150 for digits, 20 for the others",
    )  # fmt: skip
    options.add_argument(
        "--networks",
        type=int,
        default=100,
        help="how many networks are sampled to judge",
    )
    options.add_argument(
        "--train-images", type=int, default=10_000,
        help="how many images to train on, of mnist or fashion-mnist",
    )  # fmt: skip
    options.add_argument(
        "--test-images", type=int, default=1_000,
        help="how many test images, and as many outliers, of mnist or fashion-mnist",
    )  # fmt: skip
    options.add_argument("--seed", type=int, default=0, help="of everything random")
    options.add_argument(
        "--out", type=Path, default=Path("report"), help="folder for the page"
    )
    options.add_argument("--quiet", action="store_true", help="show no progress bars")
    options.add_argument(
        "--smoke", action="store_true", help="two epochs in seconds; proves nothing"
    )
    return options


def images_of(args: argparse.Namespace) -> DemoImages:
    """Load what was asked for.

    Args:
        args: The command line's options.

    Returns:
        The images.
    """
    if args.dataset in OTHERS:
        limits = args.train_images, args.test_images
        return published_images(args.dataset, args.data_dir, *limits)
    return small_digits(args.seed)


def main() -> None:
    """Run the demo."""
    began = time.perf_counter()
    command_line = parser()
    args = command_line.parse_args()
    for name in ("epochs", "networks", "train_images", "test_images"):
        value = getattr(args, name)
        if value is not None and value < 1 + (name == "networks"):
            option = name.replace("_", "-")
            command_line.error(f"--{option} is too small, got {value}")
    plan = PLANS[args.dataset]
    n_epochs = args.epochs or plan.n_epochs
    plan = replace(plan, n_epochs=n_epochs, n_networks=args.networks)
    if args.smoke:
        plan = replace(plan, n_epochs=2, n_networks=5, grid_size=11)
    try:
        images = images_of(args)
    except (FileNotFoundError, ValueError) as error:
        command_line.error(str(error))
    if plan.n_threads:
        torch.set_num_threads(plan.n_threads)
    found = run(images, plan, args.seed, args.quiet)
    print(found.judgement)
    page = args.out / "index.html"
    write_page(found, page)
    results = {"dataset": args.dataset, "seed": args.seed, "smoke": args.smoke}
    results |= found.judgement.as_dict()
    (args.out / "demo.json").write_text(json.dumps(results, indent=2) + "\n")
    taken = time.perf_counter() - began
    print(f"\n{page} is written, after {taken:.0f} seconds: open it in a browser.")


if __name__ == "__main__":
    main()
