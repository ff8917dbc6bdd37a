"""Autoencoders trained once for all benchmarks, and their exact diagonals.

Both are kept in a folder, so that another structure is measured within minutes.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from diagonals import exact
from models import (
    fashion_autoencoder,
    mnist_autoencoder,
    residual_autoencoder,
    small_conv_autoencoder,
    wide_code_autoencoder,
)
from torch import Tensor
from tqdm import tqdm

from lae_backpack import AutoEncoder
from lae_backpack.datasets import load_images

NETS = {
    "linear": mnist_autoencoder,
    "small conv": small_conv_autoencoder,
    "conv": partial(fashion_autoencoder, divisor=8),
    "residual": residual_autoencoder,
    "wide code": wide_code_autoencoder,
}
FLAT = ("linear", "wide code")  # take flat images
FOLDER = Path(__file__).parent / "cache"
BATCH = 64


@dataclass(frozen=True)
class Zoo:
    """Nets at several stages of training.

    Attributes:
        n_train: Images to train with, the first ones.
        epochs: After which of them a net is kept; 0 is before training.
        n_images: Images of the accumulated diagonal, the first ones.
        batch: Images in a batch.
        seed: Where randomness starts.
        folder: Where nets and diagonals are kept.
        data_dir: Where the data is; by default what ``LAE_DATA`` says.
        made_up: Noise instead of data, for tests.
    """

    n_train: int = 10_000
    epochs: tuple[int, ...] = (0, 1, 5, 20)
    n_images: int = 1024
    batch: int = BATCH
    seed: int = 0
    folder: Path = FOLDER
    data_dir: Path | None = None
    made_up: bool = False

    @property
    def last(self) -> int:
        """The last stage."""
        return max(self.epochs)

    def counts(self, epoch: int) -> list[int]:
        """Over how many images diagonals are taken at a stage.

        Args:
            epoch: The stage.

        Returns:
            A batch, several batches, and for trained nets all that they saw.
        """
        whole = [self.n_train] if epoch else []
        return list(dict.fromkeys([self.batch, self.n_images, *whole]))

    def images(self, net: str) -> Tensor:
        """What the nets are trained with.

        Args:
            net: Which net they are for.

        Returns:
            Images, flat for nets of linear layers.  # [n_train, *in]
        """
        if self.made_up:
            generator = torch.Generator().manual_seed(self.seed)
            x = torch.rand(self.n_train, 1, 28, 28, generator=generator)
        else:
            x = load_images("mnist", "train", self.data_dir)[: self.n_train]
        return for_net(net, x)

    def model(self, net: str, epoch: int) -> AutoEncoder:
        """A net at one stage, trained if it is not there.

        Args:
            net: Which one.
            epoch: After which epoch.

        Returns:
            The net.
        """
        path = self.path(net, epoch)
        if not path.exists():
            self._train(net)
        model = NETS[net]()
        model.load_state_dict(torch.load(path))
        return model

    def exact(self, net: str, epoch: int, n_images: int) -> Tensor:
        """A net's exact diagonal, computed if it is not there.

        Args:
            net: Which one.
            epoch: After which epoch.
            n_images: Over how many images, the first ones.

        Returns:
            The diagonal.  # [P]
        """
        path = self.path(net, epoch, f"exact-{n_images}")
        if not path.exists():
            measure, x = exact(self.model(net, epoch)), self.images(net)[:n_images]
            label = f"exact, {net}, epoch {epoch}"
            total = torch.zeros((), dtype=torch.float64)
            for chunk in tqdm(x.split(16), label, leave=False, disable=None):
                total = total + measure(chunk, len(chunk))
            torch.save(total, path)
        return torch.load(path)

    def path(
        self, net: str, epoch: int, what: str = "weights", kind: str = "pt"
    ) -> Path:
        """Where something about a net at one stage is kept.

        Args:
            net: Which one.
            epoch: After which epoch.
            what: What it is.
            kind: The end of the file's name.

        Returns:
            The file.
        """
        stem = f"{net}-{self.n_train}-{self.batch}-{self.seed}-{epoch}"
        return self.folder / f"{stem}-{what}.{kind}".replace(" ", "_")

    def _train(self, net: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(self.seed)
        model, x = NETS[net](), self.images(net)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for epoch in tqdm(range(self.last + 1), f"train {net}", disable=None):
            if epoch:  # the first round only keeps the net as it is made
                for rows in torch.randperm(len(x)).split(self.batch):
                    optimizer.zero_grad()
                    error = F.mse_loss(model(x[rows]), x[rows], reduction="sum")
                    (error / len(rows)).backward()
                    optimizer.step()
            if epoch in self.epochs:
                torch.save(model.state_dict(), self.path(net, epoch))


SMALLEST = "small conv"
SMOKE = Zoo(n_train=16, epochs=(0, 1), n_images=4, batch=2, made_up=True)


def zoo_arguments(parser: ArgumentParser) -> tuple[Namespace, Zoo]:
    """Read a command line, and what it says of nets.

    Args:
        parser: Has ``--smoke``, ``--seed`` and ``--out``; gets ``--nets``,
            ``--images``, ``--data-dir`` and ``--cache``.

    Returns:
        All that it says, and the nets.
    """
    parser.add_argument("--nets", nargs="+", choices=NETS, help="by default all")
    parser.add_argument("--images", type=int, default=Zoo.n_images, help="accumulated")
    parser.add_argument("--data-dir", type=Path, help="by default what LAE_DATA says")
    parser.add_argument("--cache", type=Path, default=FOLDER, help="nets and diagonals")
    args = parser.parse_args()
    args.nets = args.nets or ([SMALLEST] if args.smoke else list(NETS))
    if args.smoke:
        return args, replace(SMOKE, seed=args.seed, folder=args.out / "cache")
    named = {"folder": args.cache, "data_dir": args.data_dir}
    return args, Zoo(n_images=args.images, seed=args.seed, **named)


def for_net(net: str, x: Tensor) -> Tensor:
    """Bring images into the shape that a net takes.

    Args:
        net: Which one.
        x: Images.  # [N, 1, 28, 28]

    Returns:
        The images, flat for nets of linear layers.
    """
    return x.flatten(1) if net in FLAT else x
