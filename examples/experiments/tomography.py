"""How sure a deep image prior is of a reconstruction, in small.

    python examples/experiments/tomography.py --data-dir DIR     # or LAE_DATA=DIR

MNIST digits, their projections with 5% noise, and a U-Net fitted to each. The
linearised posterior over the image is compared with MC dropout: log-density of the
truth, coverage of all pixels and of the strokes alone, and a figure. "misfit" is what
the reconstruction leaves of the projections, in units of their noise: far above 1, the
network was not fitted. Prior precisions, one for each layer, and the noise maximise the
evidence of the linear model (the target is shifted to its optimum's).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import torch
from comparing import made_up, write_json
from deep_image_prior import Gaussian, by_dropout, linearised, reconstruct
from radon import SmallUNet, radon_matrix
from torch import Tensor
from torch.distributions import Normal
from tqdm import tqdm

from lae_backpack.datasets import load_images

RESULTS = Path(__file__).parent / "results"


def scores(truth: Tensor, found: Gaussian, floor: float = 1e-2) -> dict[str, float]:
    """Judge a reconstruction with its uncertainty.

    Args:
        truth: The image.  # [H * W]
        found: Mean and variance.
        floor: A standard deviation that is added for all, as images are discrete.

    Returns:
        Mean log-density of a pixel, coverage of 90% intervals (of all pixels, and of
        those of the digit, as most are background), root mean squared error.
    """
    mean, variance = found
    deviation = (variance + floor**2).sqrt()
    inside = ((truth - mean).abs() < 1.645 * deviation).double()
    return {
        "log_density": float(Normal(mean, deviation).log_prob(truth).mean()),
        "coverage_of_90": float(inside.mean()),
        "coverage_of_strokes": float(inside[truth > 0].mean()),
        "rmse": float((truth - mean).square().mean().sqrt()),
    }


def draw(truth: Tensor, found: dict[str, Gaussian], path: Path) -> None:
    """Draw truth, reconstruction, errors and standard deviations.

    Args:
        truth: The image.  # [H * W]
        found: Moments by way.
        path: The file.
    """
    figure, axes = plt.subplots(len(found), 4, figsize=(9, 2.4 * len(found)))
    for row, (way, (mean, variance)) in zip(axes, found.items(), strict=True):
        top = float((mean - truth).abs().max())
        pictures = {"truth": (truth, 1.0), way: (mean, 1.0)}
        pictures["absolute error"] = ((mean - truth).abs(), top)
        pictures["standard deviation"] = (variance.sqrt(), top)
        for ax, (name, (values, most)) in zip(row, pictures.items(), strict=True):
            ax.imshow(values.reshape(28, 28).numpy(), vmin=0, vmax=most)
            ax.set(title=name, xticks=[], yticks=[])
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Run the experiment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="seconds, proves nothing")
    parser.add_argument("--data-dir", type=Path, help="by default what LAE_DATA says")
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    args = parser.parse_args()
    matplotlib.use("Agg")
    torch.manual_seed(args.seed)
    torch.set_default_dtype(torch.float64)
    args.out.mkdir(parents=True, exist_ok=True)
    n_images, steps, updates, width, n_angles = args.images, args.steps, 150, 16, 20
    if args.smoke:
        n_images, steps, updates, width, n_angles = 1, 30, 5, 3, 4
        images = made_up(1, torch.Generator().manual_seed(args.seed))
    else:
        images = load_images("mnist", "test", args.data_dir).flatten(1)
    matrix, rows = radon_matrix(28, n_angles), []
    chosen = tqdm(images[:n_images].double(), "images", disable=None)
    for number, truth in enumerate(chosen):
        clean = matrix @ truth
        noise = 0.05 * clean.abs().mean()
        measured = clean + noise * torch.randn_like(clean)
        start = (matrix.T @ measured).reshape(1, 1, 28, 28)
        start = start / start.max()
        found = {}
        for way, share in (("linearised", 0.0), ("MC dropout", 0.05)):
            net = SmallUNet(width, share)
            reconstruct(net, start, measured, matrix, steps)
            if way == "linearised":
                found[way] = linearised(net, start, measured, matrix, updates)
            else:
                found[way] = by_dropout(net, start, 100)
            left = (matrix @ found[way][0] - measured).square().mean().sqrt() / noise
            judged = {**scores(truth, found[way]), "misfit": float(left)}
            rows.append({"image": number, "way": way, **judged})
            texts = (f"{k} {v:.4g}" if k != "way" else v for k, v in rows[-1].items())
            print("  ".join(texts), flush=True)
        if number == 0:
            draw(truth, found, args.out / "tomography.png")
        write_json(args.out / "tomography.json", {"seed": args.seed, "rows": rows})


if __name__ == "__main__":
    main()
