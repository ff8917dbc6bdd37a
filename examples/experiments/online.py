"""Online training against a plain autoencoder and post-hoc fits, and what was tried.

python examples/experiments/online.py --only default "calibrated every"
python examples/experiments/online.py --only default --seed 1 --name online_seed_1
python examples/experiments/online.py --only "post hoc" --name post_hoc
python examples/experiments/online.py --name tried      # more than an hour
python examples/experiments/online.py --smoke                 # seconds, proves nothing

The images are found by the environment's LAE_DATA, or by --data-dir.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from comparing import auroc, mnist_autoencoder, small_digits, write_json
from torch import Tensor
from torch.nn import Module
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from lae_backpack import LaplaceAE, OnlineSettings
from lae_backpack.datasets import load_images

RESULTS = Path(__file__).parent / "results"
DIRECTIONS = {"mnist": ("fashion-mnist", 10), "fashion-mnist": ("mnist", 15)}
PLAIN = OnlineSettings(warmup_steps=10**9, refresh_every=10**9)


@dataclass(frozen=True)
class Way:
    """A way to get a posterior: trained with it, or fitted after plain training."""

    name: str
    settings: OnlineSettings | None = None  # none: post hoc
    posterior: dict[str, Any] = field(default_factory=dict)
    tuned: bool = False  # the prior, by the evidence


CALIBRATED = {"hessian_structure": "calibrated_diag"}
SHRUNK = {**CALIBRATED, "backend_kwargs": {"shrink": True}}
POST_HOC = [
    Way("post hoc, default"),
    Way("post hoc, unit noise", posterior={"sigma_noise": 1.0}),
    Way("post hoc, learned noise", posterior={"sigma_noise": "learned"}),
    Way("post hoc, prior by evidence", tuned=True),
    Way("post hoc, approx_diag", posterior={"hessian_structure": "approx_diag"}),
    Way("post hoc, mixed_diag", posterior={"hessian_structure": "mixed_diag"}),
    Way("post hoc, calibrated, shrunk", posterior=SHRUNK),
    Way("post hoc, prior 10", posterior={"prior_precision": 10.0}),
]
ONLINE = [
    Way("online, default", OnlineSettings()),
    Way("online, alpha 3e-4", OnlineSettings(alpha=3e-4)),
    Way("online, alpha 1e-2", OnlineSettings(alpha=1e-2)),
    Way("online, no warm-up", OnlineSettings(warmup_steps=0)),
    Way("online, curvature at the mean", OnlineSettings(curvature_at="mean")),
    Way("online, curvature every 10", OnlineSettings(refresh_every=10)),
    Way("online, independent noise", OnlineSettings(antithetic=False)),
    Way("online, ema", OnlineSettings("ema", alpha=1e-2)),
    Way("online, calibrated every 10", OnlineSettings(refresh_every=10), CALIBRATED),
    Way("online, two networks a step", OnlineSettings(n_samples=2)),
    Way("online, as published", OnlineSettings.published(60_000)),
]


@dataclass(frozen=True)
class Outcome:
    """What one way leads to; errors are summed over pixels."""

    way: str
    data: str
    error_of_networks: float
    error_of_mean: float
    auroc_error: float
    auroc_output: float
    auroc_latent: float

    def __str__(self) -> str:
        """The row of the printed table."""
        return (
            f"{self.data:<14} {self.way:<32} "
            f"{self.error_of_networks:6.2f} {self.error_of_mean:6.2f}   "
            f"{self.auroc_error:.3f} {self.auroc_output:.3f} {self.auroc_latent:.3f}"
        )


def judge(
    la: LaplaceAE, way: str, data: str, test: Tensor, outliers: Tensor, n_networks: int
) -> Outcome:
    """Ask a posterior about test images and outliers.

    Args:
        la: The posterior.
        way: How it was made.
        data: On what.
        test: Test images.  # [N, P]
        outliers: Outliers.  # [N, P]
        n_networks: How many networks are sampled.

    Returns:
        Errors and AUROCs.
    """
    scores = []
    for x in (test, outliers):
        mean, variance = la(x, n_samples=n_networks)
        of_mean = (mean - x).square().sum(1)
        spread = variance.sum(1)
        of_networks = of_mean + spread * (n_networks - 1) / n_networks
        latent = la.latent(x, n_samples=n_networks)[1].sum(1)
        scores.append((of_networks, of_mean, spread, latent))
    (of_networks, of_mean, *_), _ = scores
    aurocs = [auroc(a, b) for a, b in zip(*scores, strict=True)]
    return Outcome(
        way,
        data,
        of_networks.mean().item(),
        of_mean.mean().item(),
        aurocs[0],
        *aurocs[2:],
    )


def train(
    data: Tensor, n_epochs: int, seed: int, settings: OnlineSettings, **posterior: Any
) -> LaplaceAE:
    """Train from scratch.

    Args:
        data: Images.  # [N, P]
        n_epochs: How many epochs.
        seed: Of weights, order and noise.
        settings: How the precision follows.
        **posterior: As for ``LaplaceAE``.

    Returns:
        The posterior.
    """
    torch.manual_seed(seed)
    la = LaplaceAE(mnist_autoencoder(data.shape[1]), **posterior)
    loader = DataLoader(TensorDataset(data), 128, shuffle=True)
    la.fit_online(loader, n_epochs, settings=settings)
    return la


def fit(model: Module, data: Tensor, way: Way) -> LaplaceAE:
    """Fit a trained model.

    Args:
        model: The model.
        data: Images.  # [N, P]
        way: How.

    Returns:
        The posterior.
    """
    la = LaplaceAE(model, **way.posterior)
    la.fit(DataLoader(TensorDataset(data), 512))
    if way.tuned:
        la.optimize_prior_precision(method="marglik")
    return la


def compare(
    name: str,
    images: tuple[Tensor, Tensor, Tensor],
    n_epochs: int,
    seed: int,
    n_networks: int,
    chosen: Callable[[str], bool],
) -> list[Outcome]:
    """Go all ways on one data set.

    Args:
        name: The data set.
        images: For training, for testing, outliers.  # [N, P] each
        n_epochs: How many epochs.
        seed: Of everything random.
        n_networks: How many networks are sampled.
        chosen: Which ways.

    Returns:
        Their outcomes.
    """
    data, test, outliers = images
    plain = train(data, n_epochs, seed, PLAIN).model
    error = (plain(test) - test).square().sum(1).mean().item()
    outcomes = [Outcome("plain autoencoder", name, error, error, *[float("nan")] * 3)]
    print(outcomes[0], flush=True)
    for way in tqdm([w for w in POST_HOC + ONLINE if chosen(w.name)], name):
        if way.settings is None:
            la = fit(plain, data, way)
        else:
            la = train(data, n_epochs, seed, way.settings, **way.posterior)
        outcomes.append(judge(la, way.name, name, test, outliers, n_networks))
        print(outcomes[-1], flush=True)
    return outcomes


def main() -> None:
    """Print the table and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="seconds, proves nothing")
    parser.add_argument("--data-dir", type=Path, help="by default what LAE_DATA says")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="only ways with one of these in a name"
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything random")
    parser.add_argument("--networks", type=int, default=100, help="sampled to judge")
    parser.add_argument("--test-images", type=int, default=10_000, help="of each kind")
    parser.add_argument("--name", default="online", help="of the file with results")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    args = parser.parse_args()
    outcomes: list[Outcome] = []
    how = args.seed, args.networks, lambda name: any(part in name for part in args.only)
    if args.smoke:
        digits = small_digits().flatten(1)
        images = digits[:512], digits[512:640], digits[640:768].flip(1)
        outcomes += compare("digits", images, 1, *how)
    else:
        for name, (other, n_epochs) in DIRECTIONS.items():
            count = args.test_images
            images = (
                load_images(name, "train", args.data_dir).flatten(1),
                load_images(name, "test", args.data_dir)[:count].flatten(1),
                load_images(other, "test", args.data_dir)[:count].flatten(1),
            )
            outcomes += compare(name, images, n_epochs, *how)
    settings = ("seed", "networks", "test_images")
    content = {name: getattr(args, name) for name in settings}
    rows = [
        {name: None if value != value else value for name, value in asdict(o).items()}
        for o in outcomes  # a plain autoencoder has no variance, and JSON no NaN
    ]
    write_json(args.out / f"{args.name}.json", {**content, "rows": rows})


if __name__ == "__main__":
    main()
