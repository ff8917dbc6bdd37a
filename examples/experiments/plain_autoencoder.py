"""The plainest baseline: one network. The others are variations of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from lae_backpack import AutoEncoder
from lae_backpack.posterior.sampling import new_seed

MakeNet = Callable[[], AutoEncoder]
UNLIMITED = 10**9


def generators(
    x: Tensor, count: int, generator: torch.Generator | None
) -> Iterator[torch.Generator]:
    """A generator of its own for each pass.

    Args:
        x: A batch, for the device.  # [N, *in]
        count: How many passes.
        generator: Where their seeds come from.

    Yields:
        The generators.
    """
    for _ in range(count):
        yield torch.Generator(x.device).manual_seed(new_seed(generator))


class PlainAutoEncoder(nn.Module):
    """One network; its samples are all equal."""

    n_networks = 1

    def __init__(self, make: MakeNet) -> None:
        """Make the network.

        Args:
            make: Makes it.
        """
        super().__init__()
        self.net = make()

    def loss(self, x: Tensor) -> Tensor:
        """What is minimised: the squared error, summed over pixels.

        Args:
            x: A batch.  # [N, *in]

        Returns:
            The mean over images.
        """
        return (self.net(x) - x).square().sum() / len(x)

    def samples(
        self, x: Tensor, n_samples: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Reconstructions, as ``downstream.models.Reconstructs`` wants them.

        Args:
            x: A batch.  # [N, *in]
            n_samples: How many.
            generator: Where randomness comes from.

        Returns:
            Pixels.  # [S, N, *in]
        """
        passes = list(generators(x, n_samples, generator))
        drawn = zip(self.codes(x, passes), passes, strict=True)
        return torch.stack([self.decode(codes, own) for codes, own in drawn])

    def latent_samples(
        self, x: Tensor, n_samples: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Codes, those of ``samples`` when the generators are equal.

        Args:
            x: A batch.  # [N, *in]
            n_samples: How many.
            generator: Where randomness comes from.

        Returns:
            The codes.  # [S, N, K]
        """
        passes = generators(x, n_samples, generator)
        return torch.stack(list(self.codes(x, passes)))

    def codes(self, x: Tensor, passes: Iterable[torch.Generator]) -> Iterator[Tensor]:
        """Draw codes pass by pass.

        Args:
            x: A batch.  # [N, *in]
            passes: Where the randomness of each comes from.

        Yields:
            A code for each image.  # [N, K]
        """
        for generator in passes:
            yield self.code(x, generator)

    def code(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Draw a code for each image.

        Args:
            x: A batch.  # [N, *in]
            generator: Where randomness comes from.

        Returns:
            The codes.  # [N, K]
        """
        del generator
        return self.net.encoder(x)

    def decode(self, codes: Tensor, generator: torch.Generator) -> Tensor:
        """Draw what a decoder makes of codes.

        Args:
            codes: The codes.  # [N, K]
            generator: Where randomness comes from.

        Returns:
            Pixels.  # [N, *in]
        """
        del generator
        return self.net.decoder(codes)
