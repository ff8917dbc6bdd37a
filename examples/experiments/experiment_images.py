"""The images of the paper's experiments, in three parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from comparing import small_digits
from sklearn.datasets import load_digits
from torch import Tensor

from lae_backpack.datasets import load_images, load_labels

N_VALIDATION = 5_000
OUTLIERS = {
    "mnist": "fashion-mnist",
    "fashion-mnist": "mnist",
    "digits": "lying digits",
}


@dataclass(frozen=True)
class Part:
    """Images and their classes.  # [N, 1, 28, 28] and [N]."""

    x: Tensor
    labels: Tensor

    def rows(self, start: int | None, stop: int | None) -> Part:
        """Some of them.

        Args:
            start: The first one.
            stop: The one after the last.

        Returns:
            These.
        """
        return Part(self.x[start:stop], self.labels[start:stop])

    def by_lot(self, count: int) -> Part:
        """Some at random: MNIST's images are in an order, the easier ones first.

        Args:
            count: How many; all if there are no more.

        Returns:
            Always the same ones.
        """
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(len(self.x), generator=generator)[:count]
        return Part(self.x[order], self.labels[order])


@dataclass(frozen=True)
class Images:
    """The three parts of a data set."""

    train: Part
    validation: Part
    test: Part


def load(name: str, data_dir: Path | None = None) -> Images:
    """Read a data set; the last 5,000 training images are set apart for validation.

    Args:
        name: ``"mnist"``, ``"fashion-mnist"``, ``"digits"`` (scikit-learn's, for smoke
            runs) or ``"lying digits"``.
        data_dir: Where it is; by default what ``LAE_DATA`` says.

    Returns:
        Its parts.
    """
    if "digits" in name:
        x = F.interpolate(small_digits(), scale_factor=4)[..., 2:-2, 2:-2]
        x = x.mT if name.startswith("lying") else x
        whole = Part(x.contiguous(), torch.tensor(load_digits(return_X_y=True)[1]))
        bounds = ((0, 512), (512, 768), (768, 896))
        return Images(*(whole.rows(*bound) for bound in bounds))
    whole, test = (
        Part(load_images(name, split, data_dir), load_labels(name, split, data_dir))
        for split in ("train", "test")
    )
    own, validation = whole.rows(None, -N_VALIDATION), whole.rows(-N_VALIDATION, None)
    return Images(own, validation, test)
