"""Figures 3 and 4 of the VLAE paper: paths of the mode, and covariances of codes.

python examples/experiments/vlae_figures.py --data-dir DATA --epochs 30
python examples/experiments/vlae_figures.py --smoke    # seconds, for tests
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from comparing import made_up, write_json
from latent_baselines import SemiAmortisedVAE
from latent_training import Images, build, train
from matplotlib.axes import Axes
from torch import Tensor
from vlae import TITLES

from lae_backpack.datasets import load_images
from lae_backpack.latent import VLAE, CodeModel

RESULTS = Path(__file__).parent / "results"
N_UPDATES = 5


@torch.no_grad()
def path_of(model: CodeModel, x: Tensor) -> Tensor:
    """The means that inference goes through.

    Args:
        model: The model, with codes of two numbers.
        x: One image.  # [1, 784]

    Returns:
        The means.  # [T + 1, 2]
    """
    if isinstance(model, VLAE):
        return model.laplace.path(x, model.encoder(x), model.n_updates)[:, 0]
    if isinstance(model, SemiAmortisedVAE):
        return torch.cat(model.path(x))[:, :2]
    return model.posterior(x).mean


@torch.no_grad()
def landscape(
    model: CodeModel, x: Tensor, centre: Tensor, radius: float, n_grid: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The bound as a function of the posterior's mean, its covariance kept.

    Args:
        model: The model.
        x: One image.  # [1, 784]
        centre: Of the window.  # [2]
        radius: Half the window's width.
        n_grid: Points along each side.

    Returns:
        Both axes and the bound up to a constant.  # [G], [G], [G, G]
    """
    axes = [c + torch.linspace(-radius, radius, n_grid) for c in centre]
    means = torch.cartesian_prod(*axes)  # [G * G, 2]
    root = model.posterior(x).scale_tril[0]
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(32, 2, generator=generator) @ root.T
    images = x.expand(len(means), -1)
    log_probs = torch.stack([model.log_prob(images, means + n) for n in noise])
    bound = log_probs.mean(0) - 0.5 * means.square().sum(1)
    return axes[0], axes[1], bound.reshape(n_grid, n_grid)


def draw_path(axes: Axes, model: CodeModel, x: Tensor, n_grid: int) -> None:
    """Draw one panel of figure 3.

    Args:
        axes: Where to.
        model: The model.
        x: One image.  # [1, 784]
        n_grid: Points along each side.
    """
    path = path_of(model, x)
    spread = (path - path[-1]).abs().max().item()
    radius = max(1.5 * spread, 0.4)
    first, second, bound = landscape(model, x, path[-1], radius, n_grid)
    # Most of the window is far below: show ranks, not nats.
    levels = torch.quantile(bound, torch.linspace(0.3, 1, 15)).unique()
    grid = first.numpy(), second.numpy(), bound.T.numpy()
    axes.contourf(*grid, levels=levels.tolist(), cmap="viridis")
    axes.plot(*path.T.numpy(), "o-", color="white", markersize=3, linewidth=1)
    axes.plot(*path[-1].numpy(), "*", color="red", markersize=9)
    best = divmod(int(bound.argmax()), n_grid)
    axes.plot(first[best[0]].item(), second[best[1]].item(), "x", color="orange")


def figure_paths(images: Images, epochs: int, out: Path, n_grid: int) -> None:
    """Figure 3: paths of the mode on the bound, for codes of two numbers.

    Args:
        images: The data.
        epochs: How long models train.
        out: The file.
        n_grid: Points along each side.
    """
    names, n_images = ("vae", "savae", "vlae"), 3
    figure, grid = plt.subplots(
        n_images, len(names), figsize=(9, 8), layout="constrained"
    )
    for column, name in enumerate(names):
        torch.manual_seed(0)
        model = build(name, N_UPDATES, images, code=2)
        train(model, images, epochs, seed=0, label=f"{name}, 2-D code")
        for row in range(n_images):
            draw_path(grid[row, column], model, images.test[row : row + 1], n_grid)
        grid[0, column].set_title(TITLES[name])
    figure.suptitle("white: updates, star: last, cross: best on the grid")
    figure.savefig(out, dpi=150, bbox_inches="tight")
    plt.close(figure)


def figure_covariances(images: Images, epochs: int, out: Path) -> dict[str, float]:
    """Figure 4: the covariance of one image's code under four models.

    Args:
        images: The data.
        epochs: How long models train.
        out: The file.

    Returns:
        The mean absolute correlation under each.
    """
    correlations = {}
    figure, grid = plt.subplots(1, len(TITLES), figsize=(13, 3.4), layout="constrained")
    for axes, (name, title) in zip(grid, TITLES.items(), strict=True):
        torch.manual_seed(0)
        model = build(name, 4, images)
        train(model, images, epochs, seed=0, label=f"{name}, covariance")
        covariance = model.posterior(images.test[:1]).covariance_matrix[0].detach()
        limit = covariance.abs().max().item()
        shown = axes.imshow(covariance.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit)
        correlations[name] = mean = mean_correlation(covariance)
        axes.set_title(f"{title}, mean |corr.| {mean:.2f}", fontsize=10)
        figure.colorbar(shown, ax=axes, shrink=0.7)
    figure.savefig(out, dpi=150, bbox_inches="tight")
    plt.close(figure)
    return correlations


def mean_correlation(covariance: Tensor) -> float:
    """How correlated the numbers of a code are.

    Args:
        covariance: Their covariance.  # [K, K]

    Returns:
        The mean absolute correlation of two different ones.
    """
    scale = covariance.diagonal().sqrt()
    correlation = covariance / scale.outer(scale)
    off_diagonal = ~torch.eye(len(covariance), dtype=torch.bool)
    return correlation[off_diagonal].abs().mean().item()


def main() -> None:
    """Train the models and draw both figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="seconds, proves nothing")
    parser.add_argument("--data-dir", type=Path, help="or environment LAE_DATA")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--train-images", type=int, help="only the first so many")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for figures")
    args = parser.parse_args()
    if args.smoke:
        generator = torch.Generator().manual_seed(0)
        args.epochs, pixels = 1, (made_up(360, generator), made_up(10, generator))
    else:
        pixels = (
            load_images("mnist", "train", args.data_dir).flatten(1),
            load_images("mnist", "test", args.data_dir).flatten(1),
        )
    train_images, test_images = pixels
    images = Images.prepared(
        train_images[: args.train_images], test_images, binary=False, seed=0
    )
    args.out.mkdir(parents=True, exist_ok=True)
    n_grid = 12 if args.smoke else 80
    figure_paths(images, args.epochs, args.out / "paths_vlae.png", n_grid)
    correlations = figure_covariances(
        images, args.epochs, args.out / "covariances_vlae.png"
    )
    about = {"seed": 0, "epochs": args.epochs, "train_images": len(images.train)}
    about |= {"mean_correlation": correlations}
    write_json(args.out / "figures_vlae.json", about)
    print(args.out / "paths_vlae.png", args.out / "covariances_vlae.png", sep="\n")


if __name__ == "__main__":
    main()
