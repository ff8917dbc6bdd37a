"""Prior and noise of a post-hoc LaplaceAE: MacKay, linear optimum, marglik, grid.

    python examples/experiments/evidence_autoencoder.py --data-dir DIR  # or LAE_DATA

Trains the linear MNIST autoencoder, chooses prior precision and noise in each way, and
measures the test log-density under the linearised predictive, the coverage of its
intervals, and how well variances tell Fashion-MNIST apart.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from comparing import auroc, made_up, mnist_autoencoder, write_json
from torch import Tensor, nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from lae_backpack import AutoEncoder, LaplaceAE
from lae_backpack.datasets import load_images
from lae_backpack.posterior.evidence import maximise_evidence, maximise_linear_evidence

RESULTS = Path(__file__).parent / "results"
WAYS = ("residual noise, prior 1", "marglik", "gridsearch", "MacKay", "MacKay, layers",
        "linear optimum", "linear optimum, its noise")  # fmt: skip


def trained(model: nn.Module, images: Tensor, epochs: int) -> nn.Module:
    """Train an autoencoder.

    Args:
        model: The autoencoder.
        images: The data.  # [N, 784]
        epochs: How long.

    Returns:
        The same, trained.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(images), batch_size=128, shuffle=True)
    for _ in tqdm(range(epochs), "training", disable=None):
        for (x,) in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), x).backward()
            optimizer.step()
    return model.eval()


def tune(la: LaplaceAE, way: str, fit: DataLoader, held_out: DataLoader) -> None:
    """Choose prior and noise.

    Args:
        la: The posterior, fitted.
        way: One of ``WAYS``.
        fit: The data it was fitted to.
        held_out: Other data, for the grid.
    """
    if way == "marglik":
        la.optimize_prior_precision()
    elif way == "gridsearch":
        la.optimize_prior_precision(
            method="gridsearch", val_loader=held_out, n_samples=20, grid_size=11
        )
    elif way.startswith("MacKay"):
        maximise_evidence(la, "layerwise" if "layers" in way else "scalar")
    elif way.startswith("linear optimum"):
        # Without "its noise" the noise stays that of the network's residuals: its
        # linear model fits the training data closer than the network, which makes the
        # predictions, does.
        learned = way.endswith("its noise")
        maximise_linear_evidence(
            la, fit, learn_noise=learned, tolerance=0.05, max_rounds=10, max_steps=20
        )


def judge(la: LaplaceAE, test: Tensor, outliers: Tensor) -> dict[str, float]:
    """Measure how good the variances are.

    Args:
        la: The posterior.
        test: New images.
        outliers: Images of another kind.

    Returns:
        The measurements.
    """
    draw = torch.Generator().manual_seed(0)
    mean, variance = la(test, pred_type="glm", n_samples=50, generator=draw)
    _, other = la(outliers, pred_type="glm", n_samples=50, generator=draw)
    deviation = (variance + la.sigma_noise**2).sqrt()
    inside = ((test - mean).abs() < 1.645 * deviation).float().mean()
    sums = variance.flatten(1).sum(1), other.flatten(1).sum(1)
    densities = Normal(mean, deviation).log_prob(test).flatten(1).sum(1)
    priors = torch.as_tensor(la.prior_precision)
    return {
        "log_density": float(densities.mean()),
        "coverage_of_90": float(inside),
        "auroc": auroc(*sums),
        "prior_precision": float(priors.log().mean().exp()),
        "sigma_noise": float(la.sigma_noise),
    }


def main() -> None:
    """Run the experiment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="seconds, proves nothing")
    parser.add_argument("--data-dir", type=Path, help="by default what LAE_DATA says")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--images", type=int, default=10_000, help="to train on")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    args = parser.parse_args()
    if args.smoke:
        draw = torch.Generator().manual_seed(0)
        train, held_out, test, outliers = (made_up(n, draw) for n in (16, 4, 4, 4))
        args.epochs = args.seeds = 1
    else:
        images = load_images("mnist", "train", args.data_dir).flatten(1)
        train, held_out = images[: args.images], images[-500:]
        test, outliers = (
            load_images(name, "test", args.data_dir).flatten(1)[:1000]
            for name in ("mnist", "fashion-mnist")
        )
    fit = DataLoader(TensorDataset(train), batch_size=512)
    rows = []
    for seed in range(args.seeds):
        torch.manual_seed(seed)
        small = AutoEncoder(nn.Linear(784, 2), nn.Linear(2, 784))
        model = small if args.smoke else mnist_autoencoder()
        model = trained(model, train, args.epochs)
        for way in WAYS:
            la = LaplaceAE(model)
            la.fit(fit)
            tune(la, way, fit, DataLoader(TensorDataset(held_out), batch_size=100))
            rows.append({"way": way, "seed": seed, **judge(la, test, outliers)})
            texts = (f"{k} {v:.4g}" if k != "way" else v for k, v in rows[-1].items())
            print("  ".join(texts), flush=True)
            content = {"seed": 0, "images": len(train), "rows": rows}
            write_json(args.out / "evidence_autoencoder.json", content)


if __name__ == "__main__":
    main()
