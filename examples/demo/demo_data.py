"""The images of the demo, and images that are none of their kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor
from torch.nn.functional import avg_pool2d

from lae_backpack.datasets import load_images, load_labels

OTHERS = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}
TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
SIDE = 8  # of scikit-learn's digits
SHRUNK_BY = 4  # photos, so that a patch of 8x8 shows something
CLOTHES = (
    "T-shirt", "trousers", "pullover", "dress", "coat",
    "sandal", "shirt", "sneaker", "bag", "boot",
)  # fmt: skip


@dataclass(frozen=True)
class DemoImages:
    """What the demo looks at; images are [N, 1, H, W] with pixels in [0, 1]."""

    name: str
    train: Tensor
    test: Tensor
    labels: Tensor  # of the test images, [N]
    class_names: tuple[str, ...]
    outliers: dict[str, Tensor]


def small_digits(seed: int) -> DemoImages:
    """Digits and photos that scikit-learn ships.

    Args:
        seed: Of the split into training and test images.

    Returns:
        1,400 training and 397 test images.
    """
    pixels, classes = load_digits(return_X_y=True)
    digits = torch.tensor(pixels).float().reshape(-1, 1, SIDE, SIDE) / 16
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))
    train, test = order[:1400], order[1400:]
    return DemoImages(
        "scikit-learn's digits",
        digits[train],
        digits[test],
        torch.tensor(classes)[test],
        tuple("0123456789"),
        {"photos": photo_patches(), "upside down": upside_down(digits[test])},
    )


def published_images(
    name: str, directory: Path | None, n_train: int, n_test: int
) -> DemoImages:
    """MNIST or Fashion-MNIST, with the other one as outliers.

    Args:
        name: Which one.
        directory: Where both are; by default what ``LAE_DATA`` says.
        n_train: How many training images.
        n_test: How many test images, and as many outliers.

    Returns:
        The first images of the published files.
    """
    other = OTHERS[name]
    test = load_images(name, "test", directory)[:n_test]
    return DemoImages(
        TITLES[name],
        load_images(name, "train", directory)[:n_train],
        test,
        load_labels(name, "test", directory)[:n_test],
        tuple("0123456789") if name == "mnist" else CLOTHES,
        {
            TITLES[other]: load_images(other, "test", directory)[:n_test],
            "upside down": upside_down(test),
        },
    )


def photo_patches() -> Tensor:
    """Patches of the photos that scikit-learn ships, a temple and a flower.

    Each goes from black to white, so that contrast alone does not give them away.

    Returns:
        Pixels in [0, 1].  # [520, 1, 8, 8]
    """
    patches = []
    for photo in load_sample_images().images:
        grey = torch.tensor(photo).float().mean(-1)[None]
        small = avg_pool2d(grey, SHRUNK_BY)[0]
        cut = small.unfold(0, SIDE, SIDE).unfold(1, SIDE, SIDE)
        patches.append(cut.reshape(-1, SIDE * SIDE))
    flat = torch.cat(patches)
    darkest, brightest = flat.aminmax(dim=1, keepdim=True)
    stretched = (flat - darkest) / (brightest - darkest).clamp_min(1e-6)
    return stretched.reshape(-1, 1, SIDE, SIDE)


def upside_down(x: Tensor) -> Tensor:
    """Turn images by 180 degrees: outliers that are hard, some look as before.

    Args:
        x: The images.  # [N, 1, H, W]

    Returns:
        The turned images.  # [N, 1, H, W]
    """
    return x.flip(-1, -2)
