"""What a LaplaceAE is compared with: five autoencoders, trained in the same way.

Each has ``samples``, and all but the ensemble ``latent_samples``, so that
``lae_backpack.downstream`` takes them; ``n_networks`` says how many make sense.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from learned_variances import VAE, LearnedVariance
from plain_autoencoder import UNLIMITED, MakeNet, PlainAutoEncoder
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from tqdm import tqdm
from typing_extensions import override

from lae_backpack import AutoEncoder

DROPPED = 0.2


class DroppedUnits(nn.Module):
    """Dropout that is always on, from a generator that may be given."""

    generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Leave out units.

        Args:
            x: What they say.  # [N, *]

        Returns:
            The same, without some of them.
        """
        kept = torch.empty_like(x).bernoulli_(1 - DROPPED, generator=self.generator)
        return x * kept / (1 - DROPPED)


class DropoutAutoEncoder(PlainAutoEncoder):
    """Monte-Carlo dropout before each non-linearity, in training and after it."""

    n_networks = UNLIMITED

    def __init__(self, make: MakeNet) -> None:
        """Put dropout into a network.

        Args:
            make: Makes the network, of two ``nn.Sequential``.
        """
        super().__init__(make)
        parts: list[Any] = [self.net.encoder, self.net.decoder]
        self.net = AutoEncoder(*(_with_dropout(part) for part in parts))

    def _use(self, generator: torch.Generator | None) -> None:
        for module in self.net.modules():
            if isinstance(module, DroppedUnits):
                module.generator = generator

    @override
    def loss(self, x: Tensor) -> Tensor:
        self._use(None)
        return super().loss(x)

    @override
    def code(self, x: Tensor, generator: torch.Generator) -> Tensor:
        self._use(generator)
        return super().code(x, generator)

    @override
    def decode(self, codes: Tensor, generator: torch.Generator) -> Tensor:
        self._use(generator)
        return super().decode(codes, generator)


def _with_dropout(layers: Iterable[nn.Module]) -> nn.Sequential:
    found: list[nn.Module] = []
    for layer in layers:
        found += [DroppedUnits(), layer] if isinstance(layer, nn.Tanh) else [layer]
    return nn.Sequential(*found)


class Ensemble(nn.Module):
    """Five networks, trained one by one; samples go round in a random order.

    It has no ``latent_samples``: each member has a code space of its own.
    """

    n_networks = 5

    def __init__(self, make: MakeNet) -> None:
        """Make the members.

        Args:
            make: Makes one.
        """
        super().__init__()
        self.members = nn.ModuleList(make() for _ in range(self.n_networks))

    def _drawn(self, n_samples: int, generator: torch.Generator | None) -> list[Any]:
        order = torch.randperm(self.n_networks, generator=generator).tolist()
        rounds = math.ceil(n_samples / self.n_networks)
        return [self.members[i] for i in (order * rounds)[:n_samples]]

    def samples(
        self, x: Tensor, n_samples: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Reconstructions by members.

        Args:
            x: A batch.  # [N, *in]
            n_samples: How many.
            generator: Decides about the order.

        Returns:
            Pixels.  # [S, N, *in]
        """
        return torch.stack([member(x) for member in self._drawn(n_samples, generator)])


BASELINES: dict[str, type[PlainAutoEncoder] | type[Ensemble]] = {
    "autoencoder": PlainAutoEncoder,
    "learned variance": LearnedVariance,
    "VAE": VAE,
    "MC dropout": DropoutAutoEncoder,
    "ensemble": Ensemble,
}


def train(
    model: PlainAutoEncoder,
    loader: Any,
    n_epochs: int,
    optimizer: Optimizer,
    schedule: LRScheduler,
    label: str = "",
) -> None:
    """Train a baseline as ``fit_online`` does.

    Args:
        model: The baseline, in train mode.
        loader: Yields ``(x,)``.
        n_epochs: How many epochs.
        optimizer: Moves its weights.
        schedule: The learning rate, step by step.
        label: What the progress bar says.
    """
    for _ in tqdm(range(n_epochs), label, leave=False, disable=None):
        for (x,) in loader:
            optimizer.zero_grad()
            model.loss(x).backward()
            optimizer.step()
            schedule.step()
