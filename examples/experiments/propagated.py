"""How well one pass ranks uncertainty, against thousands of networks.

    python examples/experiments/propagated.py --data-dir DIR     # or LAE_DATA=DIR

Trains a linear and a convolutional autoencoder on MNIST, fits LaplaceAE post hoc, and
compares the propagated variance with that of sampled and of linearised networks: rank
correlations per image and per pixel, and how well each tells Fashion-MNIST apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from comparing import (
    auroc,
    fashion_autoencoder,
    mnist_autoencoder,
    rank_correlation,
    small_digits,
    write_json,
)
from torch import Tensor, nn
from tqdm import tqdm

from lae_backpack import AutoEncoder, LaplaceAE
from lae_backpack.datasets import load_images

REFERENCES = {"sampled": "nn", "linearised": "glm"}


@dataclass(frozen=True)
class Settings:
    """How much is done.

    Attributes:
        n_steps: Steps of Adam.
        n_train: Images to train and to fit with.
        n_test: Images to predict, of each data set.
        n_networks: Networks, sampled or linearised.
        seed: Where randomness starts.
    """

    n_steps: int = 2500
    n_train: int = 60_000
    n_test: int = 100
    n_networks: int = 2000
    seed: int = 0


SMOKE = Settings(n_steps=5, n_train=64, n_test=8, n_networks=8)


def linear_autoencoder() -> AutoEncoder:
    """The paper's linear autoencoder, 784-512-256-2 with Tanh.

    Returns:
        The model.
    """
    flat = mnist_autoencoder()
    return AutoEncoder(
        nn.Sequential(nn.Flatten(), flat.encoder),
        nn.Sequential(flat.decoder, nn.Unflatten(1, (1, 28, 28))),
    )


def conv_autoencoder() -> AutoEncoder:
    """The paper's convolutional autoencoder, an eighth as wide.

    Returns:
        The model.
    """
    return fashion_autoencoder(divisor=8)


MODELS = {"linear": linear_autoencoder, "conv": conv_autoencoder}


def train(model: nn.Module, x: Tensor, n_steps: int, label: str) -> None:
    """Minimise the squared error.

    Args:
        model: The autoencoder.
        x: The images.  # [N, 1, 28, 28]
        n_steps: Steps of Adam on 128 images each.
        label: What the progress bar says.
    """
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    for _ in tqdm(range(n_steps), label, disable=None):
        batch = x[torch.randint(len(x), (128,))]
        optimizer.zero_grad()
        (model(batch) - batch).square().sum((1, 2, 3)).mean().backward()
        optimizer.step()
        schedule.step()


def correlation_of_rows(one: Tensor, other: Tensor) -> float:
    """Spearman's correlation, averaged over rows.

    Args:
        one: Numbers.  # [R, M]
        other: Numbers.  # [R, M]

    Returns:
        The mean of the rows' correlations.
    """
    return statistics.fmean(map(rank_correlation, one, other))


def agreement(found: Tensor, true: Tensor, n_test: int) -> dict[str, float]:
    """How alike two variances rank images and pixels.

    Args:
        found: Variances of test images, then of outliers.  # [2 n_test, ...]
        true: The reference's.  # [2 n_test, ...]
        n_test: How many of each there are.

    Returns:
        Rank correlations and the ratio of the sums by name.
    """
    found, true = found.flatten(1), true.flatten(1)
    a, b = found[:n_test], true[:n_test]
    return {
        "per image": correlation_of_rows(a.sum(1)[None], b.sum(1)[None]),
        "per image, with outliers": correlation_of_rows(
            found.sum(1)[None], true.sum(1)[None]
        ),
        "per pixel within an image": correlation_of_rows(a, b),
        "all pixels": correlation_of_rows(a.reshape(1, -1), b.reshape(1, -1)),
        "ratio of sums": (a.sum() / b.sum()).item(),
    }


def outlier_auroc(variance: Tensor, n_test: int) -> float:
    """How well a variance tells outliers apart.

    Args:
        variance: Variances of test images, then of outliers.  # [2 n_test, ...]
        n_test: How many of each there are.

    Returns:
        The area under the ROC curve of the summed variance.
    """
    totals = variance.flatten(1).sum(1)
    return auroc(totals[:n_test], totals[n_test:])


def compare(
    name: str, x: Tensor, test: Tensor, settings: Settings
) -> dict[str, object]:
    """Train and fit one autoencoder and compare its predictives.

    Args:
        name: Which one.
        x: Images to train with.  # [N, 1, 28, 28]
        test: Test images, then outliers.  # [2 n_test, 1, 28, 28]
        settings: How much is done.

    Returns:
        The figures by name.
    """
    torch.manual_seed(settings.seed)
    model = MODELS[name]()
    train(model, x, settings.n_steps, name)
    la = LaplaceAE(model)
    la.fit(x.split(128))
    outputs, codes = {}, {}
    for kind, pred_type in {**REFERENCES, "propagated": "propagated"}.items():
        for results, predict in ((outputs, la), (codes, la.latent)):
            generator = torch.Generator().manual_seed(settings.seed)
            _, results[kind] = predict(
                test,
                pred_type=pred_type,
                n_samples=settings.n_networks,
                generator=generator,
            )
    count = settings.n_test
    return {
        "model": name,
        "sigma_noise": float(la.sigma_noise),
        "against": {
            kind: {
                **agreement(outputs["propagated"], outputs[kind], count),
                "latent, per image": correlation_of_rows(
                    codes["propagated"][:count].sum(1)[None],
                    codes[kind][:count].sum(1)[None],
                ),
            }
            for kind in REFERENCES
        },
        "linearised against sampled": agreement(
            outputs["linearised"], outputs["sampled"], count
        ),
        "auroc": {
            "output": {k: outlier_auroc(v, count) for k, v in outputs.items()},
            "latent": {k: outlier_auroc(v, count) for k, v in codes.items()},
        },
    }


def main() -> None:
    """Run the experiment and write its figures."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="by default what LAE_DATA says")
    parser.add_argument("--smoke", action="store_true", help="a few seconds, no data")
    parser.add_argument("--out", type=Path, default=here / "results")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    for name, value in asdict(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    args = parser.parse_args()
    given = Settings(**{name: getattr(args, name) for name in asdict(SMOKE)})
    settings = SMOKE if args.smoke else given
    count = settings.n_test
    if args.smoke:
        x = F.interpolate(small_digits(), size=(28, 28))
        test = torch.cat([x[-count:], 1 - x[-count:]])
    else:
        x = load_images("mnist", "train", args.data_dir)
        names = ("mnist", "fashion-mnist")
        test = [load_images(name, "test", args.data_dir)[:count] for name in names]
        test = torch.cat(test)
    x = x[: settings.n_train]
    for name in args.models:
        figures = compare(name, x, test, settings)
        print(json.dumps(figures, indent=2))
        content = {"seed": settings.seed, "settings": asdict(settings), **figures}
        write_json(args.out / f"propagated_{name}.json", content)


if __name__ == "__main__":
    main()
