"""Models whose samples are known, and a small LaplaceAE."""

import torch
from torch import Tensor, nn

from lae_backpack import AutoEncoder, LaplaceAE


class Shifts:
    """Network s adds the s-th shift to its input, and codes are x plus it, squared."""

    def __init__(self, shifts: Tensor, sigma_noise: float = 1.0) -> None:
        self.shifts = shifts  # [S]
        self.sigma_noise = sigma_noise
        self.seen: list[int] = []  # the rows of each call

    def samples(
        self, x: Tensor, n_samples: int, generator: torch.Generator | None = None
    ) -> Tensor:
        self.seen.append(len(x))
        shifts = self.shifts[:n_samples]
        return x + shifts.view(-1, *[1] * x.dim())

    def latent_samples(
        self, x: Tensor, n_samples: int, generator: torch.Generator | None = None
    ) -> Tensor:
        return self.samples(x, n_samples).flatten(2)[:, :, :2].square()


class Constant:
    """Every network paints the whole image in one random shade, and has no codes."""

    def samples(
        self, x: Tensor, n_samples: int, generator: torch.Generator | None = None
    ) -> Tensor:
        shades = torch.rand(n_samples, generator=generator)
        return shades.view(-1, *[1] * x.dim()).expand(n_samples, *x.shape)


def fitted(likelihood: str = "regression", n: int = 40) -> tuple[LaplaceAE, Tensor]:
    """A small LaplaceAE, hardly trained, and its images."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(n, 1, 4, 3, generator=generator)
    torch.manual_seed(5)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 2))
    decoder = nn.Sequential(
        nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 12), nn.Unflatten(1, (1, 4, 3))
    )
    la = LaplaceAE(AutoEncoder(encoder, decoder), likelihood)
    la.fit(x.split(8))
    return la, x


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
