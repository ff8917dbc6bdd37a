"""What the demo measures on test images and outliers."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from demo_data import DemoImages
from sklearn.decomposition import PCA
from torch import Tensor

from lae_backpack import LaplaceAE
from lae_backpack.downstream.calibration import coverage
from lae_backpack.downstream.ood import (
    detection,
    mean_log_likelihood,
    outlier_scores,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from scores import rank_correlation  # noqa: E402

SCORES = {
    "log_likelihood": "log-likelihood",
    "typicality": "typicality",
    "output_variance": "variance of pixels",
    "latent_variance": "variance of codes",
}
LEVEL = 0.95
REFERENCE = 1_000  # training images that noise and typicality are measured on


@dataclass(frozen=True)
class Judgement:
    """Errors are summed over the pixels of an image, and test images' mean."""

    error_of_mean: float
    error_of_networks: float
    error_of_pca: float  # with as many components as the code has
    auroc: dict[str, dict[str, float]]  # by outliers, then by score
    rank_of_images: float  # correlation of variance and squared error
    rank_of_pixels: float
    variance_over_error: float  # 1 if the networks' variance were all of the error
    cover_by_networks: float  # of intervals that ought to hold LEVEL of the pixels
    cover_with_noise: float
    cover_scaled: float
    scale: float  # of the networks' variance, so that it fits the training images

    def rows(self) -> list[tuple[str, list[str]]]:
        """The table: what is measured, and its numbers.

        Returns:
            Rows; those without numbers are headings.
        """
        return [
            ("reconstruction error, summed over pixels", []),
            ("  mean of sampled networks", [f"{self.error_of_mean:.2f}"]),
            ("  a sampled network", [f"{self.error_of_networks:.2f}"]),
            ("  for comparison: PCA, code as large", [f"{self.error_of_pca:.2f}"]),
            ("AUROC against outliers", list(self.auroc)),
            *(
                (f"  {words}", [f"{by[name]:.3f}" for by in self.auroc.values()])
                for name, words in SCORES.items()
            ),
            ("variance against error", []),
            ("  rank correlation, of images", [f"{self.rank_of_images:.2f}"]),
            ("  rank correlation, of pixels", [f"{self.rank_of_pixels:.2f}"]),
            ("  variance / squared error", [f"{self.variance_over_error:.3f}"]),
            (f"share of pixels in {LEVEL:.0%} intervals", []),
            ("  variance of the networks", [f"{self.cover_by_networks:.1%}"]),
            ("  with the noise of pixels", [f"{self.cover_with_noise:.1%}"]),
            (f"  networks' variance x {self.scale:.0f}", [f"{self.cover_scaled:.1%}"]),
        ]

    def __str__(self) -> str:
        """The table as it is printed."""
        lines = []
        for name, numbers in self.rows():
            lines.append(f"{name:<42}" + "".join(f"{n:>15}" for n in numbers))
        return "\n".join(line.rstrip() for line in lines)

    def as_dict(self) -> dict[str, object]:
        """All numbers by name.

        Returns:
            What JSON takes.
        """
        return asdict(self)


@dataclass(frozen=True)
class Evidence:
    """What the figures show."""

    mean: Tensor  # [N, 1, H, W]
    variance: Tensor  # over networks, [N, 1, H, W]
    noise: float  # mean squared error of a pixel of the training images
    scale: float  # that, divided by the networks' mean variance there
    inside: dict[str, Tensor]  # scores of test images, [N]
    outside: dict[str, dict[str, Tensor]]  # scores of outliers by set, [M]


def judge(
    la: LaplaceAE, images: DemoImages, n_networks: int, seed: int
) -> tuple[Judgement, Evidence]:
    """Measure everything.

    Args:
        la: The posterior.
        images: Test images and outliers.
        n_networks: How many networks are sampled for each number.
        seed: Of the networks.

    Returns:
        The numbers, and what they are made from.
    """
    generator = torch.Generator().manual_seed(seed)
    test = images.test
    mean, variance = la(test, n_samples=n_networks, generator=generator)
    squares = (mean - test).square()
    reference = images.train[:REFERENCE]
    on_train = la(reference, n_samples=n_networks, generator=generator)
    noise = (on_train[0] - reference).square().mean().item()
    scale = noise / on_train[1].mean().item()
    usual = mean_log_likelihood(la, reference, n_networks, generator)
    inside = outlier_scores(la, test, usual, n_networks, generator)
    outside = {
        name: outlier_scores(la, x, usual, n_networks, generator)
        for name, x in images.outliers.items()
    }
    of_mean = squares.flatten(1).sum(1)
    spread = variance.flatten(1).sum(1)
    biased = spread * (n_networks - 1) / n_networks
    evidence = Evidence(mean, variance, noise, scale, inside, outside)
    return Judgement(
        error_of_mean=of_mean.mean().item(),
        error_of_networks=(of_mean + biased).mean().item(),
        error_of_pca=_error_of_pca(images, n_components=2),
        auroc={
            name: {s: detection(inside[s], scores[s]).auroc for s in SCORES}
            for name, scores in outside.items()
        },
        rank_of_images=rank_correlation(spread, of_mean),
        rank_of_pixels=rank_correlation(variance, squares),
        variance_over_error=(spread.mean() / of_mean.mean()).item(),
        cover_by_networks=coverage(mean, variance, test, [LEVEL]).item(),
        cover_with_noise=coverage(mean, variance + noise, test, [LEVEL]).item(),
        cover_scaled=coverage(mean, scale * variance, test, [LEVEL]).item(),
        scale=scale,
    ), evidence


def _error_of_pca(images: DemoImages, n_components: int) -> float:
    pca = PCA(n_components, svd_solver="full").fit(images.train.flatten(1).numpy())
    test = images.test.flatten(1).numpy()
    found = pca.inverse_transform(pca.transform(test))
    return float(((found - test) ** 2).sum(1).mean())
