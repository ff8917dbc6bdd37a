"""How sure a deep image prior is of a reconstruction, in small.

    python examples/experiments/tomography.py --data-dir DIR     # or LAE_DATA=DIR

An MNIST digit, its projections with 5% noise, and a U-Net fitted to them. The
linearised posterior over the image is compared with MC dropout: log-density of the
truth, coverage, and a figure. Prior precisions, one for each layer, and the noise
maximise the evidence of the linear model (the target is shifted to its optimum's).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import torch
from comparing import made_up, write_json
from radon import SmallUNet, radon_matrix, total_variation
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal
from torch.func import functional_call, jacrev
from tqdm import tqdm

from lae_backpack.datasets import load_images

RESULTS = Path(__file__).parent / "results"
Gaussian = tuple[Tensor, Tensor]  # mean and variance of every pixel


def reconstruct(
    net: SmallUNet, start: Tensor, measured: Tensor, matrix: Tensor, n_steps: int
) -> None:
    """Fit a network to projections of one image.

    Args:
        net: The network.
        start: What goes in.  # [1, 1, H, W]
        measured: The projections.  # [M]
        matrix: What projects.  # [M, H * W]
        n_steps: Of Adam.
    """
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in tqdm(range(n_steps), "reconstruction", leave=False, disable=None):
        optimizer.zero_grad()
        image = net(start)
        error = (matrix @ image.flatten() - measured).square().sum()
        (error + 1e-2 * total_variation(image)).backward()
        optimizer.step()


def linearised(
    net: SmallUNet, start: Tensor, measured: Tensor, matrix: Tensor, n_steps: int
) -> Gaussian:
    """The linearised network's posterior over the image, solved over measurements.

    Args:
        net: The fitted network.
        start: What goes in.  # [1, 1, H, W]
        measured: The projections.  # [M]
        matrix: What projects.  # [M, H * W]
        n_steps: Of Adam on the evidence.

    Returns:
        Mean (the network's image) and variance.  # [H * W] each
    """
    own = {name: p.detach() for name, p in net.named_parameters()}
    parts = jacrev(lambda w: functional_call(net, w, (start,)).flatten())(own)
    image = net(start).detach().flatten()
    shift = torch.zeros_like(image)
    kernels: dict[str, Tensor] = {}
    for name, part in parts.items():
        rows = part.flatten(1)  # [H * W, P of the tensor]
        layer = name.rsplit(".", 1)[0]
        kernels[layer] = kernels.get(layer, torch.zeros(())) + rows @ rows.T
        shift += rows @ own[name].flatten()
    images = torch.stack(list(kernels.values()))  # [layers, H * W, H * W]
    measures = matrix @ images @ matrix.T
    target = measured - matrix @ (image - shift)
    logs = torch.zeros(len(images) + 1, requires_grad=True)
    optimizer, eye = torch.optim.Adam([logs], lr=0.05), torch.eye(len(measured))

    def covariances(of: Tensor) -> Tensor:
        return torch.einsum("l,lij->ij", (-logs[:-1]).exp(), of)

    for _ in tqdm(range(n_steps), "evidence", leave=False, disable=None):
        optimizer.zero_grad()
        total = covariances(measures) + logs[-1].exp() * eye
        evidence = MultivariateNormal(torch.zeros_like(target), total).log_prob(target)
        (-evidence).backward()
        optimizer.step()
    with torch.no_grad():
        prior = covariances(images)
        seen = matrix @ prior
        total = covariances(measures) + logs[-1].exp() * eye
        explained = (seen * torch.linalg.solve(total, seen)).sum(0)
        return image, (prior.diagonal() - explained).clamp_min(0)


@torch.no_grad()
def by_dropout(net: SmallUNet, start: Tensor, n_samples: int) -> Gaussian:
    """Mean and variance over networks with parts left out.

    Args:
        net: The network, with dropout.
        start: What goes in.  # [1, 1, H, W]
        n_samples: How many.

    Returns:
        The moments.  # [H * W] each
    """
    images = torch.stack([net.train()(start).flatten() for _ in range(n_samples)])
    return images.mean(0), images.var(0)


def scores(truth: Tensor, found: Gaussian, floor: float = 1e-2) -> dict[str, float]:
    """Judge a reconstruction with its uncertainty.

    Args:
        truth: The image.  # [H * W]
        found: Mean and variance.
        floor: A standard deviation that is added for all, as images are discrete.

    Returns:
        Mean log-density of a pixel, coverage of 90% intervals, root mean squared error.
    """
    mean, variance = found
    deviation = (variance + floor**2).sqrt()
    inside = ((truth - mean).abs() < 1.645 * deviation).double().mean()
    return {
        "log_density": float(Normal(mean, deviation).log_prob(truth).mean()),
        "coverage_of_90": float(inside),
        "rmse": float((truth - mean).square().mean().sqrt()),
    }


def draw(truth: Tensor, found: dict[str, Gaussian], path: Path) -> None:
    """Draw errors next to standard deviations.

    Args:
        truth: The image.  # [H * W]
        found: Moments by way.
        path: The file.
    """
    figure, axes = plt.subplots(len(found), 3, figsize=(7, 2.4 * len(found)))
    for row, (way, (mean, variance)) in zip(axes, found.items(), strict=True):
        top = float((mean - truth).abs().max())
        pictures = {way: (mean, 1.0), "absolute error": ((mean - truth).abs(), top)}
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
    parser.add_argument("--images", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    args = parser.parse_args()
    matplotlib.use("Agg")
    torch.manual_seed(args.seed)
    torch.set_default_dtype(torch.float64)
    args.out.mkdir(parents=True, exist_ok=True)
    n_images, steps, updates, width, n_angles = args.images, args.steps, 300, 16, 20
    if args.smoke:
        n_images, steps, updates, width, n_angles = 1, 30, 5, 3, 4
        images = made_up(1, torch.Generator().manual_seed(args.seed))
    else:
        images = load_images("mnist", "test", args.data_dir).flatten(1)
    matrix, rows = radon_matrix(28, n_angles), []
    for number, truth in enumerate(images[:n_images].double()):
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
            rows.append({"image": number, "way": way, **scores(truth, found[way])})
            row = rows[-1]
            print(
                "  ".join(f"{k} {v:.4g}" if k != "way" else v for k, v in row.items())
            )
        if number == 0:
            draw(truth, found, args.out / "tomography.png")
    write_json(args.out / "tomography.json", {"seed": args.seed, "rows": rows})


if __name__ == "__main__":
    main()
